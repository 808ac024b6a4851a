//! The TCP ports of a Pod's containers.

use std::sync::Arc;

use serde::Deserialize;

use crate::api::carries_tcp;

/// A TCP port of a container, init containers included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerPort {
    /// Empty for an unnamed port.
    pub name: Arc<str>,
    pub number: u16,
    pub host_port: Option<u16>,
}

/// A port as the API server sends it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerPortObject {
    name: Option<String>,
    container_port: i64,
    host_port: Option<i64>,
    protocol: Option<String>,
}

// === impl ContainerPort ===

impl ContainerPort {
    /// Returns `None` for a number that is not a port: the API server does not accept it, and no request can match it.
    /// Returns `None` also for a protocol other than TCP: two Pods may have one host port for two protocols, and
    /// proxies forward only TCP.
    pub(super) fn parse(object: &ContainerPortObject) -> Option<Self> {
        if !object.protocol.as_deref().is_none_or(carries_tcp) {
            return None;
        }
        let port = |number| u16::try_from(number).ok().filter(|port| *port != 0);
        Some(Self {
            name: object.name.as_deref().unwrap_or_default().into(),
            number: port(object.container_port)?,
            host_port: object.host_port.and_then(port),
        })
    }
}
