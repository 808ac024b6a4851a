//! Several webhooks on one server.
//!
//! In: the path of a request. Out: the answer of the handler of this path. Always holds: a path without a handler is
//! not found.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{Response, StatusCode};
use http_body_util::Full;

use super::server::Handler;

/// The handlers of a server, by path.
#[derive(Default)]
pub struct Routes(BTreeMap<&'static str, Arc<dyn Handler>>);

// === impl Routes ===

impl Routes {
    pub fn add(&mut self, path: &'static str, handler: Arc<dyn Handler>) {
        self.0.insert(path, handler);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Handler for Routes {
    fn answer(self: Arc<Self>, path: String, body: Bytes) -> BoxFuture<'static, Response<Full<Bytes>>> {
        match self.0.get(path.as_str()) {
            Some(handler) => Arc::clone(handler).answer(path, body),
            None => async {
                let mut response = Response::new(Full::new(Bytes::from_static(b"no webhook has this path")));
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
            .boxed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::testing::Script;

    #[tokio::test]
    async fn a_request_reaches_the_handler_of_its_path_alone() {
        let (one, other) = (Arc::new(Script::default()), Arc::new(Script::default()));
        let mut routes = Routes::default();
        routes.add("/one", Arc::clone(&one) as Arc<dyn Handler>);
        routes.add("/other", Arc::clone(&other) as Arc<dyn Handler>);
        let routes = Arc::new(routes);
        let status =
            async |path: &str| Arc::clone(&routes).answer(path.to_owned(), Bytes::from_static(b"x")).await.status();
        assert_eq!(status("/one").await, StatusCode::OK);
        assert_eq!((one.calls(), other.calls()), (1, 0));
        for unknown in ["/", "/one/", "/onex", ""] {
            assert_eq!(status(unknown).await, StatusCode::NOT_FOUND, "{unknown}");
        }
        assert_eq!((one.calls(), other.calls()), (1, 0));
    }
}
