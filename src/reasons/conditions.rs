//! The reasons of the conditions of a LinkerdConfig.

use super::{ConditionReasons, ReasonEntry, entry, fine};

const RETRY: &str = "Fix the cause, then run linkerd-operator rollout retry or change the declared values.";

pub const CONDITIONS: &[ConditionReasons] = &[
    ConditionReasons {
        condition: "Accepted",
        question: "Is the resource valid, and the one in effect for its ConfigMap?",
        reasons: ACCEPTED,
    },
    ConditionReasons {
        condition: "ConfigMapSynced",
        question: "Does the ConfigMap hold the declared configuration?",
        reasons: CONFIG_MAP_SYNCED,
    },
    ConditionReasons {
        condition: "InjectorSynced",
        question: "Does every ready replica of the proxy injector use it?",
        reasons: INJECTOR_SYNCED,
    },
    ConditionReasons {
        condition: "Ready",
        question: "Does the operator do what the resource requests? If not, it has the first reason above that prevents it.",
        reasons: READY,
    },
    ConditionReasons {
        condition: "RolloutComplete",
        question: "Does every selected workload run with the configuration?",
        reasons: ROLLOUT_COMPLETE,
    },
    ConditionReasons {
        condition: "Stalled",
        question: "Is there a problem that does not resolve without intervention?",
        reasons: STALLED,
    },
    ConditionReasons {
        condition: "ControlPlaneMismatch",
        question: "Do proxies get values that the control plane does not use?",
        reasons: &[entry(
            "ValuesDiffer",
            "True",
            "The resource changes values that Linkerd's control plane reads from its own flags: clusterDomain, \
             clusterNetworks, disableIPv6, identityTrustDomain, proxy.defaultInboundPolicy or proxy.opaquePorts.",
            "Set the same values with Helm, or remove them from the resource.",
        )],
    },
    ConditionReasons {
        condition: "IneffectiveValues",
        question: "Does the resource declare values that have no effect?",
        reasons: &[entry(
            "NoEffect",
            "True",
            "A value is accepted and has no effect: Linkerd does not have its key, only Helm reads it, the proxy ignores \
             the value, it looks like a template that no tool has replaced, or no proxy can use the trust anchors.",
            "Correct or remove the values that the message names.",
        )],
    },
    ConditionReasons {
        condition: "SuspectBase",
        question: "Does the installer's document have values that this operator considers wrong?",
        reasons: &[entry(
            "UnexpectedValues",
            "True",
            "The installer's document breaks a rule of this operator. The values are kept, because a rule may be wrong \
             about another version of Linkerd, and the injectors decide.",
            "If InjectorSynced is Denied, correct the values with the installer. Otherwise report the message.",
        )],
    },
    ConditionReasons {
        condition: "VersionSkew",
        question: "Do the declared versions differ from the version of the control plane?",
        reasons: &[
            entry(
                "ProxyNewer",
                "True",
                "New proxies are newer than the control plane, which Linkerd does not support.",
                "Upgrade the control plane. No workload is restarted for the new proxies before that.",
            ),
            entry(
                "ProxyOlder",
                "True",
                "New proxies are older than the control plane.",
                "Raise or remove the declared version.",
            ),
            entry(
                "VersionOverridden",
                "True",
                "linkerdVersion is declared, and the installer wrote another version.",
                "To set only the version of proxies, use spec.proxy.proxyVersion.",
            ),
        ],
    },
];

const ACCEPTED: &[ReasonEntry] = &[
    fine("Accepted", "True", "The resource is valid and in effect. With mode Observe nothing is written."),
    entry(
        "Conflicted",
        "False",
        "Another resource for the same ConfigMap has a higher priority, is older, or is first by name. This one is in \
         reserve, and takes over when the other is deleted.",
        "If this is not intended, delete one of the two, or change a priority.",
    ),
    entry("Invalid", "False", "The resource cannot be applied.", "Correct each problem that the message names."),
    entry(
        "TargetNotFound",
        "False",
        "The ConfigMap does not exist, or is in a namespace that this operator does not manage.",
        "Install Linkerd, or compare status.target with --controller-namespace.",
    ),
    entry("UnsupportedLayout", "False", "The ConfigMap has no values: Linkerd is too old.", "Upgrade Linkerd."),
    entry(
        "UnsupportedVersion",
        "False",
        "Linkerd is older than edge-24.2.3 (2.15). Its injector ignores proxy.additionalEnv, by which the operator \
         recognizes which proxies have the configuration. Nothing is written.",
        "Upgrade Linkerd.",
    ),
    entry(
        "Suspended",
        "False",
        "spec.mode is Suspend: the ConfigMap is neither checked nor written.",
        "To continue, run linkerd-operator rollout resume, or set another mode.",
    ),
];

const CONFIG_MAP_SYNCED: &[ReasonEntry] = &[
    fine("Synced", "True", "The ConfigMap holds the declared configuration."),
    entry(
        "Restored",
        "False",
        "The ConfigMap holds the document from before the declared one, because the injectors denied the declared one, \
         or workloads failed with it.",
        "Change the declared values.",
    ),
    entry(
        "Drifted",
        "False",
        "Changes of another writer stay, because drift.action is Report or earlier reverts were undone. The message \
         names the field manager and the paths. With Report, rollouts continue with the document in the ConfigMap.",
        "Find the writer that the message names.",
    ),
    entry(
        "InstallerReverts",
        "False",
        "An installer keeps restoring its own document.",
        "Change the setting of the installer that the message names.",
    ),
    fine("Canary", "False", "Only the canary namespaces get the declared configuration. The message has the phase."),
    entry(
        "Observing",
        "False",
        "spec.mode is Observe, and the paths in the message would change.",
        "To write them, set spec.mode to Enforce.",
    ),
    entry(
        "ValidationFailed",
        "False",
        "The document has a private key, or is too large, or the installer's values break a rule and no injector is \
         probed. Nothing is written.",
        "Correct what the message names, at its source: the message says what the installer set.",
    ),
    entry(
        "InvalidBase",
        "False",
        "The installer's document cannot be read, or is lost. Nothing is written over it.",
        "Correct it with the installer, restore it from the ControllerRevision that the message names, remove the \
         annotation that the message names, or install Linkerd again.",
    ),
    entry(
        "Immutable",
        "False",
        "The ConfigMap is immutable and cannot be updated.",
        "Delete it and create it again without immutable. Until then, no new replica of the injector can start.",
    ),
    entry(
        "WriteForbidden",
        "False",
        "The API server answered 403, which the message quotes. The write is retried.",
        "Apply the operator's Role in Linkerd's namespace again, or change the policy that rejects the write.",
    ),
    entry(
        "WriteConflict",
        "False",
        "Another client writes at the same time: five conflicts in a row. The write is retried.",
        "Find the other writer in metadata.managedFields of the ConfigMap.",
    ),
    entry(
        "WriteFailed",
        "False",
        "The API server rejected a write with another error, which the message quotes. The write is retried.",
        "Remove the cause that the message quotes.",
    ),
];

const INJECTOR_SYNCED: &[ReasonEntry] = &[
    fine("AllReplicasCurrent", "True", "The answer of every ready replica shows the written configuration."),
    fine(
        "ProbeDisabled",
        "Unknown",
        "No replica was probed: injectorSync.method is Delay, or no injector reads this ConfigMap.",
    ),
    fine(
        "Propagating",
        "False",
        "Replicas do not use the configuration yet. Each kubelet refreshes the file of its replica within about 90 s.",
    ),
    entry(
        "NoReadyReplicas",
        "False",
        "No replica of the injector is ready.",
        "Run kubectl -n linkerd get pods -l linkerd.io/control-plane-component=proxy-injector.",
    ),
    entry(
        "ProbeFailed",
        "False",
        "A replica cannot be reached, or accepts Pods without a proxy. The message names it and the cause.",
        "Allow the operator to connect to port 8443 of the injector's Pods, or set injectorSync.method to DryRun.",
    ),
    entry(
        "Denied",
        "False",
        "A replica denies Pods, or its answer is invalid; the message quotes it. A document that was never accepted is \
         replaced with the one before it.",
        "Change the value that the message names.",
    ),
    entry(
        "Timeout",
        "False",
        "The replicas did not use the configuration within injectorSync.timeout. Probing continues.",
        "Run kubectl -n linkerd rollout restart deployment/linkerd-proxy-injector.",
    ),
];

const READY: &[ReasonEntry] = &[
    fine("Reconciled", "True", "The declared configuration is in effect."),
    entry(
        "Observing",
        "True",
        "spec.mode is Observe: nothing is written, and the paths in the message would change.",
        "To write them, set spec.mode to Enforce.",
    ),
    entry(
        "Suspended",
        "True",
        "spec.mode is Suspend: nothing is checked or written.",
        "To continue, run linkerd-operator rollout resume, or set another mode.",
    ),
    fine(
        "Canary",
        "True or False",
        "True: the canary namespaces get the declared configuration first. False: it is in effect in no namespace, and \
         the message says why.",
    ),
    entry(
        "RolledBack",
        "False",
        "The declared configuration failed, and the document from before it is in effect.",
        "Change the declared values, or fix the cause and run linkerd-operator rollout retry.",
    ),
];

const ROLLOUT_COMPLETE: &[ReasonEntry] = &[
    fine("UpToDate", "True", "Every selected workload runs with the declared configuration."),
    entry(
        "NothingSelected",
        "True",
        "No meshed workload opted in.",
        "Set the label config.linkerd.io/reconcile: auto on a workload or a namespace.",
    ),
    fine("Canary", "False", "Only the canary namespaces get the declared configuration so far."),
    fine("Progressing", "False", "Workloads are being restarted, or are being assessed after a start of the operator."),
    entry(
        "NoProgress",
        "False",
        "No restart began or ended, and the number of outdated Pods did not fall, for twice progressDeadline and more. \
         The message names the workloads that block the others.",
        "Repair the workloads that the message names, or exclude them with config.linkerd.io/reconcile: disabled.",
    ),
    entry("Paused", "False", "spec.rollout.paused is true.", "Run linkerd-operator rollout resume."),
    fine("OutsideWindow", "False", "The maintenance window is closed until status.rollout.nextWindow."),
    fine(
        "WaitingForConfigMap",
        "False",
        "The ConfigMap does not have the declared configuration: see ConfigMapSynced.",
    ),
    fine("WaitingForInjector", "False", "Not every ready injector uses the configuration: see InjectorSynced."),
    entry(
        "WaitingForControlPlane",
        "False",
        "A Deployment of the control plane is older than the proxies that are injected now, is being updated, or started \
         before the trust anchors changed. The message names it.",
        "Upgrade or restart the control plane: kubectl -n linkerd rollout restart deployment.",
    ),
    entry(
        "AwaitingApproval",
        "False",
        "Running Pods trust none of the anchors of the bundle, and no LinkerdTrust has observed that both accept each other.",
        "Add their anchors to the bundle, or approve it with the annotation that the message has.",
    ),
    entry(
        "WaitingForWatches",
        "False",
        "A watch fails, so the state of the cluster is unknown.",
        "Run linkerd-operator check: a missing permission is the most frequent cause.",
    ),
    entry(
        "BlockedByPDB",
        "False",
        "Only PodDisruptionBudgets prevent the remaining restarts.",
        "Allow a disruption, or scale the workloads up.",
    ),
    entry(
        "Halted",
        "False",
        "Too many workloads failed, or a Pod started without a proxy. No further restart begins. With onFailure \
         Rollback, the message says why nothing was rolled back.",
        RETRY,
    ),
    entry("RolledBack", "False", "The configuration failed and was rolled back.", RETRY),
    entry("WorkloadsFailed", "False", "The other workloads are done, because more failures were allowed.", RETRY),
    entry(
        "WorkloadsSkipped",
        "False",
        "The remaining workloads are skipped. status.rollout.skipped has the reasons.",
        "Run linkerd-operator explain --workloads.",
    ),
    entry(
        "WriteFailed",
        "False",
        "Updates of the remaining workloads failed at least three times in a row. They are retried.",
        "Remove the cause that the message quotes, for example another webhook.",
    ),
    fine("RolloutDisabled", "False", "Nothing is restarted: rollout.policy is Off, or spec.mode is not Enforce."),
];

const STALLED: &[ReasonEntry] = &[
    entry(
        "RepeatedDrift",
        "True",
        "Another writer changes the document repeatedly. After six reverts within ten minutes the operator waits longer \
         before each one, up to five minutes. The condition stays until no write was undone for ten minutes, and no \
         restart begins before that.",
        "Stop the writer that the message names, add an installer to spec.drift.trustedManagers, or set drift.action to \
         Report.",
    ),
    entry(
        "InstallerReverts",
        "True",
        "An installer that spec.drift.trustedManagers matches keeps restoring its own document, as GitOps tools with \
         self-healing do. The pauses are those of RepeatedDrift.",
        "Change the setting of the installer that the message names. Another entry in trustedManagers does not help.",
    ),
    entry(
        "InvalidBase",
        "True",
        "The installer's document cannot be read, or is lost.",
        "Correct it with the installer, restore it from the ControllerRevision that the message names, remove the \
         annotation that the message names, or install Linkerd again.",
    ),
    entry(
        "RolledBack",
        "True",
        "The injectors denied the declared configuration, or workloads failed with it. A denied one is retried when no \
         ready replica has a template that denied it, for example after an upgrade of Linkerd.",
        "Change the declared values, or fix the cause and run linkerd-operator rollout retry.",
    ),
    entry(
        "Denied",
        "True",
        "The injectors deny the configuration in effect, and no document from before it can be restored: the declared \
         values did not change, or drift.action is Report and another writer changed the ConfigMap.",
        "Change the value that the message names, take the other writer's changes back, or roll Linkerd back.",
    ),
    entry("RolloutHalted", "True", "Workloads failed, and no further restart begins.", RETRY),
    entry(
        "CanaryFailed",
        "True",
        "Workloads of the canary namespaces failed, or the injectors do not use the configuration. It was taken back.",
        "Change the declared values, or fix the cause and run linkerd-operator rollout retry.",
    ),
    entry(
        "CanaryUnsupported",
        "True",
        "A canary needs the operator's own proxy injector.",
        "Enable the injector, or remove spec.canary.",
    ),
];
