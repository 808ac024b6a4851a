//! A byte stream that can be frozen, like a peer behind a failed router.
//!
//! * Always: a frozen stream passes no bytes and reports no end or error, until it is dropped.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

pub(super) struct Gate {
    stream: TcpStream,
    frozen: Arc<AtomicBool>,
}

impl Gate {
    pub(super) fn new(stream: TcpStream, frozen: Arc<AtomicBool>) -> Self {
        Self { stream, frozen }
    }

    /// Pending without a waker is intended: a frozen stream never makes progress again.
    fn open(&self) -> Poll<()> {
        if self.frozen.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl AsyncRead for Gate {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.open());
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gate {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.open());
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.open());
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.open());
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
