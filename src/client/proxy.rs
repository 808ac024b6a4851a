//! The proxy of a connection, chosen as Go's clients choose it.
//!
//! In: the variables HTTP_PROXY, HTTPS_PROXY and NO_PROXY, and the URL of an API server. Out: the URL of a proxy, if the
//! connection needs one. The rules are those of the documentation of golang.org/x/net/http/httpproxy.

use std::net::IpAddr;

use http::{Uri, uri::Authority};
use ipnet::IpNet;

use super::url;

/// The schemes that client-go accepts, too.
const SCHEMES: &[&str] = &["http", "https", "socks5"];

/// The proxies that the environment names. An empty variable counts as unset.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxyEnvironment {
    http: Option<ProxyVariable>,
    https: Option<ProxyVariable>,
    no_proxy: NoProxy,
}

#[derive(Clone, Debug)]
struct ProxyVariable {
    name: &'static str,
    value: String,
}

/// The hosts that are reached without a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NoProxy {
    All,
    Hosts(Vec<DirectHost>),
}

/// One entry of NO_PROXY. Without a port, it is valid for every port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DirectHost {
    Network(IpNet),
    Address {
        address: IpAddr,
        port: String,
    },
    Domain {
        /// The domain with a leading dot.
        suffix: String,
        /// Whether the domain itself is meant, too, and not only its subdomains.
        itself: bool,
        port: String,
    },
}

/// Parses the URL of a proxy.
///
/// # Errors
/// Fails if the proxy cannot be used. The error names the field, and never quotes the URL, which may have a password.
pub(super) fn parse(text: &str, field: &str) -> anyhow::Result<Uri> {
    let proxy = url::parse(text, field, SCHEMES)?;
    if proxy.scheme_str() != Some("socks5") {
        return Ok(proxy);
    }
    let authority = proxy.authority().map_or("", Authority::as_str);
    anyhow::ensure!(
        !authority.contains('@'),
        "{field} has a user, which is not supported for a SOCKS proxy: use a proxy without a user, or an HTTP proxy"
    );
    // kube would connect to port 80.
    match proxy.port_u16() {
        Some(_) => Ok(proxy),
        None => url::parse(&format!("socks5://{}:1080", authority.trim_end_matches(':')), field, SCHEMES),
    }
}

// === impl ProxyEnvironment ===

impl ProxyEnvironment {
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&'static str; 2]| {
            let mut values = names.into_iter().filter_map(|name| Some(ProxyVariable { name, value: variable(name)? }));
            values.find(|variable| !variable.value.is_empty())
        };
        let no_proxy = first(["NO_PROXY", "no_proxy"]).map(|variable| NoProxy::parse(&variable.value));
        Self {
            http: first(["HTTP_PROXY", "http_proxy"]),
            https: first(["HTTPS_PROXY", "https_proxy"]),
            no_proxy: no_proxy.unwrap_or_default(),
        }
    }

    /// Returns the proxy for connections to a server; `None` if it is reached directly.
    ///
    /// # Errors
    /// Fails if the proxy cannot be used. Go ignores such a variable; connecting directly would hide the mistake.
    pub(super) fn proxy_of(&self, server: &Uri) -> anyhow::Result<Option<Uri>> {
        let (variable, default_port) = match server.scheme_str() {
            Some("http") => (&self.http, 80),
            _ => (&self.https, 443),
        };
        let Some(ProxyVariable { name, value }) = variable else { return Ok(None) };
        let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        if self.no_proxy.has(host, server.port_u16().unwrap_or(default_port)) {
            return Ok(None);
        }
        let value = if value.contains("://") { value.clone() } else { format!("http://{value}") };
        parse(&value, &format!("the environment variable {name}")).map(Some)
    }
}

// === impl NoProxy ===

impl NoProxy {
    fn parse(text: &str) -> Self {
        let entries = text.split(',').map(|entry| entry.trim().to_lowercase());
        let entries: Vec<String> = entries.filter(|entry| !entry.is_empty()).collect();
        if entries.iter().any(|entry| entry == "*") {
            return Self::All;
        }
        Self::Hosts(entries.iter().filter_map(|entry| DirectHost::parse(entry)).collect())
    }

    /// Returns whether a host is reached directly. The local host always is.
    fn has(&self, host: &str, port: u16) -> bool {
        let host = host.to_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return true;
        }
        match self {
            Self::All => true,
            Self::Hosts(entries) => entries.iter().any(|entry| entry.is(&host, address, &port.to_string())),
        }
    }
}

impl Default for NoProxy {
    fn default() -> Self {
        Self::Hosts(Vec::new())
    }
}

// === impl DirectHost ===

impl DirectHost {
    /// `None` if the entry has no host, which Go ignores.
    fn parse(entry: &str) -> Option<Self> {
        if let Ok(network) = entry.parse::<IpNet>() {
            return Some(Self::Network(network));
        }
        let (host, port) = split_port(entry);
        let port = port.to_owned();
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address { address: address.to_canonical(), port });
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        match host.strip_prefix('.') {
            _ if host.is_empty() => None,
            Some(_) => Some(Self::Domain { suffix: host.to_owned(), itself: false, port }),
            None => Some(Self::Domain { suffix: format!(".{host}"), itself: true, port }),
        }
    }

    fn is(&self, host: &str, address: Option<IpAddr>, port: &str) -> bool {
        let has_port = |wanted: &str| wanted.is_empty() || wanted == port;
        match (self, address) {
            (Self::Network(network), Some(address)) => network.contains(&address),
            (Self::Address { address: wanted, port }, Some(address)) => *wanted == address && has_port(port),
            (Self::Domain { suffix, itself, port }, None) => {
                let is_itself = *itself && suffix.strip_prefix('.') == Some(host);
                (host.ends_with(suffix.as_str()) || is_itself) && has_port(port)
            }
            _ => false,
        }
    }
}

/// Splits `host:port` and `[address]:port`. What has more colons is an address without a port.
fn split_port(entry: &str) -> (&str, &str) {
    if let Some((address, port)) = entry.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        return (address, port);
    }
    match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, port),
        _ => (entry, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> ProxyEnvironment {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        ProxyEnvironment::read(value)
    }

    fn proxy(variables: &[(&str, &str)], server: &str) -> Result<Option<String>, String> {
        let proxy = environment(variables).proxy_of(&server.parse().unwrap());
        proxy.map(|proxy| proxy.map(|proxy| proxy.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_variable_of_the_scheme_names_the_proxy() {
        let variables = [("HTTPS_PROXY", "http://secure:3128"), ("http_proxy", "plain:8080")];
        assert_eq!(proxy(&variables, "https://east.example"), Ok(Some("http://secure:3128/".to_owned())));
        assert_eq!(proxy(&variables, "http://east.example"), Ok(Some("http://plain:8080/".to_owned())));
        assert_eq!(proxy(&[("HTTP_PROXY", "http://plain:8080")], "https://east.example"), Ok(None));
        let both = [("HTTPS_PROXY", ""), ("https_proxy", "https://lower:3128")];
        assert_eq!(proxy(&both, "https://east.example"), Ok(Some("https://lower:3128/".to_owned())));
        let socks = |value| proxy(&[("HTTPS_PROXY", value)], "https://east.example");
        assert_eq!(socks("socks5://proxy"), Ok(Some("socks5://proxy:1080/".to_owned())), "the port of SOCKS");
        assert_eq!(socks("socks5://proxy:9"), Ok(Some("socks5://proxy:9/".to_owned())));
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_refused_without_its_password() {
        for (value, reason) in [
            ("ftp://user:secret@proxy", "has the scheme \"ftp\": use http, https or socks5"),
            ("http://user:secret@", "is not a URL"),
            ("http://user:secret@proxy:99999", "has a port that is not a number from 1 to 65535"),
            ("socks5://user:secret@proxy", "has a user, which is not supported for a SOCKS proxy"),
        ] {
            let error = proxy(&[("HTTPS_PROXY", value)], "https://east.example").unwrap_err();
            assert!(error.starts_with(&format!("the environment variable HTTPS_PROXY {reason}")), "{value}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    /// The rules and examples of golang.org/x/net/http/httpproxy.
    #[test]
    fn no_proxy_names_the_hosts_that_are_reached_directly() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("", &["localhost:6443", "127.0.0.1", "127.9.9.9:1", "[::1]:6443"], &["10.0.0.1", "local"]),
            ("*", &["example.com", "10.0.0.1:6443"], &[]),
            ("foo, *", &["example.com"], &[]),
            ("example.com", &["example.com", "a.example.com", "a.b.example.com:8", "EXAMPLE.com"], &["badexample.com"]),
            (".example.com", &["a.example.com"], &["example.com", "badexample.com"]),
            ("*.example.com", &["a.example.com"], &["example.com"]),
            ("example.com:8443", &["example.com:8443", "a.example.com:8443"], &["example.com", "example.com:443"]),
            ("example.com:443", &["example.com", "example.com:443"], &["example.com:6443"]),
            ("10.0.0.1", &["10.0.0.1", "10.0.0.1:6443"], &["10.0.0.2", "a.10.0.0.1.example"]),
            ("10.0.0.1:6443", &["10.0.0.1:6443"], &["10.0.0.1", "10.0.0.1:443"]),
            ("10.1.2.3/8", &["10.255.0.1:6443"], &["11.0.0.1", "ten.example"]),
            ("fd00::/8, fe80::1", &["[fd12::1]:6443", "[fe80::1]"], &["[fc00::1]", "[fe80::2]"]),
            ("[fe80::1]:6443", &["[fe80::1]:6443"], &["[fe80::1]"]),
            (" a.example ,, b.example,", &["a.example", "b.example"], &["c.example"]),
            (":80, [, *", &["c.example"], &[]),
            (":80", &[], &["c.example", "c.example:80"]),
            ("svc,cluster.local,10.96.0.0/12", &["api.default.svc", "10.96.0.1", "x.cluster.local"], &["10.112.0.1"]),
        ];
        for (no_proxy, direct, proxied) in cases {
            let variables = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", *no_proxy)];
            for host in *direct {
                assert_eq!(proxy(&variables, &format!("https://{host}")), Ok(None), "{no_proxy:?} has {host}");
            }
            for host in *proxied {
                let found = proxy(&variables, &format!("https://{host}"));
                assert_eq!(found, Ok(Some("http://proxy:3128/".to_owned())), "{no_proxy:?} has not {host}");
            }
        }
    }
}
