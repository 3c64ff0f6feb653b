//! A gateway over the scripted engine, asked through its router.
#![allow(dead_code)]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use serde_json::Value;
use sparkpipe::gateway::{self, Gateway};
use sparkpipe::scheduler::{self, Handle, Scheduler, spawn};
use tower::ServiceExt;

use crate::common::{ByteText, Fake, Knobs, greedy, limits};

/// One server under test.
pub struct Site {
    pub router: Router,
    pub gateway: Arc<Gateway<ByteText>>,
    pub handle: Handle,
    pub knobs: Knobs,
    pub scheduler: Scheduler,
}

impl Site {
    pub fn with(
        engine: Fake,
        text: ByteText,
        change: impl FnOnce(&mut scheduler::Config, &mut gateway::Config),
    ) -> Self {
        let mut inner = crate::common::config();
        let mut outer = gateway::Config::new("fake");
        outer.sampling = greedy();
        change(&mut inner, &mut outer);
        let knobs = engine.knobs.clone();
        let text = Arc::new(text);
        let scheduler = spawn(engine, Arc::clone(&text), inner).expect("threads");
        let handle = scheduler.handle();
        let gateway = Gateway::new(handle.clone(), text, outer);
        Site { router: gateway::router(Arc::clone(&gateway)), gateway, handle, knobs, scheduler }
    }

    pub fn saying(text: &str) -> Self {
        let tokens = text.bytes().map(u32::from).collect();
        Site::with(Fake::saying(limits(4), tokens), ByteText::new(&[]), |_, _| {})
    }

    pub fn hashing() -> Self {
        Site::with(Fake::hashing(limits(4)), ByteText::new(&[]), |_, _| {})
    }

    pub async fn send(&self, request: Request<Body>) -> (u16, Vec<u8>) {
        send(self.router.clone(), request).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        json(self.send(posted(path, &body)).await)
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        json(self.send(Request::get(path).body(Body::empty()).expect("request")).await)
    }

    pub fn spawn(&self, path: &'static str, body: Value) -> tokio::task::JoinHandle<(u16, Value)> {
        let router = self.router.clone();
        tokio::spawn(async move { json(send(router, posted(path, &body)).await) })
    }

    /// The data of every event of a stream.
    pub async fn stream(&self, path: &str, body: Value) -> Vec<String> {
        let (status, bytes) = self.send(posted(path, &body)).await;
        let text = String::from_utf8(bytes).expect("UTF-8");
        assert_eq!(status, 200, "{text}");
        text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }
}

async fn send(router: Router, request: Request<Body>) -> (u16, Vec<u8>) {
    let response = router.oneshot(request).await.expect("infallible");
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 24).await.expect("body");
    (status, bytes.to_vec())
}

fn json((status, bytes): (u16, Vec<u8>)) -> (u16, Value) {
    (status, serde_json::from_slice(&bytes).expect("valid JSON"))
}

pub fn posted(path: &str, body: &Value) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .expect("request")
}

/// `base` with the fields of `extra` put over it.
pub fn merged(mut base: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().expect("an object") {
        base[key] = value.clone();
    }
    base
}

/// Events as JSON, without the end mark.
pub fn parsed(events: &[String]) -> Vec<Value> {
    events.iter().filter(|e| *e != "[DONE]").map(|e| serde_json::from_str(e).expect("valid JSON")).collect()
}

/// The text that the chunks say.
pub fn said(chunks: &[Value]) -> String {
    let piece = |c: &Value| {
        let choice = &c["choices"][0];
        choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or("").to_owned()
    };
    chunks.iter().map(piece).collect()
}
