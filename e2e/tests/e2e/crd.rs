//! Linkerd's CRDs: what the API server accepts, rejects and stores.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{TestNamespace, eventually};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
    client::Body,
};
use serde_json::{Value, json};

#[tokio::test]
async fn external_workloads_are_accepted_in_both_versions() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd/linkerd").await?;
    let namespace = TestNamespace::create(&control_plane.client().await?, "crd").await?;

    let tls = json!({"identity": "spiffe://root.linkerd.cluster.local/vm", "serverName": "vm.example"});
    let addresses = json!([{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}]);
    let spec = json!({"meshTLS": tls, "ports": [{"port": 80}], "workloadIPs": addresses});
    let created = create(&namespace, &workloads("v1beta1"), "beta", spec).await?;
    let protocol = created.data.pointer("/spec/ports/0/protocol");
    assert_eq!(protocol, Some(&json!("TCP")));

    let one = json!([{"ip": "192.0.2.1"}]);
    let alpha = workloads("v1alpha1");
    create(&namespace, &alpha, "alpha", json!({"meshTls": tls, "workloadIPs": one})).await?;
    let refused = create(&namespace, &alpha, "two", json!({"meshTls": tls, "workloadIPs": addresses})).await;
    let error = refused.err().context("v1alpha1 accepted two addresses")?;
    assert!(error.to_string().contains("must have at most 1 item"), "{error}");
    let refused = create(&namespace, &workloads("v1beta1"), "bare", json!({})).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("spec.meshTLS")));

    // API discovery, which lists the categories, is updated slightly later than the paths.
    let shown = eventually(Duration::from_secs(30), "kubectl to resolve the category", async || {
        control_plane.kubectl(&["get", "external", "-n", namespace.name()]).await
    })
    .await?;
    let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next(), Some(vec!["NAME", "IDENTITY", "AGE"]), "{shown}");
    assert!(lines.any(|line| line.starts_with(&["beta", "spiffe://root.linkerd.cluster.local/vm"])), "{shown}");
    let label = ["get", "crd", "externalworkloads.workload.linkerd.io", "-o", "jsonpath={.metadata.labels}"];
    assert_eq!(control_plane.kubectl(&label).await?, r#"{"app.kubernetes.io/managed-by":"linkerd-operator"}"#);
    Ok(())
}

#[tokio::test]
async fn servers_are_accepted_in_four_versions_each_as_strict_as_in_linkerd() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd/linkerd").await?;
    let namespace = TestNamespace::create(&control_plane.client().await?, "crd").await?;
    let (pods, vms) = (json!({"matchLabels": {"app": "web"}}), json!({"matchLabels": {"app": "vm"}}));
    let expressions = json!([{"key": "app", "operator": "In", "values": ["web"]}]);
    let both = json!({"matchLabels": {"app": "web"}, "matchExpressions": expressions});
    let unknown_operator = json!({"matchExpressions": [{"key": "app", "operator": "Like"}]});
    let by_name = json!({"podSelector": pods, "port": "http", "proxyProtocol": "opaque"});
    let by_expressions = json!({"podSelector": {"matchExpressions": expressions}, "port": 80});
    let by_both = json!({"podSelector": both, "port": 80});
    let all_pods = json!({"podSelector": {}, "port": 80});
    let of_vms = json!({"externalWorkloadSelector": vms, "port": 80});
    let no_selector = json!({"port": 80});
    let both_selectors = json!({"podSelector": pods, "externalWorkloadSelector": vms, "port": 80});
    let any_protocol = json!({"podSelector": pods, "port": 80, "proxyProtocol": "carrier pigeon"});

    // Specs that all versions accept or reject, then specs on which they differ. The texts are the expected errors,
    // from the oldest version to the newest; empty means accepted.
    let (accepted, rejected) = (|spec: &Value| (spec.clone(), [""; 4]), |spec: Value, text| (spec, [text; 4]));
    let one_selector = r#""spec" must validate one and only one schema (oneOf)"#;
    let one_kind = r#""spec.podSelector" must validate one and only one schema (oneOf)"#;
    let no_pods = "spec.podSelector: Required value";
    let table = [
        accepted(&by_name),
        accepted(&by_expressions),
        accepted(&any_protocol),
        rejected(json!(null), "spec"),
        rejected(json!({"podSelector": pods}), "spec.port: Required value"),
        rejected(json!({"podSelector": pods, "port": [80]}), "spec.port"),
        rejected(json!({"podSelector": unknown_operator, "port": 80}), "operator: Unsupported value"),
        rejected(
            json!({"podSelector": {"matchExpressions": [{"key": "app"}]}, "port": 80}),
            "operator: Required value",
        ),
        (by_both, [one_kind, "", "", ""]),
        (all_pods, [one_kind, "", "", ""]),
        (of_vms, [no_pods, no_pods, "", ""]),
        (no_selector, [no_pods, no_pods, one_selector, one_selector]),
        (both_selectors, ["", "", one_selector, one_selector]),
    ];
    create_each(&namespace, ["v1alpha1", "v1beta1", "v1beta2", "v1beta3"].map(servers), table).await?;

    // The defaults are those of the storage version, also for objects written in another version.
    let stored: Api<DynamicObject> =
        Api::namespaced_with(namespace.client().clone(), namespace.name(), &servers("v1beta3"));
    let spec = stored.get("v1alpha1-1").await?.data["spec"].take();
    assert_eq!((&spec["proxyProtocol"], &spec["accessPolicy"]), (&json!("unknown"), &json!("deny")), "{spec}");
    let named = stored.get("v1beta1-0").await?.data["spec"].take();
    assert_eq!((&named["port"], &named["proxyProtocol"]), (&json!("http"), &json!("opaque")), "{named}");

    let warning = async |version: &str| -> Result<String> {
        let path = format!("/apis/policy.linkerd.io/{version}/namespaces/{}/servers", namespace.name());
        let response = namespace.client().send(http::Request::get(path).body(Body::empty())?).await?;
        Ok(response.headers().get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned())
    };
    for (version, successor) in [("v1alpha1", "v1beta1"), ("v1beta1", "v1beta3")] {
        let text =
            format!("policy.linkerd.io/{version} Server is deprecated; use policy.linkerd.io/{successor} Server");
        let warning = warning(version).await?;
        assert!(warning.contains(&text), "{warning:?}");
    }
    for version in ["v1beta2", "v1beta3"] {
        assert_eq!(warning(version).await?, "", "{version} is not deprecated");
    }

    let shown = eventually(Duration::from_secs(30), "kubectl to resolve the short name", async || {
        control_plane.kubectl(&["get", "srv", "-n", namespace.name(), "v1beta3-0"]).await
    })
    .await?;
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "PORT", "PROTOCOL", "ACCESS", "POLICY"], "{shown}");
    assert_eq!(lines[1], ["v1beta3-0", "http", "opaque", "deny"], "{shown}");
    Ok(())
}

#[tokio::test]
async fn service_profiles_are_accepted_in_both_versions_with_the_oddities_of_their_schemas() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd/linkerd").await?;
    let namespace = TestNamespace::create(&control_plane.client().await?, "crd").await?;
    let route = |condition: Value| json!({"routes": [{"name": "a", "condition": condition}]});
    let class =
        |class: Value| json!({"routes": [{"name": "a", "condition": {"method": "GET"}, "responseClasses": [class]}]});
    let overrides = |weight: Value| json!({"routes": [], "dstOverrides": [{"authority": "b", "weight": weight}]});
    let budget = json!({"retryRatio": 0.2, "minRetriesPerSecond": 10, "ttl": "10s"});
    let whole = json!({
        "routes": [{"name": "a", "condition": {"all": [{"method": "GET"}, {"not": {"pathRegex": "/a"}}]},
            "isRetryable": true, "timeout": "1s",
            "responseClasses": [{"condition": {"not": {"status": {"min": 200, "max": 299}}}, "isFailure": true}]}],
        "retryBudget": budget, "dstOverrides": [{"authority": "b", "weight": "500m"}], "opaquePorts": ["80"],
    });

    // The expected errors in v1alpha1 and in v1alpha2; empty means accepted.
    let no_routes = "spec.routes: Required value";
    let table = [
        (whole, ["", ""]),
        (json!({}), [no_routes, ""]),
        (json!({"retryBudget": budget}), [no_routes, ""]),
        (json!({"routes": [{"name": "a"}]}), ["routes[0].condition: Required value"; 2]),
        (json!({"routes": [{"condition": {}}]}), ["routes[0].name: Required value"; 2]),
        (json!({"routes": [null]}), ["spec.routes[0]"; 2]),
        (route(json!({})), [""; 2]),
        (route(json!(null)), ["condition"; 2]),
        (route(json!({"all": []})), [""; 2]),
        (route(json!({"all": [null]})), ["condition.all[0]"; 2]),
        (route(json!({"all": [{"not": {"method": "GET"}, "any": [null]}]})), [""; 2]),
        // The schema declares an array here, although that is meaningless.
        (route(json!({"not": [{"method": "GET"}]})), [""; 2]),
        (route(json!({"not": {"method": "GET"}})), ["condition.not"; 2]),
        (class(json!({"condition": {"not": {"status": {"min": 200}}}})), [""; 2]),
        (class(json!({"condition": {"not": [{"status": {"min": 200}}]}})), ["condition.not"; 2]),
        (class(json!({"condition": {"status": {"min": "200"}}})), ["condition.status.min"; 2]),
        (class(json!({"isFailure": true})), ["responseClasses[0].condition: Required value"; 2]),
        (
            json!({"routes": [], "retryBudget": {"retryRatio": 0.2, "ttl": "1s"}}),
            ["minRetriesPerSecond: Required value"; 2],
        ),
        (
            json!({"routes": [], "retryBudget": {"minRetriesPerSecond": 1, "ttl": "1s"}}),
            ["retryRatio: Required value"; 2],
        ),
        (json!({"routes": [], "retryBudget": {"minRetriesPerSecond": 1, "retryRatio": 1}}), ["ttl: Required value"; 2]),
        (overrides(json!(1)), [""; 2]),
        (overrides(json!("1e3")), [""; 2]),
        (overrides(json!("heavy")), ["weight"; 2]),
        (overrides(json!([1])), ["weight"; 2]),
        // The schema has `required` on the array instead of its items, where it has no effect.
        (json!({"routes": [], "dstOverrides": [{}]}), [""; 2]),
        (json!({"routes": [], "opaquePorts": {"80": {}}}), ["spec.opaquePorts"; 2]),
    ];
    create_each(&namespace, ["v1alpha1", "v1alpha2"].map(profiles), table).await?;

    // Unknown fields are pruned, except within nested conditions.
    let stored: Api<DynamicObject> =
        Api::namespaced_with(namespace.client().clone(), namespace.name(), &profiles("v1alpha2"));
    let odd = json!({"routes": [{"name": "a", "more": 1, "condition": {"more": 2, "all": [{"more": 3}]}}], "more": 4});
    create(&namespace, &profiles("v1alpha1"), "odd", odd).await?;
    let kept = json!({"routes": [{"name": "a", "condition": {"all": [{"more": 3}]}}]});
    assert_eq!(stored.get("odd").await?.data["spec"], kept);

    let shown = eventually(Duration::from_secs(30), "kubectl to resolve the short name", async || {
        control_plane.kubectl(&["get", "sp", "-n", namespace.name(), "odd"]).await
    })
    .await?;
    assert_eq!(
        shown.lines().next().map(|line| line.split_whitespace().collect()),
        Some(vec!["NAME", "AGE"]),
        "{shown}"
    );
    let format = "jsonpath={.status.storedVersions}{.spec.names.singular}{.metadata.labels}";
    let definition = control_plane.kubectl(&["get", "crd", "serviceprofiles.linkerd.io", "-o", format]).await?;
    let expected = r#"["v1alpha2"]serviceprofile{"app.kubernetes.io/managed-by":"linkerd-operator"}"#;
    assert_eq!(definition, expected);
    Ok(())
}

fn workloads(version: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("workload.linkerd.io", version, "ExternalWorkload"))
}

fn servers(version: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("policy.linkerd.io", version, "Server"))
}

fn profiles(version: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("linkerd.io", version, "ServiceProfile"))
}

async fn create(namespace: &TestNamespace, kind: &ApiResource, name: &str, spec: Value) -> kube::Result<DynamicObject> {
    let api: Api<DynamicObject> = Api::namespaced_with(namespace.client().clone(), namespace.name(), kind);
    let object = DynamicObject::new(name, kind).data(json!({ "spec": spec }));
    api.create(&PostParams::default(), &object).await
}

/// Creates each spec in each version, as `VERSION-ROW`, and checks the text of the error; empty means accepted.
async fn create_each<const N: usize, const R: usize>(
    namespace: &TestNamespace,
    versions: [ApiResource; N],
    table: [(Value, [&str; N]); R],
) -> Result<()> {
    for (row, (spec, expected)) in table.into_iter().enumerate() {
        for (kind, text) in versions.iter().zip(expected) {
            let version = &kind.version;
            match create(namespace, kind, &format!("{version}-{row}"), spec.clone()).await {
                Ok(_) => ensure!(text.is_empty(), "{version} accepted {spec}"),
                Err(error) => {
                    let refused = !text.is_empty() && error.to_string().contains(text);
                    ensure!(refused, "{version}: {spec}, expected {text:?}: {error}");
                }
            }
        }
    }
    Ok(())
}
