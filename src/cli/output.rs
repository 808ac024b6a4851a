//! Endpoints and their changes as text and as documents.
//!
//! In: endpoints, changes, the time. Out: whole lines for standard output, and the content of documents. Always holds:
//! the table and the array are those of `linkerd diagnostics endpoints`: a table per namespace, three blanks between
//! columns, the columns for the namespace and the Pod equally wide in all of them. Only the Service of an endpoint in
//! another cluster is followed by the name of the cluster.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::{
    destination_client::endpoints::{EndpointRow, EndpointsChange},
    text::table::{line, widen},
};

const TABLE_HEADER: [&str; 5] = ["NAMESPACE", "IP", "PORT", "POD", "SERVICE"];
/// The additional columns of a wide table.
const WIDE_HEADER: [&str; 3] = ["WEIGHT", "PROTOCOL", "IDENTITY"];
const CHANGES_HEADER: [&str; 8] = ["TIME", "CHANGE", "NAMESPACE", "IP", "PORT", "POD", "SERVICE", "DIFFERS"];

/// Prints changes as lines. Columns only grow, because lines that were printed cannot be aligned again.
pub(super) struct ChangeTable {
    widths: [usize; CHANGES_HEADER.len()],
    needs_header: bool,
}

/// The form of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableStyle {
    /// With the columns of [`WIDE_HEADER`].
    pub(super) wide: bool,
    pub(super) no_headers: bool,
}

/// A change of a watch, as one document.
#[derive(Serialize)]
pub(super) struct ChangeDocument<'a, C> {
    time: String,
    authority: &'a str,
    #[serde(flatten)]
    change: &'a C,
}

/// Returns the endpoints in the order of the output.
pub(super) fn sorted(mut endpoints: Vec<&EndpointRow>) -> Vec<&EndpointRow> {
    endpoints.sort_by(|one, other| {
        let key = |endpoint: &EndpointRow| (endpoint.ip, endpoint.port);
        (&one.namespace, &one.service, key(one)).cmp(&(&other.namespace, &other.service, key(other)))
    });
    endpoints
}

/// Returns a table for each namespace of sorted endpoints, or an empty text if there are no endpoints.
pub(super) fn table(endpoints: &[&EndpointRow], style: TableStyle) -> String {
    let header: Vec<String> = match style.no_headers {
        true => Vec::new(),
        false => TABLE_HEADER
            .iter()
            .chain(style.wide.then_some(&WIDE_HEADER).into_iter().flatten())
            .map(|it| (*it).to_owned())
            .collect(),
    };
    let row = |endpoint: &EndpointRow| match style.wide {
        true => cells(endpoint).into_iter().chain(wide_cells(endpoint)).collect(),
        false => cells(endpoint).to_vec(),
    };
    let groups = endpoints.chunk_by(|one, other| one.namespace == other.namespace);
    let groups: Vec<Vec<Vec<String>>> = groups
        .map(|group| [header.clone()].into_iter().chain(group.iter().map(|endpoint| row(endpoint))).collect())
        .collect();
    let widths_of = |rows: &mut dyn Iterator<Item = &Vec<String>>| {
        let mut widths = [0; TABLE_HEADER.len() + WIDE_HEADER.len()];
        rows.for_each(|row| widen(&mut widths, row));
        widths
    };
    let [namespace_width, _, _, pod_width, ..] = widths_of(&mut groups.iter().flatten());
    let tables = groups.iter().map(|rows| {
        let mut widths = widths_of(&mut rows.iter());
        let [namespace, _, _, pod, ..] = &mut widths;
        (*namespace, *pod) = (namespace_width, pod_width);
        rows.iter().filter(|row| !row.is_empty()).map(|row| line(row, &widths)).collect::<String>()
    });
    tables.collect::<Vec<_>>().join("\n")
}

// === impl ChangeDocument ===

impl<'a, C> ChangeDocument<'a, C> {
    pub(super) fn new(time: Timestamp, authority: &'a str, change: &'a C) -> Self {
        Self { time: written(time), authority, change }
    }
}

// === impl ChangeTable ===

impl ChangeTable {
    pub(super) fn new(no_headers: bool) -> Self {
        let [_, _, namespace, ip, port, pod, service, differs] = CHANGES_HEADER.map(str::len);
        let (time, change) = ("2026-11-21T10:00:00.000Z".len(), "changed".len());
        Self { widths: [time, change, namespace, ip, port, pod, service, differs], needs_header: !no_headers }
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
        if self.needs_header {
            self.needs_header = false;
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

fn wide_cells(endpoint: &EndpointRow) -> [String; WIDE_HEADER.len()] {
    let EndpointRow { weight, protocol, tls_identity, .. } = endpoint;
    [weight.to_string(), protocol.unwrap_or_default().to_owned(), tls_identity.clone().unwrap_or_default()]
}

fn written(time: Timestamp) -> String {
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cli::DocumentFormat,
        destination_client::endpoints::{ChangedEndpoint, NoEndpoints},
    };

    #[test]
    fn a_tenant_cannot_write_to_the_terminal_or_forge_a_row() {
        let mut one = endpoint("prod", "web", "10.1.1.1", 8080, "web-1");
        one.tls_identity = Some("spiffe://a\u{1b}[2J\nprod   10.9.9.9".to_owned());
        let table = table(&[&one], TableStyle { wide: true, no_headers: true });
        assert_eq!(table.lines().count(), 1, "{table}");
        assert!(table.ends_with("   spiffe://a\\u001b[2J\\nprod   10.9.9.9\n"), "{table}");
    }

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

    fn json_line(change: &EndpointsChange) -> String {
        DocumentFormat::Json.next(&ChangeDocument::new(time(), "web.prod:80", change)).unwrap()
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
        assert_eq!(table(&sorted(vec![&one, &other]), TableStyle::default()), expected);
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
        assert_eq!(table(&sorted(endpoints.iter().collect()), TableStyle::default()), expected);
    }

    #[test]
    fn no_endpoints_are_no_table_and_an_empty_array() {
        assert_eq!(table(&[], TableStyle::default()), "");
        let none: [EndpointRow; 0] = [];
        assert_eq!(DocumentFormat::Json.print(&none).unwrap(), "[]\n");
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
        let endpoints = [endpoint("prod", "web", "10.0.0.1", 80, "web-1")];
        assert_eq!(DocumentFormat::Json.print(&endpoints).unwrap(), expected);
    }

    #[test]
    fn a_wide_table_has_more_columns_and_a_table_without_headers_only_rows() {
        let mut one = endpoint("prod", "web", "10.0.0.1", 80, "web-1");
        one.protocol = Some("h2");
        one.tls_identity = Some("web.prod.serviceaccount.identity.linkerd.cluster.local".to_owned());
        let other = endpoint("prod", "web", "10.0.0.2", 80, "web-2");
        let style = TableStyle { wide: true, no_headers: false };
        let expected = "\
NAMESPACE   IP         PORT   POD     SERVICE    WEIGHT   PROTOCOL   IDENTITY
prod        10.0.0.1   80     web-1   web.prod   10000    h2         web.prod.serviceaccount.identity.linkerd.cluster.local
prod        10.0.0.2   80     web-2   web.prod   10000
";
        assert_eq!(table(&[&one, &other], style), expected);
        let style = TableStyle { wide: false, no_headers: true };
        assert_eq!(table(&[&other], style), "prod   10.0.0.2   80   web-2   web.prod\n");
    }

    #[test]
    fn changes_are_lines_with_the_time_under_one_header() {
        let mut changes = ChangeTable::new(false);
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
        let lines = ChangeTable::new(false).lines(time(), "web.prod:80", &none(true));
        assert!(lines.ends_with("\n2026-11-21T10:00:00.000Z   none      web.prod:80 has no endpoints\n"), "{lines}");
        let lines = ChangeTable::new(false).lines(time(), "web.prod:80", &none(false));
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
        let line = json_line(&change);
        assert_eq!(line.matches('\n').count(), 1);
        let document: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(document["time"], "2026-11-21T10:00:00.000Z");
        assert_eq!(document["authority"], "web.prod:80");
        assert_eq!(document["added"][0]["pod"], "web-1");
        assert_eq!(document["changed"][0]["ip"], "10.0.0.2");
        assert_eq!(document["changed"][0]["differs"], json!(["weight"]));
        assert!(document.get("removed").is_none() && document.get("no_endpoints").is_none(), "{line}");
        let none = EndpointsChange { no_endpoints: Some(NoEndpoints { exists: true }), ..EndpointsChange::default() };
        let document: Value = serde_json::from_str(&json_line(&none)).unwrap();
        assert_eq!(document["no_endpoints"], json!({"exists": true}));
    }
}
