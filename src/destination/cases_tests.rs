//! The server gives the expected answer to every case of the table, in process.

use e2e::cases::{Case, Expected, cases};
use kube::runtime::watcher::Event;

use super::testing::rig::{Client, Get, GetProfile, Method, Rig, kind, server_settings};

/// The answer to a new stream; `None` if it is neither a message nor a refusal.
fn answer<M: Method>(case: &Case, rig: &Rig) -> Option<M::Answer> {
    let mut client = Client::<M>::new(case.request.clone());
    let answer = client.settle(&rig.views);
    (!client.is_silent()).then_some(answer)
}

#[tokio::test]
async fn the_server_gives_the_expected_answer_to_every_case() {
    let (cases, mut failed) = (cases().unwrap(), Vec::new());
    for case in &cases {
        let mut rig = Rig::new(server_settings(&case.settings));
        for (key, object) in &case.objects {
            rig.feed.apply(kind(key), Event::Apply(object.clone()));
        }
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
