//! Implements [`kube::Resource`] for types that kube's derives do not support.

/// Implements [`kube::Resource`] for a namespaced kind with a field `metadata`. kube's own derives need a generated
/// definition or a typed parent.
macro_rules! namespaced_resource {
    ($object:ident, $group:literal, $version:literal, $plural:literal) => {
        impl kube::Resource for $object {
            type DynamicType = ();
            type Scope = kube::core::NamespaceResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                stringify!($object).into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// Implements [`kube::Resource`] for an object with a field `metadata` and a type parameter, as a resource of the
/// parameter's kind.
macro_rules! parameter_resource {
    ($object:ident, metadata_api: $metadata_api:literal) => {
        impl<K: kube::Resource> kube::Resource for $object<K> {
            type DynamicType = K::DynamicType;
            type Scope = K::Scope;

            fn kind(dynamic: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                K::kind(dynamic)
            }

            fn group(dynamic: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                K::group(dynamic)
            }

            fn version(dynamic: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                K::version(dynamic)
            }

            fn plural(dynamic: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                K::plural(dynamic)
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            fn metadata_api() -> bool {
                $metadata_api
            }
        }
    };
}

pub(super) use namespaced_resource;
pub(crate) use parameter_resource;
