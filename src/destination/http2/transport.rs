//! The TCP connection under HTTP/2.
//!
//! In: an accepted socket. Out: a socket whose client has shown that it speaks HTTP/2. Whoever connects and stays silent is
//! let go: h2 would wait for the preface for ever. What is read and written is told to the connection's [`Pace`].

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

use super::budget::Pace;

/// What every client of HTTP/2 sends first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection whose preface has been read, and is read once more.
pub(in crate::destination) struct Transport {
    stream: TcpStream,
    /// What is left of the preface.
    preface: &'static [u8],
    pace: Arc<Pace>,
}

impl Transport {
    /// # Errors
    /// When the client sends something else, or nothing in time.
    pub(in crate::destination) async fn accept(mut stream: TcpStream) -> io::Result<Self> {
        // A change is one small write: it must not wait for another.
        stream.set_nodelay(true)?;
        let mut preface = [0; PREFACE.len()];
        let read = timeout(PREFACE_TIMEOUT, stream.read_exact(&mut preface));
        read.await.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it sent no HTTP/2 preface"))??;
        if preface != *PREFACE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP/2"));
        }
        Ok(Self { stream, preface: PREFACE, pace: Arc::default() })
    }

    pub(in crate::destination) fn pace(&self) -> Arc<Pace> {
        Arc::clone(&self.pace)
    }
}

impl Transport {
    fn poll_socket(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.pace.must_write_first() {
            return Poll::Pending;
        }
        let most = self.pace.may_read().min(buffer.remaining());
        if most == 0 {
            // There is more, for another turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        self.pace.read(read);
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

/// Without vectored writes: then h2 copies small frames together into one write, where it would else make one for each.
impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.pace.wrote(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
