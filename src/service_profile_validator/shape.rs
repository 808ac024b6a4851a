//! The types that Linkerd's validator decodes a ServiceProfile into, with the names that its errors show.

/// The type of a field.
pub(super) enum Shape {
    /// A string. Numbers and bools become strings.
    Text,
    /// A string, for which numbers and bools are errors.
    StrictText,
    Bool,
    Uint32,
    Int64,
    Float32,
    Time,
    Quantity,
    Anything,
    /// A map of strings.
    Texts,
    /// A set of ports, as the keys of a map.
    Ports,
    Object(&'static ObjectShape),
    List(&'static Shape),
}

/// The type of an object.
pub(super) struct ObjectShape {
    pub(super) name: &'static str,
    pub(super) fields: &'static [FieldShape],
}

/// The name of a field, and its type.
pub(super) type FieldShape = (&'static str, Shape);

pub(super) const SERVICE_PROFILE: ObjectShape = ObjectShape {
    name: "ServiceProfile",
    fields: &[
        ("apiVersion", Shape::StrictText),
        ("kind", Shape::StrictText),
        ("metadata", Shape::Object(&METADATA)),
        ("spec", Shape::Object(&SPEC)),
    ],
};

const METADATA: ObjectShape = ObjectShape {
    name: "ObjectMeta",
    fields: &[
        ("annotations", Shape::Texts),
        ("creationTimestamp", Shape::Time),
        ("deletionGracePeriodSeconds", Shape::Int64),
        ("deletionTimestamp", Shape::Time),
        ("finalizers", Shape::List(&Shape::Text)),
        ("generateName", Shape::Text),
        ("generation", Shape::Int64),
        ("labels", Shape::Texts),
        ("managedFields", Shape::List(&Shape::Object(&MANAGED_FIELDS))),
        ("name", Shape::Text),
        ("namespace", Shape::Text),
        ("ownerReferences", Shape::List(&Shape::Object(&OWNER_REFERENCE))),
        ("resourceVersion", Shape::Text),
        ("selfLink", Shape::Text),
        ("uid", Shape::Text),
    ],
};

const OWNER_REFERENCE: ObjectShape = ObjectShape {
    name: "OwnerReference",
    fields: &[
        ("apiVersion", Shape::Text),
        ("blockOwnerDeletion", Shape::Bool),
        ("controller", Shape::Bool),
        ("kind", Shape::Text),
        ("name", Shape::Text),
        ("uid", Shape::Text),
    ],
};

const MANAGED_FIELDS: ObjectShape = ObjectShape {
    name: "ManagedFieldsEntry",
    fields: &[
        ("apiVersion", Shape::Text),
        ("fieldsType", Shape::Text),
        ("fieldsV1", Shape::Anything),
        ("manager", Shape::Text),
        ("operation", Shape::Text),
        ("subresource", Shape::Text),
        ("time", Shape::Time),
    ],
};

const SPEC: ObjectShape = ObjectShape {
    name: "ServiceProfileSpec",
    fields: &[
        ("dstOverrides", Shape::List(&Shape::Object(&WEIGHTED_DST))),
        ("opaquePorts", Shape::Ports),
        ("retryBudget", Shape::Object(&RETRY_BUDGET)),
        ("routes", Shape::List(&Shape::Object(&ROUTE))),
    ],
};

const ROUTE: ObjectShape = ObjectShape {
    name: "RouteSpec",
    fields: &[
        ("condition", Shape::Object(&REQUEST_MATCH)),
        ("isRetryable", Shape::Bool),
        ("name", Shape::Text),
        ("responseClasses", Shape::List(&Shape::Object(&RESPONSE_CLASS))),
        ("timeout", Shape::Text),
    ],
};

// These two are statics, because they refer to themselves.
static REQUEST_MATCH: ObjectShape = ObjectShape {
    name: "RequestMatch",
    fields: &[
        ("all", Shape::List(&Shape::Object(&REQUEST_MATCH))),
        ("any", Shape::List(&Shape::Object(&REQUEST_MATCH))),
        ("method", Shape::Text),
        ("not", Shape::Object(&REQUEST_MATCH)),
        ("pathRegex", Shape::Text),
    ],
};

static RESPONSE_MATCH: ObjectShape = ObjectShape {
    name: "ResponseMatch",
    fields: &[
        ("all", Shape::List(&Shape::Object(&RESPONSE_MATCH))),
        ("any", Shape::List(&Shape::Object(&RESPONSE_MATCH))),
        ("not", Shape::Object(&RESPONSE_MATCH)),
        ("status", Shape::Object(&STATUS_RANGE)),
    ],
};

const RESPONSE_CLASS: ObjectShape = ObjectShape {
    name: "ResponseClass",
    fields: &[("condition", Shape::Object(&RESPONSE_MATCH)), ("isFailure", Shape::Bool)],
};

const STATUS_RANGE: ObjectShape =
    ObjectShape { name: "Range", fields: &[("max", Shape::Uint32), ("min", Shape::Uint32)] };

const RETRY_BUDGET: ObjectShape = ObjectShape {
    name: "RetryBudget",
    fields: &[("minRetriesPerSecond", Shape::Uint32), ("retryRatio", Shape::Float32), ("ttl", Shape::Text)],
};

const WEIGHTED_DST: ObjectShape =
    ObjectShape { name: "WeightedDst", fields: &[("authority", Shape::Text), ("weight", Shape::Quantity)] };

// === impl Shape ===

impl Shape {
    /// Returns Go's name of the type.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Text | Self::StrictText | Self::Time | Self::Quantity | Self::Anything => "string".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Uint32 => "uint32".to_owned(),
            Self::Int64 => "int64".to_owned(),
            Self::Float32 => "float32".to_owned(),
            Self::Texts => "map[string]string".to_owned(),
            Self::Ports => "map[uint32]struct {}".to_owned(),
            Self::Object(shape) => shape.qualified_name(),
            Self::List(item) => match &**item {
                // Lists in the metadata hold values, not pointers.
                Self::Object(shape) if !shape.is_of_metadata() => format!("[]*{}", item.name()),
                item => format!("[]{}", item.name()),
            },
        }
    }
}

// === impl ObjectShape ===

impl ObjectShape {
    /// Returns the name with its package.
    pub(super) fn qualified_name(&self) -> String {
        let package = if self.is_of_metadata() { "v1" } else { "v1alpha2" };
        format!("{package}.{}", self.name)
    }

    fn is_of_metadata(&self) -> bool {
        matches!(self.name, "ObjectMeta" | "OwnerReference" | "ManagedFieldsEntry")
    }
}
