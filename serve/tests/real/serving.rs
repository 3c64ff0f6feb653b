//! The real engine behind HTTP: answers, streams, stops, and the receipt's limits.

use serde_json::{Value, json};

use crate::home::Home;
use crate::server::{Server, answer};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Questions with the greedy answers of an independent implementation.
fn questions(count: usize) -> Vec<(String, String)> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../harness/builtin/eval.jsonl");
    let text = std::fs::read_to_string(file).expect("the reference answers");
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("JSON");
        let of = |field: &str| row[field].as_str().expect("text").to_owned();
        (of("question"), of("greedy_text"))
    };
    text.lines().take(count).map(row).collect()
}

fn chat(question: &str) -> Value {
    json!({"model": "whatis-9m", "temperature": 0,
        "messages": [{"role": "user", "content": question}]})
}

fn merged(mut base: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().expect("an object") {
        base[key] = value.clone();
    }
    base
}

/// End tokens of the built-in model, banned where an answer must run to its length.
fn ends_banned() -> Value {
    json!({"4088": -100, "4090": -100})
}

fn chunks(events: &[String]) -> Vec<Value> {
    let data = events.iter().filter(|e| *e != "[DONE]");
    data.map(|e| serde_json::from_str(e).expect("JSON")).collect()
}

#[test]
fn chat_streams_usage_and_stops_work_on_the_real_engine() {
    let home = Home::qualified();
    let server = Server::start(&home, &["--batch", "1"]);
    assert!(server.banner.contains("receipt ") && server.banner.contains("memory: weights "));
    assert_eq!(server.get("/ready").0, 200);
    let (status, models) = server.get("/v1/models");
    assert!(status == 200 && models.contains("\"whatis-9m\""), "{models}");
    for (question, reference) in questions(4) {
        let (status, whole) = server.post(CHAT, &chat(&question));
        assert_eq!(status, 200, "{whole}");
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"], json!(reference), "{question}");
        assert_eq!(choice["finish_reason"], "stop");
        let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = server.stream(CHAT, &merged(chat(&question), usage));
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        let chunks = chunks(&events);
        let said: String =
            chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(said, reference);
        let last = chunks.last().expect("a usage chunk");
        assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
        let middle = reference.split(' ').nth(2).expect("an answer of three words");
        let (_, stopped) = server.post(CHAT, &merged(chat(&question), json!({"stop": middle})));
        let (before, _) = reference.split_once(middle).expect("the word is in it");
        assert_eq!(stopped["choices"][0]["message"]["content"], json!(before));
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    }
    let (code, last) = server.terminate();
    assert_eq!(code, Some(0), "{last}");
    assert!(last.contains("stopped; all answers finished"), "{last}");
}

#[test]
fn with_a_receipt_for_eight_the_ninth_waits_and_no_step_has_nine_rows() {
    let home = Home::qualified();
    let server = Server::start(&home, &["--batch", "8", "--queue", "4"]);
    let long = json!({"model": "whatis-9m", "prompt": "What does", "temperature": 0, "max_tokens": 200,
        "logit_bias": ends_banned()});
    let nine: Vec<_> = (0..9).map(|_| server.open(TEXT, &long)).collect();
    server.wait_for("active_rows", 8.0);
    server.wait_for("queue_depth", 1.0);
    let texts: Vec<String> = nine.into_iter().map(|socket| whole(answer(socket))).collect();
    assert!(texts.iter().all(|t| *t == texts[0]), "one prompt, one answer, alone or among eight");
    assert_eq!(server.metric("peak_step_rows"), 8.0);
    assert_eq!(server.metric("max_batch"), 8.0);
    server.wait_for("requests_done_total", 9.0);
}

fn whole((status, text): (u16, String)) -> String {
    assert_eq!(status, 200, "{text}");
    let body: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(body["usage"]["completion_tokens"], 200);
    body["choices"][0]["text"].as_str().expect("text").to_owned()
}

#[test]
fn with_a_receipt_for_eight_and_no_queue_the_ninth_gets_429_and_a_left_row_is_free_again() {
    let home = Home::qualified();
    let server = Server::start(&home, &["--batch", "8", "--queue", "0"]);
    let endless = json!({"model": "whatis-9m", "prompt": "What does", "temperature": 0,
        "max_tokens": 2000, "logit_bias": ends_banned(), "stream": true});
    let mut eight: Vec<_> = (0..8).map(|_| server.open(TEXT, &endless)).collect();
    server.wait_for("active_rows", 8.0);
    let (status, error) = server.post(TEXT, &merged(endless.clone(), json!({"stream": false})));
    assert_eq!((status, &error["error"]["code"]), (429, &json!("queue_full")), "{error}");
    drop(eight.pop());
    server.wait_for("active_rows", 7.0);
    let (status, text) = server.post(TEXT, &merged(endless, json!({"stream": false, "max_tokens": 3})));
    assert_eq!((status, &text["usage"]["completion_tokens"]), (200, &json!(3)), "{text}");
    assert_eq!(server.metric("peak_step_rows"), 8.0);
    drop(eight);
    server.wait_for("active_rows", 0.0);
    server.wait_for("requests_cancelled_total", 8.0);
}

#[test]
fn rows_take_turns_on_the_real_engine_and_no_answer_notices() {
    let home = Home::qualified();
    let asked = |i: usize| {
        json!({"model": "whatis-9m", "prompt": format!("What does {} do?", "x".repeat(1 + 40 * i)),
            "temperature": if i % 2 == 0 { 0.0 } else { 0.8 }, "seed": i, "max_tokens": 120,
            "logit_bias": ends_banned()})
    };
    let text = |(status, text): (u16, String)| {
        assert_eq!(status, 200, "{text}");
        let body: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(body["usage"]["completion_tokens"], 120);
        body["choices"][0]["text"].clone()
    };
    let server = Server::start(&home, &["--batch", "1", "--slice", "0"]);
    let alone: Vec<Value> = (0..5).map(|i| text(answer(server.open(TEXT, &asked(i))))).collect();
    assert_eq!(server.metric("preemptions_total"), 0.0);
    drop(server);
    let server = Server::start(&home, &["--batch", "1", "--slice", "7", "--paused", "3"]);
    assert!(server.banner.contains(" 4 saved sequences "), "{}", server.banner);
    let five: Vec<_> = (0..5).map(|i| server.open(TEXT, &asked(i))).collect();
    let together: Vec<Value> = five.into_iter().map(|socket| text(answer(socket))).collect();
    assert_eq!(together, alone);
    // Five times 120 tokens in turns of 7: most ends of a turn give the row away.
    assert!(server.metric("preemptions_total") >= 20.0, "{}", server.metric("preemptions_total"));
    assert_eq!(server.metric("peak_step_rows"), 1.0);
    server.wait_for("paused_rows", 0.0);
}
