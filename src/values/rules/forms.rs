//! The required forms of texts, each as the program that reads the text parses it. Pure.
//!
//! In: one text, of the document or of an annotation. Out: what it must be, if it is not. Always holds: an empty text
//! counts as absent, except for [`Form::OneOfExactly`].

use std::net::SocketAddr;

use ipnet::IpNet;
use rustls::pki_types::DnsName;

use crate::{
    api::is_dns_name,
    go::{self, scalar::resolve},
    text::log_filter::{self, DirectiveMistake},
};

/// The longest tag of an image.
const LONGEST_TAG: usize = 128;
/// The longest path of an image, without the registry.
const LONGEST_IMAGE_PATH: usize = 255;
/// The end of the name of an image whose version has the digits of the digest.
const DIGEST: &str = "@sha256";

/// The required form of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    OneOf(&'static [&'static str]),
    /// One of these words. The template compares the string even if it is empty.
    OneOfExactly(&'static [&'static str]),
    /// One of these words, in any case.
    OneOfInAnyCase(&'static [&'static str]),
    /// A duration as the proxy parses it: a whole number and a unit.
    ProxyDuration,
    GoDuration,
    /// Ports and port ranges, separated by commas, which the proxy trims.
    ProxyPorts,
    /// Ports and port ranges, separated by commas, which linkerd-init does not trim: it ignores a port with a space.
    InitPorts,
    /// The same list. If linkerd-init ignores all of its items, it calls iptables with no port, and that fails.
    AnyInitPort,
    /// Networks that Linkerd's template splits. It does not trim them.
    TemplateNetworks,
    /// Networks that linkerd-init splits and trims. It does not start with an empty one, nor with one of IPv6: it calls
    /// iptables with all of them.
    InitNetworks,
    /// No network, because linkerd-init calls both iptables and ip6tables with all of them. Each fails with a network
    /// of the other one: <https://github.com/linkerd/linkerd2-proxy-init/pull/696>.
    NoNetworks,
    /// The reference of an image without its tag or the digits of its digest.
    ImageName,
    /// The tag of an image, or the digits of its digest.
    ImageVersion,
    /// A name from which others are made: `linkerd-identity.linkerd.svc.NAME.`.
    DnsName,
    /// An IP address and a port.
    Address,
    /// A filter of the proxy's log.
    LogFilter,
    /// A string that a template renders without quotes, where `off` is a bool.
    Unquoted,
}

// === impl Form ===

impl Form {
    /// Returns the requirement that the text violates; `None` if it has the form.
    pub(crate) fn violation(self, text: &str) -> Option<String> {
        if text.is_empty() && !matches!(self, Self::OneOfExactly(_)) {
            return None;
        }
        let one_of = |words: &[&str]| format!("one of {}", words.join(", "));
        let (fits, wanted) = match self {
            Self::OneOf(words) | Self::OneOfExactly(words) => (words.contains(&text), one_of(words)),
            Self::OneOfInAnyCase(words) => (words.iter().any(|word| word.eq_ignore_ascii_case(text)), one_of(words)),
            Self::ProxyDuration => {
                (is_proxy_duration(text), "a whole number and a unit, such as 100ms, 5s or 1h".to_owned())
            }
            Self::GoDuration => (go::duration::parse(text).is_some(), "a duration, such as 20s or 24h0m0s".to_owned()),
            Self::ProxyPorts => {
                let mut items = text.split(',').map(str::trim);
                (items.all(is_ports), "a comma-separated list of ports and port ranges".to_owned())
            }
            Self::InitPorts => (
                text.split(',').all(is_ports),
                "a comma-separated list of ports and port ranges without spaces: linkerd-init ignores any other item"
                    .to_owned(),
            ),
            Self::AnyInitPort => {
                (has_init_port(text), "a list with a port, without spaces: otherwise linkerd-init fails".to_owned())
            }
            Self::TemplateNetworks => (
                text.trim_matches(',').split(',').all(is_network),
                "a comma-separated list of networks such as 10.0.0.0/8".to_owned(),
            ),
            Self::InitNetworks => (
                text.split(',').map(str::trim).all(is_ipv4_network),
                "a comma-separated list of IPv4 networks such as 10.0.0.0/8".to_owned(),
            ),
            Self::NoNetworks => {
                (false, "empty, unless disableIPv6 is true: linkerd-init fails with any network".to_owned())
            }
            Self::ImageName => (
                is_image_name(text),
                "the reference of an image without its tag, such as cr.l5d.io/linkerd/proxy".to_owned(),
            ),
            Self::ImageVersion => (is_image_version(text), "the tag of an image".to_owned()),
            Self::DnsName => (is_dns_name(text), "a DNS name without a dot at its end".to_owned()),
            Self::Address => {
                (text.parse::<SocketAddr>().is_ok(), "an IP address and a port, such as 0.0.0.0:4140".to_owned())
            }
            Self::LogFilter => {
                let mistake = log_filter::mistake(text).map(|(_, mistake)| mistake);
                let effect = match mistake {
                    Some(DirectiveMistake::NoModule) => {
                        "the proxy takes any other word for the name of a module, and logs nothing else without a level"
                    }
                    Some(DirectiveMistake::Unreadable) | None => "the proxy ignores a directive that it cannot parse",
                };
                (mistake.is_none(), format!("a filter such as warn,linkerd=info ({effect})"))
            }
            Self::Unquoted => {
                let fits = resolve(text).is_some_and(|value| value.is_string()) && !text.chars().any(char::is_control);
                (fits, "a string that YAML does not parse as another type".to_owned())
            }
        };
        (!fits).then(|| format!("must be {wanted}"))
    }
}

/// `^\s*(\d+)(ms|s|m|h|d)?\s*$`; only 0 may lack a unit.
fn is_proxy_duration(text: &str) -> bool {
    let text = text.trim();
    let (number, unit) =
        text.split_at_checked(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())).unwrap_or_default();
    match (number.parse::<u64>(), unit) {
        (Ok(number), "") => number == 0,
        (Ok(_), unit) => ["ms", "s", "m", "h", "d"].contains(&unit),
        (Err(_), _) => false,
    }
}

/// Whether an item is a port or a port range. An empty item is ignored.
fn is_ports(item: &str) -> bool {
    let port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok())?;
    let (low, high) = item.split_once('-').unwrap_or((item, item));
    item.is_empty() || port(low).zip(port(high)).is_some_and(|(low, high)| low <= high)
}

/// Whether linkerd-init finds a port in a list. It reads the list as CSV, in which items may have quotation marks.
pub(crate) fn has_init_port(list: &str) -> bool {
    list.split(',').map(|item| item.trim_matches('"')).any(|item| !item.is_empty() && is_ports(item))
}

/// Whether Go parses the text as a network. `IpNet` itself would also accept octets with leading zeros, which Go
/// rejects.
pub(crate) fn is_network(item: &str) -> bool {
    let network = |(address, length): (&str, &str)| IpNet::new(address.parse().ok()?, length.parse().ok()?).ok();
    !item.contains('+') && item.split_once('/').and_then(network).is_some()
}

/// Whether Go parses the text as a network, and iptables, too.
pub(crate) fn is_ipv4_network(item: &str) -> bool {
    is_network(item) && !item.contains(':')
}

/// Whether the proxy parses the text as the address of a server: a host and a port.
pub(super) fn is_host_and_port(text: &str) -> bool {
    let is_named = |(host, port): (&str, &str)| {
        DnsName::try_from(host).is_ok() && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
    };
    text.parse::<SocketAddr>().is_ok() || text.rsplit_once(':').is_some_and(is_named)
}

/// Whether a text is `[REGISTRY/]PATH`. After `@sha256` at its end, the version is the digest; a tag may be before it.
fn is_image_name(text: &str) -> bool {
    let name = match text.strip_suffix(DIGEST) {
        Some(name) => name.rsplit_once(':').filter(|(_, tag)| !tag.contains(['/', ']'])).map_or(name, |(name, _)| name),
        None => text,
    };
    let is_registry = |host: &str| {
        host == "localhost" || host.contains(['.', ':']) || host.bytes().any(|byte| byte.is_ascii_uppercase())
    };
    let (registry, path) = match name.split_once('/') {
        Some((host, path)) if is_registry(host) => (Some(host), path),
        _ => (None, name),
    };
    // A registry may be an IPv6 address.
    registry.is_none_or(|host| host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c)))
        && path.len() <= LONGEST_IMAGE_PATH
        && path.split('/').all(is_image_component)
}

/// Whether the name and the version of an image make a reference, if each of them is valid: a name that ends with the
/// algorithm of a digest needs the digits.
pub(crate) fn is_image(name: &str, version: &str) -> bool {
    !name.ends_with(DIGEST) || is_sha256(version)
}

fn is_image_component(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(is_plain) && text.ends_with(is_plain) && text.chars().all(|c| is_plain(c) || "._-".contains(c))
}

/// Whether a text is a tag, with or without a digest.
fn is_image_version(text: &str) -> bool {
    let (tag, digest) = text.split_once('@').map_or((text, None), |(tag, digest)| (tag, Some(digest)));
    let is_of_tag = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let is_tag =
        tag.len() <= LONGEST_TAG && !tag.is_empty() && !tag.starts_with(['.', '-']) && tag.chars().all(is_of_tag);
    is_tag && digest.is_none_or(|digest| digest.strip_prefix("sha256:").is_some_and(is_sha256))
}

fn is_sha256(digits: &str) -> bool {
    digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of linkerd-init were observed by running it.
    #[test]
    fn each_list_is_split_as_its_reader_splits_it() {
        let fits = |form: Form, text: &str| form.violation(text).is_none();
        for (text, of_proxy, of_init) in [
            ("443,8443", true, true),
            ("443, 8443", true, false),
            (" 443", true, false),
            ("443 ", true, false),
            ("100-200,5", true, true),
            ("443,,8443,", true, true),
            ("443, ", true, false),
            ("443,[8443]", false, false),
            ("mysql", false, false),
            ("9-8", false, false),
            ("65536", false, false),
        ] {
            assert_eq!((fits(Form::ProxyPorts, text), fits(Form::InitPorts, text)), (of_proxy, of_init), "{text:?}");
        }
        for (text, starts) in [
            ("443", true),
            ("mysql,443", true),
            ("\"443\"", true),
            ("100-200, 5", true),
            ("mysql", false),
            (" 443", false),
            (",", false),
            ("9-8,65536", false),
        ] {
            assert_eq!(fits(Form::AnyInitPort, text), starts, "{text:?}");
        }
        for (text, of_template, of_init) in [
            ("10.0.0.0/8,192.168.0.0/16", true, true),
            ("10.0.0.0/8,fd00::/8", true, false),
            ("::ffff:10.0.0.0/104", true, false),
            ("10.0.0.0/8, 192.168.0.0/16", false, true),
            ("10.0.0.0/8 ", false, true),
            ("10.0.0.0/8,", true, false),
            ("10.0.0.1", false, false),
            ("10.0.0.0/33", false, false),
        ] {
            let seen = (fits(Form::TemplateNetworks, text), fits(Form::InitNetworks, text));
            assert_eq!(seen, (of_template, of_init), "{text:?}");
        }
    }

    #[test]
    fn a_filter_of_the_log_is_parsed_as_the_proxy_parses_it() {
        let fits = |text: &str| Form::LogFilter.violation(text).is_none();
        for text in [
            "warn,linkerd=info",
            "off",
            "debug",
            "warn,linkerd=info,hickory=error",
            "linkerd_app[{a=1}]=debug",
            // The value of a field is no regular expression.
            "linkerd_app[{a=(}]=debug",
        ] {
            assert!(fits(text), "{text}");
        }
        for text in ["warn,linkerd=inf", "warn,linkerd=inf o", "a=b=c"] {
            let violation = Form::LogFilter.violation(text).unwrap();
            assert!(violation.ends_with("(the proxy ignores a directive that it cannot parse)"), "{text}: {violation}");
        }
        for text in ["verbose", "warn;linkerd=debug", "warn, info"] {
            let violation = Form::LogFilter.violation(text).unwrap();
            assert!(violation.contains("takes any other word for the name of a module"), "{text}: {violation}");
        }
    }

    #[test]
    fn the_name_and_the_version_of_an_image_make_a_reference() {
        for (text, fits) in [
            ("cr.l5d.io/linkerd/proxy", true),
            ("[fd00::1]:5000/proxy@sha256", true),
            ("Registry.example:5000/a/b_c-d.e", true),
            ("localhost/proxy", true),
            ("proxy", true),
            ("cr.l5d.io/linkerd/proxy:edge-26.8.3@sha256", true),
            (&*format!("registry.example/{}", "a".repeat(255)), true),
            (&*format!("registry.example/{}", "a".repeat(256)), false),
            (&*format!("{}b", "a/".repeat(200)), false),
            ("https://cr.l5d.io/linkerd/proxy", false),
            ("cr.l5d.io/Linkerd/proxy", false),
            ("cr.l5d.io//proxy", false),
            ("cr.l5d.io/linkerd/proxy/", false),
            ("cr.l5d.io/linkerd/proxy:edge-26.8.3", false),
            (" proxy", false),
            ("pröxy", false),
        ] {
            assert_eq!(Form::ImageName.violation(text).is_none(), fits, "{text:?}");
        }
        let digest = "0123456789abcdef".repeat(4);
        for (text, fits) in [
            ("edge-26.8.3", true),
            ("_a", true),
            (&*digest, true),
            (&*format!("edge-26.8.3@sha256:{digest}"), true),
            (&*"a".repeat(128), true),
            (&*"a".repeat(129), false),
            ("edge-26.8.3@sha256:abc", false),
            ("a:b", false),
            ("a/b", false),
            ("-a", false),
            ("{{ .Values.x }}", false),
            ("${VERSION}", false),
        ] {
            assert_eq!(Form::ImageVersion.violation(text).is_none(), fits, "{text:?}");
        }
        for (name, version, fits) in [
            ("proxy", "edge-26.8.3", true),
            ("proxy@sha256", &digest, true),
            ("proxy@sha256", "edge-26.8.3", false),
            ("proxy@sha256", "", false),
        ] {
            assert_eq!(is_image(name, version), fits, "{name:?} {version:?}");
        }
    }
}
