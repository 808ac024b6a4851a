//! The webhooks through which the API server calls injectors: Linkerd's, and this operator's.
//!
//! In: the webhook configurations of both, read from the API server. Out: the Services whose replicas inject, and a
//! client for each. Always holds: a Service is probed only while a webhook refers to it, except for Linkerd's: if no
//! webhook exists, its replicas are those that should be called.

use std::{future::Future, sync::Arc};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{Api, Client};
use tokio::time::timeout;

use super::{
    admission_review,
    webhook_client::{ANSWER_TIMEOUT, WebhookClient},
};
use crate::api::{
    INJECTOR, INJECTOR_WEBHOOK, INJECTOR_WEBHOOK_CONFIGURATION, NamespacedName, OPERATOR_INJECTOR_WEBHOOK,
    OPERATOR_INJECTOR_WEBHOOK_CONFIGURATION,
};

/// The owner of the injector that a webhook calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum InjectorOwner {
    Linkerd,
    Operator,
}

/// The Services whose replicas inject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InjectorServices {
    /// Whether Linkerd's webhook is not registered, and the operator's is.
    pub(super) without_linkerd: bool,
    /// The Service of the operator's webhook, if that is registered.
    pub(super) operator: Option<NamespacedName>,
}

/// The clients of both webhooks.
pub(super) struct InjectorClients {
    pub(super) linkerd: Result<WebhookClient, String>,
    pub(super) operator: Result<WebhookClient, String>,
}

/// The result of reading a webhook configuration.
enum WebhookRegistration {
    Absent(String),
    /// The Service that it refers to, if any, and a client.
    Present(Option<NamespacedName>, Result<WebhookClient, String>),
    /// It cannot be read.
    Unknown(String),
}

// === impl InjectorServices ===

impl InjectorServices {
    /// Returns the Services for an injector that reads the ConfigMaps of this namespace.
    pub(super) fn all(&self, namespace: &Arc<str>) -> impl Iterator<Item = (InjectorOwner, NamespacedName)> {
        let linkerd = (!self.without_linkerd).then(|| NamespacedName::new(Arc::clone(namespace), INJECTOR));
        let operator = self.operator.clone().map(|service| (InjectorOwner::Operator, service));
        linkerd.map(|service| (InjectorOwner::Linkerd, service)).into_iter().chain(operator)
    }
}

// === impl InjectorClients ===

impl InjectorClients {
    /// Reads both webhook configurations.
    pub(super) async fn read(client: &Client, namespace: &str) -> (Self, InjectorServices) {
        let (linkerd, operator) = tokio::join!(
            read(client, INJECTOR_WEBHOOK_CONFIGURATION, INJECTOR_WEBHOOK),
            read(client, OPERATOR_INJECTOR_WEBHOOK_CONFIGURATION, OPERATOR_INJECTOR_WEBHOOK)
        );
        Self::of(linkerd, operator, namespace)
    }

    fn of(linkerd: WebhookRegistration, operator: WebhookRegistration, namespace: &str) -> (Self, InjectorServices) {
        let (is_absent, linkerd) = match linkerd {
            WebhookRegistration::Absent(why) => (true, Err(why)),
            WebhookRegistration::Unknown(why) => (false, Err(why)),
            WebhookRegistration::Present(service, client) => {
                let is_linkerds = service.is_some_and(|it| *it.name == *INJECTOR && *it.namespace == *namespace);
                let other = || {
                    described(
                        INJECTOR_WEBHOOK_CONFIGURATION,
                        INJECTOR_WEBHOOK,
                        &format!("it does not refer to Service {namespace}/{INJECTOR}"),
                    )
                };
                (false, if is_linkerds { client } else { Err(other()) })
            }
        };
        let (service, operator) = match operator {
            WebhookRegistration::Absent(why) | WebhookRegistration::Unknown(why) => (None, Err(why)),
            WebhookRegistration::Present(service, client) => (service, client),
        };
        let services = InjectorServices { without_linkerd: is_absent && service.is_some(), operator: service };
        (Self { linkerd, operator }, services)
    }

    pub(super) fn to(&self, injector: InjectorOwner) -> &Result<WebhookClient, String> {
        match injector {
            InjectorOwner::Linkerd => &self.linkerd,
            InjectorOwner::Operator => &self.operator,
        }
    }
}

async fn read(client: &Client, name: &str, webhook: &str) -> WebhookRegistration {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    match within(webhooks.get_opt(name)).await {
        Ok(Some(configuration)) => registered(configuration, name, webhook),
        Ok(None) => WebhookRegistration::Absent(format!("MutatingWebhookConfiguration {name} does not exist")),
        Err(why) => WebhookRegistration::Unknown(format!("MutatingWebhookConfiguration {name} cannot be read: {why}")),
    }
}

fn registered(configuration: MutatingWebhookConfiguration, name: &str, webhook: &str) -> WebhookRegistration {
    let described = |why: &str| described(name, webhook, why);
    let hook = configuration.webhooks.into_iter().flatten().find(|hook| hook.name == webhook);
    let Some(hook) = hook else { return WebhookRegistration::Absent(described("it does not exist")) };
    let bundle = hook.client_config.ca_bundle.map(|bundle| bundle.0).unwrap_or_default();
    let Some(service) = hook.client_config.service else {
        return WebhookRegistration::Present(None, Err(described("it does not refer to a Service")));
    };
    let path = service.path.as_deref().unwrap_or("/");
    let client = WebhookClient::new(&service.name, &service.namespace, path, &bundle).map_err(|why| described(&why));
    let key = NamespacedName::new(service.namespace.as_str(), service.name.as_str());
    WebhookRegistration::Present(Some(key), client)
}

fn described(name: &str, webhook: &str, why: &str) -> String {
    format!("webhook {webhook} of MutatingWebhookConfiguration {name}: {why}")
}

/// Sends a request with a deadline. The error is one readable line.
async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(ANSWER_TIMEOUT, request).await {
        Ok(result) => result.map_err(|error| admission_review::line(&crate::client::describe(&error))),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(linkerd: WebhookRegistration, operator: WebhookRegistration) -> Vec<String> {
        let (_, services) = InjectorClients::of(linkerd, operator, "linkerd");
        services.all(&"linkerd".into()).map(|(injector, service)| format!("{injector:?} {service}")).collect()
    }

    fn present(namespace: &str, name: &str) -> WebhookRegistration {
        WebhookRegistration::Present(Some(NamespacedName::new(namespace, name)), Err("no certificate".to_owned()))
    }

    fn absent() -> WebhookRegistration {
        WebhookRegistration::Absent("it does not exist".to_owned())
    }

    #[test]
    fn the_replicas_of_every_registered_webhook_inject() {
        let linkerd = || present("linkerd", "linkerd-proxy-injector");
        let operator = || present("system", "linkerd-operator-webhook");
        let (of_linkerd, of_operator) =
            ("Linkerd linkerd/linkerd-proxy-injector", "Operator system/linkerd-operator-webhook");
        assert_eq!(services(linkerd(), absent()), [of_linkerd]);
        assert_eq!(services(absent(), operator()), [of_operator]);
        assert_eq!(services(linkerd(), operator()), [of_linkerd, of_operator]);
        assert_eq!(services(absent(), absent()), [of_linkerd], "its replicas should be called");
        let unknown = || WebhookRegistration::Unknown("forbidden".to_owned());
        assert_eq!(services(unknown(), operator()), [of_linkerd, of_operator]);
        assert_eq!(services(linkerd(), unknown()), [of_linkerd]);
    }

    #[test]
    fn linkerds_webhook_must_refer_to_the_service_of_the_mesh() {
        let (clients, _) = InjectorClients::of(present("other", "linkerd-proxy-injector"), absent(), "linkerd");
        let why = clients.to(InjectorOwner::Linkerd).as_ref().err().unwrap();
        assert!(why.ends_with("it does not refer to Service linkerd/linkerd-proxy-injector"), "{why}");
        assert!(clients.to(InjectorOwner::Operator).is_err());
    }
}
