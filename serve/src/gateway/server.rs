//! The accept loop: connections bounded in number, head size and every wait.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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
        let io = TokioIo::new(Patient::new(socket, config.write_limit));
        let served = http.serve_connection(io, TowerToHyperService::new(service.clone()));
        let served = graceful.watch(served);
        connections.spawn(async move {
            // A broken connection concerns its client alone; its requests are cancelled by the drop.
            let _ = served.await;
            drop(seat);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = tokio::time::timeout(config.drain_limit, graceful.shutdown()).await.is_ok();
    connections.shutdown().await;
    Ok(drained)
}

/// A socket that gives up when its peer takes no bytes for too long.
struct Patient {
    socket: TcpStream,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(socket: TcpStream, limit: Duration) -> Self {
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
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.judge(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
