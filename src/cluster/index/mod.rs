//! Object stores, and lookups by address, label, selector and owner.

pub mod active_config;
pub mod address;
pub mod label_selector;
pub mod members;
pub mod names;
pub mod pods;
pub mod selector;
pub mod shared_values;
pub mod store;
pub mod text_set;
pub mod workload_key;
