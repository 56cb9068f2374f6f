//! The next occurrences of an expression, without a schedule.

use axum::Json;
use axum::extract::{Query as Pairs, State};
use jiff::Timestamp;
use serde::Serialize;

use super::crons::{EXPRESSION_BYTES_MAX, ZONE_BYTES_MAX};
use super::http::problem::{Code, Problem};
use super::http::query::Query;
use super::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::cron::{Schedules, Timing};
use crate::jobs::Queue;

/// The next occurrences of an expression.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NextOccurrences {
    /// The expression.
    expression: String,
    /// The time zone.
    time_zone: String,
    /// The next occurrences, by the clock of Postgres.
    upcoming: Vec<Timestamp>,
}

/// Computes the next occurrences of a cron expression, and stores nothing.
#[utoipa::path(get, path = "/api/v1/cron-next", operation_id = "preview_expression", tag = "crons",
    params(
        ("expression" = String, Query, description = "The cron expression, as for a schedule."),
        ("time_zone" = Option<String>, Query, description = "The time zone of the expression; UTC if absent.")),
    responses((status = 200, body = NextOccurrences)))]
pub async fn preview(
    State(queue): State<Queue>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<NextOccurrences>, Problem> {
    let mut query = Query::open(pairs, &["expression", "time_zone"]);
    let expression = query.text("expression", EXPRESSION_BYTES_MAX);
    let time_zone = query.text("time_zone", ZONE_BYTES_MAX);
    let time_zone = time_zone.unwrap_or_else(|| "UTC".to_owned());
    if expression.is_none() && query.errors.is_empty() {
        query.wrong(
            "expression",
            "the parameter is missing; allowed: a cron expression such as 30 2 * * *",
        );
    }
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let expression = expression.unwrap_or_default();
    let timing = match Timing::checked(&expression, &time_zone) {
        Ok(timing) => timing,
        Err(problems) => {
            for problem in problems {
                query.wrong(problem.field, problem.message);
            }
            return Err(Problem::fields(Code::InvalidQuery, query.errors));
        }
    };
    let now = with_timeout(ROW_TIMEOUT, Schedules::new(queue.pool.clone()).now()).await?;
    Ok(Json(NextOccurrences {
        upcoming: timing.preview(now),
        expression,
        time_zone,
    }))
}
