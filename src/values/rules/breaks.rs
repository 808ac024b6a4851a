//! The Pods and programs that do not work if a value violates a rule, and the view of a document that decides it.

use serde_json::Value;

use self::Breaks::{AllPods, CniPods, DualStackPods, InitPods, Nothing, Others, UnversionedPods};
use crate::values::Document;

/// The Pods or programs that do not work if a value violates a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaks {
    /// The API server rejects every injected Pod, or its proxy does not start.
    AllPods,
    /// The same for Pods with linkerd-init: those without the CNI plugin.
    InitPods,
    /// The same for Pods with linkerd-init that has rules for IPv6, too.
    DualStackPods,
    /// The same for Pods with the network validator: those with the CNI plugin.
    CniPods,
    /// The same for Pods whose proxy has the version of Linkerd, because its image names none.
    UnversionedPods,
    /// Linkerd's own injector or control plane, Pods with a debug container, or what the author meant.
    Others,
    /// The value has no effect.
    Nothing,
}

/// A document whose null values count as absent.
pub(super) struct DocumentView<'a>(pub(super) &'a Document);

// === impl Breaks ===

impl Breaks {
    /// Returns whether a value matters for any Pod.
    pub(super) fn is_of_a_pod(self, document: &DocumentView<'_>) -> bool {
        match self {
            DualStackPods => !document.is_true(&["disableIPv6"]),
            AllPods | InitPods | CniPods | UnversionedPods | Others => true,
            Nothing => false,
        }
    }

    /// Returns whether a value matters for every Pod that this injector injects.
    pub(super) fn is_of_every_pod(self, document: &DocumentView<'_>) -> bool {
        let is_cni = document.is_true(&["cniEnabled"]);
        match self {
            AllPods => true,
            InitPods => !is_cni,
            DualStackPods => !is_cni && self.is_of_a_pod(document),
            CniPods => is_cni,
            UnversionedPods => document.is_empty(&["proxy", "image", "version"]),
            Others | Nothing => false,
        }
    }
}

// === impl DocumentView ===

impl<'a> DocumentView<'a> {
    pub(super) fn at(&self, keys: &[&str]) -> Option<&'a Value> {
        let (first, rest) = keys.split_first()?;
        let top = self.0.as_map().get(*first)?;
        rest.iter().try_fold(top, |value, key| value.get(*key)).filter(|value| !value.is_null())
    }

    pub(super) fn is_true(&self, keys: &[&str]) -> bool {
        self.at(keys).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(super) fn number(&self, keys: &[&str]) -> i64 {
        self.at(keys).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn is_empty(&self, keys: &[&str]) -> bool {
        self.at(keys).is_none_or(|value| value.as_str() == Some(""))
    }
}
