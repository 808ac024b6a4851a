//! Streams for a reader at a terminal: what they say at once, or all that they ever say.
//!
//! * In: a connection, authorities, a context token, and what kind of stream ([`Told`]). Out: what each authority was told, or its
//!   changes one by one.
//! * Always: a first answer has a deadline. A watched stream that ends is asked for again, unless the server refuses it.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    time::Duration,
};

use anyhow::Result;
use futures::future::{pending, try_join_all};
use prost::Message;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status, Streaming};

use super::connect::{Connector, Destination};
use crate::{client, proto::destination::GetDestination};

/// As long as `linkerd diagnostics endpoints` listens.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// A set that is too large for one message, or is put together from several clusters, comes as several, one upon the other.
const SAME_ANSWER: Duration = Duration::from_millis(100);
/// Before a stream that ended is asked for again.
const PAUSE: Duration = Duration::from_secs(1);

/// The server's "no" to a request.
#[derive(Debug, thiserror::Error)]
#[error("Destination API error: {}", text(.0))]
pub(super) struct Refused(Status);

/// What streams have told of one authority so far.
pub(super) trait Told: Default {
    type Message: Message + Default + 'static;
    /// What a message makes different.
    type Change;
    /// Whether a first answer may come as several messages.
    const IN_PARTS: bool;

    /// Opens such a stream.
    ///
    /// # Errors
    /// With what the server says, or why it could not be asked.
    async fn open(destination: &Destination, request: GetDestination) -> Result<Streaming<Self::Message>, Status>;

    /// A new stream begins: what is known stays until it tells its own state.
    fn reopen(&mut self);

    /// Folds a message in; `None` when it repeats what is known.
    fn apply(&mut self, message: Self::Message) -> Option<Self::Change>;
}

/// What an authority was answered.
pub(super) enum Answer<T> {
    Told(T),
    /// Nothing was said in time, as Linkerd's destination does for a Service without endpoints.
    Silence,
    Refused(Refused),
}

/// One authority that is watched.
struct Watched<'a, T> {
    authority: &'a str,
    token: &'a str,
    told: T,
    /// Whether a stream was ever accepted: until then every error is the answer.
    accepted: bool,
    /// What was last complained of, so that it is said once.
    complaint: String,
}

/// Why a stream is no more.
enum End {
    Refused(Refused),
    Lost(String),
}

/// What is told now.
pub(super) async fn ask<T: Told>(destination: &Destination, authority: &str, token: &str) -> Answer<T> {
    match first_answer(destination, request(authority, token)).await {
        Ok(Some(told)) => Answer::Told(told),
        Ok(None) => Answer::Silence,
        Err(status) => Answer::Refused(Refused(status)),
    }
}

/// Hands every change to `print`, for ever.
///
/// # Errors
/// When a stream is refused, there is nothing to ask at the beginning, or `print` fails.
pub(super) async fn watch<T: Told>(
    connector: &Connector,
    authorities: &[String],
    token: &str,
    print: impl FnMut(&str, &T::Change) -> Result<()>,
) -> Result<Infallible> {
    let print = RefCell::new(print);
    let watched = authorities.iter().map(async |authority| {
        let told = Cell::new(false);
        let mut print = |change: &T::Change| {
            told.set(true);
            (print.borrow_mut())(authority, change)
        };
        let mut watched = Watched::<T>::new(authority, token);
        let silence = async {
            sleep(FIRST_ANSWER).await;
            if !told.get() {
                eprintln!("{authority}: nothing was announced yet, waiting");
            }
            pending().await
        };
        tokio::select! {
            ended = watched.run(connector, &mut print) => ended,
            never = silence => never,
        }
    });
    try_join_all(watched).await?;
    anyhow::bail!("no authority to watch")
}

async fn first_answer<T: Told>(destination: &Destination, request: GetDestination) -> Result<Option<T>, Status> {
    let deadline = Instant::now() + FIRST_ANSWER;
    let first = timeout_at(deadline, async {
        let mut messages = T::open(destination, request).await?;
        let first = messages.message().await?;
        Ok::<_, Status>((messages, first))
    });
    let Ok(first) = first.await else { return Ok(None) };
    let (mut messages, Some(first)) = first? else {
        return Err(Status::unavailable(
            "the stream ended before it said anything; the server may be going, ask again",
        ));
    };
    let mut told = T::default();
    told.apply(first);
    while T::IN_PARTS
        && let Ok(Ok(Some(more))) = timeout_at(deadline.min(Instant::now() + SAME_ANSWER), messages.message()).await
    {
        told.apply(more);
    }
    Ok(Some(told))
}

fn request(authority: &str, token: &str) -> GetDestination {
    // The scheme is not looked at; this is what Linkerd's command for endpoints sends.
    GetDestination { scheme: "http:".to_owned(), path: authority.to_owned(), context_token: token.to_owned() }
}

// === impl Watched ===

impl<'a, T: Told> Watched<'a, T> {
    fn new(authority: &'a str, token: &'a str) -> Self {
        Self { authority, token, told: T::default(), accepted: false, complaint: String::new() }
    }

    async fn run(
        &mut self,
        connector: &Connector,
        print: &mut impl FnMut(&T::Change) -> Result<()>,
    ) -> Result<Infallible> {
        loop {
            let lost = match connector.destination().await {
                Ok(destination) => match self.read(&destination, print).await? {
                    End::Refused(refused) => return Err(refused.into()),
                    End::Lost(reason) => reason,
                },
                Err(error) if self.accepted => client::describe(&*error),
                Err(error) => return Err(error),
            };
            if lost != self.complaint {
                eprintln!("{}: {lost}; asking again", self.authority);
                self.complaint = lost;
            }
            sleep(PAUSE).await;
        }
    }

    /// One stream from its beginning to its end.
    async fn read(
        &mut self,
        destination: &Destination,
        print: &mut impl FnMut(&T::Change) -> Result<()>,
    ) -> Result<End> {
        self.told.reopen();
        let mut messages = match T::open(destination, request(self.authority, self.token)).await {
            Ok(messages) => messages,
            Err(status) => return Ok(self.failed(status)),
        };
        loop {
            match messages.message().await {
                Ok(Some(message)) => {
                    self.accepted = true;
                    self.complaint.clear();
                    if let Some(change) = self.told.apply(message) {
                        print(&change)?;
                    }
                }
                Ok(None) => {
                    self.accepted = true;
                    return Ok(End::Lost("the server ended the stream".to_owned()));
                }
                Err(status) => return Ok(self.failed(status)),
            }
        }
    }

    fn failed(&self, status: Status) -> End {
        if !self.accepted || is_refusal(status.code()) {
            End::Refused(Refused(status))
        } else {
            End::Lost(format!("the stream failed: {}", text(&status)))
        }
    }
}

/// What asking again does not change; the rest may pass, as when the server restarts.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated
    )
}

/// The message of a status; without one, what its code means.
fn text(status: &Status) -> &str {
    if status.message().is_empty() { status.code().description() } else { status.message() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::endpoints::Endpoints;

    #[test]
    fn a_refusal_is_told_as_linkerds_command_tells_it() {
        let error = Refused(Status::invalid_argument("Invalid authority: foo")).to_string();
        assert_eq!(error, "Destination API error: Invalid authority: foo");
        let error = Refused(Status::internal("")).to_string();
        assert_eq!(error, "Destination API error: Internal error");
    }

    #[test]
    fn an_error_is_the_answer_until_a_stream_was_accepted_and_then_only_a_refusal() {
        let mut watched = Watched::<Endpoints>::new("web.prod.svc.cluster.local", "");
        assert!(matches!(watched.failed(Status::unavailable("busy")), End::Refused(_)));
        watched.accepted = true;
        assert!(matches!(watched.failed(Status::unavailable("busy")), End::Lost(_)));
        assert!(matches!(watched.failed(Status::not_found("Service web.prod not found")), End::Refused(_)));
    }

    #[test]
    fn a_request_is_that_of_linkerds_command() {
        let request = request("web.prod.svc.cluster.local:80", "token");
        assert_eq!(
            (request.scheme.as_str(), request.path.as_str(), request.context_token.as_str()),
            ("http:", "web.prod.svc.cluster.local:80", "token")
        );
    }
}
