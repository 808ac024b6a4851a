//! Changes of the ports of a Service and of its slices, on open streams.

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
