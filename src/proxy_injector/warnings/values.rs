//! Warnings about annotations that are passed on as they are, by the rules of the programs that read them: the proxy,
//! `linkerd-init` or the CNI plugin, the kubelet and the API server.

use super::{AuthorWarnings, shown};
use crate::{
    api::{ADDITIONAL_ENV_ANNOTATION, quantity::Quantity},
    cluster::kinds::port_ranges,
    go,
    proxy_injector::annotations::{Annotations, PREFIX},
    text::log_filter::{self, DirectiveMistake},
    values::{
        ConstraintsValues, Form, ImageValues, ProxyEnvVar, ProxyValues, doubtful_quantity, has_init_port, is_image,
        is_ipv4_network, is_variable_name, unusable_source,
    },
};

/// How a program reads the text of an annotation.
struct ReadRule {
    /// The annotations, without their prefix.
    names: &'static [&'static str],
    /// Returns the part of the text that the program cannot use.
    unusable: fn(&str) -> Option<&str>,
    wanted: &'static str,
    effect: Effect,
}

#[derive(Clone, Copy)]
enum Effect {
    Is(&'static str),
    /// The API server rejects the Pod.
    Rejected,
}

const NO_START: Effect = Effect::Is("the proxy cannot start");
const NO_FIREWALL: Effect = Effect::Is("the firewall cannot be set up, so the Pod cannot start");
const NO_IMAGE: Effect = Effect::Is("the image cannot be pulled");
const DEBUG_NAME: &str = "debug-image";
const DEBUG_VERSION: &str = "debug-image-version";
const DEBUG_PULL_POLICY: &str = "debug-image-pull-policy";
/// The annotations that matter only with a debug container.
const DEBUG: [&str; 3] = [DEBUG_NAME, DEBUG_VERSION, DEBUG_PULL_POLICY];
const TIMEOUTS: &[&str] = &["proxy-inbound-connect-timeout", "proxy-outbound-connect-timeout", "shutdown-grace-period"];
const CACHE_TIMEOUTS: &[&str] =
    &["proxy-inbound-discovery-cache-unused-timeout", "proxy-outbound-discovery-cache-unused-timeout"];
const RULES: [ReadRule; 22] = [
    ReadRule {
        names: &["access-log"],
        unusable: |text| unless(text, ["apache", "json"].iter().any(|it| text.eq_ignore_ascii_case(it))),
        wanted: "apache or json",
        effect: Effect::Is("the proxy writes no access log"),
    },
    ReadRule {
        names: &["proxy-log-format"],
        unusable: |text| unless(text, ["plain", "json"].iter().any(|it| text.trim().eq_ignore_ascii_case(it))),
        wanted: "plain or json",
        effect: Effect::Is("the proxy writes plain lines"),
    },
    ReadRule {
        names: &["proxy-log-level"],
        unusable: |text| log_directive(text, DirectiveMistake::Unreadable),
        wanted: "a level or a directive such as linkerd=debug",
        effect: Effect::Is("the proxy ignores it"),
    },
    ReadRule {
        names: &["proxy-log-level"],
        unusable: |text| log_directive(text, DirectiveMistake::NoModule),
        wanted: "a level or a directive such as linkerd=debug",
        effect: Effect::Is("the proxy takes it for a module, and logs nothing else without a level"),
    },
    ReadRule {
        // iptables fails without a port. The list of inbound ports always has those of the proxy.
        names: &["skip-outbound-ports"],
        unusable: |text| unless(text, has_init_port(text)),
        wanted: "a list with a port",
        effect: NO_FIREWALL,
    },
    ReadRule {
        names: &["skip-inbound-ports", "skip-outbound-ports"],
        unusable: |text| item(text, |it| it.is_empty() || port_ranges::range(it).is_some()),
        wanted: "a port or a range such as 9000-9100, without a space before or after it",
        effect: Effect::Is("the port is not skipped"),
    },
    ReadRule {
        names: &["skip-subnets"],
        unusable: |text| item(text, |it| is_ipv4_network(it.trim())),
        wanted: "an IPv4 network such as 10.0.0.0/8",
        effect: NO_FIREWALL,
    },
    ReadRule {
        names: &["proxy-require-identity-inbound-ports"],
        unusable: |text| item(text, is_port_of_proxy),
        wanted: "a port or a range",
        effect: Effect::Is("the proxy cannot read the list"),
    },
    ReadRule {
        names: &["pod-inbound-ports"],
        unusable: |text| unless(text, false),
        wanted: "read by a proxy",
        effect: Effect::Is("the ports of the containers are used"),
    },
    ReadRule {
        names: &["enable-debug-sidecar"],
        unusable: |text| unless(text, go::bool::parse(text).is_some()),
        wanted: "true or false",
        effect: Effect::Is("there is no debug container"),
    },
    ReadRule {
        names: &["proxy-image", "proxy-version", DEBUG_NAME, DEBUG_VERSION],
        unusable: |text| unless(text, text.trim() == text),
        wanted: "free of spaces at its ends",
        effect: Effect::Rejected,
    },
    ReadRule {
        names: &["proxy-image", DEBUG_NAME],
        unusable: |text| unless(text, Form::ImageName.violation(text).is_none()),
        wanted: "the reference of an image without its tag",
        effect: NO_IMAGE,
    },
    ReadRule {
        names: &["proxy-version", DEBUG_VERSION],
        unusable: |text| unless(text, Form::ImageVersion.violation(text).is_none()),
        wanted: "the tag of an image",
        effect: NO_IMAGE,
    },
    ReadRule {
        names: &["image-pull-policy", DEBUG_PULL_POLICY],
        unusable: |text| unless(text, ["Always", "IfNotPresent", "Never"].contains(&text)),
        wanted: "Always, IfNotPresent or Never",
        effect: Effect::Rejected,
    },
    ReadRule { names: &["admin-port", "inbound-port"], unusable: port, wanted: A_PORT, effect: Effect::Rejected },
    ReadRule { names: &["control-port", "outbound-port"], unusable: port, wanted: A_PORT, effect: NO_START },
    ReadRule {
        names: &["proxy-uid"],
        unusable: |text| number(text, |uid| (0..=MAX_ID).contains(&uid)),
        wanted: "a user from 1 to 2147483647",
        effect: Effect::Rejected,
    },
    ReadRule {
        names: &["proxy-uid"],
        unusable: |text| number(text, |uid| uid != 0),
        wanted: "a user from 1 to 2147483647",
        effect: Effect::Is("the kubelet does not start the proxy as root"),
    },
    ReadRule {
        // No group is set for a negative number.
        names: &["proxy-gid"],
        unusable: |text| number(text, |gid| gid <= MAX_ID),
        wanted: "a group of at most 2147483647",
        effect: Effect::Rejected,
    },
    ReadRule {
        names: TIMEOUTS,
        unusable: |text| duration(text, |nanos| nanos > -1_000_000),
        wanted: NOT_NEGATIVE,
        effect: NO_START,
    },
    ReadRule {
        names: CACHE_TIMEOUTS,
        unusable: |text| duration(text, |nanos| nanos > -1_000_000_000),
        wanted: NOT_NEGATIVE,
        effect: NO_START,
    },
    ReadRule {
        names: &["close-wait-timeout"],
        unusable: |text| duration(text, |nanos| nanos > -1_000_000_000),
        wanted: NOT_NEGATIVE,
        effect: NO_FIREWALL,
    },
];
const A_PORT: &str = "a port from 1 to 65535";
const NOT_NEGATIVE: &str = "a duration that is not negative";
/// The largest number of a user or group that the API server accepts.
const MAX_ID: i64 = i32::MAX as i64;

/// Adds the warnings about the annotations of a Pod that gets a proxy with these values.
pub(super) fn check(values: &ProxyValues, annotations: Annotations<'_>, warnings: &mut AuthorWarnings) {
    for rule in &RULES {
        for name in rule.names {
            if DEBUG.contains(name) && !annotations.is_debugged() {
                continue;
            }
            let of_annotation = annotations.get(name).map(|text| (format!("the annotation {PREFIX}{name}"), text));
            let of_document = || debug_value(values, name).map(|(key, text)| (format!("the value {key}"), text));
            let Some((source, text)) = of_annotation.or_else(of_document) else { continue };
            // An empty text counts as an absent one.
            let Some(part) = (rule.unusable)(text).filter(|_| !text.is_empty()) else { continue };
            let (part, wanted) = (shown(part), rule.wanted);
            match rule.effect {
                Effect::Is(effect) => {
                    warnings.add(format_args!("{source} has {part:?}, which is not {wanted}: {effect}"));
                }
                Effect::Rejected => {
                    warnings.add_rejection(format_args!("{source} has {part:?}, which is not {wanted}"));
                }
            }
        }
    }
    together(values, annotations, warnings);
    resources(values, annotations, warnings);
    if annotations.get("proxy-additional-env").is_some() {
        variables(&values.proxy.additional_env, warnings);
    }
}

/// Returns the value of the document in the place of an annotation for the debug container. No other container needs it,
/// so a document with a wrong one is in use.
fn debug_value<'a>(values: &'a ProxyValues, annotation: &str) -> Option<(&'static str, &'a str)> {
    let ImageValues { name, version, pull_policy } = &values.debug_container.image;
    Some(match annotation {
        DEBUG_NAME => ("debugContainer.image.name", name),
        DEBUG_VERSION if version.is_empty() => ("linkerdVersion", &values.linkerd_version),
        DEBUG_VERSION => ("debugContainer.image.version", version),
        DEBUG_PULL_POLICY => ("debugContainer.image.pullPolicy", pull_policy),
        _ => return None,
    })
}

/// Returns the ports of a proxy, with their names.
pub(super) fn ports(values: &ProxyValues) -> [(i32, &'static str); 4] {
    let ports = &values.proxy.ports;
    [(ports.admin, "admin"), (ports.control, "control"), (ports.inbound, "inbound"), (ports.outbound, "outbound")]
}

/// Checks values that must fit together.
fn together(values: &ProxyValues, annotations: Annotations<'_>, warnings: &mut AuthorWarnings) {
    let ports = ports(values);
    let is_annotated = ports.iter().any(|(_, name)| annotations.get(&format!("{name}-port")).is_some());
    let pairs = ports.iter().enumerate().flat_map(|(at, one)| ports.iter().skip(at + 1).map(move |other| (one, other)));
    for ((port, one), (_, other)) in pairs.filter(|((one, _), (other, _))| is_annotated && one == other) {
        warnings.add(format_args!("the {one} port and the {other} port of the proxy are both {port}: it cannot start"));
    }
    for (image, keys, is_added) in [
        (&values.proxy.image, ["proxy-image", "proxy-version"], true),
        (&values.debug_container.image, [DEBUG_NAME, DEBUG_VERSION], annotations.is_debugged()),
    ] {
        let version = values.version_of(image);
        let annotated = keys.into_iter().find(|key| annotations.get(key).is_some());
        if let Some(key) = annotated.filter(|_| is_added && !is_image(&image.name, version)) {
            let text = annotations.get(key).map(shown).unwrap_or_default();
            warnings.add(format_args!(
                "the annotation {PREFIX}{key} has {text:?}, which is not part of NAME@sha256:DIGITS: the image cannot be \
                 pulled"
            ));
        }
    }
    let has_both_rules = !values.disable_ipv6 && !values.cni_enabled;
    if has_both_rules && annotations.get("skip-subnets").is_some_and(|text| !text.is_empty()) {
        warnings.add(format_args!(
            "the annotation {PREFIX}skip-subnets requires the value disableIPv6, because linkerd-init passes the networks \
             to ip6tables, too: the firewall cannot be set up, so the Pod cannot start"
        ));
    }
    let policy = &values.proxy.default_inbound_policy;
    let needs_networks = policy == "audit" || policy.starts_with("cluster-");
    if needs_networks && values.cluster_networks.is_empty() && annotations.get("default-inbound-policy").is_some() {
        warnings.add(format_args!(
            "the annotation {PREFIX}default-inbound-policy has {policy:?}, which requires the value clusterNetworks: the \
             proxy cannot start"
        ));
    }
}

fn resources(values: &ProxyValues, annotations: Annotations<'_>, warnings: &mut AuthorWarnings) {
    let resources = &values.proxy.resources;
    for (name, ConstraintsValues { request, limit }) in
        [("cpu", &resources.cpu), ("memory", &resources.memory), ("ephemeral-storage", &resources.ephemeral_storage)]
    {
        let parsed = [("request", request), ("limit", limit)].map(|(kind, text)| {
            let key = format!("proxy-{name}-{kind}");
            let quantity = text.parse::<Quantity>().ok();
            let is_annotated = annotations.get(&key).is_some();
            if is_annotated && quantity.is_some_and(Quantity::is_negative) {
                warnings.add_rejection(format_args!(
                    "the annotation {PREFIX}{key} has {:?}, which is negative",
                    shown(text)
                ));
            }
            if let Some(doubt) = doubtful_quantity(name, text).filter(|_| is_annotated) {
                warnings.add(format_args!("the annotation {PREFIX}{key} has {:?}, which {doubt}", shown(text)));
            }
            (quantity, is_annotated)
        });
        let [(of_request, request_is_annotated), (of_limit, limit_is_annotated)] = parsed;
        if (request_is_annotated || limit_is_annotated)
            && of_request.zip(of_limit).is_some_and(|(request, limit)| request.may_exceed(limit))
        {
            warnings.add_rejection(format_args!(
                "the {name} request of the proxy, {}, exceeds its limit, {}",
                shown(request),
                shown(limit)
            ));
        }
    }
}

/// Checks what the API server requires of variables.
fn variables(variables: &[ProxyEnvVar], warnings: &mut AuthorWarnings) {
    let key = ADDITIONAL_ENV_ANNOTATION;
    for ProxyEnvVar { name, value, value_from } in variables {
        let name_is_valid = is_variable_name(name);
        let source = value_from.as_ref().map(|it| &it.0).filter(|it| !it.is_null());
        let name = shown(name);
        if !name_is_valid {
            warnings
                .add_rejection(format_args!("the annotation {key} has {name:?}, which is not the name of a variable"));
        } else if let Some(reason) = source.and_then(unusable_source) {
            warnings.add_rejection(format_args!(
                "the annotation {key} has no valid source of the variable {name:?}: {reason}"
            ));
        } else if source.is_some() && !value.is_empty() {
            warnings
                .add_rejection(format_args!("the annotation {key} has a value and a source of the variable {name:?}"));
        }
    }
}

fn unless(text: &str, is_usable: bool) -> Option<&str> {
    (!is_usable).then_some(text)
}

/// Returns the first unusable item of a comma-separated list.
fn item(list: &str, is_usable: impl Fn(&str) -> bool) -> Option<&str> {
    list.split(',').find(|item| !is_usable(item))
}

/// Returns the text of an unusable number. Another text has a warning already.
fn number(text: &str, is_usable: impl FnOnce(i64) -> bool) -> Option<&str> {
    text.parse().ok().filter(|number| !is_usable(*number)).map(|_| text)
}

fn port(text: &str) -> Option<&str> {
    text.parse::<i32>().ok().filter(|port| !(1..=65535).contains(port)).map(|_| text)
}

fn duration(text: &str, is_usable: impl FnOnce(i64) -> bool) -> Option<&str> {
    go::duration::parse(text).filter(|nanos| !is_usable(*nanos)).map(|_| text)
}

/// Returns the first directive with a mistake, if it is this one.
fn log_directive(filter: &str, wanted: DirectiveMistake) -> Option<&str> {
    log_filter::mistake(filter).filter(|(_, mistake)| *mistake == wanted).map(|(directive, _)| directive)
}

/// The proxy trims the items, and the ends of ranges.
fn is_port_of_proxy(item: &str) -> bool {
    let (low, high) = item.split_once('-').unwrap_or((item, item));
    item.trim().is_empty() || port_ranges::range(&format!("{}-{}", low.trim(), high.trim())).is_some()
}
