//! The turns of a connection's task: how much each reads, and whether the client takes what the server sends.
//!
//! In: a TCP or TLS connection. Out: the same one for hyper. Always holds: a turn reads a bounded number of bytes, and
//! hyper accepts all calls in them before the turn ends. So few calls are in memory that are not counted yet.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read in a turn: some calls with their messages, or a thousand of the smallest HEADERS frames.
const READ_PER_TURN: usize = 16 << 10;
/// Bytes read in a turn while a further call would be refused.
const READ_IN_SHORTAGE: usize = 512;

/// Shared by a connection's task and its transport.
#[derive(Default)]
pub(super) struct TurnLimits {
    /// How many more bytes may be read in this turn.
    left: AtomicUsize,
    /// Whether the socket has not accepted the last write.
    is_full: AtomicBool,
}

pub(super) struct PacedTransport<S> {
    stream: S,
    limits: Arc<TurnLimits>,
}

// === impl TurnLimits ===

impl TurnLimits {
    pub(super) fn begin_turn(&self, in_shortage: bool) {
        self.left.store(if in_shortage { READ_IN_SHORTAGE } else { READ_PER_TURN }, Relaxed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }

    fn written<T>(&self, written: Poll<T>) -> Poll<T> {
        self.is_full.store(written.is_pending(), Relaxed);
        written
    }
}

// === impl PacedTransport ===

impl<S> PacedTransport<S> {
    pub(super) fn new(stream: S, limits: &Arc<TurnLimits>) -> Self {
        Self { stream, limits: Arc::clone(limits) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PacedTransport<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = self.limits.left.load(Relaxed);
        let most = left.min(buffer.remaining());
        if most == 0 {
            // The rest is read in the next turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        self.limits.left.store(left - read, Relaxed);
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

/// Vectored writes are not implemented, so that h2 copies small frames into one buffer and writes them together.
impl<S: AsyncWrite + Unpin> AsyncWrite for PacedTransport<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.limits.written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.limits.written(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_turn_reads_a_bounded_number_of_bytes() {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        near.write_all(&vec![7; 100_000]).await.unwrap();
        let limits = Arc::default();
        let mut paced = PacedTransport::new(far, &limits);
        let mut buffer = vec![0; 100_000];
        for (in_shortage, most) in [(false, READ_PER_TURN), (true, READ_IN_SHORTAGE)] {
            limits.begin_turn(in_shortage);
            assert_eq!(paced.read(&mut buffer).now_or_never().unwrap().unwrap(), most);
            assert!(paced.read(&mut buffer).now_or_never().is_none());
        }
        assert!(buffer[..READ_IN_SHORTAGE].iter().all(|byte| *byte == 7));
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_seen() {
        let (mut near, far) = tokio::io::duplex(10);
        let limits = Arc::default();
        let mut paced = PacedTransport::new(far, &limits);
        assert!(paced.write(&[0; 10]).now_or_never().is_some() && !limits.is_full());
        assert!(paced.write(&[0; 10]).now_or_never().is_none() && limits.is_full());
        near.read_exact(&mut [0; 10]).await.unwrap();
        assert!(paced.write(&[0; 10]).now_or_never().is_some() && !limits.is_full());
    }
}
