//! The reasons of the conditions of a LinkerdTrust.

use super::{ConditionReasons, entry, fine};

pub const TRUST_CONDITIONS: &[ConditionReasons] = &[
    ConditionReasons {
        condition: "Accepted",
        question: "Is the resource valid, and the one in effect for its control plane?",
        reasons: &[
            fine("Accepted", "True", "The resource is valid and in effect."),
            entry(
                "Conflicted",
                "False",
                "An older LinkerdTrust, which the message names, is in effect for the same control plane.",
                "Delete one of the two.",
            ),
            entry(
                "Invalid",
                "False",
                "A part of spec.anchors.pem is not a certificate that proxies can use, or there are more than 20; \
                 spec.bridge.pem has something else than bridges to declared trust anchors and the roots that signed them; or \
                 spec.issuer.manage lacks spec.anchors or the mode Enforce.",
                "Correct what the message names.",
            ),
        ],
    },
    ConditionReasons {
        condition: "BundleSynced",
        question: "Does the bundle have exactly the declared trust anchors?",
        reasons: &[
            fine("Synced", "True", "It does."),
            entry(
                "RootsDiffer",
                "False",
                "The bundle lacks a declared trust anchor, or has others, too.",
                "Do what status.nextStep says: an early removal breaks connections. With mode Enforce the operator removes the others.",
            ),
            entry(
                "Contested",
                "False",
                "Another writer removed declared trust anchors more than five times in ten minutes. The operator waits longer each time before it adds them again. The contest ends ten minutes after the last removal.",
                "Add the declared trust anchors to the configuration of the writer that the message names: the values of Helm, or Git.",
            ),
            entry(
                "WriteFailed",
                "False",
                "The operator could not change the bundle. The message has the reason, such as a missing permission.",
                "Correct what the message names. In the chart, the permission is jobs.linkerdConfig.trustAnchors.",
            ),
            entry(
                "WrittenByTrustManager",
                "False",
                "The bundle must change, and trust-manager writes it, so the operator does not.",
                "Change the sources of the Bundle that the message names.",
            ),
            entry(
                "RemovalHeld",
                "False",
                "No observed certificate needs the trust anchors that are not declared, but they stay: the identity service has not shown that its certificates do not need them, there are proxies that the operator does not see, or another writer added one that the operator had removed within the last hour.",
                "Do what the message says. A reason that is gone is noticed within a minute, and an added one after an hour.",
            ),
            entry(
                "NotObserved",
                "Unknown",
                "The bundle is missing, or cannot be read.",
                "Restore the ConfigMap linkerd-identity-trust-roots.",
            ),
        ],
    },
    ConditionReasons {
        condition: "TrustSpread",
        question: "Does each proxy trust the declared trust anchor of the issuer, or the one that the issuer should have?",
        reasons: &[
            fine("Synced", "True", "Each proxy that shows its trust anchors does."),
            fine("OverBridge", "True", "Some do not, and accept new certificates over a bridge, or will."),
            entry(
                "ProxiesBehind",
                "False",
                "Some do not, and would refuse its certificates.",
                "Write a bridge, or restart the workloads of status.behind.",
            ),
            entry(
                "NotObserved",
                "Unknown",
                "Some proxies have one of too many different sets of trust anchors to compare.",
                "Delete the Pods that have trust anchors of their own.",
            ),
        ],
    },
    ConditionReasons {
        condition: "LeavesRenewed",
        question: "Does the certificate of each proxy reach a declared trust anchor?",
        reasons: &[
            fine("Synced", "True", "Each does."),
            fine(
                "OldLeaves",
                "False",
                "Some do not. Proxies renew their certificates by themselves, within their lifetime.",
            ),
            entry(
                "IssuerNotTaken",
                "False",
                "The issuer was written minutes ago, and the replica of the identity service that the message names still signs with another one.",
                "Restart the identity service with the command in status.commands.",
            ),
            entry(
                "NotObserved",
                "Unknown",
                "The certificates of some proxies were not observed: their Pods start, or the operator cannot connect to port \
                 4191 of them.",
                "Permit connections of the operator to port 4191 of all meshed Pods.",
            ),
        ],
    },
    ConditionReasons {
        condition: "ReadyToSwitch",
        question: "In the phase AwaitingIssuer, and later while the issuer is held: do all proxies accept certificates of the next issuer?",
        reasons: &[
            fine("Synced", "True", "They do."),
            fine("OverBridge", "True", "They do, over the declared bridges: each accepts at least as much as before."),
            entry(
                "ControlPlaneBehind",
                "False",
                "Proxies of the control plane read the bundle when they start, and have read an earlier one.",
                "Restart the control plane with the command in the message, or declare a bridge.",
            ),
            entry(
                "ProxiesBehind",
                "False",
                "Proxies lack the trust anchor of the issuer. Or the bundle was changed within the last four minutes, so new Pods \
                 may still get the previous one.",
                "Restart the workloads that the message names.",
            ),
            entry(
                "ProxiesNotSeen",
                "False",
                "There are proxies outside of the cluster, or objects that show them cannot be listed.",
                "Do what the message says. With a bridge, these proxies hold nothing.",
            ),
            entry(
                "NotObserved",
                "False",
                "The ConfigMap of the bundle does not show when it was changed.",
                "Apply it again: its managed fields are missing.",
            ),
        ],
    },
    ConditionReasons {
        condition: "IssuerSynced",
        question: "With spec.issuer.manage, is the issuer of the mesh the next one?",
        reasons: &[
            fine("Synced", "True", "It is, or it belongs to a declared trust anchor, and there is no next one."),
            entry(
                "IssuerAwaited",
                "False",
                "The issuer belongs to no declared trust anchor, and the Secret linkerd-identity-issuer-next does not exist.",
                "Write an issuer of the declared trust anchor into it.",
            ),
            fine(
                "IssuerHeld",
                "False",
                "The next issuer can be used, and waits: the bundle lacks a declared trust anchor, or some proxies would refuse its certificates. The message says what is missing.",
            ),
            entry(
                "IssuerRefused",
                "False",
                "The next issuer cannot be used: its key, its dates, or the trust anchor that it belongs to. The present one stays.",
                "Write another one into the Secret linkerd-identity-issuer-next.",
            ),
            entry(
                "Contested",
                "False",
                "Another writer replaced the issuer more than five times in ten minutes. The operator waits longer each time before it writes it again.",
                "Change the configuration of that writer: the values of Helm, or Git.",
            ),
            entry(
                "WriteFailed",
                "False",
                "A Secret could not be read or written. The message has the reason.",
                "Correct what the message names.",
            ),
            entry(
                "WrittenByCertManager",
                "False",
                "cert-manager writes the Secret linkerd-identity-issuer, so the operator does not.",
                "Let the Certificate write the Secret linkerd-identity-issuer-next, by the command in the message.",
            ),
            entry(
                "IssuerRefAwaited",
                "False",
                "The Certificate from which cert-manager writes the next issuer still names an issuer of the trust anchor before. The present issuer is renewed from it.",
                "Change its issuerRef to an issuer of the declared trust anchor.",
            ),
        ],
    },
    ConditionReasons {
        condition: "Ready",
        question: "Does the mesh have the declared trust anchors, and do proxies accept each other?",
        reasons: &[
            fine("Synced", "True", "The phase is Steady or Complete, and nothing is broken."),
            entry("RotationInProgress", "False", "The message has the phase and the next step.", "Do the next step."),
            entry(
                "Broken",
                "False",
                "Proxies refuse certificates, or will when they renew theirs.",
                "Do what status.nextStep says.",
            ),
            entry(
                "ProxiesExposed",
                "False",
                "The rotation is complete, and proxies still trust an anchor of spec.distrust.",
                "Do what status.nextStep says.",
            ),
            entry("Conflicted", "False", "The condition Accepted is False.", "Do what its message says."),
            entry("Invalid", "False", "The condition Accepted is False.", "Do what its message says."),
            fine("NotObserved", "Unknown", "The bundle, or the certificate of any proxy, was not observed."),
        ],
    },
    ConditionReasons {
        condition: "Expiring",
        question: "Does a trust anchor, a bridge or the issuer end within 30 days? The issuer: within a quarter of its time, if that is less, but at least the lifetime of a certificate.",
        reasons: &[entry(
            "CertificateEnds",
            "True",
            "A trust anchor, the issuer or a bridge ends, or has ended. The message names it.",
            "Replace it: see the guide to trust anchors.",
        )],
    },
];
