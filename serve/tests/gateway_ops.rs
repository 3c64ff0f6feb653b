//! Health, readiness, metrics and bounds: each test is named after what it protects.

mod common;
mod site;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use common::*;
use futures::StreamExt;
use serde_json::{Value, json};
use site::*;

const SOON: Duration = Duration::from_secs(5);

fn text(extra: Value) -> Value {
    merged(json!({"model": "fake", "prompt": "hi", "max_tokens": 100}), extra)
}

const TEXT: &str = "/v1/completions";

/// Waits until a path answers with a status; says how long it took.
async fn until(site: &Site, path: &str, status: u16) -> Duration {
    let started = Instant::now();
    while site.get(path).await.0 != status {
        assert!(started.elapsed() < SOON, "{path} never answered {status}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

#[tokio::test]
async fn health_says_503_within_a_second_of_the_engine_threads_death() {
    let site = Site::hashing();
    assert_eq!(site.get("/health").await.0, 200);
    site.knobs.panic_step.store(true, SeqCst);
    let (status, error) = site.post(TEXT, text(json!({}))).await;
    assert_eq!((status, &error["error"]["code"]), (503, &json!("engine_dead")));
    assert!(until(&site, "/health", 503).await < Duration::from_secs(1));
    let (_, body) = site.get("/health").await;
    assert_eq!(body["status"], "dead");
    assert_eq!(site.get("/ready").await.0, 503);
    assert_eq!(site.get("/v1/models").await.0, 200, "the list of models is another question");
    let (status, error) = site.post(TEXT, text(json!({}))).await;
    assert_eq!((status, &error["error"]["type"]), (503, &json!("service_unavailable_error")));
}

#[tokio::test]
async fn health_names_the_call_that_a_frozen_engine_is_in() {
    let engine = Fake::hashing(limits(4));
    let site = Site::with(engine, ByteText::new(&[]), |c, _| c.call_limit = Duration::from_millis(200));
    let running = site.spawn(TEXT, text(json!({})));
    site.knobs.hang.store(true, SeqCst);
    assert!(until(&site, "/health", 503).await < Duration::from_millis(1200));
    let (_, body) = site.get("/health").await;
    assert_eq!(body["status"], "stuck");
    assert!(["step", "prefill"].contains(&body["phase"].as_str().unwrap()), "{body}");
    let (status, error) = running.await.unwrap();
    assert_eq!((status, &error["error"]["code"]), (503, &json!("engine_stuck")));
    site.knobs.hang.store(false, SeqCst);
    until(&site, "/health", 200).await;
}

#[tokio::test]
async fn readiness_runs_a_canary_through_prefill_and_one_step() {
    let site = Site::saying("");
    let (status, body) = site.get("/ready").await;
    assert_eq!((status, &body["by"]), (200, &json!("canary")));
    assert_eq!(site.knobs.steps.load(SeqCst), 1, "an end token does not end the canary early");
    let (_, body) = site.get("/ready").await;
    assert_eq!(body["by"], "step", "a fresh step is proof enough");
    assert_eq!(site.knobs.steps.load(SeqCst), 1);
}

#[tokio::test]
async fn readiness_fails_when_no_token_comes_out_in_time() {
    let engine = Fake::hashing(limits(4));
    let site = Site::with(engine, ByteText::new(&[]), |_, g| g.canary_limit = Duration::from_millis(60));
    site.knobs.prefill_ms.store(800, SeqCst);
    let asked = Instant::now();
    let (status, body) = site.get("/ready").await;
    assert_eq!(status, 503, "{body}");
    assert!(body["reason"].as_str().unwrap().contains("deadline"));
    assert!(asked.elapsed() < Duration::from_millis(700), "it holds within one long engine call too");
}

#[tokio::test]
async fn an_engine_failure_within_a_stream_ends_it_with_an_error_and_no_end_mark() {
    let site = Site::hashing();
    site.knobs.step_ms.store(5, SeqCst);
    let request = posted(TEXT, &text(json!({"stream": true})));
    let response = tower::ServiceExt::oneshot(site.router.clone(), request).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    let mut seen = body.next().await.unwrap().unwrap().to_vec();
    site.knobs.fail_step.store(true, SeqCst);
    while let Some(chunk) = body.next().await {
        seen.extend_from_slice(&chunk.unwrap());
    }
    let seen = String::from_utf8(seen).unwrap();
    let last = seen.trim_end().lines().last().unwrap().strip_prefix("data: ").unwrap();
    let error: Value = serde_json::from_str(last).unwrap();
    assert_eq!(error["error"]["code"], "engine_dead");
    assert!(error["error"]["message"].as_str().unwrap().contains("scripted device loss"));
    assert!(!seen.contains("[DONE]"));
}

#[tokio::test]
async fn dropping_a_streams_body_cancels_its_generation() {
    let site = Site::hashing();
    site.knobs.step_ms.store(5, SeqCst);
    let request = posted(TEXT, &text(json!({"stream": true, "prompt": ["a", "b"]})));
    let response = tower::ServiceExt::oneshot(site.router.clone(), request).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    assert!(body.next().await.is_some());
    drop(body);
    assert!(within(SOON, || site.knobs.resident.load(SeqCst) == 0).await);
    assert!(within(SOON, || site.handle.free_seats() == site.handle.total_seats()).await);
}

#[tokio::test]
async fn masked_vocabularies_give_finite_log_probabilities_in_valid_json() {
    let site = Site::saying("hey");
    let asked = json!({"model": "fake", "messages": [{"role": "user", "content": "hi"}],
        "logprobs": true, "top_logprobs": 20});
    let (status, body) = site.post("/v1/chat/completions", asked.clone()).await;
    assert_eq!(status, 200, "{body}");
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let tokens: Vec<_> = content.iter().map(|t| t["token"].as_str().unwrap()).collect();
    assert_eq!(tokens, ["h", "e", "y"]);
    for token in content {
        assert_eq!(token["logprob"], 0.0);
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 20);
        assert!(top.iter().all(|t| t["logprob"].as_f64().is_some_and(|l| l >= -9999.0)));
    }
    let chunks = site.stream("/v1/chat/completions", merged(asked, json!({"stream": true}))).await;
    let streamed: Vec<Value> = parsed(&chunks)
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&streamed, content);
    let (_, body) = site.post(TEXT, text(json!({"logprobs": 2}))).await;
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["h", "e", "y"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
}

#[tokio::test]
async fn a_row_with_no_possible_token_is_a_typed_500() {
    let engine = Fake::new(limits(2), |_, _| vec![]);
    let site = Site::with(engine, ByteText::new(&[]), |_, _| {});
    let (status, error) = site.post(TEXT, text(json!({}))).await;
    assert_eq!((status, &error["error"]["code"]), (500, &json!("sampling_failed")));
    assert_eq!(site.get("/health").await.0, 200);
}

#[tokio::test]
async fn unknown_models_routes_and_methods_have_error_objects() {
    let site = Site::saying("x");
    let (status, error) = site.post(TEXT, text(json!({"model": "other"}))).await;
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(error["error"]["param"], "model");
    let (status, list) = site.get("/v1/models").await;
    assert_eq!((status, &list["data"][0]["id"]), (200, &json!("fake")));
    assert_eq!(site.get("/v1/models/fake").await.1["object"], "model");
    for (path, status) in [("/v1/models/a/b", 404), ("/v1/nothing", 404), (TEXT, 405)] {
        let (got, error) = site.get(path).await;
        assert_eq!(got, status);
        assert!(error["error"]["message"].is_string());
    }
}

async fn raw(site: &Site, kind: &str, body: Body) -> (u16, Value) {
    let request = Request::post(TEXT).header("content-type", kind).body(body).expect("request");
    let (status, bytes) = site.send(request).await;
    (status, serde_json::from_slice(&bytes).expect("valid JSON"))
}

#[tokio::test]
async fn bodies_are_bounded_in_size_time_and_kind() {
    let site = Site::with(Fake::hashing(limits(1)), ByteText::new(&[]), |_, g| {
        g.max_body = 1000;
        g.body_limit = Duration::from_millis(100);
    });
    let json = "application/json; charset=utf-8";
    let (status, error) = raw(&site, json, Body::from(vec![b' '; 1001])).await;
    assert_eq!((status, &error["error"]["code"]), (413, &json!("body_too_large")));
    // Without a length the limit holds just as well.
    let chunks = futures::stream::iter((0..30).map(|_| Ok::<_, std::io::Error>(vec![b' '; 50])));
    assert_eq!(raw(&site, json, Body::from_stream(chunks)).await.0, 413);
    let never = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let (status, error) = raw(&site, json, Body::from_stream(never)).await;
    assert_eq!((status, &error["error"]["code"]), (408, &json!("body_timeout")));
    assert_eq!(raw(&site, "text/plain", Body::from("{}")).await.0, 415);
    let deep = format!("{{\"model\":{}", "[".repeat(900));
    for broken in ["", "{", "[]", "null", "{\"model\": \"fake\"} x", "\u{1}", &deep] {
        let (status, error) = raw(&site, json, Body::from(broken.to_owned())).await;
        assert_eq!((status, &error["error"]["param"]), (400, &Value::Null), "{broken}");
    }
    assert_eq!(raw(&site, json, Body::from(vec![0xff, 0xfe])).await.0, 400);
}

#[tokio::test]
async fn requests_in_flight_are_bounded_and_their_places_come_back() {
    let site = Site::with(Fake::hashing(limits(1)), ByteText::new(&[]), |_, g| g.max_in_flight = 2);
    site.knobs.step_ms.store(3, SeqCst);
    let two: Vec<_> = (0..2).map(|_| site.spawn(TEXT, text(json!({})))).collect();
    let taken = || site.handle.free_seats() + 2 == site.handle.total_seats();
    assert!(within(SOON, taken).await);
    let (status, error) = site.post(TEXT, text(json!({}))).await;
    assert_eq!((status, &error["error"]["code"]), (429, &json!("too_many_requests")));
    for one in two {
        assert_eq!(one.await.unwrap().0, 200);
    }
    assert_eq!(site.post(TEXT, text(json!({}))).await.0, 200);
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let site = Site::saying("hello");
    site.post(TEXT, text(json!({}))).await;
    site.post(TEXT, text(json!({"n": 0}))).await;
    let (status, bytes) = site.send(Request::get("/metrics").body(Body::empty()).unwrap()).await;
    assert_eq!(status, 200);
    let page = String::from_utf8(bytes).unwrap();
    for line in [
        "sparkpipe_http_requests_total{route=\"completions\",status=\"200\"} 1",
        "sparkpipe_http_requests_total{route=\"completions\",status=\"400\"} 1",
        "sparkpipe_prompt_tokens_total 2",
        "sparkpipe_completion_tokens_total 6",
        "sparkpipe_steps_total 5",
        "sparkpipe_step_seconds_count 5",
        "sparkpipe_first_token_seconds_bucket{le=\"+Inf\"} 1",
        "sparkpipe_max_batch 4",
        "sparkpipe_engine_up 1",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is missing:\n{page}");
    }
    let samples = page.lines().filter(|l| !l.starts_with('#'));
    assert!(samples.clone().all(|l| l.rsplit_once(' ').is_some_and(|(_, v)| v.parse::<f64>().is_ok())));
}
