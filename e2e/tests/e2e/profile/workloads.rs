//! Changes of ExternalWorkloads, on open streams of profiles.

use anyhow::Result;
use linkerd2_proxy_api::destination::DestinationProfile;
use serde_json::{Value, json};

use super::{MESHED, OPAQUE, at, ip, workload_at};
use crate::discovery::{
    Rig,
    objects::{KEPT, meshed},
    received,
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

#[tokio::test]
async fn readiness_of_a_workload_does_not_matter() -> Result<()> {
    let rig = Rig::start("ready").await?;
    let ip = ip();
    rig.put(workload_at("vm", &[&ip])).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("external_workload vm {MESHED}")).await?;
    for status in ["True", "False"] {
        let conditions = json!({"conditions": [{"type": "Ready", "status": status}]});
        rig.set_status("ExternalWorkload", "vm", conditions).await?;
    }
    rig.catches_up("ExternalWorkload").await?;
    open.matches_new_stream().await?;
    open.has_received(1).await
}

#[tokio::test]
async fn every_change_of_a_workload_is_sent() -> Result<()> {
    let rig = Rig::start("changes").await?;
    let ip = ip();
    let mut open = rig.opens_with(&at(&ip, 8080), "address").await?;
    rig.put(workload_at("vm", &[&ip])).await?;
    let expected = format!("external_workload vm {MESHED}");
    open.becomes(&expected).await?;
    rig.annotate("ExternalWorkload", "vm", OPAQUE_PORTS, Some("8080")).await?;
    open.becomes(&format!("opaque external_workload vm {OPAQUE}")).await?;
    rig.annotate("ExternalWorkload", "vm", OPAQUE_PORTS, None).await?;
    open.becomes(&expected).await?;
    let patch = async |spec: Value| rig.patch("ExternalWorkload", "vm", json!({ "spec": spec })).await;
    patch(json!({"meshTLS": {"identity": "spiffe://elsewhere/vm"}})).await?;
    let elsewhere = |profile: &DestinationProfile| {
        profile
            .endpoint
            .as_ref()
            .is_some_and(|endpoint| received::identity(endpoint).starts_with("uri spiffe://elsewhere/vm"))
    };
    open.shows("the identity", elsewhere).await?;
    patch(json!({"ports": [{"name": "http", "port": 8080}, {"name": "linkerd-proxy", "port": 5143}]})).await?;
    open.becomes("external_workload vm with h2 5143 identity http2").await?;
    patch(json!({"ports": [{"name": "http", "port": 8081}]})).await?;
    open.becomes("address").await?;
    patch(json!({"ports": [{"name": "http", "port": 8080}]})).await?;
    open.becomes(&expected).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    open.becomes("address").await?;
    rig.put(workload_at("other", &[&ip])).await?;
    open.becomes(&format!("external_workload other {MESHED}")).await?;
    open.has_received(10).await
}

#[tokio::test]
async fn a_terminating_workload_is_served_until_it_is_deleted() -> Result<()> {
    let rig = Rig::start("terminating").await?;
    let ip = ip();
    rig.put(workload_at("vm", &[&ip]).with(json!({"metadata": {"finalizers": [KEPT]}}))).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("external_workload vm {MESHED}")).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    rig.catches_up("ExternalWorkload").await?;
    open.matches_new_stream().await?;
    open.is_quiet().await?;
    rig.patch("ExternalWorkload", "vm", json!({"metadata": {"finalizers": null}})).await?;
    open.becomes("address").await
}

#[tokio::test]
async fn a_pod_at_the_same_address_takes_precedence_until_it_is_deleted() -> Result<()> {
    let rig = Rig::start("pod").await?;
    let ip = ip();
    rig.put(workload_at("vm", &[&ip]).annotated(OPAQUE_PORTS, "8080")).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("opaque external_workload vm {OPAQUE}")).await?;
    rig.run(meshed("web-1"), &[&ip]).await?;
    open.becomes(&format!("pod web-1 {MESHED}")).await?;
    // A change of the hidden ExternalWorkload causes no message.
    rig.annotate("ExternalWorkload", "vm", OPAQUE_PORTS, None).await?;
    rig.catches_up("ExternalWorkload").await?;
    open.has_received(2).await?;
    rig.delete("Pod", "web-1").await?;
    open.becomes(&format!("external_workload vm {MESHED}")).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    open.becomes("address").await
}
