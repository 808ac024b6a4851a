//! The container `linkerd-proxy`.

use serde_json::{Map, Value, json};

use super::{
    fields::{NotRenderable, capabilities, check_networks, image, resources, set_pull_policy, token_mount},
    proxy_env,
};
use crate::{
    api::PROXY_NAME,
    values::{PODINFO_VOLUME, PROXY_MOUNTS, ProxyValues, TOKEN_VOLUME},
};

/// The inputs of the proxy container that are not values.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy_injector) struct ProxyContext<'a> {
    /// The namespace of the control plane.
    pub(in crate::proxy_injector) controller_namespace: &'a str,
    /// The PEM of the trust anchors.
    pub(in crate::proxy_injector) trust_anchors: &'a str,
    /// The hash of the configuration, for [`CONFIG_HASH_ENV`](crate::api::CONFIG_HASH_ENV).
    pub(in crate::proxy_injector) injection_hash: &'a str,
    /// The inbound ports of the Pod, separated by commas.
    pub(in crate::proxy_injector) inbound_ports: &'a str,
}

pub(in crate::proxy_injector) fn proxy(
    values: &ProxyValues,
    context: ProxyContext<'_>,
) -> Result<Value, NotRenderable> {
    let (proxy, ports) = (&values.proxy, &values.proxy.ports);
    check_networks(&values.cluster_networks)?;
    let probe = |path: &str, probe: &crate::values::ProbeValues| {
        json!({
            "httpGet": {"path": path, "port": ports.admin},
            "initialDelaySeconds": probe.initial_delay_seconds,
            "timeoutSeconds": probe.timeout_seconds,
        })
    };
    let mut container = json!({
        "name": PROXY_NAME,
        "image": image(values, &proxy.image, "proxy.image")?,
        "env": proxy_env::env(values, context)?,
        "ports": [
            {"containerPort": ports.inbound, "name": "linkerd-proxy"},
            {"containerPort": ports.admin, "name": "linkerd-admin"},
        ],
        "livenessProbe": probe("/live", &proxy.liveness_probe),
        "readinessProbe": probe("/ready", &proxy.readiness_probe),
        "securityContext": security_context(values),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(values),
    });
    let Some(fields) = container.as_object_mut() else { return Ok(container) };
    set_pull_policy(fields, values.pull_policy_of(&proxy.image));
    if let Some(resources) = resources(&proxy.resources) {
        fields.insert("resources".to_owned(), resources);
    }
    if proxy.native_sidecar {
        fields.insert("restartPolicy".to_owned(), "Always".into());
        if proxy.r#await {
            let Some(startup) = &proxy.startup_probe else {
                return Err(NotRenderable::missing("proxy.startupProbe"));
            };
            let probe = json!({
                "httpGet": {"path": "/ready", "port": ports.admin},
                "initialDelaySeconds": startup.initial_delay_seconds,
                "periodSeconds": startup.period_seconds,
                "failureThreshold": startup.failure_threshold,
            });
            fields.insert("startupProbe".to_owned(), probe);
        }
    } else if let Some(lifecycle) = lifecycle(values) {
        fields.insert("lifecycle".to_owned(), lifecycle);
    }
    Ok(container)
}

/// The hooks of a proxy that is an ordinary container.
fn lifecycle(values: &ProxyValues) -> Option<Value> {
    let proxy = &values.proxy;
    let mut hooks = Map::new();
    if proxy.r#await {
        let port = format!("--port={}", values.proxy.ports.admin);
        let command = json!(["/usr/lib/linkerd/linkerd-await", "--timeout=2m", port]);
        hooks.insert("postStart".to_owned(), json!({"exec": {"command": command}}));
    }
    if proxy.wait_before_exit_seconds != 0 {
        let command = json!(["/bin/sleep", proxy.wait_before_exit_seconds.to_string()]);
        hooks.insert("preStop".to_owned(), json!({"exec": {"command": command}}));
    }
    (!hooks.is_empty()).then(|| hooks.into())
}

fn security_context(values: &ProxyValues) -> Value {
    let proxy = &values.proxy;
    // A custom security context replaces the default one completely.
    if !proxy.security_context.is_empty() {
        return proxy.security_context.clone().into();
    }
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": proxy.uid,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    if let Some(context) = context.as_object_mut() {
        if proxy.gid >= 0 {
            context.insert("runAsGroup".to_owned(), proxy.gid.into());
        }
        if let Some(capabilities) = proxy.capabilities.as_ref().and_then(capabilities) {
            context.insert("capabilities".to_owned(), capabilities);
        }
    }
    context
}

fn mounts(values: &ProxyValues) -> Vec<Value> {
    let is_used = |volume: &str| match volume {
        PODINFO_VOLUME => values.proxy.tracing.as_ref().is_some_and(|tracing| tracing.enabled),
        TOKEN_VOLUME => values.identity.service_account_token_projection,
        _ => true,
    };
    let mounts = PROXY_MOUNTS.iter().filter(|(volume, _)| is_used(volume));
    let mounts = mounts.map(|(volume, path)| json!({"mountPath": path, "name": volume}));
    mounts.chain(values.proxy.sa_mount_path.as_ref().map(token_mount)).collect()
}
