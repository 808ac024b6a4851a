//! How a slice's port is found for a requested port. Pure.

use super::request::QueryPort;
use crate::cluster::kinds::{endpoint_slice::ready::ReadySlice, service::Service};

/// A port of slices: its name, or a number that a slice need not contain.
pub(super) enum PortSelector<'a> {
    Named(&'a str),
    Number(u16),
}

// === impl PortSelector ===

impl<'a> PortSelector<'a> {
    /// Selects by the name of the first TCP port of the Service with this number. A number that the Service does not
    /// declare is used unchanged by each client; in the shared set it is 0.
    pub(super) fn new(service: Option<&'a Service>, port: QueryPort) -> Self {
        let QueryPort::Declared(port) = port else { return Self::Number(0) };
        let declared = service.and_then(|service| service.tcp_ports().find(|it| it.number == i32::from(port)));
        declared.map_or(Self::Number(port), |port| Self::Named(&port.name))
    }

    /// Returns `None` if the endpoints of the slice do not have the port.
    pub(super) fn in_slice(&self, slice: &ReadySlice) -> Option<u16> {
        let ports = slice.ports.as_deref()?;
        match self {
            Self::Named(name) => ports.iter().find(|port| *port.name == **name)?.number,
            Self::Number(number) => Some(*number),
        }
    }
}
