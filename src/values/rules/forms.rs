//! The required forms of texts, each as the program that reads the text parses it. Pure.
//!
//! In: one text, of the document or of an annotation. Out: what it must be, if it is not. Always holds: an empty text
//! counts as absent, except for [`Form::OneOfExactly`].

use ipnet::IpNet;
use tracing_subscriber::EnvFilter;

use super::super::scalar::resolve;
use crate::api::go_duration;

/// The longest filter of logs that is checked, in bytes. The time to parse one grows with the square of its length.
pub(crate) const LONGEST_LOG_FILTER: usize = 4 << 10;

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
    /// Networks that Linkerd's template splits. It does not trim them.
    TemplateNetworks,
    /// Networks that linkerd-init splits and trims. It does not start with an empty one.
    InitNetworks,
    /// A part of the reference of an image.
    Image,
    /// A filter of the proxy's log. The proxy ignores a directive that it cannot parse.
    LogFilter,
    /// A string that a template renders without quotes, where `off` is a bool.
    Unquoted,
}

// === impl Form ===

impl Form {
    /// Returns what the text must be, unless it is.
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
            Self::GoDuration => (go_duration::parse(text).is_some(), "a duration, such as 20s or 24h0m0s".to_owned()),
            Self::ProxyPorts => {
                let mut items = text.split(',').map(str::trim);
                (items.all(is_ports), "a comma-separated list of ports and port ranges".to_owned())
            }
            Self::InitPorts => (
                text.split(',').all(is_ports),
                "a comma-separated list of ports and port ranges without spaces: linkerd-init ignores any other item"
                    .to_owned(),
            ),
            Self::TemplateNetworks => (
                text.trim_matches(',').split(',').all(is_network),
                "a comma-separated list of networks such as 10.0.0.0/8".to_owned(),
            ),
            Self::InitNetworks => (
                text.split(',').map(str::trim).all(is_network),
                "a comma-separated list of networks such as 10.0.0.0/8".to_owned(),
            ),
            Self::Image => (text.chars().all(is_of_image), "a part of the reference of an image".to_owned()),
            Self::LogFilter => (
                text.len() > LONGEST_LOG_FILTER || EnvFilter::builder().parse(text).is_ok(),
                "a filter such as warn,linkerd=info: the proxy ignores a directive that it cannot parse".to_owned(),
            ),
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

/// Whether Go parses the text as a network. `IpNet` itself would also accept octets with leading zeros, which Go
/// rejects.
pub(crate) fn is_network(item: &str) -> bool {
    let network = |(address, length): (&str, &str)| IpNet::new(address.parse().ok()?, length.parse().ok()?).ok();
    !item.contains('+') && item.split_once('/').and_then(network).is_some()
}

/// Whether a character may be in the reference of an image. A registry may be an IPv6 address.
fn is_of_image(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-/:@[]".contains(c)
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
        for (text, of_template, of_init) in [
            ("10.0.0.0/8,192.168.0.0/16", true, true),
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
        for text in ["warn,linkerd=info", "off", "debug", "warn,linkerd=info,hickory=error", "linkerd_app[{a=1}]=debug"]
        {
            assert!(fits(text), "{text}");
        }
        for text in ["warn,linkerd=inf", "warn,linkerd=inf o", "a=b=c"] {
            assert!(!fits(text), "{text}");
        }
    }

    #[test]
    fn a_reference_of_an_image_has_only_the_characters_of_one() {
        for (text, fits) in [
            ("cr.l5d.io/linkerd/proxy", true),
            ("[fd00::1]:5000/proxy@sha256", true),
            ("edge-26.8.3", true),
            ("{{ .Values.x }}", false),
            ("${VERSION}", false),
            (" proxy", false),
            ("pröxy", false),
        ] {
            assert_eq!(Form::Image.violation(text).is_none(), fits, "{text:?}");
        }
    }
}
