//! The end-to-end tests, one module per topic. They are one binary, so that they share one control plane.

#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod admission;
mod cases;
mod check;
mod cli;
mod completion;
mod crd;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod dashboard;
mod discovery;
mod drop_in;
mod explain;
mod external_workload;
mod fault_proxy;
mod faults;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod from_nothing;
mod harness;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod helm_charts;
mod identity;
mod leadership;
#[allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "a panic reports its location; indexing JSON by an absent field returns null"
)]
mod linkerd_config;
mod linkerd_config_crd;
mod linkerd_trust;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod manifests;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod monitoring;
mod multicluster;
mod other_version;
mod page;
mod process;
mod profile;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod proxy_injector;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod release;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod runbooks;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod trust;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod tutorials;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod validation;
mod values_yaml;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod webhook_certificates;
