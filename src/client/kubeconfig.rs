//! Kubeconfigs, read as kubectl reads them.
//!
//! In: files, or the text of a Secret. Out: the configuration of a client in which every value is usable. An empty field
//! counts as unset.

use std::{
    env,
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use kube::{
    Config,
    config::{AuthInfo, Cluster, ExecAuthCluster, Kubeconfig, KubeconfigError},
};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};

use super::{
    credentials,
    proxy::{self, ProxyEnvironment},
    url,
};
use crate::text::truncate;

/// The maximum number of values of an untrusted kubeconfig, and of their bytes. The values that an alias repeats count
/// each time. A kubeconfig with a cluster, a context and a user has some dozen values. Its text is parsed in one go,
/// and a Secret has at most 1 MiB.
const UNTRUSTED_VALUES: usize = 10_000;
const UNTRUSTED_BYTES: usize = 1024 * 1024;

/// The maximum number of bytes of a name in a message.
pub(super) const NAME_BYTES: usize = 80;

/// Returns the first kubeconfig that exists, and its source. If that one cannot be read, this fails, so that the
/// process does not silently connect to another cluster.
pub(super) fn read(named: Option<&Path>) -> anyhow::Result<Option<(Kubeconfig, String)>> {
    if let Some(path) = named.filter(|path| !path.as_os_str().is_empty()) {
        return Ok(Some((Kubeconfig::read_from(path).map_err(unreadable(path))?, path.display().to_string())));
    }
    if let Some(paths) = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        return Ok(Some((merged(&paths)?, "KUBECONFIG".to_owned())));
    }
    let Some(home) = env::home_dir() else { return Ok(None) };
    let path = home.join(".kube").join("config");
    match Kubeconfig::read_from(&path) {
        Ok(file) => Ok(Some((file, "~/.kube/config".to_owned()))),
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&path)(error)),
    }
}

/// Merges the files of a list. Those that do not exist are ignored, as kubectl does, unless none exists.
pub(super) fn merged(paths: &OsStr) -> anyhow::Result<Kubeconfig> {
    let paths: Vec<PathBuf> = env::split_paths(paths).filter(|path| !path.as_os_str().is_empty()).collect();
    let mut merged: Option<Kubeconfig> = None;
    for path in &paths {
        let next = match Kubeconfig::read_from(path) {
            Ok(next) => next,
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(path)(error)).context("KUBECONFIG"),
        };
        let both = merged.take().unwrap_or_default().merge(next);
        merged = Some(both.with_context(|| format!("cannot merge the kubeconfig {} of KUBECONFIG", path.display()))?);
    }
    merged.with_context(|| {
        let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        format!("KUBECONFIG names no file that exists: {}", paths.join(", "))
    })
}

/// Returns the reason without quoting the file: the parser's error shows the lines around the mistake.
fn unreadable(path: &Path) -> impl FnOnce(KubeconfigError) -> anyhow::Error {
    let what = format!("cannot read the kubeconfig {}", path.display());
    move |error| match error {
        KubeconfigError::ReadConfig(error, _) => anyhow::Error::new(error).context(what),
        KubeconfigError::Parse(error) => match error.location() {
            Some(place) => anyhow!("{what}: it is invalid at line {}, column {}", place.line(), place.column()),
            None => anyhow!("{what}: it is invalid"),
        },
        error => anyhow::Error::new(error).context(what),
    }
}

/// Returns the configuration of a client for a context of a kubeconfig; by default the current one.
///
/// # Errors
/// Fails if the kubeconfig has no such context, or if a value cannot be used.
pub(super) fn config_of(
    file: Kubeconfig,
    context: Option<&str>,
    environment: &ProxyEnvironment,
) -> anyhow::Result<Config> {
    named(file, context, environment).map(|(config, _)| config)
}

/// Returns the configuration of a client of a linked cluster from the text of an untrusted kubeconfig.
///
/// # Errors
/// Also if the kubeconfig would run a program or read a file, or if its user has no credentials.
pub(super) fn linked(text: &str, environment: &ProxyEnvironment) -> anyhow::Result<Config> {
    let (config, user) = named(untrusted(text)?, None, environment)?;
    // An API server serves HTTPS only. With HTTP, the server is another program, which adds the credentials.
    if config.cluster_url.scheme_str() == Some("https") && !credentials::has_any(&config.auth_info) {
        bail!(user.without_credentials());
    }
    Ok(config)
}

/// The user of a context.
struct ContextUser {
    context: String,
    /// Empty if the context names none.
    name: String,
}

/// As [`config_of`], with the user.
fn named(
    mut file: Kubeconfig,
    context: Option<&str>,
    environment: &ProxyEnvironment,
) -> anyhow::Result<(Config, ContextUser)> {
    normalize(&mut file);
    let wanted = context.or(file.current_context.as_deref()).filter(|name| !name.is_empty());
    let wanted = wanted.context("it has no current context")?.to_owned();
    let context = file.contexts.into_iter().find(|it| it.name == wanted).and_then(|it| it.context);
    let context = context.with_context(|| format!("it has no context {}", quoted(&wanted)))?;
    let owner = format!("cluster {}", quoted(&context.cluster));
    let cluster = file.clusters.into_iter().find(|it| it.name == context.cluster).and_then(|it| it.cluster);
    let missing =
        |what: &str| format!("its context {} names {what}, which the kubeconfig does not have", quoted(&wanted));
    let cluster = cluster.with_context(|| missing(&owner))?;

    let server = cluster.server.as_deref().with_context(|| format!("{owner} has no server"))?;
    let server = url::parse(server, &format!("server of {owner}"), &["https", "http"])?;
    if server.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        bail!("server of {owner} has a user: write it as the user of the kubeconfig");
    }
    let mut config = Config::new(server);
    config.default_namespace = context.namespace.filter(|it| !it.is_empty()).unwrap_or(config.default_namespace);
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.disable_compression = cluster.disable_compression.unwrap_or(false);
    let authority = (cluster.certificate_authority_data.as_deref(), cluster.certificate_authority.as_deref());
    config.root_cert = credentials::authorities(authority.0, authority.1, &owner)?;
    if let Some(name) = &cluster.tls_server_name {
        let valid = ServerName::try_from(name.as_str());
        valid.map_err(|_| anyhow!("tls-server-name of {owner} is no name of a host"))?;
    }
    config.tls_server_name.clone_from(&cluster.tls_server_name);
    // As in Go, NO_PROXY is for the proxies of the environment only.
    config.proxy_url = match &cluster.proxy_url {
        Some(url) => Some(proxy::parse(url, &format!("proxy-url of {owner}"))?),
        None => environment.proxy_of(&config.cluster_url)?,
    };
    let name = context.user.unwrap_or_default();
    let owner = format!("user {}", quoted(&name));
    let user = file.auth_infos.into_iter().find(|it| it.name == name);
    if user.is_none() && !name.is_empty() {
        bail!(missing(&owner));
    }
    config.auth_info = user_of(user.and_then(|it| it.auth_info).unwrap_or_default(), &owner, cluster)?;
    Ok((config, ContextUser { context: wanted, name }))
}

// === impl ContextUser ===

impl ContextUser {
    fn without_credentials(&self) -> String {
        match self.name.as_str() {
            "" => format!(
                "its context {} names no user: name one with a token, or a client certificate and its key",
                quoted(&self.context)
            ),
            name => {
                format!("user {} has no credentials: write a token, or a client certificate and its key", quoted(name))
            }
        }
    }
}

fn user_of(mut user: AuthInfo, owner: &str, mut cluster: Cluster) -> anyhow::Result<AuthInfo> {
    credentials::check(&mut user, owner)?;
    if let Some(exec) = &mut user.exec
        && exec.provide_cluster_info
    {
        let data = cluster.certificate_authority_data.take();
        cluster.certificate_authority_data = data.map(|data| credentials::without_white_space(&data));
        exec.cluster = Some(ExecAuthCluster::try_from(&cluster)?);
    }
    Ok(user)
}

/// Parses an untrusted kubeconfig.
///
/// # Errors
/// Fails if it is not a kubeconfig, if it is too large, or if it would run a program or read a file.
fn untrusted(text: &str) -> anyhow::Result<Kubeconfig> {
    let budget = serde_saphyr::budget! { max_nodes: UNTRUSTED_VALUES, max_total_scalar_bytes: UNTRUSTED_BYTES };
    let documents = serde_saphyr::from_multiple_with_options(text, serde_saphyr::options! { budget: budget });
    let documents: Vec<Kubeconfig> = documents.map_err(|error| match exceeds_budget(&error) {
        true => anyhow!(
            "it is too large: it may have {UNTRUSTED_VALUES} values of {UNTRUSTED_BYTES} bytes together, and what an \
             alias repeats counts each time"
        ),
        false => anyhow!("it is not a kubeconfig"),
    })?;
    let merged = documents.into_iter().try_fold(Kubeconfig::default(), Kubeconfig::merge);
    let mut file = merged.map_err(|_| anyhow!("it is not a kubeconfig"))?;
    normalize(&mut file);
    if let Some(field) = outside_of(&file) {
        bail!("the field {field} is refused: credentials and certificates have to be in the kubeconfig itself");
    }
    Ok(file)
}

fn exceeds_budget(mut error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error::{AliasError, Budget, WithSnippet};
    while let AliasError { error: cause, .. } | WithSnippet { error: cause, .. } = error {
        error = cause;
    }
    matches!(error, Budget { .. })
}

/// Returns the first field that would run a program or read a file.
fn outside_of(file: &Kubeconfig) -> Option<&'static str> {
    let users = file.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    let clusters = file.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
    let of_user = users.flat_map(|user| {
        [
            ("exec", user.exec.is_some()),
            ("auth-provider", user.auth_provider.is_some()),
            ("tokenFile", user.token_file.is_some()),
            ("client-certificate", user.client_certificate.is_some()),
            ("client-key", user.client_key.is_some()),
        ]
    });
    let of_cluster = clusters.map(|cluster| ("certificate-authority", cluster.certificate_authority.is_some()));
    of_user.chain(of_cluster).find_map(|(field, is_set)| is_set.then_some(field))
}

/// Unsets empty fields, which Go does not distinguish from unset ones.
fn normalize(file: &mut Kubeconfig) {
    for cluster in file.clusters.iter_mut().filter_map(|it| it.cluster.as_mut()) {
        let Cluster { server, certificate_authority, certificate_authority_data, proxy_url, tls_server_name, .. } =
            cluster;
        for field in [server, certificate_authority, certificate_authority_data, proxy_url, tls_server_name] {
            unset_empty(field);
        }
    }
    for user in file.auth_infos.iter_mut().filter_map(|it| it.auth_info.as_mut()) {
        let AuthInfo { username, token_file, client_certificate, client_certificate_data, client_key, .. } = user;
        for field in [username, token_file, client_certificate, client_certificate_data, client_key] {
            unset_empty(field);
        }
        unset_empty(&mut user.impersonate);
        unset_empty(&mut user.impersonate_uid);
        for field in [&mut user.token, &mut user.client_key_data] {
            *field = field.take().filter(|it: &SecretString| !it.expose_secret().is_empty());
        }
    }
}

fn unset_empty(field: &mut Option<String>) {
    *field = field.take().filter(|it| !it.is_empty());
}

/// A name, short enough and without control characters.
fn quoted(name: &str) -> String {
    format!("{:?}", truncate(name, NAME_BYTES))
}
