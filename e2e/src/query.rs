//! Requests to a server of the Destination API, and what a client receives.
//!
//! * In: a request of `Get` or `GetProfile`, a connection. Out: a stream, and its answer in the form of the oracle.
//! * Always: a server that sends no message within `SILENCE` has no answer. Linkerd's server sends its headers with
//!   the first message, so that a stream without messages is not even open.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Error;
use tokio::time::{error::Elapsed, timeout};
use tonic::Status;

use crate::{
    answers::refusal,
    discovery::{Discovery, Endpoints},
    oracle::{Answer, ApiState, ProfileAnswer, Request},
    profile::Profiles,
    world::{World, cluster_ip_requests},
};

/// A server without a message for this time has none.
const SILENCE: Duration = Duration::from_millis(1_500);
/// A stream without a further message for this time has sent its whole answer.
pub const QUIET: Duration = Duration::from_millis(200);

/// One of the two methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    Get,
    GetProfile,
}

/// A request to one of the two methods.
#[derive(Clone, Debug)]
pub enum Query {
    Get(Request),
    Profile(Request),
}

/// What a client received after a request; `None` if it received no message.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    Endpoints(Option<Answer>),
    Profile(Option<ProfileAnswer>),
}

/// An open stream of one of the two methods.
pub enum Stream {
    Endpoints(Box<Endpoints>),
    Profile(Box<Profiles>),
}

/// Returns the requests about a cluster, without profiles of hostnames whose endpoints are not Pods (row 20).
pub fn queries(world: &World, state: &ApiState) -> Vec<Query> {
    let endpoints = state.slices.values().flat_map(|slice| &slice.endpoints);
    let others = endpoints.filter(|it| it.target_ref.as_ref().and_then(|to| to.kind.as_deref()) != Some("Pod"));
    let hostnames: BTreeSet<&str> = others.filter_map(|endpoint| endpoint.hostname.as_deref()).collect();
    let is_requested = |request: &Request| !request.path.split('.').next().is_some_and(|host| hostnames.contains(host));
    let profiles = world.profile_requests().into_iter().filter(is_requested).chain(cluster_ip_requests(state));
    world.requests().into_iter().map(Query::Get).chain(profiles.map(Query::Profile)).collect()
}

// === impl Query ===

impl Query {
    pub fn request(&self) -> &Request {
        match self {
            Self::Get(request) | Self::Profile(request) => request,
        }
    }

    pub fn method(&self) -> &'static str {
        match self {
            Self::Get(_) => "Get",
            Self::Profile(_) => "GetProfile",
        }
    }

    /// Returns the answer of a server that sends nothing.
    pub fn silence(&self) -> Received {
        match self {
            Self::Get(_) => Received::Endpoints(None),
            Self::Profile(_) => Received::Profile(None),
        }
    }

    pub fn refused(&self, status: &Status) -> Received {
        match self {
            Self::Get(_) => Received::Endpoints(Some(refusal(status))),
            Self::Profile(_) => {
                Received::Profile(Some(ProfileAnswer::Refused(status.code(), status.message().to_owned())))
            }
        }
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// Returns the status with which the server refuses the request.
    pub async fn open(&self, server: &Discovery) -> Result<Stream, Status> {
        let Request { path, token } = self.request();
        Ok(match self {
            Self::Get(_) => Stream::Endpoints(Box::new(server.get(path, token).await?)),
            Self::Profile(_) => Stream::Profile(Box::new(server.get_profile(path, token).await?)),
        })
    }

    /// Opens a stream, and returns its whole answer.
    pub async fn send(&self, server: &Discovery, refused: impl Fn(&Status) -> Received) -> Received {
        let first = timeout(SILENCE, async {
            let mut stream = self.open(server).await?;
            stream.next().await?;
            Ok(stream)
        });
        let settled = match first.await {
            Err(_) => return self.silence(),
            Ok(Err(status)) => Err(status),
            Ok(Ok(mut stream)) => stream.settle().await.map(|_| stream.received()),
        };
        settled.unwrap_or_else(|status| refused(&status))
    }
}

// === impl Stream ===

impl Stream {
    /// Waits for the next message. Returns false at the end of the stream.
    ///
    /// # Errors
    /// Returns the status with which the stream ends.
    pub async fn next(&mut self) -> Result<bool, Status> {
        match self {
            Self::Endpoints(stream) => stream.next().await.map(|message| message.is_some()),
            Self::Profile(stream) => stream.next().await.map(|message| message.is_some()),
        }
        .map_err(status)
    }

    /// Reads until no message has arrived for [`QUIET`]. Returns false at the end of the stream.
    ///
    /// # Errors
    /// Returns the status with which the stream ends.
    pub async fn settle(&mut self) -> Result<bool, Status> {
        match self {
            Self::Endpoints(stream) => stream.settle(QUIET).await,
            Self::Profile(stream) => stream.settle(QUIET).await,
        }
        .map_err(status)
    }

    /// Returns the answer of all messages so far.
    pub fn received(&self) -> Received {
        match self {
            Self::Endpoints(stream) => Received::Endpoints(Some(Answer::Endpoints(stream.known.clone()))),
            Self::Profile(stream) => {
                let last = stream.messages.last().cloned();
                Received::Profile(last.map(|profile| ProfileAnswer::Profile(Box::new(profile))))
            }
        }
    }
}

/// Returns the status in an error of a stream. It is `DeadlineExceeded` if no message arrived in time.
fn status(error: Error) -> Status {
    if error.is::<Elapsed>() {
        return Status::deadline_exceeded("no message");
    }
    let text = format!("{error:#}");
    error.downcast::<Status>().unwrap_or_else(|_| Status::internal(text))
}
