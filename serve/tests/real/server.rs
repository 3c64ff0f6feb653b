//! A running server and the smallest HTTP client that can talk to it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::home::{BINARY, Home, command};

/// Longest silence of a server that is asked something.
const PATIENCE: Duration = Duration::from_secs(120);

/// `sparkpipe serve` in a process of its own.
pub struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    pub at: SocketAddr,
    pub banner: String,
}

impl Server {
    /// Starts `serve` with `args` on a free port and waits until it listens.
    pub fn start(home: &Home, args: &[&str]) -> Self {
        let log = home.path().join("serve.log");
        let mut child = command(BINARY, home.path())
            .args([&["serve", "--port", "0"], args].concat())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("the binary starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut banner = String::new();
        let at = loop {
            let from = banner.len();
            if out.read_line(&mut banner).expect("UTF-8") == 0 {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("serve {args:?} ended: {:?}\n{banner}\n{said}", child.wait());
            }
            if let Some(at) = banner[from..].trim().strip_prefix("listening on http://") {
                break at.parse().expect("an address");
            }
        };
        Server { child, out, at, banner }
    }

    /// Asks it to stop, as `kill` does; its exit code and last words.
    pub fn terminate(mut self) -> (Option<i32>, String) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("UTF-8");
        (self.child.wait().expect("it ends").code(), rest)
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.send(&posted(path, body));
        (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    /// The data of every event of a stream.
    pub fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let (status, text) = self.send(&posted(path, body));
        assert_eq!(status, 200, "{text}");
        text.lines().filter_map(|l| l.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// A connection whose answer is still to be read.
    pub fn open(&self, path: &str, body: &Value) -> TcpStream {
        self.connect(&posted(path, body))
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let (status, page) = self.get("/metrics");
        assert_eq!(status, 200);
        let line =
            page.lines().find_map(|l| l.strip_prefix("sparkpipe_")?.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("no metric {name} in\n{page}"))
    }

    /// Waits until a metric has a value.
    pub fn wait_for(&self, name: &str, value: f64) {
        let started = std::time::Instant::now();
        while self.metric(name) != value {
            assert!(started.elapsed() < PATIENCE, "{name} never became {value}: {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn connect(&self, request: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.at).expect("connects");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        socket.write_all(request.as_bytes()).expect("writes");
        socket
    }

    fn send(&self, request: &str) -> (u16, String) {
        answer(self.connect(request))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed leaves it running; one that ended it has nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn posted(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Status and body of a connection that the server closes.
pub fn answer(mut socket: TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).expect("an answer");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    (status, if chunked { unchunked(body) } else { body.to_owned() })
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        out.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").expect("a chunk's end");
    }
    out
}
