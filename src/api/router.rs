//! All routes on one page.

use axum::Router;
use axum::http::Uri;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{self, Code, Problem};
use super::state::{ApiState, Deps};
use super::{
    acquire, assets, audit, auth, budget, crons, decisions, fields, gate, guard, health, jobs,
    keys, lane_list, lanes, many, metrics, moves, notifications, openapi, pause, pools,
    provider_events, stream, suppressions, throttle_delete, throttles, workers,
};

/// Returns the routes of the API. All of them are in `/openapi.json`, because the document is made
/// from this list.
pub fn api() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(jobs::list, jobs::enqueue))
        .routes(routes!(jobs::enqueue_batch))
        .routes(routes!(many::cancel))
        .routes(routes!(jobs::show, moves::cancel))
        .routes(routes!(jobs::attempts))
        .routes(routes!(moves::retry))
        .routes(routes!(moves::reschedule))
        .routes(routes!(moves::discard))
        .routes(routes!(many::requeue))
        .routes(routes!(many::discard))
        .routes(routes!(pause::show, pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(throttles::list))
        .routes(routes!(
            throttles::show,
            throttles::edit,
            throttle_delete::delete
        ))
        .routes(routes!(throttles::why))
        .routes(routes!(pause::pause_throttle))
        .routes(routes!(pause::resume_throttle))
        .routes(routes!(lane_list::list))
        .routes(routes!(acquire::acquire))
        .routes(routes!(acquire::peek))
        .routes(routes!(acquire::give_back))
        .routes(routes!(lanes::show, lanes::weigh))
        .routes(routes!(lanes::purge))
        .routes(routes!(keys::pause))
        .routes(routes!(keys::resume))
        .routes(routes!(pools::list))
        .routes(routes!(pools::show))
        .routes(routes!(pools::resume))
        .routes(routes!(crons::list))
        .routes(routes!(crons::show, crons::set, crons::delete))
        .routes(routes!(crons::run))
        .routes(routes!(crons::pause))
        .routes(routes!(crons::resume))
        .routes(routes!(notifications::list, notifications::send))
        .routes(routes!(notifications::show))
        .routes(routes!(
            suppressions::list,
            suppressions::add,
            suppressions::remove
        ))
        .routes(routes!(provider_events::receive_events))
        .routes(routes!(decisions::list))
        .routes(routes!(decisions::failures))
        .routes(routes!(audit::list))
        .routes(routes!(workers::list))
        .routes(routes!(stream::stream))
        .routes(routes!(metrics::show))
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(openapi::show))
}

/// Returns the routes of the pages that a browser loads.
fn pages() -> Router<ApiState> {
    Router::new()
        .route("/", get(assets::index))
        .route("/assets/{*path}", get(assets::asset))
        .route("/login", get(auth::show).post(auth::login))
        .route("/logout", post(auth::logout))
}

/// Returns the whole router with the layers that every request passes (the last one is the
/// outermost).
pub fn router(deps: Deps) -> Router {
    let (routes, declared) = api().split_for_parts();
    let document = openapi::document(declared, !deps.tokens.is_empty()).to_string();
    let app = ApiState::new(deps, document);
    routes
        .merge(pages())
        .fallback(no_route)
        .layer(from_fn_with_state(app.clone(), gate::gate))
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .layer(from_fn(budget::measure))
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(from_fn(problem::dress))
        .layer(CompressionLayer::new())
        .layer(from_fn(assets::headers))
        .layer(from_fn_with_state(app.clone(), metrics::measure))
        .with_state(app)
}

async fn no_route(uri: Uri) -> Problem {
    Problem::new(
        Code::RouteNotFound,
        format!(
            "there is no route {}; /openapi.json lists them",
            fields::clipped(uri.path())
        ),
    )
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
