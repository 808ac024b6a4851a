//! A random walk of the whole controller over declared changes, changes of the installer and of other writers, failed
//! workloads, denials, canaries and kills. The API server is a fake; the code between the watch and the writes is real.
//!
//! Always holds, in what the walk checks after every write and every step: the declared security value is in the
//! ConfigMap whenever the status says so; a rollback goes back to the last declared document, and to the installer's
//! only from the first one; declared values that were rejected are not written again before they or the annotation change.

mod api_server;
mod crashes;
mod event;
mod states;
mod step;
mod workloads;
mod world;

use self::{step::Step, world::World};

/// A small generator (xorshift64*), so that a seed stands for the same walk forever.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// Whether the tests of states and of crashes try everything, as in `make test`.
fn is_thorough() -> bool {
    std::env::var_os("WALK_STEPS").is_some()
}

/// The number of steps of all walks together; WALK_STEPS overrides it, as `make test` does.
const STEPS: usize = 1000;
const STEPS_OF_A_WALK: usize = 50;

#[tokio::test(start_paused = true)]
async fn what_was_declared_stays_declared_over_any_history() {
    let steps = std::env::var("WALK_STEPS").map_or(STEPS, |steps| steps.parse().unwrap());
    let mut reached = [0_usize; 4];
    for walk in 0..steps / STEPS_OF_A_WALK {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ ((walk as u64 + 1) << 20));
        let mut world = World::new().await;
        let mut steps = Vec::new();
        for _ in 0..STEPS_OF_A_WALK {
            let step = Step::random(&mut random);
            steps.push(format!("{step:?}"));
            if let Err(broken) = world.take(step).await {
                panic!("walk {walk}: {broken}\nafter {steps:#?}\nin {}", world.describe());
            }
            reached[world.state()] += 1;
        }
    }
    // The walk is worth something only if it spends its time in all states.
    let [synced, restored, canary, others] = reached;
    println!("{synced} steps ended synced, {restored} restored, {canary} in a canary, {others} in another state");
    assert!([synced, restored, canary].into_iter().all(|count| count > steps / 20), "{reached:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rollback_lasts_until_the_declared_values_or_the_annotation_change() {
    let mut world = World::new().await;
    let (mut taken, restored) = (Vec::new(), 1);
    for step in [Step::Declare, Step::Fail, Step::Pace, Step::Observe, Step::Suspend, Step::Upgrade, Step::Pace] {
        taken.push(step);
        world.take(step).await.unwrap_or_else(|broken| panic!("{broken} after {taken:?}"));
        assert!(world.state() == restored || taken.len() < 2, "{taken:?}: {}", world.describe());
    }
    world.take(Step::SetCanary(true)).await.unwrap();
    assert_eq!(world.state(), restored, "{}", world.describe());
    world.take(Step::Retry).await.unwrap();
    assert_ne!(world.state(), restored, "{}", world.describe());
}

#[tokio::test(start_paused = true)]
async fn the_rollout_of_a_resource_ends_with_its_deletion() {
    for is_finalized in [true, false] {
        let mut world = World::new().await;
        assert_eq!(world.rolled_out().as_deref(), Some("mesh"));
        world.delete(is_finalized).await;
        assert_eq!(world.rolled_out(), None, "{is_finalized}");
    }
}
