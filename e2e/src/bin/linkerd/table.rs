//! Sends the requests of the table of cases to Linkerd's server.
//!
//! * In: the path of Linkerd's controller. Out: how often the answer is the expected one, and each kind of difference with
//!   its number in the documentation, if it has one.
//! * Always: each set of flags has a server that is started when all objects exist. If a case names the row of a
//!   difference, that row describes what differs.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use e2e::{
    Rig,
    answers::profile_refusal,
    cases::{Case, Expected, cases_side_by_side, write},
    discovery::Discovery,
    query::{Query, Received},
    world::api,
};
use futures::{StreamExt, stream};
use serde_json::Value;

use crate::{
    answers::Answers,
    differences::{self, Difference},
    replica::{EitherReplica, ServerKind},
};

const AT_ONE_TIME: usize = 64;
/// Files that are left out. The first two have ServiceProfiles that Linkerd's client does not decode, and while one of them
/// exists, the server is not ready. Linkerd's server cannot answer for hostnames whose endpoints are not Pods.
const LEFT_OUT: [&str; 3] = ["profile/matches", "profile/routes", "profile/instances"];

pub(crate) async fn compare(controller: &Path) -> Result<Answers> {
    let cases = cases_side_by_side()?;
    let is_read = |case: &Case| {
        let is_in_other_file = !LEFT_OUT.iter().any(|file| case.name.starts_with(file));
        is_in_other_file && case.objects.iter().all(|(_, object)| is_read_by_linkerd(object))
    };
    let is_asked = |case: &Case| case.in_process_only.is_none() && is_read(case);
    let cases: Vec<Case> = cases.into_iter().filter(is_asked).collect();
    let Rig { control_plane, client } = Rig::linkerd().start().await?;
    write(&client, &cases).await?;
    let state = api::list(&client).await?;
    let mut by_flags: BTreeMap<&[String], Vec<&Case>> = BTreeMap::new();
    for case in &cases {
        by_flags.entry(&case.flags).or_default().push(case);
    }
    let mut answers = Answers::default();
    for (flags, cases) in by_flags {
        eprintln!("{} cases with {flags:?}", cases.len());
        let server = EitherReplica::start(ServerKind::Theirs, controller, &control_plane, flags).await?;
        let discovery = server.discovery().await?;
        answers.states += 1;
        let received = stream::iter(&cases).map(|case| received(&discovery, case)).buffered(AT_ONE_TIME);
        for (case, theirs) in cases.iter().zip(received.collect::<Vec<_>>().await) {
            let ours = match &case.expected {
                Expected::Get(answer) => Received::Endpoints(Some(answer.clone())),
                Expected::Profile(answer) => Received::Profile(Some(answer.clone())),
            };
            let found = differences::of(&state, &case.request, &ours, &theirs);
            let with_row = |(found, example): (Difference, _)| {
                (Difference { number: case.linkerd.or(found.number), ..found }, example)
            };
            let found = found.into_iter().map(with_row).collect();
            answers.count(found, || case.name.clone());
        }
        server.print_panic("the table");
    }
    Ok(answers)
}

/// Returns false for a list of opaque ports of a ServiceProfile (row 12), and for a port of a slice without a number (row
/// 10).
fn is_read_by_linkerd(object: &Value) -> bool {
    let mut ports = object.get("ports").and_then(Value::as_array).into_iter().flatten();
    let has_number = |port: &Value| port.get("port").is_some_and(Value::is_number);
    !object.pointer("/spec/opaquePorts").is_some_and(Value::is_array) && ports.all(has_number)
}

async fn received(server: &Discovery, case: &Case) -> Received {
    match &case.expected {
        Expected::Get(_) => {
            let query = Query::Get(case.request.clone());
            query.send(server, |status| query.refused(status)).await
        }
        Expected::Profile(_) => {
            let query = Query::Profile(case.request.clone());
            query.send(server, |status| Received::Profile(Some(profile_refusal(status)))).await
        }
    }
}
