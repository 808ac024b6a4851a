//! The API server as the oracle of the injector's warnings and of the rules for values: it rejects the same Pods.

use kube::api::{ApiResource, DynamicObject};

use super::*;

/// The parts of a Pod that the injector says the API server rejects together with the proxy, and near misses.
#[tokio::test]
async fn the_api_server_rejects_a_pod_for_each_part_of_it_that_the_injector_says() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    let file = r#"[{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "a", "path": "b", "key": "c"}}}]"#;
    let file = json!({"config.linkerd.io/proxy-additional-env": file});
    let debugged = json!({"config.linkerd.io/enable-debug-sidecar": "true"});
    let adds = |name: &str| json!({"containers": [{"name": "web", "image": "web", "securityContext": {"capabilities": {"add": [name]}}}]});
    let named = |name: &str| json!({"containers": [{"name": "web", "image": "web"}, {"name": name, "image": "web"}]});
    let volume = |name: &str| json!({"volumes": [{"name": name, "emptyDir": {}}]});
    let none = json!({});
    for (annotations, spec, reason) in [
        (&none, adds("CAP_SYS_ADMIN"), "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add`"),
        (&none, adds("SYS_ADMIN"), ""),
        (&none, named("linkerd-init"), "Duplicate value: \"linkerd-init\""),
        (&debugged, named("linkerd-debug"), "Duplicate value: \"linkerd-debug\""),
        (&none, named("linkerd-debug"), ""),
        (&none, volume("linkerd-identity-token"), "Duplicate value: \"linkerd-identity-token\""),
        (&none, volume("linkerd-podinfo"), ""),
        (&file, json!({"volumes": [{"name": "a", "configMap": {"name": "a"}}]}), "referenced volume must be of type"),
        (&file, volume("b"), "fileKeyRef.volumeName: Not found: \"a\""),
        (&file, volume("a"), ""),
    ] {
        let mut pod = meshed(annotations);
        e2e::mesh::merge(&mut pod, json!({ "spec": spec }));
        let created = setup.create(&pod).await;
        let error = created.as_ref().err().map(ToString::to_string).unwrap_or_default();
        ensure!(created.is_ok() == reason.is_empty() && error.contains(reason), "{spec}: {reason}: {error}");
    }
    Ok(())
}

/// The rules for values refuse the parts of a container that the API server rejects, and accept the others. The injector
/// copies these parts from the values.
#[tokio::test]
async fn the_api_server_rejects_the_parts_of_a_container_that_the_rules_for_values_refuse() -> Result<()> {
    let client = e2e::shared().await?.client().await?;
    let namespace = TestNamespace::create(&client, "rules").await?;
    // The typed Pod lacks fields of newer versions of Kubernetes, such as fileKeyRef.
    let pods: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace.name(), &ApiResource::erase::<Pod>(&()));
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let context = |context: Value| json!({"securityContext": context});
    let profile = |kind: &str, file: &str| context(json!({kind: {"type": "Localhost", "localhostProfile": file}}));
    let variable = |name: &str| json!({"env": [{"name": name, "value": "x"}]});
    let source = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
    let divisor =
        |resource: &str, divisor: &str| source(json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}}));
    let memory = |request: &str, limit: &str| json!({"resources": {"requests": {"memory": request}, "limits": {"memory": limit}}});
    let mount = |name: &str, path: &str| json!({"volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": name, "mountPath": path}]});
    for (part, reason) in [
        (variable("a b"), ""),
        (variable("a=b"), "must consist only of printable ASCII characters other than '='"),
        (variable("é"), "must consist only of printable ASCII characters other than '='"),
        (variable("a\nb"), "must consist only of printable ASCII characters other than '='"),
        (context(json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_ADMIN"]}})), ""),
        (
            context(json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}})),
            "cannot set `allowPrivilegeEscalation` to false",
        ),
        (profile("seccompProfile", "..a/./b"), ""),
        (profile("seccompProfile", "/a"), "must be a relative path"),
        (profile("seccompProfile", "a/.."), "must not contain '..'"),
        (profile("appArmorProfile", &"a".repeat(4095)), ""),
        (profile("appArmorProfile", &"a".repeat(4096)), "may not be more than 4095 bytes"),
        (profile("appArmorProfile", " a"), "must not be padded with whitespace"),
        (context(json!({"windowsOptions": {}})), "windows options cannot be set for a linux pod"),
        (divisor("limits.memory", "1000k"), ""),
        (divisor("limits.memory", "1024Ki"), ""),
        (divisor("limits.memory", "1.0"), ""),
        (divisor("limits.memory", "1e3"), "only divisor's values 1, 1k"),
        (divisor("limits.memory", "1.k"), "only divisor's values 1, 1k"),
        (divisor("limits.memory", "01"), "only divisor's values 1, 1k"),
        (divisor("limits.cpu", "0.001"), ""),
        (divisor("limits.cpu", "1e-3"), "only divisor's values 1m and 1"),
        (source(json!({"fileKeyRef": {"volumeName": "a", "path": "b", "key": "c d"}})), ""),
        (
            source(json!({"fileKeyRef": {"volumeName": "a", "path": "b", "key": "c=d"}})),
            "fileKeyRef.key: Invalid value",
        ),
        (source(json!({"fileKeyRef": {"volumeName": "b", "path": "b", "key": "c"}})), "Not found: \"b\""),
        (mount("a", "/b"), ""),
        (mount("a", "/a"), "must be unique"),
        (mount("a", ""), "mountPath: Required value"),
        (mount("", "/b"), "name: Required value"),
        (mount("b", "/b"), "name: Not found: \"b\""),
        (memory("11E", "12E"), ""),
        (memory("12E", "11E"), "must be less than or equal to memory limit of 11E"),
        (memory("9223372036854775808", "9223372036854775807"), "must be less than or equal to memory limit"),
        (json!({"image": "web:edge "}), "must not have leading or trailing whitespace"),
        // Nothing but the runtime of the containers rejects these.
        (json!({"env": [{"name": "A", "value": "a\0b"}]}), ""),
        (json!({"env": [{"name": "A", "value": "x".repeat(128 << 10)}]}), ""),
        (json!({"image": "web:a:b"}), ""),
    ] {
        let mut container = json!({"name": "web", "image": "web"});
        e2e::mesh::merge(&mut container, part.clone());
        let pod = json!({
            "metadata": {"name": "web"},
            "spec": {
                "serviceAccountName": "default",
                "os": {"name": "linux"},
                "containers": [container],
                "volumes": [{"name": "a", "emptyDir": {}}],
            },
        });
        let created = pods.create(&params, &serde_json::from_value(pod)?).await;
        let error = created.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let part = part.to_string();
        let part = part.get(..200).unwrap_or(&part);
        ensure!(created.is_ok() == reason.is_empty() && error.contains(reason), "{part}: {reason}: {error}");
    }
    Ok(())
}
