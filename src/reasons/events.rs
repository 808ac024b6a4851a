//! The reasons of Events.

use super::{ReasonEntry, ReasonGroup, entry, fine};

const NORMAL: &str = "Normal";
const WARNING: &str = "Warning";

pub const EVENTS: &[ReasonGroup] = &[
    ReasonGroup {
        title: "ExternalWorkloads",
        place: "The object is the ExternalWorkload, and for EndpointSliceWriteFailed the Service.",
        reasons: EXTERNAL_WORKLOADS,
    },
    ReasonGroup {
        title: "LinkerdConfigs",
        place: "The object is the LinkerdConfig; DriftReverted is written for the ConfigMap too. Events of cluster-scoped \
                objects are in the namespace default.",
        reasons: LINKERD_CONFIGS,
    },
    ReasonGroup {
        title: "LinkerdTrusts",
        place: "The object is the LinkerdTrust, in the namespace default. Conflicted and ValidationFailed are written for it, too.",
        reasons: LINKERD_TRUSTS,
    },
    ReasonGroup {
        title: "Rollouts",
        place: "The object is the LinkerdConfig for reasons that begin with Rollout, and otherwise the workload.",
        reasons: ROLLOUTS,
    },
    ReasonGroup {
        title: "Proxy injector",
        place: "The object is the workload of the Pod: the owner of its ReplicaSet or Job, or else its only owner. The \
                owner must exist with the uid of the owner reference. The reporting controller is \
                linkerd-proxy-injector, as with Linkerd's injector.",
        reasons: INJECTOR,
    },
    ReasonGroup {
        title: "Certificate of the webhooks",
        place: "The object is the Secret that --webhook-certificate-secret names.",
        reasons: CERTIFICATES,
    },
    ReasonGroup {
        title: "Identity",
        place: "The object is the Deployment linkerd-identity, and for IssuedLeafCertificate the ServiceAccount. The \
                reporting controller is linkerd-identity, as with Linkerd's identity service.",
        reasons: IDENTITY,
    },
];

const EXTERNAL_WORKLOADS: &[ReasonEntry] = &[
    entry(
        "Published",
        NORMAL,
        "It became an endpoint of the Service.",
        "If the note says not ready, set the condition Ready in its status: your health checker must, nothing else does.",
    ),
    fine("Unpublished", NORMAL, "It is no longer an endpoint of the Service."),
    fine(
        "BecameReady",
        NORMAL,
        "The Service sends it traffic. If the Service has no TCP port, as the note then says, no proxy sends any.",
    ),
    entry(
        "BecameUnready",
        NORMAL,
        "It is not ready, so the Service no longer sends it traffic, except with publishNotReadyAddresses.",
        "Check the workload.",
    ),
    entry(
        "InvalidWorkloadIP",
        WARNING,
        "An address is not allowed in an EndpointSlice, such as a loopback address, and is skipped. Or no address is of a \
         family that the Service has, and the workload is not published.",
        "Correct spec.workloadIPs, or ipFamilies of the Service.",
    ),
    entry(
        "InvalidHostname",
        WARNING,
        "The Service is headless, and the name of the workload is not a hostname. It is published without one.",
        "To resolve it by name, give it a name of at most 63 lower-case letters, digits and hyphens.",
    ),
    entry(
        "MissingZone",
        WARNING,
        "It lacks the zone that trafficDistribution of the Service needs, so clients receive the endpoints of all zones.",
        "Set its label topology.kubernetes.io/zone.",
    ),
    entry(
        "UnmatchedPort",
        WARNING,
        "It lacks a port that the Service targets. The other ports are published.",
        "Add the port that the note names to spec.ports.",
    ),
    entry(
        "EndpointSliceWriteFailed",
        WARNING,
        "The API server rejected the write of an EndpointSlice. It is retried at most a minute apart.",
        "Remove the cause that the note quotes: a quota, a policy, a missing role.",
    ),
];

const LINKERD_TRUSTS: &[ReasonEntry] = &[
    entry(
        "TrustPhaseChanged",
        NORMAL,
        "The rotation of the trust anchors reached another phase.",
        "Do the next step that the note names.",
    ),
    entry(
        "TrustBroken",
        WARNING,
        "Proxies refuse certificates, or will when they renew theirs.",
        "Do what status.nextStep says.",
    ),
    fine("TrustRepaired", NORMAL, "What was broken is repaired."),
    entry(
        "TrustExpiresSoon",
        WARNING,
        "A certificate ends soon, or has ended.",
        "Replace the certificate that the note names.",
    ),
    entry(
        "IssuerNotTaken",
        WARNING,
        "A replica of the identity service does not sign with the issuer that the operator wrote minutes ago.",
        "Restart the identity service with the command in status.commands.",
    ),
    fine("TrustAnchorAdded", NORMAL, "The operator added declared trust anchors to the bundle: spec.mode is Enforce."),
    entry(
        "TrustAnchorNotAdded",
        WARNING,
        "The operator did not add declared trust anchors to the bundle, or another writer keeps removing them.",
        "See the reason of the condition BundleSynced.",
    ),
    fine(
        "TrustAnchorRemoved",
        NORMAL,
        "The operator removed trust anchors from the bundle that are not declared and that no certificate needs: spec.mode is Enforce.",
    ),
    entry(
        "TrustAnchorNotRemoved",
        WARNING,
        "The operator did not remove trust anchors from the bundle that are not declared, or another writer has added them again.",
        "See the reason of the condition BundleSynced.",
    ),
    fine(
        "IssuerWritten",
        NORMAL,
        "The operator wrote the next issuer, or the previous one, into the Secret linkerd-identity-issuer: spec.issuer.manage is Secret.",
    ),
    entry(
        "IssuerNotWritten",
        WARNING,
        "The operator did not write the next issuer, or another writer keeps replacing it.",
        "See the reason of the condition IssuerSynced.",
    ),
];

const LINKERD_CONFIGS: &[ReasonEntry] = &[
    fine("Activated", NORMAL, "It came into effect for its ConfigMap."),
    entry(
        "Conflicted",
        WARNING,
        "Another resource, which the note names, is in effect for its ConfigMap.",
        "Delete one of the two, or change a priority.",
    ),
    entry(
        "ValidationFailed",
        WARNING,
        "The resource or a document is invalid.",
        "Correct each problem that the note names by its path: in the resource if the note begins with that, else with \
         the installer.",
    ),
    fine("ConfigMapUpdated", NORMAL, "The declared configuration was written."),
    fine("LinkerdConfigUpdated", NORMAL, "A generation of the resource is in effect."),
    fine(
        "BaseUpdated",
        NORMAL,
        "An installer wrote another document, or another writer changed values that drift.scope Declared leaves alone.",
    ),
    fine("BaseRestored", NORMAL, "The deletion of the resource restored the installer's document."),
    entry(
        "BaseNotRestored",
        WARNING,
        "The deletion did not restore the installer's document: another resource takes over, another writer changed the \
         document, or the API server rejected the write.",
        "Read the note. To restore by hand, write the document of the ControllerRevision linkerd-config-base-N.",
    ),
    fine("TrustAnchorsReused", NORMAL, "The mesh keeps the trust anchors of its own ConfigMap."),
    entry(
        "TrustRootsChanged",
        NORMAL,
        "The bundle in linkerd-identity-trust-roots changed.",
        "Restart the control plane if Linkerd has not done so. The rollout to proxies waits for that.",
    ),
    entry(
        "DriftDetected",
        WARNING,
        "Another writer changed the document. The note names the field manager and the paths.",
        "Find the writer. If it is an installer, add it to spec.drift.trustedManagers.",
    ),
    fine(
        "DriftReverted",
        NORMAL,
        "The operator reverted these changes. The note names the ControllerRevision that keeps the reverted document.",
    ),
    entry(
        "InstallerReverts",
        WARNING,
        "An installer keeps restoring its own document.",
        "Change the setting that the note names, so that the tool ignores data.values.",
    ),
    fine("InjectorSynced", NORMAL, "All ready replicas of the injector use the configuration."),
    entry(
        "InjectorSyncTimeout",
        WARNING,
        "Replicas of the injector did not use the configuration in time. injectorSync.onTimeout decides what follows.",
        "Restart the injector.",
    ),
    entry(
        "InjectorDenied",
        WARNING,
        "A replica of the injector denies Pods with the configuration.",
        "Change the value that the note names.",
    ),
    entry(
        "ConfigRolledBack",
        WARNING,
        "The document from before the declared one was restored: injectors denied it, or workloads failed with it.",
        "Change the declared values.",
    ),
    fine("CanaryStarted", NORMAL, "The canary namespaces get a configuration before all others."),
    fine("CanaryPromoted", NORMAL, "All namespaces get the configuration of the canary."),
    entry(
        "CanaryFailed",
        WARNING,
        "The configuration of the canary was taken back. The note names the workload or the replica.",
        "Change the declared values, or fix the cause and run linkerd-operator rollout retry.",
    ),
];

const ROLLOUTS: &[ReasonEntry] = &[
    fine("RolloutStarted", NORMAL, "The first workload is restarted for a configuration."),
    fine("RolloutCompleted", NORMAL, "All selected workloads run with the configuration."),
    entry(
        "RolloutPaused",
        NORMAL,
        "spec.rollout.paused is true, and workloads wait.",
        "Run linkerd-operator rollout resume.",
    ),
    fine("RolloutResumed", NORMAL, "The rollout is no longer paused."),
    entry(
        "RolloutHalted",
        WARNING,
        "Workloads failed, and no further restart begins. The note names them.",
        "Fix the cause, then run linkerd-operator rollout retry or change the declared values.",
    ),
    fine("PodRestart", NORMAL, "The workload was restarted, restarted again, or rolled back."),
    fine("ProxyUpToDate", NORMAL, "All Pods of the workload run with the configuration, after the soak."),
    entry(
        "ProxyRolloutFailed",
        WARNING,
        "The restart of the workload failed.",
        "Fix the cause that the note quotes, then run linkerd-operator rollout retry.",
    ),
    fine(
        "ProxyRolloutSkipped",
        NORMAL,
        "The workload is out of date and not restarted. The note has the reason and the \
         remedy.",
    ),
];

const INJECTOR: &[ReasonEntry] = &[
    fine("Injected", NORMAL, "A Pod is created with a proxy."),
    fine("InjectionSkipped", NORMAL, "A Pod is created without a proxy. The note names each reason."),
    entry(
        "InjectionWarning",
        WARNING,
        "An annotation or the Pod has a mistake, with or without a proxy.",
        "Correct the annotations that the note names, in the Pod template or the namespace.",
    ),
    entry(
        "InjectionFailed",
        WARNING,
        "A Pod is denied, or the API server rejects it with its proxy.",
        "Correct what the note names.",
    ),
];

const CERTIFICATES: &[ReasonEntry] = &[
    fine("WebhookCertificateIssued", NORMAL, "The operator wrote a new authority or a new leaf."),
    entry(
        "WebhookCertificateFailed",
        WARNING,
        "The Secret or a caBundle could not be read or written.",
        "Run linkerd-operator runbook LinkerdOperatorWebhookCertificateExpires.",
    ),
    entry(
        "WebhookBundleContested",
        WARNING,
        "Another client resets a caBundle again and again. The note names its field manager.",
        "Stop that client, for example an annotation of cert-manager on the webhook configuration.",
    ),
];

const IDENTITY: &[ReasonEntry] = &[
    fine(
        "IssuedLeafCertificate",
        NORMAL,
        "A proxy of the ServiceAccount received a certificate. There is one Event for each lifetime of the certificates.",
    ),
    fine("IssuerUpdated", NORMAL, "The files of the issuer were changed and loaded; the certificate may be the same."),
    entry(
        "IssuerUpdateSkipped",
        WARNING,
        "The files of the issuer cannot be used. The last issuer of the replica stays in use, if it has one.",
        "Correct what the note names, in the Secret of the issuer or in the trust anchors.",
    ),
    entry(
        "IssuerHeld",
        WARNING,
        "Not all proxies accept the new issuer, so the last issuer stays in use. A replica that has started since issues nothing.",
        "Restart no replica of the identity service. Do what status.nextStep of the LinkerdTrust says, or put the previous issuer back. If no operator updates that status, delete the LinkerdTrust: then the new issuer is used.",
    ),
    entry(
        "IssuerValidationFailed",
        WARNING,
        "The issuer has expired, so a proxy received no certificate.",
        "Replace the issuer.",
    ),
    entry(
        "IssuerExpiresSoon",
        WARNING,
        "The certificate of the issuer ends: written 30, 7 and 1 days before, and earlier for an issuer that is valid for \
         less than 8 days.",
        "Replace the issuer.",
    ),
    entry(
        "IssuerIsTrustAnchor",
        WARNING,
        "The issuer's key is the key of the root, so it cannot be replaced without replacing the root.",
        "Use an issuer that the root has signed.",
    ),
    fine(
        "TrustAnchorsUpdated",
        NORMAL,
        "The bundle was changed and loaded; its certificates may be the same. Proxies use it after their restart.",
    ),
    entry(
        "TrustAnchorExpired",
        WARNING,
        "The root of the issuer has expired. Proxies do not look at its end, so certificates are still issued.",
        "Replace the root.",
    ),
];
