//! The possible steps of the walk.

use super::Random;

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Another document with another security value.
    Declare,
    /// The document in force before the declared one, as a person does who takes a change back.
    DeclareAgain,
    /// The same document for some namespaces first, or for all.
    SetCanary(bool),
    Retry,
    /// The resource changes only the pace of its rollout.
    Pace,
    /// The resource is suspended, and then enforces again.
    Suspend,
    /// The resource only observes, and then enforces again.
    Observe,
    /// The resource cannot be applied, and is corrected.
    Mistype,
    /// The installer writes another document over ours.
    Upgrade,
    /// The installer changes the list that the resource extends.
    ExtendEnvironment,
    /// A person edits the declared security value.
    Edit,
    /// All workloads run with the configuration in effect.
    Complete,
    /// One workload fails for as long as the configuration is in effect, which is below the limit.
    FailOne,
    /// Workloads fail with the configuration in effect, up to the limit.
    Fail,
    /// A Pod of a workload has no proxy.
    LoseProxy,
    /// The injectors deny the declared document, or accept it again.
    Deny(bool),
    /// The leader is killed in a later step, after this number of writes.
    Kill(u32),
}

// === impl Step ===

impl Step {
    pub(super) fn random(random: &mut Random) -> Self {
        match random.below(24) {
            0..=2 => Self::Declare,
            3 => Self::DeclareAgain,
            4 => Self::SetCanary(random.below(2) == 0),
            5 => Self::Retry,
            6 | 7 => Self::Upgrade,
            8 => Self::ExtendEnvironment,
            9 => Self::Edit,
            10 | 11 => Self::Complete,
            12 => Self::FailOne,
            13 | 14 => Self::Fail,
            15 => Self::LoseProxy,
            16 | 17 => Self::Deny(true),
            18 => Self::Deny(false),
            19 => Self::Suspend,
            20 => Self::Mistype,
            21 => Self::Pace,
            22 => Self::Observe,
            _ => Self::Kill(u32::try_from(random.below(5)).unwrap_or_default()),
        }
    }
}
