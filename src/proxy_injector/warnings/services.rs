//! Warnings about the annotations of a Service. Only `config.linkerd.io/opaque-ports` has an effect on one.

use super::{AuthorWarnings, shown};
use crate::{
    api::OPAQUE_PORTS_ANNOTATION,
    cluster::kinds::port_ranges,
    proxy_injector::{annotations::AnnotationKind, reviewed::ReviewedObject},
};

const SKIP_OUTBOUND: &str = "config.linkerd.io/skip-outbound-ports";

/// Adds the warnings about a Service.
pub(in crate::proxy_injector) fn of_service(service: &ReviewedObject, warnings: &mut AuthorWarnings) {
    for (key, text) in &service.metadata.annotations {
        match (AnnotationKind::of(key), key.as_str()) {
            (_, OPAQUE_PORTS_ANNOTATION) => opaque_ports(text, service, warnings),
            (AnnotationKind::Unknown, _) => {
                warnings.add(format_args!("the annotation {} is unknown and has no effect", shown(key)));
            }
            (AnnotationKind::Other, _) => {}
            (_, SKIP_OUTBOUND) => {
                warnings.add(format_args!(
                    "the annotation {key} has no effect on a Service: set it on the Pods of its clients"
                ));
            }
            _ => warnings.add(format_args!("the annotation {key} has no effect on a Service: set it on its Pods")),
        }
    }
}

fn opaque_ports(text: &str, service: &ReviewedObject, warnings: &mut AuthorWarnings) {
    let ports = service.spec.ports.iter();
    let named = ports.filter_map(|it| Some((it.name.as_str(), u16::try_from(it.port).ok()?)));
    port_ranges::listed(text, named, |item| {
        warnings.add(format_args!(
            "the annotation {OPAQUE_PORTS_ANNOTATION} has {:?}, which is not a port, a range such as 9000-9100 or the \
             name of a port of the Service: it is ignored",
            shown(item)
        ));
    });
}
