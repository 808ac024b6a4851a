//! Explains why a Service has no endpoints for proxies, although it may have EndpointSlices, and why the endpoints of a
//! port may not be those that its author means.
//!
//! In: the Service, its slices, and the ExternalWorkloads that it selects, from the API server. Out: a clause for
//! people, or nothing if it is not known. Always holds: it only helps people, so it has a deadline, and its failure
//! does not fail the command.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Service, ServicePort},
    discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
};
use kube::{Api, Client, api::ListParams};
use tokio::time::timeout;

use crate::{
    api::{
        EXTERNAL_WORKLOAD_KIND, ExternalWorkload, LOCAL_DISCOVERY_ANNOTATION, REMOTE_DISCOVERY, SERVICE_NAME_LABEL,
        carries_tcp,
    },
    text::{and_more, counted},
};

const DEADLINE: Duration = Duration::from_secs(5);
/// The maximum number of slices that are read.
const SLICES: u32 = 500;
/// The maximum number of kinds, or of workloads, that are named.
const KINDS: usize = 5;
/// The maximum number of ExternalWorkloads that are read.
const WORKLOADS: u32 = 500;

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
        let slices = Api::<EndpointSlice>::namespaced(client.clone(), namespace).list(&own).await?.items;
        // The kind may not exist, and not every user may list it.
        let workloads = match selected(&service) {
            Some(selected) => Api::<ExternalWorkload>::namespaced(client, namespace).list(&selected).await.ok(),
            None => None,
        };
        Ok::<_, kube::Error>((service, slices, workloads.map(|list| list.items).unwrap_or_default()))
    };
    let (service, slices, workloads) = timeout(DEADLINE, read).await.ok()?.ok()?;
    let why = why_none(&service, &slices, port.parse().ok()?)?;
    let of_workloads = without_family(&service, &workloads);
    Some([Some(why), of_workloads].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

/// Returns what the endpoints of a port are if the Service has the port only for protocols that proxies do not forward.
pub(super) async fn other_protocol(client: Client, authority: &str) -> Option<String> {
    let AuthorityParts { namespace, name, port } = AuthorityParts::of(authority)?;
    let services = Api::<Service>::namespaced(client, namespace);
    let service = timeout(DEADLINE, services.get(name)).await.ok()?.ok()?;
    has_only_other_protocols(&service, port.parse().ok()?)
}

/// Returns the parameters of a list of the ExternalWorkloads that the Service selects.
fn selected(service: &Service) -> Option<ListParams> {
    let selector = service.spec.as_ref()?.selector.as_ref().filter(|selector| !selector.is_empty())?;
    let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    Some(ListParams::default().labels(&labels.join(",")).limit(WORKLOADS))
}

/// Returns which of the selected ExternalWorkloads have addresses of other families only.
fn without_family(service: &Service, workloads: &[ExternalWorkload]) -> Option<String> {
    let families = service.spec.as_ref()?.ip_families.clone().unwrap_or_default();
    let has_family = |workload: &&ExternalWorkload| {
        let ips = workload.spec.iter().flat_map(|spec| spec.workload_ips.iter().flatten());
        let mut addresses = ips.filter_map(|ip| ip.ip.as_deref()?.parse::<IpAddr>().ok()).peekable();
        let is_of = |address: IpAddr| families.iter().any(|family| (family == "IPv6") == address.is_ipv6());
        addresses.peek().is_none() || addresses.any(is_of)
    };
    let others: Vec<&str> = workloads
        .iter()
        .filter(|workload| !families.is_empty() && !has_family(workload))
        .map(|workload| workload.metadata.name.as_deref().unwrap_or_default())
        .collect();
    let named = and_more(others.iter().take(KINDS), others.len(), ", ");
    let have = has_or_have(others.len(), "selected ExternalWorkload");
    (!others.is_empty()).then(|| format!("{have} no {} address, as the Service needs: {named}", families.join(" or ")))
}

fn has_only_other_protocols(service: &Service, port: u16) -> Option<String> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let of_number: Vec<&ServicePort> = ports.filter(|it| it.port == i32::from(port)).collect();
    let protocols: BTreeSet<&str> = of_number.iter().filter_map(|port| port.protocol.as_deref()).collect();
    let only_others = !protocols.is_empty() && !protocols.iter().any(|protocol| carries_tcp(protocol));
    only_others.then(|| {
        let protocols: Vec<&str> = protocols.into_iter().collect();
        format!(
            "the Service has port {port} for {} only, which proxies do not forward: for TCP it does not have the port, and the \
             endpoints have the requested number",
            protocols.join(" and ")
        )
    })
}

fn why_none(service: &Service, slices: &[EndpointSlice], port: u16) -> Option<String> {
    let has = |keys: Option<&BTreeMap<String, String>>, key: &str| keys.is_some_and(|keys| keys.contains_key(key));
    let metadata = &service.metadata;
    let is_federated = has(metadata.labels.as_ref(), REMOTE_DISCOVERY)
        || [REMOTE_DISCOVERY, LOCAL_DISCOVERY_ANNOTATION].iter().any(|key| has(metadata.annotations.as_ref(), key));
    if is_federated {
        // It has the endpoints of other Services.
        return None;
    }
    if slices.is_empty() {
        return Some("it has no EndpointSlice".to_owned());
    }
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let mut tcp = ports.filter(|port| port.protocol.as_deref().is_none_or(carries_tcp));
    let wanted = tcp.find(|it| it.port == i32::from(port)).map(|it| it.name.as_deref().unwrap_or_default());
    // Kubernetes makes an empty slice without ports for a selector that matches no Pod. Beside another one, it explains
    // nothing.
    let has_endpoints = |slice: &&EndpointSlice| !slice.endpoints.is_empty();
    let is_any_filled = slices.iter().any(|slice| has_endpoints(&slice));
    let explaining = slices.iter().filter(|slice| !is_any_filled || has_endpoints(slice));
    let (usable, others): (Vec<_>, Vec<_>) = explaining.partition(|slice| has_port(slice, wanted));
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
        let udp = json!({"ports": [{"name": "mysql", "port": 3306, "protocol": "UDP"}],
            "endpoints": [{"addresses": ["192.0.2.72"]}]});
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
                vec![json!({"ports": []}), unready],
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
    fn workloads_of_another_family_than_the_service_are_named() {
        let workload = |name: &str, ips: &[&str]| -> ExternalWorkload {
            let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            from_value(json!({"metadata": {"name": name}, "spec": {"workloadIPs": ips}})).unwrap()
        };
        let workloads = [
            workload("vm-4", &["192.0.2.5"]),
            workload("vm-6", &["2001:db8::5"]),
            workload("both", &["2001:db8::6", "192.0.2.6"]),
            workload("none", &[]),
            workload("invalid", &["x"]),
        ];
        let of = |families: &[&str]| {
            without_family(&from_value(json!({"spec": {"ipFamilies": families}})).unwrap(), &workloads)
        };
        let expected = "1 selected ExternalWorkload has no IPv4 address, as the Service needs: vm-6";
        assert_eq!(of(&["IPv4"]).as_deref(), Some(expected));
        let expected = "1 selected ExternalWorkload has no IPv6 address, as the Service needs: vm-4";
        assert_eq!(of(&["IPv6"]).as_deref(), Some(expected));
        assert_eq!((of(&["IPv4", "IPv6"]), of(&[])), (None, None));
    }

    /// `e2e/cases/get/ports.yaml` says what the server answers for such a port.
    #[test]
    fn a_port_that_the_service_has_for_other_protocols_only_has_a_note() {
        let note = |ports: Value, port: u16| {
            has_only_other_protocols(&from_value(json!({"spec": {"ports": ports}})).unwrap(), port)
        };
        let udp = json!({"port": 80, "protocol": "UDP"});
        let expected = "the Service has port 80 for UDP only, which proxies do not forward: for TCP it does not have the port, and \
                        the endpoints have the requested number";
        assert_eq!(note(json!([udp]), 80).as_deref(), Some(expected));
        let both = json!([{"port": 80, "protocol": "SCTP"}, udp]);
        assert!(note(both, 80).unwrap().starts_with("the Service has port 80 for SCTP and UDP only"));
        assert_eq!(note(json!([udp, {"port": 80, "protocol": "TCP"}]), 80), None);
        assert_eq!(note(json!([udp]), 81), None);
        assert_eq!(note(json!([{"port": 80}]), 80), None);
    }

    #[test]
    fn the_slices_of_a_federated_service_do_not_explain_anything() {
        for metadata in [
            json!({"labels": {"multicluster.linkerd.io/remote-discovery": "east"}}),
            json!({"annotations": {"multicluster.linkerd.io/remote-discovery": "web@east"}}),
            json!({"annotations": {"multicluster.linkerd.io/local-discovery": "web"}}),
        ] {
            assert_eq!(why_none(&from_value(json!({ "metadata": metadata })).unwrap(), &[], 80), None);
        }
    }
}
