//! What the controllers have in common: kube-runtime's `Controller`, fed by the cluster's watches, that acts while it leads.
//!
//! ```text
//! cluster ──WorkQueue──▶ Controller ──▶ Reconciler::reconcile ──▶ may_decide? ◀── Leadership
//! ```
//!
//! In: a [`Reconciler`]. Out: its reconciles. Always holds: whoever begins to lead looks at everything, and not before each
//! watch is known to be at work; what failed is tried again and never given up; what is gone is forgotten.

use std::{
    fmt::Debug,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::{
    Client,
    core::{PartialObjectMeta, Resource},
    runtime::{
        controller::{Action, Config, Controller, Error},
        reflector::Store,
    },
};
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    api::NamespacedName,
    cluster::{Cluster, Reader, State},
    events::Events,
    lease::Leadership,
    queue::WorkQueue,
};

/// What a controller is made of.
pub struct Parts {
    pub client: Client,
    pub cluster: Cluster,
    pub queue: Arc<WorkQueue>,
    pub leadership: Leadership,
    pub events: Events,
    pub registry: Registry,
}

/// What decides when a controller looks at an object, and whether it may decide anything then.
pub struct ControlLoop {
    pub cluster: Cluster,
    reader: Reader,
    queue: Arc<WorkQueue>,
    leadership: Leadership,
    /// The term for which every watch is known to be at work; nothing is decided in another.
    confirmed_term: AtomicU64,
}

/// What a controller does about one object.
pub trait Reconciler: Send + Sync + Sized + 'static {
    type Object: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static;
    type Error: std::error::Error + Send + Sync + 'static;

    /// All objects that the controller looks after. What it knows of one it reads from the [`State`] when it reconciles.
    fn names(state: &State) -> Store<PartialObjectMeta<Self::Object>>;

    fn control(&self) -> &ControlLoop;

    /// A term begins, in which nothing was decided yet.
    fn begin(&self) {}

    fn reconcile(&self, key: &NamespacedName) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// A reconcile failed: how long until the next.
    fn failed(&self, key: &NamespacedName, error: &Self::Error) -> Duration;

    /// The object is gone.
    fn forget(&self, key: &NamespacedName);
}

/// Reconciles until `stop` is cancelled, then ends with the reconciles under way.
pub async fn run<R: Reconciler>(reconciler: Arc<R>, concurrency: u16, stop: CancellationToken) {
    let control = reconciler.control();
    tokio::select! {
        () = control.cluster.synced(control.reader) => {}
        () = stop.cancelled() => return,
    }
    let names = R::names(&control.cluster.read());
    // The watches feed the store and the queue; the Controller itself watches nothing.
    let outcomes = Controller::for_stream(stream::pending(), names.clone())
        .with_config(Config::default().concurrency(concurrency))
        .reconcile_on(control.queue.stream())
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, on_error, Arc::clone(&reconciler))
        .for_each(|outcome| {
            if let Err(Error::ObjectNotFound(name)) = outcome {
                let key = NamespacedName::new(name.namespace.unwrap_or_default(), name.name);
                control.queue.forget(&key);
                reconciler.forget(&key);
                // It may have come back since the Controller looked, and its mark just been forgotten.
                if names.get(&key.reference()).is_some() {
                    control.queue.add([key]);
                }
            }
            std::future::ready(())
        });
    let terms = async {
        let (mut leadership, mut term) = (control.leadership.clone(), 0);
        loop {
            term = leadership.next_term(term).await;
            // On what it does not know it would undo what its predecessor wrote.
            control.cluster.recovered(control.reader).await;
            reconciler.begin();
            control.confirmed_term.store(term, Ordering::Release);
            // Much may have changed while nobody led.
            let keys: Vec<_> = names.state().iter().map(|object| NamespacedName::of(&object.metadata)).collect();
            info!(kind = %R::Object::kind(&()), objects = keys.len(), "looking at everything");
            control.queue.add(keys);
        }
    };
    tokio::select! {
        () = outcomes => {}
        () = terms => {}
    }
}

async fn reconcile<R: Reconciler>(
    object: Arc<PartialObjectMeta<R::Object>>,
    reconciler: Arc<R>,
) -> Result<Action, R::Error> {
    let key = NamespacedName::of(&object.metadata);
    let _work = reconciler.control().queue.start(&key);
    reconciler.reconcile(&key).await
}

#[allow(clippy::needless_pass_by_value, reason = "kube-runtime's signature")]
fn on_error<R: Reconciler>(object: Arc<PartialObjectMeta<R::Object>>, error: &R::Error, reconciler: Arc<R>) -> Action {
    reconciler.control().queue.count_retry();
    Action::requeue(reconciler.failed(&NamespacedName::of(&object.metadata), error))
}

// === impl ControlLoop ===

impl ControlLoop {
    /// `reader` says which kinds the controller reads.
    pub fn new(parts: &Parts, reader: Reader) -> Self {
        Self {
            cluster: parts.cluster.clone(),
            reader,
            queue: Arc::clone(&parts.queue),
            leadership: parts.leadership.clone(),
            confirmed_term: AtomicU64::new(0),
        }
    }

    /// The term in which things are decided.
    pub fn term(&self) -> u64 {
        self.confirmed_term.load(Ordering::Acquire)
    }

    /// Whether this process leads, and has looked at what it led to.
    pub fn may_decide(&self) -> bool {
        self.leadership.term() == Some(self.term())
    }
}
