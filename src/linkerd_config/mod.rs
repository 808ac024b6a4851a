//! The LinkerdConfig controller: the mesh's proxy configuration, as one resource declares it.
//!
//! Always holds: what the resource does not name stays the installer's; what is broken is not made worse; a base is kept before
//! it is written over; nothing is written when nothing changed. Only [`values`] knows Linkerd's document and YAML.

pub mod base;
pub mod drift;
pub mod overlay;
pub mod plan;
pub mod values;
