//! Finds a root that cert-manager renews by itself.
//!
//! In: the objects of cert-manager, from the Secret of the issuer up to its root. Out: the Certificate of the root, if its
//! key signs itself. Proxies do not know such a new root, and the issuer follows it.

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;

use crate::{
    api::{ISSUER, NEXT_ISSUER},
    trust::seen::RenewedRoot,
};

/// The namespace of the Secrets of ClusterIssuers, unless cert-manager is configured otherwise.
const CERT_MANAGER: &str = "cert-manager";

/// Returns the root of the present issuer, or of the next one. `None` without cert-manager, or if an object cannot be read.
pub(super) async fn renewed_root(client: &Client, namespace: &str) -> Option<RenewedRoot> {
    match root_of(client, namespace, ISSUER).await {
        None => root_of(client, namespace, NEXT_ISSUER).await,
        root => root,
    }
}

async fn root_of(client: &Client, namespace: &str, secret: &str) -> Option<RenewedRoot> {
    let issuer = certificate_of(client, namespace, secret).await?;
    let (signer, signs_in) = signer_of(client, namespace, &issuer).await?;
    let root_secret = signer.pointer("/spec/ca/secretName")?.as_str()?;
    let root = certificate_of(client, &signs_in, root_secret).await?;
    let (own_signer, _) = signer_of(client, &signs_in, &root).await?;
    own_signer.pointer("/spec/selfSigned")?;
    let renewal = root.pointer("/status/renewalTime").and_then(Value::as_str);
    Some(RenewedRoot {
        certificate: format!("{signs_in}/{}", root.pointer("/metadata/name")?.as_str()?),
        renewal: renewal.and_then(|time| time.parse::<Timestamp>().ok()),
        is_managed: secret == NEXT_ISSUER,
    })
}

/// Returns the Certificate that cert-manager writes into a Secret.
async fn certificate_of(client: &Client, namespace: &str, secret: &str) -> Option<Value> {
    let certificates = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource("Certificate"));
    let all = certificates.list(&ListParams::default()).await.ok()?;
    let all = all.items.into_iter().filter_map(|found| serde_json::to_value(found).ok());
    all.into_iter().find(|found| found.pointer("/spec/secretName").and_then(Value::as_str) == Some(secret))
}

/// Returns the Issuer or ClusterIssuer of a Certificate, and the namespace of its Secrets.
async fn signer_of(client: &Client, namespace: &str, certificate: &Value) -> Option<(Value, String)> {
    let name = certificate.pointer("/spec/issuerRef/name")?.as_str()?;
    let is_of_cluster = certificate.pointer("/spec/issuerRef/kind").and_then(Value::as_str) == Some("ClusterIssuer");
    let (api, secrets) = match is_of_cluster {
        true => (Api::<DynamicObject>::all_with(client.clone(), &resource("ClusterIssuer")), CERT_MANAGER),
        false => (Api::namespaced_with(client.clone(), namespace, &resource("Issuer")), namespace),
    };
    let found = api.get_opt(name).await.ok().flatten()?;
    Some((serde_json::to_value(found).ok()?, secrets.to_owned()))
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", kind))
}
