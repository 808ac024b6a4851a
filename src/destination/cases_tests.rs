//! The server gives the expected answer to every case of the table, in process.

use e2e::cases::{Case, Expected, cases, trust_domain};
use kube::runtime::watcher::Event;

use super::{
    multicluster::observer::KINDS,
    testing::rig::{Client, Get, GetProfile, Method, Rig, kind, server_settings},
};
use crate::cluster::{kinds::remote_kubeconfig::TrustDomain, testing::Feed};

/// The answer to a new stream; `None` if it is neither a message nor a refusal.
fn answer<M: Method>(case: &Case, rig: &Rig) -> Option<M::Answer> {
    let mut client = Client::<M>::new(case.request.clone());
    let answer = client.settle(&rig.views);
    (!client.is_silent()).then_some(answer)
}

/// A server that knows the objects of a case.
fn rig(case: &Case) -> Rig {
    let settings = server_settings(&case.settings);
    let mut rig = if case.clusters.is_empty() { Rig::new(settings) } else { Rig::with_clusters(settings) };
    for (key, object) in &case.objects {
        rig.feed.apply(kind(key), Event::Apply(object.clone()));
    }
    let Some(multicluster) = &rig.views.clusters.linked else { return rig };
    multicluster.know();
    for (name, objects) in &case.clusters {
        let mut feed = Feed::default();
        // Nothing else of another cluster is watched.
        for (key, object) in objects.iter().filter(|(key, _)| KINDS.contains(&kind(key))) {
            feed.apply(kind(key), Event::Apply(object.clone()));
        }
        let trust_domain = TrustDomain::parse(&trust_domain(name)).unwrap();
        multicluster.link_feeds(name, &trust_domain, [("case-ns", &feed.cluster)]);
    }
    rig
}

#[tokio::test]
async fn the_server_gives_the_expected_answer_to_every_case() {
    let (cases, mut failed) = (cases().unwrap(), Vec::new());
    for case in &cases {
        let rig = rig(case);
        let seen = match case.expected {
            Expected::Get(_) => answer::<Get>(case, &rig).map(Expected::Get),
            Expected::Profile(_) => answer::<GetProfile>(case, &rig).map(Expected::Profile),
        };
        let difference = match seen {
            None => Some("there is no message".to_owned()),
            Some(seen) => case.expected.difference(&seen),
        };
        if let Some(difference) = difference {
            failed.push(format!("{}\n  {} {:?}\n  {difference}", case.name, case.request.path, case.request.token));
        }
    }
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
}
