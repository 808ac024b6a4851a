//! How the objects of a watched kind are reduced to the fields that the process reads.

use std::fmt::Debug;

use kube::Resource;
use serde::de::DeserializeOwned;

use super::{Problems, index::shared_values::SharedValues};

/// A kind, reduced to the fields that the process reads.
pub trait Projected: Sized + Send + Sync + 'static {
    /// The object as the API server sends it: only the fields that [`Projected::project`] reads.
    type Wire: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static;
    /// Linkerd's metric for the delay of its updates. Linkerd has none for kinds that it does not watch, or of which it
    /// watches only the metadata.
    const INFORMER_LAG: Option<&'static str> = None;
    /// Whether a cluster may lack the kind, because its CRD is Linkerd's or ours.
    const IS_OPTIONAL: bool = false;

    /// Total: every value that decodes as [`Projected::Wire`] becomes an object. Unusable parts are ignored, and
    /// named.
    fn project(wire: Self::Wire, problems: &mut Problems) -> Self;

    /// Shares parts of the object with earlier objects that have equal parts.
    fn share(&mut self, _: &mut SharedValues) {}
}
