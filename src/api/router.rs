//! All routes on one page.

use axum::Router;
use axum::http::Uri;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use utoipa_axum::router::OpenApiRouter;

use super::deps::{ApiState, Deps};
use super::gateway::{asyncapi, connect, events as channel_events, publish, tickets, usage};
use super::groups::{change, create};
use super::http::problem::{self, Code, Problem};
use super::http::{
    budget, encoding, fields, gate, guard, lagging, login, metrics as request_metrics, server_span,
};
use super::jobs::{enqueue, many, moves, pause, show, update};
use super::lanes::{keys, lane};
use super::notifications::{batch_list, batches, cancel, events, headers, messages, suppressions};
use super::openapi::document;
use super::recipients::{inbox, profiles as recipients};
use super::routes::routes;
use super::throttles::{acquire, check, knobs, report};
use super::work::{claim, endings, heartbeat};
use super::{
    audit, cron_next, crons, dashboard, decisions, gates, health, kinds, lanes, metrics, pools,
    stream, tenants, throttles, workers,
};

/// Returns the routes of the API. All of them are in `/openapi.json`, because the document is made
/// from this list.
pub fn api() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(show::list, enqueue::enqueue))
        .routes(routes!(enqueue::enqueue_batch))
        .routes(routes!(many::cancel))
        .routes(routes!(change::list, create::create))
        .routes(routes!(change::show))
        .routes(routes!(change::seal))
        .routes(routes!(change::cancel))
        .routes(routes!(show::show, moves::cancel, update::update))
        .routes(routes!(show::attempts))
        .routes(routes!(moves::retry))
        .routes(routes!(moves::reschedule))
        .routes(routes!(moves::discard))
        .routes(routes!(claim::claim))
        .routes(routes!(heartbeat::heartbeat))
        .routes(routes!(endings::complete))
        .routes(routes!(endings::fail))
        .routes(routes!(endings::snooze))
        .routes(routes!(endings::throttled))
        .routes(routes!(endings::release))
        .routes(routes!(many::requeue))
        .routes(routes!(many::discard))
        .routes(routes!(pause::show, pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(knobs::list))
        .routes(routes!(knobs::show, knobs::edit, throttles::delete::delete))
        .routes(routes!(knobs::why))
        .routes(routes!(throttles::history::show_throttle_history))
        .routes(routes!(throttles::pause::pause_throttle))
        .routes(routes!(throttles::pause::resume_throttle))
        .routes(routes!(lanes::list::list))
        .routes(routes!(acquire::acquire))
        .routes(routes!(acquire::peek))
        .routes(routes!(report::give_back))
        .routes(routes!(report::settle))
        .routes(routes!(report::refused))
        .routes(routes!(report::ended))
        .routes(routes!(check::check))
        .routes(routes!(lane::show, lane::weigh))
        .routes(routes!(lane::purge))
        .routes(routes!(keys::pause))
        .routes(routes!(keys::resume))
        .routes(routes!(pools::list))
        .routes(routes!(pools::show))
        .routes(routes!(pools::resume))
        .routes(routes!(pools::requeue_unsent))
        .routes(routes!(kinds::list))
        .routes(routes!(kinds::register))
        .routes(routes!(cron_next::preview))
        .routes(routes!(crons::list))
        .routes(routes!(crons::show, crons::set, crons::delete))
        .routes(routes!(crons::run))
        .routes(routes!(crons::pause))
        .routes(routes!(crons::resume))
        .routes(routes!(messages::list, messages::send))
        .routes(routes!(messages::show))
        .routes(routes!(cancel::cancel_notification))
        .routes(routes!(gates::explain::explain))
        .routes(routes!(gates::check::check))
        .routes(routes!(gates::replan::replan))
        .routes(routes!(gates::digests::list_digests))
        .routes(routes!(gates::digests::withdraw_item))
        .routes(routes!(gates::counts::show_gates))
        .routes(routes!(batches::send_batch))
        .routes(routes!(batch_list::list_batches))
        .routes(routes!(batches::show_batch))
        .routes(routes!(batches::pause_batch))
        .routes(routes!(batches::resume_batch))
        .routes(routes!(batches::cancel_batch))
        .routes(routes!(
            suppressions::list,
            suppressions::add,
            suppressions::remove
        ))
        .routes(routes!(
            recipients::list_recipients,
            recipients::import_recipients
        ))
        .routes(routes!(
            recipients::show_recipient,
            recipients::set_recipient,
            recipients::delete_recipient
        ))
        .routes(routes!(recipients::show_defaults, recipients::set_defaults))
        .routes(routes!(inbox::list_inbox))
        .routes(routes!(inbox::count_inbox))
        .routes(routes!(inbox::mark_inbox))
        .routes(routes!(events::receive_events))
        .routes(routes!(usage::list_channel_usage))
        .routes(routes!(connect::open_connection))
        .routes(routes!(tickets::create_ticket))
        .routes(routes!(publish::publish_message))
        .routes(routes!(channel_events::stream_channel))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::modules))
        .routes(routes!(decisions::list))
        .routes(routes!(decisions::failures))
        .routes(routes!(audit::log::list))
        .routes(routes!(workers::list))
        .routes(routes!(stream::events::stream))
        .routes(routes!(metrics::show))
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(document::show))
        .routes(routes!(asyncapi::show_asyncapi))
}

/// Returns the routes of the pages that a browser loads.
fn pages() -> Router<ApiState> {
    Router::new()
        .route("/", get(dashboard::index))
        .route("/assets/{*path}", get(dashboard::asset))
        .route("/login", get(login::show).post(login::login))
        .route("/logout", post(login::logout))
}

/// Returns the whole router with the layers that every request passes (the last one is the
/// outermost).
pub fn router(deps: Deps) -> Router {
    let (routes, declared) = api().split_for_parts();
    layered(routes.merge(pages()), ApiState::new(deps, declared))
}

/// Returns the router of a listener for metrics alone, behind the same guard.
pub fn of_metrics(deps: Deps) -> Router {
    let routes = OpenApiRouter::default()
        .routes(routes!(metrics::show))
        .routes(routes!(health::alive))
        .routes(routes!(health::ready));
    let (routes, declared) = routes.split_for_parts();
    layered(routes, ApiState::new(deps, declared))
}

fn layered(routes: Router<ApiState>, app: ApiState) -> Router {
    routes
        .fallback(no_route)
        .layer(from_fn_with_state(app.clone(), server_span::measure))
        .layer(from_fn_with_state(app.clone(), gate::gate))
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .layer(from_fn_with_state(app.clone(), headers::add_limits))
        .layer(from_fn(budget::measure))
        .layer(from_fn(lagging::add_lag))
        .layer(from_fn(audit::log::to_the_end))
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(from_fn(problem::dress))
        .layer(CompressionLayer::new())
        .layer(from_fn(encoding::allow_plain))
        .layer(from_fn(dashboard::headers))
        .layer(from_fn_with_state(app.clone(), request_metrics::measure))
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
