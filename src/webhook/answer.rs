//! The body of an answer.
//!
//! In: a body, and its memory. Out: the body, for hyper. Always holds: the memory is the connection's as soon as hyper has
//! the body, and until the client has taken it; an answer whose body hyper does not need, as that to HEAD, leaves the
//! connection idle.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Bytes;

use super::{connections::OpenConnection, review_memory::HeldMemory};

pub(super) struct AnswerBody {
    body: Full<Bytes>,
    /// `None` when hyper has the body.
    memory: Option<HeldMemory>,
    connection: Arc<OpenConnection>,
}

// === impl AnswerBody ===

impl AnswerBody {
    pub(super) fn new(body: Full<Bytes>, memory: HeldMemory, connection: Arc<OpenConnection>) -> Self {
        Self { body, memory: Some(memory), connection }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(memory) = self.memory.take() {
            self.connection.writes(memory);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if self.memory.is_some() {
            self.connection.answered();
        }
    }
}
