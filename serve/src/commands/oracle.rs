//! `oracle`: a checkpoint against the answers of an independent implementation.
use super::device::place;
use super::ledger::class_of;
use super::{Exit, print, print_json};
use anyhow::Result;
use clap::Args;
use harness::eval::{self, EvalResult};
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
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &OracleArgs) -> Result<Exit> {
    let place = place(&args.device, args.threads)?;
    // The device holds kernels of the class bf16; the host's reference class is f32.
    let own = if args.device == "cuda" { NumericClass::Bf16 } else { NumericClass::F32 };
    let class = class_of(args.class.as_deref(), own)?;
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
