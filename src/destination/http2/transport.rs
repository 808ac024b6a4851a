//! The TCP connection under HTTP/2.
//!
//! In: an accepted socket. Out: a socket whose client has sent the HTTP/2 preface. A client that sends no preface is
//! disconnected; h2 would wait for the preface forever. Reads and writes are recorded in the connection's [`Budget`],
//! and so are the answers to PINGs.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};

use super::{budget::Budget, frames::FrameReader};

/// The first bytes that every HTTP/2 client sends (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection whose preface has been read. Reads return the preface first, because h2 expects it.
pub(in crate::destination) struct Transport {
    stream: TcpStream,
    /// The part of the preface that reads have not returned yet.
    preface: &'static [u8],
    frames: FrameReader,
    budget: Arc<Budget>,
}

impl Transport {
    /// # Errors
    /// When the client does not send the preface within the timeout, or sends other data.
    pub(in crate::destination) async fn accept(mut stream: TcpStream) -> io::Result<Self> {
        // A change is one small write, which must not wait for the next write.
        stream.set_nodelay(true)?;
        let mut preface = [0; PREFACE.len()];
        let read = timeout(PREFACE_TIMEOUT, stream.read_exact(&mut preface));
        read.await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the client sent no HTTP/2 preface in time"))??;
        if preface != *PREFACE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not use HTTP/2"));
        }
        Ok(Self { stream, preface: PREFACE, frames: FrameReader::default(), budget: Arc::default() })
    }

    pub(super) fn budget(&self) -> Arc<Budget> {
        Arc::clone(&self.budget)
    }

    fn poll_socket(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.budget.must_not_read() {
            return Poll::Pending;
        }
        let most = self.budget.remaining_read().min(buffer.remaining());
        if most == 0 {
            // The rest is read in a later turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        self.budget.record_read(read);
        self.budget.record_pongs(self.frames.pongs(part.filled()));
        if self.budget.is_flooded() {
            // The connection ends in its next turn. h2 would handle these frames before that.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            return self.poll_socket(cx, buffer);
        }
        let (now, later) = self.preface.split_at(self.preface.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

/// Vectored writes are not implemented, so that h2 copies small frames into one buffer and writes them together.
impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.budget.record_write(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
