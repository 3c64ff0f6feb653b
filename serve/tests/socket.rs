//! The gateway over real loopback sockets: clients that leave, stall or crawl.

mod common;
mod site;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::*;
use site::Site;
use sparkpipe::gateway::{self, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const SOON: Duration = Duration::from_secs(5);

struct Server {
    site: Site,
    at: SocketAddr,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<std::io::Result<bool>>,
}

async fn server(change: impl FnOnce(&mut gateway::Config)) -> Server {
    let mut pool = limits(2);
    (pool.max_context, pool.pages) = (8192, 2048);
    let site = Site::with(Fake::hashing(pool), ByteText::new(&[]), |_, g| change(g));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(serve(listener, Arc::clone(&site.gateway), async {
        let _ = stopped.await;
    }));
    Server { site, at, stop, served }
}

fn head(length: usize) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    )
}

fn asked(max_tokens: usize, stream: bool) -> String {
    let body =
        format!("{{\"model\":\"fake\",\"prompt\":\"hi\",\"max_tokens\":{max_tokens},\"stream\":{stream}}}");
    head(body.len()) + &body
}

async fn open(server: &Server, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server.at).await.expect("connects");
    socket.write_all(request.as_bytes()).await.expect("writes");
    socket
}

async fn freed(server: &Server) -> bool {
    let handle = &server.site.handle;
    within(SOON, || {
        handle.free_seats() == handle.total_seats() && server.site.knobs.resident.load(SeqCst) == 0
    })
    .await
}

#[tokio::test]
async fn closing_the_socket_at_any_token_of_a_stream_frees_within_one_step() {
    let server = server(|_| {}).await;
    server.site.knobs.step_ms.store(30, SeqCst);
    for token in 0..6 {
        let mut socket = open(&server, &asked(4000, true)).await;
        let mut seen = Vec::new();
        while String::from_utf8_lossy(&seen).matches("data: ").count() <= token {
            assert_ne!(socket.read_buf(&mut seen).await.unwrap(), 0);
        }
        let steps = server.site.knobs.steps.load(SeqCst);
        drop(socket);
        assert!(freed(&server).await);
        let ran = server.site.knobs.steps.load(SeqCst) - steps;
        assert!(ran <= 3, "{ran} steps after the close: the one running, and what the kernel took to say so");
    }
}

#[tokio::test]
async fn closing_the_socket_before_a_whole_answer_frees_its_slot() {
    let server = server(|_| {}).await;
    server.site.knobs.step_ms.store(5, SeqCst);
    let socket = open(&server, &asked(4000, false)).await;
    assert!(within(SOON, || server.site.knobs.steps.load(SeqCst) > 3).await);
    drop(socket);
    assert!(freed(&server).await);
    assert!(server.site.knobs.steps.load(SeqCst) < 1000, "it did not run to its end");
}

#[tokio::test]
async fn closing_the_write_half_counts_as_leaving() {
    let server = server(|_| {}).await;
    server.site.knobs.step_ms.store(5, SeqCst);
    let mut socket = open(&server, &asked(4000, true)).await;
    let mut seen = [0; 64];
    assert_ne!(socket.read(&mut seen).await.unwrap(), 0);
    socket.shutdown().await.unwrap();
    assert!(freed(&server).await);
    assert!(server.site.knobs.steps.load(SeqCst) < 1000);
}

#[tokio::test]
async fn a_client_that_leaves_while_queued_never_reaches_the_engine() {
    let server = server(|_| {}).await;
    server.site.knobs.step_ms.store(10, SeqCst);
    let busy = [open(&server, &asked(4000, true)).await, open(&server, &asked(4000, true)).await];
    assert!(within(SOON, || server.site.knobs.resident.load(SeqCst) == 2).await);
    let queued = open(&server, &asked(4000, false)).await;
    let status = server.site.handle.status();
    assert!(within(SOON, || status.waiting.load(SeqCst) == 1).await);
    drop(queued);
    assert!(within(SOON, || status.waiting.load(SeqCst) == 0).await);
    assert_eq!(server.site.knobs.resident.load(SeqCst), 2);
    drop(busy);
    assert!(freed(&server).await);
}

#[tokio::test]
async fn a_reader_that_takes_no_bytes_is_dropped_and_its_neighbour_is_not() {
    let server = server(|g| g.write_limit = Duration::from_millis(300)).await;
    // 8000 chunks of some 200 bytes overflow what a small receive window takes.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = socket.connect(server.at).await.unwrap();
    let many = "{\"model\":\"fake\",\"prompt\":\"hi\",\"max_tokens\":8000,\"stream\":true,\"logprobs\":20}";
    slow.write_all((head(many.len()) + many).as_bytes()).await.unwrap();
    assert!(within(SOON, || server.site.knobs.resident.load(SeqCst) == 1).await);
    let mut other = open(&server, &asked(500, false)).await;
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("\"usage\"") {
        assert_ne!(other.read_buf(&mut answer).await.unwrap(), 0);
    }
    assert!(freed(&server).await);
    drop(slow);
}

#[tokio::test]
async fn heads_are_bounded_in_size_count_and_time() {
    let limit = Duration::from_millis(200);
    let server = server(|g| {
        g.head_limit = limit;
        g.max_head = 8192;
        g.max_headers = 20;
    })
    .await;
    for (request, status) in [
        (format!("GET /health HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n", "y".repeat(20_000)), "431"),
        (format!("GET /health HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(40)), "431"),
        ("NONSENSE\r\n\r\n".to_owned(), "400"),
    ] {
        let mut socket = open(&server, &request).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let started = Instant::now();
    let mut crawling = open(&server, "GET /health HTTP/1.1\r\nhost:").await;
    let mut answer = Vec::new();
    let _ = crawling.read_to_end(&mut answer).await;
    assert!(
        started.elapsed() >= limit / 2 && started.elapsed() < SOON,
        "closed after {:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_one_to_close() {
    let server = server(|g| g.max_connections = 1).await;
    let first = open(&server, "").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut second = open(&server, "GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut answer = [0; 12];
    let early = tokio::time::timeout(Duration::from_millis(150), second.read_exact(&mut answer)).await;
    assert!(early.is_err(), "not accepted while the first is open");
    drop(first);
    tokio::time::timeout(SOON, second.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn shutdown_drains_running_answers_and_takes_no_new_ones() {
    let server = server(|_| {}).await;
    server.site.knobs.step_ms.store(3, SeqCst);
    let mut socket = open(&server, &asked(60, true)).await;
    let mut seen = Vec::new();
    assert_ne!(socket.read_buf(&mut seen).await.unwrap(), 0);
    server.stop.send(()).unwrap();
    socket.read_to_end(&mut seen).await.unwrap();
    assert!(String::from_utf8_lossy(&seen).contains("data: [DONE]"));
    assert!(server.served.await.unwrap().unwrap(), "all finished within the drain limit");
    assert!(TcpStream::connect(server.at).await.is_err());
}

#[tokio::test]
async fn a_drain_that_takes_too_long_cancels_what_is_left() {
    let server = server(|g| g.drain_limit = Duration::from_millis(100)).await;
    server.site.knobs.step_ms.store(5, SeqCst);
    let _socket = open(&server, &asked(8000, true)).await;
    assert!(within(SOON, || server.site.knobs.resident.load(SeqCst) == 1).await);
    server.stop.send(()).unwrap();
    assert!(!server.served.await.unwrap().unwrap());
    let (handle, knobs) = (&server.site.handle, &server.site.knobs);
    let free = || handle.free_seats() == handle.total_seats() && knobs.resident.load(SeqCst) == 0;
    assert!(within(SOON, free).await);
}
