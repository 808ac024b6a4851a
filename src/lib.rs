//! `linkerd-operator`: a control plane for the Linkerd service mesh.
//!
//! ```text
//! kube-apiserver ──watch──▶ cluster ─┬─WorkQueue──▶ external_workload, linkerd_config: State → Plan → apply ──write──▶ kube-apiserver
//!                                    │                    ▲                                    └─▶ events
//!                                    │                controller ◀── lease
//!                                    └─Dirty─────▶ destination: State → Members → Snapshot ──▶ streams ──▶ proxies
//! ```
//!
//! Data goes one way: a reader of the state never writes it, and a controller's own write comes back through the watch
//! like anybody's. Decisions are functions from values to values (the controllers' `plan`, [`destination`]'s `members`,
//! `view`, `endpoint` and `snapshot`); what surrounds them reads, waits, writes and serves. [`manager`] puts the parts
//! together. [`cli`] is the other side: what a proxy is told, and what a LinkerdConfig would change, for people.

pub mod admin;
pub mod api;
pub mod args;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod controller;
pub mod destination;
pub mod events;
pub mod external_workload;
pub mod lease;
pub mod linkerd_config;
mod listen;
pub mod manager;
pub mod metrics;
pub mod proto;
pub mod queue;
pub mod resources;
pub mod retry;
pub mod tasks;
pub mod text;
pub mod version;
pub mod write;
