//! The lanes of a throttle: how deep each is, how old its oldest job, and whether it is paused.

use axum::Json;
use axum::extract::{Path, Query as Pairs, State};
use axum::http::header::LINK;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::IntoResponse;
use jiff::Timestamp;
use serde::Serialize;

use super::clock;
use super::jobs::encoded;
use super::jobs_input::KEY_BYTES_MAX;
use super::keys::key_of_part;
use super::problem::{Code, Problem};
use super::query::{PAGE_MAX, Query};
use super::state::App;
use super::throttle_view::since_s;
use super::throttles::name_of;
use super::within::{MANY, within};
use crate::jobs::{LaneDepth, LanesAfter};
use crate::throttle::store::MAX_LANES_PER_ASK;
use crate::throttle::{Ask, LaneAsk, Limit, Name};

/// The orders in which lanes can be listed.
pub(super) const ORDERS: [(&str, Order); 2] = [("depth", Order::Depth), ("key", Order::Key)];

/// An order of lanes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    Depth,
    Key,
}

/// A page of lanes.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Lanes {
    /// The throttle.
    throttle: String,
    /// When this was said.
    at: Timestamp,
    /// In the order that was asked for.
    lanes: Vec<LaneView>,
    /// Where the next page is; also in the Link header.
    next: Option<String>,
}

/// A lane: the jobs of one key of a throttle.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Lane)]
pub struct LaneView {
    /// Its key; empty for the lane of jobs without one.
    key: String,
    /// Ready jobs, as last counted.
    depth: i64,
    /// The depth is no older than this; `null` before the first count.
    counted_at: Option<Timestamp>,
    /// Seconds since its oldest ready job was enqueued, as it is now; `null` where none is ready.
    oldest_ready_s: Option<f64>,
    /// Its share beside the other lanes of the throttle.
    weight: f64,
    /// When it was first seen.
    first_seen: Timestamp,
    /// The pause in force; `null` if there is none.
    paused: Option<LanePause>,
}

/// A pause of one lane.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct LanePause {
    /// When it ends.
    until: Option<Timestamp>,
    /// Why.
    why: String,
}

/// Lists the lanes of a throttle.
#[utoipa::path(get, path = "/api/v1/throttles/{name}/lanes", operation_id = "list_lanes", tag = "throttles",
    params(
        ("name" = String, Path, description = "Its name."),
        ("order" = Option<String>, Query, description = "`depth`: the deepest first, lanes without ready jobs left out; `key`: by key. `depth` if absent."),
        ("key" = Option<String>, Query, description = "Only the lane of this key, as in a path: `-`, or nothing, is the lane of jobs without one, and a key of minuses only has one more."),
        ("limit" = Option<i64>, Query, description = "At most so many, 1 to 1000; 100 if absent."),
        ("after" = Option<String>, Query, description = "The cursor: what `next` holds.")),
    responses((status = 200, body = Lanes, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list(
    State(app): State<App>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(pairs, &["order", "key", "limit", "after"]);
    let order = query.word("order", &ORDERS).unwrap_or(Order::Depth);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let key = query.text_or_empty("key", KEY_BYTES_MAX + 1).map(key_of_part);
    let after = query.text("after", KEY_BYTES_MAX + 1);
    let after = match (order, after) {
        (Order::Depth, None) => LanesAfter::DEEPEST,
        (Order::Depth, Some(text)) => deep(&text).unwrap_or_else(|| {
            query.wrong("after", "is no cursor of this list; allowed: what `next` of the page before holds");
            LanesAfter::DEEPEST
        }),
        // The key is written behind a colon, so that an empty key is a cursor as well.
        (Order::Key, after) => LanesAfter::Key(after.map(|text| text.strip_prefix(':').unwrap_or(&text).to_owned())),
    };
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    // A throttle may have lanes before it exists, so the name need not be known.
    let name = name_of(name)?;
    let (lanes, next) = match key {
        Some(key) => (within(MANY, app.deps.queue.lane_of(name.as_str(), &key)).await?.into_iter().collect(), None),
        None => {
            let page = within(MANY, app.deps.queue.lanes_of(name.as_str(), &after, limit)).await?;
            (page.lanes, page.next.map(|next| next_page(&name, limit, &next)))
        }
    };
    let pauses = pauses(&app, &name, &lanes).await;
    let now = clock::now();
    let lanes = lanes.into_iter().zip(pauses).map(|(lane, paused)| view(lane, paused, now)).collect();
    let mut headers = HeaderMap::new();
    if let Some(link) = next.as_ref().and_then(|next| HeaderValue::from_str(&format!("<{next}>; rel=\"next\"")).ok()) {
        headers.insert(LINK, link);
    }
    Ok((headers, Json(Lanes { throttle: name.to_string(), at: now, lanes, next })))
}

fn view(lane: LaneDepth, paused: Option<LanePause>, now: Timestamp) -> LaneView {
    LaneView {
        key: lane.key,
        depth: lane.depth,
        counted_at: lane.counted_at,
        oldest_ready_s: lane.oldest_at.map(|oldest| since_s(oldest, now)),
        weight: lane.weight,
        first_seen: lane.first_seen,
        paused,
    }
}

/// The pauses in force, lane by lane. A store that does not answer tells of none.
pub async fn pauses(app: &App, name: &Name, lanes: &[LaneDepth]) -> Vec<Option<LanePause>> {
    let mut pauses = Vec::with_capacity(lanes.len());
    for some in lanes.chunks(MAX_LANES_PER_ASK) {
        let asked = some.iter().map(|lane| LaneAsk { key: lane.key.clone(), want: 1, cost: 1.0, held: 0 });
        let answer = app.deps.throttles.peek(&Ask { throttle: name.clone(), lanes: asked.collect(), holder: None }).await;
        let mut limits = answer.lanes.into_iter().map(|grant| grant.limit);
        pauses.extend(some.iter().map(|_| match limits.next().flatten() {
            Some(Limit::Paused { until_ms, why, .. }) => {
                Some(LanePause { until: Timestamp::from_millisecond(until_ms).ok(), why })
            }
            _ => None,
        }));
    }
    pauses
}

fn deep(text: &str) -> Option<LanesAfter> {
    let (depth, lane_id) = text.split_once(':')?;
    Some(LanesAfter::Depth { depth: depth.parse().ok()?, lane_id: lane_id.parse().ok()? })
}

fn next_page(name: &Name, limit: i64, after: &LanesAfter) -> String {
    let name = encoded(name.as_str());
    match after {
        LanesAfter::Depth { depth, lane_id } => format!("/api/v1/throttles/{name}/lanes?limit={limit}&after={depth}:{lane_id}"),
        LanesAfter::Key(key) => {
            format!(
                "/api/v1/throttles/{name}/lanes?order=key&limit={limit}&after=:{}",
                encoded(key.as_deref().unwrap_or_default())
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let name = Name::new("a/b").unwrap();
        let after = LanesAfter::Depth { depth: 12, lane_id: -7 };
        let page = next_page(&name, 5, &after);
        assert_eq!(page, "/api/v1/throttles/a%2Fb/lanes?limit=5&after=12:-7");
        assert_eq!(deep(page.rsplit('=').next().unwrap()), Some(after));
        assert_eq!(
            next_page(&name, 5, &LanesAfter::Key(Some("ü&".into()))),
            "/api/v1/throttles/a%2Fb/lanes?order=key&limit=5&after=:%C3%BC%26"
        );
    }

    #[test]
    fn another_text_is_no_cursor() {
        for text in ["", "1", "1:", ":1", "a:b", "1:2:3", "99999999999999999999:1"] {
            assert_eq!(deep(text), None, "{text}");
        }
    }
}
