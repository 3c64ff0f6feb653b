//! Routes that a server recorded price a ledger: from the router of the real engine to the bytes of a report.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sparkpipe::commands::state::describe;

use crate::home::Home;
use crate::server::{Server, answer};

const TEXT: &str = "/v1/completions";

fn oracle(file: &str) -> String {
    format!("{}/../harness/oracles/qwen3_30b_a3b{file}", env!("CARGO_MANIFEST_DIR"))
}

/// The tiny expert model, qualified at two rows.
fn experts() -> Home {
    let (model, folder) = (oracle("/model.gguf"), oracle(""));
    Home::qualified_for("experts", &[&model, "--class", "f32", "--oracle", &folder], &[2])
}

fn asked(first: u32, max_tokens: usize) -> Value {
    let prompt: Vec<u32> = (first..first + 5).collect();
    json!({"model": "qwen3_30b_a3b", "prompt": prompt, "temperature": 0, "max_tokens": max_tokens,
        "logit_bias": {"507": -100, "509": -100}})
}

/// For each number of rows: the steps, and the distinct experts of each layer summed over them.
fn counted(file: &str) -> BTreeMap<usize, (u64, Vec<u64>)> {
    let mut counted: BTreeMap<usize, (u64, Vec<u64>)> = BTreeMap::new();
    for line in std::fs::read_to_string(file).expect("a routes file").lines() {
        let record: Value = serde_json::from_str(line).expect("JSON");
        let rows = record["experts"].as_array().expect("rows");
        let all = rows.iter().flat_map(|r| r.as_array().expect("experts").iter());
        let distinct = all.map(|e| e.as_u64().expect("an id")).collect::<BTreeSet<_>>().len() as u64;
        let layer = record["layer"].as_u64().expect("a layer") as usize;
        let (steps, sums) = counted.entry(rows.len()).or_insert((0, vec![0; 3]));
        *steps += u64::from(layer == 0);
        sums[layer] += distinct;
    }
    counted
}

/// Weight bytes that the ledger says a step of `rows` rows reads.
fn active(home: &Home, rows: usize, routes: Option<&str>) -> f64 {
    let (model, rows) = (oracle("/model.gguf"), rows.to_string());
    let mut args = vec!["ledger", &model, "--batch", &rows, "--class", "f32", "--json"];
    args.extend(routes.iter().flat_map(|file| ["--routes", file]));
    let ran = home.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    report["summary"][0]["active"].as_f64().expect("bytes")
}

#[test]
fn routes_recorded_by_a_server_price_its_ledger() {
    let (model, home) = (oracle("/model.gguf"), experts());
    let file = home.file("routes.jsonl");
    let serve = [&model, "--class", "f32", "--batch", "2", "--record-routes", &file];
    for _ in 0..2 {
        // The second server goes on behind what the first one recorded.
        let server = Server::start(&home, &serve);
        assert_eq!(server.post(TEXT, &asked(3, 12)).0, 200);
        let two = [server.open(TEXT, &asked(40, 60)), server.open(TEXT, &asked(90, 60))];
        assert!(two.into_iter().all(|socket| answer(socket).0 == 200));
        assert_eq!(server.metric("route_steps_dropped_total"), 0.0);
        assert_eq!(server.terminate().0, Some(0));
    }
    let counted = counted(&file);
    assert_eq!(counted.keys().copied().collect::<Vec<_>>(), [1, 2], "alone, then two at a time");
    let known = describe(&model, None).expect("a model");
    let manifest = known.model.manifest(&known.recipe).expect("a manifest");
    let expert_bytes = |layer: usize| -> f64 {
        let own = manifest.entries.iter().filter(|e| e.name.starts_with(&format!("blk.{layer}.ffn_")));
        own.filter(|e| e.name.ends_with("_exps")).map(|e| e.bytes as f64 / 6.0).sum()
    };
    for (rows, (steps, sums)) in &counted {
        assert!(*steps >= 10, "{rows} rows: {steps} steps");
        // 6 experts, 2 a row: what uniform routing expects of a layer.
        let expected = 6.0 * (1.0 - (1.0 - 2.0 / 6.0f64).powi(*rows as i32));
        let surplus = sums
            .iter()
            .enumerate()
            .map(|(layer, sum)| (*sum as f64 / *steps as f64 - expected) * expert_bytes(layer));
        let (recorded, uniform) = (active(&home, *rows, Some(&file)), active(&home, *rows, None));
        let (want, have) = (surplus.sum::<f64>(), recorded - uniform);
        assert!((want - have).abs() < 64.0, "{rows} rows: {have} B more than uniform, {want} B by hand");
    }
    let table = home.run(&["ledger", &model, "--class", "f32", "--routes", &file]);
    let steps = counted[&2].0;
    assert!(table.out.contains(&format!("routes         B2: {steps} steps")), "{}", table.out);
    let none = home.run(&["ledger", &model, "--class", "f32", "--routes", &file, "--batch", "4"]);
    assert_eq!(none.code, Some(2));
    assert!(none.err.contains("--batch is 4, but the steps of --routes have [1, 2] rows"), "{}", none.err);
}

#[test]
fn a_full_disk_stops_the_recording_and_not_the_server() {
    let (model, home) = (oracle("/model.gguf"), experts());
    let args = [&model, "--class", "f32", "--batch", "2", "--record-routes", "/dev/full"];
    let server = Server::start(&home, &args);
    let (status, body) = server.post(TEXT, &asked(3, 12));
    assert_eq!((status, &body["usage"]["completion_tokens"]), (200, &json!(12)), "{body}");
    server.wait_for("route_write_errors_total", 11.0);
    assert_eq!(server.metric("route_steps_recorded_total"), 0.0);
    assert_eq!(server.get("/ready").0, 200);
    assert_eq!(server.terminate().0, Some(0));
    let log = std::fs::read_to_string(home.path().join("serve.log")).expect("the log");
    assert_eq!(log.matches("serving goes on without recording").count(), 1, "{log}");
}

#[test]
fn a_dense_model_has_no_routes_to_record() {
    let home = Home::qualified();
    let ran = home.run(&["serve", "--port", "0", "--batch", "1", "--record-routes", &home.file("r")]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("--record-routes: the model has no routed experts"), "{}", ran.err);
}
