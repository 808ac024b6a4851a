//! The memory budget: a manager with the shipped memory limit survives every attack, and serves others meanwhile.
//!
//! * In: a dedicated control plane, whose attackers may write to one namespace, and a manager with all jobs and
//!   250 MiB. Out: the streams of a bystander, each change of whose endpoints arrives; what was refused; the memory.
//! * `LINKERD_OPERATOR_ATTACKS` selects attacks by their names, separated by spaces.
//!   `LINKERD_OPERATOR_ATTACK_SECONDS` sets their duration.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, ManagerOptions, Rig, TestNamespace,
    attack::{Attack, Target},
    discovery::Endpoints,
    eventually,
    mesh::SOON,
};
use tokio::time::{Instant, sleep};

use super::{
    Objects,
    objects::{address, service, slice},
};

/// The memory limit of the shipped Deployment.
const LIMIT: u64 = 250 * 1024 * 1024;
const MIB: u64 = 1024 * 1024;
/// The pages of the shipped binary. A debug build has more, which do not count.
const PAGES_OF_THE_BINARY: u64 = 20 * MIB;
const CHANGE_EVERY: Duration = Duration::from_millis(200);
/// How long the attacks last by default.
const SECONDS: u64 = 20;

struct AttackedRig {
    _rig: Rig,
    manager: Manager,
    target: Target,
    bystander: Bystander,
}

/// A client of a Service that no attacker may write.
struct Bystander {
    objects: Objects,
    stream: Endpoints,
    changes: u8,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_with_the_shipped_memory_limit_survives_all_attacks_and_serves_others() -> Result<()> {
    let selected = std::env::var("LINKERD_OPERATOR_ATTACKS").ok();
    let is_selected = |attack: &Attack| {
        selected.as_ref().is_none_or(|names| names.split(' ').any(|name| name == format!("{attack:?}")))
    };
    let attacks: Vec<Attack> = Attack::ALL.into_iter().filter(is_selected).collect();
    let seconds = std::env::var("LINKERD_OPERATOR_ATTACK_SECONDS").ok().and_then(|text| text.parse().ok());
    let mut rig = AttackedRig::with_objects_of(&attacks).await?;
    let mut running = Vec::new();
    for attack in &attacks {
        running.push(attack.begin(rig.target.clone())?);
    }
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut slowest = Duration::ZERO;
    while Instant::now() < end {
        let late = rig.bystander.change().await;
        ensure!(rig.manager.is_running(), "the manager has ended; its log:\n{}", rig.manager.log());
        slowest = slowest.max(late?);
        rig.bystander.is_served(&rig.manager).await?;
        sleep(CHANGE_EVERY).await;
    }
    for (attack, running) in attacks.iter().zip(&mut running) {
        running.is_running().with_context(|| format!("{attack:?}"))?;
    }
    let refused = rig.manager.metric("linkerd_operator_discovery_streams_refused_total", &[]).await;
    let allocated = rig.manager.metric("linkerd_operator_memory_allocated_bytes", &[]).await;
    let memory = rig.manager.memory()?;
    let peak = memory.peak.saturating_sub(memory.files) + memory.files.min(PAGES_OF_THE_BINARY);
    println!(
        "{attacks:?}: {} MiB at the peak, {:.0} MiB allocated now, {refused:?} streams refused, a change after {slowest:?} at most",
        peak / MIB,
        allocated.unwrap_or_default() / 1024.0 / 1024.0,
    );
    ensure!(peak < LIMIT, "{} MiB at the peak", peak / MIB);
    ensure!(selected.is_some() || refused.is_some_and(|refused| refused > 0.0), "nothing was refused");
    drop(running);
    // Whatever the attackers held is free again.
    rig.manager.counts("linkerd_operator_discovery_streams", &[], 1.0).await
}

// === impl AttackedRig ===

impl AttackedRig {
    /// Starts a manager that finds the objects of the attacks.
    async fn with_objects_of(attacks: &[Attack]) -> Result<Self> {
        let rig = Rig::linkerd().crds("crd").start().await?;
        let client = rig.client.clone();
        let attackers = TestNamespace::create(&client, "attackers").await?;
        for attack in attacks {
            attack.prepare(&client, attackers.name()).await?;
        }
        let objects = Objects::create_in(&client, "bystander").await?;
        objects.put_all([service("web"), slice("web-0", "web", &[address("10.0.0.0")])]).await?;
        let manager = ManagerOptions::default().memory_limit(LIMIT).ready(&rig).await?;
        let path = objects.path("web");
        let stream = eventually(SOON, "the bystander to be served", async || {
            Ok(manager.discovery().await?.get(&path, "").await?)
        });
        let bystander = Bystander { stream: stream.await?, objects, changes: 0 };
        let target = Target { client, namespace: attackers.name().to_owned(), server: manager.destination_address() };
        Ok(Self { _rig: rig, manager, target, bystander })
    }
}

// === impl Bystander ===

impl Bystander {
    /// Moves the endpoint, and returns the time until the stream shows its new address.
    async fn change(&mut self) -> Result<Duration> {
        self.changes = self.changes.wrapping_add(1);
        self.objects.set_endpoints("web-0", &[address(&self.address())]).await?;
        let changed = Instant::now();
        self.stream.shows(&[&self.socket()]).await?;
        Ok(changed.elapsed())
    }

    /// Waits until a new stream has the endpoint. Like a proxy, it asks again after a refusal.
    async fn is_served(&self, manager: &Manager) -> Result<()> {
        eventually(SOON, "a new stream", async || {
            let mut stream = manager.discovery().await?.get(&self.objects.path("web"), "").await?;
            stream.shows(&[&self.socket()]).await
        })
        .await
    }

    fn address(&self) -> String {
        format!("10.0.0.{}", self.changes)
    }

    fn socket(&self) -> String {
        format!("{}:8080", self.address())
    }
}
