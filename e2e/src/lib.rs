//! The harness: a real Kubernetes control plane, the operator's manager as a child process, and fault injection between
//! them.
//!
//! ```text
//!   test ──▶ Manager ──(FaultProxy)──▶ ControlPlane: kube-apiserver, etcd, kube-controller-manager, kube-scheduler, kwok
//!               └────────── every child under the `supervisor` ──────────┘
//! ```
//!
//! * In: Go (to build the Kubernetes binaries once) or `KUBEBUILDER_ASSETS`; see [`binaries`].
//! * Out: a [`Rig`], whose [`ControlPlane`] has clients and kubeconfigs, a [`Manager`] to start, suspend and kill, a
//!   [`FaultProxy`] to put between them, and an [`Injector`] that both call.
//! * Always: every wait has a deadline, and no child process or directory outlives the process that created it, however
//!   that process ends.

pub mod answers;
pub mod archive;
pub mod attack;
pub mod binaries;
pub mod browser;
pub mod cases;
mod certificate;
pub mod chart;
pub mod command;
mod component;
pub mod configs;
pub mod control_plane;
pub mod crd;
pub mod dashboard;
pub mod discovery;
mod etcd;
pub mod executable;
pub mod fault_proxy;
pub mod flood;
mod gate;
pub mod host;
pub mod hostile_client;
pub mod http2;
pub mod identity;
pub mod image;
pub mod injector;
pub mod kubeconfig;
pub mod link;
pub mod linkerd_controller;
pub mod load;
pub mod manager;
pub mod memory;
pub mod mesh;
pub mod metric;
pub mod namespace;
pub mod node;
pub mod notices;
pub mod objects;
pub mod oracle;
pub mod plain_http;
pub mod port;
pub mod process;
pub mod profile;
pub mod query;
pub mod real_node;
mod replica;
pub mod restarts;
mod rig;
mod shared;
pub mod shipped;
pub mod shown_proxy;
pub mod slow_client;
pub mod tls;
pub mod validator;
pub mod wait;
mod watchdog;
pub mod workload;
pub mod world;

pub use configs::LinkerdConfigs;
pub use control_plane::{ControlPlane, Options, User};
pub use fault_proxy::{Action, Fault, FaultProxy, Rule, WriteEnd};
pub use injector::Injector;
pub use manager::{Job, Manager, ManagerOptions};
pub use namespace::TestNamespace;
pub use process::{Process, Signal, Spawn};
pub use real_node::RealNode;
pub use replica::Replica;
pub use restarts::Restarts;
pub use rig::{Rig, RigBuilder};
pub use shared::{SharedManager, shared, shared_manager, shared_other};
pub use wait::{eventually, holds};
