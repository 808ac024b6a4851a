//! The CRD of LinkerdConfig: what the API server accepts, rejects and defaults, and how kubectl shows it.
//!
//! On the shared control plane these tests store nothing, because LinkerdConfigs are cluster-scoped.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{Rig, eventually, mesh::merge};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Paths in the first expression of a label selector.
const KEY: &str = ".matchExpressions[0].key";
const OPERATOR: &str = ".matchExpressions[0].operator";
const VALUES: &str = ".matchExpressions[0].values";

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
    for sample in ["minimal", "observe", "full", "canary", "2020"] {
        let file = format!("{}/../config/samples/linkerdconfig-{sample}.yaml", env!("CARGO_MANIFEST_DIR"));
        let create = async |run: &str| -> Result<Value> {
            let created = control_plane.kubectl(&["create", "-f", &file, "-o", "json", run]).await?;
            Ok(serde_json::from_str::<Value>(&created)?["spec"].take())
        };
        let mut expected = defaults.clone();
        merge(&mut expected, create("--dry-run=client").await?);
        // This default applies only if the manifest has an identityContext.
        if let Some(identity) = expected.pointer_mut("/global/identityContext").and_then(Value::as_object_mut) {
            identity.entry("trustAnchorsPolicy").or_insert("Reuse".into());
        }
        assert_eq!(create("--dry-run=server").await?, expected, "{sample}");
    }
    Ok(())
}

/// The path of a value below `spec` or `spec.rollout`, the value, the rejected path below it, and a part of the reason.
type InvalidValue = (&'static str, Value, &'static str, &'static str);

fn invalid_values() -> Vec<InvalidValue> {
    let port_or_range = "must be a port such as 4567, or a range of ports such as 8000-8010";
    let (one_unit, go) = ("must be a whole number with one unit", "must be a Go duration");
    let (quantity, version) = ("must be a quantity that is not negative", "must be a version such as edge-26.8.3");
    let (domain, cidr) = ("must be a domain such as cluster.local", "must be a network in CIDR notation");
    let (env_name, image) = ("must be the name of an environment variable", "must be the name of an image");
    let (namespace, more) = ("must be the name of a namespace", "must not be more than the limit");
    let no_pem = "must begin with -----BEGIN CERTIFICATE-----";
    let only_certificates = "must contain only certificates, and no private key";
    let (same_port, same_as_inbound) =
        ("must not be the same port as adminPort", "must not be the same port as inboundPort");
    let key = "-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0";
    let set_twice = json!([{"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]);
    vec![
        ("mode", json!("enforce"), "", r#"supported values: "Enforce", "Observe", "Suspend""#),
        ("deletionPolicy", json!("Delete"), "", r#"supported values: "Retain", "RestoreBase""#),
        ("priority", json!("high"), "", "must be of type integer"),
        ("values", json!([]), "", "must be of type object"),
        ("drift.scope", json!("All"), "", r#"supported values: "Document", "Declared""#),
        ("drift.action", json!("Ignore"), "", r#"supported values: "Revert", "Report""#),
        ("drift.trustedManagers", json!(["helm", "helm"]), "[1]", "Duplicate value"),
        ("drift.trustedManagers", json!([""]), "[0]", "at least 1 chars long"),
        ("global.linkerdNamespace", json!(""), "", namespace),
        ("global.linkerdNamespace", json!("a.b"), "", namespace),
        ("global.configMap", json!("other"), "", r#"supported values: "linkerd-config""#),
        ("global.version", json!(""), "", version),
        ("global.version", json!("edge 26.8.3"), "", version),
        ("global.clusterDomain", json!("Cluster.local"), "", domain),
        ("global.cniEnabled", json!("yes"), "", "must be of type boolean"),
        ("global.identityContext.trustDomain", json!("a b"), "", domain),
        ("global.identityContext.trustAnchorsPEM", json!("cm9vdA=="), "", no_pem),
        ("global.identityContext.trustAnchorsPEM", json!(key), "", only_certificates),
        (
            "global.identityContext",
            json!({"trustAnchorsPolicy": "Verify"}),
            ".trustAnchorsPEM",
            "must be set if trustAnchorsPolicy is Verify",
        ),
        ("global.identityContext.trustAnchorsPolicy", json!("Set"), "", r#"supported values: "Reuse", "Verify""#),
        ("injectorSync.timeout", json!("1d"), "", go),
        ("canary", json!({}), ".namespaceSelector", "Required value"),
        ("canary", json!({"namespaceSelector": {"matchLabels": {}}}), ".namespaceSelector", "must not be empty"),
        (
            "canary",
            json!({"namespaceSelector": {"matchLabels": {"a": "b"}}, "promotion": "Never"}),
            ".promotion",
            r#"supported values: "Automatic", "Manual""#,
        ),
        ("canary", json!({"namespaceSelector": {"matchLabels": {"a": "b"}}, "soak": "1d"}), ".soak", go),
        ("injectorSync.delay", json!("-20s"), "", go),
        ("proxy.proxyImage.name", json!("cr.l5d.io/linkerd /proxy"), "", image),
        ("proxy.proxyImage.name", json!("cr.l5d.io/linkerd/proxy\n"), "", image),
        ("proxy.proxyImage.name", json!(""), "", image),
        ("proxy.proxyImage.pullPolicy", json!("Sometimes"), "", r#""IfNotPresent""#),
        ("proxy.proxyVersion", json!("a/b"), "", version),
        ("proxy.logLevel", json!(""), "", "at least 1 chars long"),
        ("proxy.logFormat", json!("xml"), "", r#"supported values: "plain", "json""#),
        ("proxy.accessLog", json!("nginx"), "", r#""apache", "json""#),
        ("proxy.adminPort", json!(0), "", "greater than or equal to 1"),
        ("proxy.inboundPort", json!(65536), "", "less than or equal to 65535"),
        ("proxy.controlPort", json!("4190"), "", "must be of type integer"),
        ("proxy", json!({"adminPort": 1, "controlPort": 1}), ".controlPort", same_port),
        ("proxy", json!({"adminPort": 1, "inboundPort": 1}), ".inboundPort", same_port),
        ("proxy", json!({"inboundPort": 1, "outboundPort": 1}), ".outboundPort", same_as_inbound),
        ("proxy.proxyUID", json!(-1), "", "greater than or equal to 0"),
        ("proxy.proxyGID", json!(2_147_483_648_i64), "", "less than or equal to 2147483647"),
        ("proxy.ignoreInboundPorts", json!([4567]), "[0]", "must be of type string"),
        ("proxy.ignoreInboundPorts", json!(["1", "0"]), "[1]", port_or_range),
        ("proxy.ignoreInboundPorts", json!(["65536"]), "[0]", port_or_range),
        ("proxy.ignoreOutboundPorts", json!(["80-"]), "[0]", port_or_range),
        ("proxy.ignoreOutboundPorts", json!(["1-2-3"]), "[0]", port_or_range),
        ("proxy.ignoreInboundPorts", json!(["mysql"]), "[0]", port_or_range),
        ("proxy.opaquePorts", json!(["mysql"]), "[0]", port_or_range),
        ("proxy.defaultInboundPolicy", json!("allow"), "", r#""cluster-authenticated", "deny", "audit""#),
        ("global.clusterNetworks", json!(["10.0.0.0"]), "[0]", cidr),
        ("proxy.ignoreInboundPorts", json!(["80,81"]), "[0]", port_or_range),
        ("proxy.ignoreInboundPorts", json!(["90-80"]), "[0]", "must be a range that does not end before its start"),
        ("proxy.skipSubnets", json!(["10.0.0.0/33"]), "[0]", cidr),
        ("proxy.shutdownGracePeriod", json!("1m30s"), "", one_unit),
        ("proxy.inboundConnectTimeout", json!("1.5s"), "", one_unit),
        ("proxy.outboundConnectTimeout", json!("100"), "", one_unit),
        ("proxy.resource.requests.cpu", json!("many"), "", quantity),
        ("proxy.resource.limits.memory", json!("-1"), "", quantity),
        ("proxy.resource.limits.cpu", json!(1.5), "", "must be of type integer,string"),
        ("proxy.resource", json!({"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}), ".requests.cpu", more),
        (
            "proxy.resource",
            json!({"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "1Gi"}}),
            ".requests.ephemeral-storage",
            more,
        ),
        ("proxy.additionalEnv", json!([{"value": "a"}]), "[0].name", "Required value"),
        ("proxy.additionalEnv", json!([{"name": "1A"}]), "[0].name", env_name),
        ("proxy.additionalEnv", json!([{"name": "A=B"}]), "[0].name", env_name),
        ("proxy.additionalEnv", json!([{"name": "A"}, {"name": "A"}]), "[1]", "Duplicate value"),
        ("proxy.additionalEnv", set_twice, "[0].valueFrom", "must not be set together with value"),
    ]
}

fn invalid_rollouts() -> Vec<InvalidValue> {
    let number = "must be a number from 1 to 10000, or a percentage from 1% to 100%";
    let (go, positive) = ("must be a Go duration", "must be greater than zero");
    let (zone, five) = ("must be the name of a time zone", "must be the five fields of a cron expression");
    let (none, late) = ("should have at least 1 items", "must be later than from");
    let expression = |expression: Value| json!({"matchExpressions": [expression]});
    let allow = |cron: &str, duration: &str| json!([{"cron": cron, "duration": duration}]);
    let deny = |from: &str, to: &str| json!([{"from": from, "to": to}]);
    let (day, next_day) = ("2026-12-24T00:00:00Z", "2026-12-25T00:00:00Z");
    vec![
        ("policy", json!("Approve"), "", r#"supported values: "Auto", "Off""#),
        ("paused", json!("no"), "", "must be of type boolean"),
        ("optIn", json!("Namespace"), "", r#"supported values: "Label", "All""#),
        ("kinds", json!(["Job"]), "[0]", r#""StatefulSet", "DaemonSet""#),
        ("kinds", json!(["DaemonSet", "DaemonSet"]), "[1]", "Duplicate value"),
        ("kinds", json!([]), "", none),
        ("triggers", json!(["Always"]), "[0]", r#""ProxyVersion", "TrustRoots""#),
        ("triggers", json!([]), "", none),
        ("method", json!("Delete"), "", r#"supported values: "Restart", "Evict""#),
        ("maxConcurrent", json!(0), "", number),
        ("maxConcurrent", json!(10_001), "", number),
        ("maxConcurrent", json!("10"), "", number),
        ("maxConcurrent", json!("0%"), "", number),
        ("maxConcurrent", json!("101%"), "", number),
        ("maxConcurrent", json!(1.5), "", "must be of type integer,string"),
        ("maxConcurrentPerNamespace", json!(0), "", "greater than or equal to 1"),
        ("maxConcurrentPerNamespace", json!("10%"), "", "must be of type integer"),
        ("interval", json!("10"), "", go),
        ("soak", json!("-30s"), "", go),
        ("progressDeadline", json!("soon"), "", go),
        ("progressDeadline", json!("0s"), "", positive),
        ("maxFailures", json!(0), "", number),
        ("maxFailures", json!("0%"), "", number),
        ("onFailure", json!("Ignore"), "", r#""Halt", "Rollback", "Continue""#),
        ("namespaceSelector.matchLabels.a", json!(1), "", "type string"),
        ("workloadSelector", expression(json!({"operator": "Exists"})), KEY, "Required value"),
        ("workloadSelector", expression(json!({"key": "a b", "operator": "Exists"})), KEY, "must be a label key"),
        ("workloadSelector", expression(json!({"key": "a", "operator": "Is"})), OPERATOR, r#""In", "NotIn", "Exists""#),
        (
            "workloadSelector",
            expression(json!({"key": "a", "operator": "NotIn"})),
            VALUES,
            "must contain at least one value for In and NotIn",
        ),
        (
            "workloadSelector",
            expression(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
            VALUES,
            "must not be set with Exists and DoesNotExist",
        ),
        ("window.timeZone", json!("Europe / Berlin"), "", zone),
        ("window.timeZone", json!(""), "", zone),
        ("window.allow", allow("0 2 * *", "4h"), "[0].cron", five),
        ("window.allow", allow("@daily", "4h"), "[0].cron", five),
        ("window.allow", allow("0 2 * * MON#1", "4h"), "[0].cron", five),
        ("window.allow", allow("0 2 * * *", "4"), "[0].duration", go),
        ("window.allow", allow("0 2 * * *", "0h"), "[0].duration", positive),
        ("window.allow", allow("0 2 * * *", "168h1s"), "[0].duration", "must not be longer than seven days"),
        ("window.allow", json!([{"cron": "0 2 * * *"}]), "[0].duration", "Required value"),
        ("window.allow", json!(vec![json!({"cron": "0 2 * * *", "duration": "1h"}); 21]), "", "at most 20 items"),
        ("window.deny", deny(day, "tomorrow"), "[0].to", "must be of type date-time"),
        ("window.deny", deny(day, day), "[0].to", late),
        ("window.deny", deny(next_day, "2026-12-25T00:00:00+01:00"), "[0].to", late),
        ("window.deny", json!([{"from": day}]), "[0].to", "Required value"),
        ("window.deny", json!(vec![json!({"from": day, "to": next_day}); 51]), "", "at most 50 items"),
    ]
}

#[tokio::test]
async fn an_invalid_value_is_rejected_with_its_path_and_the_reason() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    let client = control_plane.client().await?;
    let of_spec = invalid_values().into_iter().map(|row| ("", row));
    let of_rollout = invalid_rollouts().into_iter().map(|row| ("rollout.", row));
    for (above, (path, value, below, text)) in of_spec.chain(of_rollout) {
        let path = format!("{above}{path}");
        let spec = path.rsplit('.').fold(value, |value, key| json!({key: value}));
        let expected = format!("spec.{path}{below}");
        let causes = causes(dry_run(&client, &spec).await).with_context(|| spec.to_string())?;
        let [(field, message)] = causes.as_slice() else { bail!("{spec}: {causes:?}") };
        ensure!(
            *field == expected && message.contains(text),
            "{spec}: expected {expected}: {text}, got {field}: {message}"
        );
        ensure!(!message.contains("c2VjcmV0"), "the message contains a private key: {message}");
    }

    let spec =
        json!({"global": {"version": "a b"}, "proxy": {"ignoreInboundPorts": ["0", "9-1"], "skipSubnets": ["here"]}});
    let mut found = causes(dry_run(&client, &spec).await)?.into_iter().map(|(field, _)| field).collect::<Vec<_>>();
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
    let identity = |context: Value| json!({"global": {"identityContext": context}});
    let proxy = |proxy: Value| json!({ "proxy": proxy });
    let rollout = |rollout: Value| json!({ "rollout": rollout });
    for spec in [
        identity(json!({"issuanceLifeTime": "1.5h30m", "clockSkewAllowance": "0"})),
        identity(json!({"trustAnchorsPolicy": "Verify", "trustAnchorsPEM": "-----BEGIN CERTIFICATE-----\n"})),
        json!({"injectorSync": {"timeout": "1.5h30m", "delay": "0"}}),
        proxy(json!({"skipSubnets": ["fd00::/8", "0.0.0.0/0"]})),
        proxy(json!({"proxyImage": {"name": "registry.example:5000/linkerd/proxy@sha256"}, "proxyUID": 0})),
        proxy(json!({"accessLog": "", "ignoreOutboundPorts": [], "ignoreInboundPorts": ["1-65535", "80-80", "80"]})),
        proxy(json!({"shutdownGracePeriod": "0s", "adminPort": 65535, "controlPort": 1})),
        proxy(json!({"resource":
            {"requests": {"cpu": 1, "memory": "0.5Gi"}, "limits": {"cpu": "1000m", "memory": "512Mi"}}})),
        proxy(json!({"additionalEnv": [{"name": "a.b-C_1", "value": ""}, {"name": "_"}]})),
        rollout(json!({"maxConcurrent": 10_000, "interval": "0", "soak": "0s", "progressDeadline": "0.5s"})),
        rollout(json!({"maxConcurrent": "100%", "kinds": ["DaemonSet"], "triggers": ["TrustRoots"], "policy": "Off"})),
        rollout(json!({"namespaceSelector": {}, "workloadSelector": {"matchExpressions": [
            {"key": "example.com/a_b", "operator": "DoesNotExist", "values": []},
            {"key": "c", "operator": "In", "values": [""]},
        ]}})),
        rollout(json!({"window": {}})),
        rollout(json!({"window": {"timeZone": "America/Argentina/Buenos_Aires", "allow": [
            {"cron": "*/15  0-6,22 1,15 JAN-mar 7", "duration": "1.5h"}, {"cron": "* * * * *", "duration": "168h"},
        ]}})),
        rollout(json!({"window": {"deny": [{"from": "2026-12-24T00:00:00.5Z", "to": "2026-12-24T00:00:00-01:00"}]}})),
    ] {
        dry_run(&client, &spec).await.with_context(|| spec.to_string())?;
    }
    // In a field, null means "not set". Within `values` it removes a key, and is stored.
    let nulls =
        json!({"mode": null, "proxy": {"adminPort": null}, "global": null, "values": {"proxy": {"accessLog": null}}});
    let taken = dry_run(&client, &nulls).await?.data["spec"].take();
    assert_eq!((&taken["mode"], &taken["global"]["linkerdNamespace"]), (&json!("Enforce"), &json!("linkerd")));
    assert_eq!((&taken["proxy"], &taken["values"]), (&json!({}), &json!({"proxy": {"accessLog": null}})));
    Ok(())
}

/// The fields that an older schema had and later ones lacked.
#[tokio::test]
async fn a_resource_of_an_older_version_is_accepted_with_all_its_fields() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    let older = json!({
        "global": {"clusterNetworks": ["10.0.0.0/8"], "disableIPv6": false},
        "proxy": {"accessLog": "apache", "defaultInboundPolicy": "deny", "opaquePorts": ["9999"]},
        "injectorSync": {"method": "Delay", "timeout": "10s"},
        "rollout": {"soak": "1s", "interval": "1s", "progressDeadline": "15s"},
    });
    let spec = dry_run(&control_plane.client().await?, &older).await?.data["spec"].take();
    let mut with_older = spec.clone();
    merge(&mut with_older, older);
    assert_eq!(spec, with_older, "a field was dropped");
    assert_eq!(spec["proxy"]["defaultInboundPolicy"], "deny");
    Ok(())
}

#[tokio::test]
async fn kubectl_explain_shows_the_documentation() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    for (path, texts) in [
        ("linkerdconfig", ["LinkerdConfig declares the configuration", "A value that a resource does not set stays"]),
        ("linkerdconfig.spec.drift.scope", ["The protected part of the document.", "The default is Document"]),
        ("lcfg.spec.proxy.resource.limits.cpu", ["CPU cores", "100m"]),
        ("lcfg.spec.rollout.namespaceSelector.matchExpressions.values", ["for In and NotIn only", "string"]),
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
    let control_plane = Rig::bare().crds("crd").start().await?;
    let configs: Api<DynamicObject> = Api::all_with(control_plane.client.clone(), &kind());
    let target = json!({"linkerdNamespace": "mesh-system"});
    let made = configs.create(&PostParams::default(), &object("mesh", &json!({"global": target}))).await?;

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
    assert_eq!(lines[0], ["NAME", "MODE", "ACTIVE", "READY", "REASON", "UPDATED", "PHASE", "AGE"], "{shown}");
    let row = ["mesh", "Observe", "true", "False", "Tested", "12/40", "Progressing"];
    assert_eq!(lines[1][..7], row, "{shown}");
    let shown = control_plane.kubectl(&["get", "linkerdconfigs", "-o", "wide"]).await?;
    let lines = table(&shown);
    let wide = ["VERSION", "CONFIGMAP", "HASH", "DRIFT", "INJECTOR", "AGE"];
    assert_eq!(lines[0][7..], wide, "{shown}");
    assert_eq!(lines[1][7..11], ["edge-26.8.3", "linkerd-config", "0123456789ab", "3"], "{shown}");
    Ok(())
}

fn kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("config.linkerd.io", "v1alpha1", "LinkerdConfig"))
}

fn object(name: &str, spec: &Value) -> DynamicObject {
    DynamicObject::new(name, &kind()).data(json!({ "spec": spec }))
}

async fn dry_run(client: &Client, spec: &Value) -> kube::Result<DynamicObject> {
    let configs: Api<DynamicObject> = Api::all_with(client.clone(), &kind());
    configs.create(&PostParams { dry_run: true, ..PostParams::default() }, &object("mesh", spec)).await
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
