//! The Secrets of links, and the link of each cluster.
//!
//! In: all Secrets, whenever one of them has changed. Out: the link that each cluster has, and the problems of its
//! Secrets. Always holds: a Secret whose content cannot be used keeps its last usable link until it is deleted, or is
//! no link any more; a link that can be used now precedes one that is kept; among equals, the first Secret by name
//! decides.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use anyhow::anyhow;
use kube::Client;
use tracing::warn;

use crate::{
    api::NamespacedName,
    client,
    cluster::kinds::remote_kubeconfig::{Link, LinkContent, RemoteKubeconfig, unlabelled},
    text::{counted, truncated},
};

/// The number of problems of a cluster, and of Secrets without a cluster, that `/ready` names.
pub(super) const PROBLEMS: usize = 5;
/// The maximum number of bytes of a reason.
pub(super) const REASON_BYTES: usize = 1024;

/// Returns a client from the text of an untrusted kubeconfig.
pub(super) type Connect = fn(&str) -> anyhow::Result<Client>;

/// The Secrets of links.
#[derive(Default)]
pub(super) struct LinkSecrets(BTreeMap<NamespacedName, LinkSecret>);

/// A Secret of a link.
struct LinkSecret {
    content: LinkContent,
    /// The last link that could be used.
    usable: Option<Arc<UsableLink>>,
    /// Why the content cannot be used.
    problem: Option<String>,
}

/// A link, and a client of its cluster.
pub(super) struct UsableLink {
    pub(super) link: Link,
    pub(super) client: Client,
}

/// The link of one cluster, from all Secrets that name it.
#[derive(Default)]
pub(super) struct LinkOfCluster {
    /// `None` if no Secret could ever be used.
    pub(super) usable: Option<Arc<UsableLink>>,
    /// The problems of its Secrets.
    pub(super) problems: Vec<String>,
}

/// The link of a cluster that one Secret has, or the problem of the Secret.
struct Claim<'a> {
    secret: &'a NamespacedName,
    usable: Option<&'a Arc<UsableLink>>,
    problem: Option<&'a str>,
}

// === impl LinkSecrets ===

impl LinkSecrets {
    /// Replaces the Secrets by these ones.
    pub(super) fn update(&mut self, secrets: &[Arc<RemoteKubeconfig>], connect: Connect) {
        let mut before = std::mem::take(&mut self.0);
        for secret in secrets.iter().filter(|secret| secret.content != LinkContent::NoLink) {
            let known = before.remove(&secret.key);
            self.0.insert(secret.key.clone(), LinkSecret::next(known, secret, connect));
        }
    }

    /// Returns the clusters that the Secrets name.
    pub(super) fn clusters(&self) -> BTreeMap<Arc<str>, LinkOfCluster> {
        let mut claims: BTreeMap<Arc<str>, Vec<Claim<'_>>> = BTreeMap::new();
        for (key, secret) in &self.0 {
            for (cluster, claim) in secret.claims(key) {
                claims.entry(Arc::clone(cluster)).or_default().push(claim);
            }
        }
        claims.into_iter().map(|(cluster, claims)| (cluster, LinkOfCluster::of(&claims))).collect()
    }

    /// Returns what is wrong with the Secrets that name no cluster.
    pub(super) fn problems(&self) -> Vec<String> {
        let nameless = self.0.iter().filter(|(key, secret)| secret.claims(key).next().is_none());
        let problems = nameless.filter_map(|(key, secret)| {
            let how = if secret.content == LinkContent::Unlabelled { "links no cluster" } else { "has no usable link" };
            secret.problem.as_ref().map(|problem| format!("Secret {key} {how}: {problem}"))
        });
        first_few(problems.collect())
    }
}

// === impl LinkSecret ===

impl LinkSecret {
    fn next(before: Option<Self>, secret: &RemoteKubeconfig, connect: Connect) -> Self {
        let content = &secret.content;
        let last = match before {
            Some(before) if before.content == *content => return before,
            before => before.and_then(|before| before.usable),
        };
        let (usable, problem) = match content {
            LinkContent::NoLink => (None, None),
            LinkContent::Unlabelled => (None, Some(unlabelled())),
            LinkContent::Incomplete { why, .. } => (last, Some(truncated(why.as_ref().to_owned(), REASON_BYTES))),
            LinkContent::Complete(link) => match UsableLink::of(link, last.as_deref(), connect) {
                Ok(usable) => (Some(Arc::new(usable)), None),
                Err(problem) => (last, Some(problem)),
            },
        };
        if let Some(problem) = &problem {
            let cluster = usable.as_ref().map(|usable| &usable.link.cluster).or(content.cluster()).map(|it| &**it);
            let what = match content {
                LinkContent::Unlabelled => "a Secret links no cluster",
                _ => "keeping the last credentials of a cluster, if it had any",
            };
            warn!(cluster, secret = %secret.key, problem, "{what}");
        }
        Self { content: content.clone(), usable, problem }
    }

    /// Returns the clusters that the Secret names: the one of its link, and the one that its label names now, if it has
    /// become another one.
    fn claims<'a>(&'a self, secret: &'a NamespacedName) -> impl Iterator<Item = (&'a Arc<str>, Claim<'a>)> {
        let problem = self.problem.as_deref();
        let usable = self.usable.as_ref();
        let linked = usable.map(|usable| &usable.link.cluster);
        let named = self.content.cluster().filter(|cluster| linked != Some(cluster));
        let linked = linked.map(|cluster| (cluster, Claim { secret, usable, problem }));
        linked.into_iter().chain(named.map(move |cluster| (cluster, Claim { secret, usable: None, problem })))
    }
}

// === impl UsableLink ===

impl UsableLink {
    /// Keeps the client of the last link if the kubeconfig is the same.
    fn of(link: &Link, last: Option<&Self>, connect: Connect) -> Result<Self, String> {
        if let Some(last) = last.filter(|last| last.link.kubeconfig == link.kubeconfig) {
            return Ok(Self { link: link.clone(), client: last.client.clone() });
        }
        // Whatever a Secret says, this costs its cluster only.
        let client = catch_unwind(AssertUnwindSafe(|| connect(link.kubeconfig.reveal())));
        let client = client.unwrap_or_else(|_| Err(anyhow!("it causes a panic of this program, which is in its log")));
        match client {
            Ok(client) => Ok(Self { link: link.clone(), client }),
            Err(error) => {
                let why = truncated(client::describe(&*error), REASON_BYTES);
                Err(format!("the key kubeconfig cannot be used: {why}; correct it, or link the cluster again"))
            }
        }
    }
}

// === impl LinkOfCluster ===

impl LinkOfCluster {
    /// `claims` are sorted by the names of their Secrets.
    fn of(claims: &[Claim<'_>]) -> Self {
        let usable = claims.iter().filter(|claim| claim.usable.is_some());
        let used = usable.min_by_key(|claim| claim.problem.is_some());
        let problem = |claim: &Claim<'_>| {
            let secret = claim.secret;
            let instead = used.filter(|used| used.secret != secret).map(|used| used.secret);
            let Some(problem) = claim.problem else {
                let instead = instead?;
                let text = format!("is not used, because Secret {instead} links the same cluster: delete one of them");
                return Some(format!("Secret {secret} {text}"));
            };
            let consequence = match instead {
                Some(instead) => format!(", so that of Secret {instead} is used"),
                None if used.is_some() => ", so its last usable one stays in use".to_owned(),
                None => String::new(),
            };
            Some(format!("Secret {secret} has no usable link{consequence}: {problem}"))
        };
        let problems = claims.iter().filter_map(problem).collect();
        Self { usable: used.and_then(|claim| claim.usable.cloned()), problems }
    }
}

/// Returns the first problems, and the number of the others.
pub(super) fn first_few(mut problems: Vec<String>) -> Vec<String> {
    let more = problems.len().saturating_sub(PROBLEMS);
    problems.truncate(PROBLEMS);
    if more > 0 {
        problems.push(format!("and {}", counted(more, "more problem")));
    }
    problems
}
