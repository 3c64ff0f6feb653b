//! `oracle`: a checkpoint against the answers of an independent implementation.
use super::device::{self, place};
use super::ledger::class_of;
use super::state;
use super::{Exit, print, print_json};
use anyhow::{Result, bail};
use clap::Args;
use harness::engine::Place;
use harness::eval::{self, EvalResult};
use harness::oracle::trace::TraceLine;
use harness::oracle::{self, OracleResult};
use kernels::numeric::NumericClass;
use std::path::PathBuf;

/// Runs an oracle folder: logits, greedy continuations and layer traces against its reference.
#[derive(Args, Debug)]
pub struct OracleArgs {
    /// Folder with a checkpoint and expected.safetensors.
    pub dir: PathBuf,
    /// Device: host or cuda.
    #[arg(long, default_value = "host")]
    pub device: String,
    /// Numeric class: f32, bf16 or int8act.
    #[arg(long)]
    pub class: Option<String>,
    /// Threads; all there are where none is given.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Answers the questions of the folder's eval.jsonl in place of the oracle.
    #[arg(long)]
    pub eval: bool,
    /// With --device cuda: the first prompt's first chunk and the token behind the prompt, launch by launch on the
    /// device and on the host, and again as graphs.
    #[arg(long, conflicts_with = "eval")]
    pub trace: bool,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &OracleArgs) -> Result<Exit> {
    let place = place(&args.device, args.threads)?;
    // The host's reference class is f32.
    let own = if args.device == "cuda" { device::CUDA_CLASS } else { NumericClass::F32 };
    let class = class_of(args.class.as_deref(), own)?;
    if args.trace {
        return traced(args, class, &place);
    }
    if args.eval {
        let result = eval::run_folder(&args.dir, class, &place)?;
        if args.json {
            print_json(&result)?
        } else {
            print(&answers(&result))?
        }
        return Ok(Exit::holds(result.exact == result.questions));
    }
    let result = oracle::run_at(&args.dir, class, &place)?;
    if args.json {
        let mut value = serde_json::to_value(&result)?;
        value["passed"] = result.passed().into();
        value["max_abs"] = result.max_abs().into();
        print_json(&value)?;
    } else {
        print(&table(&result))?;
    }
    Ok(Exit::holds(result.passed()))
}

/// Largest difference of an output between the host and the device, over the output's largest value: products of
/// BF16 in another order of sums stay far below, a row that is wrong does not.
const ALIKE: f64 = 0.02;

fn traced(args: &OracleArgs, class: NumericClass, place: &Place) -> Result<Exit> {
    let Place::Cuda(cuda) = place else {
        bail!("--trace compares a device with the host: it takes --device cuda")
    };
    let lines = oracle::trace::trace(&args.dir, class, cuda, state::threads(args.threads)?, state::simd())?;
    let alike = |l: &TraceLine| l.difference <= ALIKE && l.graph_bytes == 0;
    if args.json {
        print_json(&lines)?;
    } else {
        let mut out = "  step launch op                     difference  output[value]: host, device; graph\n"
            .to_owned();
        for l in &lines {
            let (at, want, have) = l.at;
            let graph = match l.graph_bytes {
                0 => "equal".to_owned(),
                n => format!("{n} bytes differ"),
            };
            out += &format!(
                "{:>7} {:>5} {:<24} {:>9.2e}  {}[{at}]: {want}, {have}; {graph}{}\n",
                l.phase,
                l.launch,
                l.op,
                l.difference,
                l.buffer,
                if alike(l) { "" } else { "  <<<" }
            );
        }
        print(&out)?;
    }
    Ok(Exit::holds(lines.iter().all(alike)))
}

fn table(r: &OracleResult) -> String {
    let mut out = format!("{} ({}) in {}, tolerance {}\n", r.name, r.family, r.class, r.tolerance);
    out += "prompt  tokens     max abs          KL  greedy\n";
    for p in &r.prompts {
        let greedy = match p.first_divergence {
            None => "equal".to_owned(),
            Some((step, None)) => format!("differs at {step}"),
            Some((step, Some(margin))) => format!("differs at {step} (margin {margin:.4})"),
        };
        out +=
            &format!("{:>6}  {:>6}  {:>10.3e}  {:>10.3e}  {greedy}\n", p.prompt, p.tokens, p.max_abs, p.kl);
        if let Some((trace, worst)) = &p.first_trace {
            out += &format!("        first trace beyond tolerance: {trace}, {worst:.3e}\n");
        }
    }
    out += &match &r.draft {
        Some(d) => format!("draft head: {} rows, max abs {:.3e}, KL {:.3e}\n", d.rows, d.max_abs, d.kl),
        None => "draft head: the oracle holds no mtp_logits, nothing compared\n".to_owned(),
    };
    out + &format!("{}: max abs {:.3e}\n", if r.passed() { "passed" } else { "FAILED" }, r.max_abs())
}

fn answers(r: &EvalResult) -> String {
    let mut out = String::new();
    for d in &r.differences {
        out += &format!(
            "question {}: token {} is {}, the reference has {} (top-2 gap {:.4}): {}\n",
            d.question, d.at, d.have, d.want, d.gap, d.text
        );
    }
    let rate = 100.0 * r.exact as f64 / r.questions as f64;
    out + &format!("{} of {} answers exact ({rate:.2} %) in {}\n", r.exact, r.questions, r.class)
}
