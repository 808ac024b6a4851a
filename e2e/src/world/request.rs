//! The requests of clients: every Service and port, declared or not, by name and by instance, from every node.

use super::{NAMESPACE, owner::NODES};
use crate::{discovery::token, oracle::Request};

pub(super) fn all() -> Vec<Request> {
    let mut tokens: Vec<String> = NODES.iter().map(|node| token(NAMESPACE, node)).collect();
    tokens.extend([token(NAMESPACE, "world-unknown"), String::new()]);
    let mut requests = Vec::new();
    let mut add = |path: String, token: &str| requests.push(Request { path, token: token.to_owned() });
    for service in ["web", "api", "db"] {
        let host = format!("{service}.{NAMESPACE}.svc.cluster.local");
        for (port, token) in [80, 443].into_iter().flat_map(|port| tokens.iter().map(move |token| (port, token))) {
            add(format!("{host}:{port}"), token);
        }
        for (port, token) in [53, 8080, 25, 4191].into_iter().zip(&tokens) {
            add(format!("{host}:{port}"), token);
        }
        for (instance, token) in ["host-0", "host-1", "host-9"].into_iter().zip(&tokens) {
            add(format!("{instance}.{host}:80"), token);
            add(format!("{instance}.{host}:8080"), "");
        }
    }
    // The default port; unusual spellings; tokens with little content.
    add(format!("web.{NAMESPACE}.svc.cluster.local"), "ns:world");
    add(format!(".web.{NAMESPACE}.svc.cluster.local:+0080"), "{\"NODENAME\":\"world-a\",\"ns\":1}");
    add(format!("[db.{NAMESPACE}.svc.cluster.local]:443"), "not a token");
    add("web.elsewhere.svc.cluster.local:80".to_owned(), "");
    // Refused in every state of the world.
    for path in [
        "absent.world.svc.cluster.local:80",
        "web.nowhere.svc.cluster.local:80",
        "web.world.svc.example.org:80",
        "web.world.svc.cluster.local:0",
        "web.world",
        "10.42.0.1:8080",
        "[2001:db8::1]:80",
        "",
    ] {
        add(path.to_owned(), "");
    }
    requests
}
