//! The LinkerdConfig controller: the mesh's proxy configuration, as one resource declares it.
//!
//! Only [`values`] knows Linkerd's document and YAML.

pub mod values;
