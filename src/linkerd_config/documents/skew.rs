//! Compares the declared versions with the version of the control plane. Pure.
//!
//! In: the installer's document, which has the version of the control plane, and the declared document. Out: the
//! problems of a declaration that would certainly break Pods, and a warning for any other difference. Always holds: a
//! version that the resource does not declare, or that cannot be parsed, is never refused.

use serde_json::Value;

use crate::{
    api::linkerd_config::ConditionReason,
    linkerd_config::documents::overlay::proxy_version,
    values::{Document, EdgeRelease, LinkerdVersion, Path, Problem},
};

/// The first release whose injector applies `proxy.additionalEnv`, which the injection hash needs.
const OLDEST: (EdgeRelease, u16) = (EdgeRelease { year: 24, month: 2, number: 3 }, 15);
/// The first release whose linkerd-init container runs a program of the proxy image.
const INIT_IN_PROXY_IMAGE: (EdgeRelease, u16) = (EdgeRelease { year: 25, month: 11, number: 3 }, 20);

const PROXY_VERSION: [&str; 3] = ["proxy", "image", "version"];
const LINKERD_VERSION: [&str; 1] = ["linkerdVersion"];

/// The condition VersionSkew, which exists only while it is True.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSkew {
    pub reason: ConditionReason,
    pub message: String,
}

/// Returns why the operator does not support a Linkerd whose installer wrote this document.
pub fn unsupported_linkerd(installed: &Document) -> Option<String> {
    let tag = text(installed, &LINKERD_VERSION)?;
    let version = LinkerdVersion::parse(tag)?;
    (!version.includes(OLDEST.0, OLDEST.1)).then(|| {
        format!(
            "Linkerd {tag} is too old: its injector ignores proxy.additionalEnv, so the operator cannot recognize which \
             proxies have the configuration; upgrade Linkerd to edge-24.2.3 (2.15) or later"
        )
    })
}

/// Returns the declared versions with which injected Pods would not start.
pub fn problems(effective: &Document, installed: &Document) -> Vec<Problem> {
    let control_plane = text(installed, &LINKERD_VERSION);
    let is_declared = |keys: &[&str]| text(effective, keys).filter(|tag| text(installed, keys) != Some(tag));
    let mut found = Vec::new();
    for keys in [&LINKERD_VERSION[..], &PROXY_VERSION] {
        let Some(tag) = is_declared(keys) else { continue };
        let Some(version) = LinkerdVersion::parse(tag) else { continue };
        let reason = if !version.includes(OLDEST.0, OLDEST.1) {
            "it is older than edge-24.2.3 (2.15), the oldest version that is supported: remove or raise it".to_owned()
        } else if let Some(control_plane) = control_plane
            && lacks_init_program(effective, version, control_plane)
            && proxy_version(effective).as_deref() == Some(tag)
        {
            format!(
                "linkerd-init of the control plane ({control_plane}) runs a program that the proxy image has only since \
                 edge-25.11.3, so no injected Pod would start: remove or raise it"
            )
        } else {
            continue;
        };
        found.push(Problem { path: Path::from(keys), value: tag.to_owned(), reason });
    }
    found
}

/// Returns how the versions of a usable document differ from the version of the control plane.
pub fn version_skew(effective: &Document, installed: &Document) -> Option<VersionSkew> {
    let control_plane = text(installed, &LINKERD_VERSION)?;
    let mut found: Vec<(ConditionReason, String)> = Vec::new();
    if let Some(proxy) = proxy_version(effective)
        && let (Some(version), Some(wanted)) = (LinkerdVersion::parse(&proxy), LinkerdVersion::parse(control_plane))
    {
        if version.is_newer_than(wanted) {
            let message = format!(
                "new proxies get {proxy}, which is newer than the control plane ({control_plane}): upgrade the control plane first"
            );
            found.push((ConditionReason::ProxyNewer, message));
        } else if wanted.is_newer_than(version) {
            let support = match wanted.series().saturating_sub(version.series()) {
                0 | 1 => "",
                _ => ", more than the one stable release that Linkerd supports",
            };
            let message = format!(
                "new proxies get {proxy}, which is older than the control plane ({control_plane}){support}: raise or \
                 remove the declared proxy version"
            );
            found.push((ConditionReason::ProxyOlder, message));
        }
    }
    if let Some(declared) = text(effective, &LINKERD_VERSION).filter(|declared| *declared != control_plane) {
        let message = format!(
            "linkerdVersion is declared as {declared}, but the installer wrote {control_plane}: `linkerd version` and \
             `linkerd check` show the declared version; to set only the version of proxies, use spec.proxy.proxyVersion"
        );
        found.push((ConditionReason::VersionOverridden, message));
    }
    let reason = found.first()?.0;
    let message = found.into_iter().map(|(_, message)| message).collect::<Vec<_>>().join("; ");
    Some(VersionSkew { reason, message })
}

/// Whether linkerd-init would not find its program in the proxy image. Without linkerd-init, as with the CNI plugin,
/// nothing needs that program.
fn lacks_init_program(effective: &Document, proxy: LinkerdVersion, control_plane: &str) -> bool {
    let (edge, series) = INIT_IN_PROXY_IMAGE;
    let needs = LinkerdVersion::parse(control_plane).is_some_and(|version| version.includes(edge, series));
    let has_cni = effective.get(&Path::from(&["cniEnabled"][..])) == Some(&Value::Bool(true));
    needs && !has_cni && !proxy.includes(edge, series)
}

fn text<'a>(document: &'a Document, keys: &[&str]) -> Option<&'a str> {
    document.get(&Path::from(keys)).and_then(Value::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::parse(text).unwrap()
    }

    fn refused(installed: &str, effective: &str) -> Vec<String> {
        let problems = problems(&document(effective), &document(installed));
        problems.iter().map(|problem| format!("{} {}", problem.path, problem.value)).collect()
    }

    fn reason(installed: &str, effective: &str) -> Option<&'static str> {
        version_skew(&document(effective), &document(installed)).map(|skew| skew.reason.as_str())
    }

    const INSTALLED: &str = "linkerdVersion: edge-26.8.3";

    #[test]
    fn a_version_of_2020_is_refused_where_it_is_declared() {
        let both = "{linkerdVersion: edge-19.12.3, proxy: {image: {version: edge-19.12.3}}}";
        assert_eq!(refused(INSTALLED, both), ["linkerdVersion edge-19.12.3", "proxy.image.version edge-19.12.3"]);
        assert_eq!(refused(both, both), [""; 0], "the installer's choice is not refused");
        assert_eq!(refused(INSTALLED, INSTALLED), [""; 0]);
    }

    #[test]
    fn a_proxy_without_the_program_of_linkerd_init_is_refused() {
        let with =
            |version: &str, more: &str| format!("{{{INSTALLED}, proxy: {{image: {{version: {version}}}}}{more}}}");
        assert_eq!(refused(INSTALLED, &with("edge-25.11.2", "")), ["proxy.image.version edge-25.11.2"]);
        assert_eq!(refused(INSTALLED, &with("enterprise-2.19.3", "")), ["proxy.image.version enterprise-2.19.3"]);
        for fine in [
            with("edge-25.11.3", ""),
            with("edge-25.11.2", ", cniEnabled: true"),
            with("our-build", ""),
            with("enterprise-2.20.0", ""),
        ] {
            assert_eq!(refused(INSTALLED, &fine), [""; 0], "{fine}");
        }
        let older = "{linkerdVersion: edge-25.11.2, proxy: {image: {version: edge-24.8.2}}}";
        assert_eq!(refused("linkerdVersion: edge-25.11.2", older), [""; 0], "its linkerd-init has its own image");
    }

    #[test]
    fn other_differences_are_flagged() {
        let pinned = |version: &str| format!("{{{INSTALLED}, proxy: {{image: {{version: {version}}}}}}}");
        assert_eq!(reason(INSTALLED, INSTALLED), None);
        assert_eq!(reason(INSTALLED, &pinned("edge-26.8.3")), None);
        assert_eq!(reason(INSTALLED, &pinned("our-build")), None);
        assert_eq!(reason(INSTALLED, &pinned("edge-26.9.1")), Some("ProxyNewer"));
        assert_eq!(reason(INSTALLED, &pinned("edge-26.8.2")), Some("ProxyOlder"));
        assert_eq!(reason(INSTALLED, "linkerdVersion: our-build"), Some("VersionOverridden"));
        let far = version_skew(&document(&pinned("edge-25.4.4")), &document(INSTALLED)).unwrap().message;
        assert!(far.contains("more than the one stable release"), "{far}");
        let both = version_skew(&document("linkerdVersion: edge-26.9.1"), &document(INSTALLED)).unwrap();
        assert_eq!(both.reason.as_str(), "ProxyNewer");
        assert!(both.message.contains("linkerdVersion is declared as edge-26.9.1"), "{}", both.message);
    }

    #[test]
    fn linkerd_before_edge_24_2_3_is_not_supported() {
        let is_supported =
            |version: &str| unsupported_linkerd(&document(&format!("linkerdVersion: {version}"))).is_none();
        for version in ["edge-24.2.3", "edge-26.8.3", "enterprise-2.15.0", "our-build"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["stable-2.14.10", "edge-24.2.2", "2.9.0"] {
            assert!(!is_supported(version), "{version}");
        }
        assert_eq!(unsupported_linkerd(&document("proxy: {}")), None);
    }
}
