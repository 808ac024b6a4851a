//! The container `linkerd-network-validator`, which replaces `linkerd-init` where a CNI plugin sets up the firewall.

use serde_json::{Value, json};

use super::fields::{NotRenderable, image, resources, set_pull_policy};
use crate::values::ProxyValues;

pub(in crate::proxy_injector) fn validator(values: &ProxyValues) -> Result<Value, NotRenderable> {
    let Some(validator) = &values.network_validator else { return Err(NotRenderable::missing("networkValidator")) };
    let or = |given: &str, v4: &'static str, v6: &'static str| match (given.is_empty(), values.disable_ipv6) {
        (false, _) => given.to_owned(),
        (true, true) => v4.to_owned(),
        (true, false) => v6.to_owned(),
    };
    // The CNI plugin redirects to this port, whatever the annotation for the outbound port is.
    let listen = or(&validator.listen_addr, "0.0.0.0:4140", "[::]:4140");
    let connect = or(&validator.connect_addr, "1.1.1.1:20001", "[fd00::1]:20001");
    let restricted = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "runAsGroup": 65534,
        "runAsNonRoot": true,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let mut container = json!({
        "name": "linkerd-network-validator",
        "image": image(values, &values.proxy.image, "proxy.image")?,
        "command": ["/usr/lib/linkerd/linkerd2-network-validator"],
        "args": [
            "--log-format", validator.log_format,
            "--log-level", validator.log_level,
            "--connect-addr", connect,
            "--listen-addr", listen,
            "--timeout", validator.timeout,
        ],
        "securityContext": match validator.security_context.is_empty() {
            true => restricted,
            false => validator.security_context.clone().into(),
        },
    });
    if let Some(container) = container.as_object_mut() {
        set_pull_policy(container, values.pull_policy_of(&values.proxy.image));
        if let Some(resources) = resources(&values.proxy.resources) {
            container.insert("resources".to_owned(), resources);
        }
    }
    Ok(container)
}
