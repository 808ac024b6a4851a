//! The declared values merged into Helm's document. Tests compare the whole document, as Go parses it.

use anyhow::{Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{CONFIG_MAP, HELM, Installation, QUIET, WELL};

/// Adopts with this spec, and checks that the document is [`HELM`] with this patch.
async fn becomes(spec: Value, patch: Value) -> Result<Installation> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", spec).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.document_is(&installation.helm_with(patch).await?).await?;
    drop(manager);
    Ok(installation)
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_a_merge_patch() -> Result<()> {
    let values = json!({
        "proxy": {
            "logHTTPHeaders": "insecure",
            "runtime": {"workers": {"minimum": 2, "maximumCPURatio": 0.5}},
            "accessLog": null,
            "outbound": {"server": null, "client": {"http2": {"keepAliveInterval": "10s"}}},
        },
        "proxyInit": {"iptablesMode": "legacy", "closeWaitTimeoutSecs": 5, "runAsRoot": true},
        "nodeSelector": {"kubernetes.io/os": null, "pool": "mesh"},
        "policyController": {"probeNetworks": ["10.0.0.0/8"]},
        "tolerations": [{"key": "mesh", "operator": "Exists"}],
        "somethingNew": {"that": ["Linkerd", {"may": "have"}, 1, 1.5, true, null]},
    });
    becomes(json!({ "values": values }), values).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_fields_set_their_paths() -> Result<()> {
    let spec = json!({
        "global": {
            "configMap": "linkerd-config", "version": "edge-26.9.1", "cniEnabled": true,
            "identityContext": {"issuanceLifeTime": "48h", "clockSkewAllowance": "10s", "scheme": "kubernetes.io/tls"},
        },
        "proxy": {
            "proxyImage": {"name": "registry.example:5000/proxy", "pullPolicy": "Always"}, "proxyVersion": "edge-26.9.2",
            "logLevel": "info", "logFormat": "json", "adminPort": 14191, "controlPort": 14190, "inboundPort": 14143,
            "outboundPort": 14140, "proxyUID": 2200, "proxyGID": 2201, "ignoreInboundPorts": ["4567", "8000-8010"],
            "ignoreOutboundPorts": [], "skipSubnets": ["169.254.169.254/32"],
            "disableExternalProfiles": false, "accessLog": "apache",
            "nativeSidecar": false, "await": false, "shutdownGracePeriod": "60s", "inboundConnectTimeout": "200ms",
            "outboundConnectTimeout": "2s",
            "resource": {"requests": {"cpu": "100m", "memory": "20Mi"}, "limits": {"memory": "250Mi", "ephemeral-storage": "1Gi"}},
            "additionalEnv": [{"name": "A", "value": "off"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        },
    });
    let patch = json!({
        "linkerdVersion": "edge-26.9.1", "cniEnabled": true,
        "proxy": {
            "image": {"name": "registry.example:5000/proxy", "pullPolicy": "Always", "version": "edge-26.9.2"},
            "logLevel": "info", "logFormat": "json",
            "ports": {"admin": 14191, "control": 14190, "inbound": 14143, "outbound": 14140},
            "uid": 2200, "gid": 2201, "enableExternalProfiles": true, "accessLog": "apache",
            "nativeSidecar": false, "await": false,
            "shutdownGracePeriod": "60s", "inboundConnectTimeout": "200ms", "outboundConnectTimeout": "2s",
            "resources": {
                "cpu": {"request": "100m"}, "memory": {"request": "20Mi", "limit": "250Mi"}, "ephemeral-storage": {"limit": "1Gi"},
            },
            "additionalEnv": [{"name": "A", "value": "off"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        },
        "proxyInit": {"ignoreInboundPorts": "4567,8000-8010", "ignoreOutboundPorts": "", "skipSubnets": "169.254.169.254/32"},
    });
    let installation = becomes(spec, patch).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    assert_eq!(status["proxyVersion"], "edge-26.9.2", "proxyVersion must take precedence over version");
    let deprecated = [
        "configMap",
        "identityContext.clockSkewAllowance",
        "identityContext.issuanceLifeTime",
        "identityContext.scheme",
    ];
    assert_eq!(status["deprecatedFields"], json!(deprecated.map(|field| format!("spec.global.{field}"))));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_the_control_plane_does_not_use_are_reported_until_helm_sets_them() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    let values = json!({"disableIPv6": false, "proxy": {"opaquePorts": "25,3306", "logFormat": "json"}});
    installation.declare("mesh", json!({ "values": values })).await?;
    let status =
        installation.reaches("mesh", &[&WELL[..], &["ControlPlaneMismatch=True/ValuesDiffer"]].concat()).await?;
    let message = |status: &Value| {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let warning = conditions.find(|condition| condition["type"] == "ControlPlaneMismatch");
        warning.and_then(|warning| warning["message"].as_str()).map(str::to_owned)
    };
    let expected = "the control plane keeps the installer's values of disableIPv6, proxy.opaquePorts: \
                    set the same values with Helm, or remove them";
    assert_eq!(message(&status).as_deref(), Some(expected));

    // Helm renders the flags of the control plane from the same values as its document.
    let same = json!({"disableIPv6": false, "proxy": {"opaquePorts": "25,3306"}});
    installation.rewrite("helm", &serde_json::to_string(&installation.helm_with(same).await?)?).await?;
    eventually(SOON, "the warning to disappear", async || {
        let status = installation.reaches("mesh", &WELL).await?;
        ensure!(message(&status).is_none(), "{status}");
        Ok(())
    })
    .await?;
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_with_values_and_each_change_of_the_spec_are_written_once() -> Result<()> {
    let installation = Installation::new().await?;
    let uid = installation.map().await?.uid();
    let manager = installation.manager().await?;
    let spec = json!({
        "global": {"version": "edge-26.9.1"}, "proxy": {"logFormat": "json"},
        "values": {"proxy": {"metrics": {"hostnameLabels": true}}},
    });
    installation.declare("mesh", spec).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    let patch = json!({
        "linkerdVersion": "edge-26.9.1", "proxy": {"logFormat": "json", "metrics": {"hostnameLabels": true}},
    });
    installation.document_is(&installation.helm_with(patch).await?).await?;
    assert_eq!(status["proxyVersion"], "edge-26.9.1");
    let first = status["configHash"].clone();

    // A value that is no longer declared is inherited from the base again.
    installation.change("mesh", json!({"proxy": {"logFormat": null, "accessLog": "json"}, "values": null})).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    let patch = json!({"linkerdVersion": "edge-26.9.1", "proxy": {"accessLog": "json"}});
    installation.document_is(&installation.helm_with(patch).await?).await?;
    assert_ne!(status["configHash"], first);
    installation.change("mesh", json!({"global": {"version": null}, "proxy": null})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.document_is(&installation.helm_with(json!({})).await?).await?;

    assert_eq!(installation.writes("/configmaps/").len(), 3);
    assert_eq!(installation.map().await?.uid(), uid);
    assert_eq!(installation.bases().await?, [HELM]);
    assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0);
    drop(manager);
    Ok(())
}

/// Strings that YAML 1.1 parses as another type, and strings that are difficult to quote.
#[tokio::test(flavor = "multi_thread")]
async fn go_parses_the_declared_strings() -> Result<()> {
    let odd = [
        "off",
        "Yes",
        "n",
        "~",
        "null",
        "",
        " ",
        "1:30",
        "190:20:30",
        "0x1F",
        "0o17",
        "017",
        "1e3",
        "1_000",
        ".inf",
        "-.5",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "=",
        "<<",
        "!tag",
        "&anchor",
        "*alias",
        "- item",
        "? key",
        "a: b",
        "a #b",
        "#",
        "{a}",
        "[a]",
        "\"quoted\"",
        "'single'",
        "two\nlines\n",
        "\nleading",
        "trailing \n\n",
        "tab\there",
        "\u{e9}\u{1f980}",
        "a\u{2028}b",
        "\u{feff}",
        "@at",
        "`tick",
        "%percent",
        "|",
        ">",
        "\\",
        "C:\\dir",
        "---",
        "...",
        "+1",
        "1.0",
    ];
    let annotations: serde_json::Map<String, Value> =
        odd.iter().enumerate().map(|(number, text)| (format!("a{number:02}"), Value::from(*text))).collect();
    let keys: serde_json::Map<String, Value> = odd.iter().map(|text| (format!("{text}."), Value::from("1"))).collect();
    let values = json!({"podAnnotations": annotations, "podLabels": keys, "proxy": {"logHTTPHeaders": "off"}});
    becomes(json!({ "values": values }), values).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_with_the_same_values_is_not_rewritten() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.expect_event("mesh", "ConfigMapUpdated").await?;
    let expected = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.document_is(&expected).await?;
    let text = installation.text().await?;
    let written = installation.parse(&text).await?;
    let json_text = serde_json::to_string(&written)?;
    // Another order, other quotes, and comments.
    let (first, rest) = text.split_once('\n').unwrap_or_default();
    let moved = format!("# a comment\n{rest}\n{first}  # moved\n").replace("accessLog: json", "accessLog: 'json'");
    ensure!(moved.contains("'json'") && installation.parse(&moved).await? == written, "{moved}");
    for other in [json_text.as_str(), &moved] {
        installation.rewrite("kubectl-edit", other).await?;
        holds(QUIET, "the edited text", async || {
            ensure!(installation.text().await? == other, "it was written again");
            Ok(())
        })
        .await?;
        installation.reaches("mesh", &WELL).await?;
    }
    assert_eq!(installation.writes(&format!("/configmaps/{CONFIG_MAP}")).len(), 1);
    assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0);
    assert_eq!(installation.bases().await?.len(), 1);
    // An edit of a value is reverted, so the controller still works.
    installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    installation.document_is(&expected).await?;
    drop(manager);
    Ok(())
}

/// Go accepts keys of the base in any case. The written document has each key only once.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_base_in_another_case_is_the_same_key() -> Result<()> {
    let installation = Installation::empty().await?;
    installation.put_trust_roots(&installation.base_anchors().await?).await?;
    let base = HELM.replace("  logLevel: warn,linkerd=info,hickory=error", "  LOGLEVEL: warn");
    ensure!(base != HELM, "the test document has changed");
    installation.put_map(json!({"data": {"values": base}})).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"logLevel": "debug"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.document_is(&installation.helm_with(json!({"proxy": {"logLevel": "debug"}})).await?).await?;
    assert_eq!(installation.bases().await?, [base]);
    drop(manager);
    Ok(())
}
