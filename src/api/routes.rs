//! The registration of handlers, all of them behind one type.
//!
//! axum makes some forty functions for each type of handler, and the compiler proves for each of
//! them that the handler's future can be sent to another thread. Behind one type that is done once,
//! which saves a quarter of the time that this package takes to compile.

use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};
use futures_util::future::{self, BoxFuture};
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Operation, ParameterIn};

use super::deps::ApiState;
use super::http::query;

/// The routes that take any query: a provider may add parameters of its own to the URL that it was
/// given, and a proxy may pass on the query of the request that it asks about. Proxies let a request
/// through, unlimited, where the answer is an error.
const ANY_QUERY: [&str; 2] = ["/api/v1/provider-events/", "/api/v1/check"];

/// A handler of any arguments.
#[derive(Clone)]
pub struct AnyHandler(Arc<dyn Fn(Request, ApiState) -> BoxFuture<'static, Response> + Send + Sync>);

impl AnyHandler {
    /// Hides the handler's type. If the operation declares no parameter of the query, a request
    /// with one is refused.
    pub fn new<H, T>(handler: H, path: &str, operation: &Operation) -> Self
    where
        H: Handler<T, ApiState, Future = BoxFuture<'static, Response>> + Sync,
        T: 'static,
    {
        let any_query = takes_query(operation)
            || !path.starts_with("/api/")
            || ANY_QUERY.iter().any(|begin| path.starts_with(begin));
        Self(Arc::new(move |request: Request, state| {
            if !any_query && let Err(problem) = query::none(request.uri()) {
                return Box::pin(future::ready(problem.into_response()));
            }
            handler.clone().call(request, state)
        }))
    }
}

impl Handler<(), ApiState> for AnyHandler {
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request, state: ApiState) -> Self::Future {
        (self.0)(request, state)
    }
}

fn takes_query(operation: &Operation) -> bool {
    let mut parameters = operation.parameters.iter().flatten();
    parameters.any(|parameter| match parameter {
        RefOr::T(parameter) => matches!(parameter.parameter_in, ParameterIn::Query),
        RefOr::Ref(_) => true,
    })
}

/// Registers handlers of one path, like the macro of the same name in `utoipa_axum`.
macro_rules! routes {
    ($($handler:path),+ $(,)?) => {{
        use utoipa_axum::PathItemExt;

        let mut schemas = Vec::new();
        let mut paths = utoipa::openapi::path::Paths::new();
        let mut router = axum::routing::MethodRouter::new();
        $(
            let (path, operation, methods) =
                utoipa_axum::routes!(@resolve_types $handler : schemas);
            let handler = $crate::api::routes::AnyHandler::new($handler, &path, &operation);
            for method in &methods {
                router = router.on(method.to_method_filter(), handler.clone());
            }
            paths.add_path_operation(&path, methods, operation);
        )+
        (schemas, paths, router)
    }};
}

pub(super) use routes;
