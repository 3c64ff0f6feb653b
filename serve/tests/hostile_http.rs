//! Clients that mean harm, over real loopback sockets: each is answered or dropped, and the next is served.

mod common;
mod site;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::*;
use serde_json::Value;
use site::Site;
use sparkpipe::gateway::{self, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(10);
const JSON: &str = "content-type: application/json\r\n";

struct Server {
    site: Site,
    at: SocketAddr,
}

async fn server(change: impl FnOnce(&mut gateway::Config)) -> Server {
    let mut pool = limits(2);
    (pool.max_context, pool.pages) = (8192, 2048);
    let site = Site::with(Fake::hashing(pool), ByteText::new(&[]), |_, g| change(g));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("an address");
    tokio::spawn(serve(listener, Arc::clone(&site.gateway), std::future::pending()));
    Server { site, at }
}

impl Server {
    async fn open(&self, bytes: &[u8]) -> TcpStream {
        let mut socket = TcpStream::connect(self.at).await.expect("connects");
        // A server that has seen enough may close before everything is written.
        let _ = socket.write_all(bytes).await;
        socket
    }

    /// Everything the server says until it closes.
    async fn whole(&self, bytes: &[u8]) -> String {
        let mut socket = self.open(bytes).await;
        read_to_end(&mut socket).await
    }

    async fn serves(&self) {
        let said = self.whole(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }

    fn free(&self) -> bool {
        let handle = &self.site.handle;
        handle.free_seats() == handle.total_seats() && self.site.knobs.resident.load(SeqCst) == 0
    }
}

async fn read_to_end(socket: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let read = tokio::time::timeout(SOON, socket.read_to_end(&mut said)).await;
    assert!(read.is_ok(), "not closed: {}", String::from_utf8_lossy(&said));
    String::from_utf8_lossy(&said).into_owned()
}

/// A completion request that asks for the connection's end.
fn post(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn asked(max_tokens: usize) -> Vec<u8> {
    format!("{{\"model\":\"fake\",\"prompt\":\"hi\",\"max_tokens\":{max_tokens}}}").into_bytes()
}

fn status(said: &str) -> &str {
    said.split(' ').nth(1).unwrap_or("")
}

fn error(said: &str) -> Value {
    let body = said.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {said}"))
}

#[tokio::test]
async fn a_body_that_crawls_is_cut_off_and_its_connection_closed() {
    let server = server(|g| g.body_limit = Duration::from_millis(200)).await;
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 100\r\n\r\n");
    let mut socket = server.open(head.as_bytes()).await;
    let (mut reader, mut writer) = socket.split();
    let started = Instant::now();
    let drip = async {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut said = Vec::new();
    let read = async { tokio::time::timeout(SOON, reader.read_to_end(&mut said)).await };
    tokio::select! {
        done = read => assert!(done.is_ok(), "still open"),
        () = drip => {}
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.serves().await;
    assert!(server.free());
}

#[tokio::test]
async fn silent_and_idle_connections_are_closed() {
    let server = server(|g| g.head_limit = Duration::from_millis(200)).await;
    let mut silent = server.open(b"").await;
    assert_eq!(read_to_end(&mut silent).await, "");
    // After an answer the connection may be used again, but not kept for nothing.
    let mut idle = server.open(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(status(&read_to_end(&mut idle).await), "200");
}

#[tokio::test]
async fn json_that_is_deep_broken_or_no_text_is_a_400_object() {
    let server = server(|_| {}).await;
    let nested = |open: &str, close: &str, n: usize| {
        let (open, close) = (open.repeat(n), close.repeat(n));
        format!("{{\"model\":\"fake\",\"prompt\":\"hi\",\"x\":{open}1{close}}}").into_bytes()
    };
    let with = |text: &[u8]| [b"{\"model\":\"fake\",\"prompt\":\"", text, b"\"}"].concat();
    let cases: Vec<Vec<u8>> = vec![
        nested("[", "]", 200_000),
        nested("{\"a\":", "}", 100_000),
        nested("[", "]", 100),
        "[".repeat(1 << 20).into_bytes(),
        with(b"\xff\xfe"),
        with(b"\xc3"),
        with(b"\xed\xa0\x80"),
        with(b"\\ud800"),
        with(b"\\u00"),
        with(b"a\nb"),
        b"\xef\xbb\xbf{}".to_vec(),
        b"{\"model\":\"fake\",\"prompt\":\"hi\",\"seed\":1e999}".to_vec(),
        b"{\"model\":\"fake\",\"prompt\":\"hi\",\"max_tokens\":1e3}".to_vec(),
        b"{\"model\":\"fake\",\"prompt\":\"hi\",\"temperature\":NaN}".to_vec(),
        b"{\"model\":\"fake\",\"prompt\":[1,-1]}".to_vec(),
        b"{\"model\":\"fake\",\"prompt\":[1,4294967296]}".to_vec(),
    ];
    for body in cases {
        let said = server.whole(&post(&body)).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(status(&said), "400", "{shown}: {said}");
        assert_eq!(error(&said)["error"]["type"], "invalid_request_error", "{shown}");
    }
    server.serves().await;
    assert!(server.free());
}

#[tokio::test]
async fn paths_that_are_no_text_have_error_objects_too() {
    let server = server(|_| {}).await;
    for (path, want) in [("/v1/models/%ff", "400"), ("/v1/models/%2e%2e", "404"), ("/%00", "404")] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let said = server.whole(request.as_bytes()).await;
        assert_eq!(status(&said), want, "{path}: {said}");
        assert!(error(&said)["error"]["message"].is_string());
    }
}

#[tokio::test]
async fn ambiguous_framing_is_refused() {
    let server = server(|_| {}).await;
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}");
    for framing in [
        "content-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        "content-length: -1\r\n\r\n{}",
        "content-length: 18446744073709551616\r\n\r\n{}",
        "transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
        "transfer-encoding: gzip\r\n\r\n{}",
        "bad header\r\n\r\n",
    ] {
        let said = server.whole(format!("{head}{framing}").as_bytes()).await;
        assert!(["400", "413"].contains(&status(&said)), "{framing:?}: {said}");
    }
    for line in ["GET /health HTTP/9.9", "PRI * HTTP/2.0", "GET", "\u{16}\u{3}\u{1}"] {
        let said = server.whole(format!("{line}\r\nhost: x\r\n\r\n").as_bytes()).await;
        assert!(said.is_empty() || ["400", "505"].contains(&status(&said)), "{line:?}: {said}");
    }
    server.serves().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_one_at_a_time() {
    let server = server(|_| {}).await;
    let one = |max_tokens: usize| {
        let body = asked(max_tokens);
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\n{JSON}content-length: {}\r\n\r\n",
            body.len()
        );
        [head.into_bytes(), body].concat()
    };
    let all = [one(3), one(5), b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), post(&asked(7))].concat();
    let said = server.whole(&all).await;
    let used: Vec<&str> = said
        .split("\"completion_tokens\":")
        .skip(1)
        .map(|rest| rest.split([',', '}']).next().unwrap_or(""))
        .collect();
    assert_eq!(used, ["3", "5", "7"], "{said}");
    assert_eq!(said.matches("HTTP/1.1 200").count(), 4);
    assert_eq!(server.site.knobs.peak.load(SeqCst), 1, "one connection never has two rows");
}

#[tokio::test]
async fn a_client_that_leaves_behind_a_pipelined_request_frees_its_row() {
    let server = server(|_| {}).await;
    server.site.knobs.step_ms.store(5, SeqCst);
    let body = asked(8000);
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{JSON}content-length: {}\r\n\r\n", body.len());
    let behind = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let socket = server.open(&[head.as_bytes(), &body, behind].concat()).await;
    assert!(within(SOON, || server.site.knobs.steps.load(SeqCst) > 3).await);
    drop(socket);
    assert!(within(SOON, || server.free()).await);
    assert!(server.site.knobs.steps.load(SeqCst) < 2000, "40 s of steps were not run to their end");
}

#[tokio::test]
async fn hundreds_of_connections_wait_their_turn_and_all_are_answered() {
    let server = server(|g| {
        g.max_connections = 16;
        g.head_limit = Duration::from_millis(300);
    })
    .await;
    // Silent ones take every seat again and again; each is closed in time.
    let silent: Vec<TcpStream> =
        futures::future::join_all((0..100).map(|_| server.open(b""))).await.into_iter().collect();
    let asking =
        (0..100).map(|_| server.whole(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"));
    for said in futures::future::join_all(asking).await {
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }
    drop(silent);
    server.serves().await;
}

#[tokio::test]
async fn all_bodies_together_are_bounded() {
    let server = server(|g| {
        g.max_body = 10_000;
        g.max_body_bytes = 12_000;
        g.body_limit = Duration::from_secs(5);
    })
    .await;
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 9000\r\n\r\n");
    let half = [head.as_bytes(), &[b' '; 8000]].concat();
    let first = server.open(&half).await;
    let second = loop {
        // The first may not have been read yet: then both fit until one of them fills the budget.
        let said = server.whole(&post(&[b' '; 9000])).await;
        if status(&said) == "429" {
            break said;
        }
        assert_eq!(status(&said), "400", "{said}");
    };
    assert_eq!(error(&second)["error"]["code"], "body_budget");
    drop(first);
    let within_budget = async {
        while status(&server.whole(&post(&asked(2))).await) != "200" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, within_budget).await.is_ok(), "the budget comes back");
}
