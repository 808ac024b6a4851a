//! Changes while a stream is open: which messages they cause, and which changes cause none.

use anyhow::{Context, Result};
use e2e::discovery::{Endpoints, Message};
use serde_json::{Value, json};

use super::{
    QUIET, Rig, add, brings,
    objects::{
        address, but, hinted, meshed, node, of_pod, of_workload, opaque_server, pod, server, service, slice, slice_v6,
        workload,
    },
    received::{self, authority, identity, traits},
    remove,
};

const A: &str = "192.0.2.1:8080";
const B: &str = "192.0.2.2:8080";
const C: &str = "192.0.2.3:8080";

/// Creates a Service `web` with one slice of these addresses, and returns a stream that has received them.
async fn web(rig: &Rig, addresses: &[&str]) -> Result<Endpoints> {
    let endpoints: Vec<_> = addresses.iter().filter_map(|at| at.split(':').next()).map(address).collect();
    rig.put_all([service("web"), slice("web", "web", &endpoints)]).await?;
    rig.shows("web:80", addresses).await
}

#[tokio::test]
async fn slices_are_added_changed_and_deleted() -> Result<()> {
    let rig = Rig::start("slices").await?;
    let mut stream = web(&rig, &[A]).await?;
    rig.put(slice("second", "web", &[address("192.0.2.2")])).await?;
    brings(&mut stream, &[add(&[B])?]).await?;
    rig.set_endpoints("second", &[address("192.0.2.2"), address("192.0.2.3")]).await?;
    brings(&mut stream, &[add(&[C])?]).await?;
    rig.set_endpoints("second", &[address("192.0.2.3")]).await?;
    brings(&mut stream, &[remove(&[B])?]).await?;
    rig.set_endpoints("second", &[address("192.0.2.2")]).await?;
    brings(&mut stream, &[add(&[B])?, remove(&[C])?]).await?;
    // Endpoints of the other slices stay when one slice is deleted.
    rig.delete("EndpointSlice", "web").await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    rig.patch("EndpointSlice", "second", json!({"endpoints": [], "ports": []})).await?;
    brings(&mut stream, &[remove(&[B])?]).await?;
    rig.delete("EndpointSlice", "second").await?;
    rig.put(slice("web", "web", &[address("192.0.2.1")])).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn a_slice_whose_pods_were_deleted_before_still_removes_its_endpoints() -> Result<()> {
    let rig = Rig::start("gone").await?;
    for name in ["emptied", "deleted"] {
        let pods = [format!("{name}-1"), format!("{name}-2")];
        rig.put_all(pods.each_ref().map(|pod| meshed(pod))).await?;
        let endpoints = [of_pod("192.0.2.1", &pods[0]), of_pod("192.0.2.2", &pods[1])];
        rig.put_all([service(name), slice(name, name, &endpoints)]).await?;
        let mut stream = rig.shows(name, &[A, B]).await?;
        for pod in &pods {
            rig.delete("Pod", pod).await?;
        }
        match name {
            "emptied" => rig.set_endpoints(name, &[]).await?,
            _ => rig.delete("EndpointSlice", name).await?,
        }
        // Once the next slice has arrived, the change of this slice has been processed.
        rig.put(slice(&format!("{name}-next"), name, &[address("192.0.2.3")])).await?;
        stream.shows(&[C]).await?;
        rig.put_all(pods.each_ref().map(|pod| meshed(pod))).await?;
        stream.is_quiet_for(QUIET).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_target_may_be_created_after_its_slice_deleted_and_recreated() -> Result<()> {
    let rig = Rig::start("after").await?;
    let endpoints = [address("192.0.2.1"), of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm")];
    rig.put_all([service("web"), slice("web", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A]).await?;
    rig.put(meshed("web-1")).await?;
    brings(&mut stream, &[add(&[B])?]).await?;
    rig.put(workload("vm")).await?;
    brings(&mut stream, &[add(&[C])?]).await?;
    rig.delete("Pod", "web-1").await?;
    brings(&mut stream, &[remove(&[B])?]).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    brings(&mut stream, &[remove(&[C])?]).await?;
    // A new object with the same name is used, with its own traits.
    rig.put_all([pod("web-1"), workload("vm")]).await?;
    let expected = [(A, ""), (B, ""), (C, "h2 4143 identity http2")];
    received::wait_for(&mut stream, traits, expected.map(|(at, traits)| (at, traits.to_owned()))).await
}

#[tokio::test]
async fn a_service_that_is_created_after_its_slices_has_their_endpoints() -> Result<()> {
    let rig = Rig::start("made").await?;
    rig.put_all([meshed("web-1"), slice("web", "web", &[of_pod("192.0.2.1", "web-1")])]).await?;
    rig.put(service("web")).await?;
    rig.begins_with("web:80", "", &[A]).await
}

#[tokio::test]
async fn a_deleted_service_empties_its_stream_and_a_recreated_one_fills_it() -> Result<()> {
    let rig = Rig::start("again").await?;
    let mut stream = web(&rig, &[A, B]).await?;
    for _ in 0..2 {
        rig.delete("Service", "web").await?;
        brings(&mut stream, &[remove(&[A, B])?]).await?;
        let (code, text) = rig.discovery.refusal(&rig.path("web"), "").await?;
        assert_eq!((code, text), (tonic::Code::NotFound, format!("Service web.{} not found", rig.name())));
        // The slices have not changed, so they cause no watch event.
        rig.put(service("web")).await?;
        brings(&mut stream, &[add(&[A, B])?]).await?;
    }
    // A change while the Service is absent takes effect.
    rig.delete("Service", "web").await?;
    brings(&mut stream, &[remove(&[A, B])?]).await?;
    rig.set_endpoints("web", &[address("192.0.2.3")]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.put(service("web").with(json!({"spec": {"ports": [{"name": "other", "port": 80}]}}))).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.patch("Service", "web", json!({"spec": {"ports": [{"name": "http", "port": 80}]}})).await?;
    brings(&mut stream, &[add(&[C])?]).await
}

#[tokio::test]
async fn a_recreated_pod_with_another_address_removes_the_old_address() -> Result<()> {
    let rig = Rig::start("stateful").await?;
    let db = |ip: &str| but(of_pod(ip, "db-0"), json!({"hostname": "db-0"}));
    rig.put_all([service("db"), meshed("db-0"), slice("db", "db", &[db("192.0.2.1")])]).await?;
    let mut stream = rig.shows("db:80", &[A]).await?;
    let mut by_name = rig.shows("db-0.db:80", &[A]).await?;
    // Each slice update replaces the address: once after the Pod was recreated, once without.
    rig.delete("Pod", "db-0").await?;
    rig.put(meshed("db-0")).await?;
    rig.set_endpoints("db", &[db("192.0.2.2")]).await?;
    stream.shows(&[B]).await?;
    by_name.shows(&[B]).await?;
    rig.set_endpoints("db", &[db("192.0.2.3")]).await?;
    brings(&mut stream, &[add(&[C])?, remove(&[B])?]).await?;
    brings(&mut by_name, &[add(&[C])?, remove(&[B])?]).await?;
    // The address is assigned to another Pod.
    rig.put(pod("db-1")).await?;
    rig.set_endpoints("db", &[of_pod("192.0.2.3", "db-1")]).await?;
    received::wait_for(&mut stream, traits, [(C, String::new())]).await?;
    by_name.shows(&[]).await
}

#[tokio::test]
async fn a_recreated_target_has_the_old_address_only_if_the_slice_has_no_uid() -> Result<()> {
    let rig = Rig::start("uid").await?;
    let uid = async |object| anyhow::Ok(rig.create(object).await?.metadata.uid);
    let with_uid = |endpoint: Value, uid: &Option<String>| but(endpoint, json!({"targetRef": { "uid": uid }}));
    let (pod, vm) = (uid(meshed("web-1")).await?, uid(workload("vm")).await?);
    let endpoints = |pod, vm| {
        let known = [with_uid(of_pod("192.0.2.1", "web-1"), pod), with_uid(of_workload("192.0.2.2", "vm"), vm)];
        [&known[..], &[of_pod("192.0.2.3", "web-1")]].concat()
    };
    rig.put_all([service("web"), slice("web", "web", &endpoints(&pod, &vm))]).await?;
    let mut stream = rig.shows("web:80", &[A, B, C]).await?;
    rig.delete("Pod", "web-1").await?;
    brings(&mut stream, &[remove(&[A, C])?]).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    brings(&mut stream, &[remove(&[B])?]).await?;
    let (pod, vm) = (uid(meshed("web-1")).await?, uid(workload("vm")).await?);
    brings(&mut stream, &[add(&[C])?]).await?;
    rig.set_endpoints("web", &endpoints(&pod, &vm)).await?;
    stream.shows(&[A, B, C]).await
}

#[tokio::test]
async fn an_endpoint_in_two_slices_stays_until_both_have_dropped_it() -> Result<()> {
    let rig = Rig::start("two").await?;
    rig.put_all([service("web"), meshed("web-1"), workload("vm")]).await?;
    let endpoints = [address("192.0.2.1"), of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm")];
    rig.put_all([slice("one", "web", &endpoints), slice("two", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A, B, C]).await?;
    // Once the endpoint that only the second slice has arrives, both slices have been processed.
    rig.set_endpoints("two", &[&endpoints[..], &[address("192.0.2.9")]].concat()).await?;
    stream.shows(&[A, B, C, "192.0.2.9:8080"]).await?;
    rig.set_endpoints("one", &[]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.set_endpoints("one", &endpoints).await?;
    rig.delete("EndpointSlice", "two").await?;
    brings(&mut stream, &[remove(&["192.0.2.9:8080"])?]).await?;
    // The endpoints move, as when slices are merged: first they are in both slices, then only in the second.
    rig.put(slice("two", "web", &endpoints)).await?;
    rig.set_endpoints("one", &[]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.delete("EndpointSlice", "two").await?;
    brings(&mut stream, &[remove(&[A, B, C])?]).await
}

#[tokio::test]
async fn a_relabelled_slice_moves_to_the_other_service() -> Result<()> {
    let rig = Rig::start("relabel").await?;
    let mut web = web(&rig, &[A]).await?;
    rig.put_all([service("other"), slice("moving", "web", &[address("192.0.2.2")])]).await?;
    let mut other = rig.get("other:80").await?;
    assert_eq!(other.next().await?, Some(Message::NoEndpoints { exists: true }));
    brings(&mut web, &[add(&[B])?]).await?;
    let label = |service: Option<&str>| json!({"metadata": {"labels": {"kubernetes.io/service-name": service}}});
    rig.patch("EndpointSlice", "moving", label(Some("other"))).await?;
    brings(&mut web, &[remove(&[B])?]).await?;
    brings(&mut other, &[add(&[B])?]).await?;
    rig.patch("EndpointSlice", "moving", label(None)).await?;
    brings(&mut other, &[remove(&[B])?]).await?;
    rig.patch("EndpointSlice", "moving", label(Some("web"))).await?;
    brings(&mut web, &[add(&[B])?]).await?;
    other.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn an_edited_workload_is_sent_again() -> Result<()> {
    let rig = Rig::start("edit").await?;
    let endpoints = [of_workload("192.0.2.1", "vm"), address("192.0.2.2")];
    rig.put_all([service("web"), workload("vm"), slice("web", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A, B]).await?;
    let mut edit = async |patch: serde_json::Value, of_vm: (&str, &str)| -> Result<()> {
        rig.patch("ExternalWorkload", "vm", patch.clone()).await?;
        assert_eq!(stream.next().await?, Some(add(&[A])?), "{patch}");
        let traits_and_identity = |endpoint: &_| (traits(endpoint), identity(endpoint));
        let expected = [(A, (of_vm.0.to_owned(), of_vm.1.to_owned())), (B, (String::new(), String::new()))];
        received::wait_for(&mut stream, traits_and_identity, expected).await
    };
    let (plain, name) = ("h2 4143 identity http2", "uri spiffe://new/vm sni vm.example");
    edit(json!({"spec": {"meshTLS": {"identity": "spiffe://new/vm"}}}), (plain, name)).await?;
    let name = "uri spiffe://new/vm sni new.example";
    edit(json!({"spec": {"meshTLS": {"serverName": "new.example"}}}), (plain, name)).await?;
    let opaque = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8080"}}});
    edit(opaque, ("opaque 4143 identity http2", name)).await?;
    let ports = json!({"spec": {"ports": [{"name": "linkerd-proxy", "port": 5143}]}});
    edit(ports, ("opaque 5143 identity http2", name)).await?;
    // The address comes from the slice, not from the ExternalWorkload.
    rig.patch("ExternalWorkload", "vm", json!({"spec": {"workloadIPs": [{"ip": "198.51.100.9"}]}})).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.set_endpoints("web", &[of_workload("192.0.2.3", "vm"), address("192.0.2.2")]).await?;
    brings(&mut stream, &[add(&[C])?, remove(&[A])?]).await
}

#[tokio::test]
async fn an_edited_pod_is_sent_again() -> Result<()> {
    let rig = Rig::start("pod").await?;
    let endpoints = [of_pod("192.0.2.1", "web-1"), address("192.0.2.2")];
    rig.put_all([service("web"), pod("web-1"), slice("web", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A, B]).await?;
    for (key, value, expected) in [
        ("labels", json!({"linkerd.io/control-plane-ns": "linkerd"}), "h2 identity http2"),
        ("annotations", json!({"config.linkerd.io/opaque-ports": "8080"}), "opaque identity http2"),
        ("annotations", json!({"config.linkerd.io/skip-inbound-ports": "8080"}), ""),
        ("annotations", json!({"config.linkerd.io/skip-inbound-ports": null}), "opaque identity http2"),
        ("labels", json!({"pod-template-hash": "5d4c"}), "opaque identity http2"),
        ("labels", json!({"linkerd.io/control-plane-ns": null}), ""),
    ] {
        rig.patch("Pod", "web-1", json!({"metadata": {key: value}})).await?;
        assert_eq!(stream.next().await?, Some(add(&[A])?), "{value}");
        received::wait_for(&mut stream, traits, [(A, expected.to_owned()), (B, String::new())])
            .await
            .with_context(|| value.to_string())?;
    }
    assert_eq!(stream.known[&A.parse()?].metric_labels["pod_template_hash"], "5d4c");
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn changed_endpoint_metadata_in_a_slice_is_sent_again() -> Result<()> {
    let rig = Rig::start("metadata").await?;
    rig.put_all([service("web"), meshed("web-1"), slice("web", "web", &[of_pod("192.0.2.1", "web-1")])]).await?;
    let mut stream = rig.shows("web:80", &[A]).await?;
    rig.set_endpoints("web", &[but(of_pod("192.0.2.1", "web-1"), json!({"zone": "zone-1"}))]).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    assert_eq!(stream.only()?.metric_labels["zone"], "zone-1");
    rig.set_endpoints("web", &[address("192.0.2.1")]).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    assert_eq!(traits(stream.only()?), "");
    let annotate = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let gateway = "mirror.linkerd.io/remote-gateway-identity";
    for (patch, dns, name) in [
        (annotate(gateway, "one"), "dns one", None),
        (annotate(gateway, "two"), "dns two", None),
        (
            annotate("mirror.linkerd.io/remote-svc-fq-name", "web.prod.svc.east"),
            "dns two",
            Some("web.prod.svc.east:80"),
        ),
        (
            annotate("mirror.linkerd.io/remote-svc-fq-name", "api.prod.svc.east"),
            "dns two",
            Some("api.prod.svc.east:80"),
        ),
        (annotate(gateway, ""), "", Some("api.prod.svc.east:80")),
    ] {
        rig.patch("EndpointSlice", "web", patch).await?;
        brings(&mut stream, &[add(&[A])?]).await?;
        assert_eq!((identity(stream.only()?).as_str(), authority(stream.only()?)), (dns, name));
    }
    Ok(())
}

#[tokio::test]
async fn changes_that_a_client_cannot_observe_cause_no_message() -> Result<()> {
    let rig = Rig::start("nothing").await?;
    let elsewhere = Rig::start("nothing-elsewhere").await?;
    let zone_node = format!("{}-node", rig.name());
    rig.put_all([
        service("web"),
        service("other"),
        meshed("web-1"),
        workload("vm"),
        node(&zone_node, Some("zone-1")),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "vm")]),
        slice("other", "other", &[address("192.0.2.8")]),
    ])
    .await?;
    let mut anywhere = rig.shows("web:80", &[A, B]).await?;
    let mut on_node = rig.get_from("web:80", &zone_node).await?;
    on_node.shows(&[A, B]).await?;
    let note = json!({"metadata": {"annotations": {"note": "touched"}, "labels": {"note": "touched"}}});
    for (kind, name) in [
        ("Service", "web"),
        ("EndpointSlice", "web"),
        ("Pod", "web-1"),
        ("ExternalWorkload", "vm"),
        ("Node", &zone_node),
    ] {
        rig.patch(kind, name, note.clone()).await?;
    }
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let (params, patch) = (kube::api::PatchParams::default(), kube::api::Patch::Merge(&ready));
    rig.api("Pod").patch_status("web-1", &params, &patch).await?;
    rig.api("ExternalWorkload").patch_status("vm", &params, &patch).await?;
    rig.patch(
        "Service",
        "web",
        json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": 1}], "type": "NodePort"}}),
    )
    .await?;
    rig.set_endpoints("other", &[address("192.0.2.9")]).await?;
    rig.put_all([
        opaque_server("port", json!(9999)),
        server("http", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "HTTP/1"})),
        slice("empty", "web", &[]),
        // IPv6 addresses of Pods are not served, and this stream does not use ports with another name.
        slice_v6("v6", "web", &[of_pod("2001:db8::1", "web-1")]),
        slice("admin", "web", &[address("192.0.2.7")]).with(json!({"ports": [{"name": "admin", "port": 9990}]})),
        // No endpoint refers to these objects.
        pod("stranger"),
        workload("stranger"),
        slice("missing", "web", &[of_pod("192.0.2.6", "missing")]),
    ])
    .await?;
    elsewhere
        .put_all([service("web"), opaque_server("web", json!(8080)), slice("web", "web", &[address("192.0.2.5")])])
        .await?;
    elsewhere.shows("web:80", &["192.0.2.5:8080"]).await?;
    rig.delete("EndpointSlice", "empty").await?;
    rig.patch("Server", "http", note.clone()).await?;
    anywhere.is_quiet_for(QUIET).await?;
    on_node.is_quiet_for(QUIET).await?;
    // The streams still work, and their next message contains only this change.
    rig.put(slice("last", "web", &[address("192.0.2.3")])).await?;
    brings(&mut anywhere, &[add(&[C])?]).await?;
    brings(&mut on_node, &[add(&[C])?]).await
}

#[tokio::test]
async fn a_later_stream_begins_with_one_full_add_and_the_others_receive_nothing() -> Result<()> {
    let rig = Rig::start("joiner").await?;
    let here = format!("{}-here", rig.name());
    rig.put(node(&here, Some("here"))).await?;
    let mut first = web(&rig, &[A, B]).await?;
    let mut second = rig.get("web:80").await?;
    brings(&mut second, &[add(&[A, B])?]).await?;
    first.is_quiet_for(QUIET).await?;
    // A stream of another zone has separate endpoints, and closing a stream does not affect the others.
    let mut local = rig.get_from("web:80", &here).await?;
    brings(&mut local, &[add(&[A, B])?]).await?;
    drop(first);
    rig.set_endpoints("web", &[hinted(address("192.0.2.1"), &["here"]), hinted(address("192.0.2.2"), &["there"])])
        .await?;
    local.shows(&[A]).await?;
    rig.set_endpoints("web", &[address("192.0.2.3")]).await?;
    second.shows(&[C]).await?;
    local.shows(&[C]).await?;
    assert!(!second.messages.contains(&remove(&[B])?), "the hints apply to node {here} only: {:?}", second.messages);
    Ok(())
}
