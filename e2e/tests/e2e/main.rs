//! The end-to-end tests: one binary, so that they share one control plane; a module per topic.

mod cli;
mod crd;
mod discovery;
mod drop_in;
mod explain;
mod external_workload;
mod fault_proxy;
mod faults;
mod harness;
mod injector;
mod leadership;
#[allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "a test that panics says where; JSON without a field is null"
)]
mod linkerd_config;
mod linkerd_config_crd;
#[allow(clippy::indexing_slicing, reason = "a test that panics says where; JSON without a field is null")]
mod manifests;
mod placement;
mod process;
mod profile;
mod values_yaml;
