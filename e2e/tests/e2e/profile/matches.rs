//! Conditions of routes and of response classes, field by field.
//!
//! The API server accepts `not` in a request condition only within another condition, so most rows nest it.

use anyhow::{Context, Result};
use linkerd2_proxy_api::{
    destination::{HttpStatusRange, PathMatch, RequestMatch, ResponseMatch, request_match, response_match},
    http_types::{
        HttpMethod,
        http_method::{Registered, Type},
    },
};
use serde_json::{Value, json};

use crate::discovery::{Rig, objects::service};

fn request(condition: request_match::Match) -> RequestMatch {
    RequestMatch { r#match: Some(condition) }
}

fn all(matches: Vec<RequestMatch>) -> RequestMatch {
    request(request_match::Match::All(request_match::Seq { matches }))
}

fn any(matches: Vec<RequestMatch>) -> RequestMatch {
    request(request_match::Match::Any(request_match::Seq { matches }))
}

fn not(condition: RequestMatch) -> RequestMatch {
    request(request_match::Match::Not(Box::new(condition)))
}

fn path(regex: &str) -> RequestMatch {
    request(request_match::Match::Path(PathMatch { regex: regex.to_owned() }))
}

fn method(method: Registered) -> RequestMatch {
    request(request_match::Match::Method(HttpMethod { r#type: Some(Type::Registered(method.into())) }))
}

fn other_method(name: &str) -> RequestMatch {
    request(request_match::Match::Method(HttpMethod { r#type: Some(Type::Unregistered(name.to_owned())) }))
}

fn response(condition: response_match::Match) -> ResponseMatch {
    ResponseMatch { r#match: Some(condition) }
}

fn every(matches: Vec<ResponseMatch>) -> ResponseMatch {
    response(response_match::Match::All(response_match::Seq { matches }))
}

fn some(matches: Vec<ResponseMatch>) -> ResponseMatch {
    response(response_match::Match::Any(response_match::Seq { matches }))
}

fn no(condition: ResponseMatch) -> ResponseMatch {
    response(response_match::Match::Not(Box::new(condition)))
}

fn status(min: u32, max: u32) -> ResponseMatch {
    response(response_match::Match::Status(HttpStatusRange { min, max }))
}

/// Creates a profile with one route per row, and checks the received conditions.
async fn check(prefix: &str, rows: &[(Value, RequestMatch)]) -> Result<()> {
    let rig = Rig::start(prefix).await?;
    let route = |(condition, _): &(Value, RequestMatch)| json!({"name": "r", "condition": condition});
    let routes: Vec<Value> = rows.iter().map(route).collect();
    rig.put_all([service("web"), rig.profile("web", json!({ "routes": routes }))]).await?;
    let mut open = rig.open_service("web").await?;
    open.shows("all routes", |profile| profile.routes.len() == rows.len()).await?;
    for (route, (condition, expected)) in open.stream.last()?.routes.iter().zip(rows) {
        assert_eq!(route.condition.as_ref(), Some(expected), "{condition}");
    }
    Ok(())
}

#[tokio::test]
async fn every_form_of_a_request_condition_is_sent() -> Result<()> {
    let get = || method(Registered::Get);
    check(
        "shapes",
        &[
            (json!({"pathRegex": "/a/b/c"}), path("/a/b/c")),
            // A regular expression is sent unchanged, even if it is invalid.
            (json!({"pathRegex": " ^/(a$ "}), path(" ^/(a$ ")),
            (json!({"pathRegex": "", "method": "GET"}), get()),
            (json!({"method": "GET", "pathRegex": "/a"}), all(vec![get(), path("/a")])),
            (json!({"all": []}), all(vec![])),
            (json!({"any": []}), any(vec![])),
            (json!({"any": [], "all": []}), all(vec![all(vec![]), any(vec![])])),
            // A sequence with one element stays a sequence.
            (json!({"all": [{"method": "GET"}]}), all(vec![get()])),
            (json!({"any": [{"method": "GET"}]}), any(vec![get()])),
            (json!({"all": [{"all": [{"all": [{"pathRegex": "/a"}]}]}]}), all(vec![all(vec![all(vec![path("/a")])])])),
            (json!({"all": [{"method": "GET"}, {"pathRegex": "/a"}]}), all(vec![get(), path("/a")])),
            (json!({"all": [{"not": {"method": "GET"}}]}), all(vec![not(get())])),
            (
                json!({"all": [{"method": "GET"}, {"not": {"pathRegex": "/private/.*"}}]}),
                all(vec![get(), not(path("/private/.*"))]),
            ),
            (
                json!({"any": [{"not": {"not": {"pathRegex": "/a", "method": "GET"}}}]}),
                any(vec![not(not(all(vec![get(), path("/a")])))]),
            ),
            // Null means unset.
            (
                json!({"all": [{"all": null, "any": null, "not": null, "method": null, "pathRegex": "/a"}]}),
                all(vec![path("/a")]),
            ),
            // The order of the fields in the spec does not matter.
            (
                json!({"all": [{"pathRegex": "/a", "not": {"pathRegex": "/b"}, "method": "GET",
                    "any": [{"pathRegex": "/c"}], "all": [{"pathRegex": "/d"}]}]}),
                all(vec![all(vec![all(vec![path("/d")]), any(vec![path("/c")]), get(), not(path("/b")), path("/a")])]),
            ),
            (
                json!({"pathRegex": "/a", "any": [{"pathRegex": "/c"}], "all": [{"pathRegex": "/d"}]}),
                all(vec![all(vec![path("/d")]), any(vec![path("/c")]), path("/a")]),
            ),
        ],
    )
    .await
}

#[tokio::test]
async fn every_method_is_sent() -> Result<()> {
    use Registered::{Connect, Delete, Get, Head, Options, Patch, Post, Put, Trace};
    let known = [Get, Post, Put, Delete, Patch, Options, Connect, Head, Trace];
    let mut rows = Vec::new();
    for registered in known {
        rows.push((json!({"method": registered.as_str_name()}), method(registered)));
        rows.push((json!({"method": registered.as_str_name().to_lowercase()}), method(registered)));
    }
    for (text, expected) in [("PrOpFiNd", "PROPFIND"), ("get it", "GET IT"), (" GET", " GET"), ("M-SEARCH", "M-SEARCH")]
    {
        rows.push((json!({ "method": text }), other_method(expected)));
    }
    check("methods", &rows).await
}

#[tokio::test]
async fn every_form_of_a_response_condition_is_sent() -> Result<()> {
    let rig = Rig::start("responses").await?;
    let of = |min: i32, max: i32| json!({"status": {"min": min, "max": max}});
    let rows = [
        (of(200, 299), status(200, 299)),
        (of(100, 599), status(100, 599)),
        (of(404, 404), status(404, 404)),
        // Both bounds are optional.
        (json!({"status": {"min": 500}}), status(500, 0)),
        (json!({"status": {"max": 299}}), status(0, 299)),
        (json!({"status": {}}), status(0, 0)),
        (of(0, 0), status(0, 0)),
        (json!({"all": []}), every(vec![])),
        (json!({"any": []}), some(vec![])),
        (json!({"all": [of(200, 200)]}), every(vec![status(200, 200)])),
        (json!({"any": [of(500, 599), of(420, 420)]}), some(vec![status(500, 599), status(420, 420)])),
        (json!({"not": of(200, 299)}), no(status(200, 299))),
        (
            json!({"status": {"min": 400, "max": 499}, "not": {"status": {"min": 404}}}),
            every(vec![status(400, 499), no(status(404, 0))]),
        ),
        (
            json!({"not": of(404, 404), "status": {"min": 400}, "any": [of(401, 401)], "all": [of(402, 402)]}),
            every(vec![
                every(vec![status(402, 402)]),
                some(vec![status(401, 401)]),
                status(400, 0),
                no(status(404, 404)),
            ]),
        ),
        (json!({"all": [{"any": [{"not": of(200, 200)}]}]}), every(vec![some(vec![no(status(200, 200))])])),
    ];
    let class = |(row, (condition, _)): (usize, &(Value, ResponseMatch))| match row % 3 {
        0 => json!({"condition": condition, "isFailure": true}),
        1 => json!({"condition": condition, "isFailure": false}),
        _ => json!({ "condition": condition }),
    };
    let classes: Vec<Value> = rows.iter().enumerate().map(class).collect();
    let route = json!({"name": "r", "condition": {"method": "GET"}, "responseClasses": classes});
    rig.put_all([service("web"), rig.profile("web", json!({ "routes": [route] }))]).await?;
    let mut open = rig.open_service("web").await?;
    open.shows("the route", |profile| profile.routes.len() == 1).await?;
    let classes = &open.stream.last()?.routes.first().context("the route")?.response_classes;
    assert_eq!(classes.len(), rows.len());
    for (row, (class, (condition, expected))) in classes.iter().zip(&rows).enumerate() {
        assert_eq!((class.condition.as_ref(), class.is_failure), (Some(expected), row % 3 == 0), "{condition}");
    }
    Ok(())
}
