//! The accept loop: connections bounded in number, head size and every wait.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::{Gateway, router};
use crate::scheduler::TextModel;

/// Pause after a failed accept (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` completes, then takes no more connections, lets
/// running answers finish within the drain limit and drops the rest, which
/// cancels them. Returns whether all finished.
///
/// # Errors
/// Never by a client's doing; the type leaves room for the listener's.
pub async fn serve<T: TextModel>(
    listener: TcpListener,
    gateway: Arc<Gateway<T>>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<bool> {
    let config = gateway.config.clone();
    let seats = Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS)));
    let service = router(gateway);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.head_limit)
        .max_headers(config.max_headers)
        .max_buf_size(config.max_head.max(8192));
    tokio::pin!(shutdown);
    loop {
        let seat = tokio::select! {
            () = &mut shutdown => break,
            seat = Arc::clone(&seats).acquire_owned() => seat,
        };
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let _ = socket.set_nodelay(true);
        let socket = Arc::new(socket);
        let io = TokioIo::new(Patient::new(Arc::clone(&socket), config.write_limit));
        let served = http.serve_connection(io, TowerToHyperService::new(service.clone()));
        let served = graceful.watch(served);
        connections.spawn(async move {
            // A broken connection concerns its client alone; its requests are cancelled by the drop.
            tokio::select! {
                _ = served => {}
                () = left(&socket) => {}
            }
            drop(seat);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = tokio::time::timeout(config.drain_limit, graceful.shutdown()).await.is_ok();
    connections.shutdown().await;
    Ok(drained)
}

/// How often a connection is looked at for a client that is gone.
const LOOK: Duration = Duration::from_millis(250);

/// Returns when the client has closed its side. Reading alone does not tell: behind a pipelined request that
/// nobody reads yet, the end of the stream would be seen only after the answer before it.
async fn left(socket: &TcpStream) {
    loop {
        tokio::time::sleep(LOOK).await;
        // Bytes to read or an end make this return; an open, silent connection may wait here.
        match socket.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// A socket that gives up when its peer takes no bytes for too long.
struct Patient {
    socket: Arc<TcpStream>,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(socket: Arc<TcpStream>, limit: Duration) -> Self {
        Patient { socket, limit, waiting: None }
    }

    fn judge<V>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<V>>) -> Poll<io::Result<V>> {
        if polled.is_ready() {
            self.waiting = None;
            return polled;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn try_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            match self.socket.try_write(buf) {
                // The readiness was stale and is cleared now: wait for the next.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read(buf.initialize_unfilled()) {
                Ok(n) => {
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = self.try_write(cx, buf);
        self.judge(cx, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Bytes handed to a TCP socket are on their way.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A second handle on the same socket: the shared one cannot be taken mutably.
        let closed = self.socket.as_fd().try_clone_to_owned();
        let closed = closed.and_then(|fd| std::net::TcpStream::from(fd).shutdown(std::net::Shutdown::Write));
        Poll::Ready(match closed {
            // The peer was faster.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        })
    }
}
