//! The container `linkerd-init`, which sets up the firewall of the Pod.

use serde_json::{Map, Value, json};

use super::fields::{NotRenderable, image, resources, set_pull_policy, token_mount};
use crate::values::{ProxyValues, XTABLES_VOLUME};

/// The user and the group of a container that does not run as root, if the values name none.
const UNPRIVILEGED: i64 = 65534;
/// The capabilities that are required to set up the firewall.
const NEEDED: [&str; 2] = ["NET_ADMIN", "NET_RAW"];

pub(in crate::proxy_injector) fn init(values: &ProxyValues) -> Result<Value, NotRenderable> {
    let init = &values.proxy_init;
    let Some(xtables) = &init.xt_mount_path else { return Err(NotRenderable::missing("proxyInit.xtMountPath")) };
    if init.close_wait_timeout_secs > 0 && !init.run_as_root {
        let seconds = init.close_wait_timeout_secs.to_string();
        return Err(NotRenderable::new(
            "proxyInit.closeWaitTimeoutSecs, or the annotation config.linkerd.io/close-wait-timeout,",
            &seconds,
            "0, because it requires proxyInit.runAsRoot",
        ));
    }
    // The name of the volume is fixed.
    let mut mounts = vec![json!({"mountPath": xtables.mount_path, "name": XTABLES_VOLUME})];
    mounts.extend(values.proxy.sa_mount_path.as_ref().map(token_mount));
    let mut container = json!({
        "name": "linkerd-init",
        "image": image(values, &values.proxy.image, "proxy.image")?,
        "command": ["/usr/lib/linkerd/linkerd2-proxy-init"],
        "args": arguments(values)?,
        "securityContext": security_context(values),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    if let Some(container) = container.as_object_mut() {
        set_pull_policy(container, values.pull_policy_of(&values.proxy.image));
        if let Some(resources) = resources(&values.proxy.resources) {
            container.insert("resources".to_owned(), resources);
        }
    }
    Ok(container)
}

fn arguments(values: &ProxyValues) -> Result<Vec<String>, NotRenderable> {
    let (init, proxy) = (&values.proxy_init, &values.proxy);
    let mut args: Vec<String> = Vec::new();
    let mut add = |flag: &str, value: &str| args.extend([flag.to_owned(), value.to_owned()]);
    match init.iptables_mode.as_str() {
        "nft" => {
            add("--firewall-bin-path", "iptables-nft");
            add("--firewall-save-bin-path", "iptables-nft-save");
        }
        "legacy" => {}
        other => return Err(NotRenderable::new("proxyInit.iptablesMode", other, "nft or legacy")),
    }
    if values.disable_ipv6 {
        args.push("--ipv6=false".to_owned());
    }
    let mut add = |flag: &str, value: &str| args.extend([flag.to_owned(), value.to_owned()]);
    add("--incoming-proxy-port", &proxy.ports.inbound.to_string());
    add("--outgoing-proxy-port", &proxy.ports.outbound.to_string());
    add("--proxy-uid", &proxy.uid.to_string());
    if proxy.gid >= 0 {
        add("--proxy-gid", &proxy.gid.to_string());
    }
    let mut ignored = format!("{},{}", proxy.ports.control, proxy.ports.admin);
    if !init.ignore_inbound_ports.is_empty() {
        ignored = format!("{ignored},{}", init.ignore_inbound_ports);
    }
    add("--inbound-ports-to-ignore", &ignored);
    let seconds = match init.close_wait_timeout_secs {
        0 => String::new(),
        seconds => seconds.to_string(),
    };
    for (flag, value) in [
        ("--outbound-ports-to-ignore", &init.ignore_outbound_ports),
        ("--timeout-close-wait-secs", &seconds),
        ("--log-format", &init.log_format),
        ("--log-level", &init.log_level),
        ("--subnets-to-ignore", &init.skip_subnets),
    ] {
        if !value.is_empty() {
            add(flag, value);
        }
    }
    Ok(args)
}

fn security_context(values: &ProxyValues) -> Value {
    let init = &values.proxy_init;
    // The kernel's setting is only writable for a privileged container.
    let is_privileged = init.close_wait_timeout_secs > 0 || init.privileged;
    let (of_pod_add, of_pod_drop) = values.proxy.capabilities.clone().map(|it| (it.add, it.drop)).unwrap_or_default();
    let added: Vec<String> = NEEDED.map(str::to_owned).into_iter().chain(of_pod_add).collect();
    let dropped: Vec<String> = of_pod_drop.into_iter().filter(|it| !NEEDED.contains(&it.as_str())).collect();
    let mut capabilities = Map::from_iter([("add".to_owned(), json!(added))]);
    if !dropped.is_empty() {
        capabilities.insert("drop".to_owned(), json!(dropped));
    }
    let or_default = |id: i64| if id == 0 { UNPRIVILEGED } else { id };
    let (user, group) = match init.run_as_root {
        true => (0, 0),
        false => (or_default(init.run_as_user), or_default(init.run_as_group)),
    };
    json!({
        "allowPrivilegeEscalation": is_privileged,
        "capabilities": capabilities,
        "privileged": is_privileged,
        "readOnlyRootFilesystem": true,
        "runAsGroup": group,
        "runAsNonRoot": !init.run_as_root,
        "runAsUser": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}
