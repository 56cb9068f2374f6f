//! Search for keys that hold their jobs back, or ask for more than their quota, among the deepest
//! lanes of a throttle.

use std::time::Duration;

use crate::api::clock;
use crate::api::read_error::ReadError;
use crate::api::waiting::{anonymous_holder, sentence};
use crate::governor::counters::Counters;
use crate::governor::explain::seconds;
use crate::jobs::record::LaneDepth;
use crate::jobs::{LanesAfter, Queue};
use crate::throttle::held::OVER_QUOTA_AFTER_S;
use crate::throttle::rolling_window::lasting_rps;
use crate::throttle::tree::MAX_LEVELS;
use crate::throttle::{
    AcquireRequest, HeldKeys, KeyBacklog, KeyState, Knobs, LaneRequest, Limit, MAX_LANES_PER_ASK,
    Name, OverQuotaKey, RateLimit, Status, Store,
};

/// The most lanes of a throttle whose arrivals are counted, deepest first.
const OVER_QUOTA_LANES_MAX: usize = 20;

/// The most lanes of a throttle whose keys are asked for their own limits, deepest first.
const KEYS_ASKED_MAX: i64 = 20;

/// The wait for a token from which its end is told.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// The share of a time in which a rate was the limit, from which a free token shows nothing:
/// between two tokens of a throttle that flows one is free for a moment.
const LIMITED_SHARE: f64 = 0.5;

/// Counts the keys of a throttle that hold jobs back or are over their quota; `None` where none is.
pub async fn held_keys(
    queue: &Queue,
    throttles: &dyn Store,
    name: &Name,
) -> Result<Option<HeldKeys>, ReadError> {
    // For most throttles one cheap request shows that no key has a limit of its own.
    if throttles.peek(&ask_of(name, [""])).await.levels_decide {
        return Ok(None);
    }
    let page = queue
        .lanes_of(
            name.as_str(),
            &LanesAfter::DEEPEST,
            MAX_LANES_PER_ASK as i64,
        )
        .await;
    let lanes = page?.lanes;
    let keys: Vec<String> = lanes.iter().map(|lane| lane.key.clone()).collect();
    let states = throttles.look(name, &keys).await?;
    let status = throttles.status(name).await?;
    let held = HeldKeys::of(
        lanes
            .iter()
            .zip(&states)
            .map(|(lane, state)| (lane.key.as_str(), lane.depth, state)),
    );
    let over_quota = match &status {
        Some(status) => over_quota(queue, &status.knobs, &lanes, &states).await?,
        None => Vec::new(),
    };
    let held = held.with_over_quota(over_quota);
    Ok((held.held() + held.over_quota > 0).then_some(held))
}

/// Finds the keys that ask for more than their quota all the time, among the deepest lanes.
async fn over_quota(
    queue: &Queue,
    knobs: &Knobs,
    lanes: &[LaneDepth],
    states: &[KeyState],
) -> Result<Vec<OverQuotaKey>, ReadError> {
    let now = clock::now();
    let suspects: Vec<(&LaneDepth, f64, f64)> = lanes
        .iter()
        .zip(states)
        .filter_map(|(lane, state)| {
            let oldest_s = now.duration_since(lane.oldest_due_at?).as_secs_f64();
            let granted = granted_rps(knobs, &lane.key, state)?;
            (oldest_s >= OVER_QUOTA_AFTER_S).then_some((lane, oldest_s, granted))
        })
        .take(OVER_QUOTA_LANES_MAX)
        .collect();
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = suspects.iter().map(|(lane, ..)| lane.lane_id).collect();
    let span = Duration::from_secs_f64(OVER_QUOTA_AFTER_S);
    let arrivals = queue.lane_arrivals(&ids, span).await?;
    let found = suspects.iter().filter_map(|(lane, oldest_s, granted)| {
        let arrived = arrivals.iter().find(|of| of.lane_id == lane.lane_id)?;
        let backlog = KeyBacklog {
            ready: lane.depth,
            oldest_s: *oldest_s,
            arrived: arrived.jobs,
            arrived_tokens: arrived.tokens * knobs.cost_factor,
            arrived_within_s: arrived.span_s,
        };
        OverQuotaKey::of(&lane.key, *granted, &backlog)
    });
    Ok(found.collect())
}

/// Returns the tokens per second that a key is granted at most by its server, as far as that is
/// known, and by the knobs of keys; `None` without a limit, or if the key is stopped.
fn granted_rps(knobs: &Knobs, key: &str, state: &KeyState) -> Option<f64> {
    let by_knobs = if key.is_empty() {
        RateLimit::Unlimited
    } else {
        knobs.key_rate().rps.slower(lasting_rps(&knobs.key_windows))
    };
    let by_server = state
        .granted_rps()
        .map_or(RateLimit::Unlimited, RateLimit::new);
    by_knobs.slower(by_server).rate()
}

/// Describes the wait of the next job of a throttle for the tokens of one above, or for its own
/// windows; `None` if something else holds it longer, or nothing does.
pub async fn wait_for_grant(throttles: &dyn Store, status: &Status) -> Option<String> {
    let answer = throttles.peek(&ask_of(&status.name, [""])).await;
    let grant = answer.lanes.first()?;
    let limit = grant.limit.as_ref().filter(|limit| match limit {
        Limit::Tier { .. } => true,
        // The usual wait of a short window is told by the rate.
        Limit::Throttle => grant.by_windows && grant.wait >= LONG_WAIT,
        _ => false,
    })?;
    let name = status.name.as_str();
    let reason = sentence(name, "", answer.effective_rps, limit, grant.by_windows);
    if grant.wait < LONG_WAIT {
        return Some(reason);
    }
    let left = seconds(grant.wait.as_secs_f64());
    Some(format!("{reason}; the next job starts in {left}"))
}

/// Describes the wait of a throttle's jobs for the limits of their keys, among the deepest lanes;
/// `None` if the knobs limit no key, or none is at its limit.
pub async fn wait_of_keys(
    queue: &Queue,
    throttles: &dyn Store,
    status: &Status,
) -> Result<Option<String>, ReadError> {
    let wait_s = status.key_wait_s();
    let has_slots = wait_s >= 0.0 && status.knobs.key_concurrency.is_some();
    if wait_s <= 0.0 && !has_slots {
        return Ok(None);
    }
    let name = status.name.as_str();
    let page = queue.lanes_of(name, &LanesAfter::DEEPEST, KEYS_ASKED_MAX);
    let keys: Vec<String> = page.await?.lanes.into_iter().map(|lane| lane.key).collect();
    let limited = limited_keys(throttles, &status.name, &keys).await;
    Ok(limited.sentence(keys.len()))
}

/// The numbers of keys whose own limit lets no job of them start.
#[derive(Debug, Default, PartialEq)]
struct LimitedKeys {
    by_rate: usize,
    by_slots: usize,
}

impl LimitedKeys {
    /// Describes them among `all` keys; `None` if there are none.
    fn sentence(&self, all: usize) -> Option<String> {
        let knobs = match (self.by_rate, self.by_slots) {
            (0, 0) => return None,
            (_, 0) => "(key_rps or key_windows)",
            (0, _) => "(key_concurrency)",
            _ => "(key_rps, key_windows or key_concurrency)",
        };
        Some(match (self.by_rate + self.by_slots, all) {
            (1, 1) => format!("the key that they have is at its own limit {knobs}"),
            (limited, all) => format!(
                "{limited} of the {all} keys with the most of them are at their own limits {knobs}"
            ),
        })
    }
}

/// Counts the keys whose own limit lets no job of them start.
async fn limited_keys(throttles: &dyn Store, name: &Name, keys: &[String]) -> LimitedKeys {
    if keys.is_empty() {
        return LimitedKeys::default();
    }
    let ask = ask_with_slots(name, keys.iter().map(String::as_str));
    let lanes = throttles.peek(&ask).await.lanes;
    let mut limited = LimitedKeys::default();
    for grant in &lanes {
        match grant.limit {
            Some(Limit::Key) => limited.by_rate += 1,
            Some(Limit::Concurrency { key: true, .. }) => limited.by_slots += 1,
            _ => {}
        }
    }
    limited
}

/// Returns true if a job would get its token now, so that its throttle is not what it waits for. A
/// limit of its key is not considered, but for slots.
pub async fn has_free_token(throttles: &dyn Store, status: &Status) -> bool {
    let ask = ask_with_slots(&status.name, [""]);
    let lanes = throttles.peek(&ask).await.lanes;
    status.knobs.key_concurrency.is_none() && lanes.first().is_some_and(|grant| grant.granted > 0)
}

/// Returns a throttle and those above it, nearest first.
pub async fn with_those_above(throttles: &dyn Store, status: &Status) -> Vec<Status> {
    let mut chain = vec![status.clone()];
    for _ in 0..MAX_LEVELS {
        let parent = chain.last().and_then(|last| last.knobs.parent.clone());
        let Some(parent) = parent else { break };
        let Ok(Some(above)) = throttles.status(&parent).await else {
            break;
        };
        chain.push(above);
    }
    chain
}

/// Returns true if a job would get its token now, and since `before` was read, the throttle and
/// those above it, none of their rates was the limit for long: no worker has a free slot then,
/// because one that has takes a free token at once.
pub async fn has_idle_token(throttles: &dyn Store, before: &[Status]) -> bool {
    let Some(status) = before.first() else {
        return false;
    };
    if !has_free_token(throttles, status).await {
        return false;
    }
    for earlier in before {
        let Ok(Some(now)) = throttles.status(&earlier.name).await else {
            return false;
        };
        let flow = Counters::of(&now).since(&Counters::of(earlier));
        if flow.is_none_or(|flow| flow.limited_by(now.effective_rps) >= LIMITED_SHARE) {
            return false;
        }
    }
    true
}

/// Returns the throttle, among `status` and those above it, whose slots are all in use; `None` if a
/// slot is free or something else holds the jobs longer.
pub async fn full_slots(throttles: &dyn Store, status: &Status) -> Option<Status> {
    let ask = ask_with_slots(&status.name, [""]);
    let grant = throttles.peek(&ask).await.lanes.into_iter().next()?;
    match grant.limit? {
        Limit::Concurrency { name, key: false } if name == status.name => Some(status.clone()),
        Limit::Concurrency { name, key: false } => throttles.status(&name).await.ok()?,
        _ => None,
    }
}

/// Returns the question whether a job of each of these keys could start.
fn ask_of<'a>(throttle: &Name, keys: impl IntoIterator<Item = &'a str>) -> AcquireRequest {
    let lane = |key: &str| LaneRequest {
        key: key.to_owned(),
        ..LaneRequest::default()
    };
    AcquireRequest {
        throttle: throttle.clone(),
        lanes: keys.into_iter().map(lane).collect(),
        holder: None,
    }
}

/// Returns the same question, which examines the limits of concurrency as well: only an ask of a
/// holder does.
fn ask_with_slots<'a>(throttle: &Name, keys: impl IntoIterator<Item = &'a str>) -> AcquireRequest {
    AcquireRequest {
        holder: Some(anonymous_holder()),
        ..ask_of(throttle, keys)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::throttle::{Change, Holder, MemoryStore};

    #[tokio::test]
    async fn keys_that_are_at_their_own_limits_are_counted() {
        let store = MemoryStore::new(Arc::new(|| 1_700_000_000_000_000));
        let name = Name::new("hooks").unwrap();
        for (field, text) in [("rps", "-1"), ("key_windows", "1/3600")] {
            store.write_raw(&name, field, text);
        }
        let keys = ["a", "b", "c"].map(str::to_owned);
        let limited = async |keys: &[String]| limited_keys(&store, &name, keys).await;
        assert_eq!(limited(&keys).await, LimitedKeys::default());
        store.acquire(&ask_of(&name, ["a", "c"])).await;
        let two = limited(&keys).await;
        assert_eq!((two.by_rate, two.by_slots), (2, 0));
        assert_eq!(limited(&[]).await, LimitedKeys::default());
        assert_eq!(
            two.sentence(3).as_deref(),
            Some(
                "2 of the 3 keys with the most of them are at their own limits (key_rps or key_windows)"
            )
        );
        assert_eq!(LimitedKeys::default().sentence(3), None);
    }

    #[tokio::test]
    async fn a_key_whose_slots_are_all_in_use_is_at_its_limit() {
        let store = MemoryStore::new(Arc::new(|| 1_700_000_000_000_000));
        let status = create(&store, "hooks", &[("rps", "-1"), ("key_concurrency", "1")]).await;
        let holder = Holder {
            id: "hangs".to_owned(),
            ttl: Duration::from_secs(60),
            held: 1,
        };
        let held = [("a".to_owned(), 1)];
        store.hold(&status.name, &holder, &held).await.unwrap();

        let keys = ["a", "b"].map(str::to_owned);
        let limited = limited_keys(&store, &status.name, &keys).await;
        assert_eq!((limited.by_rate, limited.by_slots), (0, 1));
        assert_eq!(
            limited.sentence(1).as_deref(),
            Some("the key that they have is at its own limit (key_concurrency)")
        );
    }

    /// Creates a throttle with these knobs.
    async fn create(store: &MemoryStore, name: &str, fields: &[(&str, &str)]) -> Status {
        let fields = fields.iter();
        let fields = fields.map(|(field, text)| (field.to_string(), Some(text.to_string())));
        let change = Change {
            fields: fields.collect(),
            create: true,
            ..Change::default()
        };
        let set = store.set(&Name::new(name).unwrap(), &change).await;
        set.unwrap().1
    }

    #[tokio::test]
    async fn the_used_up_window_of_a_throttle_above_is_what_its_jobs_wait_for() {
        let store = MemoryStore::new(Arc::new(|| 1_700_000_000_000_000));
        create(&store, "all", &[("rps", "-1"), ("windows", "1/3600")]).await;
        let below = create(&store, "hooks", &[("rps", "-1"), ("parent", "all")]).await;
        assert_eq!(wait_for_grant(&store, &below).await, None);

        store.acquire(&ask_of(&below.name, [""])).await;
        assert_eq!(
            wait_for_grant(&store, &below).await.as_deref(),
            Some(
                "throttle all above hooks has granted what its windows allow; the next \
                 job starts in 60 min"
            )
        );
    }

    #[tokio::test]
    async fn a_used_up_window_is_what_jobs_wait_for_unless_it_is_short() {
        let store = MemoryStore::new(Arc::new(|| 1_700_000_000_000_000));
        let long = create(&store, "hooks", &[("rps", "10"), ("windows", "1/3600")]).await;
        let short = create(&store, "mail", &[("rps", "10"), ("windows", "1/1")]).await;
        for status in [&long, &short] {
            assert_eq!(wait_for_grant(&store, status).await, None);
            store.acquire(&ask_of(&status.name, [""])).await;
        }

        assert_eq!(
            wait_for_grant(&store, &long).await.as_deref(),
            Some(
                "throttle hooks has granted what its windows allow; the next job starts in 60 \
                 min"
            )
        );
        assert_eq!(wait_for_grant(&store, &short).await, None);
    }

    #[tokio::test]
    async fn a_token_is_free_if_neither_the_rate_nor_slots_are_in_the_way() {
        let store = MemoryStore::new(Arc::new(|| 1_700_000_000_000_000));
        let free = async |fields: &[(&str, &str)]| {
            let status = create(&store, "hooks", fields).await;
            has_free_token(&store, &status).await
        };
        assert!(free(&[("rps", "10")]).await);
        assert!(!free(&[("key_concurrency", "1")]).await);
        assert!(!free(&[("key_concurrency", "-1"), ("concurrency", "0")]).await);
        assert!(free(&[("concurrency", "-1")]).await);
        assert!(!free(&[("rps", "0")]).await);
    }

    #[tokio::test]
    async fn a_token_is_idle_where_the_rate_of_no_throttle_is_the_limit() {
        let now = Arc::new(AtomicI64::new(1_700_000_000_000_000));
        let clock = now.clone();
        let store = MemoryStore::new(Arc::new(move || clock.load(Ordering::Relaxed)));
        create(&store, "all", &[("rps", "10")]).await;
        create(&store, "free", &[("rps", "-1")]).await;
        // For a second, in each nth tenth of it, workers with free slots ask for so many.
        let is_idle = async |name: &str, parent: &str, nth: usize, asks: usize| {
            let status = create(&store, name, &[("rps", "-1"), ("parent", parent)]).await;
            let before = with_those_above(&store, &status).await;
            assert_eq!(before.len(), 2, "{name}");
            for tenth in 0..10 {
                let asked = if tenth % nth == 0 { asks } else { 0 };
                for _ in 0..asked {
                    store.acquire(&ask_of(&status.name, [""])).await;
                }
                now.fetch_add(101_000, Ordering::Relaxed);
            }
            assert!(has_free_token(&store, &status).await, "{name}");
            has_idle_token(&store, &before).await
        };
        assert!(is_idle("unlimited", "free", 1, 3).await);
        assert!(is_idle("no-slots", "all", 10, 0).await);
        assert!(is_idle("few-slots", "all", 4, 1).await);
        assert!(!is_idle("many-slots", "all", 1, 12).await);
    }
}
