//! `sparkpipe serve`: the gate first, then the engine at exactly the receipt's limits, then the gateway.
use super::Exit;
use super::identity::{admission, cannot_run, topology};
use super::qualify::{class_of, routes_log};
use super::state::{self, StateDir};
use crate::gateway::{self, Gateway};
use crate::host_engine::HostEngine;
use crate::pack_text::PackText;
use crate::routes::RouteWriter;
use crate::scheduler;
use anyhow::{Context, Result, bail};
use clap::Args;
use harness::engine::{Engine, EngineSize, Plans};
use harness::instruments::machine::Machine;
use harness::pack::{Pack, PackError};
use kernels::numeric::NumericClass;
use ledger::Bytes;
use receipts::{Limits, Policy, Refusal, Store, TupleKey, admit};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Built-in model, pack, checkpoint folder or GGUF file.
    #[arg(default_value = harness::builtin::NAME)]
    pub model: String,
    /// Recipe, where the model is packed first.
    #[arg(long)]
    pub recipe: Option<String>,
    /// Numeric class; the recipe's own by default.
    #[arg(long)]
    pub class: Option<String>,
    /// Context bucket in tokens.
    #[arg(long, default_value_t = 2048)]
    pub context: u64,
    /// Batch bucket: the most rows of a step.
    #[arg(long, default_value_t = 8)]
    pub batch: u32,
    /// Topology file; the built-in single node by default.
    #[arg(long)]
    pub topology: Option<PathBuf>,
    /// Threads.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on.
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Requests that may wait beside the running rows; one more gets 429.
    #[arg(long, default_value_t = 64)]
    pub queue: usize,
    /// Tokens of a turn: a row that has run as many makes room when a request waits. 0 keeps rows to their end.
    #[arg(long, default_value_t = scheduler::Config::default().slice)]
    pub slice: usize,
    /// Sequences that may be saved in memory between two turns.
    #[arg(long, default_value_t = scheduler::Config::default().paused)]
    pub paused: usize,
    /// Append the actual expert routes of every decode step to this file (JSON lines, at most 256 MiB).
    #[arg(long)]
    pub record_routes: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Serve) -> Result<Exit> {
    let state = StateDir::from_env()?;
    let topology = topology(args.topology.as_ref())?;
    if let Some(refusal) = cannot_run(&topology) {
        return Ok(refused(&refusal));
    }
    let pack = match sound_pack(args, &state)? {
        Ok(pack) => pack,
        Err(fault) => {
            return Ok(refused(&format!(
                "{fault}; delete the file and qualify again, or bring back a sound copy"
            )));
        }
    };
    state::context_fits(&pack, args.context)?;
    let class = class_of(args.class.as_deref(), &pack)?;
    let (header, policy, machine) = (&pack.header, Policy::embedded(), Machine::read());
    let threads = state::threads(args.threads)?;
    let tuple = TupleKey::local(&header.name, &header.recipe.name, class.name(), args.context, args.batch);
    let identity = admission(&pack, &topology, &policy, &machine, threads)?;
    let store = Store::open(&state.receipts());
    let admitted = match admit(&store, &policy, &tuple, &identity) {
        Ok(admitted) => admitted,
        Err(refusal @ (Refusal::Store(_) | Refusal::Tuple(_))) => return Err(refusal.into()),
        Err(refusal) => {
            crate::complain(&refusal.with_command(&qualify_command(args, &tuple)).to_string());
            return Ok(Exit::Refused);
        }
    };
    println!("sparkpipe serve: {tuple}");
    println!("receipt {}", admitted.receipt_id);
    println!("device host: {}", identity.device_name);
    println!("pack {}", pack.id);
    for (name, value) in &identity.switches {
        println!("  {name}={value}");
    }
    start(args, &pack, class, threads, &admitted.limits, machine.available)
}

fn refused(why: &str) -> Exit {
    crate::complain(&format!("refused: {why}"));
    Exit::Refused
}

/// Most sequences saved at once: those that wait for a turn, and one more while two change places.
fn saved(args: &Serve) -> u64 {
    let waiting = args.paused.min(args.queue) as u64;
    if args.slice == 0 || waiting == 0 { 0 } else { waiting + 1 }
}

/// Prints the memory plan and compares it with the machine, then builds the engine and serves.
fn start(
    args: &Serve,
    pack: &Pack,
    class: NumericClass,
    threads: usize,
    limits: &Limits,
    available: u64,
) -> Result<Exit> {
    let header = &pack.header;
    let size = EngineSize { batch: limits.batch as usize, context: limits.context as usize, threads };
    let memory = Plans::build(&header.model, &header.manifest, class, size)?.memory(header.manifest.payload);
    let (saved, each) = (saved(args), Bytes(limits.sequence_bytes));
    let turns = Bytes(saved.saturating_mul(each.0));
    let total = Bytes(memory.total().0.saturating_add(turns.0));
    println!(
        "memory: weights {}, kv and state {}, scratch {}, inputs and outputs {}, {saved} saved sequences {turns}: \
         {total} in all",
        memory.weights, memory.cache, memory.scratch, memory.io,
    );
    if total.0 > available {
        let have = Bytes(available);
        bail!("the memory plan is {total}, the machine has {have} available; --paused 0 saves no sequence");
    }
    let recorder = match &args.record_routes {
        None => None,
        Some(path) => Some(RouteWriter::spawn(routes_log(path, pack)?)?),
    };
    let engine = Engine::new(&header.model, &header.manifest, class, size, pack.weights()?, state::simd())?;
    let text = Arc::new(PackText::open(pack)?);
    let (sender, writer) = recorder.unzip();
    let mut config = gateway::Config::new(header.name.clone());
    // Far above any prompt that fits: some characters a token, escaped, and the fields around it.
    config.max_body = (size.context * 64).clamp(1 << 20, 32 << 20);
    config.routes = writer.as_ref().map(|w| Arc::clone(&w.counts));
    let (drained, stopped) = listen(args, HostEngine::new(engine).recording(sender), text, config)?;
    // The engine is dropped with its thread, and the sender with it: what was handed over gets written.
    if let (true, Some(writer)) = (stopped, writer) {
        writer.finish();
    }
    println!("stopped; {}", if drained { "all answers finished" } else { "running answers were cut" });
    Ok(Exit::holds(drained && stopped))
}

/// The pack with every byte of it checked. A damaged one is a refusal (the inner result), not an error.
fn sound_pack(args: &Serve, state: &StateDir) -> Result<Result<Pack, PackError>> {
    let pack = match state::pack_of(&args.model, args.recipe.as_deref(), state) {
        Ok(pack) => pack,
        Err(error) => match error.downcast::<PackError>() {
            Ok(fault @ PackError::Invalid { .. }) => return Ok(Err(fault)),
            Ok(other) => return Err(other.into()),
            Err(error) => return Err(error),
        },
    };
    Ok(match pack.verify() {
        Ok(()) => Ok(pack),
        Err(fault) => Err(fault),
    })
}

/// The command that qualifies what `args` ask to serve: the tuple's own, with the names and files given here.
fn qualify_command(args: &Serve, tuple: &TupleKey) -> String {
    let mut command = tuple.qualify_command();
    let own = format!("qualify {} --recipe {}", tuple.model, tuple.recipe);
    let recipe = args.recipe.as_deref().unwrap_or(&tuple.recipe);
    let given = format!("qualify {} --recipe {}", quoted(&args.model), quoted(recipe));
    command = command.replacen(&own, &given, 1);
    if let Some(file) = &args.topology {
        command += &format!(" --topology {}", quoted(&file.to_string_lossy()));
    }
    if let Some(threads) = args.threads {
        command += &format!(" --threads {threads}");
    }
    command
}

/// `word` as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Serves until a signal. Whether all answers finished, and whether the engine's thread ended.
fn listen(
    args: &Serve,
    engine: HostEngine,
    text: Arc<PackText>,
    gateway: gateway::Config,
) -> Result<(bool, bool)> {
    let (queue, slice, paused) = (args.queue, args.slice, args.paused);
    let config = scheduler::Config { queue, slice, paused, ..scheduler::Config::default() };
    let scheduler = scheduler::spawn(engine, Arc::clone(&text), config)?;
    let gateway = Gateway::new(scheduler.handle(), text, gateway);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let address = SocketAddr::new(args.host, args.port);
    let drained = runtime.block_on(async {
        let listener =
            tokio::net::TcpListener::bind(address).await.with_context(|| format!("binding {address}"))?;
        println!("listening on http://{}", listener.local_addr()?);
        let drained = gateway::serve(listener, gateway, shutdown()).await?;
        Ok::<bool, anyhow::Error>(drained)
    })?;
    let stopped = scheduler.shutdown(std::time::Duration::from_secs(30));
    Ok((drained, stopped))
}

async fn shutdown() {
    let mut term = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(term) => term,
        Err(_) => return std::future::pending().await,
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = term.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    #[test]
    fn the_command_that_helps_names_the_files_that_were_given() {
        let command = |line: &[&str]| {
            let args = Line::try_parse_from([&["serve"], line].concat()).unwrap().serve;
            qualify_command(&args, &TupleKey::local("tiny", "bf16", "bf16", 2048, 8))
        };
        let plain = "sparkpipe qualify tiny --recipe bf16 --class bf16 --context 2048 --batch 8";
        assert_eq!(command(&["tiny"]), plain);
        let given = command(&["a b/it's", "--recipe", "r.toml", "--topology", "t.toml", "--threads", "3"]);
        assert_eq!(
            given,
            "sparkpipe qualify 'a b/it'\\''s' --recipe r.toml --class bf16 --context 2048 --batch 8 \
             --topology t.toml --threads 3"
        );
    }
}
