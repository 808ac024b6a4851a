//! The CRD of LinkerdConfig: what the API server accepts, rejects and defaults, and how kubectl shows it.
//!
//! On the shared control plane these tests store nothing, because LinkerdConfigs are cluster-scoped.

mod rollout;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{ControlPlane, Options, eventually};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

#[tokio::test]
async fn samples_are_accepted_unchanged_and_defaulted() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    let defaults = json!({
        "mode": "Enforce", "priority": 0, "deletionPolicy": "Retain",
        "global": {"linkerdNamespace": "linkerd"},
        "drift": {"scope": "Document", "action": "Revert", "trustedManagers": [
            "helm*", "kustomize-controller", "argocd-*", "terraform-provider-helm*", "pulumi-*", "fleetagent", "fleet-agent",
            "kubectl-client-side-apply", "kubectl",
        ]},
        "injectorSync": {
            "method": "Probe", "timeout": "3m", "onTimeout": "Hold", "nudge": true, "delay": "90s",
            "dryRunNamespace": "default",
        },
        "rollout": {
            "policy": "Auto", "paused": false, "optIn": "Label", "kinds": ["Deployment", "StatefulSet", "DaemonSet"],
            "triggers": ["ProxyConfig", "ProxyVersion", "TrustRoots"], "method": "Restart", "maxConcurrent": 1,
            "maxConcurrentPerNamespace": 1, "interval": "10s", "soak": "30s", "progressDeadline": "10m",
            "maxFailures": 1, "onFailure": "Halt", "respectPDB": true,
        },
    });
    for sample in ["minimal", "observe", "full", "2020"] {
        let file = format!("{}/../config/samples/linkerdconfig-{sample}.yaml", env!("CARGO_MANIFEST_DIR"));
        let create = async |run: &str| -> Result<Value> {
            let created = control_plane.kubectl(&["create", "-f", &file, "-o", "json", run]).await?;
            Ok(serde_json::from_str::<Value>(&created)?["spec"].take())
        };
        let mut expected = defaults.clone();
        put_over(&mut expected, &create("--dry-run=client").await?);
        // This default applies only if the manifest has an identityContext.
        if let Some(identity) = expected.pointer_mut("/global/identityContext").and_then(Value::as_object_mut) {
            identity.entry("trustAnchorsPolicy").or_insert("Reuse".into());
        }
        assert_eq!(create("--dry-run=server").await?, expected, "{sample}");
    }
    Ok(())
}

#[tokio::test]
async fn an_invalid_value_is_rejected_with_its_path_and_the_reason() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    let client = control_plane.client().await?;
    let port_or_range = "must be a port such as 4567, or a range of ports such as 8000-8010";
    let (one_unit, go) = ("must be a whole number with one unit", "must be a Go duration");
    let (quantity, version) = ("must be a quantity that is not negative", "must be a version such as edge-26.8.3");
    let (domain, cidr) = ("must be a domain such as cluster.local", "must be a network in CIDR notation");
    let (env_name, image) = ("must be the name of an environment variable", "must be the name of an image");
    let table = [
        (json!({"mode": "enforce"}), "spec.mode", r#"supported values: "Enforce", "Observe", "Suspend""#),
        (json!({"deletionPolicy": "Delete"}), "spec.deletionPolicy", r#"supported values: "Retain", "RestoreBase""#),
        (json!({"priority": "high"}), "spec.priority", "must be of type integer"),
        (json!({"values": []}), "spec.values", "must be of type object"),
        (json!({"drift": {"scope": "All"}}), "spec.drift.scope", r#"supported values: "Document", "Declared""#),
        (json!({"drift": {"action": "Ignore"}}), "spec.drift.action", r#"supported values: "Revert", "Report""#),
        (json!({"drift": {"trustedManagers": ["helm", "helm"]}}), "spec.drift.trustedManagers[1]", "Duplicate value"),
        (json!({"drift": {"trustedManagers": [""]}}), "spec.drift.trustedManagers[0]", "at least 1 chars long"),
        (
            json!({"global": {"linkerdNamespace": ""}}),
            "spec.global.linkerdNamespace",
            "must be the name of a namespace",
        ),
        (
            json!({"global": {"linkerdNamespace": "a.b"}}),
            "spec.global.linkerdNamespace",
            "must be the name of a namespace",
        ),
        (json!({"global": {"configMap": "other"}}), "spec.global.configMap", r#"supported values: "linkerd-config""#),
        (json!({"global": {"version": ""}}), "spec.global.version", version),
        (json!({"global": {"version": "edge 26.8.3"}}), "spec.global.version", version),
        (json!({"global": {"clusterDomain": "Cluster.local"}}), "spec.global.clusterDomain", domain),
        (json!({"global": {"cniEnabled": "yes"}}), "spec.global.cniEnabled", "must be of type boolean"),
        (json!({"injectorSync": {"timeout": "1d"}}), "spec.injectorSync.timeout", go),
        (json!({"injectorSync": {"delay": "-20s"}}), "spec.injectorSync.delay", go),
        (identity(json!({"trustDomain": "a b"})), "spec.global.identityContext.trustDomain", domain),
        (
            identity(json!({"trustAnchorsPEM": "cm9vdA=="})),
            "spec.global.identityContext.trustAnchorsPEM",
            "must begin with -----BEGIN CERTIFICATE-----",
        ),
        (
            identity(json!({"trustAnchorsPEM": "-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0"})),
            "spec.global.identityContext.trustAnchorsPEM",
            "must contain only certificates, and no private key",
        ),
        (
            identity(json!({"trustAnchorsPolicy": "Verify"})),
            "spec.global.identityContext.trustAnchorsPEM",
            "must be set if trustAnchorsPolicy is Verify",
        ),
        (
            identity(json!({"trustAnchorsPolicy": "Set"})),
            "spec.global.identityContext.trustAnchorsPolicy",
            r#"supported values: "Reuse", "Verify""#,
        ),
        (proxy(json!({"proxyImage": {"name": "cr.l5d.io/linkerd /proxy"}})), "spec.proxy.proxyImage.name", image),
        (proxy(json!({"proxyImage": {"name": "cr.l5d.io/linkerd/proxy\n"}})), "spec.proxy.proxyImage.name", image),
        (proxy(json!({"proxyImage": {"name": ""}})), "spec.proxy.proxyImage.name", image),
        (
            proxy(json!({"proxyImage": {"pullPolicy": "Sometimes"}})),
            "spec.proxy.proxyImage.pullPolicy",
            r#""IfNotPresent""#,
        ),
        (proxy(json!({"proxyVersion": "a/b"})), "spec.proxy.proxyVersion", version),
        (proxy(json!({"logLevel": ""})), "spec.proxy.logLevel", "at least 1 chars long"),
        (proxy(json!({"logFormat": "xml"})), "spec.proxy.logFormat", r#"supported values: "plain", "json""#),
        (proxy(json!({"accessLog": "nginx"})), "spec.proxy.accessLog", r#""apache", "json""#),
        (proxy(json!({"adminPort": 0})), "spec.proxy.adminPort", "greater than or equal to 1"),
        (proxy(json!({"inboundPort": 65536})), "spec.proxy.inboundPort", "less than or equal to 65535"),
        (proxy(json!({"controlPort": "4190"})), "spec.proxy.controlPort", "must be of type integer"),
        (
            proxy(json!({"adminPort": 1, "controlPort": 1})),
            "spec.proxy.controlPort",
            "must not be the same port as adminPort",
        ),
        (
            proxy(json!({"adminPort": 1, "inboundPort": 1})),
            "spec.proxy.inboundPort",
            "must not be the same port as adminPort",
        ),
        (
            proxy(json!({"inboundPort": 1, "outboundPort": 1})),
            "spec.proxy.outboundPort",
            "must not be the same port as inboundPort",
        ),
        (proxy(json!({"proxyUID": -1})), "spec.proxy.proxyUID", "greater than or equal to 0"),
        (proxy(json!({"proxyGID": 2_147_483_648_i64})), "spec.proxy.proxyGID", "less than or equal to 2147483647"),
        (proxy(json!({"ignoreInboundPorts": [4567]})), "spec.proxy.ignoreInboundPorts[0]", "must be of type string"),
        (proxy(json!({"ignoreInboundPorts": ["1", "0"]})), "spec.proxy.ignoreInboundPorts[1]", port_or_range),
        (proxy(json!({"ignoreInboundPorts": ["65536"]})), "spec.proxy.ignoreInboundPorts[0]", port_or_range),
        (proxy(json!({"ignoreOutboundPorts": ["80-"]})), "spec.proxy.ignoreOutboundPorts[0]", port_or_range),
        (proxy(json!({"ignoreOutboundPorts": ["1-2-3"]})), "spec.proxy.ignoreOutboundPorts[0]", port_or_range),
        (proxy(json!({"ignoreInboundPorts": ["mysql"]})), "spec.proxy.ignoreInboundPorts[0]", port_or_range),
        (proxy(json!({"ignoreInboundPorts": ["80,81"]})), "spec.proxy.ignoreInboundPorts[0]", port_or_range),
        (
            proxy(json!({"ignoreInboundPorts": ["90-80"]})),
            "spec.proxy.ignoreInboundPorts[0]",
            "must be a range that does not end before its start",
        ),
        (proxy(json!({"skipSubnets": ["10.0.0.0/33"]})), "spec.proxy.skipSubnets[0]", cidr),
        (proxy(json!({"shutdownGracePeriod": "1m30s"})), "spec.proxy.shutdownGracePeriod", one_unit),
        (proxy(json!({"inboundConnectTimeout": "1.5s"})), "spec.proxy.inboundConnectTimeout", one_unit),
        (proxy(json!({"outboundConnectTimeout": "100"})), "spec.proxy.outboundConnectTimeout", one_unit),
        (resource(json!({"requests": {"cpu": "many"}})), "spec.proxy.resource.requests.cpu", quantity),
        (resource(json!({"limits": {"memory": "-1"}})), "spec.proxy.resource.limits.memory", quantity),
        (resource(json!({"limits": {"cpu": 1.5}})), "spec.proxy.resource.limits.cpu", "must be of type integer,string"),
        (
            resource(json!({"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}})),
            "spec.proxy.resource.requests.cpu",
            "must not be more than the limit",
        ),
        (
            resource(json!({"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "1Gi"}})),
            "spec.proxy.resource.requests.ephemeral-storage",
            "must not be more than the limit",
        ),
        (env(json!([{"value": "a"}])), "spec.proxy.additionalEnv[0].name", "Required value"),
        (env(json!([{"name": "1A"}])), "spec.proxy.additionalEnv[0].name", env_name),
        (env(json!([{"name": "A=B"}])), "spec.proxy.additionalEnv[0].name", env_name),
        (env(json!([{"name": "A"}, {"name": "A"}])), "spec.proxy.additionalEnv[1]", "Duplicate value"),
        (
            env(json!([{"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}])),
            "spec.proxy.additionalEnv[0].valueFrom",
            "must not be set together with value",
        ),
    ];
    all_refused(&client, table).await?;

    let spec =
        json!({"global": {"version": "a b"}, "proxy": {"ignoreInboundPorts": ["0", "9-1"], "skipSubnets": ["here"]}});
    let mut found = causes(dry_run(&client, spec).await)?.into_iter().map(|(field, _)| field).collect::<Vec<_>>();
    found.sort();
    let all = [
        "spec.global.version",
        "spec.proxy.ignoreInboundPorts[0]",
        "spec.proxy.ignoreInboundPorts[1]",
        "spec.proxy.skipSubnets[0]",
    ];
    assert_eq!(found, all, "all errors must be reported together");
    Ok(())
}

#[tokio::test]
async fn unusual_but_valid_values_are_accepted() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    let client = control_plane.client().await?;
    for spec in [
        identity(json!({"issuanceLifeTime": "1.5h30m", "clockSkewAllowance": "0"})),
        json!({"injectorSync": {"timeout": "1.5h30m", "delay": "0"}}),
        identity(json!({"trustAnchorsPolicy": "Verify", "trustAnchorsPEM": "-----BEGIN CERTIFICATE-----\n"})),
        proxy(json!({"skipSubnets": ["fd00::/8", "0.0.0.0/0"]})),
        proxy(json!({"proxyImage": {"name": "registry.example:5000/linkerd/proxy@sha256"}, "proxyUID": 0})),
        proxy(json!({"accessLog": "", "ignoreOutboundPorts": [], "ignoreInboundPorts": ["1-65535", "80-80", "80"]})),
        proxy(json!({"shutdownGracePeriod": "0s", "adminPort": 65535, "controlPort": 1})),
        resource(json!({"requests": {"cpu": 1, "memory": "0.5Gi"}, "limits": {"cpu": "1000m", "memory": "512Mi"}})),
        env(json!([{"name": "a.b-C_1", "value": ""}, {"name": "_"}])),
    ] {
        dry_run(&client, spec.clone()).await.with_context(|| spec.to_string())?;
    }
    // In a field, null means "not set". Within `values` it removes a key, and is stored.
    let nulls =
        json!({"mode": null, "proxy": {"adminPort": null}, "global": null, "values": {"proxy": {"accessLog": null}}});
    let taken = dry_run(&client, nulls).await?.data["spec"].take();
    assert_eq!((&taken["mode"], &taken["global"]["linkerdNamespace"]), (&json!("Enforce"), &json!("linkerd")));
    assert_eq!((&taken["proxy"], &taken["values"]), (&json!({}), &json!({"proxy": {"accessLog": null}})));
    Ok(())
}

#[tokio::test]
async fn kubectl_explain_shows_the_documentation() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    for (path, texts) in [
        ("linkerdconfig", ["LinkerdConfig declares the configuration", "A value that a resource does not set stays"]),
        ("linkerdconfig.spec.drift.scope", ["The protected part of the document.", "The default is Document"]),
        ("linkerdconfig.spec.proxy.adminPort", ["Sets proxy.ports.admin", "Linkerd's default is 4191"]),
        ("lcfg.spec.global.clusterDomain", ["Deprecated: set it with Helm.", "the condition ControlPlaneMismatch"]),
        ("lcfg.spec.global.omitWebhookSideEffects", ["Deprecated: has no effect.", "status.deprecatedFields"]),
        ("lcfg.spec.proxy.resource.limits.cpu", ["CPU cores", "100m"]),
        ("lcfg.spec.rollout.maxConcurrent", ["a percentage of the selected workloads", "The default is 1"]),
        ("lcfg.spec.rollout.namespaceSelector.matchExpressions.values", ["for In and NotIn only", "string"]),
        ("lcfg.spec.rollout.window.allow.cron", ["minute, hour, day of month, month and day of week", "0 2 * * 1-5"]),
        ("lcfg.status.conditions", ["Accepted: whether", "lastTransitionTime"]),
    ] {
        let shown = eventually(Duration::from_secs(30), "kubectl to explain it", async || {
            control_plane.kubectl(&["explain", path]).await
        })
        .await?;
        // kubectl wraps lines.
        let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in texts {
            assert!(words.contains(text), "{path} should contain {text:?}: {words}");
        }
    }
    let names =
        control_plane.kubectl(&["api-resources", "--categories=linkerd", "--namespaced=false", "-o", "name"]).await?;
    assert!(names.lines().any(|name| name == "linkerdconfigs.config.linkerd.io"), "{names}");
    Ok(())
}

#[tokio::test]
async fn the_target_is_immutable_and_the_status_is_a_subresource() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    control_plane.install_crds("crd").await?;
    let configs: Api<DynamicObject> = Api::all_with(control_plane.client().await?, &kind());
    let target = json!({"linkerdNamespace": "mesh-system"});
    let made = configs.create(&PostParams::default(), &object("mesh", json!({"global": target}))).await?;

    let merge = async |patch: Value| configs.patch("mesh", &PatchParams::default(), &Patch::Merge(patch)).await;
    // Null would select the default, which is another target.
    for global in [json!({"linkerdNamespace": "linkerd"}), json!({"linkerdNamespace": null}), json!(null)] {
        let refused = causes(merge(json!({"spec": {"global": global}})).await)?;
        assert!(refused.iter().all(|(_, message)| message.contains("cannot be changed")), "{refused:?}");
        assert_eq!(
            refused.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(),
            ["spec.global.linkerdNamespace"]
        );
    }

    // A write of the resource leaves the status, and a write of the status leaves the spec.
    let both = json!({"spec": {"mode": "Observe"}, "status": {"active": true}});
    let spec_written = merge(both.clone()).await?;
    assert_eq!((&spec_written.data["spec"]["mode"], &spec_written.data["status"]), (&json!("Observe"), &json!(null)));
    let mut both = both;
    both["spec"]["mode"] = json!("Suspend");
    let status_written = configs.patch_status("mesh", &PatchParams::default(), &Patch::Merge(both)).await?;
    assert_eq!(
        (&status_written.data["spec"]["mode"], &status_written.data["status"]),
        (&json!("Observe"), &json!({"active": true}))
    );
    assert_eq!((made.metadata.generation, status_written.metadata.generation), (Some(1), Some(2)));

    // Each field manager owns the conditions that it applied.
    apply_condition(&configs, "one", "Ready", "True").await?;
    apply_condition(&configs, "two", "Stalled", "True").await?;
    let status = apply_condition(&configs, "one", "Ready", "False").await?;
    let conditions = status["conditions"].as_array().context("no conditions")?;
    let mut seen: Vec<_> =
        conditions.iter().map(|condition| (condition["type"].as_str(), condition["status"].as_str())).collect();
    seen.sort();
    assert_eq!(seen, [(Some("Ready"), Some("False")), (Some("Stalled"), Some("True"))]);
    let refused = causes(apply_condition(&configs, "one", "Ready", "Perhaps").await)?;
    assert!(refused.iter().any(|(field, _)| field == "status.conditions[0].status"), "{refused:?}");

    let found = json!({"status": {"target": {"name": "linkerd-config"}, "proxyVersion": "edge-26.8.3", "configHash": "0123456789ab", "drift": {"count": 3},
        "rollout": {"summary": "12/40", "phase": "Progressing"}}});
    configs.patch_status("mesh", &PatchParams::default(), &Patch::Merge(found)).await?;
    let shown = control_plane.kubectl(&["get", "lcfg"]).await?;
    let lines = table(&shown);
    assert_eq!(
        lines[0],
        ["NAME", "CONTROL PLANE NAMESPACE", "CONFIGMAP", "ACTIVE", "READY", "VERSION", "UPDATED", "PHASE", "AGE"],
        "{shown}"
    );
    let row = ["mesh", "mesh-system", "linkerd-config", "true", "False", "edge-26.8.3", "12/40", "Progressing"];
    assert_eq!(lines[1][..8], row, "{shown}");
    let shown = control_plane.kubectl(&["get", "linkerdconfigs", "-o", "wide"]).await?;
    let lines = table(&shown);
    assert_eq!(lines[0][8..], ["HASH", "DRIFT", "INJECTOR", "AGE"], "{shown}");
    assert_eq!(lines[1][8..10], ["0123456789ab", "3"], "{shown}");
    Ok(())
}

fn kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("config.linkerd.io", "v1alpha1", "LinkerdConfig"))
}

fn object(name: &str, spec: Value) -> DynamicObject {
    DynamicObject::new(name, &kind()).data(at(&["spec"], spec))
}

fn identity(context: Value) -> Value {
    at(&["global", "identityContext"], context)
}

fn proxy(proxy: Value) -> Value {
    at(&["proxy"], proxy)
}

fn resource(resource: Value) -> Value {
    at(&["proxy", "resource"], resource)
}

fn env(variables: Value) -> Value {
    at(&["proxy", "additionalEnv"], variables)
}

/// An object with only this value, at this path.
fn at(path: &[&str], value: Value) -> Value {
    path.iter().rev().fold(value, |value, key| Value::Object([((*key).to_owned(), value)].into_iter().collect()))
}

async fn dry_run(client: &Client, spec: Value) -> kube::Result<DynamicObject> {
    let configs: Api<DynamicObject> = Api::all_with(client.clone(), &kind());
    configs.create(&PostParams { dry_run: true, ..PostParams::default() }, &object("mesh", spec)).await
}

/// Checks that each spec is rejected for this path only, and for this reason.
async fn all_refused(client: &Client, table: impl IntoIterator<Item = (Value, impl AsRef<str>, &str)>) -> Result<()> {
    for (spec, path, text) in table {
        let causes = causes(dry_run(client, spec.clone()).await).with_context(|| spec.to_string())?;
        let [(field, message)] = causes.as_slice() else { bail!("{spec}: {causes:?}") };
        ensure!(
            field == path.as_ref() && message.contains(text),
            "{spec}: expected {}: {text}, got {field}: {message}",
            path.as_ref()
        );
        ensure!(!message.contains("c2VjcmV0"), "the message contains a private key: {message}");
    }
    Ok(())
}

async fn apply_condition(configs: &Api<DynamicObject>, manager: &str, of: &str, status: &str) -> kube::Result<Value> {
    let condition = json!({
        "type": of, "status": status, "reason": "Tested", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let applied = json!({
        "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "status": {"conditions": [condition]},
    });
    let mut written = configs.patch_status("mesh", &PatchParams::apply(manager), &Patch::Apply(applied)).await?;
    Ok(written.data.get_mut("status").map(Value::take).unwrap_or_default())
}

/// The rejected fields and the reasons, without the hint that there may be further errors.
fn causes<T>(outcome: kube::Result<T>) -> Result<Vec<(String, String)>> {
    let Err(kube::Error::Api(status)) = outcome else { bail!("the request was accepted, or got no response") };
    ensure!(status.code == 422, "{status:?}");
    let details = status.details.context("no details")?;
    let all = details.causes.into_iter().map(|cause| (cause.field, cause.message));
    Ok(all.filter(|(field, _)| field != "<nil>").collect())
}

/// The cells of the output of `kubectl get`, which are separated by two or more spaces.
fn table(shown: &str) -> Vec<Vec<&str>> {
    shown.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect()
}

fn put_over(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                put_over(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}
