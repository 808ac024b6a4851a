//! What clients ask: every Service and port, declared or not, by name and by instance, from every kind of place.

use super::{NAMESPACE, owner::NODES};
use crate::{discovery::token, oracle::Request};

pub(super) fn all() -> Vec<Request> {
    let mut tokens: Vec<String> = NODES.iter().map(|node| token(NAMESPACE, node)).collect();
    tokens.extend([token(NAMESPACE, "world-unknown"), String::new()]);
    let mut requests = Vec::new();
    let mut ask = |path: String, token: &str| requests.push(Request { path, token: token.to_owned() });
    for service in ["web", "api", "db"] {
        let host = format!("{service}.{NAMESPACE}.svc.cluster.local");
        for (port, token) in [80, 443].into_iter().flat_map(|port| tokens.iter().map(move |token| (port, token))) {
            ask(format!("{host}:{port}"), token);
        }
        for (port, token) in [53, 8080, 25, 4191].into_iter().zip(&tokens) {
            ask(format!("{host}:{port}"), token);
        }
        for (instance, token) in ["host-0", "host-1", "host-9"].into_iter().zip(&tokens) {
            ask(format!("{instance}.{host}:80"), token);
            ask(format!("{instance}.{host}:8080"), "");
        }
    }
    // The port that goes without saying; odd spellings; tokens that tell little.
    ask(format!("web.{NAMESPACE}.svc.cluster.local"), "ns:world");
    ask(format!(".web.{NAMESPACE}.svc.cluster.local:+0080"), "{\"NODENAME\":\"world-a\",\"ns\":1}");
    ask(format!("[db.{NAMESPACE}.svc.cluster.local]:443"), "not a token");
    ask("web.elsewhere.svc.cluster.local:80".to_owned(), "");
    // Refused, whatever the world looks like.
    for path in [
        "nobody.world.svc.cluster.local:80",
        "web.nowhere.svc.cluster.local:80",
        "web.world.svc.example.org:80",
        "web.world.svc.cluster.local:0",
        "web.world",
        "10.42.0.1:8080",
        "[2001:db8::1]:80",
        "",
    ] {
        ask(path.to_owned(), "");
    }
    requests
}
