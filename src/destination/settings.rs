//! The settings of the destination server, which its flags set.

use std::{str::FromStr, sync::Arc, time::Duration};

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    cluster::kinds::port_ranges::PortRanges,
    memory::MemoryBudget,
    proto::destination::{Http2ClientParams, http2_client_params},
};

#[derive(Clone, Debug)]
pub struct DestinationSettings {
    /// The namespace of the control plane. Only Pods of its mesh have an identity.
    pub controller_namespace: Arc<str>,
    pub cluster_domain: String,
    /// The trust domain of identities. If it is empty, no Pod has an identity.
    pub identity_trust_domain: String,
    pub default_opaque_ports: PortRanges,
    pub outbound_transport_mode: TransportMode,
    pub enable_h2_upgrade: bool,
    pub enable_ipv6: bool,
    pub ext_endpoint_zone_weights: bool,
    pub meshed_http2_client_params: Http2Params,
    /// Never send `no_endpoints`.
    pub strict_upstream_parity: bool,
    pub limits: DestinationLimits,
}

/// The limits for clients.
#[derive(Clone, Debug)]
pub struct DestinationLimits {
    pub memory: MemoryBudget,
    pub connections: usize,
    /// Streams of all connections together.
    pub streams: usize,
    pub streams_per_connection: u32,
    /// The maximum time that a request waits in the queue. After it the request is refused, because its client is about
    /// to time out and retry.
    pub stream_wait: Duration,
    /// The maximum time for which a client may accept none of its pending data.
    pub stream_stall_timeout: Duration,
}

/// How proxies send traffic to meshed endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportMode {
    /// To the proxy's inbound port, with a header that names the target; always used for opaque traffic.
    TransportHeader,
    /// To the target's port, from which it is redirected to the proxy.
    Transparent,
}

/// HTTP/2 settings for connections to meshed endpoints; with `None` the proxy uses its defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Http2Params(pub Option<Http2ClientParams>);

// === impl Http2Params ===

/// Parses the JSON that Linkerd's charts pass, with the field names of the protocol and with durations as
/// `{"seconds": 10, "nanos": 0}`. Like Go, it accepts keys in any case and ignores unknown keys.
impl FromStr for Http2Params {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Params {
            flow_control: Option<FlowControl>,
            keep_alive: Option<KeepAlive>,
            internals: Option<Internals>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct FlowControl {
            initial_connection_window_size: u32,
            initial_stream_window_size: u32,
            adaptive_flow_control: bool,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct KeepAlive {
            interval: Option<Seconds>,
            timeout: Option<Seconds>,
            while_idle: bool,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Seconds {
            seconds: i64,
            nanos: i32,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Internals {
            max_concurrent_reset_streams: u32,
            max_frame_size: u32,
            max_send_buf_size: u32,
        }
        if text.trim().is_empty() {
            return Ok(Self(None));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| format!("the value is not JSON: {error}"))?;
        let params: Params = serde_json::from_value(lower_case(value))
            .map_err(|error| format!("a field has the wrong type: {error}"))?;
        let duration =
            |it: Option<Seconds>| it.map(|it| prost_types::Duration { seconds: it.seconds, nanos: it.nanos });
        Ok(Self(Some(Http2ClientParams {
            flow_control: params.flow_control.map(|it| http2_client_params::FlowControl {
                initial_connection_window_size: it.initial_connection_window_size,
                initial_stream_window_size: it.initial_stream_window_size,
                adaptive_flow_control: it.adaptive_flow_control,
            }),
            keep_alive: params.keep_alive.map(|it| http2_client_params::KeepAlive {
                interval: duration(it.interval),
                timeout: duration(it.timeout),
                while_idle: it.while_idle,
            }),
            internals: params.internals.map(|it| http2_client_params::Internals {
                max_concurrent_reset_streams: it.max_concurrent_reset_streams,
                max_frame_size: it.max_frame_size,
                max_send_buf_size: it.max_send_buf_size,
            }),
        })))
    }
}

/// Converts keys to lower case. Also drops `null` values, which Go treats as absent.
fn lower_case(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.map(|(key, value)| (key.to_ascii_lowercase(), lower_case(value))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Http2ClientParams>, String> {
        text.parse::<Http2Params>().map(|params| params.0)
    }

    #[test]
    fn the_value_of_linkerds_charts_is_accepted() {
        let text = r#"{"keep_alive":{"interval":{"seconds":10},"timeout":{"seconds":3},"while_idle":true}}"#;
        let keep_alive = parse(text).unwrap().unwrap().keep_alive.unwrap();
        let seconds = |it: Option<prost_types::Duration>| it.unwrap().seconds;
        assert_eq!((seconds(keep_alive.interval), seconds(keep_alive.timeout), keep_alive.while_idle), (10, 3, true));
    }

    #[test]
    fn keys_match_in_any_case_and_unknown_keys_are_ignored() {
        let text = r#"{"Flow_Control":{"INITIAL_STREAM_WINDOW_SIZE":7},"keepAlive":{},"internals":null}"#;
        let params = parse(text).unwrap().unwrap();
        assert_eq!(params.flow_control.unwrap().initial_stream_window_size, 7);
        assert_eq!((params.keep_alive, params.internals), (None, None));
        assert_eq!(parse(" ").unwrap(), None);
        assert_eq!(parse("{}").unwrap(), Some(Http2ClientParams::default()));
    }

    #[test]
    fn durations_as_text_and_malformed_json_are_rejected_with_a_reason() {
        assert!(parse(r#"{"keep_alive":{"interval":"10s"}}"#).unwrap_err().contains("wrong type"));
        assert!(parse("{").unwrap_err().contains("not JSON"));
    }
}
