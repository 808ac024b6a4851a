//! What changes while a stream runs, what it brings, and what brings nothing.

use anyhow::{Context, Result};
use e2e::discovery::{Endpoints, Message};
use serde_json::json;

use super::{
    QUIET, Rig, add, brings,
    objects::{
        address, but, hinted, meshed, node, of_pod, of_workload, opaque_server, pod, service, slice, slice_v6, workload,
    },
    remove,
    told::{self, authority, identity, traits},
};

const A: &str = "192.0.2.1:8080";
const B: &str = "192.0.2.2:8080";
const C: &str = "192.0.2.3:8080";

/// A Service `web` over one slice with these addresses, and a stream that shows them.
async fn web(rig: &Rig, addresses: &[&str]) -> Result<Endpoints> {
    let endpoints: Vec<_> = addresses.iter().filter_map(|at| at.split(':').next()).map(address).collect();
    rig.put_all([service("web"), slice("web", "web", &endpoints)]).await?;
    rig.shows("web:80", addresses).await
}

#[tokio::test]
async fn slices_come_grow_shrink_and_go() -> Result<()> {
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
    // The others stay when one goes.
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
async fn a_slice_whose_pods_are_gone_already_takes_its_endpoints_with_it() -> Result<()> {
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
        // The next slice shows when this one has been seen.
        rig.put(slice(&format!("{name}-next"), name, &[address("192.0.2.3")])).await?;
        stream.shows(&[C]).await?;
        rig.put_all(pods.each_ref().map(|pod| meshed(pod))).await?;
        stream.is_quiet_for(QUIET).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_a_slice_points_to_may_come_after_it_go_and_come_again() -> Result<()> {
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
    // Another object of the name is as good, and is told as what it is.
    rig.put_all([pod("web-1"), workload("vm")]).await?;
    let look = [(A, ""), (B, ""), (C, "h2 4143 identity http2")];
    told::look(&mut stream, traits, look.map(|(at, look)| (at, look.to_owned()))).await
}

#[tokio::test]
async fn a_service_that_is_made_after_its_slices_has_them() -> Result<()> {
    let rig = Rig::start("made").await?;
    rig.put_all([meshed("web-1"), slice("web", "web", &[of_pod("192.0.2.1", "web-1")])]).await?;
    rig.put(service("web")).await?;
    rig.begins_with("web:80", "", &[A]).await
}

#[tokio::test]
async fn a_deleted_service_empties_its_stream_and_the_next_one_fills_it() -> Result<()> {
    let rig = Rig::start("again").await?;
    let mut stream = web(&rig, &[A, B]).await?;
    for _ in 0..2 {
        rig.delete("Service", "web").await?;
        brings(&mut stream, &[remove(&[A, B])?]).await?;
        let (code, text) = rig.discovery.refusal(&rig.path("web"), "").await?;
        assert_eq!((code, text), (tonic::Code::NotFound, format!("Service web.{} not found", rig.name())));
        // The slices are as they were: no event of theirs.
        rig.put(service("web")).await?;
        brings(&mut stream, &[add(&[A, B])?]).await?;
    }
    // What changed in between counts.
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
async fn a_pod_that_returns_with_another_address_leaves_no_trace_of_the_old_one() -> Result<()> {
    let rig = Rig::start("stateful").await?;
    let db = |ip: &str| but(of_pod(ip, "db-0"), json!({"hostname": "db-0"}));
    rig.put_all([service("db"), meshed("db-0"), slice("db", "db", &[db("192.0.2.1")])]).await?;
    let mut stream = rig.shows("db:80", &[A]).await?;
    let mut by_name = rig.shows("db-0.db:80", &[A]).await?;
    // In one update of the slice, the Pod itself replaced before or not at all.
    rig.delete("Pod", "db-0").await?;
    rig.put(meshed("db-0")).await?;
    rig.set_endpoints("db", &[db("192.0.2.2")]).await?;
    stream.shows(&[B]).await?;
    by_name.shows(&[B]).await?;
    rig.set_endpoints("db", &[db("192.0.2.3")]).await?;
    brings(&mut stream, &[add(&[C])?, remove(&[B])?]).await?;
    brings(&mut by_name, &[add(&[C])?, remove(&[B])?]).await?;
    // And the address given to another Pod.
    rig.put(pod("db-1")).await?;
    rig.set_endpoints("db", &[of_pod("192.0.2.3", "db-1")]).await?;
    told::look(&mut stream, traits, [(C, String::new())]).await?;
    by_name.shows(&[]).await
}

#[tokio::test]
async fn an_endpoint_in_two_slices_stays_until_neither_has_it() -> Result<()> {
    let rig = Rig::start("two").await?;
    rig.put_all([service("web"), meshed("web-1"), workload("vm")]).await?;
    let endpoints = [address("192.0.2.1"), of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm")];
    rig.put_all([slice("one", "web", &endpoints), slice("two", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A, B, C]).await?;
    // Both have been looked at when what only the second has is there.
    rig.set_endpoints("two", &[&endpoints[..], &[address("192.0.2.9")]].concat()).await?;
    stream.shows(&[A, B, C, "192.0.2.9:8080"]).await?;
    rig.set_endpoints("one", &[]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.set_endpoints("one", &endpoints).await?;
    rig.delete("EndpointSlice", "two").await?;
    brings(&mut stream, &[remove(&["192.0.2.9:8080"])?]).await?;
    // Moved, as when slices are put together: first here and there, then only there.
    rig.put(slice("two", "web", &endpoints)).await?;
    rig.set_endpoints("one", &[]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.delete("EndpointSlice", "two").await?;
    brings(&mut stream, &[remove(&[A, B, C])?]).await
}

#[tokio::test]
async fn a_slice_that_is_relabelled_changes_hands() -> Result<()> {
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
async fn an_edited_workload_is_told_anew() -> Result<()> {
    let rig = Rig::start("edit").await?;
    let endpoints = [of_workload("192.0.2.1", "vm"), address("192.0.2.2")];
    rig.put_all([service("web"), workload("vm"), slice("web", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A, B]).await?;
    let mut edit = async |patch: serde_json::Value, of_vm: (&str, &str)| -> Result<()> {
        rig.patch("ExternalWorkload", "vm", patch.clone()).await?;
        assert_eq!(stream.next().await?, Some(add(&[A])?), "{patch}");
        let look = |endpoint: &_| (traits(endpoint), identity(endpoint));
        let expected = [(A, (of_vm.0.to_owned(), of_vm.1.to_owned())), (B, (String::new(), String::new()))];
        told::look(&mut stream, look, expected).await
    };
    let (plain, name) = ("h2 4143 identity http2", "uri spiffe://new/vm sni vm.example");
    edit(json!({"spec": {"meshTLS": {"identity": "spiffe://new/vm"}}}), (plain, name)).await?;
    let name = "uri spiffe://new/vm sni new.example";
    edit(json!({"spec": {"meshTLS": {"serverName": "new.example"}}}), (plain, name)).await?;
    let opaque = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8080"}}});
    edit(opaque, ("opaque 4143 identity http2", name)).await?;
    let ports = json!({"spec": {"ports": [{"name": "linkerd-proxy", "port": 5143}]}});
    edit(ports, ("opaque 5143 identity http2", name)).await?;
    // Where it is, is for the slice to say.
    rig.patch("ExternalWorkload", "vm", json!({"spec": {"workloadIPs": [{"ip": "198.51.100.9"}]}})).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.set_endpoints("web", &[of_workload("192.0.2.3", "vm"), address("192.0.2.2")]).await?;
    brings(&mut stream, &[add(&[C])?, remove(&[A])?]).await
}

#[tokio::test]
async fn an_edited_pod_is_told_anew() -> Result<()> {
    let rig = Rig::start("pod").await?;
    let endpoints = [of_pod("192.0.2.1", "web-1"), address("192.0.2.2")];
    rig.put_all([service("web"), pod("web-1"), slice("web", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A, B]).await?;
    for (key, value, look) in [
        ("labels", json!({"linkerd.io/control-plane-ns": "linkerd"}), "h2 identity http2"),
        ("annotations", json!({"config.linkerd.io/opaque-ports": "8080"}), "opaque identity http2"),
        ("annotations", json!({"config.linkerd.io/skip-inbound-ports": "8080"}), ""),
        ("annotations", json!({"config.linkerd.io/skip-inbound-ports": null}), "opaque identity http2"),
        ("labels", json!({"pod-template-hash": "5d4c"}), "opaque identity http2"),
        ("labels", json!({"linkerd.io/control-plane-ns": null}), ""),
    ] {
        rig.patch("Pod", "web-1", json!({"metadata": {key: value}})).await?;
        assert_eq!(stream.next().await?, Some(add(&[A])?), "{value}");
        told::look(&mut stream, traits, [(A, look.to_owned()), (B, String::new())])
            .await
            .with_context(|| value.to_string())?;
    }
    assert_eq!(stream.known[&A.parse()?].metric_labels["pod_template_hash"], "5d4c");
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn what_a_slice_says_of_its_endpoints_is_told_anew() -> Result<()> {
    let rig = Rig::start("says").await?;
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
async fn what_changes_nothing_that_a_client_sees_brings_nothing() -> Result<()> {
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
        slice("empty", "web", &[]),
        // No Pod's IPv6 address is served, and a port of another name is none of this stream's.
        slice_v6("v6", "web", &[of_pod("2001:db8::1", "web-1")]),
        slice("admin", "web", &[address("192.0.2.7")]).with(json!({"ports": [{"name": "admin", "port": 9990}]})),
        // Nobody points to them.
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
    anywhere.is_quiet_for(QUIET).await?;
    on_node.is_quiet_for(QUIET).await?;
    // The streams are alive, and the next message is about this and nothing else.
    rig.put(slice("last", "web", &[address("192.0.2.3")])).await?;
    brings(&mut anywhere, &[add(&[C])?]).await?;
    brings(&mut on_node, &[add(&[C])?]).await
}

#[tokio::test]
async fn a_late_joiner_gets_one_full_add_and_the_others_nothing() -> Result<()> {
    let rig = Rig::start("joiner").await?;
    let here = format!("{}-here", rig.name());
    rig.put(node(&here, Some("here"))).await?;
    let mut first = web(&rig, &[A, B]).await?;
    let mut second = rig.get("web:80").await?;
    brings(&mut second, &[add(&[A, B])?]).await?;
    first.is_quiet_for(QUIET).await?;
    // A stream of another group goes its own way, and one that is closed leaves the others alone.
    let mut local = rig.get_from("web:80", &here).await?;
    brings(&mut local, &[add(&[A, B])?]).await?;
    drop(first);
    rig.set_endpoints("web", &[hinted(address("192.0.2.1"), &["here"]), hinted(address("192.0.2.2"), &["there"])])
        .await?;
    local.shows(&[A]).await?;
    rig.set_endpoints("web", &[address("192.0.2.3")]).await?;
    second.shows(&[C]).await?;
    local.shows(&[C]).await?;
    assert!(!second.messages.contains(&remove(&[B])?), "the hints were for {here}: {:?}", second.messages);
    Ok(())
}
