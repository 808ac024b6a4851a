//! Streams of the Destination API for a terminal: their first answer, or all of their changes.
//!
//! In: a connection, authorities, a context token, and the kind of stream ([`AuthorityState`]). Out: the state of each
//! authority, or its changes one by one. Always holds: a first answer has a deadline. A watched stream that ends is
//! opened again, unless the server refuses it. A refused authority ends no other one.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    time::Duration,
};

use anyhow::Result;
use futures::future::{pending, try_join_all};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use super::{authority_form, connect::Connector, terminal::note};
use crate::{
    client,
    destination_client::{AuthorityState, DestinationClient, DestinationError, destination_request, message_of},
    proto::destination::GetDestination,
};

/// The deadline of a first answer, the same as in `linkerd diagnostics endpoints`.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// The longest pause between the messages of a first answer. A set that is too large for one message, or that consists
/// of the sets of several clusters, is sent as several messages.
const SAME_ANSWER: Duration = Duration::from_millis(100);
/// The pause before a stream that ended is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// The first answer for one authority.
pub(super) enum FirstAnswer<T> {
    State(T),
    /// No message before the deadline: Linkerd's destination sends none for a Service without endpoints.
    Silence,
    Refused(DestinationError),
}

/// The watch of one authority.
struct AuthorityWatch<'a, T> {
    authority: &'a str,
    token: &'a str,
    state: T,
    /// Whether the server ever accepted a stream. Until then every error ends the watch.
    accepted: bool,
    /// The last error that was printed, so that a repeated error is printed once.
    printed_error: String,
}

/// The reason why a stream ended.
enum WatchEnd {
    /// The same request would be refused again.
    Refused(DestinationError),
    /// The first stream failed.
    Failed(DestinationError),
    Lost(String),
}

/// Returns the first answer for an authority.
pub(super) async fn first_answer<T: AuthorityState>(
    destination: &DestinationClient,
    authority: &str,
    token: &str,
) -> FirstAnswer<T> {
    match read_answer(destination, destination_request(authority, token)).await {
        Ok(Some(state)) => FirstAnswer::State(state),
        Ok(None) => FirstAnswer::Silence,
        Err(status) => FirstAnswer::Refused(refusal(destination, authority, status).await),
    }
}

/// Returns the error for people, with what to write instead of an authority that the server does not accept.
async fn refusal(destination: &DestinationClient, authority: &str, status: Status) -> DestinationError {
    let hint = authority_form::hint(destination, authority, &status).await;
    DestinationError::from(status).with_hint(hint)
}

/// Passes every change to `print`, without end.
///
/// # Errors
/// Fails if every authority is refused, if the first connection cannot be made, or if `print` fails.
pub(super) async fn watch<T: AuthorityState>(
    connector: &Connector,
    authorities: &[String],
    token: &str,
    print: impl FnMut(&str, &T::Difference) -> Result<()>,
) -> Result<Infallible> {
    let print = RefCell::new(print);
    let watched = authorities.iter().map(async |authority| {
        let announced = Cell::new(false);
        let mut print = |change: &T::Difference| {
            announced.set(true);
            (print.borrow_mut())(authority, change)
        };
        let mut watched = AuthorityWatch::<T>::new(authority, token);
        let silence = async {
            sleep(FIRST_ANSWER).await;
            if !announced.get() {
                note(format_args!("{authority}: received no message yet, waiting"));
            }
            pending().await
        };
        let refused = tokio::select! {
            refused = watched.run(connector, &mut print) => refused?,
            never = silence => never,
        };
        if authorities.len() > 1 {
            note(format_args!("{authority}: {refused}; not watched"));
        }
        Ok::<_, anyhow::Error>(refused)
    });
    match try_join_all(watched).await?.pop() {
        Some(refused) if authorities.len() == 1 => Err(refused.into()),
        Some(_) => anyhow::bail!("the server refused every authority"),
        None => anyhow::bail!("no authority to watch"),
    }
}

async fn read_answer<T: AuthorityState>(
    destination: &DestinationClient,
    request: GetDestination,
) -> Result<Option<T>, Status> {
    let deadline = Instant::now() + FIRST_ANSWER;
    let first = timeout_at(deadline, async {
        let mut messages = T::open(destination, request).await?;
        let first = messages.message().await?;
        Ok::<_, Status>((messages, first))
    });
    let Ok(first) = first.await else { return Ok(None) };
    let (mut messages, Some(first)) = first? else {
        return Err(Status::unavailable(
            "the stream ended before its first message; the server may be shutting down, try again",
        ));
    };
    let mut state = T::default();
    state.apply(first);
    while T::IN_PARTS
        && let Ok(Ok(Some(more))) = timeout_at(deadline.min(Instant::now() + SAME_ANSWER), messages.message()).await
    {
        state.apply(more);
    }
    Ok(Some(state))
}

// === impl AuthorityWatch ===

impl<'a, T: AuthorityState> AuthorityWatch<'a, T> {
    fn new(authority: &'a str, token: &'a str) -> Self {
        Self { authority, token, state: T::default(), accepted: false, printed_error: String::new() }
    }

    /// Watches until the server refuses the authority.
    async fn run(
        &mut self,
        connector: &Connector,
        print: &mut impl FnMut(&T::Difference) -> Result<()>,
    ) -> Result<DestinationError> {
        loop {
            let lost = match connector.destination().await {
                Ok(destination) => match self.read(&destination, print).await? {
                    WatchEnd::Refused(refused) => return Ok(refused),
                    WatchEnd::Failed(error) => return Err(error.into()),
                    WatchEnd::Lost(reason) => reason,
                },
                Err(error) if self.accepted => client::describe(&*error),
                Err(error) => return Err(error),
            };
            if lost != self.printed_error {
                note(format_args!("{}: {lost}; retrying", self.authority));
                self.printed_error = lost;
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads one stream to its end.
    async fn read(
        &mut self,
        destination: &DestinationClient,
        print: &mut impl FnMut(&T::Difference) -> Result<()>,
    ) -> Result<WatchEnd> {
        self.state.reopen();
        let mut messages = match T::open(destination, destination_request(self.authority, self.token)).await {
            Ok(messages) => messages,
            Err(status) => return Ok(self.failed(destination, status).await),
        };
        loop {
            match messages.message().await {
                Ok(Some(message)) => {
                    self.accepted = true;
                    self.printed_error.clear();
                    if let Some(change) = self.state.apply(message) {
                        print(&change)?;
                    }
                }
                Ok(None) => {
                    self.accepted = true;
                    return Ok(WatchEnd::Lost("the server ended the stream".to_owned()));
                }
                Err(status) => return Ok(self.failed(destination, status).await),
            }
        }
    }

    async fn failed(&self, destination: &DestinationClient, status: Status) -> WatchEnd {
        match self.ended(status) {
            Err(refused) => WatchEnd::Refused(refusal(destination, self.authority, refused).await),
            Ok(end) => end,
        }
    }

    /// Returns why the stream ended; `Err` if the server refuses the authority.
    fn ended(&self, status: Status) -> Result<WatchEnd, Status> {
        if is_refusal(status.code()) {
            return Err(status);
        }
        Ok(if !self.accepted {
            WatchEnd::Failed(DestinationError::from(status))
        } else {
            WatchEnd::Lost(format!("the stream failed: {}", message_of(&status)))
        })
    }
}

/// Returns whether the same request would be refused again. Other errors may pass, as when the server restarts.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination_client::endpoints::EndpointsState;

    #[test]
    fn a_refusal_is_printed_as_linkerds_command_prints_it() {
        let error = DestinationError::from(Status::invalid_argument("Invalid authority: foo")).to_string();
        assert_eq!(error, "Destination API error: Invalid authority: foo");
        let error = DestinationError::from(Status::internal("")).to_string();
        assert_eq!(error, "Destination API error: Internal error");
    }

    #[test]
    fn every_error_ends_the_watch_until_a_stream_is_accepted_and_then_only_a_refusal() {
        let mut watched = AuthorityWatch::<EndpointsState>::new("web.prod.svc.cluster.local", "");
        assert!(matches!(watched.ended(Status::unavailable("busy")), Ok(WatchEnd::Failed(_))));
        assert!(watched.ended(Status::not_found("Service web.prod not found")).is_err());
        watched.accepted = true;
        assert!(matches!(watched.ended(Status::unavailable("busy")), Ok(WatchEnd::Lost(_))));
        assert!(watched.ended(Status::not_found("Service web.prod not found")).is_err());
    }

    #[test]
    fn a_request_equals_that_of_linkerds_command() {
        let request = destination_request("web.prod.svc.cluster.local:80", "token");
        assert_eq!(
            (request.scheme.as_str(), request.path.as_str(), request.context_token.as_str()),
            ("http:", "web.prod.svc.cluster.local:80", "token")
        );
    }
}
