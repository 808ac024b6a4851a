//! The reasons of decisions about workloads.

use super::{ReasonEntry, ReasonGroup, entry, fine};

pub const WORKLOADS: &[ReasonGroup] = &[
    ReasonGroup {
        title: "Why a workload failed",
        place: "status.rollout.failures and the Event ProxyRolloutFailed. A failed workload is not restarted again for \
                the same configuration before linkerd-operator rollout retry or a change of the declared values. If it \
                becomes healthy with the configuration, the failure is lifted.",
        reasons: FAILED,
    },
    ReasonGroup {
        title: "Why a workload is skipped",
        place: "status.rollout.skipped, the Event ProxyRolloutSkipped and explain --workloads. A skipped workload is out \
                of date and is not restarted. NoController, StaticPod, Job and UnknownOwner do not prevent \
                RolloutComplete from being True.",
        reasons: SKIPPED,
    },
    ReasonGroup { title: "Why a workload is not selected", place: "explain --workloads.", reasons: NOT_SELECTED },
    ReasonGroup {
        title: "Phases of a rollout",
        place: "status.rollout.phase, which summarizes RolloutComplete.",
        reasons: PHASES,
    },
];

const FAILED: &[ReasonEntry] = &[
    entry(
        "ProgressDeadlineExceeded",
        "",
        "It made no progress for rollout.progressDeadline and the time that it asks for, and is not ready.",
        "See the message, which quotes the workload's controller.",
    ),
    entry(
        "EvictionBlocked",
        "",
        "No Pod could be evicted for rollout.progressDeadline. It does not count toward rollout.maxFailures.",
        "Remove the cause that the message quotes.",
    ),
    entry(
        "StillOutdated",
        "",
        "It was restarted twice, and its new Pods are out of date.",
        "Find what else creates or changes its Pods.",
    ),
    fine("Failed", "", "The operator recorded a failure without a reason: see the message."),
    entry(
        "Uninjected",
        "",
        "A new Pod started without a proxy. This halts the rollout under every onFailure.",
        "Check the proxy injector and its webhook.",
    ),
];

const SKIPPED: &[ReasonEntry] = &[
    entry("Paused", "", "The Deployment is paused.", "Resume it."),
    entry(
        "ProxyInTemplate",
        "",
        "Its template contains the proxy, so new Pods have the same one.",
        "Remove the proxy from the template, or inject it again with linkerd inject.",
    ),
    entry(
        "OnDelete",
        "",
        "Its update strategy is OnDelete.",
        "Delete its Pods, or annotate it with config.linkerd.io/rollout-method: evict.",
    ),
    entry("Partition", "", "All outdated Pods are below the partition of its update strategy.", "Lower the partition."),
    fine("BlockedByPDB", "", "A PodDisruptionBudget allows no disruption. It is restarted when one is allowed."),
    fine(
        "Unhealthy",
        "",
        "Not all its Pods are available, and no restart by the operator is the cause. It is restarted \
         when they are.",
    ),
    entry(
        "WaitingForNodes",
        "",
        "Outdated Pods of a DaemonSet run on nodes that it does not select anymore.",
        "Check the taints of the nodes, or delete these Pods.",
    ),
    entry("NoController", "", "No controller would recreate these Pods.", "Delete and recreate them yourself."),
    entry("StaticPod", "", "These are static Pods of a node.", "Change their manifest on the node."),
    fine("Job", "", "A restart would lose its work. The next run has the new configuration."),
    entry("UnknownOwner", "", "The operator cannot restart Pods of this owner.", "Restart them through the owner."),
    entry(
        "Reverted",
        "",
        "Another client reverts the restart, such as a GitOps tool that owns the annotations of the template.",
        "Annotate the workload with config.linkerd.io/rollout-method: evict, or correct the other client and retry.",
    ),
    entry(
        "TooManyAttempts",
        "",
        "Its Pods are out of date again after each of five restarts.",
        "Find what else creates or changes its Pods.",
    ),
    entry(
        "NamespaceBreaksInjection",
        "",
        "An annotation of its namespace makes proxy injection fail: config.linkerd.io/proxy-additional-env, or a proxy \
         annotation with a double quote.",
        "Remove the annotation.",
    ),
    fine(
        "InjectionDisabled",
        "",
        "Its Pod template does not request a proxy: a restart would remove it from the mesh.",
    ),
    fine("Deleting", "", "It, or its namespace, is being deleted."),
];

const NOT_SELECTED: &[ReasonEntry] = &[
    fine(
        "ExcludedNamespace",
        "",
        "Its namespace is never selected: kube-system, cert-manager, those of the control plane and of the operator, and \
         those with the label config.linkerd.io/admission-webhooks: disabled.",
    ),
    fine("NamespaceNotSelected", "", "spec.rollout.namespaceSelector does not match its namespace."),
    fine("WorkloadNotSelected", "", "spec.rollout.workloadSelector does not match it."),
    fine("KindNotSelected", "", "spec.rollout.kinds does not include its kind."),
    fine("OptedOut", "", "The value of config.linkerd.io/reconcile opts it out. Only auto opts it in."),
    entry(
        "NotOptedIn",
        "",
        "Neither it, nor its template, nor its namespace has the label config.linkerd.io/reconcile: auto.",
        "Set the label to have it restarted.",
    ),
];

const PHASES: &[ReasonEntry] = &[
    fine("Idle", "", "Rollouts are disabled, or no workload is selected."),
    fine("Waiting", "", "Workloads are out of date, but a precondition is not met, or none of them can be restarted."),
    fine("Progressing", "", "Workloads are being restarted."),
    fine("Paused", "", "spec.rollout.paused is true."),
    fine("Halted", "", "Too many workloads failed."),
    fine("RolledBack", "", "The configuration was rolled back because workloads failed with it."),
    fine("Complete", "", "Every selected workload runs with the configuration."),
];
