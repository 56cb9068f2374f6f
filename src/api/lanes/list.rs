//! The lanes of a throttle: the depth of each, the age of its oldest job, and its pause.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query as Pairs, State};
use axum::response::IntoResponse;
use jiff::Timestamp;
use serde::Serialize;

use super::keys::key_of_part;
use crate::api::clock;
use crate::api::http::lagging::read_list;
use crate::api::http::link::{encoded, next_link};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::jobs::input::KEY_BYTES_MAX;
use crate::api::throttles::knobs::name_of;
use crate::api::throttles::state::ThrottlesState;
use crate::api::throttles::view::since_s;
use crate::jobs::{LaneDepth, LanesAfter, Queue};
use crate::throttle::{KeyState, Name};

/// The orders in which lanes can be listed, with their names.
pub(in crate::api) const ORDERS: [(&str, Order); 2] =
    [("depth", Order::Depth), ("key", Order::Key)];

/// An order of lanes.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::api) enum Order {
    Depth,
    Key,
}

/// A page of lanes.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Lanes {
    /// The throttle.
    throttle: String,
    /// The time of this answer.
    at: Timestamp,
    /// The lanes, in the requested order.
    lanes: Vec<LaneView>,
    /// The URL of the next page; also in the Link header.
    next: Option<String>,
}

/// A lane: the jobs of one key of a throttle.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Lane)]
pub struct LaneView {
    /// The key of the lane; empty for jobs without one.
    key: String,
    /// Ready jobs at the last count.
    depth: i64,
    /// The time of the last count; the depth is at least as recent. `null` before the first count.
    counted_at: Option<Timestamp>,
    /// Seconds for which the oldest ready job has waited, from its creation or from the time for
    /// which it was enqueued; read for this answer, `null` where none is ready.
    oldest_ready_s: Option<f64>,
    /// The share of the lane beside the other lanes of the throttle.
    weight: f64,
    /// The time at which the lane was first seen.
    first_seen: Timestamp,
    /// The pause in force; `null` if there is none.
    paused: Option<LanePause>,
    /// The limits learned from the answers of the receiver; `null` if there are none. Resuming the
    /// key resets them.
    learned: Option<LearnedPace>,
}

/// A pause of one lane.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct LanePause {
    /// The end of the pause.
    until: Option<Timestamp>,
    /// The reason for the pause.
    why: String,
}

/// The limits of a key that were learned from the answers of its receiver.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct LearnedPace {
    /// The learned rate in force, in tokens per second; `null` for none.
    rps: Option<f64>,
    /// True if the pause after a refusal is over and no job has succeeded since; jobs are then
    /// granted one at a time.
    probing: bool,
    /// Refusals since the learned state of the key began.
    refused: f64,
}

/// The limits that hold a lane back.
#[derive(Clone, Default)]
pub struct LaneHold {
    /// The pause in force.
    pub paused: Option<LanePause>,
    /// The limits learned from its receiver.
    pub learned: Option<LearnedPace>,
}

/// Lists the lanes of a throttle.
#[utoipa::path(get, path = "/api/v1/throttles/{name}/lanes", operation_id = "list_lanes", tag = "throttles",
    params(
        ("name" = String, Path, description = "Its name."),
        ("order" = Option<String>, Query, description = "`depth`: deepest first, only lanes with ready jobs; `key`: by key. `depth` if absent."),
        ("key" = Option<String>, Query, description = "Only the lane of this key, as in a path: `-` or an empty value is the lane of jobs without a key, and a key of only minuses, or of one or two dots and minuses, gets one more."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("after" = Option<String>, Query, description = "The cursor: the value of `next`.")),
    responses((status = 200, body = Lanes, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list(
    State(state): State<Arc<ThrottlesState>>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(pairs, &["order", "key", "limit", "after"]);
    let order = query.choice("order", &ORDERS).unwrap_or(Order::Depth);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let key = query
        .text_or_empty("key", KEY_BYTES_MAX + 1)
        .map(key_of_part);
    let after = query.text("after", KEY_BYTES_MAX + 1);
    let after = after_of(order, after, &mut query);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    // A throttle may have lanes before it exists, so an unknown name is not an error.
    let name = name_of(name)?;
    let (lanes, next) = page(&state.queue, &name, key.as_deref(), &after, limit).await?;
    let next = next.map(|next| next_page(&name, limit, &next));
    let holds = holds(
        &state,
        &name,
        lanes.iter().map(|lane| lane.key.clone()).collect(),
    )
    .await;
    let now = clock::now();
    let lanes = lanes
        .into_iter()
        .zip(holds)
        .map(|(lane, hold)| view(lane, hold, now))
        .collect();
    let headers = next_link(next.as_deref());
    Ok((
        headers,
        Json(Lanes {
            throttle: name.to_string(),
            at: now,
            lanes,
            next,
        }),
    ))
}

/// Reads the lane of one key, or a page of all lanes with the position of the next page.
pub async fn page(
    queue: &Queue,
    throttle: &Name,
    key: Option<&str>,
    after: &LanesAfter,
    limit: i64,
) -> Result<(Vec<LaneDepth>, Option<LanesAfter>), Problem> {
    let throttle = throttle.as_str();
    let Some(key) = key else {
        let read = |queue: Queue| async move { queue.lanes_of(throttle, after, limit).await };
        let page = read_list(queue, read).await?;
        return Ok((page.lanes, page.next));
    };
    let read = |queue: Queue| async move { queue.lane_of(throttle, key).await };
    let lane = read_list(queue, read).await?;
    Ok((lane.into_iter().collect(), None))
}

fn view(lane: LaneDepth, hold: LaneHold, now: Timestamp) -> LaneView {
    LaneView {
        key: lane.key,
        depth: lane.depth,
        counted_at: lane.counted_at,
        oldest_ready_s: lane.oldest_due_at.map(|due| since_s(due, now)),
        weight: lane.weight,
        first_seen: lane.first_seen,
        paused: hold.paused,
        learned: hold.learned,
    }
}

/// Returns the limits of each key. Returns none if the store does not answer.
pub async fn holds(state: &ThrottlesState, name: &Name, keys: Vec<String>) -> Vec<LaneHold> {
    let states = state.throttles.look(name, &keys).await.unwrap_or_default();
    let mut holds: Vec<LaneHold> = states.into_iter().map(LaneHold::from).collect();
    holds.resize(keys.len(), LaneHold::default());
    holds
}

impl From<KeyState> for LaneHold {
    fn from(state: KeyState) -> Self {
        let until = state
            .paused_until_ms
            .and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let is_learned = state.learned_rps.is_some() || state.probing;
        Self {
            paused: state.paused_until_ms.map(|_| LanePause {
                until,
                why: state.why,
            }),
            learned: is_learned.then_some(LearnedPace {
                rps: state.learned_rps,
                probing: state.probing,
                refused: state.refused,
            }),
        }
    }
}

/// Returns the position that a cursor names; a wrong one is reported.
pub(in crate::api) fn after_of(
    order: Order,
    after: Option<String>,
    query: &mut Query,
) -> LanesAfter {
    match (order, after) {
        (Order::Depth, None) => LanesAfter::DEEPEST,
        (Order::Depth, Some(text)) => deep(&text).unwrap_or_else(|| {
            query.wrong(
                "after",
                "is not a cursor of this list; allowed: the value of `next` of the previous page",
            );
            LanesAfter::DEEPEST
        }),
        // The key follows a colon, so that an empty key is a valid cursor too.
        (Order::Key, after) => {
            LanesAfter::Key(after.map(|text| text.strip_prefix(':').unwrap_or(&text).to_owned()))
        }
    }
}

fn deep(text: &str) -> Option<LanesAfter> {
    let (depth, lane_id) = text.split_once(':')?;
    Some(LanesAfter::Depth {
        depth: depth.parse().ok()?,
        lane_id: lane_id.parse().ok()?,
    })
}

fn next_page(name: &Name, limit: i64, after: &LanesAfter) -> String {
    let name = encoded(name.as_str());
    let cursor = cursor_of(after);
    format!("/api/v1/throttles/{name}/lanes?limit={limit}&{cursor}")
}

/// Returns the parameters of a query that continues a list of lanes.
pub(in crate::api) fn cursor_of(after: &LanesAfter) -> String {
    match after {
        LanesAfter::Depth { depth, lane_id } => format!("order=depth&after={depth}:{lane_id}"),
        LanesAfter::Key(key) => {
            let key = encoded(key.as_deref().unwrap_or_default());
            format!("order=key&after=:{key}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let name = Name::new("a/b").unwrap();
        let after = LanesAfter::Depth {
            depth: 12,
            lane_id: -7,
        };
        let page = next_page(&name, 5, &after);
        assert_eq!(
            page,
            "/api/v1/throttles/a%2Fb/lanes?limit=5&order=depth&after=12:-7"
        );
        assert_eq!(deep(page.rsplit('=').next().unwrap()), Some(after));
        assert_eq!(
            next_page(&name, 5, &LanesAfter::Key(Some("ü&".into()))),
            "/api/v1/throttles/a%2Fb/lanes?limit=5&order=key&after=:%C3%BC%26"
        );
    }

    #[test]
    fn a_planned_job_waits_from_the_time_for_which_it_was_enqueued() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lane = LaneDepth {
            lane_id: 1,
            key: String::new(),
            depth: 1,
            counted_at: None,
            oldest_at: Some(at(0)),
            oldest_due_at: Some(at(86_400)),
            weight: 1.0,
            first_seen: at(0),
        };
        let shown = view(lane, LaneHold::default(), at(86_460));
        assert_eq!(shown.oldest_ready_s, Some(60.0));
    }

    #[test]
    fn another_text_is_no_cursor() {
        for text in [
            "",
            "1",
            "1:",
            ":1",
            "a:b",
            "1:2:3",
            "99999999999999999999:1",
        ] {
            assert_eq!(deep(text), None, "{text}");
        }
    }
}
