//! The requests of the soak: `Get` and `GetProfile`, with one type for the answers of both.
//!
//! * In: all objects, the settings of the server; or a connection to the server. Out: the expected and the received
//!   [`Reply`], and how they differ.
//! * Always: the expected reply is the oracle's.

use anyhow::{Context, Result};
use e2e::{
    answers::{difference, first_answer, profile_difference, profile_refusal, refusal},
    discovery::Discovery,
    oracle::{
        Answer, ApiState, ProfileAnswer, Request, Settings, answer, answer_profile, answer_profile_while_open,
        answer_while_open, is_for_pod_of_hostname,
    },
};
use tonic::Status;

pub(crate) use e2e::query::Method;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) request: Request,
}

/// The state of a client after the last message, or its refusal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Get(Answer),
    GetProfile(ProfileAnswer),
}

// === impl Call ===

impl Call {
    /// The reply to a new stream.
    pub(crate) fn fresh(&self, state: &ApiState, settings: &Settings) -> Reply {
        match self.method {
            Method::Get => Reply::Get(answer(state, settings, &self.request)),
            Method::GetProfile => Reply::GetProfile(answer_profile(state, settings, &self.request)),
        }
    }

    /// The reply of a stream that is open. `Refused` means that it ended.
    pub(crate) fn while_open(&self, state: &ApiState, settings: &Settings) -> Reply {
        match self.method {
            Method::Get => Reply::Get(answer_while_open(state, settings, &self.request)),
            Method::GetProfile => Reply::GetProfile(answer_profile_while_open(state, settings, &self.request)),
        }
    }

    /// What decides whether an open stream must end: a stream ends when this changes.
    pub(crate) fn kind_while_open(&self, state: &ApiState, settings: &Settings) -> String {
        let kind = self.while_open(state, settings).kind();
        let of_pod = self.method == Method::GetProfile && is_for_pod_of_hostname(state, settings, &self.request);
        if of_pod { format!("{kind} of a Pod") } else { kind }
    }

    pub(crate) fn refused(&self, status: &Status) -> Reply {
        match self.method {
            Method::Get => Reply::Get(refusal(status)),
            Method::GetProfile => Reply::GetProfile(profile_refusal(status)),
        }
    }

    /// Opens a stream and returns its reply.
    ///
    /// # Errors
    /// Fails when the stream ends without a message.
    pub(crate) async fn first_reply(&self, connection: &Discovery) -> Result<Reply> {
        match self.method {
            Method::Get => Ok(Reply::Get(first_answer(connection, &self.request).await?)),
            Method::GetProfile => match connection.get_profile(&self.request.path, &self.request.token).await {
                Err(status) => Ok(self.refused(&status)),
                Ok(mut profiles) => {
                    let first = profiles.next().await?.context("the stream ended before its first message")?;
                    Ok(Reply::GetProfile(ProfileAnswer::Profile(Box::new(first))))
                }
            },
        }
    }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Get(Answer::Refused(..)) | Self::GetProfile(ProfileAnswer::Refused(..)))
    }

    /// A profile of an endpoint is of another kind when it is of another endpoint.
    fn kind(&self) -> String {
        match self {
            Self::Get(Answer::Endpoints(_)) => String::new(),
            Self::Get(Answer::Refused(code, text)) | Self::GetProfile(ProfileAnswer::Refused(code, text)) => {
                format!("{code:?}: {text}")
            }
            Self::GetProfile(ProfileAnswer::Profile(profile)) => {
                let endpoint = profile.endpoint.as_ref().map(|endpoint| &endpoint.addr);
                format!("{endpoint:?}")
            }
        }
    }
}

/// Describes how a reply differs from the expected one.
pub(crate) fn reply_difference(expected: &Reply, seen: Option<&Reply>) -> String {
    match (expected, seen) {
        (Reply::Get(expected), Some(Reply::Get(seen))) => difference(expected, Some(seen)),
        (Reply::GetProfile(expected), Some(Reply::GetProfile(seen))) => profile_difference(expected, Some(seen)),
        (expected, seen) => format!("expected {expected:?}, saw {seen:?}"),
    }
}

#[cfg(test)]
mod tests {
    use linkerd2_proxy_api::destination::DestinationProfile;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_changed_profile_is_of_the_same_kind_unless_its_endpoint_is_another_one() {
        let profile = |name: &str, port: Option<u32>| {
            let endpoint = port.map(|port| linkerd2_proxy_api::destination::WeightedAddr {
                addr: Some(linkerd2_proxy_api::net::TcpAddress { ip: None, port }),
                ..Default::default()
            });
            let profile =
                DestinationProfile { fully_qualified_name: name.to_owned(), endpoint, ..DestinationProfile::default() };
            Reply::GetProfile(ProfileAnswer::Profile(Box::new(profile))).kind()
        };
        assert_eq!(profile("a", None), profile("b", None));
        assert_eq!(profile("a", Some(1)), profile("b", Some(1)));
        assert_ne!(profile("a", Some(1)), profile("a", Some(2)));
        assert_ne!(profile("a", None), profile("a", Some(2)));
        let refused = Reply::GetProfile(ProfileAnswer::Refused(Code::Unknown, "gone".to_owned()));
        assert_ne!(profile("a", None), refused.kind());
    }
}
