//! Tests of the plan, of its effect once it is applied, and that planning again then writes nothing.

mod broken;
mod canary;
mod drift;
mod injector;

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::{CREATED_BY_ANNOTATION, FIELD_MANAGER, NamespacedName, linkerd_config::annotations::CONFIG_HASH_ANNOTATION},
    cluster::kinds::config_map::FieldManager,
    values::testing::OTHER_TRUST_ANCHORS,
};

/// A ConfigMap and its saved base, as an API server would hold them.
struct Cluster {
    live: Option<ConfigMap>,
    base: Option<Base>,
    spec: LinkerdConfigSpec,
    first_time: bool,
    bundle: Option<&'static str>,
    failed: Vec<String>,
    predecessor: Option<Predecessor>,
    holds_back: bool,
}

/// The document that Linkerd's chart renders.
const INSTALLED: &str = include_str!("../../values/testdata/installed.yaml");

impl Cluster {
    fn new(spec: &Value) -> Self {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let mut cluster = Self {
            live: None,
            base: None,
            spec,
            first_time: true,
            bundle: None,
            failed: Vec::new(),
            predecessor: None,
            holds_back: false,
        };
        cluster.live = Some(ConfigMap {
            key: NamespacedName::new("linkerd", "linkerd-config"),
            uid: "uid".into(),
            version: "1".into(),
            values: None,
            legacy: false,
            immutable: false,
            owned: false,
            annotations: HashMap::from([(CREATED_BY_ANNOTATION.to_owned(), "linkerd/helm 1".to_owned())]),
            writers: Vec::new(),
            bundle: None,
            has_binary_bundle: false,
            bundle_written: None,
            bundle_writer: None,
            trust_manager_source: None,
        });
        cluster.write("helm", INSTALLED);
        cluster
    }

    fn write(&mut self, manager: &str, values: &str) {
        let live = self.live.as_mut().unwrap();
        live.values = Some(values.into());
        live.writers.retain(|writer| writer.manager != manager);
        live.writers.insert(0, FieldManager { manager: manager.to_owned(), time: None });
    }

    /// Sets a value in the current document, written by this manager.
    fn edit(&mut self, manager: &str, keys: &[&str], value: Value) {
        let mut document = self.whole_document();
        document.set(&Path::from(keys), value);
        self.write(manager, &document.to_yaml());
    }

    /// The document without the injection hash.
    fn document(&self) -> Document {
        self.whole_document().split_injection_hash().0
    }

    fn injection_hash(&self) -> Option<String> {
        self.whole_document().split_injection_hash().1
    }

    fn whole_document(&self) -> Document {
        Document::parse(self.live.as_ref().unwrap().values.as_deref().unwrap()).unwrap()
    }

    fn value(&self, keys: &[&str]) -> Option<Value> {
        self.document().get(&Path::from(keys)).cloned()
    }

    fn plan(&self) -> ConfigPlan {
        self.plan_with(false)
    }

    fn plan_while_reverts_are_suspended(&self) -> ConfigPlan {
        self.plan_with(true)
    }

    fn plan_with(&self, revert_suspended: bool) -> ConfigPlan {
        let document = self.live.as_ref().and_then(|live| live.values.as_deref()).map(Document::read);
        plan(&PlanInput {
            spec: &self.spec,
            live: self.live.as_ref(),
            document: document.as_ref(),
            base: self.base.as_ref(),
            bundle: self.bundle,
            first_time: self.first_time,
            revert_suspended,
            failed: &self.failed,
            predecessor: self.predecessor.as_ref(),
            holds_back: self.holds_back,
        })
    }

    /// Makes a plan and applies it.
    fn reconcile(&mut self) -> ConfigPlan {
        let plan = self.plan();
        if let Some(base) = &plan.new_base {
            // The writer numbers revisions in the same way.
            let revision = self.base.as_ref().map_or(1, |known| known.revision + 1);
            self.base = Some(Base { revision, ..base.clone() });
        }
        if let Some(write) = &plan.write {
            self.write(FIELD_MANAGER, &write.values);
            let annotations = &mut self.live.as_mut().unwrap().annotations;
            annotations.insert(CONFIG_HASH_ANNOTATION.to_owned(), write.hash.clone());
        }
        self.first_time = false;
        plan
    }

    /// Whether the ConfigMap is synced and another plan would write nothing.
    fn is_settled(&self) -> bool {
        let plan = self.plan();
        plan.new_base.is_none() && plan.write.is_none() && plan.verdict == PlanVerdict::Synced
    }
}

const LOG_LEVEL: [&str; 2] = ["proxy", "logLevel"];
const ACCESS_LOG: [&str; 2] = ["proxy", "accessLog"];

fn debug() -> Value {
    json!({"proxy": {"logLevel": "debug"}})
}

#[test]
fn a_resource_that_declares_nothing_saves_a_base_and_writes_only_the_injection_hash() {
    let mut cluster = Cluster::new(&json!({}));
    let plan = cluster.reconcile();
    assert_eq!(plan.verdict, PlanVerdict::Synced, "{:?}", plan.verdict);
    assert!(plan.write.is_some() && plan.drift.is_none());
    let installed = Document::parse(INSTALLED).unwrap().split_injection_hash().0;
    assert_eq!(cluster.document(), installed);
    let base = plan.new_base.unwrap();
    assert_eq!((base.revision, &*base.text), (1, INSTALLED));
    assert!(cluster.is_settled());
}

#[test]
fn declared_values_are_written_over_the_installed_ones_and_no_other_value_changes() {
    let mut cluster = Cluster::new(&debug());
    let installed = cluster.document();
    assert!(cluster.reconcile().write.is_some());
    assert_eq!(cluster.document().differences(&installed), [Path::from(&LOG_LEVEL[..])]);
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("debug")));
    assert!(cluster.is_settled());
    // A value that is no longer declared is the installer's again.
    cluster.spec = LinkerdConfigSpec::default();
    assert!(cluster.reconcile().drift.is_none());
    assert_eq!(cluster.document().hash(), installed.hash());
    assert!(cluster.is_settled());
}

#[test]
fn an_upgrade_is_recognized_regardless_of_its_manager() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.write("kubectl-replace", &INSTALLED.replace("controllerReplicas: 1", "controllerReplicas: 3"));
    let created_by = ("linkerd.io/created-by".to_owned(), "linkerd/cli 2".to_owned());
    cluster.live.as_mut().unwrap().annotations.extend([created_by]);
    let plan = cluster.reconcile();
    let expected = (Some(BaseChange::Installed { manager: "kubectl-replace".into() }), None);
    assert_eq!((plan.base_change, plan.drift), expected);
}

#[test]
fn a_lost_base_is_not_replaced_by_our_own_document() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.base = None;
    let plan = cluster.plan();
    assert!(matches!(&plan.verdict, PlanVerdict::InvalidBase(why) if why.contains("lost")), "{:?}", plan.verdict);
    assert!(plan.write.is_none() && plan.new_base.is_none());
    cluster.live.as_mut().unwrap().annotations.remove(CONFIG_HASH_ANNOTATION);
    assert_eq!(
        cluster.reconcile().base_change,
        Some(BaseChange::Adopted),
        "without our annotation the document is adopted"
    );
}

#[test]
fn a_reinstalled_linkerd_has_a_new_base() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let live = cluster.live.as_mut().unwrap();
    live.uid = "another".into();
    live.annotations.remove(CONFIG_HASH_ANNOTATION);
    live.writers.clear();
    cluster.write("kubectl-create", &INSTALLED.replace("clusterDomain: cluster.local", "clusterDomain: other.local"));
    let plan = cluster.reconcile();
    assert_eq!(plan.base_change, Some(BaseChange::Installed { manager: "kubectl-create".into() }));
    assert_eq!(cluster.value(&["clusterDomain"]), Some(json!("other.local")));
}

#[test]
fn a_private_key_is_never_copied() {
    let mut cluster = Cluster::new(&debug());
    cluster.edit("helm", &["identity", "issuer", "tls", "keyPEM"], json!("secret"));
    let plan = cluster.plan();
    let PlanVerdict::ValidationFailed(problems) = plan.verdict else { panic!("{:?}", plan.verdict) };
    assert!(plan.new_base.is_none() && plan.write.is_none());
    assert!(!format!("{problems:?}").contains("secret"));
    let end = "; it is in key values of ConfigMap linkerd/linkerd-config (last written by helm)";
    assert!(problems[0].reason.ends_with(end), "{problems:?}");
    // A private key that was added by hand is removed.
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let key = ["identity", "issuer", "tls", "keyPEM"];
    cluster.edit("kubectl-edit", &key, json!("secret"));
    assert_eq!(cluster.reconcile().drift.unwrap().paths, [Path::from(&key[..])]);
    assert!(cluster.value(&key).is_none() && cluster.is_settled());
}

#[test]
fn a_removed_document_is_restored_if_a_base_is_saved() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let before = cluster.document();
    cluster.live.as_mut().unwrap().values = None;
    cluster.live.as_mut().unwrap().writers.clear();
    cluster.reconcile();
    assert!(cluster.document() == before && cluster.is_settled());
    cluster.live.as_mut().unwrap().values = None;
    cluster.base = None;
    assert_eq!(cluster.plan().verdict, PlanVerdict::UnsupportedLayout);
}

#[test]
fn all_problems_of_a_resource_are_reported_and_it_is_not_accepted() {
    let window = json!({"timeZone": "Mars/Olympus_Mons"});
    for (proxy, expected) in [
        (
            json!({"uid": "many", "livenessProbe": null, "await": 1}),
            &["proxy.await", "proxy.livenessProbe", "proxy.uid", "spec.rollout.window"][..],
        ),
        (json!({"uid": "many"}), &["proxy.uid", "spec.rollout.window"]),
    ] {
        let wrong = json!({"values": {"proxy": proxy}, "rollout": {"window": window}});
        let PlanVerdict::Invalid(problems) = Cluster::new(&wrong).plan().verdict else {
            panic!("the resource was accepted")
        };
        let paths: BTreeSet<String> = problems.iter().map(|it| it.path.to_string()).collect();
        assert_eq!(paths.into_iter().collect::<Vec<_>>(), expected);
    }
    let PlanVerdict::Invalid(problems) = Cluster::new(&json!({"rollout": {"window": window}})).plan().verdict else {
        panic!("the resource was accepted")
    };
    assert!(problems[0].to_string().contains("Mars/Olympus_Mons"), "{problems:?}");
}

#[test]
fn a_document_that_linkerd_cannot_use_is_not_written() {
    let values = json!({"values": {"proxy": {"uid": "text", "ports": null}}});
    let mut cluster = Cluster::new(&values);
    let before = cluster.document();
    let plan = cluster.reconcile();
    assert!(
        matches!(&plan.verdict, PlanVerdict::Invalid(problems) | PlanVerdict::ValidationFailed(problems) if !problems.is_empty()),
        "{:?}",
        plan.verdict
    );
    assert!(plan.write.is_none() && cluster.document() == before);
}

#[test]
fn a_suspect_value_of_the_installer_is_kept_with_a_warning_if_the_injectors_are_probed() {
    let suspect = ["proxy", "logHTTPHeaders"];
    let of_installer = |spec: &Value| {
        let mut cluster = Cluster::new(spec);
        cluster.edit("helm", &suspect, json!("all"));
        cluster
    };
    let mut cluster = of_installer(&debug());
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.write.is_some()), (PlanVerdict::Synced, true));
    assert_eq!(plan.base_problems.len(), 1, "{:?}", plan.base_problems);
    assert_eq!(plan.base_problems[0].path, Path::from(&suspect[..]));
    assert_eq!((cluster.value(&suspect), cluster.value(&LOG_LEVEL)), (Some(json!("all")), Some(json!("debug"))));
    assert!(cluster.is_settled());

    // A declared value is still refused, and so is a suspect value of the installer if no injector is probed.
    let mut values = debug();
    values["values"] = json!({"proxy": {"uid": "text"}});
    assert!(matches!(of_installer(&values).plan().verdict, PlanVerdict::Invalid(problems) if problems.len() == 1));
    for mut delay in [json!({}), debug()] {
        delay["injectorSync"] = json!({"method": "Delay"});
        let plan = of_installer(&delay).plan();
        let PlanVerdict::ValidationFailed(problems) = &plan.verdict else { panic!("{:?}", plan.verdict) };
        assert_eq!(problems[0].path, Path::from(&suspect[..]));
        assert!(problems[0].reason.ends_with("; the installer set it: correct it there"), "{problems:?}");
        assert!(plan.write.is_none() && plan.new_base.is_none());
    }
    values["injectorSync"] = json!({"method": "Delay"});
    let PlanVerdict::Invalid(problems) = of_installer(&values).plan().verdict else { panic!() };
    let ends = ["; the resource sets it", "; the installer set it: correct it there"];
    assert!(problems.len() == 2 && problems.iter().zip(ends).all(|(it, end)| it.reason.ends_with(end)), "{problems:?}");
}

#[test]
fn nothing_is_written_with_mode_observe_or_suspend_or_without_a_writable_config_map() {
    let spec = |mode: &str| json!({"mode": mode, "proxy": {"logLevel": "debug"}});
    let mut cluster = Cluster::new(&spec("Observe"));
    let plan = cluster.reconcile();
    assert_eq!(plan.verdict, PlanVerdict::Observing(vec![Path::from(&LOG_LEVEL[..])]));
    assert!(plan.new_base.is_none() && plan.write.is_none());
    let plan = Cluster::new(&json!({"mode": "Observe"})).plan();
    assert!(plan.verdict == PlanVerdict::Synced && plan.new_base.is_none() && plan.write.is_none());
    assert_eq!(Cluster::new(&spec("Suspend")).plan().verdict, PlanVerdict::Suspended);
    let with = |change: fn(&mut ConfigMap)| {
        let mut cluster = Cluster::new(&debug());
        change(cluster.live.as_mut().unwrap());
        let plan = cluster.plan();
        (plan.verdict, plan.write.is_none())
    };
    assert_eq!(with(|live| live.values = None), (PlanVerdict::UnsupportedLayout, true));
    assert_eq!(with(|live| live.immutable = true), (PlanVerdict::Immutable, true));
    let missing = Cluster { live: None, ..Cluster::new(&debug()) };
    assert_eq!(missing.plan().verdict, PlanVerdict::TargetNotFound);
}

#[test]
fn a_new_resource_adopts_a_document_that_was_edited_before() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.edit("kubectl-edit", &ACCESS_LOG, json!("apache"));
    cluster.first_time = true;
    let plan = cluster.reconcile();
    assert_eq!((plan.base_change, plan.drift), (Some(BaseChange::Edited { manager: "kubectl-edit".into() }), None));
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")));
    cluster.spec = LinkerdConfigSpec::default();
    cluster.reconcile();
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")));
    assert_ne!(cluster.value(&LOG_LEVEL), Some(json!("debug")), "the overlay is not part of the base");
}

#[test]
fn the_copied_trust_anchors_follow_the_bundle_unless_the_ca_is_external() {
    let mut cluster = Cluster::new(&json!({}));
    let bundle = Some(OTHER_TRUST_ANCHORS);
    cluster.bundle = bundle;
    cluster.reconcile();
    let copy = cluster.value(&["identityTrustAnchorsPEM"]).unwrap();
    assert_eq!(copy.as_str().map(str::trim), cluster.bundle.map(str::trim));
    assert!(cluster.is_settled());
    // An upgrade writes the installer's copy, which may be outdated.
    cluster.write("helm", &INSTALLED.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1"));
    cluster.reconcile();
    assert_eq!(cluster.value(&["identityTrustAnchorsPEM"]).as_ref(), Some(&copy));
    cluster.bundle = None;
    cluster.spec.proxy.access_log = Some("apache".to_owned());
    cluster.reconcile();
    assert_eq!(cluster.value(&["identityTrustAnchorsPEM"]), Some(copy), "the last trust anchors are kept");
    assert!(cluster.is_settled());
    let mut external = Cluster::new(&json!({"values": {"identity": {"externalCA": true}}}));
    let before = external.value(&["identityTrustAnchorsPEM"]);
    external.bundle = bundle;
    external.reconcile();
    assert_eq!(external.value(&["identityTrustAnchorsPEM"]), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any sequence of edits, upgrades and changes of the resource, one reconcile settles the ConfigMap, and
    /// declared values hold.
    #[test]
    fn any_history_settles_with_the_declared_values(steps in prop::collection::vec((0..5u8, 0..3usize), 1..12), declared in any::<bool>()) {
        let scope = if declared { "Declared" } else { "Document" };
        let spec = |level: &str| json!({"proxy": {"logLevel": level}, "drift": {"scope": scope}});
        let mut cluster = Cluster::new(&spec("debug"));
        cluster.reconcile();
        let levels = ["debug", "info", "warn"];
        let mut level = "debug";
        for (step, which) in steps {
            match step {
                0 => {
                    level = levels[which];
                    cluster.spec = serde_json::from_value(spec(level)).unwrap();
                }
                1 => cluster.edit("kubectl-edit", &LOG_LEVEL, json!(levels[which])),
                2 => cluster.edit("kubectl-edit", &ACCESS_LOG, json!(["", "apache", "json"][which])),
                3 => cluster.write("helm", &INSTALLED.replace("clusterDomain: cluster.local", &format!("clusterDomain: d{which}.local"))),
                _ => cluster.write("kubectl-edit", "proxy: ["),
            }
            cluster.reconcile();
            prop_assert!(cluster.is_settled(), "after step {step}: {:?}", cluster.plan());
            prop_assert_eq!(cluster.value(&LOG_LEVEL), Some(json!(level)));
        }
        // The declared values leave no trace.
        let installed = Document::parse(INSTALLED).unwrap();
        cluster.spec = LinkerdConfigSpec { drift: cluster.spec.drift.clone(), ..LinkerdConfigSpec::default() };
        cluster.reconcile();
        prop_assert_eq!(cluster.value(&LOG_LEVEL), installed.get(&Path::from(&LOG_LEVEL[..])).cloned());
    }
}

#[test]
fn versions_that_break_pods_are_refused_and_others_are_flagged() {
    let of_2020 = json!({"global": {"version": "edge-19.12.3"}, "proxy": {"proxyVersion": "edge-19.12.3"}});
    let plan = Cluster::new(&of_2020).plan();
    let PlanVerdict::Invalid(problems) = &plan.verdict else { panic!("{:?}", plan.verdict) };
    let paths: Vec<_> = problems.iter().map(|problem| problem.path.to_string()).collect();
    assert_eq!(paths, ["linkerdVersion", "proxy.image.version"]);
    assert!(plan.write.is_none() && plan.new_base.is_none());

    let mut pinned = Cluster::new(&json!({"proxy": {"proxyVersion": "edge-26.8.3"}}));
    assert_eq!(pinned.reconcile().skew, None);
    let upgraded = INSTALLED.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1");
    pinned.write("helm", &upgraded);
    let plan = pinned.reconcile();
    assert_eq!((plan.verdict, plan.skew.unwrap().reason.as_str()), (PlanVerdict::Synced, "ProxyOlder"));
    assert!(pinned.is_settled());
}

/// The sample from 2020, which users have in their repositories. No Pod would start with the proxy that it declares.
#[test]
fn the_sample_of_2020_is_refused_until_its_versions_are_removed() {
    let sample = include_str!("../../../config/samples/linkerdconfig-2020.yaml");
    let spec = crate::values::manifest(sample).unwrap().remove("spec").unwrap();
    let pem = spec["global"]["identityContext"]["trustAnchorsPEM"].clone();
    let mut cluster = Cluster::new(&spec);
    assert!(matches!(cluster.reconcile().verdict, PlanVerdict::Invalid(problems) if problems.len() == 2));
    cluster.spec.global.version = None;
    cluster.spec.proxy.proxy_version = None;
    let mut expected = cluster.document();
    for (path, value) in [
        ("identityTrustAnchorsPEM", pem),
        ("proxy.image.name", json!("gcr.io/linkerd-io/proxy")),
        ("proxy.image.pullPolicy", json!("IfNotPresent")),
        ("proxy.logLevel", json!("warn,linkerd2_proxy=info")),
        ("proxy.enableExternalProfiles", json!(true)),
        ("proxy.uid", json!(2102)),
        ("proxy.resources.cpu.limit", json!("1")),
        ("proxy.resources.cpu.request", json!("100m")),
        ("proxy.resources.memory.limit", json!("250Mi")),
        ("proxy.resources.memory.request", json!("20Mi")),
        ("proxyInit.ignoreInboundPorts", json!("8888,9999")),
        ("proxyInit.ignoreOutboundPorts", json!("8888,9999")),
    ] {
        expected.set(&path.split('.').collect(), value);
    }
    assert_eq!(cluster.reconcile().verdict, PlanVerdict::Synced);
    assert_eq!(cluster.document().differences(&expected), []);
}

#[test]
fn nothing_is_written_for_a_linkerd_that_is_too_old() {
    let mut cluster = Cluster::new(&json!({"proxy": {"accessLog": "json"}}));
    let old = INSTALLED.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: stable-2.14.10");
    cluster.write("helm", &old);
    let plan = cluster.plan();
    let PlanVerdict::UnsupportedVersion(why) = &plan.verdict else { panic!("{:?}", plan.verdict) };
    assert!(why.contains("stable-2.14.10") && why.contains("edge-24.2.3"), "{why}");
    assert!(plan.write.is_none() && plan.new_base.is_none());
}
