//! The TCP connection under HTTP/2.
//!
//! In: an accepted socket. Out: a socket whose client has shown that it speaks HTTP/2, and how much it lets us send. Whoever
//! connects and stays silent is let go: hyper would wait for the preface for ever.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};

/// What every client of HTTP/2 sends first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection whose preface has been read, and is read once more.
pub(super) struct Transport {
    stream: TcpStream,
    /// What is left of the preface.
    preface: &'static [u8],
    window: Arc<Window>,
    sent: Frames,
    received: Frames,
}

/// How many bytes of data the client lets the connection carry (RFC 9113, section 6.9), read off the frames that pass: hyper
/// and h2 do not tell.
pub(super) struct Window(AtomicI64);

/// Where the next frame begins in the bytes of one direction.
#[derive(Default)]
struct Frames {
    /// The beginning of a frame: its header, and what a WINDOW_UPDATE holds.
    head: [u8; HEADER + INCREMENT],
    known: usize,
    /// Of its content, what has not passed yet.
    rest: usize,
}

const HEADER: usize = 9;
const INCREMENT: usize = 4;
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;

/// A frame that changes the window of the connection.
#[derive(Debug, PartialEq, Eq)]
enum Flow {
    /// Bytes of data.
    Data(u32),
    /// Bytes more that may be sent.
    Update(u32),
}

impl Transport {
    /// # Errors
    /// When the client sends something else, or nothing in time.
    pub(super) async fn accept(mut stream: TcpStream) -> io::Result<Self> {
        // A change is one small write: it must not wait for another.
        stream.set_nodelay(true)?;
        let mut preface = [0; PREFACE.len()];
        let read = timeout(PREFACE_TIMEOUT, stream.read_exact(&mut preface));
        read.await.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it sent no HTTP/2 preface"))??;
        if preface != *PREFACE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP/2"));
        }
        let (sent, received) = Default::default();
        Ok(Self { stream, preface: PREFACE, window: Arc::default(), sent, received })
    }

    pub(super) fn window(&self) -> Arc<Window> {
        Arc::clone(&self.window)
    }
}

// === impl Window ===

impl Default for Window {
    fn default() -> Self {
        Self(AtomicI64::new(65_535))
    }
}

impl Window {
    /// Whether nothing can be sent until the client makes room.
    pub(super) fn is_shut(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

// === impl Frames ===

impl Frames {
    /// Follows bytes that pass.
    fn pass(&mut self, mut bytes: &[u8], mut flow: impl FnMut(Flow)) {
        while !bytes.is_empty() {
            if self.rest > 0 && self.known >= self.wanted() {
                let skipped = self.rest.min(bytes.len());
                bytes = bytes.get(skipped..).unwrap_or_default();
                self.rest -= skipped;
            } else {
                let Some((&byte, others)) = bytes.split_first() else { return };
                if let Some(place) = self.head.get_mut(self.known) {
                    *place = byte;
                }
                bytes = others;
                self.known += 1;
                let [a, b, c, kind, _, stream @ ..] = self.head;
                let length = u32::from_be_bytes([0, a, b, c]);
                match self.known.cmp(&HEADER) {
                    std::cmp::Ordering::Less => continue,
                    std::cmp::Ordering::Equal => self.rest = length as usize,
                    std::cmp::Ordering::Greater => self.rest = self.rest.saturating_sub(1),
                }
                if self.known == self.wanted() {
                    let [s, t, u, v, increment @ ..] = stream;
                    match kind {
                        DATA => flow(Flow::Data(length)),
                        WINDOW_UPDATE if [s & 0x7f, t, u, v] == [0; 4] => {
                            flow(Flow::Update(u32::from_be_bytes(increment) & 0x7fff_ffff));
                        }
                        _ => {}
                    }
                }
            }
            if self.known >= self.wanted() && self.rest == 0 {
                *self = Self::default();
            }
        }
    }

    /// How much of its beginning has to be known.
    fn wanted(&self) -> usize {
        let [_, _, _, kind, ..] = self.head;
        HEADER + if self.known >= HEADER && kind == WINDOW_UPDATE { INCREMENT } else { 0 }
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
            let Self { received, window, .. } = &mut *self;
            received.pass(buffer.filled().get(before..).unwrap_or_default(), |flow| {
                if let Flow::Update(more) = flow {
                    window.0.fetch_add(more.into(), Ordering::Relaxed);
                }
            });
            return Poll::Ready(Ok(()));
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
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        let Self { sent, window, .. } = &mut *self;
        sent.pass(data.get(..written).unwrap_or_default(), |flow| {
            if let Flow::Data(length) = flow {
                window.0.fetch_sub(length.into(), Ordering::Relaxed);
            }
        });
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, stream], content].concat()
    }

    #[test]
    fn what_changes_the_window_of_the_connection_is_seen_however_the_bytes_are_cut() {
        let frames = [
            frame(4, 0, &[]),
            frame(WINDOW_UPDATE, 0, &[0, 15, 0, 1]),
            frame(4, 0, &[0, 4, 0, 0, 1, 0]),
            frame(WINDOW_UPDATE, 3, &[0, 0, 0, 9]),
            frame(DATA, 1, &[WINDOW_UPDATE; 70]),
            frame(DATA, 1, &[]),
            frame(WINDOW_UPDATE, 0, &[0x80, 0, 0, 7]),
            frame(1, 1, &[DATA; 300]),
            frame(DATA, 5, &[1]),
        ]
        .concat();
        let expected = [Flow::Update(0x000f_0001), Flow::Data(70), Flow::Data(0), Flow::Update(7), Flow::Data(1)];
        for step in 1..=frames.len() {
            let (mut seen, mut passing) = (Vec::new(), Frames::default());
            for bytes in frames.chunks(step) {
                passing.pass(bytes, |flow| seen.push(flow));
            }
            assert_eq!(seen, expected, "{step} bytes at a time");
        }
    }
}
