//! The table of cases over the wire: all objects on one API server, and a manager for each set of flags.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use e2e::{
    Job, ManagerOptions, Rig,
    cases::{Case, cases_side_by_side, write},
    discovery::Discovery,
};
use futures::{StreamExt, TryStreamExt, stream};

/// The number of concurrent requests.
const REQUESTS: usize = 64;
/// The number of requests on a connection. The server closes one with about a thousand streams that are reset right after
/// their first message, as the streams of this test are.
const REQUESTS_OF_A_CONNECTION: usize = 250;

/// A manager that is ready has read all objects, so the first answer to each request is final.
#[tokio::test]
async fn the_server_gives_the_expected_answer_to_every_case_over_the_wire() -> Result<()> {
    let cases = cases_side_by_side()?;
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.in_process_only.is_none()).collect();
    let rig = Rig::linkerd().start().await?;
    write(&rig.client, &cases).await?;

    let mut by_flags: BTreeMap<&[String], Vec<&Case>> = BTreeMap::new();
    for case in &cases {
        by_flags.entry(&case.flags).or_default().push(case);
    }
    let mut failed = Vec::new();
    for (flags, cases) in by_flags {
        let manager = ManagerOptions::only(Job::Destination).args(flags.iter().cloned()).ready(&rig).await?;
        for cases in cases.chunks(REQUESTS_OF_A_CONNECTION) {
            let discovery = manager.discovery().await?;
            let checks = cases.iter().map(|case| check(&discovery, case));
            let differences: Vec<Option<String>> = stream::iter(checks).buffered(REQUESTS).try_collect().await?;
            failed.extend(differences.into_iter().flatten());
        }
    }
    ensure!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
    Ok(())
}

/// Describes how the answer differs; `None` if it does not.
async fn check(discovery: &Discovery, case: &Case) -> Result<Option<String>> {
    let difference = case.expected.difference(&case.answer_of(discovery).await?);
    let request = &case.request;
    Ok(difference.map(|difference| format!("{}\n  {} {:?}\n  {difference}", case.name, request.path, request.token)))
}
