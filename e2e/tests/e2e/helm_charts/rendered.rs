//! What the charts render: the same twice, valid objects, and no objects for jobs that are off. Misspelled values are
//! refused.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::{Rig, shipped::OPERATOR_NAMESPACE};
use serde_json::{Value, json};

use super::{CRDS, Helm, IMAGE, OPERATOR, VERSIONS, path};
use crate::manifests::{id, of_kind};

/// Values that enable everything that is off by default, and change each setting of the Pods.
pub(super) const EVERYTHING: [&str; 30] = [
    "jobs.destination.separate=true",
    "jobs.destination.multicluster=true",
    "jobs.externalWorkload.separate=true",
    "jobs.proxyInjector.enabled=true",
    "jobs.proxyInjector.failurePolicy=Fail",
    "jobs.validation.enabled=true",
    "jobs.identity.enabled=true",
    "jobs.identity.watch=true",
    "jobs.issuerWriter.enabled=true",
    "metrics.authentication=true",
    "podMonitor.enabled=true",
    "podMonitor.interval=30s",
    "podMonitor.scrapeTimeout=10s",
    "podMonitor.labels.release=prometheus",
    "prometheusRule.enabled=true",
    "prometheusRule.labels.release=prometheus",
    "dashboard.enabled=true",
    "imagePullSecrets[0].name=registry",
    "priorityClassName=system-cluster-critical",
    "tolerations[0].key=dedicated",
    "tolerations[0].operator=Exists",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key=metadata.name",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].operator=In",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].values={node-a}",
    "labels.team=mesh",
    "podLabels.team=mesh",
    "annotations.owner=mesh",
    "podAnnotations.owner=mesh",
    "settings.log-format=json",
    "settings.max-streams=20000000",
];

#[tokio::test]
async fn both_versions_of_helm_render_the_same_and_each_twice_the_same() -> Result<()> {
    let control_plane = e2e::shared().await?;
    for (chart, values) in
        [(OPERATOR, [&IMAGE[..], &EVERYTHING].concat()), (CRDS, vec!["linkerdCRDs.install=true", "labels.team=mesh"])]
    {
        let mut seen = Vec::new();
        for version in VERSIONS {
            let helm = Helm::new(version, control_plane).await?;
            let manifest = helm.manifest(chart, OPERATOR_NAMESPACE, &values).await?;
            ensure!(manifest == helm.manifest(chart, OPERATOR_NAMESPACE, &values).await?, "{version}: {chart}");
            let mut objects = super::objects(&manifest)?;
            objects.sort_by_key(|object| (id(object), object["metadata"]["namespace"].to_string()));
            seen.push(objects);
        }
        let [three, four] = &seen[..] else { anyhow::bail!("two versions") };
        for (one, other) in three.iter().zip(four) {
            assert_eq!(one, other, "{chart}: {}", id(one));
        }
        assert_eq!(three.len(), four.len());
    }
    Ok(())
}

#[tokio::test]
async fn values_reach_the_pods() -> Result<()> {
    let helm = Helm::new("helm4", e2e::shared().await?).await?;
    let digest = format!("image.digest=sha256:{}", "0".repeat(64));
    let values = [&IMAGE[..], &EVERYTHING, &[digest.as_str(), "replicas=3"]].concat();
    let objects = helm.template(OPERATOR, OPERATOR_NAMESPACE, &values).await?;
    let deployments = of_kind(&objects, "Deployment");
    assert_eq!(deployments.len(), 5);
    for deployment in deployments {
        let name = &deployment["metadata"]["name"];
        let (template, spec) = (&deployment["spec"]["template"], &deployment["spec"]["template"]["spec"]);
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(deployment["metadata"]["annotations"], json!({"owner": "mesh"}));
        assert_eq!(template["metadata"]["labels"]["team"], "mesh");
        assert_eq!(template["metadata"]["annotations"]["owner"], "mesh");
        assert_eq!(template["metadata"]["annotations"]["linkerd.io/inject"], "disabled");
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "registry"}]));
        assert_eq!(spec["priorityClassName"], "system-cluster-critical");
        assert_eq!(spec["tolerations"], json!([{"key": "dedicated", "operator": "Exists"}]));
        let term =
            &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
        assert_eq!(term["matchFields"][0]["values"], json!(["node-a"]));
        for constraint in spec["topologySpreadConstraints"].as_array().context("constraints")? {
            assert_eq!(constraint["labelSelector"]["matchLabels"], json!({"app.kubernetes.io/name": name}));
        }
        let container = &spec["containers"][0];
        assert_eq!(container["image"], format!("linkerd-operator@sha256:{}", "0".repeat(64)));
        let env = container["env"].as_array().context("env")?;
        for (name, value) in [("LINKERD_OPERATOR_LOG_FORMAT", "json"), ("LINKERD_OPERATOR_MAX_STREAMS", "20000000")] {
            ensure!(env.contains(&json!({"name": name, "value": value})), "{name}: {env:?}");
        }
    }
    for object in &objects {
        assert_eq!(object["metadata"]["labels"]["team"], "mesh", "{}", id(object));
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm", "{}", id(object));
    }
    let endpoint = &of_kind(&objects, "PodMonitor")[0]["spec"]["podMetricsEndpoints"][0];
    assert_eq!((&endpoint["interval"], &endpoint["scrapeTimeout"]), (&json!("30s"), &json!("10s")));
    for kind in ["PodMonitor", "PrometheusRule"] {
        assert_eq!(of_kind(&objects, kind)[0]["metadata"]["labels"]["release"], "prometheus");
    }
    let dashboard = of_kind(&objects, "ConfigMap")[0];
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let json = dashboard["data"]["linkerd-operator.json"].as_str().context("the dashboard")?;
    let shipped = tokio::fs::read_to_string(e2e::shipped::in_repository("config/prometheus/dashboard.json")).await?;
    assert_eq!(serde_json::from_str::<Value>(json)?, serde_json::from_str::<Value>(&shipped)?);
    assert_eq!(of_kind(&objects, "MutatingWebhookConfiguration")[0]["webhooks"][0]["failurePolicy"], "Fail");
    assert_eq!(of_kind(&objects, "ValidatingWebhookConfiguration")[0]["webhooks"][0]["failurePolicy"], "Ignore");
    Ok(())
}

#[tokio::test]
async fn the_address_of_the_documentation_reaches_each_alert() -> Result<()> {
    let helm = Helm::new("helm4", e2e::shared().await?).await?;
    let alerts = async |address: &[&str]| -> Result<Vec<Value>> {
        let values = [&IMAGE[..], &["prometheusRule.enabled=true"], address].concat();
        let objects = helm.template(OPERATOR, OPERATOR_NAMESPACE, &values).await?;
        let rules = of_kind(&objects, "PrometheusRule");
        let groups = rules.iter().filter_map(|rule| rule["spec"]["groups"].as_array()).flatten();
        let rules = groups.filter_map(|group| group["rules"].as_array()).flatten();
        Ok(rules.filter(|rule| rule["alert"].is_string()).cloned().collect())
    };
    let without = alerts(&[]).await?;
    let with = alerts(&["docsURL=https://docs.example.com/operator"]).await?;
    ensure!(without.len() > 9 && with.len() == without.len(), "{without:?}");
    for (without, mut with) in without.iter().zip(with) {
        let name = without["alert"].as_str().context("a name")?;
        assert_eq!(without["annotations"]["runbook"], format!("linkerd-operator runbook {name}"));
        let annotations = with["annotations"].as_object_mut().context("annotations")?;
        let link = format!("https://docs.example.com/operator/operate/runbooks/{name}.html");
        assert_eq!(annotations.remove("runbook_url"), Some(json!(link)));
        assert_eq!(&with, without);
    }
    let wrong = [&IMAGE[..], &["docsURL=https://docs.example.com/"]].concat();
    ensure!(helm.template(OPERATOR, OPERATOR_NAMESPACE, &wrong).await.is_err(), "an address that ends with a slash");
    Ok(())
}

#[tokio::test]
async fn a_job_that_is_off_has_no_roles_and_no_account() -> Result<()> {
    let helm = Helm::new("helm4", e2e::shared().await?).await?;
    let rendered = async |values: &[&str]| -> Result<BTreeSet<String>> {
        let values = [&IMAGE[..], values].concat();
        Ok(helm.template(OPERATOR, OPERATOR_NAMESPACE, &values).await?.iter().map(id).collect())
    };
    let everything = rendered(&EVERYTHING).await?;
    for (value, names) in [
        ("jobs.destination.enabled=false", &["linkerd-operator-destination", "linkerd-operator-multicluster"][..]),
        ("jobs.externalWorkload.enabled=false", &["linkerd-operator-external-workload"]),
        (
            "jobs.linkerdConfig.enabled=false",
            &[
                "linkerd-operator-linkerd-config",
                "linkerd-operator-rollout",
                "linkerd-operator-nudge",
                "linkerd-operator-leader-election",
            ],
        ),
        ("jobs.linkerdConfig.rollouts.enabled=false", &["linkerd-operator-rollout"]),
        ("jobs.linkerdConfig.nudge=false", &["linkerd-operator-nudge"]),
        ("jobs.destination.multicluster=false", &["linkerd-operator-multicluster"]),
        ("jobs.proxyInjector.enabled=false", &["linkerd-operator-proxy-injector"]),
        ("jobs.validation.enabled=false", &["linkerd-operator-validation"]),
        ("jobs.identity.enabled=false", &["linkerd-operator-identity", "linkerd-operator-identity-watch"]),
        ("jobs.issuerWriter.enabled=false", &["linkerd-operator-issuer"]),
        ("helmTest.enabled=false", &["linkerd-operator-test"]),
        ("admissionPolicies.enabled=false", &[]),
    ] {
        let rest = rendered(&[&EVERYTHING[..], &[value]].concat()).await?;
        let left_out: BTreeSet<_> = everything.difference(&rest).map(String::as_str).collect();
        ensure!(rest.is_subset(&everything), "{value} adds objects");
        let of_job = |id: &&str| {
            let name = id.split_once('/').map(|(_, name)| name).unwrap_or_default();
            // The Service of discovery has the name of the operator.
            names.contains(&name) || (value == "jobs.destination.enabled=false" && *id == "Service/linkerd-operator")
        };
        if value.starts_with("admissionPolicies") {
            ensure!(left_out.iter().all(|id| id.starts_with("ValidatingAdmissionPolicy")), "{left_out:?}");
            assert_eq!(left_out.len(), 25);
        } else {
            assert_eq!(left_out, everything.iter().map(String::as_str).filter(of_job).collect(), "{value}");
        }
    }
    let none =
        ["jobs.destination.enabled=false", "jobs.externalWorkload.enabled=false", "jobs.linkerdConfig.enabled=false"];
    let refusal = rendered(&none).await.err().context("a chart without a job was rendered")?.to_string();
    ensure!(refusal.contains("No job is enabled"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn both_versions_of_helm_refuse_values_that_the_schema_does_not_have() -> Result<()> {
    let control_plane = e2e::shared().await?;
    for version in VERSIONS {
        let helm = Helm::new(version, control_plane).await?;
        for (chart, value, message) in [
            (OPERATOR, "replica=3", "replica"),
            (OPERATOR, "jobs.destinations.enabled=false", "destinations"),
            (OPERATOR, "jobs.linkerdConfig.rollout.enabled=false", "rollout"),
            (OPERATOR, "settings.log-levle=debug", "log-levle"),
            (OPERATOR, "settings.log-format=yaml", "log-format"),
            // The chart sets it.
            (OPERATOR, "settings.enable-destination=false", "enable-destination"),
            (OPERATOR, "settings.enable-identity=true", "enable-identity"),
            (OPERATOR, "image.digest=sha256:1", "digest"),
            (OPERATOR, "replicas=many", "replicas"),
            (OPERATOR, "jobs.validation.failurePolicy=Never", "failurePolicy"),
            (OPERATOR, "resources.limit.memory=1Gi", "limit"),
            // Without these values, a template would fail, or a default of Kubernetes would apply.
            (OPERATOR, "jobs.destination=null", "destination"),
            (OPERATOR, "jobs.validation.failurePolicy=null", "failurePolicy"),
            (OPERATOR, "podDisruptionBudget=null", "podDisruptionBudget"),
            (OPERATOR, "env[0].value=5,env[0].name=A", "string"),
            (CRDS, "linkerdCrds.install=true", "linkerdCrds"),
            (CRDS, "linkerdCRDs=null", "linkerdCRDs"),
        ] {
            let values = if chart == OPERATOR { [&IMAGE[..], &[value]].concat() } else { vec![value] };
            let refusal = helm.manifest(chart, OPERATOR_NAMESPACE, &values).await.err();
            let refusal = refusal.with_context(|| format!("{version} accepted {value}"))?.to_string();
            ensure!(refusal.contains("schema") && refusal.contains(message), "{version} {value}: {refusal}");
        }
        // Without an image, the message says what is missing. The linter accepts that.
        let refusal = helm.manifest(OPERATOR, OPERATOR_NAMESPACE, &[]).await.err().context("it has no image")?;
        ensure!(refusal.to_string().contains("image.repository is not set"), "{refusal}");
        for chart in [OPERATOR, CRDS] {
            helm.run(&["lint", "--strict", &path(chart)]).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_port_without_peers_is_closed_and_null_is_an_empty_map() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let ports = |policy: &Value| -> Vec<(String, usize)> {
        let rules = policy["spec"]["ingress"].as_array().into_iter().flatten();
        let rule = |rule: &Value| {
            let port = rule["ports"][0]["port"].as_str().unwrap_or_default().to_owned();
            (port, rule["from"].as_array().map_or(0, Vec::len))
        };
        rules.map(rule).collect()
    };
    let nothing = ["labels", "annotations", "podLabels", "podAnnotations", "dashboard.labels", "podMonitor.labels"];
    let nothing =
        [&nothing[..], &["env", "settings", "resources", "tolerations", "podMonitor.interval", "priorityClassName"]];
    let nothing: Vec<_> = nothing.concat().iter().map(|key| format!("{key}=null")).collect();
    for version in VERSIONS {
        let helm = Helm::new(version, control_plane).await?;
        let values_file = control_plane.directory().join(format!("{version}-values.json"));
        let with = async |values: Value| -> Result<Vec<Value>> {
            tokio::fs::write(&values_file, values.to_string()).await?;
            let (chart, file) = (path(OPERATOR), values_file.display().to_string());
            let image = ["--set", IMAGE[0], "--values", &file];
            let template = ["template", OPERATOR, &chart, "--kube-version=v1.36.3"];
            super::objects(&helm.run(&[&template[..], &image].concat()).await?)
        };
        for (separate, policy, expected) in [
            (false, json!({}), &[("admin", 1)][..]),
            (true, json!({}), &[("admin", 1), ("grpc", 1)]),
            (true, json!({"metricsFrom": []}), &[("grpc", 1)]),
            (true, json!({"metricsFrom": null}), &[("grpc", 1)]),
            (true, json!({"discoveryFrom": null}), &[("admin", 1)]),
            (true, json!({"discoveryFrom": [], "metricsFrom": null}), &[]),
        ] {
            let jobs = json!({"destination": {"separate": separate}});
            let objects = with(json!({ "networkPolicy": policy, "jobs": jobs })).await?;
            let rendered = of_kind(&objects, "NetworkPolicy")[0];
            let expected: Vec<_> = expected.iter().map(|(port, peers)| ((*port).to_owned(), *peers)).collect();
            assert_eq!(ports(rendered), expected, "{version} {policy}");
            assert_eq!(rendered["spec"]["policyTypes"], json!(["Ingress"]));
        }
        let objects = with(json!({"networkPolicy": {"enabled": false}})).await?;
        ensure!(of_kind(&objects, "NetworkPolicy").is_empty(), "{version}");
        let values: Vec<_> = IMAGE.into_iter().chain(["dashboard.enabled=true", "podMonitor.enabled=true"]).collect();
        let values = [values, nothing.iter().map(String::as_str).collect()].concat();
        let objects = helm.template(OPERATOR, OPERATOR_NAMESPACE, &values).await?;
        assert_eq!(of_kind(&objects, "Deployment").len(), 1, "{version}");
        helm.template(CRDS, OPERATOR_NAMESPACE, &["labels=null", "annotations=null"]).await?;
        for name in ["a: b", "123"] {
            let objects = with(json!({ "priorityClassName": name })).await?;
            assert_eq!(of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"]["priorityClassName"], name);
        }
    }
    Ok(())
}

/// A Pod with two PodDisruptionBudgets cannot be evicted.
#[tokio::test]
async fn the_identity_service_leaves_its_disruption_budget_to_linkerd_if_it_must() -> Result<()> {
    let helm = Helm::new("helm4", e2e::shared().await?).await?;
    for (value, expected) in [("true", 2), ("false", 1)] {
        let value = format!("jobs.identity.podDisruptionBudget={value}");
        let values = [&IMAGE[..], &["jobs.identity.enabled=true", &value]].concat();
        let objects = helm.template(OPERATOR, OPERATOR_NAMESPACE, &values).await?;
        assert_eq!(of_kind(&objects, "PodDisruptionBudget").len(), expected, "{value}");
        assert_eq!(of_kind(&objects, "Deployment").len(), 2);
    }
    Ok(())
}

#[tokio::test]
async fn the_notes_say_whether_new_pods_are_injected() -> Result<()> {
    let helm = Helm::new("helm4", e2e::shared().await?).await?;
    let injected = "Its proxy injector gets the Pods that are created from now on";
    for (value, present, absent) in [
        ("jobs.proxyInjector.enabled=false", "It changes nothing", injected),
        ("jobs.proxyInjector.enabled=true", injected, "It changes nothing"),
        (
            "jobs.identity.enabled=true",
            "Its identity service issues certificates beside Linkerd's",
            "It changes nothing",
        ),
    ] {
        let chart = path(OPERATOR);
        let install = ["install", OPERATOR, &chart, "--dry-run=client", "--namespace=notes"];
        let output = helm.run(&[&install[..], &["--set", IMAGE[0], "--set", value]].concat()).await?;
        let (_, notes) = output.split_once("NOTES:").context("no notes")?;
        ensure!(notes.contains(present) && !notes.contains(absent), "{value}: {notes}");
        ensure!(notes.contains("linkerd-operator check --operator-namespace notes"), "{notes}");
    }
    Ok(())
}

/// Every field is known and every value is valid, also in the parts that are off by default.
#[tokio::test]
async fn an_api_server_accepts_everything_that_the_charts_render_without_a_warning() -> Result<()> {
    let control_plane =
        Rig::bare().namespace(OPERATOR_NAMESPACE).namespace("linkerd").namespace("shop").start().await?;
    let helm = Helm::new("helm4", &control_plane).await?;
    let limits = ["jobs.linkerdConfig.rollouts.namespaces={shop}", "jobs.externalWorkload.namespaces={shop}"];
    for (chart, values) in [
        (CRDS, vec!["linkerdCRDs.install=true"]),
        (OPERATOR, IMAGE.to_vec()),
        (OPERATOR, [&IMAGE[..], &EVERYTHING, &limits].concat()),
    ] {
        let mut objects = helm.template(chart, OPERATOR_NAMESPACE, &values).await?;
        // The cluster has no CRDs of the Prometheus operator.
        objects
            .retain(|object| !object["apiVersion"].as_str().is_some_and(|it| it.starts_with("monitoring.coreos.com/")));
        let file = control_plane.directory().join("rendered.json");
        tokio::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).await?;
        let file = file.display().to_string();
        let strictly = ["apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", &file];
        for how in [&["--server-side"][..], &[]] {
            let output =
                control_plane.kubectl(&[&strictly, how].concat()).await.with_context(|| format!("{values:?}"))?;
            assert_eq!(output.matches("(server dry run)").count(), objects.len(), "{output}");
        }
    }
    Ok(())
}

/// The values and the namespace of docs/src/install/helm.md.
#[tokio::test]
async fn the_page_about_helm_has_valid_values_and_the_labels_of_the_namespace() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let page = tokio::fs::read_to_string(e2e::shipped::in_repository("docs/src/install/helm.md")).await?;
    let (_, rest) = page.split_once("```yaml\n").context("the page has no values")?;
    let (values, _) = rest.split_once("```").context("the values do not end")?;
    let file = control_plane.directory().join("values-of-the-page.yaml");
    tokio::fs::write(&file, values).await?;
    let file = file.display().to_string();
    for version in VERSIONS {
        let helm = Helm::new(version, control_plane).await?;
        let chart = path(OPERATOR);
        let template = ["template", OPERATOR, &chart, "--kube-version=v1.36.3", "--values", &file];
        let objects = super::objects(&helm.run(&template).await?)?;
        let deployment = of_kind(&objects, "Deployment")[0].to_string();
        ensure!(deployment.contains("registry.example.com/team/linkerd-operator@sha256:"), "{deployment}");
    }
    let shipped = control_plane.shipped("config/manager").await?;
    let labels = of_kind(&shipped, "Namespace")[0]["metadata"]["labels"].as_object().context("labels")?.clone();
    let mut count = 0;
    for (key, value) in labels.iter().filter(|(key, _)| !key.starts_with("app.kubernetes.io/")) {
        let label = format!("{key}={}", value.as_str().unwrap_or_default());
        ensure!(page.contains(&label), "the page lacks {label}");
        count += 1;
    }
    assert_eq!(count, 4);
    Ok(())
}
