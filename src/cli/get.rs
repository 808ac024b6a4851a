//! `Get` streams for a reader at a terminal: what they say at once, or all that they ever say.
//!
//! * In: a connection, authorities, a context token. Out: the endpoints of each authority, or its changes one by one.
//! * Always: a first answer has a deadline. A watched stream that ends is asked for again, unless the server refuses it.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    time::Duration,
};

use anyhow::Result;
use futures::future::{join_all, pending, try_join_all};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use super::{
    connect::{Connector, Destination},
    endpoints::{Change, Endpoints},
};
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

/// What an authority was answered.
pub(super) enum Answer {
    Endpoints(Endpoints),
    /// Nothing was said in time, as Linkerd's destination does for a Service without endpoints.
    Silence,
    Refused(Refused),
}

/// One authority that is watched.
struct Watched<'a> {
    authority: &'a str,
    token: &'a str,
    endpoints: Endpoints,
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

/// Asks for all authorities at once.
pub(super) async fn ask(destination: &Destination, authorities: &[String], token: &str) -> Vec<Answer> {
    join_all(authorities.iter().map(
        async |authority| match first_answer(destination, request(authority, token)).await {
            Ok(Some(endpoints)) => Answer::Endpoints(endpoints),
            Ok(None) => Answer::Silence,
            Err(status) => Answer::Refused(Refused(status)),
        },
    ))
    .await
}

/// Hands every change to `print`, for ever.
///
/// # Errors
/// When a stream is refused, there is nothing to ask at the beginning, or `print` fails.
pub(super) async fn watch(
    connector: &Connector,
    authorities: &[String],
    token: &str,
    print: impl FnMut(&str, &Change) -> Result<()>,
) -> Result<Infallible> {
    let print = RefCell::new(print);
    let watched = authorities.iter().map(async |authority| {
        let told = Cell::new(false);
        let mut print = |change: &Change| {
            told.set(true);
            (print.borrow_mut())(authority, change)
        };
        let mut watched = Watched::new(authority, token);
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

async fn first_answer(destination: &Destination, request: GetDestination) -> Result<Option<Endpoints>, Status> {
    let deadline = Instant::now() + FIRST_ANSWER;
    let first = timeout_at(deadline, async {
        let mut updates = destination.get(request).await?;
        let first = updates.message().await?;
        Ok::<_, Status>((updates, first))
    });
    let Ok(first) = first.await else { return Ok(None) };
    let (mut updates, Some(first)) = first? else {
        return Err(Status::unavailable(
            "the stream ended before it said anything; the server may be going, ask again",
        ));
    };
    let mut endpoints = Endpoints::default();
    endpoints.apply(first);
    while let Ok(Ok(Some(more))) = timeout_at(deadline.min(Instant::now() + SAME_ANSWER), updates.message()).await {
        endpoints.apply(more);
    }
    Ok(Some(endpoints))
}

fn request(authority: &str, token: &str) -> GetDestination {
    // The scheme is not looked at; this is what Linkerd's command sends.
    GetDestination { scheme: "http:".to_owned(), path: authority.to_owned(), context_token: token.to_owned() }
}

// === impl Watched ===

impl<'a> Watched<'a> {
    fn new(authority: &'a str, token: &'a str) -> Self {
        Self { authority, token, endpoints: Endpoints::default(), accepted: false, complaint: String::new() }
    }

    async fn run(
        &mut self,
        connector: &Connector,
        print: &mut impl FnMut(&Change) -> Result<()>,
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
    async fn read(&mut self, destination: &Destination, print: &mut impl FnMut(&Change) -> Result<()>) -> Result<End> {
        self.endpoints.reopen();
        let mut updates = match destination.get(request(self.authority, self.token)).await {
            Ok(updates) => updates,
            Err(status) => return Ok(self.failed(status)),
        };
        loop {
            match updates.message().await {
                Ok(Some(update)) => {
                    self.accepted = true;
                    self.complaint.clear();
                    let change = self.endpoints.apply(update);
                    if !change.is_nothing() {
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

    #[test]
    fn a_refusal_is_told_as_linkerds_command_tells_it() {
        let error = Refused(Status::invalid_argument("Invalid authority: foo")).to_string();
        assert_eq!(error, "Destination API error: Invalid authority: foo");
        let error = Refused(Status::internal("")).to_string();
        assert_eq!(error, "Destination API error: Internal error");
    }

    #[test]
    fn an_error_is_the_answer_until_a_stream_was_accepted_and_then_only_a_refusal() {
        let mut watched = Watched::new("web.prod.svc.cluster.local", "");
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
