//! Every event in every state. The history of a state is the shortest sequence of events that leads there, found from a
//! new resource by trying all events. Always holds: docs/internals/src/states.md has the result.

use std::collections::{BTreeMap, VecDeque, btree_map::Entry};

use serde_json::json;
use strum::IntoEnumIterator;

use super::{event::Event, is_thorough, world::World};
use crate::api::linkerd_config::ConfigState;

const PAGE: &str = include_str!("../../../docs/internals/src/states.md");
const PICTURE: &str = include_str!("../../../docs/internals/src/images/states.svg");
/// One of this many pairs of a state and an event is tried, unless all are.
const SOME: usize = 7;

/// The shortest history of each state, and the states that the events lead to after it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Transitions {
    pub(super) histories: BTreeMap<ConfigState, Vec<Event>>,
    next: BTreeMap<ConfigState, BTreeMap<&'static str, ConfigState>>,
}

/// Returns the world after these events.
pub(super) async fn after(history: &[Event]) -> World {
    let mut world = World::unchecked().await;
    for event in history {
        if let Err(why) = world.meet(*event).await {
            panic!("{why} after {history:?} in {}", world.describe());
        }
    }
    world
}

/// Returns the state after a history and one more event.
async fn state_after(history: &[Event], event: Event) -> ConfigState {
    let events: Vec<_> = history.iter().copied().chain([event]).collect();
    after(&events).await.config_state()
}

// === impl Transitions ===

impl Transitions {
    /// Reads the table of the documentation.
    pub(super) fn documented() -> Self {
        let words = |text: &'static str| text.split([',', ' ']).filter(|word| !word.is_empty());
        let mut found = Self::default();
        let (_, table) = PAGE.split_once("| Events that lead elsewhere |\n").unwrap();
        for row in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [state, history, targets] = cells[..] else { panic!("{row}") };
            let state = state.trim_matches('`').parse().unwrap();
            found.histories.insert(state, words(history).map(|event| event.parse().unwrap()).collect());
            let mut next: BTreeMap<_, _> = Event::iter().map(|event| (event.as_str(), state)).collect();
            for (target, events) in targets.split("; ").filter_map(|target| target.split_once(": ")) {
                let target = target.trim_matches('*').parse().unwrap();
                next.extend(words(events).map(|event| (event, target)));
            }
            found.next.insert(state, next);
        }
        found
    }

    async fn find() -> Self {
        let mut found = Self::default();
        let first = after(&[]).await.config_state();
        found.histories.insert(first, Vec::new());
        let mut open = VecDeque::from([first]);
        while let Some(state) = open.pop_front() {
            let history = found.histories[&state].clone();
            for event in Event::iter() {
                let next = state_after(&history, event).await;
                found.next.entry(state).or_default().insert(event.as_str(), next);
                if let Entry::Vacant(entry) = found.histories.entry(next) {
                    entry.insert(history.iter().copied().chain([event]).collect());
                    open.push_back(next);
                }
            }
        }
        found
    }

    /// Returns the rows of the table in the documentation.
    fn table(&self) -> String {
        let row = |(state, next): (&ConfigState, &BTreeMap<&str, ConfigState>)| {
            let mut targets: BTreeMap<ConfigState, Vec<&str>> = BTreeMap::new();
            for event in Event::iter().map(Event::as_str).filter(|event| next[event] != *state) {
                targets.entry(next[event]).or_default().push(event);
            }
            let targets: Vec<_> = targets
                .iter()
                .map(|(target, events)| format!("**{}**: {}", target.as_str(), events.join(", ")))
                .collect();
            let history: Vec<_> = self.histories[state].iter().map(|event| event.as_str()).collect();
            format!("| `{}` | {} | {} |", state.as_str(), history.join(", "), targets.join("; "))
        };
        self.next.iter().map(row).collect::<Vec<_>>().join("\n")
    }
}

#[tokio::test(start_paused = true)]
async fn every_event_in_every_state_leads_where_the_documentation_says() {
    let documented = Transitions::documented();
    if is_thorough() {
        let found = Transitions::find().await;
        assert!(found == documented, "docs/internals/src/states.md must have these rows:\n{}", found.table());
        return;
    }
    let pairs =
        documented.histories.iter().flat_map(|(state, history)| Event::iter().map(move |it| (state, history, it)));
    for (state, history, event) in pairs.step_by(SOME) {
        let next = state_after(history, event).await;
        assert_eq!(next, documented.next[state][event.as_str()], "{} in {}", event.as_str(), state.as_str());
    }
}

#[test]
fn every_state_but_that_of_a_resource_without_a_status_can_be_reached() {
    let documented = Transitions::documented();
    let missing: Vec<_> = ConfigState::iter().filter(|state| !documented.histories.contains_key(state)).collect();
    assert_eq!(missing, [ConfigState::New]);
    for state in ConfigState::iter() {
        assert!(PAGE.contains(&format!("\n| `{}` | ", state.as_str())), "the page does not explain {state:?}");
    }
}

#[test]
fn each_arrow_of_the_picture_is_in_the_table() {
    let documented = Transitions::documented();
    for state in documented.histories.keys() {
        assert!(PICTURE.contains(&format!(">{}<", state.as_str())), "the picture lacks {state:?}");
    }
    let arrows: Vec<_> = PICTURE.split("data-arrow=\"").skip(1).filter_map(|rest| rest.split_once('"')).collect();
    assert!(arrows.len() > 20, "{}", arrows.len());
    for (arrow, _) in arrows {
        let words: Vec<_> = arrow.split(' ').collect();
        let [from, event, to] = words[..] else { panic!("{arrow}") };
        let next = documented.next[&from.parse::<ConfigState>().unwrap()][event];
        assert_eq!(next.as_str(), to, "{arrow}");
    }
}

/// The changes of another writer stay while the canary namespaces get a document of their own.
#[tokio::test(start_paused = true)]
async fn a_canary_beside_reported_drift_is_in_the_same_conditions() {
    for (history, phase) in [(&[Event::UseCanary][..], "Progressing"), (&[Event::UseCanary, Event::Fail], "Failed")] {
        let mut world = after(history).await;
        world.meet(Event::ReportDrift).await.unwrap();
        assert_eq!(world.config_state(), ConfigState::Drifted);
        for type_ in ["ConfigMapSynced", "Ready"] {
            let message = world.message(type_);
            let (drift, canary) =
                message.split_once("; configuration ").unwrap_or_else(|| panic!("{type_}: {message}"));
            assert!(drift.contains(" changed proxy.defaultInboundPolicy; not reverted"), "{message}");
            assert!(canary.contains(&format!(" is {phase}: ")), "{message}");
        }
    }
}

/// A failed canary belongs to the declared values, as a rollback does.
#[tokio::test(start_paused = true)]
async fn a_canary_that_failed_begins_again_with_other_values_and_not_with_another_pace() {
    for (event, state) in [
        (Event::Pause, ConfigState::CanaryStopped),
        (Event::SwitchOff, ConfigState::CanaryStopped),
        (Event::UseCanary, ConfigState::Canary),
        (Event::Retry, ConfigState::Canary),
    ] {
        let mut world = after(&[Event::UseCanary, Event::Fail]).await;
        let since = json!("2026-01-01T00:00:00Z");
        world.api.objects().config["status"]["canary"]["since"] = since.clone();
        world.meet(event).await.unwrap();
        assert_eq!(world.config_state(), state, "{event:?}");
        let is_kept = world.api.objects().config["status"]["canary"]["since"] == since;
        assert_eq!(is_kept, state == ConfigState::CanaryStopped, "{event:?}: whether it began again");
    }
    let mut world = after(&[Event::UseCanary, Event::Fail]).await;
    world.declare(|spec| _ = spec.as_object_mut().unwrap().remove("canary"));
    world.settle().await.unwrap();
    // All namespaces got the document, and its workloads fail again.
    assert_eq!(world.config_state(), ConfigState::RolledBack);
}

/// A person suspends the resource to repair the base, and waits for that.
#[tokio::test(start_paused = true)]
async fn a_resource_whose_base_cannot_be_read_can_be_suspended() {
    let mut world = after(&[]).await;
    for revision in &mut world.api.objects().revisions {
        revision["data"] = json!({});
    }
    // The next leader does not know the base.
    world.api.objects().dies_after = Some(0);
    world.meet(Event::Declare).await.unwrap();
    assert_eq!(world.config_state(), ConfigState::Blocked);
    world.meet(Event::Suspend).await.unwrap();
    assert_eq!(world.config_state(), ConfigState::Suspended);
}
