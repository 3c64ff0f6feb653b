//! The OpenAI surface through the router: each test is named after what it protects.

mod common;
mod site;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::*;
use serde_json::{Value, json};
use site::*;

fn chat(extra: Value) -> Value {
    merged(json!({"model": "fake", "messages": [{"role": "user", "content": "hi"}]}), extra)
}

fn text(extra: Value) -> Value {
    merged(json!({"model": "fake", "prompt": "hi"}), extra)
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[tokio::test]
async fn chat_and_text_answers_have_the_openai_form() {
    let site = Site::saying("hello");
    let (status, body) = site.post(CHAT, chat(json!({}))).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(
        body["choices"][0]["message"],
        json!({"role": "assistant", "content": "hello", "refusal": null})
    );
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"], json!({"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}));
    let (status, body) = site.post(TEXT, text(json!({"max_tokens": 3}))).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!((&body["object"], &body["choices"][0]["text"]), (&json!("text_completion"), &json!("hel")));
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn content_parts_prompt_lists_and_token_ids_are_read() {
    let site = Site::hashing();
    let parts = json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]);
    let asked = json!({"messages": [{"role": "user", "content": parts}], "max_completion_tokens": 5});
    let (_, by_parts) = site.post(CHAT, chat(asked)).await;
    let (_, whole) = site.post(CHAT, chat(json!({"max_tokens": 5}))).await;
    assert_eq!(by_parts["choices"], whole["choices"]);
    let (_, one) = site.post(TEXT, text(json!({}))).await;
    let (_, ids) = site.post(TEXT, text(json!({"prompt": [104, 105]}))).await;
    assert_eq!(one["choices"], ids["choices"]);
    assert_eq!(one["usage"]["completion_tokens"], 16, "the default of a text completion");
    let (_, many) = site.post(TEXT, text(json!({"prompt": ["hi", "yo"]}))).await;
    assert_eq!(many["choices"][0], one["choices"][0]);
    assert_eq!((&many["choices"][1]["index"], &many["usage"]["prompt_tokens"]), (&json!(1), &json!(4)));
    let (_, lists) = site.post(TEXT, text(json!({"prompt": [[104, 105], [121, 111]]}))).await;
    assert_eq!(lists["choices"], many["choices"]);
}

#[tokio::test]
async fn template_arguments_reach_the_template() {
    let site = Site::hashing();
    let asked = json!({"chat_template_kwargs": {"suffix": "abc"}, "max_tokens": 1});
    let (_, body) = site.post(CHAT, chat(asked)).await;
    assert_eq!(body["usage"]["prompt_tokens"], 5);
}

#[tokio::test]
async fn a_stream_concatenates_to_the_whole_answer() {
    let site = Site::hashing();
    for (path, body) in [(CHAT, chat(json!({"max_tokens": 40}))), (TEXT, text(json!({"max_tokens": 40})))] {
        let (_, whole) = site.post(path, body.clone()).await;
        let chunks = site.stream(path, merged(body, json!({"stream": true}))).await;
        assert_eq!(chunks.last(), Some(&"[DONE]".to_string()));
        let chunks = parsed(&chunks);
        let (choice, said) = (&whole["choices"][0], said(&chunks));
        let expected = choice["message"]["content"].as_str().or(choice["text"].as_str());
        assert_eq!(Some(said.as_str()), expected);
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length");
        let ids: Vec<_> = chunks.iter().map(|c| c["id"].as_str().unwrap()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]));
        if path == CHAT {
            assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        }
    }
}

#[tokio::test]
async fn two_prompts_stream_as_two_choices() {
    let site = Site::hashing();
    let body = text(json!({"prompt": ["hi", "yo"], "max_tokens": 9}));
    let (_, whole) = site.post(TEXT, body.clone()).await;
    let chunks = parsed(&site.stream(TEXT, merged(body, json!({"stream": true}))).await);
    for index in 0..2 {
        let own: String = chunks
            .iter()
            .filter(|c| c["choices"][0]["index"] == index)
            .filter_map(|c| c["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(whole["choices"][index]["text"], json!(own));
    }
}

#[tokio::test]
async fn the_usage_chunk_is_one_last_chunk_without_choices() {
    let site = Site::saying("hello");
    for (path, body) in [(CHAT, chat(json!({}))), (TEXT, text(json!({})))] {
        let with = json!({"stream": true, "stream_options": {"include_usage": true}});
        let chunks = site.stream(path, merged(body.clone(), with)).await;
        assert_eq!(chunks.last().unwrap(), "[DONE]");
        let chunks = parsed(&chunks);
        let usage: Vec<_> = chunks.iter().filter(|c| c["usage"].is_object()).collect();
        assert_eq!(usage.len(), 1);
        let last = chunks.last().unwrap();
        assert_eq!(usage[0], last);
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 6);
        for without in
            [json!({"stream": true}), json!({"stream": true, "stream_options": {"include_usage": false}})]
        {
            let chunks = parsed(&site.stream(path, merged(body.clone(), without)).await);
            assert!(chunks.iter().all(|c| c.get("usage").is_none() && c["choices"] != json!([])));
        }
        let (status, error) =
            site.post(path, merged(body, json!({"stream_options": {"include_usage": true}}))).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("stream_options")));
    }
}

#[tokio::test]
async fn each_invalid_value_is_refused_by_its_name() {
    let site = Site::saying("x");
    let shared = [
        ("temperature", json!(-1)),
        ("temperature", json!(2.5)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_p", json!(1e-60)),
        ("top_p", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(2)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("top_k", json!(-2)),
        ("min_p", json!(1.1)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("seed", json!("s")),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!("")),
        ("stop", json!(7)),
        ("stream", json!("yes")),
        ("logit_bias", json!({"x": 10})),
        ("logit_bias", json!({"400": 10})),
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!([5])),
        ("no_such_field", json!(1)),
        ("model", json!(3)),
    ];
    let chat_only = [
        ("top_logprobs", json!(3)),
        ("top_logprobs", json!(25)),
        ("logprobs", json!(25)),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("tools", json!([{"type": "function"}])),
        ("response_format", json!({"type": "json_object"})),
        ("max_completion_tokens", json!(0)),
    ];
    let text_only = [
        ("logprobs", json!(25)),
        ("logprobs", json!(-1)),
        ("prompt", json!([])),
        ("prompt", json!("")),
        ("prompt", json!([400])),
        ("prompt", json!({"a": 1})),
        ("echo", json!(true)),
        ("best_of", json!(2)),
    ];
    let cases = shared.iter().map(|c| (CHAT, chat(json!({})), c));
    let cases = cases.chain(shared.iter().map(|c| (TEXT, text(json!({})), c)));
    let cases = cases.chain(chat_only.iter().map(|c| (CHAT, chat(json!({})), c)));
    let cases = cases.chain(text_only.iter().map(|c| (TEXT, text(json!({})), c)));
    for (path, body, (param, value)) in cases {
        let (status, error) = site.post(path, merged(body, json!({*param: value}))).await;
        assert_eq!(status, 400, "{param} = {value}: {error}");
        assert_eq!(error["error"]["param"], *param, "{value}: {error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(param), "{error}");
    }
}

#[tokio::test]
async fn a_logit_bias_moves_the_choice() {
    let site =
        Site::with(Fake::new(limits(1), |_, _| vec![(97, 1.0), (98, 0.0)]), ByteText::new(&[]), |_, _| {});
    let (_, plain) = site.post(TEXT, text(json!({"max_tokens": 2}))).await;
    let (_, biased) = site.post(TEXT, text(json!({"max_tokens": 2, "logit_bias": {"98": 5}}))).await;
    assert_eq!((&plain["choices"][0]["text"], &biased["choices"][0]["text"]), (&json!("aa"), &json!("bb")));
}

#[tokio::test]
async fn a_seed_repeats_its_answer_and_no_seed_does_not() {
    let even = Fake::new(limits(4), |_, _| (97..113).map(|t| (t, 0.0)).collect());
    let site = Site::with(even, ByteText::new(&[]), |_, _| {});
    let asked = |extra| text(merged(json!({"max_tokens": 40, "temperature": 1}), extra));
    let (_, one) = site.post(TEXT, asked(json!({"seed": 7}))).await;
    let (_, two) = site.post(TEXT, asked(json!({"seed": 7}))).await;
    let (_, other) = site.post(TEXT, asked(json!({}))).await;
    assert_eq!(one["choices"], two["choices"]);
    assert_ne!(one["choices"], other["choices"]);
}

#[tokio::test]
async fn fields_that_ask_for_nothing_are_accepted() {
    let site = Site::saying("x");
    let harmless = json!({
        "n": 1, "user": "u", "metadata": {}, "logit_bias": {}, "stop": null, "temperature": null,
        "top_k": -1, "seed": -5, "response_format": {"type": "text"}, "tools": [], "tool_choice": "auto",
    });
    assert_eq!(site.post(CHAT, chat(harmless)).await.0, 200);
}

#[tokio::test]
async fn a_message_that_is_no_text_is_refused_by_its_place() {
    let site = Site::saying("x");
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]);
    for (message, param) in [
        (json!({"role": "user", "content": image}), "messages[1].content[1]"),
        (json!({"role": "user"}), "messages[1].content"),
        (json!({"role": "wizard", "content": "x"}), "messages[1].role"),
        (json!({"content": "x"}), "messages[1].role"),
    ] {
        let messages = json!([{"role": "system", "content": "s"}, message]);
        let (status, error) = site.post(CHAT, chat(json!({"messages": messages}))).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
}

#[tokio::test]
async fn a_templates_refusal_is_a_400_with_its_own_message() {
    let site = Site::saying("x");
    let turn = json!({"role": "user", "content": "a"});
    let cases = [
        (json!([turn, turn]), "must alternate"),
        (json!([turn, {"role": "system", "content": "late"}]), "System message must be first."),
    ];
    for (messages, said) in cases {
        let (status, error) = site.post(CHAT, chat(json!({"messages": messages}))).await;
        assert_eq!(status, 400);
        assert!(error["error"]["message"].as_str().unwrap().contains(said), "{error}");
        assert_eq!(error["error"]["code"], "template_error");
    }
}

#[tokio::test]
async fn hostile_text_reaches_the_tokenizer_verbatim() {
    let site = Site::saying("ok");
    let nasty = "${TMPDIR:-x} {{ 7*7 }} {% raw %} \u{0} \u{2028} <|end|> \\ \"";
    let messages = json!([{"role": "user", "content": nasty}]);
    let (status, body) = site.post(CHAT, chat(json!({"messages": messages}))).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["usage"]["prompt_tokens"], nasty.len());
}

#[tokio::test]
async fn a_prompt_beyond_the_context_says_so() {
    let site = Site::hashing();
    let long = "x".repeat(300);
    let messages = json!([{"role": "user", "content": long}]);
    let room = json!({"max_tokens": 255});
    for (path, body, param) in [
        (CHAT, chat(json!({"messages": messages})), "messages"),
        (TEXT, text(json!({"prompt": long})), "prompt"),
        (TEXT, text(room.clone()), "max_tokens"),
        (CHAT, chat(json!({"max_completion_tokens": 255})), "max_completion_tokens"),
    ] {
        let (status, error) = site.post(path, body).await;
        assert_eq!(status, 400, "{error}");
        assert_eq!(error["error"]["code"], "context_length_exceeded");
        assert_eq!(error["error"]["param"], param);
    }
    assert_eq!(site.post(TEXT, text(json!({"max_tokens": 254}))).await.0, 200, "exactly full");
}

#[tokio::test]
async fn the_ninth_request_is_refused_with_429_when_nothing_may_wait() {
    let site = Site::with(Fake::hashing(limits(8)), ByteText::new(&[]), |c, _| c.queue = 0);
    site.knobs.step_ms.store(5, SeqCst);
    let body = || text(json!({"max_tokens": 60}));
    let eight: Vec<_> = (0..8).map(|_| site.spawn(TEXT, body())).collect();
    assert!(within(Duration::from_secs(5), || site.handle.free_seats() == 0).await);
    let (status, error) = site.post(TEXT, body()).await;
    assert_eq!((status, &error["error"]["code"]), (429, &json!("queue_full")));
    assert_eq!(error["error"]["type"], "rate_limit_error");
    for one in eight {
        assert_eq!(one.await.unwrap().0, 200);
    }
    assert_eq!(site.knobs.peak.load(SeqCst), 8);
}
