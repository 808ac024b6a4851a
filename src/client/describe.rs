//! Errors for people. In: errors of kube, which have Rust's debug output and the environment of programs in their texts.
//! Out: sentences.

use std::{error::Error, fmt, io};

use hyper_util::client::legacy;
use kube::{Config, client::AuthError, core::Status};
use rustls::CertificateError;
use tower::BoxError;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::kubeconfig::NAME_BYTES;
use crate::text::truncate;

/// Describes an error and its causes, each once. The message of an API server stands for the whole of its answer.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    if let Some(text) = special(error) {
        return text;
    }
    let text = error.to_string();
    let Some(source) = error.source() else { return text };
    let (raw, described) = (source.to_string(), describe(source));
    // kube's errors end with the text of their source, hyper's do not.
    match text.strip_suffix(&raw).filter(|_| !raw.is_empty()) {
        Some(before) => format!("{before}{described}"),
        None if text.ends_with(&described) => text,
        None => format!("{text}: {described}"),
    }
}

/// Returns the description of an error whose own text must not be shown.
fn special(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(status) = error.downcast_ref::<Status>() {
        return Some(answer(status));
    }
    if let Some(error) = error.downcast_ref::<AuthError>() {
        return Some(credentials(error, None));
    }
    match error.downcast_ref::<kube::Error>()? {
        kube::Error::Api(status) => Some(answer(status)),
        kube::Error::Auth(error) => Some(credentials(error, None)),
        // Their own texts are only the names of these variants.
        kube::Error::Service(error) => Some(describe(&**error)),
        kube::Error::HyperError(error) => Some(describe(error)),
        _ => None,
    }
}

/// The message of an API server.
fn answer(status: &Status) -> String {
    match (&*status.message, &*status.reason) {
        ("", "") => format!("the API server answers with status {}", status.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// Describes why there are no credentials, without the environment and the output of the program that makes them.
fn credentials(error: &AuthError, source: Option<&CredentialSource>) -> String {
    let plugin = match source {
        Some(CredentialSource::Provider(name)) => return of_provider(name),
        Some(CredentialSource::Exec(plugin)) => Some(plugin),
        None => None,
    };
    let program = plugin.map_or_else(
        || "the program of the kubeconfig that makes credentials".to_owned(),
        |plugin| format!("the exec plugin {:?} of the kubeconfig", plugin.command),
    );
    match error {
        AuthError::AuthExecStart(error) => {
            let hint = plugin.and_then(|plugin| plugin.install_hint.as_deref()).map(str::trim);
            match hint.filter(|hint| !hint.is_empty()) {
                Some(hint) => format!("{program} cannot be started: {error}: {hint}"),
                None => format!("{program} cannot be started: {error}: install it, or correct its path"),
            }
        }
        AuthError::AuthExecRun { out, .. } => {
            format!("{program} failed with {}: run it by hand to see why", out.status)
        }
        AuthError::AuthExecParse(_) | AuthError::ParseTokenKey(_) => {
            format!("{program} printed something else than credentials")
        }
        AuthError::ExecPluginFailed => format!("{program} printed no credentials"),
        other => other.to_string(),
    }
}

/// Says what replaces an auth-provider that gives no credentials. Of these names, kubectl still has `oidc`.
fn of_provider(name: &str) -> String {
    let instead = match name {
        "gcp" => {
            "kubectl 1.26 has removed it, so install gke-gcloud-auth-plugin and run gcloud container clusters \
             get-credentials again"
        }
        "azure" => "kubectl 1.26 has removed it, so install kubelogin and run kubelogin convert-kubeconfig",
        "oidc" => "it has no id-token, and this program requests none, so use the exec plugin kubelogin",
        _ => "use an exec plugin",
    };
    format!("the auth-provider {:?} of the kubeconfig gives no credentials: {instead}", truncate(name, NAME_BYTES))
}

/// The parts of a client's configuration that messages about its errors name.
#[derive(Clone, Debug)]
pub(super) struct ClientOrigin {
    credentials: Option<CredentialSource>,
    /// The certificates of the kubeconfig's authority; `None` if the system's or the Pod's are used.
    authority: Option<Authority>,
    /// The proxy, without its password.
    proxy: Option<String>,
    server: String,
}

/// The source of a client's credentials.
#[derive(Clone, Debug)]
enum CredentialSource {
    Exec(ExecPlugin),
    /// The name of an auth-provider, which precedes an exec plugin.
    Provider(String),
}

#[derive(Clone, Debug)]
struct ExecPlugin {
    command: String,
    install_hint: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Authority {
    IssuesCertificates,
    /// One of the certificates is that of a server.
    HasLeaf,
}

/// An error whose text explains its cause, so that it has no source.
#[derive(Debug)]
struct ExplainedError(String);

// === impl ClientOrigin ===

impl ClientOrigin {
    pub(super) fn of(config: &Config) -> Self {
        let exec = config.auth_info.exec.as_ref().map(|exec| {
            CredentialSource::Exec(ExecPlugin {
                command: exec.command.clone().unwrap_or_default(),
                install_hint: exec.install_hint.clone(),
            })
        });
        let provider = config.auth_info.auth_provider.as_ref();
        let credentials = provider.map(|provider| CredentialSource::Provider(provider.name.clone())).or(exec);
        let roots = config.root_cert.as_ref().filter(|_| config.root_cert_file.is_none());
        let authority = roots.map(|roots| match roots.iter().all(|root| is_authority(root)) {
            true => Authority::IssuesCertificates,
            false => Authority::HasLeaf,
        });
        let proxy = config.proxy_url.as_ref().map(|proxy| {
            let authority = proxy.authority().map_or("", http::uri::Authority::as_str);
            let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
            format!("{}://{address}", proxy.scheme_str().unwrap_or_default())
        });
        Self { credentials, authority, proxy, server: config.cluster_url.to_string() }
    }

    /// Says which field of the kubeconfig an error is about, if it is about one.
    pub(super) fn explain(&self, error: BoxError) -> BoxError {
        if let Some(error) = find::<AuthError>(&*error) {
            return ExplainedError(credentials(error, self.credentials.as_ref())).into();
        }
        // Verification reports a bad signature if the authority was created again with the same name, such as kubeadm's.
        let is_unknown = |error: &rustls::Error| {
            [CertificateError::UnknownIssuer, CertificateError::BadSignature]
                .into_iter()
                .any(|reason| *error == rustls::Error::InvalidCertificate(reason))
        };
        if let Some(authority) = self.authority
            && find::<rustls::Error>(&*error).is_some_and(is_unknown)
        {
            return ExplainedError(authority.is_unknown(self.proxy.as_deref())).into();
        }
        if !find::<legacy::Error>(&*error).is_some_and(legacy::Error::is_connect) {
            return error;
        }
        let through = self.proxy.as_ref().map(|proxy| format!(" through the proxy {proxy}")).unwrap_or_default();
        let Self { server, .. } = self;
        ExplainedError(format!("cannot connect to {server}{through}: {}", describe(&*error))).into()
    }
}

// === impl Authority ===

impl Authority {
    /// The same authority is used for a proxy of HTTPS.
    fn is_unknown(self, proxy: Option<&str>) -> String {
        let proxy =
            proxy.filter(|proxy| proxy.starts_with("https")).map(|proxy| format!(", or that of the proxy {proxy},"));
        let text = format!(
            "the certificate of the API server{} is not issued by certificate-authority-data of the kubeconfig",
            proxy.unwrap_or_default()
        );
        match self {
            Self::IssuesCertificates => {
                format!("{text} (or the file of certificate-authority): write the certificate of its authority there")
            }
            Self::HasLeaf => format!(
                "{text} (or the file of certificate-authority), which has the certificate of a server: write the \
                 certificate of the authority that issued it there"
            ),
        }
    }
}

// === impl ExplainedError ===

impl fmt::Display for ExplainedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ExplainedError {}

/// Whether a certificate may issue others. One of version 1 does not say so.
fn is_authority(certificate: &[u8]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return true };
    let constraints = certificate.basic_constraints().ok().flatten();
    constraints.map_or(certificate.version.0 < 2, |constraints| constraints.value.ca)
}

/// Returns the first cause of a type, also inside of errors of input and output.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    // The source of such an error is the source of what it wraps.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => find(wrapped),
        None => find(error.source()?),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use kube::runtime::watcher;

    use super::*;

    fn not_found() -> kube::Error {
        let status = r#"{"status": "Failure", "message": "pods \"web\" not found", "reason": "NotFound", "code": 404}"#;
        kube::Error::Api(serde_json::from_str::<Box<Status>>(status).unwrap())
    }

    #[test]
    fn the_message_of_an_api_server_stands_for_its_answer() {
        assert_eq!(describe(&not_found()), "pods \"web\" not found");
        let read = Err::<(), _>(not_found()).context("cannot read the Pod").context("cannot go on").unwrap_err();
        assert_eq!(describe(&*read), "cannot go on: cannot read the Pod: pods \"web\" not found");
        let list = describe(&watcher::Error::InitialListFailed(not_found()));
        assert!(list.ends_with(": pods \"web\" not found") && !list.contains("Status"), "{list}");
        let wrapped = kube::Error::Service(Box::new(io::Error::other("the socket is gone")));
        assert_eq!(describe(&wrapped), "the socket is gone");
        let silent = kube::Error::Api(serde_json::from_str::<Box<Status>>(r#"{"code": 502}"#).unwrap());
        assert_eq!(describe(&silent), "the API server answers with status 502");
    }
}
