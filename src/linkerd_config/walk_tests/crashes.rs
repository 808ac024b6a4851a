//! A leader that dies after any single write. Always holds: the next leader ends where the first one would have.

use serde_json::{Value, json};
use strum::IntoEnumIterator;

use super::{
    event::Event,
    is_thorough,
    states::{Transitions, after},
    world::World,
};

/// One of this many pairs of a state and an event is tried, unless all are.
const SOME: usize = 23;
/// More than the writes of any event.
const MOST_WRITES: u32 = 40;

/// The objects that a leader leaves behind, without times. Documents stand for the numbers of their revisions: after a death there
/// may be more of them.
fn outcome(world: &World) -> Value {
    let objects = world.api.objects();
    let status = &objects.config["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.map(|it| json!([it["type"], it["status"], it["reason"]]));
    let documents = |revision: &Value| {
        let number = revision.as_str().map_or(revision.clone(), |text| json!(text.parse::<i64>().unwrap()));
        let is_base = |it: &&Value| it["revision"] == number && it["data"]["effective"].is_string();
        objects.revisions.iter().find(is_base).map(|it| json!([it["data"]["values"], it["data"]["effective"]]))
    };
    let revisions = &status["revisions"];
    let kept = ["base", "previous", "lastKnownGood", "lastRolledOut"].map(|key| documents(&revisions[key]));
    let annotations = &objects.config_map["metadata"]["annotations"];
    json!({
        "conditions": conditions.collect::<Vec<_>>(),
        "document": objects.config_map["data"]["values"],
        "configHash": annotations["config.linkerd.io/config-hash"],
        "written": documents(&annotations["config.linkerd.io/base-revision"]),
        "revisions": kept,
        "hashes": [&revisions["failed"], &revisions["lastKnownGoodHash"]],
        "canary": objects.canary.as_ref().map(|canary| &canary["data"]["values"]),
        "rolledBack": status["rollout"]["rolledBack"],
        "canaryPhase": status["canary"]["phase"],
    })
}

#[tokio::test(start_paused = true)]
async fn the_leader_may_die_after_any_write_of_any_event_in_any_state() {
    let step = if is_thorough() { 1 } else { SOME };
    let documented = Transitions::documented();
    // Two things are known to one leader only: how often another writer undid its writes, which the next one counts
    // again, and the answers of injectors, which it asks again.
    let is_forgotten = |event: &Event| matches!(event, Event::KeepEditing | Event::Silence);
    let histories = documented.histories.values().filter(|history| !history.iter().any(is_forgotten));
    let pairs = histories.flat_map(|history| Event::iter().map(move |event| (history, event)));
    let (mut deaths, mut different) = (0, Vec::new());
    for (history, event) in pairs.filter(|(_, event)| !is_forgotten(event)).step_by(step) {
        let mut world = after(history).await;
        world.meet(event).await.unwrap();
        let expected = outcome(&world);
        for writes in 0..MOST_WRITES {
            let mut world = after(history).await;
            world.api.objects().dies_after = Some(writes);
            world.meet(event).await.unwrap_or_else(|why| panic!("{history:?} {event:?} {writes}: {why}"));
            if world.api.objects().dies_after.is_some() {
                break;
            }
            deaths += 1;
            let found = outcome(&world);
            if found != expected {
                different.push(format!("{history:?}, {event:?}, {writes} writes: {found:#}\ninstead of {expected:#}"));
            }
        }
    }
    println!("{deaths} deaths");
    assert!(different.is_empty(), "{} different: {}", different.len(), different.join("\n"));
    assert!(deaths > 15, "{deaths}");
}
