//! The links of clusters while their Secrets appear, change and vanish. The Secrets are JSON, as the API server sends
//! them.

use k8s_openapi::ByteString;
use kube::runtime::watcher::Event;
use prometheus::Registry;
use serde_json::{Value, json};

use super::{super::remote::RemoteNamespace, *};
use crate::{
    cluster::testing::Feed,
    destination::{DestinationObserver, testing::settings},
    testing::LoggedLines,
};

const USABLE: &str = r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "a", "user": {}}]}"#;

const LABEL: &str = "/metadata/labels/multicluster.linkerd.io~1cluster-name";
const TRUST_DOMAIN: &str = "/metadata/annotations/multicluster.linkerd.io~1trust-domain";
const CLUSTER_DOMAIN: &str = "/metadata/annotations/multicluster.linkerd.io~1cluster-domain";
const KUBECONFIG: &str = "/data/kubeconfig";

/// The Secrets of the namespace `linkerd`, and the clusters that they link.
struct Secrets {
    feed: Feed,
    multicluster: Arc<Multicluster>,
}

// === impl Secrets ===

impl Secrets {
    fn new() -> Self {
        let settings = settings().into();
        let multicluster = Multicluster::new(DestinationObserver::new(), settings, &Registry::new()).unwrap();
        Self { feed: Feed::new([LinksObserver::new("linkerd") as Arc<dyn Observer>]), multicluster }
    }

    /// Writes a Secret, and returns the problems of Secrets.
    fn put(&mut self, secret: Value) -> Vec<String> {
        self.happens(Event::Apply(secret))
    }

    fn delete(&mut self, name: &str) -> Vec<String> {
        self.happens(Event::Delete(secret(name, "", "")))
    }

    fn happens(&mut self, event: Event<Value>) -> Vec<String> {
        self.feed.apply(Kind::Secret, event);
        link(&self.multicluster, &self.feed.cluster);
        let problems = self.multicluster.problems();
        // No list of another cluster completes in these tests.
        problems.into_iter().filter(|problem| problem.contains("Secret ")).collect()
    }

    /// The trust domain with which a cluster is linked; `None` if it is not linked.
    fn trust_domain(&self, cluster: &str) -> Option<String> {
        self.namespace(cluster).map(|namespace| namespace.settings().identity_trust_domain.clone())
    }

    fn namespace(&self, cluster: &str) -> Option<Arc<RemoteNamespace>> {
        self.multicluster.namespace(cluster, &"ns".into())
    }

    /// Whether requests can be sent to a cluster.
    fn has_client(&self, cluster: &str) -> bool {
        let clusters = self.multicluster.clusters();
        clusters.iter().any(|it| &*it.name == cluster && it.has_client())
    }
}

/// A Secret that links the cluster, with this trust domain and a usable kubeconfig.
fn secret(name: &str, cluster: &str, trust_domain: &str) -> Value {
    let annotations = json!({"multicluster.linkerd.io/trust-domain": trust_domain, "multicluster.linkerd.io/cluster-domain": "cluster.local"});
    let labels = json!({"multicluster.linkerd.io/cluster-name": cluster});
    json!({
        "metadata": {"name": name, "namespace": "linkerd", "labels": labels, "annotations": annotations},
        "type": "mirror.linkerd.io/remote-kubeconfig",
        "data": {"kubeconfig": ByteString(USABLE.into())},
    })
}

fn data(kubeconfig: &str) -> Value {
    json!(ByteString(kubeconfig.into()))
}

/// Replaces a part of a Secret, or removes it.
fn with(mut secret: Value, part: &str, value: Option<Value>) -> Value {
    let (parent, key) = part.rsplit_once('/').unwrap();
    let parent = secret.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    let key = key.replace("~1", "/");
    match value {
        Some(value) => parent.insert(key, value),
        None => parent.remove(&key),
    };
    secret
}

/// Contents that cannot be used, and what is said about each.
fn broken() -> Vec<(&'static str, Option<Value>, &'static str)> {
    let empty = || Some(json!(""));
    let missing_kubeconfig = "the key kubeconfig is missing: write the kubeconfig of the cluster there";
    vec![
        (KUBECONFIG, empty(), "the key kubeconfig is empty: write the kubeconfig of the cluster there"),
        (KUBECONFIG, None, missing_kubeconfig),
        ("/data", None, missing_kubeconfig),
        (KUBECONFIG, Some(json!("/w==")), "the key kubeconfig is no text: write the kubeconfig of the cluster there"),
        (
            KUBECONFIG,
            Some(data("{{{")),
            "the key kubeconfig cannot be used: it is not a kubeconfig; correct it, or link the cluster again",
        ),
        (
            KUBECONFIG,
            Some(data(&USABLE.replace("http://", ""))),
            "the key kubeconfig cannot be used: server of cluster \"a\" has no scheme: write https://HOST:PORT; correct it, or \
             link the cluster again",
        ),
        (
            TRUST_DOMAIN,
            empty(),
            "the annotation multicluster.linkerd.io/trust-domain is empty: write the trust domain of the cluster's mesh there",
        ),
        (
            TRUST_DOMAIN,
            None,
            "the annotation multicluster.linkerd.io/trust-domain is missing: write the trust domain of the cluster's mesh \
             there",
        ),
        (
            TRUST_DOMAIN,
            Some(json!("bad domain!")),
            "the annotation multicluster.linkerd.io/trust-domain is \"bad domain!\", which is no DNS name: write the trust \
             domain of the cluster's mesh there",
        ),
        (
            CLUSTER_DOMAIN,
            empty(),
            "the annotation multicluster.linkerd.io/cluster-domain is empty: write the domain of the cluster's Services there",
        ),
        (
            CLUSTER_DOMAIN,
            None,
            "the annotation multicluster.linkerd.io/cluster-domain is missing: write the domain of the cluster's Services \
             there",
        ),
        (
            LABEL,
            empty(),
            "the label multicluster.linkerd.io/cluster-name is empty: write the name of the cluster there",
        ),
    ]
}

#[tokio::test]
async fn content_that_cannot_be_used_keeps_the_last_usable_link_until_the_secret_is_deleted() {
    for (part, value, why) in broken() {
        let mut secrets = Secrets::new();
        let good = secret("credentials", "east", "east.trust");
        assert_eq!(secrets.put(good.clone()), [""; 0]);
        let state = secrets.namespace("east").unwrap();
        let log = LoggedLines::record();
        let problems = secrets.put(with(good.clone(), part, value.clone()));
        let expected =
            "cluster east: Secret linkerd/credentials has no usable link, so its last usable one stays in use: ";
        assert_eq!(problems, [format!("{expected}{why}")], "{part} {value:?}");
        assert_eq!(secrets.trust_domain("east").as_deref(), Some("east.trust"), "{part} {value:?}");
        assert!(secrets.has_client("east"), "{part} {value:?}");
        assert!(Arc::ptr_eq(&state, &secrets.namespace("east").unwrap()), "the endpoints stay");
        let lines = log.with("keeping the last credentials of a cluster");
        assert_eq!(lines.len(), 1, "{lines:?}");
        for named in ["cluster=\"east\"", "secret=linkerd/credentials"] {
            assert!(lines[0].contains(named), "{lines:?}");
        }
        assert!(log.with("not linked any more").is_empty());
        // It is still the same Secret, whatever is wrong with it next.
        assert_eq!(secrets.put(with(good.clone(), KUBECONFIG, Some(json!("")))).len(), 1);
        assert!(secrets.has_client("east"));
        assert_eq!(secrets.put(secret("credentials", "east", "other.trust")), [""; 0]);
        assert_eq!(secrets.trust_domain("east").as_deref(), Some("other.trust"));
        secrets.put(with(good, part, value));
        assert_eq!(secrets.delete("credentials"), [""; 0]);
        assert!(!secrets.multicluster.has("east"));
    }
}

/// Otherwise a replica that starts would refuse the requests that the other replicas serve, and their clients would not
/// retry.
#[tokio::test]
async fn a_cluster_whose_secret_was_never_usable_is_not_known_yet() {
    for (part, value, why) in broken() {
        let mut secrets = Secrets::new();
        let problems = secrets.put(with(secret("credentials", "east", "east.trust"), part, value.clone()));
        let is_named = part != LABEL;
        let cluster = if is_named { "cluster east: " } else { "" };
        assert_eq!(problems, [format!("{cluster}Secret linkerd/credentials has no usable link: {why}")]);
        assert_eq!(
            (secrets.multicluster.has("east"), secrets.has_client("east")),
            (is_named, false),
            "{part} {value:?}"
        );
        assert_eq!(secrets.put(secret("credentials", "east", "east.trust")), [""; 0]);
        assert!(secrets.has_client("east"));
        assert_eq!(secrets.trust_domain("east").as_deref(), Some("east.trust"));
    }
}

#[tokio::test]
async fn a_secret_without_the_label_links_no_cluster() {
    let mut secrets = Secrets::new();
    secrets.put(secret("credentials", "east", "east.trust"));
    let problems = secrets.put(with(secret("credentials", "east", "east.trust"), LABEL, None));
    let expected = "Secret linkerd/credentials links no cluster: the label multicluster.linkerd.io/cluster-name is missing: \
                    write the name of the cluster there, or delete the Secret";
    assert_eq!(problems, [expected]);
    assert!(!secrets.multicluster.has("east"));
    // Nothing of it is kept.
    secrets.put(with(secret("credentials", "east", "east.trust"), KUBECONFIG, None));
    assert!(secrets.multicluster.has("east") && !secrets.has_client("east"));
}

#[tokio::test]
async fn a_secret_that_names_another_cluster_links_that_one() {
    let mut secrets = Secrets::new();
    secrets.put(secret("credentials", "east", "east.trust"));
    assert_eq!(secrets.put(secret("credentials", "west", "west.trust")), [""; 0]);
    assert!(!secrets.multicluster.has("east") && secrets.has_client("west"));
    let problems = secrets.put(with(secret("credentials", "north", "north.trust"), KUBECONFIG, None));
    let why = "the key kubeconfig is missing: write the kubeconfig of the cluster there";
    let of = "Secret linkerd/credentials has no usable link";
    let expected = [
        format!("cluster north: {of}: {why}"),
        format!("cluster west: {of}, so its last usable one stays in use: {why}"),
    ];
    assert_eq!(problems, expected);
    assert!(secrets.has_client("west") && !secrets.has_client("north"));
}

#[tokio::test]
async fn of_several_secrets_for_a_cluster_the_first_usable_one_by_name_is_used() {
    for (part, value, why) in broken() {
        if part == LABEL {
            continue;
        }
        let mut secrets = Secrets::new();
        // As at a start: the first one by name was never usable.
        secrets.put(with(secret("a", "east", "a.trust"), part, value.clone()));
        let expected =
            format!("cluster east: Secret linkerd/a has no usable link, so that of Secret linkerd/b is used: {why}");
        assert_eq!(secrets.put(secret("b", "east", "b.trust")), [expected.as_str()]);
        assert!(secrets.has_client("east"));
        assert_eq!(secrets.trust_domain("east").as_deref(), Some("b.trust"), "{part} {value:?}");
        let both = "cluster east: Secret linkerd/b is not used, because Secret linkerd/a links the same cluster: delete one \
                    of them";
        assert_eq!(secrets.put(secret("a", "east", "a.trust")), [both]);
        assert_eq!(secrets.trust_domain("east").as_deref(), Some("a.trust"));
        // The content that can be used now precedes the one that could be used before.
        assert_eq!(secrets.put(with(secret("a", "east", "a.trust"), part, value.clone())), [expected]);
        assert_eq!(secrets.trust_domain("east").as_deref(), Some("b.trust"));
        secrets.delete("a");
        assert_eq!(secrets.trust_domain("east").as_deref(), Some("b.trust"));
    }
}

/// A Secret that was never usable does not keep what another one has linked.
#[tokio::test]
async fn the_deletion_of_the_only_usable_secret_ends_its_link() {
    let mut secrets = Secrets::new();
    secrets.put(secret("a", "east", "a.trust"));
    secrets.put(with(secret("b", "east", "b.trust"), KUBECONFIG, None));
    let state = secrets.namespace("east").unwrap();
    let problems = secrets.delete("a");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("cluster east: Secret linkerd/b has no usable link: "), "{problems:?}");
    assert!(secrets.multicluster.has("east") && !secrets.has_client("east"));
    assert!(!Arc::ptr_eq(&state, &secrets.namespace("east").unwrap()), "the endpoints of the old link do not stay");
}

#[tokio::test]
async fn the_number_of_named_secrets_is_bounded() {
    for (count, last) in [(6, "and 1 more problem"), (7, "and 2 more problems")] {
        let mut secrets = Secrets::new();
        for number in 0..count {
            secrets.put(with(secret(&format!("s-{number}"), "east", "trust"), KUBECONFIG, None));
        }
        let problems = secrets.multicluster.problems();
        assert_eq!((problems.len(), problems.last().unwrap()), (6, &format!("cluster east: {last}")));
        for number in 0..count {
            secrets.put(with(secret(&format!("s-{number}"), "", "trust"), LABEL, None));
        }
        let problems = secrets.multicluster.problems();
        assert_eq!((problems.len(), problems.last().map(String::as_str)), (6, Some(last)));
    }
}

/// Other Secrets of the namespace have other types, and are no links.
#[tokio::test]
async fn a_secret_of_another_type_is_not_a_link() {
    let mut secrets = Secrets::new();
    secrets.put(secret("credentials", "east", "east.trust"));
    assert_eq!(secrets.put(with(secret("credentials", "east", "east.trust"), "/type", Some(json!("Opaque")))), [""; 0]);
    assert!(!secrets.multicluster.has("east"));
}
