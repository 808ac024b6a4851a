//! A deadline for what is written to a client.
//!
//! In: a stream. Out: the same stream, whose writes fail when its client does not take all that was written within
//! [`WRITE_TIMEOUT`]. A client that takes a byte now and then gains no time. Otherwise answers that no client reads would
//! keep their memory.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// As long as Prometheus waits for an answer by default.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct WriteDeadline<S> {
    stream: S,
    /// Set when the stream did not accept a write, until everything is written.
    deadline: Option<Pin<Box<Sleep>>>,
}

// === impl WriteDeadline ===

impl<S> WriteDeadline<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, deadline: None }
    }

    /// Returns the result of a write, or an error if the client is late.
    fn within(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
            if deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client does not take its answer",
                )));
            }
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

/// hyper flushes when it has written everything. It writes bodies without copying them if writes are vectored.
impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.within(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.within(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.deadline = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    const ANSWER: [u8; 100] = [b'x'; 100];

    async fn write(stream: &mut WriteDeadline<DuplexStream>) -> io::Result<()> {
        stream.write_all(&ANSWER).await?;
        stream.flush().await
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_in_time_is_an_error_even_if_some_of_it_is() {
        for drips in [false, true] {
            let (stream, mut client) = duplex(50);
            let (mut stream, begun) = (WriteDeadline::new(stream), Instant::now());
            let drip = async {
                loop {
                    sleep(Duration::from_secs(1)).await;
                    if drips {
                        client.read_u8().await.unwrap();
                    }
                }
            };
            let error = tokio::select! {
                written = write(&mut stream) => written.unwrap_err(),
                () = drip => unreachable!(),
            };
            assert_eq!((error.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, WRITE_TIMEOUT));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_has_its_own_deadline() {
        let (stream, mut client) = duplex(50);
        let mut stream = WriteDeadline::new(stream);
        for _ in 0..5 {
            let take = async {
                sleep(WRITE_TIMEOUT / 2).await;
                client.read_exact(&mut ANSWER.clone()).await.unwrap();
            };
            let (written, ()) = tokio::join!(write(&mut stream), take);
            written.unwrap();
            sleep(WRITE_TIMEOUT).await;
        }
    }
}
