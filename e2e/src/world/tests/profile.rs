//! A long random walk covers all kinds of profiles.

use linkerd2_proxy_api::{
    destination::DestinationProfile,
    meta::{Resource, metadata},
    net::ip_address::Ip,
};

use super::*;
use crate::oracle::{ProfileAnswer, answer_profile, answer_profile_while_open};

#[test]
fn a_long_walk_covers_every_kind_of_profile_and_most_are_not_refused() {
    let mut covered = BTreeSet::new();
    let (mut profiles, mut requested) = (0, 0);
    for seed in 0..4 {
        let mut world = World::new(seed).unwrap();
        for step in 0..1500 {
            world.mutate().unwrap();
            if step % 50 != 0 {
                continue;
            }
            for request in world.profile_requests() {
                let fresh = answer_profile(world.objects(), &settings(true), &request);
                if answer_profile_while_open(world.objects(), &settings(true), &request) != fresh {
                    covered.insert("an open stream outlives its Service".to_owned());
                }
                requested += 1;
                profiles += usize::from(matches!(fresh, ProfileAnswer::Profile(_)));
                covered.extend(traits(fresh));
            }
        }
    }
    for expected in [
        "an open stream outlives its Service",
        "refused InvalidArgument invalid authority",
        "refused InvalidArgument invalid service",
        "refused InvalidArgument Invalid authority",
        "refused Unknown service not found",
        "refused Unknown pod not found",
        "refused NotFound",
        "refused FailedPrecondition cluster IP",
        "refused FailedPrecondition pod network IP",
        "refused FailedPrecondition host network endpoint",
        "refused FailedPrecondition conflicting ip",
        "an empty profile",
        "a service without a profile",
        "a profile of world",
        "a profile of elsewhere",
        "a profile of default",
        "routes",
        "no routes",
        "a timeout",
        "overrides",
        "a custom budget",
        "an opaque service",
        "a service that is not opaque",
        "an address without a name",
        "an opaque address without a name",
        "a pod",
        "a pod with h2",
        "a pod with opaque",
        "a pod without a hint",
        "a pod over IPv6",
        "a workload",
        "a workload with h2",
        "a workload with opaque",
        "a workload over IPv6",
    ] {
        assert!(covered.contains(expected), "{expected} is not among {covered:?}");
    }
    assert!(profiles * 4 > requested * 3, "only {profiles} of {requested} requests are answered with a profile");
}

fn traits(answer: ProfileAnswer) -> Vec<String> {
    match answer {
        ProfileAnswer::Refused(code, text) => vec![refusal(&format!("{code:?}"), &text)],
        ProfileAnswer::Profile(profile) if *profile == DestinationProfile::default() => {
            vec!["an empty profile".to_owned()]
        }
        ProfileAnswer::Profile(profile) => match &profile.endpoint {
            None => of_service(&profile),
            Some(_) => of_endpoint(*profile),
        },
    }
}

fn refusal(code: &str, text: &str) -> String {
    let kinds = [
        "invalid authority",
        "invalid service",
        "Invalid authority",
        "cluster IP",
        "pod network IP",
        "host network endpoint",
        "conflicting ip",
    ];
    let kind = kinds.into_iter().find(|kind| text.contains(kind));
    let kind = kind.or_else(|| {
        text.ends_with("\" not found")
            .then(|| if text.starts_with("pod") { "pod not found" } else { "service not found" })
    });
    match kind {
        Some(kind) => format!("refused {code} {kind}"),
        None => format!("refused {code}"),
    }
}

fn of_service(profile: &DestinationProfile) -> Vec<String> {
    let reference = profile.profile_ref.clone().unwrap().kind.unwrap();
    let metadata::Kind::Resource(Resource { namespace, .. }) = reference else { panic!("{reference:?}") };
    let mut traits = Vec::new();
    traits.push(match namespace.as_str() {
        "" => "a service without a profile".to_owned(),
        namespace => format!("a profile of {namespace}"),
    });
    traits.push(if profile.routes.is_empty() { "no routes" } else { "routes" }.to_owned());
    if profile.routes.iter().any(|route| route.timeout.is_some()) {
        traits.push("a timeout".to_owned());
    }
    if !profile.dst_overrides.is_empty() {
        traits.push("overrides".to_owned());
    }
    if profile.retry_budget.unwrap().min_retries_per_second == 1000 {
        traits.push("a custom budget".to_owned());
    }
    traits.push(if profile.opaque_protocol { "an opaque service" } else { "a service that is not opaque" }.to_owned());
    traits
}

fn of_endpoint(profile: DestinationProfile) -> Vec<String> {
    let endpoint = profile.endpoint.unwrap();
    let target =
        match (endpoint.metric_labels.contains_key("pod"), endpoint.metric_labels.contains_key("external_workload")) {
            (true, _) => "a pod",
            (_, true) => "a workload",
            _ if profile.opaque_protocol => return vec!["an opaque address without a name".to_owned()],
            _ => return vec!["an address without a name".to_owned()],
        };
    let hint = match endpoint.protocol_hint.map(|hint| hint.protocol) {
        Some(Some(Protocol::H2(_))) => "with h2",
        Some(Some(Protocol::Opaque(_))) => "with opaque",
        Some(None) => "with an empty hint",
        None => "without a hint",
    };
    let mut traits = vec![target.to_owned(), format!("{target} {hint}")];
    if matches!(endpoint.addr.unwrap().ip.unwrap().ip, Some(Ip::Ipv6(_))) {
        traits.push(format!("{target} over IPv6"));
    }
    traits
}
