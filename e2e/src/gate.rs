//! A byte stream that can be frozen: in both directions, like a peer behind a failed router, or only its reads.
//!
//! * Always: a frozen direction passes no bytes and reports no end or error, until the stream is dropped.

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

pub(crate) struct Gate {
    stream: TcpStream,
    frozen: Arc<AtomicBool>,
    freezes_writes: bool,
}

impl Gate {
    pub(crate) fn new(stream: TcpStream, frozen: Arc<AtomicBool>) -> Self {
        Self { stream, frozen, freezes_writes: true }
    }

    /// A stream whose writes always pass.
    pub(crate) fn of_reads(stream: TcpStream, frozen: Arc<AtomicBool>) -> Self {
        Self { stream, frozen, freezes_writes: false }
    }

    /// Pending without a waker is intended: a frozen direction never makes progress again.
    fn reads(&self) -> Poll<()> {
        if self.frozen.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn writes(&self) -> Poll<()> {
        if self.freezes_writes { self.reads() } else { Poll::Ready(()) }
    }
}

impl AsyncRead for Gate {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.reads());
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gate {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.writes());
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.writes());
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.writes());
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
