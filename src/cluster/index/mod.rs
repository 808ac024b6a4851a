//! Stores of objects, and the lookups that join them: by address, by label, by selector, by owner.

pub mod address;
pub mod label_selector;
pub mod names;
pub mod pods;
pub mod selector;
pub mod store;
pub mod workload_key;
