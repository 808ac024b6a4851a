//! The settings that flags of the destination server set.
//!
//! * In: flags as `--name=value`, in the syntax of Linkerd's container. Out: the oracle's [`Settings`].
//! * Always: every setting has a flag, and an unknown flag is an error.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use linkerd2_proxy_api::destination::{Http2ClientParams, http2_client_params};
use prost_types::Duration;
use serde::Deserialize;
use serde_json::Value;

use crate::oracle::Settings;

/// Values by name, without dashes.
pub(super) type Flags = BTreeMap<String, String>;

/// Replaces the flags that `changed` has.
pub(super) fn with(flags: &Flags, changed: &[String]) -> Result<Flags> {
    let mut flags = flags.clone();
    for flag in changed {
        let (name, value) = parse(flag)?;
        flags.insert(name, value);
    }
    Ok(flags)
}

pub(super) fn parse(flag: &str) -> Result<(String, String)> {
    let flag = flag.strip_prefix("--").with_context(|| format!("the flag {flag:?} does not begin with two dashes"))?;
    let (name, value) = flag.split_once('=').with_context(|| format!("the flag {flag:?} has no value"))?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) fn settings(flags: &Flags) -> Result<Settings> {
    let mut flags = flags.clone();
    let mut take = |name: &str| flags.remove(name).with_context(|| format!("the flag --{name} is not set"));
    let settings = Settings {
        cluster_domain: take("cluster-domain")?,
        trust_domain: take("identity-trust-domain")?,
        controller_namespace: take("controller-namespace")?,
        default_opaque_ports: take("default-opaque-ports")?,
        transport_header: match take("outbound-transport-mode")?.as_str() {
            "transport-header" => true,
            "transparent" => false,
            other => bail!("--outbound-transport-mode={other} is unknown"),
        },
        h2_upgrade: take("enable-h2-upgrade")?.parse()?,
        ipv6: take("enable-ipv6")?.parse()?,
        zone_weights: take("ext-endpoint-zone-weights")?.parse()?,
        http2: match take("meshed-http2-client-params")?.as_str() {
            "" => None,
            text => Some(http2(&serde_json::from_str(text)?)?),
        },
    };
    match flags.keys().next() {
        None => Ok(settings),
        Some(unknown) => bail!("the flag --{unknown} does not change answers"),
    }
}

/// The HTTP/2 parameters, with the names of the protocol.
pub(super) fn http2(params: &Value) -> Result<Http2ClientParams> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Params {
        keep_alive: KeepAlive,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct KeepAlive {
        interval: Time,
        timeout: Time,
        #[serde(default)]
        while_idle: bool,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Time {
        seconds: i64,
    }
    let Params { keep_alive: KeepAlive { interval, timeout, while_idle } } =
        serde_json::from_value(params.clone()).with_context(|| format!("HTTP/2 parameters: {params}"))?;
    let duration = |Time { seconds }| Some(Duration { seconds, nanos: 0 });
    let keep_alive =
        http2_client_params::KeepAlive { interval: duration(interval), timeout: duration(timeout), while_idle };
    Ok(Http2ClientParams { keep_alive: Some(keep_alive), ..Http2ClientParams::default() })
}
