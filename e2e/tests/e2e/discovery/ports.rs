//! The mapping from the port in the authority to the endpoint port: by the name of the Service port, else unchanged.

use anyhow::Result;
use e2e::discovery::Message;
use serde_json::{Value, json};

use super::{
    QUIET, Rig, add,
    objects::{Object, address, field, meshed, of_pod, of_workload, service, slice, workload},
    remove,
};

fn with_ports(object: Object, ports: Value) -> Object {
    match object.kind {
        "Service" => object.with(field("spec", field("ports", ports))),
        _ => object.with(field("ports", ports)),
    }
}

#[tokio::test]
async fn the_endpoint_port_is_found_by_name() -> Result<()> {
    let rig = Rig::start("names").await?;
    // The ports of the Service and of the slice, the requested port, and the expected endpoint port.
    let rows: [(Value, Value, u16, Option<u16>); 12] = [
        (json!([{"name": "http", "port": 80}]), json!([{"name": "http", "port": 8080}]), 80, Some(8080)),
        // The slice decides: the target port of the Service, a number or a name, does not matter.
        (
            json!([{"name": "http", "port": 80, "targetPort": 1}]),
            json!([{"name": "http", "port": 8080}]),
            80,
            Some(8080),
        ),
        (
            json!([{"name": "app", "port": 7778, "targetPort": "http"}]),
            json!([{"name": "app", "port": 7779}]),
            7778,
            Some(7779),
        ),
        // Unnamed ports match only unnamed ports.
        (json!([{"port": 8989, "targetPort": "x"}]), json!([{"port": 8990}]), 8989, Some(8990)),
        (json!([{"port": 8989}]), json!([{"name": "", "port": 8990}]), 8989, Some(8990)),
        (json!([{"port": 8989}]), json!([{"name": "http", "port": 8990}]), 8989, None),
        (json!([{"name": "http", "port": 80}]), json!([{"port": 8080}]), 80, None),
        (json!([{"name": "http", "port": 80}]), json!([{"name": "admin", "port": 9990}]), 80, None),
        // A port that the Service does not declare is used unchanged if the slice has any ports.
        (json!([{"name": "http", "port": 80}]), json!([{"name": "http", "port": 8080}]), 5959, Some(5959)),
        (json!([{"name": "http", "port": 80}]), json!([{"name": "admin", "port": 9990}]), 8080, Some(8080)),
        // The first of the Service's ports with this number, whatever its protocol.
        (
            json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]),
            json!([{"name": "dns-tcp", "port": 5354}, {"name": "dns", "port": 5353, "protocol": "UDP"}]),
            53,
            Some(5353),
        ),
        (
            json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}]),
            json!([{"name": "b", "port": 8081}, {"name": "a", "port": 8080}]),
            81,
            Some(8081),
        ),
    ];
    rig.put_all([meshed("web-1"), workload("vm")]).await?;
    for (row, (of_service, of_slice, requested, expected)) in rows.into_iter().enumerate() {
        let name = format!("web-{row}");
        let endpoints = [address("192.0.2.1"), of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm")];
        rig.put_all([
            with_ports(service(&name), of_service),
            with_ports(slice(&name, &name, &endpoints), of_slice),
            // This slice always has an endpoint; once it arrives, the other slice has been processed.
            slice(&format!("{name}-first"), &name, &[address("192.0.2.9")]).with(json!({"ports": [
                {"name": "http", "port": 1}, {"name": "app", "port": 1}, {"port": 1}, {"name": "dns", "port": 1},
                {"name": "b", "port": 1},
            ]})),
        ])
        .await?;
        let first_port = if [5959, 8080].contains(&requested) { requested } else { 1 };
        let mut all = vec![format!("192.0.2.9:{first_port}")];
        all.extend(expected.iter().flat_map(|port| [1, 2, 3].map(|host| format!("192.0.2.{host}:{port}"))));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        rig.shows(&format!("{name}:{requested}"), &all).await.map_err(|error| error.context(format!("row {row}")))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_port_without_a_number_and_a_slice_without_ports_have_no_endpoints() -> Result<()> {
    let rig = Rig::start("portless").await?;
    let named = |name: &str, ports: Value| with_ports(slice(name, "web", &[address("192.0.2.9")]), ports);
    rig.put_all([
        service("web"),
        named("no-number", json!([{"name": "http"}])),
        named("no-ports", json!(null)),
        named("empty", json!([])),
        slice("usual", "web", &[address("192.0.2.1")]),
    ])
    .await?;
    rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    rig.begins_with("web:80", "", &["192.0.2.1:8080"]).await?;
    // An undeclared port applies to every slice that has ports, even to ports without a number.
    rig.begins_with("web:5959", "", &["192.0.2.1:5959", "192.0.2.9:5959"]).await
}

#[tokio::test]
async fn an_edited_target_port_moves_every_endpoint() -> Result<()> {
    let rig = Rig::start("target").await?;
    let endpoints = [address("192.0.2.1"), of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm")];
    rig.put_all([service("web"), meshed("web-1"), workload("vm"), slice("web", "web", &endpoints)]).await?;
    let at = |port: u16| [1, 2, 3].map(|host| format!("192.0.2.{host}:{port}"));
    let (old, new) = (at(8080), at(9090));
    let (old, new) = (old.each_ref().map(String::as_str), new.each_ref().map(String::as_str));
    let mut stream = rig.shows("web:80", &old).await?;
    rig.patch("EndpointSlice", "web", json!({"ports": [{"name": "http", "port": 9090}]})).await?;
    assert_eq!(stream.next().await?, Some(add(&new)?));
    assert_eq!(stream.next().await?, Some(remove(&old)?));
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn changes_of_the_service_ports_are_followed() -> Result<()> {
    let rig = Rig::start("own").await?;
    let ports = json!([{"name": "http", "port": 8080}, {"name": "admin", "port": 9990}]);
    rig.put_all([service("web"), with_ports(slice("web", "web", &[address("192.0.2.1")]), ports)]).await?;
    let mut stream = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    let mut expect = async |patch: Value, new: &str, old: &str| -> Result<()> {
        rig.patch("Service", "web", patch).await?;
        assert_eq!(stream.next().await?, Some(add(&[new])?));
        assert_eq!(stream.next().await?, Some(remove(&[old])?));
        Ok(())
    };
    // Another name, then an undeclared port, which is used unchanged, then the first name again.
    expect(json!({"spec": {"ports": [{"name": "admin", "port": 80}]}}), "192.0.2.1:9990", "192.0.2.1:8080").await?;
    expect(json!({"spec": {"ports": [{"name": "admin", "port": 81}]}}), "192.0.2.1:80", "192.0.2.1:9990").await?;
    expect(json!({"spec": {"ports": [{"name": "http", "port": 80}]}}), "192.0.2.1:8080", "192.0.2.1:80").await?;
    // No slice has this name, so no endpoint is left.
    rig.patch("Service", "web", json!({"spec": {"ports": [{"name": "grpc", "port": 80}]}})).await?;
    assert_eq!(stream.next().await?, Some(Message::Remove(vec!["192.0.2.1:8080".parse()?])));
    rig.patch("Service", "web", json!({"spec": {"ports": [{"name": "http", "port": 80}]}})).await?;
    assert_eq!(stream.next().await?, Some(add(&["192.0.2.1:8080"])?));
    Ok(())
}

#[tokio::test]
async fn slices_with_different_numbers_for_one_port_name_keep_them() -> Result<()> {
    let rig = Rig::start("mixed").await?;
    // A rollout that changes the number of a named port leads to such slices; the second slice also has the other port.
    rig.put_all([
        service("web").with(json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "admin", "port": 90}]}})),
        slice("old", "web", &[address("192.0.2.1")]),
        with_ports(
            slice("new", "web", &[address("192.0.2.2"), address("192.0.2.1")]),
            json!([{"name": "http", "port": 8081}, {"name": "admin", "port": 9990}]),
        ),
    ])
    .await?;
    rig.shows("web:80", &["192.0.2.1:8080", "192.0.2.1:8081", "192.0.2.2:8081"]).await?;
    rig.shows("web:90", &["192.0.2.1:9990", "192.0.2.2:9990"]).await.map(drop)
}
