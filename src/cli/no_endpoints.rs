//! Why a Service has no endpoints for proxies, although it may have EndpointSlices.
//!
//! * In: the Service and its slices, from the API server. Out: a clause for people, or nothing if it is not known.
//! * Always: a help for people only. It has a deadline, and a failure is no error of the command.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
};
use kube::{Api, Client, api::ListParams};
use tokio::time::timeout;

use crate::{
    api::{EXTERNAL_WORKLOAD_KIND, LOCAL_DISCOVERY_ANNOTATION, REMOTE_DISCOVERY, SERVICE_NAME_LABEL, carries_tcp},
    text::{and_more, counted},
};

const DEADLINE: Duration = Duration::from_secs(5);
/// The maximum number of slices that are read.
const SLICES: u32 = 500;
/// The maximum number of kinds that are named.
const KINDS: usize = 5;

/// The Service that an authority names, and the port.
pub(super) struct AuthorityParts<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) port: &'a str,
}

// === impl AuthorityParts ===

impl<'a> AuthorityParts<'a> {
    pub(super) fn of(authority: &'a str) -> Option<Self> {
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        let (name, _) = host.split_once(".svc.")?;
        // The first label may be the hostname of an instance.
        let mut labels = name.rsplit('.');
        let (namespace, name) = (labels.next()?, labels.next()?);
        Some(Self { namespace, name, port })
    }
}

/// Returns why the authority has no endpoints.
pub(super) async fn reason(client: Client, authority: &str) -> Option<String> {
    let AuthorityParts { namespace, name, port } = AuthorityParts::of(authority)?;
    let read = async {
        let service = Api::<Service>::namespaced(client.clone(), namespace).get(name).await?;
        let own = ListParams::default().labels(&format!("{SERVICE_NAME_LABEL}={name}")).limit(SLICES);
        Ok::<_, kube::Error>((service, Api::<EndpointSlice>::namespaced(client, namespace).list(&own).await?.items))
    };
    let (service, slices) = timeout(DEADLINE, read).await.ok()?.ok()?;
    why_none(&service, &slices, port.parse().ok()?)
}

fn why_none(service: &Service, slices: &[EndpointSlice], port: u16) -> Option<String> {
    let has = |keys: Option<&BTreeMap<String, String>>, key: &str| keys.is_some_and(|keys| keys.contains_key(key));
    let metadata = &service.metadata;
    let is_joined = has(metadata.labels.as_ref(), REMOTE_DISCOVERY)
        || [REMOTE_DISCOVERY, LOCAL_DISCOVERY_ANNOTATION].iter().any(|key| has(metadata.annotations.as_ref(), key));
    if is_joined {
        // It has the endpoints of other Services.
        return None;
    }
    if slices.is_empty() {
        return Some("it has no EndpointSlice".to_owned());
    }
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let mut tcp = ports.filter(|port| port.protocol.as_deref().is_none_or(carries_tcp));
    let wanted = tcp.find(|it| it.port == i32::from(port)).map(|it| it.name.as_deref().unwrap_or_default());
    let (usable, others): (Vec<_>, Vec<_>) = slices.iter().partition(|slice| has_port(slice, wanted));
    let endpoints: Vec<&Endpoint> = usable.iter().flat_map(|slice| &slice.endpoints).collect();
    let is_ready = |it: &&Endpoint| it.conditions.as_ref().and_then(|it| it.ready) != Some(false);
    let unready = endpoints.iter().filter(|it| !is_ready(it)).count();
    let kind = |it: &Endpoint| it.target_ref.as_ref().map(|target| target.kind.clone().unwrap_or_default());
    let is_other = |kind: &String| kind != "Pod" && kind != EXTERNAL_WORKLOAD_KIND;
    let kinds: Vec<String> =
        endpoints.iter().filter(|it| is_ready(it)).filter_map(|it| kind(it)).filter(is_other).collect();
    let left = endpoints.len() - unready - kinds.len();
    let mut why = Vec::new();
    if !others.is_empty() {
        let lacks = match wanted {
            Some("") => "no TCP port without a name".to_owned(),
            Some(name) => format!("no TCP port named {name:?}"),
            None => "no list of ports".to_owned(),
        };
        why.push(format!("{} {lacks}", has_or_have(others.len(), "EndpointSlice")));
    }
    if !kinds.is_empty() {
        let (count, kinds): (_, BTreeSet<String>) = (kinds.len(), kinds.into_iter().collect());
        let refer = if count == 1 { "refers" } else { "refer" };
        let shown = and_more(kinds.iter().take(KINDS).map(|kind| format!("{kind:?}")), kinds.len(), ", ");
        let endpoints = counted(count, "endpoint");
        why.push(format!("{endpoints} {refer} to neither a Pod nor an ExternalWorkload, but to {shown}"));
    }
    if unready > 0 {
        why.push(format!("{} not ready", is_or_are(unready, "endpoint")));
    }
    if left > 0 {
        why.push(format!("{} for other clients, or of objects that do not exist", is_or_are(left, "endpoint")));
    }
    if why.is_empty() {
        why.push("its EndpointSlices have no endpoint".to_owned());
    }
    Some(why.join("; "))
}

/// Whether clients of a port can use the slice. A port that the Service does not declare needs no port in the slice.
fn has_port(slice: &EndpointSlice, wanted: Option<&str>) -> bool {
    let Some(ports) = &slice.ports else { return false };
    let is_wanted = |port: &EndpointPort| {
        port.port.is_some()
            && port.protocol.as_deref().is_none_or(carries_tcp)
            && port.name.as_deref().unwrap_or_default() == wanted.unwrap_or_default()
    };
    wanted.is_none() || ports.iter().any(is_wanted)
}

fn has_or_have(count: usize, noun: &str) -> String {
    format!("{} {}", counted(count, noun), if count == 1 { "has" } else { "have" })
}

fn is_or_are(count: usize, noun: &str) -> String {
    format!("{} {}", counted(count, noun), if count == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn why(ports: &Value, slices: &[Value], port: u16) -> Option<String> {
        let service = from_value(json!({"spec": {"ports": ports}})).unwrap();
        let slice = |it: &Value| {
            let mut object = json!({"metadata": {}, "addressType": "IPv4", "endpoints": []});
            object.as_object_mut().unwrap().extend(it.as_object().unwrap().clone());
            from_value(object).unwrap()
        };
        why_none(&service, &slices.iter().map(slice).collect::<Vec<_>>(), port)
    }

    #[test]
    fn the_reason_names_what_slices_lack_and_what_is_left_out() {
        let mysql = json!([{"name": "mysql", "port": 3306}]);
        let unnamed =
            json!({"ports": [{"port": 3306, "protocol": "TCP"}], "endpoints": [{"addresses": ["192.0.2.71"]}]});
        let udp = json!({"ports": [{"name": "mysql", "port": 3306, "protocol": "UDP"}]});
        let http = json!([{"name": "http", "port": 80}]);
        let target = |kind: &str| json!({"addresses": ["192.0.2.61"], "targetRef": {"kind": kind, "name": "a"}});
        let vms = json!({"ports": [{"name": "http", "port": 8080}],
            "endpoints": [target("VirtualMachineInstance"), target("Node")]});
        let unready = json!({"ports": [{"name": "http", "port": 8080}], "endpoints": [
            {"addresses": ["192.0.2.62"], "conditions": {"ready": false}}, target("Pod")]});
        for (ports, slices, port, expected) in [
            (&mysql, vec![], 3306, "it has no EndpointSlice"),
            (&mysql, vec![unnamed.clone()], 3306, "1 EndpointSlice has no TCP port named \"mysql\""),
            (&mysql, vec![unnamed, udp.clone()], 3306, "2 EndpointSlices have no TCP port named \"mysql\""),
            (&json!([{"port": 3306}]), vec![udp], 3306, "1 EndpointSlice has no TCP port without a name"),
            (
                &http,
                vec![vms],
                80,
                "2 endpoints refer to neither a Pod nor an ExternalWorkload, but to \"Node\", \"VirtualMachineInstance\"",
            ),
            (
                &http,
                vec![unready],
                80,
                "1 endpoint is not ready; 1 endpoint is for other clients, or of objects that do not exist",
            ),
            (&http, vec![json!({"ports": []})], 81, "its EndpointSlices have no endpoint"),
            (&http, vec![json!({})], 81, "1 EndpointSlice has no list of ports"),
        ] {
            assert_eq!(why(ports, &slices, port).as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_slices_of_a_joined_service_do_not_explain_anything() {
        for metadata in [
            json!({"labels": {"multicluster.linkerd.io/remote-discovery": "east"}}),
            json!({"annotations": {"multicluster.linkerd.io/remote-discovery": "web@east"}}),
            json!({"annotations": {"multicluster.linkerd.io/local-discovery": "web"}}),
        ] {
            assert_eq!(why_none(&from_value(json!({ "metadata": metadata })).unwrap(), &[], 80), None);
        }
    }
}
