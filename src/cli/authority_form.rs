//! Explains how to write an authority that a server refused.
//!
//! In: the authority, the refusal. Out: the form that the server accepts, with its cluster domain if it says that.
//! Always holds: it only helps people, so it has a deadline, and its failure does not fail the command.

use tokio::time::timeout;
use tonic::{Code, Status};

use super::streams::FIRST_ANSWER;
use crate::destination_client::{DestinationClient, destination_request, message_of};

/// The beginnings of the refusals of `Get` and `GetProfile` that are about the text of the authority.
const ABOUT_TEXT: [&str; 3] = ["Invalid authority", "invalid authority", "invalid service"];
/// The text before the cluster domain in the refusal of a profile. Linkerd's server has the same text.
const BEFORE_DOMAIN: &str = "does not match cluster domain ";

/// Returns how to write the authority; `None` if the server refused it for another reason.
pub(super) async fn hint(destination: &DestinationClient, authority: &str, refused: &Status) -> Option<String> {
    let message = message_of(refused);
    if refused.code() != Code::InvalidArgument || !ABOUT_TEXT.iter().any(|begin| message.starts_with(begin)) {
        return None;
    }
    if cluster_domain(message).is_some() {
        return Some(form(authority, Some(message)));
    }
    // Only the refusal of a profile names the cluster domain.
    let of_profile = async {
        match destination.get_profile(destination_request(authority, "")).await {
            Ok(mut messages) => messages.message().await.err(),
            Err(status) => Some(status),
        }
    };
    let of_profile = timeout(FIRST_ANSWER, of_profile).await.ok().flatten();
    Some(form(authority, of_profile.as_ref().map(message_of)))
}

/// Returns the form, given the refusal of the profile.
fn form(authority: &str, of_profile: Option<&str>) -> String {
    match of_profile.and_then(cluster_domain) {
        Some(domain) if authority.contains(".svc.") => {
            format!("write NAME.NAMESPACE.svc.{domain}:PORT: the cluster domain of the server is {domain}")
        }
        Some(domain) => format!("write NAME.NAMESPACE.svc.{domain}:PORT"),
        // Both requests refuse these in the same words.
        None if of_profile.is_some_and(|refusal| refusal.starts_with("Invalid authority: ")) => {
            "a Service of the type ExternalName has no endpoints".to_owned()
        }
        None => "write NAME.NAMESPACE.svc.CLUSTER-DOMAIN:PORT, such as web.prod.svc.cluster.local:80".to_owned(),
    }
}

fn cluster_domain(refusal: &str) -> Option<&str> {
    let (_, rest) = refusal.split_once(BEFORE_DOMAIN)?;
    rest.split('"').next().filter(|domain| !domain.is_empty())
}

/// Removes repeated authorities, and keeps the order.
pub(super) fn without_repetitions(authorities: Vec<String>) -> Vec<String> {
    let mut once = Vec::with_capacity(authorities.len());
    for authority in authorities {
        if !once.contains(&authority) {
            once.push(authority);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The refusals are those of Linkerd's server.
    #[test]
    fn a_refused_authority_is_answered_with_the_form_and_with_the_domain_of_the_server() {
        let domain = |host: &str| {
            format!("invalid service \"{host}\": \"name {host} does not match cluster domain cluster.example\"")
        };
        for (authority, of_profile, expected) in [
            ("legacy.mixed", Some(domain("legacy.mixed")), "write NAME.NAMESPACE.svc.cluster.example:PORT"),
            (
                "legacy.mixed.svc.cluster.local:80",
                Some(domain("legacy.mixed.svc.cluster.local")),
                "write NAME.NAMESPACE.svc.cluster.example:PORT: the cluster domain of the server is cluster.example",
            ),
            (
                "web.prod.svc.cluster.local:http",
                Some("invalid authority: \"web.prod.svc.cluster.local:http\": \"invalid port http\"".to_owned()),
                "write NAME.NAMESPACE.svc.CLUSTER-DOMAIN:PORT, such as web.prod.svc.cluster.local:80",
            ),
            (
                "away.prod.svc.cluster.local:80",
                Some("Invalid authority: away.prod.svc.cluster.local:80".to_owned()),
                "a Service of the type ExternalName has no endpoints",
            ),
            ("a", None, "write NAME.NAMESPACE.svc.CLUSTER-DOMAIN:PORT, such as web.prod.svc.cluster.local:80"),
        ] {
            assert_eq!(form(authority, of_profile.as_deref()), expected, "{authority}");
        }
    }

    #[test]
    fn a_repeated_authority_is_requested_once() {
        let authorities = ["b", "a", "b"].map(str::to_owned).to_vec();
        assert_eq!(without_repetitions(authorities), ["b", "a"]);
    }
}
