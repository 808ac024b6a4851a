//! The containers of Linkerd's control plane that this program replaces. It imports no other module.

/// A container of Linkerd that a subcommand with its name replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropIn {
    Destination,
    Identity,
    ProxyInjector,
    SpValidator,
}

/// All containers that can be replaced.
pub const DROP_INS: [DropIn; 4] = [DropIn::Destination, DropIn::Identity, DropIn::ProxyInjector, DropIn::SpValidator];

impl DropIn {
    /// Returns the name of the container, which is also that of the subcommand.
    pub const fn container(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Identity => "identity",
            Self::ProxyInjector => "proxy-injector",
            Self::SpValidator => "sp-validator",
        }
    }

    /// Returns the component whose Pods have the container, as their label names it.
    pub const fn component(self) -> &'static str {
        match self {
            Self::Destination | Self::SpValidator => "destination",
            Self::Identity => "identity",
            Self::ProxyInjector => "proxy-injector",
        }
    }
}
