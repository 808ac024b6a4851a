//! Warns about valid ServiceProfiles that do not have the effect that their text suggests. Pure.
//!
//! In: a decoded ServiceProfile, and the domain of the cluster. Out: a sentence for each part that proxies ignore or read
//! in another way, and for a name that no client uses. The rules are those of linkerd2-proxy, which drops what it cannot
//! use without a signal to the author. Always holds: the work is bounded, whatever the profile contains; a text of the
//! profile is quoted and short.

use std::time::Duration;

use regex_syntax::ast::{AssertionKind, Ast};

use super::{
    decode::DecodedProfile,
    path_regex::{CompileBudget, PathRegex},
    rules::is_label,
};
use crate::{
    api::{RequestMatchSpec, ResponseMatchSpec, RetryBudgetSpec, RouteSpec},
    go,
    webhook::review::MAX_WARNINGS,
};

/// The longest regular expression that is checked, and the length of all together, in bytes. A class such as `\w` takes
/// some KiB while it is parsed.
const LONGEST_REGEX: usize = 1024;
const ALL_REGEXES: usize = 16 * 1024;
/// The longest text of the profile in a warning, in bytes: there is place for two and a sentence.
const QUOTED: usize = 40;
/// The ttl of a retry budget that proxies accept, and its largest ratio.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
const LARGEST_RATIO: f32 = 1000.0;
const MOST_RETRIES: u32 = i32::MAX.unsigned_abs();

/// Where proxies leave out a condition that they cannot use.
#[derive(Clone, Copy)]
struct ConditionPlace {
    list: EnclosingList,
    is_negated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EnclosingList {
    /// The condition is in no list. Without it, the route has no condition.
    Absent,
    All,
    Any,
}

/// Collects the warnings about one profile.
struct Warner {
    warnings: Vec<String>,
    /// How many bytes of regular expressions may still be checked.
    regex_bytes: usize,
    compile_budget: CompileBudget,
}

/// Returns the warnings about a profile. Without the domain of the cluster, every domain is accepted.
pub(super) fn warnings(profile: &DecodedProfile, cluster_domain: Option<&str>) -> Vec<String> {
    let mut warner =
        Warner { warnings: Vec::new(), regex_bytes: ALL_REGEXES, compile_budget: CompileBudget::default() };
    warner.name(profile, cluster_domain);
    if let Some(budget) = &profile.spec.retry_budget {
        warner.retry_budget(budget);
    }
    for authority in profile.spec.dst_overrides.iter().flatten().flatten() {
        let authority = authority.authority.as_deref().unwrap_or_default();
        if !is_authority(authority, cluster_domain) {
            let form = service_form(cluster_domain);
            warner.warn(format!(
                "dstOverrides: {} is not {form}[:PORT]: it has no endpoints for proxies, or they ignore it",
                quoted(authority)
            ));
        }
    }
    for route in profile.spec.routes.iter().flatten().flatten() {
        if warner.warnings.len() >= MAX_WARNINGS {
            break;
        }
        warner.route(route);
    }
    warner.warnings
}

// === impl Warner ===

impl Warner {
    fn warn(&mut self, warning: String) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning);
        }
    }

    fn name(&mut self, profile: &DecodedProfile, cluster_domain: Option<&str>) {
        let DecodedProfile { name, namespace, .. } = profile;
        match service(name, cluster_domain) {
            Some([_, of_service]) if !namespace.is_empty() && of_service != namespace => self.warn(format!(
                "the ServiceProfile is not in the namespace {of_service} of the Service: it applies only to clients in \
                 the namespace {namespace}"
            )),
            Some(_) => {}
            None => self.warn(format!(
                "the name {} is not {}: the ServiceProfile applies to no client",
                quoted(name),
                service_form(cluster_domain)
            )),
        }
    }

    fn retry_budget(&mut self, budget: &RetryBudgetSpec) {
        let ttl = budget.ttl.as_deref().unwrap_or_default();
        let duration = go::duration::parse(ttl).and_then(|nanoseconds| u64::try_from(nanoseconds).ok());
        let ratio = budget.retry_ratio.unwrap_or_default();
        let problem = if !duration.is_some_and(|duration| TTL.contains(&Duration::from_nanos(duration))) {
            format!("its ttl {} is not between 1s and 60s", quoted(ttl))
        } else if !(0.0..=LARGEST_RATIO).contains(&ratio) {
            format!("its retryRatio {ratio} is not between 0 and {LARGEST_RATIO}")
        } else if budget.min_retries_per_second.unwrap_or_default() > MOST_RETRIES {
            format!("its minRetriesPerSecond is greater than {MOST_RETRIES}")
        } else {
            return;
        };
        self.warn(format!("proxies ignore the retryBudget and retry nothing: {problem}"));
    }

    fn route(&mut self, route: &RouteSpec) {
        let name = quoted(route.name.as_deref().unwrap_or_default());
        if let Some(condition) = &route.condition {
            let place = ConditionPlace { list: EnclosingList::Absent, is_negated: false };
            self.request(condition, place, &name, route.is_retryable.unwrap_or_default());
        }
        let timeout = route.timeout.as_deref().unwrap_or_default();
        if go::duration::parse(timeout).is_some_and(|nanoseconds| nanoseconds < 0) {
            self.warn(format!("route {name}: proxies ignore its timeout {}: it is negative", quoted(timeout)));
        }
        let classes = route.response_classes.iter().flatten().flatten();
        if classes.filter_map(|class| class.condition.as_ref()).any(has_open_range) {
            self.warn(format!(
                "route {name}: proxies ignore a range of status codes in its responseClasses: it needs min and max"
            ));
        }
    }

    /// Checks a condition as proxies read it: one that they cannot use is left out of its list.
    fn request(&mut self, spec: &RequestMatchSpec, place: ConditionPlace, route: &str, is_retryable: bool) {
        if self.warnings.len() >= MAX_WARNINGS {
            return;
        }
        let RequestMatchSpec { all, any, method, not, path_regex } = spec;
        let (method, regex) = (method.as_deref().unwrap_or_default(), path_regex.as_deref().unwrap_or_default());
        let set = [all.is_some(), any.is_some(), not.is_some(), !method.is_empty(), !regex.is_empty()];
        // Several fields of a condition are a list of which all must match.
        let is_several = set.into_iter().filter(|is_set| *is_set).count() > 1;
        let place = if is_several { ConditionPlace { list: EnclosingList::All, ..place } } else { place };
        if http::Method::from_bytes(method.to_uppercase().as_bytes()).is_err() && !method.is_empty() {
            self.unusable(&format!("the method {} is not valid", quoted(method)), place, route, is_retryable);
        }
        if !regex.is_empty() && regex.len() <= LONGEST_REGEX.min(self.regex_bytes) {
            self.regex_bytes -= regex.len();
            match PathRegex::parse(regex) {
                Err(reason) => {
                    let problem = format!("the pathRegex {} is not valid: {reason}", quoted(regex));
                    self.unusable(&problem, place, route, is_retryable);
                }
                Ok(parsed) if parsed.is_too_large(&mut self.compile_budget) => {
                    let problem = format!("the pathRegex {} is too large: it needs more than 10 MiB", quoted(regex));
                    self.unusable(&problem, place, route, is_retryable);
                }
                Ok(PathRegex { ast: Ast::Alternation(ref of), .. }) if !of.asts.iter().all(is_anchored) => {
                    self.warn(format!(
                        "route {route}: the pathRegex {} is anchored at one end of each alternative only: write (…|…)",
                        quoted(regex)
                    ));
                }
                Ok(_) => {}
            }
        }
        for (list, matches) in [(EnclosingList::All, all), (EnclosingList::Any, any)] {
            for inner in matches.iter().flatten().flatten() {
                self.request(inner, ConditionPlace { list, ..place }, route, is_retryable);
            }
        }
        if let Some(not) = not {
            self.request(not, ConditionPlace { is_negated: !place.is_negated, ..place }, route, is_retryable);
        }
    }

    fn unusable(&mut self, problem: &str, place: ConditionPlace, route: &str, is_retryable: bool) {
        let matches_more = (place.list == EnclosingList::All) != place.is_negated;
        let effect = match place.list {
            EnclosingList::Absent => "proxies ignore the route".to_owned(),
            EnclosingList::All | EnclosingList::Any => {
                let effect = match (matches_more, is_retryable) {
                    (true, true) => "more requests, and they are retried",
                    (true, false) => "more requests",
                    (false, _) => "fewer requests",
                };
                format!("proxies ignore this condition, so the route matches {effect}")
            }
        };
        self.warn(format!("route {route}: {effect}: {problem}"));
    }
}

/// Whether an expression begins with `^` and ends with `$`.
fn is_anchored(expression: &Ast) -> bool {
    let Ast::Concat(parts) = expression else { return false };
    let is = |part: Option<&Ast>, kind: AssertionKind| matches!(part, Some(Ast::Assertion(it)) if it.kind == kind);
    is(parts.asts.first(), AssertionKind::StartLine) && is(parts.asts.last(), AssertionKind::EndLine)
}

/// Whether a match has a range of status codes without one of its ends. Proxies read it as a status code 0, and leave it
/// out.
fn has_open_range(spec: &ResponseMatchSpec) -> bool {
    let ResponseMatchSpec { all, any, status, not } = spec;
    let is_open = |end: Option<u32>| end.unwrap_or_default() == 0;
    status.is_some_and(|range| is_open(range.min) || is_open(range.max))
        || [all, any].into_iter().flatten().flatten().flatten().any(has_open_range)
        || not.as_deref().is_some_and(has_open_range)
}

/// Whether discovery has endpoints for the authority of an override: the name of a Service, or of one of its instances.
fn is_authority(authority: &str, cluster_domain: Option<&str>) -> bool {
    let (host, port) = authority.split_once(':').unwrap_or((authority, "80"));
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    let is_service = |name: &str| service(name, cluster_domain).is_some();
    let is_instance = || host.split_once('.').is_some_and(|(hostname, rest)| is_label(hostname) && is_service(rest));
    is_port && (is_service(host) || is_instance())
}

/// Returns the name and the namespace of a Service from its DNS name.
fn service<'a>(name: &'a str, cluster_domain: Option<&str>) -> Option<[&'a str; 2]> {
    let (service, rest) = name.split_once('.')?;
    let (namespace, rest) = rest.split_once('.')?;
    let domain = rest.strip_prefix("svc.")?;
    let is_domain = match cluster_domain {
        Some(cluster_domain) => domain == cluster_domain,
        None => domain.split('.').all(is_label),
    };
    (is_label(service) && is_label(namespace) && is_domain).then_some([service, namespace])
}

fn service_form(cluster_domain: Option<&str>) -> String {
    format!("SERVICE.NAMESPACE.svc.{}", cluster_domain.unwrap_or("DOMAIN"))
}

fn quoted(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars() {
        if short.len() >= QUOTED {
            short.push('…');
            break;
        }
        match c {
            '\'' => short.push(c),
            c => short.extend(c.escape_debug()),
        }
    }
    format!("\"{short}\"")
}

#[cfg(test)]
#[path = "warnings_tests.rs"]
mod tests;
