//! What a `GetProfile` stream has told so far, and how it is printed.
//!
//! * In: messages of the stream, each of which replaces the one before. Out: those that differ, as text.
//! * Always: a single profile is the document of `linkerd diagnostics profile`.

use serde::Serialize;
use tonic::{Status, Streaming};

use super::{connect::Destination, go, streams::Told};
use crate::proto::destination::{DestinationProfile, GetDestination};

/// The profile of one authority; without a port that its Service has, it is empty.
#[derive(Debug, Default)]
pub(super) struct Profile {
    /// Since the first message.
    known: Option<DestinationProfile>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Changed {
    profile: go::Value,
}

// === impl Profile ===

impl Profile {
    /// One document, over several lines.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let document = serde_json::to_string_pretty(&self.known.as_ref().map(go::profile))?;
        Ok(format!("{}\n", go::escaped(&document)))
    }
}

impl Told for Profile {
    type Message = DestinationProfile;
    type Change = Changed;
    const IN_PARTS: bool = false;

    async fn open(destination: &Destination, request: GetDestination) -> Result<Streaming<Self::Message>, Status> {
        destination.get_profile(request).await
    }

    /// Each message is the whole.
    fn reopen(&mut self) {}

    fn apply(&mut self, profile: DestinationProfile) -> Option<Changed> {
        if self.known.as_ref() == Some(&profile) {
            return None;
        }
        Some(Changed { profile: go::profile(self.known.insert(profile)) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        cli::print,
        proto::destination::{PathMatch, RequestMatch, Route, request_match::Match},
    };

    fn named(name: &str) -> DestinationProfile {
        DestinationProfile { fully_qualified_name: name.to_owned(), ..DestinationProfile::default() }
    }

    fn told(message: DestinationProfile) -> Profile {
        Profile { known: Some(message) }
    }

    #[test]
    fn only_a_message_that_differs_is_a_change_also_on_another_stream() {
        let mut profile = Profile::default();
        let changed = |message: &DestinationProfile| Some(Changed { profile: go::profile(message) });
        let empty = DestinationProfile::default();
        assert_eq!(profile.apply(empty.clone()), changed(&empty), "also a profile without anything");
        assert_eq!(profile.apply(named("web")), changed(&named("web")));
        assert_eq!(profile.apply(named("web")), None);
        profile.reopen();
        assert_eq!(profile.apply(named("web")), None);
        assert_eq!(profile.apply(empty.clone()), changed(&empty));
    }

    #[test]
    fn the_profile_of_a_port_that_a_service_does_not_have_is_an_empty_document() {
        assert_eq!(told(DestinationProfile::default()).json().unwrap(), "{}\n");
    }

    #[test]
    fn a_regular_expression_is_escaped_as_go_escapes_it() {
        let path = Match::Path(PathMatch { regex: "/(?P<id>.*)&".to_owned() });
        let condition = Some(RequestMatch { r#match: Some(path) });
        let routes = vec![Route { condition, ..Route::default() }];
        let text = told(DestinationProfile { routes, ..DestinationProfile::default() }).json().unwrap();
        assert!(text.contains(r#""regex": "/(?P\u003cid\u003e.*)\u0026""#), "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["routes"][0]["condition"]["Match"]["Path"]["regex"], "/(?P<id>.*)&");
    }

    #[test]
    fn a_change_is_one_line_with_what_it_is_about() {
        let change = Profile::default().apply(named("web")).unwrap();
        let line = print::json_line("2026-11-21T10:00:00.0005Z".parse().unwrap(), "web.prod:80", &change).unwrap();
        let expected =
            r#"{"time":"2026-11-21T10:00:00.000Z","authority":"web.prod:80","profile":{"fully_qualified_name":"web"}}"#;
        assert_eq!(line, format!("{expected}\n"));
    }
}
