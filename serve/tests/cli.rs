//! The built binary: exit codes, messages, and JSON where facts are printed.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn sparkpipe(home: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparkpipe"))
        .args(args)
        .env("SPARKPIPE_HOME", home)
        .output()
        .expect("the binary starts")
}

fn text(output: &Output) -> (String, String) {
    let of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (of(&output.stdout), of(&output.stderr))
}

/// Runs and returns standard output; the exit code must be `code`.
fn run(home: &Path, code: i32, args: &[&str]) -> String {
    let output = sparkpipe(home, args);
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    out
}

fn json(home: &Path, code: i32, args: &[&str]) -> Value {
    serde_json::from_str(&run(home, code, args)).expect("JSON on standard output")
}

/// Runs what must fail with exit code 2 and one line that holds `says`.
fn refuse(home: &Path, args: &[&str], says: &str) {
    let output = sparkpipe(home, args);
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}\n{out}\n{err}");
    assert!(out.is_empty(), "{args:?}: {out}");
    assert!(err.contains(says) && err.lines().count() == 1, "{args:?}: {err}");
    assert!(!err.contains("panicked"), "{err}");
}

fn folder(relative: &str) -> String {
    format!("{}/../{relative}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn usage_errors_are_two_and_help_is_zero() {
    let home = tempfile::tempdir().unwrap();
    for args in [&[][..], &["no-such-command"], &["ledger", "--no-such-flag"], &["pack"]] {
        assert_eq!(sparkpipe(home.path(), args).status.code(), Some(2), "{args:?}");
    }
    assert!(run(home.path(), 0, &["--help"]).contains("ledger"));
    assert!(run(home.path(), 0, &["completions", "bash"]).contains("sparkpipe"));
}

#[test]
fn the_ledger_prints_the_published_figures() {
    let home = tempfile::tempdir().unwrap();
    let dense = run(home.path(), 0, &["ledger", "qwen3_6_27b", "--batch", "1"]);
    assert!(dense.contains("53,791,996,928") && dense.contains("51,249,210,368"), "{dense}");
    let experts = run(home.path(), 0, &["ledger", "qwen3_30b_a3b", "--batch", "1,8", "--device", "gb10"]);
    assert!(experts.contains("18,550,716,416") && experts.contains("(1.9196 GB) at B1"), "{experts}");
    let all = json(home.path(), 0, &["ledger", "whatis-9m", "--json"]);
    assert_eq!(all["report"]["weights"], 17_909_312);
    let config = folder("harness/oracles/qwen3_6_27b/config.json");
    assert!(run(home.path(), 0, &["ledger", "--config", &config, "--recipe", "bf16"]).contains("weights"));
}

#[test]
fn the_ledger_of_a_drafting_step_adds_the_head_and_only_where_there_is_one() {
    let home = tempfile::tempdir().unwrap();
    let plain = run(home.path(), 0, &["ledger", "qwen3_6_27b"]);
    let draft = run(home.path(), 0, &["ledger", "qwen3_6_27b", "--draft"]);
    // Own weights, the output matrix and the final norm again, one more embedding row.
    let active = 51_249_210_368u64 + 849_398_784 + 2_542_796_800 + 10_240 + 10_240;
    assert!(plain.contains("53,791,996,928 B") && plain.contains("51,249,210,368 B"));
    assert!(draft.contains("54,641,395,712 B") && draft.contains(&ledger::grouped(active)), "{draft}");
    refuse(home.path(), &["ledger", "qwen3_30b_a3b", "--draft"], "declares no draft head");
}

#[test]
fn the_ledger_refuses_what_it_does_not_know() {
    let home = tempfile::tempdir().unwrap();
    let ledger = |extra: &[&'static str]| [&["ledger", "qwen3_6_27b"][..], extra].concat();
    refuse(home.path(), &["ledger", "no-such-model"], "no model is called 'no-such-model'");
    refuse(home.path(), &ledger(&["--batch", "0"]), "--batch is 0");
    refuse(home.path(), &ledger(&["--context", "999999999"]), "--context is 999999999");
    refuse(home.path(), &ledger(&["--class", "fp3"]), "--class is 'fp3'");
    refuse(home.path(), &ledger(&["--device", "abacus"]), "--device is 'abacus'");
    refuse(home.path(), &ledger(&["--recipe", "q1"]), "no recipe is called 'q1'");
    refuse(home.path(), &ledger(&["--format", "xml"]), "xml");
    refuse(home.path(), &ledger(&["--routes", "/no/such/file"]), "no routed experts");
}

#[test]
fn oracles_pass_fail_or_say_what_is_missing() {
    let home = tempfile::tempdir().unwrap();
    for name in ["harness/oracles/qwen3_6_27b", "harness/oracles/qwen3_30b_a3b", "harness/builtin"] {
        let result = json(home.path(), 0, &["oracle", &folder(name), "--json", "--threads", "2"]);
        assert_eq!(result["passed"], true, "{name}: {result}");
    }
    let hybrid = run(home.path(), 0, &["oracle", &folder("harness/oracles/qwen3_6_27b"), "--threads", "1"]);
    assert!(hybrid.contains("draft head: ") && hybrid.contains(" rows, max abs "), "{hybrid}");
    let moe = run(home.path(), 0, &["oracle", &folder("harness/oracles/qwen3_30b_a3b"), "--threads", "1"]);
    assert!(moe.contains("draft head: the oracle holds no mtp_logits"), "{moe}");
    refuse(home.path(), &["oracle", "/no/such/folder"], "/no/such/folder");
    refuse(home.path(), &["oracle", &folder("harness/builtin"), "--device", "cuda"], "no CUDA device");
}

#[test]
fn packs_are_written_shown_and_verified_and_damage_is_named() {
    let home = tempfile::tempdir().unwrap();
    let pack = home.path().join("x.pack").to_string_lossy().into_owned();
    run(home.path(), 0, &["pack", "whatis-9m", "-o", &pack]);
    assert_eq!(json(home.path(), 0, &["pack", "show", &pack, "--json"])["header"]["name"], "whatis-9m");
    assert_eq!(json(home.path(), 0, &["pack", "verify", &pack, "--json"])["sound"], true);
    let mut bytes = std::fs::read(&pack).unwrap();
    let last = bytes.len() / 2;
    bytes[last] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let verdict = json(home.path(), 1, &["pack", "verify", &pack, "--json"]);
    assert!(verdict["fault"]["field"].is_string(), "{verdict}");
    refuse(home.path(), &["pack", "verify", &folder("README.md")], "not a pack");
}

#[test]
fn machine_models_and_topologies_are_json_too() {
    let home = tempfile::tempdir().unwrap();
    let models = json(home.path(), 0, &["models", "--json"]);
    assert_eq!(models["models"][0]["name"], "whatis-9m");
    let doctor = sparkpipe(home.path(), &["doctor", "--json"]);
    let facts: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let failed =
        facts["predicates"].as_array().unwrap().iter().any(|p| p["required"] == true && p["holds"] == false);
    assert_eq!(doctor.status.code(), Some(i32::from(failed)), "{facts}");
    let dual = json(home.path(), 0, &["topologies", "show", "dual_switch_dual_rail", "--json"]);
    assert_eq!(dual["runnable"], false);
    let single = folder("topologies/fabrics/single_switch_single_rail.toml");
    let facts = json(home.path(), 0, &["topologies", "validate", &single, "--nodes", "16", "--json"]);
    assert_eq!(facts["totals"]["memory_bytes"], 2_048_000_000_000u64);
    refuse(home.path(), &["topologies", "validate", &single, "--nodes", "17"], "17");
}

/// No fabric of several nodes runs on one, and no context goes beyond the model's.
#[test]
fn what_this_build_or_model_cannot_do_is_refused_before_anything_runs() {
    let home = tempfile::tempdir().unwrap();
    for fabric in ["ring_debug_single_rail", "single_switch_single_rail", "dual_switch_dual_rail"] {
        let file = folder(&format!("topologies/fabrics/{fabric}.toml"));
        refuse(home.path(), &["qualify", "--batch", "1", "--topology", &file], "has no implementation");
        let served = sparkpipe(home.path(), &["serve", "--batch", "1", "--topology", &file]);
        let (out, err) = text(&served);
        assert_eq!(served.status.code(), Some(1), "{out}{err}");
        assert!(err.starts_with("refused: ") && err.contains("has no implementation"), "{err}");
    }
    for command in ["qualify", "serve"] {
        refuse(home.path(), &[command, "--batch", "1", "--context", "16384"], "at most 4096 tokens");
    }
}

/// Nobody reads standard error: the exit code still says what happened.
#[test]
fn an_error_that_cannot_be_written_ends_with_its_exit_code() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let home = tempfile::tempdir().unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_sparkpipe"))
        .args(["qualify", "--batch", "3"])
        .env("SPARKPIPE_HOME", home.path())
        .stderr(full)
        .status();
    assert_eq!(ran.unwrap().code(), Some(2));
}

#[test]
fn the_probe_prints_its_parameters_and_every_pass() {
    let home = tempfile::tempdir().unwrap();
    let facts = json(home.path(), 0, &["probe", "--time-ms", "1", "--threads", "2", "--json"]);
    assert_eq!(facts["parameters"]["time_ms"], 1);
    assert_eq!(facts["device"]["threads"], 2);
    let series = |v: &Value| -> Vec<u64> {
        v["series_ns"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    };
    let points = facts["points"].as_array().unwrap();
    assert!(points.len() >= 7, "1 MiB to 64 MiB at least: {}", points.len());
    for point in points {
        for kind in ["read", "copy", "update"] {
            let (kind, passes) = (&point[kind], series(&point[kind]));
            let bytes = kind["bytes_per_pass"].as_u64().unwrap();
            let best = bytes as f64 * 1e9 / *passes.iter().min().unwrap() as f64;
            assert!((kind["best_bytes_per_second"].as_f64().unwrap() - best).abs() <= 1.0, "{kind}");
        }
    }
    let launches = series(&facts["launch"]);
    assert_eq!(facts["launch"]["best_ns"].as_u64(), launches.iter().min().copied());
    let table = run(home.path(), 0, &["probe", "--time-ms", "1"]);
    assert!(table.contains("working set") && table.contains("launch in which all"), "{table}");
    refuse(home.path(), &["probe", "--time-ms", "0"], "--time-ms is 0, the limit is 1 to 10000");
}

#[test]
fn every_command_that_prints_facts_takes_json() {
    let home = tempfile::tempdir().unwrap();
    let help = run(home.path(), 0, &["--help"]);
    let commands = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let names: Vec<&str> = commands.filter_map(|l| l.split_whitespace().next()).collect();
    assert!(names.len() >= 13 && names.contains(&"probe"), "{names:?}");
    for name in names {
        // A server and a script print no facts; `help` is clap's.
        if ["serve", "completions", "help"].contains(&name) {
            continue;
        }
        let own = run(home.path(), 0, &[name, "--help"]);
        let sub = own.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
        let takes = own.contains("--json")
            || sub
                .filter_map(|l| l.split_whitespace().next())
                .any(|s| s != "help" && run(home.path(), 0, &[name, s, "--help"]).contains("--json"));
        assert!(takes, "{name} has no --json:\n{own}");
    }
}

#[test]
fn an_empty_store_is_sound_and_holds_no_receipt() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(json(home.path(), 0, &["receipts", "list", "--json"]), Value::Array(Vec::new()));
    assert_eq!(json(home.path(), 0, &["receipts", "verify", "--json"])["sound"], true);
    assert!(run(home.path(), 0, &["receipts", "export", "--csv"]).starts_with("id,"));
    assert!(json(home.path(), 0, &["receipts", "schema"]).is_object());
    refuse(home.path(), &["receipts", "show", "abc"], "0 receipts");
    std::fs::create_dir_all(home.path().join("receipts")).unwrap();
    std::fs::write(home.path().join("receipts/receipts.jsonl"), "{}\n").unwrap();
    run(home.path(), 1, &["receipts", "verify"]);
}

#[test]
fn synthetic_checkpoints_of_both_containers_open_again() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name).to_string_lossy().into_owned();
    let (gguf, safe) = (file("a.gguf"), file("model.safetensors"));
    let small = ["--layers", "2", "--experts", "8", "--hidden", "256", "--width", "256", "--vocab", "512"];
    run(home.path(), 0, &[&["synth", "qwen3_30b_a3b", "-o", &gguf][..], &small].concat());
    let shown = json(home.path(), 0, &["pack", &gguf, "-o", &file("a.pack"), "--json"]);
    assert_eq!(shown["header"]["manifest"]["entries"].as_array().unwrap().len(), 2 * 12 + 3);
    run(home.path(), 0, &["synth", "whatis-9m", "--layers", "4", "-o", &safe]);
    run(home.path(), 0, &["pack", &safe, "-o", &file("b.pack")]);
    refuse(home.path(), &["synth", "whatis-9m", "-o", &file("c.gguf")], "no GGUF form");
    // Nothing that lies there is written over, neither by synth nor by pack.
    let before = std::fs::read(&gguf).unwrap();
    refuse(home.path(), &["synth", "qwen3_30b_a3b", "-o", &gguf], "exists already");
    refuse(home.path(), &["pack", &gguf, "-o", &gguf], "is not a pack");
    assert!(std::fs::read(&gguf).unwrap() == before);
    let wide = ["--layers", "1024", "--hidden", "1048576", "--width", "1048576", "--vocab", "1048576"];
    let (other, huge) = (file("d/x"), file("d/huge.safetensors"));
    std::fs::create_dir(home.path().join("d")).unwrap();
    refuse(home.path(), &[&["synth", "whatis-9m", "-o", &huge][..], &wide].concat(), "free");
    refuse(home.path(), &["synth", "whatis-9m", "-o", &other], "name it .safetensors or .gguf");
    assert_eq!(std::fs::read_dir(home.path().join("d")).unwrap().count(), 0, "nothing half written stays");
    refuse(home.path(), &["synth", "whatis-9m", "--scale", "2", "-o", &gguf], "--scale is 2");
}

/// Without a GPU every command on a CUDA device says in one line what is missing, and ends with 2.
#[test]
fn without_a_gpu_every_cuda_command_names_what_is_missing() {
    if kernels::cuda::driver::devices().is_ok_and(|n| n > 0) {
        println!("SKIP: this machine has a CUDA device");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let oracle = folder("harness/oracles/qwen3_6_27b");
    for args in [
        &["oracle", &oracle, "--device", "cuda"][..],
        &["bench", "--all", "--device", "cuda"],
        &["qualify", "--device", "cuda", "--batch", "1"],
        &["qualify", "qwen3_30b_a3b", "--device", "cuda", "--synth"],
        &["probe", "--device", "cuda"],
        &["ledger", "qwen3_6_27b", "--measure", "--device", "cuda"],
    ] {
        refuse(home.path(), args, "no CUDA device");
    }
}
