//! Reads the input of the controller once.
//!
//! In: a client, a name or a manifest. Out: the resource, the resource in effect for its ConfigMap, and the objects
//! that the effective document is made of. Always holds: the API server validates a manifest in a dry run, if the user
//! has the permission for one.

use std::{
    fs,
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use http::{Method, Request};
use k8s_openapi::{api::apps::v1::ControllerRevision, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{Api, Client, Error, Resource, api::ListParams, core::Status};
use serde_json::{Value, json};

use crate::{
    api::{self, LINKERD_CONFIG_KIND, TRUST_ROOTS},
    cli::{configs, explain::unknown_fields, terminal::note},
    cluster::{
        Problems, Projected, State, Watched,
        kinds::{
            config_map::{ConfigMap, ConfigMapObject},
            linkerd_config::LinkerdConfig,
        },
    },
    explain::{CachedObjects, ExplainInput},
    linkerd_config::documents::base::Base,
    values::manifest,
};

/// # Errors
/// Fails if the resource does not exist, or if an object cannot be read.
pub(super) async fn read(client: &Client, name: Option<&str>, file: Option<&Path>) -> Result<ExplainInput> {
    let mut state = configs::all(client).await?;
    let config = match file {
        Some(file) => {
            let (name, object) = parsed(file)?;
            let known = state.linkerd_configs.by_name(&name).cloned();
            let config = admitted(client, &name, object, known.as_deref()).await?;
            LinkerdConfig::project(config, &mut Problems::default()).apply(&mut state);
            configs::named(&state, Some(&name))?
        }
        None => configs::named(&state, name)?,
    };
    let target = &config.target;
    for config_map in [&target.name, TRUST_ROOTS] {
        read_config_map(client, &target.namespace, config_map, &mut state).await?;
    }
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), &target.namespace);
    let bases = revisions.list(&ListParams::default().labels(&Base::selector(&target.name))).await;
    let bases = bases.with_context(|| format!("cannot list ControllerRevisions in namespace {}", target.namespace))?;
    let cached = CachedObjects::of(&state, target);
    Ok(ExplainInput { applied: file.is_none(), ..ExplainInput::new(&config, cached, &bases.items) })
}

/// Reads a ConfigMap by a list, which is the verb that the operator itself has a permission for.
async fn read_config_map(client: &Client, namespace: &str, name: &str, state: &mut State) -> Result<()> {
    let config_maps: Api<ConfigMapObject> = Api::namespaced(client.clone(), namespace);
    let list = config_maps.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await;
    for object in list.with_context(|| format!("cannot read ConfigMap {name} in namespace {namespace}"))?.items {
        ConfigMap::project(object, &mut Problems::default()).apply(state);
    }
    Ok(())
}

/// Returns the name of the manifest and its object, as it would be sent.
fn parsed(file: &Path) -> Result<(Arc<str>, Value)> {
    let mut text = String::new();
    if file == Path::new("-") {
        io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    object(&text).with_context(|| format!("{} is not a manifest of a LinkerdConfig", file.display()))
}

fn object(text: &str) -> Result<(Arc<str>, Value)> {
    let is_separator = |line: &str| line == "---" || line.starts_with("--- ");
    let mut lines = text.lines().map(str::trim_end);
    let begins = |line: &str| !line.is_empty() && !line.starts_with('#') && !is_separator(line);
    if lines.by_ref().any(begins) && lines.any(is_separator) {
        bail!("it contains several documents");
    }
    let object = Value::Object(manifest(text)?);
    let field = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (field("kind"), field("apiVersion"));
    let ours = api::LinkerdConfig::api_version(&());
    if kind != LINKERD_CONFIG_KIND || version != ours {
        bail!("it is of kind {kind:?}, apiVersion {version:?}, and not {LINKERD_CONFIG_KIND:?}, {ours:?}");
    }
    let name = object.pointer("/metadata/name").and_then(Value::as_str).filter(|name| !name.is_empty());
    Ok((name.context("it has no metadata.name")?.into(), object))
}

/// Returns the resource as it would be stored, with its defaults, or fails with the errors of the schema.
async fn admitted(
    client: &Client,
    name: &str,
    mut object: Value,
    known: Option<&LinkerdConfig>,
) -> Result<api::LinkerdConfig> {
    let all = api::LinkerdConfig::url_path(&(), None);
    let (method, path) = match known {
        Some(_) => (Method::PUT, format!("{all}/{name}")),
        None => (Method::POST, all),
    };
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        // The manifest may be an export of an existing object.
        metadata.remove("uid");
        metadata.remove("creationTimestamp");
        metadata.insert("resourceVersion".to_owned(), known.map_or(json!(""), |known| json!(*known.version)));
    }
    let request = Request::builder().method(method).uri(format!("{path}?dryRun=All&fieldValidation=Strict"));
    let request = request.header("content-type", "application/json").body(serde_json::to_vec(&object)?)?;
    match client.request::<api::LinkerdConfig>(request).await {
        Ok(config) => Ok(config),
        Err(Error::Api(status)) if status.is_forbidden() => {
            note(format_args!("not checked by the API server, so not against the schema: {}", status.message));
            unchecked(object, known)
        }
        Err(Error::Api(status)) if (400..500).contains(&status.code) => bail!("{}", refusal(name, &status)),
        Err(error) => Err(error).context("the API server could not check the manifest"),
    }
}

/// Returns the resource without a check of its schema.
fn unchecked(object: Value, known: Option<&LinkerdConfig>) -> Result<api::LinkerdConfig> {
    let mut config: api::LinkerdConfig = serde_json::from_value(object).context("the manifest cannot be decoded")?;
    config.metadata.creation_timestamp =
        Some(Time(known.and_then(|known| known.created).unwrap_or_else(Timestamp::now)));
    config.status = known.map(|known| (*known.status).clone());
    // The API server would count another spec as a new generation.
    config.metadata.generation = known.map(|known| known.generation + i64::from(*known.spec != config.spec));
    Ok(config)
}

/// Returns all errors, one per line.
fn refusal(name: &str, status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes: Vec<String> = causes.map(|cause| format!("\n  {}: {}", cause.field, cause.message)).collect();
    let meant = unknown_fields::meant(&status.message).into_iter();
    let meant: String = meant.map(|(field, meant)| format!("\n  {field}: did you mean {meant}?")).collect();
    match causes.is_empty() {
        true => format!("the API server rejected LinkerdConfig {name}: {}{meant}", status.message),
        false => format!("the API server rejected LinkerdConfig {name}:{}", causes.concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::linkerd_config::GlobalSpec;

    const MANIFEST: &str = "# The smallest.\n---\napiVersion: config.linkerd.io/v1alpha1\nkind: LinkerdConfig\nmetadata: {name: mesh}\nspec: {}\n";

    #[test]
    fn a_manifest_is_one_resource_with_a_name() {
        let (name, manifest) = object(MANIFEST).unwrap();
        assert_eq!((&*name, &manifest["spec"]), ("mesh", &json!({})));
        for (text, reason) in [
            (format!("{MANIFEST}---\n{MANIFEST}"), "several documents"),
            (MANIFEST.replace("kind: LinkerdConfig", "kind: ConfigMap"), "kind \"ConfigMap\""),
            (MANIFEST.replace("v1alpha1", "v1"), "config.linkerd.io/v1\""),
            (MANIFEST.replace("name: mesh", "generateName: mesh"), "no metadata.name"),
            ("- 1\n".to_owned(), "not a map"),
        ] {
            let error = object(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn an_unchecked_manifest_has_the_age_that_it_would_have() {
        let (_, manifest) = object(MANIFEST).unwrap();
        let config = unchecked(manifest, None).unwrap();
        assert!(config.metadata.creation_timestamp.is_some(), "without a creation time it would be the oldest");
        assert_eq!(config.spec.global, GlobalSpec::default());
    }

    #[test]
    fn an_unknown_field_has_the_closest_name() {
        let refused = |fields: &[&str]| {
            let fields: Vec<_> = fields.iter().map(|field| format!("unknown field {field:?}")).collect();
            let message = format!("strict decoding error: {}", fields.join(", "));
            let status = json!({"status": "Failure", "message": message, "reason": "BadRequest", "code": 400});
            let refusal = refusal("mesh", &serde_json::from_value(status).unwrap());
            let rejected = format!("the API server rejected LinkerdConfig mesh: {message}");
            refusal.strip_prefix(&rejected).unwrap().to_owned()
        };
        for (field, meant) in [
            ("spec.proxy.logLevl", Some("spec.proxy.logLevel")),
            ("spec.Proxy", Some("spec.proxy")),
            ("spec.rolout", Some("spec.rollout")),
            ("spec.rollout.maxConcurent", Some("spec.rollout.maxConcurrent")),
            ("spec.rollout.window.allow[0].crn", Some("spec.rollout.window.allow[0].cron")),
            ("spec.logLevel", Some("spec.proxy.logLevel")),
            ("spec.maxConcurrent", Some("spec.rollout.maxConcurrent")),
            ("spec.cron", Some("spec.rollout.window.allow[].cron")),
            ("spec.proxy.requireTLS", None),
            ("spec.foo", None),
            ("", None),
        ] {
            let expected = meant.map(|meant| format!("\n  {field}: did you mean {meant}?")).unwrap_or_default();
            assert_eq!(refused(&[field]), expected, "{field}");
        }
        assert_eq!(
            refused(&["spec.foo", "spec.rolout", "spec.proxy.logLevl"]),
            "\n  spec.rolout: did you mean spec.rollout?\n  spec.proxy.logLevl: did you mean spec.proxy.logLevel?"
        );
    }
}
