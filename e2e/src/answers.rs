//! What a manager answers, put so that it can be compared with the [`oracle`](crate::oracle).
//!
//! * In: a connection and a request. Out: an [`Answer`]; and where two differ, in what.
//! * Always: the flags that [`settings`] gives a manager are those by which the oracle then answers.

use anyhow::{Context, Result};
use tonic::Status;

use crate::{
    discovery::Discovery,
    oracle::{Answer, Request, Settings},
};

/// The manager's flags that change answers, and the same for the oracle.
pub fn settings() -> (Settings, Vec<String>) {
    let settings = Settings {
        cluster_domain: "cluster.local".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        controller_namespace: "linkerd".to_owned(),
        default_opaque_ports: "25".to_owned(),
        transport_header: true,
        h2_upgrade: true,
        ipv6: true,
        zone_weights: true,
        http2: None,
    };
    let flags = [
        // Its slices would change the answers while they are compared.
        "--enable-external-workload=false",
        "--default-opaque-ports=25",
        "--enable-ipv6=true",
        "--ext-endpoint-zone-weights=true",
        "--meshed-http2-client-params=",
    ];
    (settings, flags.map(str::to_owned).to_vec())
}

pub fn refusal(status: &Status) -> Answer {
    Answer::Refused(status.code(), status.message().to_owned())
}

/// The whole answer to a new stream: its first message, or its refusal.
///
/// # Errors
/// When there is neither.
pub async fn first_answer(discovery: &Discovery, request: &Request) -> Result<Answer> {
    match discovery.get(&request.path, &request.token).await {
        Err(status) => Ok(refusal(&status)),
        Ok(mut stream) => {
            stream.next().await?.context("the stream ended before its first message")?;
            Ok(Answer::Endpoints(stream.known))
        }
    }
}

/// What is missing, what is too much, and what is told otherwise.
pub fn difference(expected: &Answer, seen: Option<&Answer>) -> String {
    let (wanted, known) = match (expected, seen) {
        (Answer::Endpoints(wanted), Some(Answer::Endpoints(known))) => (wanted, known),
        (expected, Some(seen)) => return format!("expected {expected:?}, saw {seen:?}"),
        (expected, None) => return format!("expected {expected:?}, saw no answer"),
    };
    let mut lines = Vec::new();
    for (address, endpoint) in wanted {
        match known.get(address) {
            Some(other) if other == endpoint => {}
            Some(other) => lines.push(format!("{address}: expected {endpoint:?}, saw {other:?}")),
            None => lines.push(format!("{address} is missing: {endpoint:?}")),
        }
    }
    let unexpected = known.iter().filter(|(address, _)| !wanted.contains_key(address));
    lines.extend(unexpected.map(|(address, endpoint)| format!("{address} is too much: {endpoint:?}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use linkerd2_proxy_api::destination::WeightedAddr;

    use super::*;

    fn endpoints(weights: &[(u8, u32)]) -> Answer {
        let endpoint = |(last, weight): &(u8, u32)| {
            let address = std::net::SocketAddr::from(([10, 0, 0, *last], 80));
            (address, WeightedAddr { weight: *weight, ..WeightedAddr::default() })
        };
        Answer::Endpoints(weights.iter().map(endpoint).collect())
    }

    #[test]
    fn an_endpoint_that_is_missing_or_old_or_too_much_is_named() {
        let wanted = endpoints(&[(1, 1), (2, 1)]);
        for (seen, named) in [
            (endpoints(&[(1, 1)]), "10.0.0.2:80 is missing"),
            (endpoints(&[(1, 1), (2, 7)]), "10.0.0.2:80: expected"),
            (endpoints(&[(1, 1), (2, 1), (3, 1)]), "10.0.0.3:80 is too much"),
        ] {
            assert!(difference(&wanted, Some(&seen)).starts_with(named));
        }
        assert_eq!(difference(&wanted, Some(&wanted)), "");
    }
}
