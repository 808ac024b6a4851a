//! Endpoints and their changes as text and as JSON.
//!
//! * In: endpoints, changes, the time. Out: whole lines for standard output.
//! * Always: the table and the array are those of `linkerd diagnostics endpoints`: a table per namespace, three blanks
//!   between columns, the columns for the namespace and the Pod equally wide in all of them. Only the Service of an
//!   endpoint in another cluster is followed by the name of the cluster.

use std::cmp::max;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{
    endpoints::{EndpointRow, EndpointsChange},
    table::{line, widen},
};

const TABLE_HEADER: [&str; 5] = ["NAMESPACE", "IP", "PORT", "POD", "SERVICE"];
const CHANGES_HEADER: [&str; 8] = ["TIME", "CHANGE", "NAMESPACE", "IP", "PORT", "POD", "SERVICE", "DIFFERS"];

/// Prints changes as lines. Columns only grow, because lines that were printed cannot be aligned again.
pub(super) struct ChangeTable {
    widths: [usize; CHANGES_HEADER.len()],
    begun: bool,
}

/// A change of a watch, as one JSON document.
#[derive(Serialize)]
struct ChangeLine<'a, C> {
    time: String,
    authority: &'a str,
    #[serde(flatten)]
    change: &'a C,
}

/// Returns a table for each namespace, or an empty text if there are no endpoints.
pub(super) fn table(mut endpoints: Vec<&EndpointRow>) -> String {
    sort(&mut endpoints);
    let mut of_all = TABLE_HEADER.map(str::len);
    for endpoint in &endpoints {
        widen(&mut of_all, &cells(endpoint));
    }
    let [namespace_width, _, _, pod_width, _] = of_all;
    let mut tables = Vec::new();
    for group in endpoints.chunk_by(|one, other| one.namespace == other.namespace) {
        let rows: Vec<_> = group.iter().map(|endpoint| cells(endpoint)).collect();
        let mut widths = TABLE_HEADER.map(str::len);
        for row in &rows {
            widen(&mut widths, row);
        }
        let [namespace, ip, port, pod, service] = widths;
        let widths = [max(namespace, namespace_width), ip, port, max(pod, pod_width), service];
        let header = line(&TABLE_HEADER.map(str::to_owned), &widths);
        tables.push(std::iter::once(header).chain(rows.iter().map(|row| line(row, &widths))).collect::<String>());
    }
    tables.join("\n")
}

/// Returns one JSON array.
pub(super) fn json(mut endpoints: Vec<&EndpointRow>) -> serde_json::Result<String> {
    sort(&mut endpoints);
    Ok(format!("{}\n", serde_json::to_string_pretty(&endpoints)?))
}

/// Returns one JSON document in one line.
pub(super) fn json_line(time: Timestamp, authority: &str, change: &impl Serialize) -> serde_json::Result<String> {
    let document = ChangeLine { time: written(time), authority, change };
    Ok(format!("{}\n", serde_json::to_string(&document)?))
}

// === impl ChangeTable ===

impl ChangeTable {
    pub(super) fn new() -> Self {
        let [_, _, namespace, ip, port, pod, service, differs] = CHANGES_HEADER.map(str::len);
        let (time, change) = ("2026-11-21T10:00:00.000Z".len(), "changed".len());
        Self { widths: [time, change, namespace, ip, port, pod, service, differs], begun: false }
    }

    /// Returns a line for each endpoint, after a header if these lines are the first ones.
    pub(super) fn lines(&mut self, time: Timestamp, authority: &str, change: &EndpointsChange) -> String {
        let time = written(time);
        let row = |what: &str, endpoint: &EndpointRow, differs: &[&str]| {
            let [namespace, ip, port, pod, service] = cells(endpoint);
            [time.clone(), what.to_owned(), namespace, ip, port, pod, service, differs.join(",")]
        };
        let added = change.added.iter().map(|endpoint| row("added", endpoint, &[]));
        let changed = change.changed.iter().map(|changed| row("changed", &changed.endpoint, &changed.differs));
        let removed = change.removed.iter().map(|endpoint| row("removed", endpoint, &[]));
        let rows: Vec<_> = added.chain(changed).chain(removed).collect();
        for row in &rows {
            widen(&mut self.widths, row);
        }
        let mut text = String::new();
        if !self.begun {
            self.begun = true;
            text.push_str(&line(&CHANGES_HEADER.map(str::to_owned), &self.widths));
        }
        text.extend(rows.iter().map(|row| line(row, &self.widths)));
        if let Some(none) = change.no_endpoints {
            let what = if none.exists { "has no endpoints" } else { "does not exist" };
            text.push_str(&line(&[time, "none".to_owned(), format!("{authority} {what}")], &self.widths));
        }
        text
    }
}

fn cells(endpoint: &EndpointRow) -> [String; TABLE_HEADER.len()] {
    let EndpointRow { namespace, ip, port, pod, service, cluster, .. } = endpoint;
    // As the annotation of a federated Service names a member.
    let service = cluster.as_ref().map_or_else(|| service.clone(), |cluster| format!("{service}@{cluster}"));
    [namespace.clone(), ip.to_string(), port.to_string(), pod.clone(), service]
}

fn sort(endpoints: &mut [&EndpointRow]) {
    endpoints.sort_by(|one, other| {
        let key = |endpoint: &EndpointRow| (endpoint.ip, endpoint.port);
        (&one.namespace, &one.service, key(one)).cmp(&(&other.namespace, &other.service, key(other)))
    });
}

fn written(time: Timestamp) -> String {
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::cli::endpoints::{ChangedEndpoint, NoEndpoints};

    fn endpoint(namespace: &str, service: &str, ip: &str, port: u16, pod: &str) -> EndpointRow {
        EndpointRow {
            cluster: None,
            namespace: namespace.to_owned(),
            ip: ip.parse().unwrap(),
            port,
            pod: pod.to_owned(),
            service: format!("{service}.{namespace}"),
            weight: 10_000,
            http2: None,
            labels: BTreeMap::from([("pod".to_owned(), pod.to_owned())]),
            tls_identity: None,
            server_name: None,
            protocol: None,
            opaque_transport_port: None,
            authority_override: None,
        }
    }

    fn time() -> Timestamp {
        "2026-11-21T10:00:00.0005Z".parse().unwrap()
    }

    #[test]
    fn a_table_is_what_linkerds_command_prints() {
        let (one, other) = (
            endpoint("emojivoto2", "voting-svc", "5.6.7.8", 8080, "voting-7bf9f47bd5-jjdrl"),
            endpoint("emojivoto", "emoji-svc", "1.2.3.4", 8080, "emoji-6bf9f47bd5-jjcrl"),
        );
        let expected = "\
NAMESPACE    IP        PORT   POD                       SERVICE
emojivoto    1.2.3.4   8080   emoji-6bf9f47bd5-jjcrl    emoji-svc.emojivoto

NAMESPACE    IP        PORT   POD                       SERVICE
emojivoto2   5.6.7.8   8080   voting-7bf9f47bd5-jjdrl   voting-svc.emojivoto2
";
        assert_eq!(table(vec![&one, &other]), expected);
    }

    #[test]
    fn rows_are_ordered_by_service_then_address_and_may_lack_a_name() {
        let endpoints = [
            endpoint("prod", "web", "10.0.0.10", 80, ""),
            endpoint("prod", "web", "10.0.0.9", 8080, "b"),
            endpoint("prod", "web", "10.0.0.9", 80, "a"),
            endpoint("prod", "api", "2001:db8::1", 80, "c"),
        ];
        let expected = "\
NAMESPACE   IP            PORT   POD   SERVICE
prod        2001:db8::1   80     c     api.prod
prod        10.0.0.9      80     a     web.prod
prod        10.0.0.9      8080   b     web.prod
prod        10.0.0.10     80           web.prod
";
        assert_eq!(table(endpoints.iter().collect()), expected);
    }

    #[test]
    fn no_endpoints_are_no_table_and_an_empty_array() {
        assert_eq!(table(vec![]), "");
        assert_eq!(json(vec![]).unwrap(), "[]\n");
    }

    #[test]
    fn json_begins_with_the_fields_of_linkerds_command_in_its_order() {
        let expected = r#"[
  {
    "namespace": "prod",
    "ip": "10.0.0.1",
    "port": 80,
    "pod": "web-1",
    "service": "web.prod",
    "weight": 10000,
    "labels": {
      "pod": "web-1"
    }
  }
]
"#;
        assert_eq!(json(vec![&endpoint("prod", "web", "10.0.0.1", 80, "web-1")]).unwrap(), expected);
    }

    #[test]
    fn changes_are_lines_with_the_time_under_one_header() {
        let mut changes = ChangeTable::new();
        let change = EndpointsChange {
            added: vec![endpoint("prod", "web", "10.0.0.1", 80, "web-1")],
            ..EndpointsChange::default()
        };
        let expected = "\
TIME                       CHANGE    NAMESPACE   IP         PORT   POD     SERVICE    DIFFERS
2026-11-21T10:00:00.000Z   added     prod        10.0.0.1   80     web-1   web.prod
";
        assert_eq!(changes.lines(time(), "web.prod:80", &change), expected);
        let change = EndpointsChange {
            changed: vec![ChangedEndpoint {
                endpoint: endpoint("prod", "web", "10.0.0.1", 80, "web-1"),
                differs: vec!["weight", "labels"],
            }],
            removed: vec![endpoint("prod", "web", "10.0.0.22", 80, "web-2")],
            ..EndpointsChange::default()
        };
        let expected = "\
2026-11-21T10:00:00.000Z   changed   prod        10.0.0.1    80     web-1   web.prod   weight,labels
2026-11-21T10:00:00.000Z   removed   prod        10.0.0.22   80     web-2   web.prod
";
        assert_eq!(changes.lines(time(), "web.prod:80", &change), expected);
    }

    #[test]
    fn no_endpoints_is_a_line_too() {
        let none =
            |exists| EndpointsChange { no_endpoints: Some(NoEndpoints { exists }), ..EndpointsChange::default() };
        let lines = ChangeTable::new().lines(time(), "web.prod:80", &none(true));
        assert!(lines.ends_with("\n2026-11-21T10:00:00.000Z   none      web.prod:80 has no endpoints\n"), "{lines}");
        let lines = ChangeTable::new().lines(time(), "web.prod:80", &none(false));
        assert!(lines.ends_with("   web.prod:80 does not exist\n"), "{lines}");
    }

    #[test]
    fn a_change_is_one_line_of_json_with_its_time_and_authority() {
        let change = EndpointsChange {
            added: vec![endpoint("prod", "web", "10.0.0.1", 80, "web-1")],
            changed: vec![ChangedEndpoint {
                endpoint: endpoint("prod", "web", "10.0.0.2", 80, "b"),
                differs: vec!["weight"],
            }],
            removed: vec![],
            no_endpoints: None,
        };
        let line = json_line(time(), "web.prod:80", &change).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        let document: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(document["time"], "2026-11-21T10:00:00.000Z");
        assert_eq!(document["authority"], "web.prod:80");
        assert_eq!(document["added"][0]["pod"], "web-1");
        assert_eq!(document["changed"][0]["ip"], "10.0.0.2");
        assert_eq!(document["changed"][0]["differs"], json!(["weight"]));
        assert!(document.get("removed").is_none() && document.get("no_endpoints").is_none(), "{line}");
        let none = EndpointsChange { no_endpoints: Some(NoEndpoints { exists: true }), ..EndpointsChange::default() };
        let document: Value = serde_json::from_str(&json_line(time(), "web.prod:80", &none).unwrap()).unwrap();
        assert_eq!(document["no_endpoints"], json!({"exists": true}));
    }
}
