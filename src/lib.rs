//! `linkerd-operator`: a companion to the control plane of the Linkerd service mesh.
//!
//! ```text
//! kube-apiserver ──watch──▶ cluster: State ──Change──▶ observers, one or more for each job
//!                              │                         ├─ WorkQueue ─▶ external_workload, linkerd_config: State → Plan → apply ──write──▶ kube-apiserver
//!                              │                         ├─ DirtySet ──▶ rollout: assess → schedule → restart ────────────────────write──▶ kube-apiserver
//!                              └──────── read ──────────▶├─ DirtySet ──▶ destination: State → Members → Snapshot ──▶ streams ──▶ proxies
//!                                                        ├─ injection_probe: do all injectors use the configuration?
//!                                                        └─ proxy_injector: reads its configuration again
//!
//! kube-apiserver ──review──▶ webhook ─┬─▶ proxy_injector: State, configuration → decision → JSON patch
//!                                     └─▶ validators of LinkerdConfigs, ExternalWorkloads and ServiceProfiles
//!
//! kube-apiserver ──own watches──▶ webhook_certificates: Secret, webhook configurations → plan → issue ────write──▶ kube-apiserver
//! ```
//!
//! Data flows in one direction: a reader of the state never writes it, and a controller's own write comes back through
//! the watch like any other write. The cache publishes changes; each job derives its own keys from them. Decisions are
//! functions from values to values (the controllers' `plan`, the destination's `members`, `view`, `weighted_addr` and
//! `snapshot`); the code around them reads, waits, writes and serves. All controllers share [`lease`] and [`events`],
//! and write only while they are the leader. The controllers of ExternalWorkloads and LinkerdConfigs also share
//! [`controller`]. [`manager`] connects the parts. [`cli`] prints, and [`dashboard`] shows, the endpoints and profiles
//! that a proxy receives, and the changes that a LinkerdConfig would make.

pub mod admin;
pub mod api;
#[cfg(test)]
mod architecture_tests;
pub mod args;
#[cfg(test)]
mod charts_tests;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod contain;
pub mod controller;
pub mod dashboard;
pub mod destination;
pub mod destination_client;
#[cfg(test)]
mod docs_tests;
pub mod drop_in;
pub mod events;
pub mod explain;
pub mod external_workload;
#[cfg(any(test, fuzzing))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic of a target is what the fuzzer looks for"
)]
pub mod fuzz_targets;
pub mod go;
mod grpc_client;
mod grpc_metrics;
pub mod identity;
pub mod injection_probe;
pub mod issuer_writer;
pub mod lease;
pub mod linkerd_config;
pub mod linkerd_trust;
mod listen;
pub mod manager;
pub mod memory;
pub mod metrics;
pub mod proto;
pub mod proxy_injector;
pub mod queue;
pub mod reasons;
pub mod resources;
mod response_limit;
pub mod retry;
pub mod rollout;
pub mod service_profile_validator;
pub mod summary;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod text;
pub mod trust;
pub mod values;
pub mod version;
pub mod webhook;
pub mod webhook_certificates;
pub mod write;
pub mod x509;
