//! Every permission that the manifests grant is probed with a request as the manager sends it, which is allowed with the
//! shipped role and denied without that permission. `docs/internals/src/permissions.md` has the reasons, and a unit test compares
//! it with the roles.

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, Options, Rig, eventually, kubeconfig, mesh::SOON, shipped::OPERATOR_NAMESPACE};
use http::Method;
use hyper::StatusCode;
use kube::Client;
use serde_json::{Value, json};

use super::{
    FOLDERS,
    probe::{self, NAMESPACE},
};

/// The overlays with the components of the webhooks.
const WEBHOOK_OVERLAYS: [(&str, &str); 2] = [
    (
        "config/default",
        "components: [../../config/components/webhook-server, ../../config/components/proxy-injector, ../../config/components/webhooks]",
    ),
    ("config/control-plane", "components: [../../config/components/proxy-injector/control-plane]"),
];

/// One verb on one resource, for all its objects or the named one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Permission {
    /// The resource as in a rule of RBAC: with the subresource, without the group.
    pub(super) resource: String,
    pub(super) group: String,
    pub(super) name: Option<String>,
    pub(super) verb: String,
}

/// A shipped role.
struct Role {
    kind: String,
    name: String,
    /// `None` for a ClusterRole.
    namespace: Option<String>,
    rules: Value,
}

// === impl Permission ===

impl Permission {
    fn to_rule(&self) -> Value {
        let mut rule = json!({"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]});
        if let Some(name) = &self.name {
            rule["resourceNames"] = json!([name]);
        }
        rule
    }
}

// === impl Role ===

impl Role {
    fn read(object: &Value) -> Option<Self> {
        let kind = object["kind"].as_str().filter(|kind| matches!(*kind, "Role" | "ClusterRole"))?;
        Some(Self {
            kind: kind.to_owned(),
            name: object["metadata"]["name"].as_str()?.to_owned(),
            namespace: object["metadata"]["namespace"].as_str().map(str::to_owned),
            rules: object["rules"].clone(),
        })
    }

    fn id(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }

    /// Whether the role is bound to the operator. The other roles are for users.
    fn is_operators(&self) -> bool {
        !self.name.contains("-linkerdconfig-")
    }

    fn permissions(&self) -> Vec<Permission> {
        let mut all = Vec::new();
        for rule in self.rules.as_array().into_iter().flatten() {
            for (group, resource, verb) in strings(&rule["apiGroups"]).flat_map(|group| {
                strings(&rule["resources"])
                    .flat_map(move |resource| strings(&rule["verbs"]).map(move |verb| (group, resource, verb)))
            }) {
                let names: Vec<_> = strings(&rule["resourceNames"]).map(|name| Some(name.to_owned())).collect();
                for name in if names.is_empty() { vec![None] } else { names } {
                    all.push(Permission { resource: resource.into(), group: group.into(), name, verb: verb.into() });
                }
            }
        }
        all
    }

    async fn set_rules(&self, admin: &Client, rules: &Value) -> Result<()> {
        let collection =
            self.namespace.as_ref().map_or("clusterroles".to_owned(), |name| format!("namespaces/{name}/roles"));
        let request = http::Request::patch(format!("/apis/rbac.authorization.k8s.io/v1/{collection}/{}", self.name))
            .header("content-type", "application/merge-patch+json")
            .body(json!({ "rules": rules }).to_string().into_bytes())?;
        admin.request_text(request).await?;
        Ok(())
    }

    /// A client with the permissions of this role only.
    async fn client(&self, control_plane: &ControlPlane) -> Result<Client> {
        let account = self.id().to_lowercase().replace('/', "-");
        let mut binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{}Binding", self.kind),
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": self.kind, "name": self.name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
        });
        if let Some(namespace) = &self.namespace {
            binding["metadata"]["namespace"] = json!(namespace);
        }
        let account_object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": NAMESPACE}});
        control_plane.apply(&[account_object, binding]).await?;
        kubeconfig::client(&control_plane.kubeconfig_for_service_account(NAMESPACE, &account).await?).await
    }
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

async fn shipped_roles(control_plane: &ControlPlane) -> Result<Vec<Role>> {
    let mut roles = Vec::new();
    for folder in FOLDERS {
        roles.extend(control_plane.shipped(folder).await?.iter().filter_map(Role::read));
    }
    ensure!(!roles.is_empty(), "no roles");
    Ok(roles)
}

/// The roles that the components of the webhooks add.
async fn roles_of_webhooks(control_plane: &ControlPlane) -> Result<Vec<Role>> {
    let shipped: Vec<_> =
        shipped_roles(control_plane).await?.iter().map(|role| (role.id(), role.namespace.clone())).collect();
    let mut roles = Vec::new();
    for (folder, lines) in WEBHOOK_OVERLAYS {
        roles.extend(control_plane.shipped_with(folder, lines).await?.iter().filter_map(Role::read));
    }
    roles.retain(|role| !shipped.contains(&(role.id(), role.namespace.clone())));
    assert_eq!(roles.len(), 4, "{:?}", roles.iter().map(Role::id).collect::<Vec<_>>());
    Ok(roles)
}

#[tokio::test]
async fn no_permission_is_unbounded() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let shipped = shipped_roles(control_plane).await?;
    let roles = shipped.into_iter().chain(roles_of_webhooks(control_plane).await?);
    for role in roles {
        for rule in role.rules.as_array().context("rules")? {
            ensure!(rule.get("nonResourceURLs").is_none(), "{}: {rule}", role.id());
        }
        for permission in role.permissions() {
            let Permission { resource, group, name, verb } = &permission;
            let wild = [resource, group, verb].iter().any(|text| text.contains('*'));
            // The Secret of the webhooks. Its list and watch select the name.
            let own = role.name == "linkerd-operator-webhook-certificate"
                && role.namespace.as_deref() == Some(OPERATOR_NAMESPACE)
                && resource == "secrets"
                && (name.as_deref() == Some("linkerd-operator-webhook") || verb == "create");
            let secret = resource.starts_with("secrets") && !own || resource.starts_with("serviceaccounts");
            let power = matches!(verb.as_str(), "escalate" | "bind" | "impersonate" | "deletecollection");
            // Our requests to list, watch or create contain no name, so a rule with one would be useless.
            let useless = !own && name.is_some() && matches!(verb.as_str(), "list" | "watch" | "create");
            ensure!(!wild && !secret && !power && !useless, "{}: {permission:?}", role.id());
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_permission_is_sufficient_and_necessary_for_its_request() -> Result<()> {
    let strict = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned();
    let options = Options { extra_api_server_args: vec![strict], ..Options::default() };
    let control_plane = &Rig::linkerd().options(options).start().await?;
    for folder in FOLDERS {
        control_plane.apply_folder(folder).await?;
    }
    // The probes are not writes of the operator, so its admission policies would refuse them.
    let policies = "validatingadmissionpolicybindings,validatingadmissionpolicies";
    control_plane.kubectl(&["delete", policies, "--all"]).await?;
    control_plane.install_crds("crd").await?;
    control_plane.apply(&probe::objects()).await?;
    let operator = kubeconfig::client(&control_plane.operator_kubeconfig().await?).await?;
    let roles = shipped_roles(control_plane).await?;
    probe_roles(control_plane, &roles, &operator).await?;
    // Requests that no rule allows.
    for path in [
        "/api/v1/secrets",
        "/api/v1/namespaces/linkerd/secrets",
        "/api/v1/namespaces/linkerd-operator-system/secrets",
        "/api/v1/configmaps",
        "/api/v1/namespaces/linkerd-operator-system/configmaps",
        "/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-roots",
        "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/policy-controller-write",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    ] {
        let (status, text) = probe::Probe::get(path).send(&operator).await?;
        ensure!(status == StatusCode::FORBIDDEN, "{path}: {status} {text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_permission_of_the_webhooks_is_sufficient_and_necessary_for_its_request() -> Result<()> {
    let control_plane = &Rig::bare().namespace("linkerd").start().await?;
    for (folder, lines) in WEBHOOK_OVERLAYS {
        let mut objects = control_plane.shipped_with(folder, lines).await?;
        let is_policy = |kind: &str| kind.starts_with("ValidatingAdmissionPolicy");
        objects.retain(|it| !it["kind"].as_str().is_some_and(|kind| kind == "Deployment" || is_policy(kind)));
        control_plane.apply(&objects).await?;
    }
    control_plane.install_crds("crd").await?;
    control_plane.apply(&probe::objects()).await?;
    let operator = kubeconfig::client(&control_plane.operator_kubeconfig().await?).await?;
    let roles = roles_of_webhooks(control_plane).await?;
    probe_roles(control_plane, &roles, &operator).await?;
    for path in [
        "/api/v1/secrets",
        "/api/v1/namespaces/linkerd/secrets",
        "/api/v1/namespaces/linkerd-operator-system/secrets",
        "/api/v1/namespaces/linkerd-operator-system/secrets/probe",
    ] {
        let (status, text) = probe::Probe::get(path).send(&operator).await?;
        ensure!(status == StatusCode::FORBIDDEN, "{path}: {status} {text}");
    }
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let patch = Some(json!({"metadata": {"annotations": {"probe": "patched"}}}));
    let other =
        probe::Probe::new(Method::PATCH, format!("{configurations}/linkerd-proxy-injector-webhook-config"), patch);
    let (status, text) = other.send(&operator).await?;
    ensure!(status == StatusCode::FORBIDDEN, "{status} {text}");
    Ok(())
}

/// Sends a request for each permission of the roles, with and without that permission.
async fn probe_roles(control_plane: &ControlPlane, roles: &[Role], operator: &Client) -> Result<()> {
    let admin = control_plane.client().await?;
    let operators: Vec<_> = roles.iter().filter(|role| role.is_operators()).flat_map(Role::permissions).collect();
    let mut probes = 0;
    for role in roles {
        let alone = role.client(control_plane).await?;
        let permissions = role.permissions();
        for permission in &permissions {
            let request = probe::Probe::of(permission, role.namespace.as_deref(), &admin).await?;
            let passes = async |client: &Client| {
                eventually(SOON, format_args!("{permission:?} of {} to be granted", role.id()), async || {
                    let (status, text) = request.send(client).await?;
                    ensure!(status.is_success(), "{status} {text}");
                    Ok(())
                })
                .await
            };
            passes(&alone).await?;
            if role.is_operators() {
                passes(operator).await?;
            } else if !operators.contains(permission) {
                let (status, text) = request.send(operator).await?;
                ensure!(
                    status == StatusCode::FORBIDDEN,
                    "the operator has a permission for users only: {status} {text}"
                );
            }
            let others: Vec<_> = permissions.iter().filter(|it| *it != permission).map(Permission::to_rule).collect();
            role.set_rules(&admin, &json!(others)).await?;
            eventually(SOON, format_args!("{permission:?} of {} to be needed", role.id()), async || {
                let (status, text) = request.send(&alone).await?;
                ensure!(status == StatusCode::FORBIDDEN, "{status} {text}");
                Ok(())
            })
            .await?;
            role.set_rules(&admin, &role.rules).await?;
            probes += 1;
        }
    }
    println!("{probes} permissions, each probed with and without it");
    Ok(())
}
