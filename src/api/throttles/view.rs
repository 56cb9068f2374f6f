//! A throttle as the API shows it: the store's status, joined with its measurements.

use jiff::Timestamp;
use serde::Serialize;

use super::measured::Measured;
use crate::governor::GovernorView;
use crate::jobs::{Depth, Failing};
use crate::throttle::admission::units_of;
use crate::throttle::direct_change::is_changed_directly;
use crate::throttle::rolling_window::{WindowLimit, in_words};
use crate::throttle::status::EXPIRES;
use crate::throttle::{
    HeldKeys, Knobs, RateLimit, RefusalPause, Status, concurrency_number, no_throttle_of_job,
};

/// A throttle with its knobs, its rate, its queue and its governor.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Throttle)]
pub struct View {
    /// The name of the throttle.
    #[schema(example = "reindex")]
    pub name: String,
    /// The mode, which decides who sets `rps`: `auto`, `manual`, `shadow` or `off`.
    pub mode: Option<&'static str>,
    /// The throttle from which this one takes tokens as well.
    pub parent: Option<String>,
    /// True while a person has paused it.
    pub paused: bool,
    /// The count of writes through Flyball; the value for `If-Match`.
    pub seq: u64,
    /// The knobs; `null` for a name that only jobs use.
    pub knobs: Option<KnobsView>,
    /// The rate in force, in tokens per second: 0 stopped, -1 unlimited.
    #[schema(value_type = Option<f64>)]
    pub effective_rps: Option<RateLimit>,
    /// Tokens per second taken over the last seconds; `null` until known.
    pub achieved_rps: Option<f64>,
    /// Share of that time in which a job or a request waited for tokens, 0 to 1.
    pub limiting_share: Option<f64>,
    /// The state: `flowing`, `paused`, `stopped`, `refused`, `debt`, `no_writes`, `failing`, `held`,
    /// `safe_rps`, `unlimited` or `unknown`.
    pub state: &'static str,
    /// The pause of the whole throttle after a refusal; `null` while there is none.
    pub refusal: Option<RefusalView>,
    /// The end of the debt, before which nothing is granted; `null` without a debt.
    pub debt_until: Option<Timestamp>,
    /// The keys that hold their jobs back; `null` if none does, and before the first search.
    pub held_keys: Option<HeldKeysView>,
    /// The failures, if all jobs of the throttle fail; `null` otherwise.
    pub failing: Option<FailingView>,
    /// The knobs whose values cannot be used.
    pub problems: Vec<ProblemView>,
    /// The jobs at the last count; `null` before it.
    pub depth: Option<DepthView>,
    /// The governor; `null` if the throttle has none.
    pub governor: Option<GovernorView>,
    /// Warnings about side effects of a change that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The knobs in use.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Knobs)]
pub struct KnobsView {
    /// Tokens per second; 0 stops, -1 is unlimited.
    #[schema(value_type = f64)]
    pub rps: RateLimit,
    /// Unix milliseconds at which manual mode ends; `null` for no end.
    pub manual_until_ms: Option<i64>,
    /// Tokens that may be spent at once after an idle time, in windows' worth.
    pub burst: f64,
    /// The window, in seconds.
    pub window: f64,
    /// Lowest rate that the governor may set.
    pub min: f64,
    /// Highest rate that the governor may set.
    pub max: f64,
    /// Rate in force when `rps` cannot be read or its lease has expired.
    #[schema(value_type = f64)]
    pub safe_rps: RateLimit,
    /// The rate that the resource behind the throttle can serve now; no rate in force is above it.
    /// -1 means no limit.
    #[schema(value_type = f64)]
    pub capacity: RateLimit,
    /// The reason for `capacity`; empty if none was given.
    pub capacity_reason: String,
    /// Rate of each key; -1 is unlimited.
    #[schema(value_type = f64)]
    pub key_rps: RateLimit,
    /// Tokens of each key that may be spent at once, as `burst`.
    pub key_burst: f64,
    /// The factor by which the costs of jobs count.
    pub cost_factor: f64,
    /// The rolling windows, such as `10/1 1000/3600`: tokens per seconds; empty for none.
    pub windows: String,
    /// The rolling windows of each key.
    pub key_windows: String,
    /// The answer to requests for tokens while Redis does not answer: `closed`, `open` or `local`.
    pub on_store_loss: &'static str,
    /// True if the throttle takes the spare tokens of its parent beyond its own rate.
    pub borrow: bool,
    /// The effect of another server's refusal: `active-informed`, `active-naive`,
    /// `passive-informed` or `passive-naive`.
    pub on_429: &'static str,
    /// The highest level that an answer of a receiver may slow down: `key`, `throttle` or
    /// `account`.
    pub trust_scope: &'static str,
    /// The longest pause after a refusal, in seconds; `null` for the default.
    pub max_pause: Option<f64>,
    /// The most jobs that may run at once over all processes; -1 means no limit.
    pub concurrency: i64,
    /// The most jobs of one key that may run at once over all processes; -1 means no limit.
    pub key_concurrency: i64,
    /// Share of a worker's slots beside other throttles.
    pub weight: f64,
    /// The fate of jobs that cannot run at once: `wait`, `drop` or `merge`.
    pub over_limit: &'static str,
    /// The highest cost of one job that is accepted, in tokens: the knob or, if it is absent, the
    /// cost that follows from the others.
    pub max_cost: f64,
    /// The most jobs of one lane that may wait before `on_backlog` acts; `null` for no limit.
    pub max_backlog: Option<u64>,
    /// The effect of a backlog above `max_backlog`: `signal` or `reject`.
    pub on_backlog: &'static str,
    /// Unix milliseconds after which `safe_rps` is in force.
    pub valid_until_ms: Option<i64>,
    /// The author of the last write.
    pub by: String,
    /// The time of the last write, in unix milliseconds.
    pub at_ms: i64,
    /// The reason for the last write.
    pub why: String,
}

/// The pause of a whole throttle after a receiver refused one of its jobs.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = ThrottleRefusal)]
pub struct RefusalView {
    /// The end of the pause.
    pub until: Timestamp,
    /// The answer of the receiver.
    pub why: String,
}

/// Keys that hold their jobs back, among the deepest lanes.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = HeldKeys)]
pub struct HeldKeysView {
    /// Keys with ready jobs that were examined.
    pub keys: u64,
    /// Ready jobs of these keys.
    pub ready: i64,
    /// Keys that are paused.
    pub paused: u64,
    /// Keys that wait until a quota is full again.
    pub resting: u64,
    /// Keys at a rate that was learned from the answers of their receivers.
    pub learned: u64,
    /// Keys whose pause is over and which are granted one job at a time.
    pub probing: u64,
    /// Ready jobs of the paused, resting, learned and probing keys.
    pub held_ready: i64,
    /// The slowest of these keys.
    pub slowest: Option<SlowestKeyView>,
    /// Keys that have asked for more than their quota for at least five minutes, so that their
    /// backlog grows; at most 20 are examined.
    pub over_quota: u64,
    /// The one of them that asks for the most, compared with its quota.
    pub most_over_quota: Option<OverQuotaKeyView>,
}

/// A key that asks for more than its quota all the time.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = OverQuotaKey)]
pub struct OverQuotaKeyView {
    /// The key; empty for jobs without one.
    pub key: String,
    /// The tokens per second that its new jobs cost.
    pub requested_rps: f64,
    /// The tokens per second that its server or its knobs grant.
    pub granted_rps: f64,
    /// The growth of its backlog, in jobs per minute.
    pub growth_per_min: f64,
}

/// The key that holds its jobs back the most.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = SlowestKey)]
pub struct SlowestKeyView {
    /// The key; empty for jobs without one.
    pub key: String,
    /// The end of the pause.
    pub paused_until: Option<Timestamp>,
    /// The reason for the pause.
    pub why: String,
    /// The learned rate, in tokens per second.
    pub learned_rps: Option<f64>,
}

/// Failures of a throttle whose jobs all fail.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = ThrottleFailing)]
pub struct FailingView {
    /// Attempts that failed since the last success.
    pub failures: i64,
    /// The time of the last success; `null` if there was none since the workers started.
    pub succeeded_at: Option<Timestamp>,
}

/// A knob whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = KnobProblem)]
pub struct ProblemView {
    /// The field of the hash.
    pub field: String,
    /// The error and the allowed values.
    pub message: String,
}

/// The jobs of a throttle.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = ThrottleDepth)]
pub struct DepthView {
    /// Jobs that wait for tokens.
    pub ready: i64,
    /// Jobs that wait for a time.
    pub scheduled: i64,
    /// Jobs that hold a lease.
    pub running: i64,
    /// Dead jobs.
    pub dead: i64,
    /// Seconds for which the oldest ready job has waited, from its creation or from the time for
    /// which it was enqueued; `null` where no job is ready.
    pub oldest_ready_s: Option<f64>,
    /// The time of the count; no figure is older.
    pub at: Timestamp,
}

impl View {
    /// Joins a status with the measurements of the sampler.
    pub fn of(
        status: &Status,
        measured: Option<&Measured>,
        counted_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Self {
        let knobs = &status.knobs;
        Self {
            name: status.name.to_string(),
            mode: Some(mode_word(knobs)),
            parent: knobs.parent.as_ref().map(ToString::to_string),
            paused: knobs.paused,
            seq: knobs.seq,
            knobs: Some(KnobsView::of(knobs)),
            effective_rps: Some(status.effective_rps),
            achieved_rps: measured
                .and_then(|measured| measured.slope)
                .map(|slope| slope.achieved_rps),
            limiting_share: measured
                .and_then(|measured| measured.slope)
                .map(|slope| slope.limiting_share),
            state: state_word(status, measured),
            refusal: status.refusal.as_ref().and_then(RefusalView::of),
            debt_until: status
                .debt_until_ms
                .and_then(|ms| Timestamp::from_millisecond(ms).ok()),
            held_keys: measured
                .and_then(|measured| measured.held.as_ref())
                .map(HeldKeysView::of),
            failing: measured
                .and_then(|measured| measured.failing.as_ref())
                .map(FailingView::of),
            problems: status
                .problems
                .iter()
                .map(|problem| ProblemView {
                    field: problem.field.clone(),
                    message: problem.message.clone(),
                })
                .collect(),
            depth: counted_at
                .map(|at| DepthView::of(measured.map(|measured| &measured.depth), at, now)),
            governor: measured.and_then(|measured| measured.governor.clone()),
            warnings: Vec::new(),
        }
    }

    /// Returns the view of a name that jobs use and no throttle has: its jobs are parked.
    pub fn parked(name: &str, depth: &Depth, counted_at: Timestamp, now: Timestamp) -> Self {
        let how = format!(
            "; its jobs wait until an operator creates it: flyball throttle set {name} rps=10"
        );
        Self {
            name: name.to_owned(),
            mode: None,
            parent: None,
            paused: false,
            seq: 0,
            knobs: None,
            effective_rps: None,
            achieved_rps: None,
            limiting_share: None,
            state: "unknown",
            refusal: None,
            debt_until: None,
            held_keys: None,
            failing: None,
            problems: vec![ProblemView {
                field: String::new(),
                message: no_throttle_of_job(name, &how),
            }],
            depth: Some(DepthView::of(Some(depth), counted_at, now)),
            governor: None,
            warnings: Vec::new(),
        }
    }
}

impl RefusalView {
    fn of(refusal: &RefusalPause) -> Option<Self> {
        Some(Self {
            until: Timestamp::from_millisecond(refusal.until_ms).ok()?,
            why: refusal.why.clone(),
        })
    }
}

impl HeldKeysView {
    fn of(held: &HeldKeys) -> Self {
        let slowest = held.slowest.as_ref().map(|slowest| SlowestKeyView {
            key: slowest.key.clone(),
            paused_until: slowest
                .paused_until_ms
                .and_then(|ms| Timestamp::from_millisecond(ms).ok()),
            why: slowest.why.clone(),
            learned_rps: slowest.learned_rps,
        });
        let HeldKeys {
            keys,
            ready,
            paused,
            resting,
            learned,
            probing,
            held_ready,
            over_quota,
            ..
        } = *held;
        let most_over_quota = held.most_over_quota.as_ref().map(|most| OverQuotaKeyView {
            key: most.key.clone(),
            requested_rps: most.requested_rps,
            granted_rps: most.granted_rps,
            growth_per_min: most.growth_per_min,
        });
        Self {
            keys,
            ready,
            paused,
            resting,
            learned,
            probing,
            held_ready,
            slowest,
            over_quota,
            most_over_quota,
        }
    }
}

impl FailingView {
    fn of(failing: &Failing) -> Self {
        Self {
            failures: failing.failures,
            succeeded_at: failing.succeeded_at,
        }
    }
}

/// Returns limits of rolling windows as the knob has them.
fn window_text(limits: &[WindowLimit]) -> String {
    let texts: Vec<String> = limits.iter().map(WindowLimit::to_string).collect();
    texts.join(" ")
}

impl KnobsView {
    fn of(knobs: &Knobs) -> Self {
        Self {
            rps: knobs.rps,
            manual_until_ms: knobs.manual_until_ms,
            burst: knobs.burst,
            window: knobs.window,
            min: knobs.min,
            max: knobs.max,
            safe_rps: knobs.safe_rps,
            capacity: knobs.capacity,
            capacity_reason: knobs.capacity_reason.clone(),
            key_rps: knobs.key_rps,
            key_burst: knobs.key_burst,
            cost_factor: knobs.cost_factor,
            windows: window_text(&knobs.windows),
            key_windows: window_text(&knobs.key_windows),
            on_store_loss: knobs.on_store_loss.as_str(),
            borrow: knobs.borrow,
            on_429: knobs.on_429.as_str(),
            trust_scope: knobs.trust_scope.as_str(),
            max_pause: knobs.max_pause,
            concurrency: concurrency_number(knobs.concurrency),
            key_concurrency: concurrency_number(knobs.key_concurrency),
            weight: knobs.weight,
            over_limit: knobs.over_limit.as_str(),
            max_cost: knobs.max_cost(),
            max_backlog: knobs.max_backlog,
            on_backlog: knobs.on_backlog.as_str(),
            valid_until_ms: knobs.valid_until_ms,
            by: knobs.by.clone(),
            at_ms: knobs.at_ms,
            why: knobs.why.clone(),
        }
    }
}

impl DepthView {
    fn of(depth: Option<&Depth>, at: Timestamp, now: Timestamp) -> Self {
        let depth = depth.cloned().unwrap_or_default();
        Self {
            ready: depth.ready,
            scheduled: depth.scheduled,
            running: depth.running,
            dead: depth.dead,
            oldest_ready_s: depth.oldest_ready_at.map(|oldest| since_s(oldest, now)),
            at,
        }
    }
}

/// Returns the seconds from `then` to `now`, at least 0, because the two clocks may differ.
pub fn since_s(then: Timestamp, now: Timestamp) -> f64 {
    (now.duration_since(then).as_secs_f64()).max(0.0)
}

/// Returns the name of the mode.
pub fn mode_word(knobs: &Knobs) -> &'static str {
    match knobs.mode {
        crate::throttle::Mode::Auto => "auto",
        crate::throttle::Mode::Manual => "manual",
        crate::throttle::Mode::Shadow => "shadow",
        crate::throttle::Mode::Off => "off",
    }
}

/// The share of waiting for the throttle's own tokens above which its keys do not count as the
/// cause of the wait.
const LIMITING: f64 = 0.5;

/// Returns the state of a throttle, as a word, with its measurements.
pub fn state_word(status: &Status, measured: Option<&Measured>) -> &'static str {
    let own = own_state(status);
    if matches!(own, "paused" | "stopped" | "refused" | "debt") {
        return own;
    }
    let Some(measured) = measured else { return own };
    if let Some(above) = measured.above {
        return above;
    }
    if measured.is_unwritable {
        return "no_writes";
    }
    let is_limiting = measured
        .slope
        .is_some_and(|slope| slope.limiting_share > LIMITING);
    match own {
        _ if measured.failing.is_some() => "failing",
        _ if !is_limiting && measured.held.as_ref().is_some_and(HeldKeys::hold_most) => "held",
        own => own,
    }
}

/// Returns the state of a throttle below `status`, if `status` grants nothing.
pub fn state_below(status: &Status) -> Option<&'static str> {
    match own_state(status) {
        "paused" | "stopped" => Some("stopped"),
        word @ ("refused" | "debt") => Some(word),
        _ => None,
    }
}

/// Returns the state of a throttle by its own hash and bucket.
fn own_state(status: &Status) -> &'static str {
    // An error in one of these makes the throttle run at `safe_rps`, or at `rps` if that is slower.
    const CAREFUL: [&str; 10] = [
        "rps",
        "burst",
        "window",
        "safe_rps",
        "capacity",
        "key_rps",
        "key_burst",
        "cost_factor",
        "windows",
        "key_windows",
    ];
    let is_careful = status
        .problems
        .iter()
        .any(|problem| CAREFUL.contains(&problem.field.as_str()));
    match status.effective_rps {
        _ if status.knobs.paused => "paused",
        RateLimit::Stopped => "stopped",
        _ if status.knobs.concurrency == Some(0) => "stopped",
        _ if status.has_missing_parent() => "stopped",
        _ if status.refusal.is_some() => "refused",
        _ if status.debt_until_ms.is_some() => "debt",
        _ if status.lease_expired || is_careful => "safe_rps",
        RateLimit::Unlimited if status.knobs.windows.is_empty() => "unlimited",
        _ => "flowing",
    }
}

/// Explains the throttle's rate by its knobs, and reports their expiry if they have one.
pub fn explain(status: &Status) -> String {
    let expiry = status
        .problems
        .iter()
        .find(|problem| problem.field == EXPIRES);
    let expiry = expiry.map_or_else(String::new, |problem| {
        format!("; its knobs expire {}", problem.message)
    });
    format!("{}{expiry}", explain_rate(status))
}

fn explain_rate(status: &Status) -> String {
    let (name, knobs) = (&status.name, &status.knobs);
    let rate = crate::api::waiting::rate(status.effective_rps);
    if status.has_missing_parent() || status.raw.is_empty() {
        let answer: Vec<String> = status
            .problems
            .iter()
            .map(|problem| format!("{}: {}", problem.field, problem.message))
            .collect();
        return format!("{name} is stopped: {}", answer.join("; "));
    }
    if let Some(problem) = status
        .problems
        .iter()
        .find(|problem| problem.field != EXPIRES)
    {
        return format!(
            "{name} runs at {rate} a second because a knob is unusable: {}: {}",
            problem.field, problem.message
        );
    }
    let when = Timestamp::from_millisecond(knobs.at_ms)
        .ok()
        .filter(|_| knobs.at_ms > 0);
    let when = when.map_or_else(String::new, |at| format!(" at {at:.0}"));
    let why = if knobs.why.is_empty() {
        String::new()
    } else {
        format!(": {}", knobs.why)
    };
    let changed = match knobs.by.as_str() {
        "" if is_changed_directly(&status.raw) => "in Redis directly".to_owned(),
        "" => format!("by somebody{when}{why}"),
        who => format!("by {who}{when}{why}"),
    };
    if !knobs.paused && knobs.is_limited_by_capacity(status.at_us) {
        let why = match knobs.capacity_reason.as_str() {
            "" => String::new(),
            why => format!(": {why}"),
        };
        return match status.effective_rps {
            RateLimit::Stopped => format!("{name} is stopped because its capacity is 0{why}"),
            _ => format!("{name} runs at {rate} a second because that is its capacity now{why}"),
        };
    }
    match own_state(status) {
        "paused" => format!("{name} is paused; its knobs were last changed {changed}"),
        "stopped" => format!(
            "{name} is stopped because its {} is 0; its knobs were last changed {changed}",
            match status.effective_rps {
                RateLimit::Stopped => "rate",
                _ => "knob concurrency",
            }
        ),
        "safe_rps" => format!(
            "{name} runs at its safe rate of {rate} a second because its governor's lease has \
             expired"
        ),
        "flowing" if status.effective_rps.is_unlimited() => format!(
            "{name} has no rate, and grants at most {}; its knobs were last changed {changed}",
            in_words(&knobs.windows, units_of(name.as_str()).0)
        ),
        "unlimited" => {
            format!("{name} has no limit; its knobs were last changed {changed}")
        }
        _ => format!("{name} runs at {rate} a second; its knobs were last changed {changed}"),
    }
}
