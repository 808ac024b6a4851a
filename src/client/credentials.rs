//! The values of a kubeconfig, checked before a client is built from them.
//!
//! In: texts of a person. Out: what a client can use. Errors name the field and its cluster or user, and never quote a
//! value. kube checks some of these values only when it builds a request, and panics.

use anyhow::{Context, anyhow, bail};
use http::HeaderValue;
use k8s_openapi::ByteString;
use kube::config::AuthInfo;
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{
    Deserialize,
    de::{IntoDeserializer, value},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer, x509::X509Version};

/// PEM from a kubeconfig or from a file that it names.
struct Pem {
    /// The name of the field and its owner, for messages.
    field: String,
    bytes: Vec<u8>,
}

/// Where PEM may be.
struct PemSource<'a> {
    field: &'static str,
    data: Option<&'a str>,
    file: Option<&'a str>,
}

/// Checks the credentials of a user, and brings them into the form that kube can use.
///
/// # Errors
/// Fails if a credential cannot be used.
pub(super) fn check(user: &mut AuthInfo, owner: &str) -> anyhow::Result<()> {
    if let Some(token) = &user.token {
        // A token that was written with `echo` or read from a file ends with a newline, which is no part of it.
        let token = token.expose_secret().trim();
        if token.is_empty() {
            bail!("the token of {owner} has only white space");
        }
        header_value(&format!("Bearer {token}"), "token", owner)?;
        user.token = Some(SecretString::from(token));
    }
    impersonation(user, owner)?;
    user.client_certificate_data = user.client_certificate_data.as_deref().map(without_white_space);
    let key = user.client_key_data.as_ref().map(|data| without_white_space(data.expose_secret()));
    user.client_key_data = key.map(SecretString::from);
    identity(user, owner)
}

/// Returns whether requests of the user have credentials that an API server could accept.
pub(super) fn has_any(user: &AuthInfo) -> bool {
    let has_password = user.username.is_some() && user.password.is_some();
    user.token.is_some() || user.client_certificate_data.is_some() || has_password
}

/// Checks the user and the groups to impersonate, which are sent in headers.
///
/// # Errors
/// Fails if one of them is no value of a header.
pub(super) fn impersonation(user: &AuthInfo, owner: &str) -> anyhow::Result<()> {
    let groups = user.impersonate_groups.iter().flatten().map(|group| ("as-groups", group));
    let extra = user.impersonate_user_extra.iter().flat_map(|extra| extra.values().flatten());
    let names = [("as", &user.impersonate), ("as-uid", &user.impersonate_uid)];
    let names = names.into_iter().filter_map(|(field, value)| Some((field, value.as_ref()?)));
    for (field, value) in names.chain(groups).chain(extra.map(|value| ("as-user-extra", value))) {
        // Stricter than for a token: kube does not send other characters than ASCII.
        if !value.is_ascii() {
            bail!("{field} of {owner} has characters that are not ASCII");
        }
        header_value(value, field, owner)?;
    }
    Ok(())
}

pub(super) fn header_value(text: &str, field: &str, owner: &str) -> anyhow::Result<HeaderValue> {
    HeaderValue::try_from(text).map_err(|_| {
        anyhow!("{field} of {owner} has a line break or another control character, which an HTTP header cannot have")
    })
}

/// Returns the certificates of the authorities that have issued the certificate of a server; `None` if none are set.
/// Certificates that cannot be read are left out if others can, as Go does.
///
/// # Errors
/// Fails if there is no usable one.
pub(super) fn authorities(data: Option<&str>, file: Option<&str>, owner: &str) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
    let source = PemSource { field: "certificate-authority", data, file };
    let Some(Pem { field, bytes }) = source.read(owner)? else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    let certificates = certificates(&bytes).map_err(|why| anyhow!("{field} {why}"))?;
    let usable = certificates.into_iter().filter(|certificate| roots.add(certificate.clone()).is_ok());
    let usable: Vec<_> = usable.map(|certificate| certificate.to_vec()).collect();
    if usable.is_empty() {
        bail!("{field} has a certificate that cannot be read");
    }
    Ok(Some(usable))
}

/// Checks the certificate of a user and its private key.
fn identity(user: &AuthInfo, owner: &str) -> anyhow::Result<()> {
    let certificate = PemSource {
        field: "client-certificate",
        data: user.client_certificate_data.as_deref(),
        file: user.client_certificate.as_deref(),
    };
    let key = PemSource {
        field: "client-key",
        data: user.client_key_data.as_ref().map(ExposeSecret::expose_secret),
        file: user.client_key.as_deref(),
    };
    let (certificate, key) = match (certificate.read(owner)?, key.read(owner)?) {
        (None, None) => return Ok(()),
        (Some(certificate), None) => bail!("{} is set, but there is no client-key", certificate.field),
        (None, Some(key)) => bail!("{} is set, but there is no client-certificate", key.field),
        (Some(certificate), Some(key)) => (certificate, key),
    };
    let chain = certificates(&certificate.bytes).map_err(|why| anyhow!("{} {why}", certificate.field))?;
    let private_key = PrivateKeyDer::from_pem_slice(&key.bytes)
        .map_err(|_| anyhow!("{} has no private key in PEM (PKCS#8, PKCS#1 or SEC1, without a password)", key.field))?;
    if let Some(leaf) = chain.first() {
        let leaf = X509Certificate::from_der(leaf);
        let (_, leaf) = leaf.map_err(|_| anyhow!("{} has a certificate that cannot be read", certificate.field))?;
        if leaf.version == X509Version::V1 {
            bail!(
                "the client certificate ({}) is X.509 version 1, which this program does not support: issue one of version 3",
                certificate.field
            );
        }
    }
    match CertifiedKey::from_der(chain, private_key, &ring::default_provider()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            bail!("{} does not belong to the certificate of client-certificate", key.field)
        }
        Err(error) => bail!("{} and {} cannot be used: {error}", certificate.field, key.field),
    }
}

/// Returns the certificates of PEM, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // The error of the library quotes a line, which may be secret.
    let all = all.map_err(|_| "is not valid PEM")?;
    if all.is_empty() { Err("has no certificate in PEM") } else { Ok(all) }
}

/// Go ignores line breaks in base64, kube does not.
pub(super) fn without_white_space(text: &str) -> String {
    text.split_ascii_whitespace().collect()
}

// === impl PemSource ===

impl PemSource<'_> {
    /// The data has precedence over the file.
    fn read(self, owner: &str) -> anyhow::Result<Option<Pem>> {
        let Self { field, data, file } = self;
        if let Some(data) = data {
            let field = format!("{field}-data of {owner}");
            let data = without_white_space(data);
            let decoded = ByteString::deserialize(IntoDeserializer::<value::Error>::into_deserializer(data.as_str()));
            let ByteString(bytes) = decoded.map_err(|_| anyhow!("{field} is not base64"))?;
            return Ok(Some(Pem { field, bytes }));
        }
        let Some(file) = file else { return Ok(None) };
        let field = format!("{field} of {owner}");
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {file}, the {field}"))?;
        Ok(Some(Pem { field, bytes }))
    }
}
