//! Messages as Go's encoding/json writes the structs that protoc-gen-go makes of them, which is what Linkerd's commands print.
//!
//! * In: a message. Out: its [`Value`], for serde.
//! * Always: fields stand in the order of the protocol file under their names there, and those that are zero are left out. A oneof has
//!   no name in JSON: it appears under that of its Go field, with the choice as an object below, and as `null` where nothing is chosen.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::proto::{
    destination::{
        DestinationProfile, Http2ClientParams, HttpStatusRange, ProtocolHint, RequestMatch, ResponseClass,
        ResponseMatch, RetryBudget, Route, TlsIdentity, WeightedAddr, WeightedDst,
        http2_client_params::{FlowControl, Internals, KeepAlive},
        protocol_hint::Protocol,
        request_match, response_match,
        tls_identity::{DnsLikeIdentity, Strategy},
    },
    http_types::{HttpMethod, http_method},
    meta::{Metadata, metadata},
    net::{IpAddress, TcpAddress, ip_address::Ip},
};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A message that is not there.
    Nil,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f32),
    Text(String),
    List(Vec<Value>),
    Labels(BTreeMap<String, String>),
    Message(Vec<(&'static str, Value)>),
    /// What is chosen, and under which name.
    OneOf(Option<(&'static str, Box<Value>)>),
}

/// A document that is the same, byte by byte, as that of Go, which writes for browsers too.
pub(super) fn escaped(json: &str) -> Cow<'_, str> {
    const SPECIAL: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    if !json.contains(SPECIAL) {
        return Cow::Borrowed(json);
    }
    // They stand nowhere but in texts.
    let of = |char: char| if SPECIAL.contains(&char) { format!("\\u{:04x}", u32::from(char)) } else { char.into() };
    Cow::Owned(json.chars().map(of).collect())
}

// === impl Value ===

impl Value {
    fn is_zero(&self) -> bool {
        match self {
            Self::Nil => true,
            Self::Bool(value) => !value,
            Self::Signed(value) => *value == 0,
            Self::Unsigned(value) => *value == 0,
            Self::Float(value) => *value == 0.0,
            Self::Text(value) => value.is_empty(),
            Self::List(values) => values.is_empty(),
            Self::Labels(labels) => labels.is_empty(),
            Self::Message(_) | Self::OneOf(_) => false,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil | Self::OneOf(None) => to.serialize_unit(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Signed(value) => to.serialize_i64(*value),
            Self::Unsigned(value) => to.serialize_u64(*value),
            Self::Float(value) => float(*value, to),
            Self::Text(value) => to.serialize_str(value),
            Self::List(values) => to.collect_seq(values),
            Self::Labels(labels) => to.collect_map(labels),
            Self::Message(fields) => {
                let mut map = to.serialize_map(None)?;
                for (name, value) in fields.iter().filter(|(_, value)| !value.is_zero()) {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
            Self::OneOf(Some((name, value))) => to.collect_map([(name, value)]),
        }
    }
}

/// Go writes 1 where serde writes 1.0. Rust's own text is Go's: the fewest digits that mean the number.
fn float<S: Serializer>(value: f32, to: S) -> Result<S::Ok, S::Error> {
    match value.to_string().parse::<i64>() {
        Ok(whole) => to.serialize_i64(whole),
        Err(_) => to.serialize_f32(value),
    }
}

// === the kinds of fields ===

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i32> for Value {
    fn from(value: i32) -> Self {
        Self::Signed(value.into())
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Unsigned(value.into())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

fn message<const FIELDS: usize>(fields: [(&'static str, Value); FIELDS]) -> Value {
    Value::Message(fields.into())
}

fn optional<T>(message: Option<&T>, write: impl Fn(&T) -> Value) -> Value {
    message.map_or(Value::Nil, write)
}

fn list<T>(messages: &[T], write: impl Fn(&T) -> Value) -> Value {
    Value::List(messages.iter().map(write).collect())
}

fn one_of<T>(choice: Option<&T>, write: impl Fn(&T) -> (&'static str, Value)) -> Value {
    Value::OneOf(choice.map(write).map(|(name, value)| (name, Box::new(value))))
}

// === the messages ===

pub(super) fn profile(profile: &DestinationProfile) -> Value {
    message([
        ("fully_qualified_name", profile.fully_qualified_name.as_str().into()),
        ("opaque_protocol", profile.opaque_protocol.into()),
        ("routes", list(&profile.routes, route)),
        ("retry_budget", optional(profile.retry_budget.as_ref(), retry_budget)),
        ("dst_overrides", list(&profile.dst_overrides, weighted_dst)),
        ("endpoint", optional(profile.endpoint.as_ref(), weighted_addr)),
        ("parent_ref", optional(profile.parent_ref.as_ref(), metadata)),
        ("profile_ref", optional(profile.profile_ref.as_ref(), metadata)),
    ])
}

pub(super) fn http2(params: &Http2ClientParams) -> Value {
    let flow_control = |flow: &FlowControl| {
        message([
            ("initial_connection_window_size", flow.initial_connection_window_size.into()),
            ("initial_stream_window_size", flow.initial_stream_window_size.into()),
            ("adaptive_flow_control", flow.adaptive_flow_control.into()),
        ])
    };
    let keep_alive = |keep_alive: &KeepAlive| {
        message([
            ("interval", optional(keep_alive.interval.as_ref(), duration)),
            ("timeout", optional(keep_alive.timeout.as_ref(), duration)),
            ("while_idle", keep_alive.while_idle.into()),
        ])
    };
    let internals = |internals: &Internals| {
        message([
            ("max_concurrent_reset_streams", internals.max_concurrent_reset_streams.into()),
            ("max_frame_size", internals.max_frame_size.into()),
            ("max_send_buf_size", internals.max_send_buf_size.into()),
        ])
    };
    message([
        ("flow_control", optional(params.flow_control.as_ref(), flow_control)),
        ("keep_alive", optional(params.keep_alive.as_ref(), keep_alive)),
        ("internals", optional(params.internals.as_ref(), internals)),
    ])
}

fn route(route: &Route) -> Value {
    message([
        ("condition", optional(route.condition.as_ref(), request_match)),
        ("response_classes", list(&route.response_classes, response_class)),
        ("metrics_labels", Value::Labels(route.metrics_labels.clone())),
        ("is_retryable", route.is_retryable.into()),
        ("timeout", optional(route.timeout.as_ref(), duration)),
    ])
}

fn request_match(condition: &RequestMatch) -> Value {
    use request_match::Match;
    let all_of = |seq: &request_match::Seq| message([("matches", list(&seq.matches, request_match))]);
    let choice = one_of(condition.r#match.as_ref(), |choice| match choice {
        Match::All(seq) => ("All", all_of(seq)),
        Match::Any(seq) => ("Any", all_of(seq)),
        Match::Not(other) => ("Not", request_match(other)),
        Match::Path(path) => ("Path", message([("regex", path.regex.as_str().into())])),
        Match::Method(method) => ("Method", http_method(method)),
    });
    message([("Match", choice)])
}

fn http_method(method: &HttpMethod) -> Value {
    let choice = one_of(method.r#type.as_ref(), |choice| match choice {
        http_method::Type::Registered(number) => ("Registered", (*number).into()),
        http_method::Type::Unregistered(name) => ("Unregistered", name.as_str().into()),
    });
    message([("Type", choice)])
}

fn response_class(class: &ResponseClass) -> Value {
    message([
        ("condition", optional(class.condition.as_ref(), response_match)),
        ("is_failure", class.is_failure.into()),
    ])
}

fn response_match(condition: &ResponseMatch) -> Value {
    use response_match::Match;
    let all_of = |seq: &response_match::Seq| message([("matches", list(&seq.matches, response_match))]);
    let range = |range: &HttpStatusRange| message([("min", range.min.into()), ("max", range.max.into())]);
    let choice = one_of(condition.r#match.as_ref(), |choice| match choice {
        Match::All(seq) => ("All", all_of(seq)),
        Match::Any(seq) => ("Any", all_of(seq)),
        Match::Not(other) => ("Not", response_match(other)),
        Match::Status(status) => ("Status", range(status)),
    });
    message([("Match", choice)])
}

fn retry_budget(budget: &RetryBudget) -> Value {
    message([
        ("retry_ratio", Value::Float(budget.retry_ratio)),
        ("min_retries_per_second", budget.min_retries_per_second.into()),
        ("ttl", optional(budget.ttl.as_ref(), duration)),
    ])
}

fn weighted_dst(dst: &WeightedDst) -> Value {
    message([
        ("authority", dst.authority.as_str().into()),
        ("weight", dst.weight.into()),
        ("backend_ref", optional(dst.backend_ref.as_ref(), metadata)),
    ])
}

fn weighted_addr(told: &WeightedAddr) -> Value {
    let authority = told.authority_override.as_ref();
    message([
        ("addr", optional(told.addr.as_ref(), tcp_address)),
        ("weight", told.weight.into()),
        ("metric_labels", Value::Labels(told.metric_labels.clone())),
        ("tls_identity", optional(told.tls_identity.as_ref(), tls_identity)),
        ("protocol_hint", optional(told.protocol_hint.as_ref(), protocol_hint)),
        (
            "authority_override",
            optional(authority, |it| message([("authority_override", it.authority_override.as_str().into())])),
        ),
        ("http2", optional(told.http2.as_ref(), http2)),
        ("resource_ref", optional(told.resource_ref.as_ref(), metadata)),
    ])
}

fn tcp_address(address: &TcpAddress) -> Value {
    let ip = |ip: &IpAddress| {
        let choice = one_of(ip.ip.as_ref(), |choice| match choice {
            Ip::Ipv4(bits) => ("Ipv4", (*bits).into()),
            Ip::Ipv6(ip) => {
                ("Ipv6", message([("first", Value::Unsigned(ip.first)), ("last", Value::Unsigned(ip.last))]))
            }
        });
        message([("Ip", choice)])
    };
    message([("ip", optional(address.ip.as_ref(), ip)), ("port", address.port.into())])
}

fn tls_identity(identity: &TlsIdentity) -> Value {
    let dns = |identity: &DnsLikeIdentity| message([("name", identity.name.as_str().into())]);
    let strategy = one_of(identity.strategy.as_ref(), |strategy| match strategy {
        Strategy::DnsLikeIdentity(identity) => ("DnsLikeIdentity", dns(identity)),
        Strategy::UriLikeIdentity(identity) => ("UriLikeIdentity", message([("uri", identity.uri.as_str().into())])),
    });
    message([("Strategy", strategy), ("server_name", optional(identity.server_name.as_ref(), dns))])
}

fn protocol_hint(hint: &ProtocolHint) -> Value {
    let protocol = one_of(hint.protocol.as_ref(), |protocol| match protocol {
        Protocol::H2(_) => ("H2", message([])),
        Protocol::Opaque(_) => ("Opaque", message([])),
    });
    let transport = optional(hint.opaque_transport.as_ref(), |it| message([("inbound_port", it.inbound_port.into())]));
    message([("Protocol", protocol), ("opaque_transport", transport)])
}

fn metadata(metadata: &Metadata) -> Value {
    let kind = one_of(metadata.kind.as_ref(), |kind| match kind {
        metadata::Kind::Default(name) => ("Default", name.as_str().into()),
        metadata::Kind::Resource(resource) => (
            "Resource",
            message([
                ("group", resource.group.as_str().into()),
                ("kind", resource.kind.as_str().into()),
                ("name", resource.name.as_str().into()),
                ("namespace", resource.namespace.as_str().into()),
                ("section", resource.section.as_str().into()),
                ("port", resource.port.into()),
            ]),
        ),
    });
    message([("Kind", kind)])
}

fn duration(duration: &prost_types::Duration) -> Value {
    message([("seconds", Value::Signed(duration.seconds)), ("nanos", duration.nanos.into())])
}

#[cfg(test)]
#[path = "go_tests.rs"]
mod tests;
