//! Warnings about an injected Pod: what its author wrote for the proxy, and what its containers share with the proxy.

use super::{AuthorWarnings, shown, values};
use crate::{
    go,
    proxy_injector::{
        annotations::{Annotations, WAIT_BEFORE_EXIT},
        reviewed::{ReviewedContainer, ReviewedSpec},
    },
    values::ProxyValues,
};

/// The default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_PERIOD: i64 = 30;

/// Adds the warnings about a Pod that gets a proxy with these values.
pub(in crate::proxy_injector) fn of_injected(
    values: &ProxyValues,
    annotations: Annotations<'_>,
    spec: &ReviewedSpec,
    warnings: &mut AuthorWarnings,
) {
    values::check(values, annotations, warnings);
    ports(values, spec, warnings);
    user(values, spec, warnings);
    shutdown(values, annotations, spec, warnings);
}

/// The proxy and the containers have one network namespace.
fn ports(values: &ProxyValues, spec: &ReviewedSpec, warnings: &mut AuthorWarnings) {
    for (port, name) in values::ports(values) {
        if spec.tcp_ports().any(|it| it == i64::from(port)) {
            warnings.add(format_args!(
                "the port {port} of a container is the {name} port of the proxy: only one of them can listen on it"
            ));
        }
    }
}

/// The firewall exempts the traffic of the user and of the group of the proxy.
fn user(values: &ProxyValues, spec: &ReviewedSpec, warnings: &mut AuthorWarnings) {
    let (uid, gid) = (values.proxy.uid, values.proxy.gid);
    let of_pod = &spec.security_context;
    let has_user = |it: &&ReviewedContainer| it.security_context.run_as_user.or(of_pod.run_as_user) == Some(uid);
    let has_group = |it: &&ReviewedContainer| it.security_context.run_as_group.or(of_pod.run_as_group) == Some(gid);
    if let Some(container) = spec.all_containers().find(has_user).filter(|_| uid > 0) {
        warnings.add(format_args!(
            "the container {:?} runs as the user {uid} of the proxy: its traffic bypasses the proxy",
            shown(&container.name)
        ));
    }
    if let Some(container) = spec.all_containers().find(has_group).filter(|_| gid > 0) {
        warnings.add(format_args!(
            "the container {:?} runs as the group {gid} of the proxy: its traffic bypasses the proxy",
            shown(&container.name)
        ));
    }
}

fn shutdown(values: &ProxyValues, annotations: Annotations<'_>, spec: &ReviewedSpec, warnings: &mut AuthorWarnings) {
    let allowed = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_PERIOD);
    let mut warn = |key: &str, text: &str| {
        warnings.add(format_args!(
            "the annotation {key} has {}, but terminationGracePeriodSeconds is {allowed}: the kubelet kills the proxy \
             before",
            shown(text)
        ));
    };
    let grace_period = annotations.get("shutdown-grace-period");
    if let Some(text) = grace_period
        && go::duration::parse(text).is_some_and(|nanos| nanos > allowed.saturating_mul(1_000_000_000))
    {
        warn("config.linkerd.io/shutdown-grace-period", text);
    }
    if let Some(text) = annotations.whole(WAIT_BEFORE_EXIT)
        && let Ok(seconds) = text.parse::<u64>()
    {
        if values.proxy.native_sidecar {
            warnings.add(format_args!("the annotation {WAIT_BEFORE_EXIT} has no effect on a native sidecar"));
        } else if i64::try_from(seconds).unwrap_or(i64::MAX) >= allowed {
            warn(WAIT_BEFORE_EXIT, text);
        }
    }
}
