//! Routes, the retry budget and the overrides of profiles.

use std::collections::HashMap;

use anyhow::Result;
use linkerd2_proxy_api::{
    destination::{
        DestinationProfile, HttpStatusRange, PathMatch, RequestMatch, ResponseClass, ResponseMatch, RetryBudget, Route,
        WeightedDst,
        request_match::{Match as RequestOf, Seq as RequestSeq},
        response_match::{Match as ResponseOf, Seq as ResponseSeq},
    },
    http_types::{HttpMethod, http_method::Type},
    meta::{Metadata, Resource, metadata::Kind},
};
use serde_json::{Value, json};

use super::{default_budget, routes};
use crate::discovery::{Rig, objects::service};

fn duration(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}

#[tokio::test]
async fn a_profile_with_two_routes_is_sent_with_all_fields() -> Result<()> {
    let rig = Rig::start("whole").await?;
    let spec = json!({
        "routes": [
            {"name": "route1", "isRetryable": false, "timeout": "200ms",
                "condition": {"all": [{"method": "GET"}, {"not": {"pathRegex": "/private/.*"}}]},
                "responseClasses": [{"condition": {"status": {"min": 500, "max": 599}}, "isFailure": true}]},
            {"name": "", "isRetryable": true, "condition": {"pathRegex": "/b"},
                "responseClasses": [{"isFailure": true, "condition":
                    {"any": [{"status": {"min": 500, "max": 599}}, {"status": {"min": 420, "max": 420}}]}}]},
        ],
        "dstOverrides": [{"authority": "web-v2", "weight": 1}],
        "retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": "1m"},
    });
    rig.put_all([service("web"), rig.profile("web", spec)]).await?;

    let request = |condition| RequestMatch { r#match: Some(condition) };
    let path = |regex: &str| request(RequestOf::Path(PathMatch { regex: regex.to_owned() }));
    let get = request(RequestOf::Method(HttpMethod { r#type: Some(Type::Registered(0)) }));
    let not_private = request(RequestOf::Not(Box::new(path("/private/.*"))));
    let response = |condition| Some(ResponseMatch { r#match: Some(condition) });
    let status = |min, max| ResponseOf::Status(HttpStatusRange { min, max });
    let failures = [status(500, 599), status(420, 420)].map(|status| ResponseMatch { r#match: Some(status) });
    let label = |name: &str| HashMap::from([("route".to_owned(), name.to_owned())]);
    let resource = |resource| Some(Metadata { kind: Some(Kind::Resource(resource)) });
    let expected = DestinationProfile {
        fully_qualified_name: rig.full_name("web"),
        opaque_protocol: false,
        routes: vec![
            Route {
                condition: Some(request(RequestOf::All(RequestSeq { matches: vec![get, not_private] }))),
                response_classes: vec![ResponseClass { condition: response(status(500, 599)), is_failure: true }],
                metrics_labels: label("route1"),
                is_retryable: false,
                timeout: duration(0, 200_000_000),
            },
            Route {
                condition: Some(path("/b")),
                response_classes: vec![ResponseClass {
                    condition: response(ResponseOf::Any(ResponseSeq { matches: failures.into() })),
                    is_failure: true,
                }],
                metrics_labels: label(""),
                is_retryable: true,
                timeout: None,
            },
        ],
        retry_budget: Some(RetryBudget { retry_ratio: 0.5, min_retries_per_second: 3, ttl: duration(60, 0) }),
        dst_overrides: vec![WeightedDst { authority: "web-v2:80".to_owned(), weight: 10_000, backend_ref: None }],
        endpoint: None,
        parent_ref: resource(Resource {
            group: "core".to_owned(),
            kind: "Service".to_owned(),
            name: "web".to_owned(),
            namespace: rig.name().to_owned(),
            port: 80,
            ..Resource::default()
        }),
        profile_ref: resource(Resource {
            group: "linkerd.io".to_owned(),
            kind: "ServiceProfile".to_owned(),
            name: rig.full_name("web"),
            namespace: rig.name().to_owned(),
            ..Resource::default()
        }),
    };
    rig.open_service("web").await?.becomes_exactly(&expected).await
}

#[tokio::test]
async fn timeouts_are_parsed_as_in_go() -> Result<()> {
    let rig = Rig::start("timeout").await?;
    let rows = [
        ("200ms", duration(0, 200_000_000)),
        ("1.5s", duration(1, 500_000_000)),
        ("-1.5s", duration(-1, -500_000_000)),
        (".5s", duration(0, 500_000_000)),
        ("1.s", duration(1, 0)),
        ("+1s", duration(1, 0)),
        ("1h30m", duration(5400, 0)),
        ("1m1m", duration(120, 0)),
        ("1ns", duration(0, 1)),
        ("1us", duration(0, 1000)),
        ("1µs", duration(0, 1000)),
        ("1μs", duration(0, 1000)),
        ("9223372036s", duration(9_223_372_036, 0)),
        // Zero means no timeout.
        ("0", None),
        ("0s", None),
        ("-0s", None),
        ("0.5ns", None),
        ("", None),
    ];
    let route = |(timeout, _): &(&str, _)| json!({"name": timeout, "timeout": timeout, "condition": {"method": "GET"}});
    let routes: Vec<Value> = rows.iter().map(route).collect();
    rig.put_all([service("web"), rig.profile("web", json!({ "routes": routes }))]).await?;
    let mut open = rig.open_service("web").await?;
    open.shows("all routes", |profile| profile.routes.len() == rows.len()).await?;
    for (route, (timeout, expected)) in open.stream.last()?.routes.iter().zip(rows) {
        assert_eq!(route.timeout, expected, "{timeout:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_retry_budget_is_sent_unchanged() -> Result<()> {
    let rig = Rig::start("budget").await?;
    rig.put_all([service("web"), rig.profile("web", routes(&["a"]))]).await?;
    let mut open = rig.opens_with(&rig.path("web"), "service web with routes a").await?;
    assert_eq!(open.stream.last()?.retry_budget, default_budget());
    for (ratio, retries, ttl, expected) in [
        (0.5, 3, "10s", duration(10, 0)),
        (0.0, 0, "1ms", duration(0, 1_000_000)),
        (0.2, 10, "0s", None),
        (1000.5, i32::MAX, "1h", duration(3600, 0)),
        (-0.5, 1, "-1.5s", duration(-1, -500_000_000)),
        (0.1, 1, "0", None),
    ] {
        let budget = json!({"retryRatio": ratio, "minRetriesPerSecond": retries, "ttl": ttl});
        rig.patch("ServiceProfile", &rig.full_name("web"), json!({"spec": { "retryBudget": budget }})).await?;
        #[expect(clippy::cast_possible_truncation, reason = "a ratio is a float on the wire")]
        let retry_ratio = ratio as f32;
        let expected =
            Some(RetryBudget { retry_ratio, min_retries_per_second: u32::try_from(retries)?, ttl: expected });
        open.shows(&format!("{expected:?}"), |profile| profile.retry_budget == expected).await?;
    }
    rig.patch("ServiceProfile", &rig.full_name("web"), json!({"spec": {"retryBudget": null}})).await?;
    open.shows("the default", |profile| profile.retry_budget == default_budget()).await
}

#[tokio::test]
async fn overrides_get_the_requested_port_and_a_weight_in_thousandths() -> Result<()> {
    let rig = Rig::start("overrides").await?;
    let authorities = [
        ("foo", "foo:8989"),
        ("foo.ns.svc.cluster.local", "foo.ns.svc.cluster.local:8989"),
        ("foo:8080", "foo:8080"),
        ("foo:bar", "foo:bar"),
        ("foo:", "foo:"),
        (":80", ":80"),
        ("", ":8989"),
        ("192.0.2.1", "192.0.2.1:8989"),
        ("::1", "[::1]:8989"),
        ("a:b:c", "[a:b:c]:8989"),
        ("[::1]:80", "[::1]:80"),
        ("[::1]", "[[::1]]:8989"),
    ];
    let weights = [
        (json!(1), 10_000),
        (json!("1"), 10_000),
        (json!("500m"), 5_000),
        (json!("900m"), 9_000),
        (json!("1500m"), 15_000),
        (json!("0.5"), 5_000),
        (json!(".5"), 5_000),
        (json!("1k"), 10_000_000),
        (json!("1Ki"), 10_240_000),
        (json!("1e2"), 1_000_000),
        (json!(0), 0),
        // Weights are rounded up to a thousandth.
        (json!("100u"), 10),
        (json!("1n"), 10),
        (json!("0.00015"), 10),
        (json!("1.23456"), 12_350),
        (json!(429_496), 4_294_960_000),
    ];
    let of_authority = authorities.iter().map(|(authority, _)| json!({"authority": authority, "weight": 1}));
    let of_weight = weights.iter().map(|(weight, _)| json!({"authority": "web", "weight": weight}));
    let bare = [json!({"authority": "web"}), json!({"weight": 1}), json!({})];
    let overrides: Vec<Value> = of_authority.chain(of_weight).chain(bare).collect();
    let destination =
        |authority: &str, weight| WeightedDst { authority: authority.to_owned(), weight, backend_ref: None };
    let expected: Vec<WeightedDst> = authorities
        .iter()
        .map(|(_, authority)| destination(authority, 10_000))
        .chain(weights.iter().map(|(_, weight)| destination("web:8989", *weight)))
        .chain([destination("web:8989", 0), destination(":8989", 10_000), destination(":8989", 0)])
        .collect();
    let port = json!({"spec": {"ports": [{"name": "http", "port": 8989}]}});
    rig.put_all([service("web").with(port), rig.profile("web", json!({ "dstOverrides": overrides }))]).await?;
    let mut open = rig.open_service("web:8989").await?;
    open.shows("the overrides", |profile| !profile.dst_overrides.is_empty()).await?;
    for (seen, expected) in open.stream.last()?.dst_overrides.iter().zip(&expected) {
        assert_eq!(seen, expected);
    }
    assert_eq!(open.stream.last()?.dst_overrides.len(), expected.len());
    Ok(())
}

#[tokio::test]
async fn overrides_apply_to_each_port_even_an_opaque_one() -> Result<()> {
    let rig = Rig::start("ports").await?;
    let ports = json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "db", "port": 3306}]}});
    let spec =
        json!({"dstOverrides": [{"authority": "one", "weight": "900m"}, {"authority": "two:1", "weight": "100m"}]});
    rig.put_all([service("web").with(ports), rig.profile("web", spec)]).await?;
    for (port, opaque) in [(80, false), (3306, true)] {
        let mut open = rig.open_service(&format!("web:{port}")).await?;
        let destination = |authority: String, weight| WeightedDst { authority, weight, backend_ref: None };
        let expected = [destination(format!("one:{port}"), 9_000), destination("two:1".to_owned(), 1_000)];
        open.shows("both overrides", |profile| profile.dst_overrides == expected).await?;
        assert_eq!(open.stream.last()?.opaque_protocol, opaque);
    }
    Ok(())
}

#[tokio::test]
async fn a_profile_in_the_older_api_version_counts() -> Result<()> {
    let rig = Rig::start("older").await?;
    let mut older = rig.profile("web", routes(&["a", "b"]));
    older.value["apiVersion"] = json!("linkerd.io/v1alpha1");
    let kind = kube::api::GroupVersionKind::gvk("linkerd.io", "v1alpha1", "ServiceProfile");
    let kind = kube::api::ApiResource::from_gvk(&kind);
    let api: kube::Api<kube::api::DynamicObject> = kube::Api::namespaced_with(rig.client.clone(), rig.name(), &kind);
    api.create(&kube::api::PostParams::default(), &serde_json::from_value(older.value)?).await?;
    rig.put(service("web")).await?;
    rig.opens_with(&rig.path("web"), "service web with routes a b").await.map(drop)
}

#[tokio::test]
async fn an_empty_profile_counts() -> Result<()> {
    let rig = Rig::start("empty").await?;
    rig.put_all([service("web"), rig.profile("web", json!({}))]).await?;
    let mut open = rig.open_service("web").await?;
    open.becomes("service web").await?;
    open.shows("its name", |profile| {
        let of = profile.profile_ref.as_ref().and_then(|profile| profile.kind.as_ref());
        matches!(of, Some(Kind::Resource(resource)) if resource.name == rig.full_name("web"))
    })
    .await
}

#[tokio::test]
async fn a_profile_with_thousands_of_routes_is_one_message() -> Result<()> {
    let rig = Rig::start("thousands").await?;
    let names: Vec<String> = (0..4000).map(|number| format!("route-{number:05}-{}", "x".repeat(40))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    rig.put_all([service("web"), rig.profile("web", routes(&names))]).await?;
    let mut open = rig.open_service("web").await?;
    open.shows("all routes", |profile| profile.routes.len() == names.len()).await?;
    let seen = open.stream.last()?.routes.iter().filter_map(|route| route.metrics_labels.get("route"));
    assert!(seen.eq(&names));
    rig.patch("ServiceProfile", &rig.full_name("web"), json!({"spec": routes(&names[..3999])})).await?;
    open.shows("one route less", |profile| profile.routes.len() == names.len() - 1).await?;
    rig.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.becomes("service web").await?;
    open.is_quiet().await
}
