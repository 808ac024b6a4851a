//! Whether proxies outside of the cluster need a root that leaves the bundle.
//!
//! In: the ExternalWorkloads, the roots that stay. Out: those that may need another root, with the reason. Always holds: a
//! workload is left out only if it presented, at each of its addresses, a certificate for its identity that a root which stays
//! verifies; nothing is sent after it; the handshakes together have a deadline.

use std::{net::SocketAddr, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::ApiResource,
};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use crate::{
    api,
    cluster::{
        Problems, Projected,
        kinds::external_workload::{Address, ExternalWorkload},
    },
    trust::seen::MeshedWorkload,
    x509::{
        anchors::{AnchorBundle, RootCertificate},
        chain::LONGEST_SENT,
        handshake::presented,
        verify::{ALGORITHMS, TestedLeaf},
    },
};

/// An object of a tenant may have a megabyte.
const PAGE: u32 = 50;
/// The maximum number of addresses of one workload.
const MAX_ADDRESSES: usize = 16;
/// The maximum number of proxies that are asked at the same time.
const MAX_CONCURRENT: usize = 50;
const DEADLINE: Duration = Duration::from_secs(5);
/// The deadline for all handshakes together.
const ALL_DEADLINE: Duration = Duration::from_secs(20);

/// Returns the first `limit` open workloads that may need a root which is not among these, and why.
pub(super) async fn needing_others(
    client: &Client,
    resource: &ApiResource,
    staying: &AnchorBundle,
    is_open: impl Fn(&MeshedWorkload) -> bool,
    limit: usize,
) -> kube::Result<Vec<(MeshedWorkload, String)>> {
    let objects = Api::<DynamicObject>::all_with(client.clone(), resource);
    let mut params = ListParams::default().limit(PAGE);
    let end = Instant::now() + ALL_DEADLINE;
    let mut found = Vec::new();
    loop {
        let page = objects.list(&params).await?;
        let workloads = page.items.iter().map(ExternalProxy::read).filter(|proxy| is_open(&proxy.workload));
        let asked = stream::iter(workloads).map(async |proxy| {
            let why = proxy.need(staying, end).await?;
            Some((proxy.workload, format!("is a proxy outside of the cluster {why}")))
        });
        let needing = asked.buffered(MAX_CONCURRENT).filter_map(std::future::ready);
        found.extend(needing.take(limit.saturating_sub(found.len())).collect::<Vec<_>>().await);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() && found.len() < limit => params = params.continue_token(&token),
            _ => return Ok(found),
        }
    }
}

/// A proxy outside of the cluster.
struct ExternalProxy {
    workload: MeshedWorkload,
    /// None if one of them is not valid, there are too many, or the object cannot be read.
    addresses: Vec<SocketAddr>,
    identity: String,
    server_name: String,
}

// === impl ExternalProxy ===

impl ExternalProxy {
    fn read(object: &DynamicObject) -> Self {
        let [namespace, name] =
            [&object.metadata.namespace, &object.metadata.name].map(|it| it.clone().unwrap_or_default());
        let kind = object.types.as_ref().map(|it| it.kind.clone()).unwrap_or_default();
        let workload = MeshedWorkload { namespace, kind, name };
        let read = serde_json::to_value(object).and_then(serde_json::from_value::<api::ExternalWorkload>);
        let Ok(read) = read else {
            return Self { workload, addresses: Vec::new(), identity: String::new(), server_name: String::new() };
        };
        let read = ExternalWorkload::project(read, &mut Problems::default());
        let port = read.inbound_port();
        let address = |address: &Address| match address {
            Address::Valid { text, .. } => Some(SocketAddr::new(text.parse().ok()?, port?)),
            // A loopback or link-local address is one of the operator's own host.
            Address::Invalid { .. } => None,
        };
        let addresses = read.addresses.iter().map(address).collect::<Option<Vec<_>>>();
        let addresses = addresses.filter(|all| all.len() <= MAX_ADDRESSES).unwrap_or_default();
        let mesh = read.mesh;
        Self { workload, addresses, identity: mesh.identity.to_string(), server_name: mesh.server_name.to_string() }
    }

    /// Returns why the proxy may need another root than these.
    async fn need(&self, staying: &AnchorBundle, end: Instant) -> Option<String> {
        if self.addresses.is_empty() {
            let why =
                format!("without valid addresses, or with more than {MAX_ADDRESSES}: its certificate is not seen");
            return Some(why);
        }
        for address in &self.addresses {
            let shown = timeout_at(end.min(Instant::now() + DEADLINE), async {
                presented(TcpStream::connect(address).await.ok()?, &self.server_name).await.ok()
            });
            let Ok(Some(shown)) = shown.await else {
                let late = format!("that was not asked within {} s, because others are slow", ALL_DEADLINE.as_secs());
                let silent = format!("that does not show its certificate at {address}");
                return Some(if Instant::now() < end { silent } else { late });
            };
            let shown: Vec<_> = shown.iter().map(AsRef::as_ref).collect();
            if !is_enough(staying.roots(), &shown, &self.identity, Timestamp::now()) {
                return Some(format!("whose certificate at {address} no other root verifies for its identity"));
            }
        }
        None
    }
}

/// Whether one of these roots verifies what a proxy presents: its certificate, and then the ones that are sent with it.
fn is_enough(roots: &[RootCertificate], presented: &[&[u8]], identity: &str, now: Timestamp) -> bool {
    let Some((der, sent)) = presented.split_first().filter(|(_, sent)| sent.len() <= LONGEST_SENT) else {
        return false;
    };
    let sent: Vec<_> = sent.iter().map(|der| (*der).into()).collect();
    let leaf = TestedLeaf { der, chain: &sent, name: identity, now };
    roots.iter().any(|root| leaf.reaches(root, ALGORITHMS))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::x509::testing::{TestCa, der, now, valid};

    const SPIFFE: &str = "spiffe://root.linkerd.cluster.local/vm";

    #[test]
    fn a_proxy_needs_no_other_root_if_one_that_stays_verifies_its_certificate_for_its_identity() {
        let (old, new) = (TestCa::root("old"), TestCa::root("new"));
        let issuer = new.signs("issuer", |_| {});
        let bridge = old.signs_again(&new, |_| {});
        let leaf = |ca: &TestCa, san: rcgen::SanType| {
            let leaf = ca.signs("vm", |params| {
                (params.is_ca, params.key_usages) = (rcgen::IsCa::NoCa, Vec::new());
                params.subject_alt_names = vec![san];
                valid(params, -60, 3600);
            });
            der(&leaf.pem)
        };
        let spiffe = |ca: &TestCa| leaf(ca, rcgen::SanType::URI(SPIFFE.try_into().unwrap()));
        let (of_new, of_old, issuer) = (spiffe(&issuer), spiffe(&old), der(&issuer.pem));
        let named = leaf(&new, rcgen::SanType::DnsName("vm.cluster.local".try_into().unwrap()));
        let check = |root: &TestCa, presented: &[&[u8]], identity: &str| {
            is_enough(AnchorBundle::parse(root.pem.as_bytes()).unwrap().roots(), presented, identity, now())
        };
        assert!(check(&new, &[&of_new, &issuer], SPIFFE));
        assert!(check(&old, &[&of_new, &issuer, &der(&bridge.pem)], SPIFFE), "over a bridge");
        assert!(check(&new, &[&named], "vm.cluster.local"));
        for (presented, identity) in [
            (&[&*of_old][..], SPIFFE),
            (&[&of_new], SPIFFE),
            (&[&of_new, &issuer], "spiffe://root.linkerd.cluster.local/other"),
            (&[&of_new, &issuer], ""),
            (&[&named], SPIFFE),
            (&[&of_new, &issuer, &[1], &[1], &[1], &[1], &[1], &[1]], SPIFFE),
            (&[&[1]], SPIFFE),
            (&[], SPIFFE),
        ] {
            assert!(!check(&new, presented, identity), "{identity:?} with {} certificates", presented.len());
        }
    }

    #[tokio::test]
    async fn a_workload_without_an_address_that_may_be_asked_needs_every_root() {
        let root = TestCa::root("root");
        for spec in [
            json!({}),
            json!({"workloadIPs": [{"ip": "127.0.0.1"}]}),
            json!({"workloadIPs": [{"ip": "192.0.2.1"}, {"ip": "x"}]}),
            json!("x"),
        ] {
            let object = json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
                "metadata": {"namespace": "app", "name": "vm"}, "spec": spec});
            let proxy = ExternalProxy::read(&from_value(object).unwrap());
            assert_eq!((&*proxy.workload.kind, &*proxy.workload.name), ("ExternalWorkload", "vm"));
            let staying = AnchorBundle::parse(root.pem.as_bytes()).unwrap();
            let why = proxy.need(&staying, Instant::now() + DEADLINE).await;
            assert!(why.is_some_and(|why| why.starts_with("without valid addresses")), "{spec}");
        }
    }
}
