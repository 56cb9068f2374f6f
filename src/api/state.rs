//! What the routes share, and what the composition root hands over.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::auth::Token;
use super::gate::Gate;
use super::line::Lines;
use super::live::Live;
use super::metrics::HttpMetrics;
use super::sessions::SignedOut;
use crate::notify::Deliveries;
use crate::providers::{Pools, Tools};
use crate::{jobs, throttle};

/// Checks knobs that a person wrote: field and JSON value in, field and the text for the hash out. This is
/// `throttle::Knobs::check`, handed over as a function.
pub type CheckKnobs = fn(
    &BTreeMap<String, Value>,
)
    -> Result<BTreeMap<String, Option<String>>, Vec<throttle::store::Problem>>;

/// Everything that the API needs; the composition root fills it.
#[derive(Clone)]
pub struct Deps {
    /// The queue.
    pub queue: jobs::Queue,
    /// The throttles.
    pub throttles: Arc<dyn throttle::Store>,
    /// Checks an edit of knobs.
    pub check_knobs: CheckKnobs,
    /// The handlers of this process, for their checks of arguments.
    pub kinds: jobs::Kinds,
    /// The pools of accounts that this process looks at.
    pub desks: Vec<crate::providers::pool::Desk>,
    /// The pools of accounts that carry messages.
    pub pools: Arc<Pools>,
    /// What became of messages.
    pub deliveries: Deliveries,
    /// What reading providers' events may need.
    pub tools: Tools,
    /// How the outside reaches us; empty where nobody said.
    pub public_url: String,
    /// The governor's journal.
    pub decisions: Arc<dyn Decisions>,
    /// The last ten minutes and whoever listens; filled by [`super::sample::run`].
    pub live: Live,
    /// The tokens of which requests must carry one; without any only loopback is served.
    pub tokens: Arc<[Token]>,
    /// Metrics of other rooms, e.g. the runner's; the API adds its own.
    pub registry: Arc<prometheus_client::registry::Registry>,
    /// Fires when the process stops: streams end and the listener closes.
    pub cancel: CancellationToken,
}

/// What the governor has decided, read from its journal.
pub trait Decisions: Send + Sync + 'static {
    /// The last decisions, newest first; of all throttles where none is named.
    fn recent<'a>(
        &'a self,
        throttle: Option<&'a str>,
        limit: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>>;

    /// How every governor stands, by throttle, in one read: it is asked each second.
    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorState>, ReadError>>;

    /// One sentence on why the throttle runs at the rate it runs at; `None` leaves it to the knobs to explain themselves.
    fn why<'a>(
        &'a self,
        status: &'a throttle::Status,
    ) -> BoxFuture<'a, Result<Option<String>, ReadError>>;
}

/// Why something could not be read from Postgres.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Postgres does not answer.
    #[error("postgres did not answer: {0}")]
    Lost(String),
    /// Anything else that Postgres said.
    #[error("postgres failed: {0}")]
    Failed(String),
}

/// One decision of a governor.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Decision {
    /// Ascending.
    pub id: i64,
    /// Whose knob.
    pub throttle: String,
    /// When.
    pub at: Timestamp,
    /// The rate it set, in tokens per second.
    pub rps: Option<f64>,
    /// The rate before.
    pub previous_rps: Option<f64>,
    /// `closed`, `half_open` or `open`.
    pub breaker: Option<String>,
    /// The throttle's mode at that time.
    pub mode: Option<String>,
    /// The signal that limits, where one does.
    pub limiting: Option<String>,
    /// Why, in one sentence.
    pub reason: Option<String>,
    /// Readings, terms and clamps, as the governor wrote them.
    pub terms: Value,
}

/// How a governor stands.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct GovernorState {
    /// The knob that it turns: `rps` or `concurrency`.
    #[schema(example = "rps")]
    pub actuator: String,
    /// What that knob is in: `rps` (tokens per second) or `slots` (jobs at once). All that is called a rate here is in it.
    #[schema(example = "rps")]
    pub unit: String,
    /// The knob that it decided on; in shadow mode the one that it would set.
    pub rps: f64,
    /// `closed`, `half_open` or `open`.
    pub breaker: String,
    /// The signal that limits, where one does.
    pub limiting: Option<String>,
    /// Why the rate is what it is, in one sentence.
    pub reason: String,
    /// When it last decided.
    pub at: Timestamp,
    /// The last trip of its breaker; in shadow mode the last one on paper.
    pub last_trip: Option<Trip>,
    /// Who turned the mode or the rate last, past the governor.
    pub hand: Option<HandState>,
    /// In shadow mode: what it would have done, beside what was done.
    pub shadow: Option<ShadowState>,
    /// What its watchdogs have found and still holds.
    pub findings: Vec<FindingState>,
    /// What the watchdogs leave of its gain: 1, 0.5 or 0.25.
    pub gain_factor: f64,
    /// What it looks at.
    pub signals: Vec<SignalState>,
}

/// A trip of a breaker.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Trip {
    /// When.
    pub at: Timestamp,
    /// The signal that tripped it.
    pub by: String,
    /// How high it was, in setpoints.
    pub height: f64,
}

/// A hand on the mode or the rate.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Hand)]
pub struct HandState {
    /// What was turned.
    #[schema(example = "mode manual, rps 30")]
    pub what: String,
    /// Who, where it was told.
    pub by: Option<String>,
    /// When.
    pub at: Timestamp,
    /// Why; empty where it was not told.
    pub why: String,
}

/// What shadow mode would have done, beside what was done, since it began. What is `own` is what its model says.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Shadow)]
pub struct ShadowState {
    /// When shadow mode began.
    pub since: Timestamp,
    /// The time that was looked at, in seconds.
    pub seconds: f64,
    /// Jobs that were let through.
    pub jobs: f64,
    /// Jobs that its own rate would have let through.
    pub own_jobs: f64,
    /// The load above its setpoint over time, in setpoint seconds.
    pub overload_s: f64,
    /// The same at its own rate.
    pub own_overload_s: f64,
    /// The highest load, in setpoints.
    pub peak: f64,
    /// The same at its own rate.
    pub own_peak: f64,
    /// The load now, in setpoints; `null` while nothing is read.
    pub load: Option<f64>,
    /// What the load would be at its own rate.
    pub own_load: Option<f64>,
    /// Seconds in which it would have let fewer jobs through.
    pub lower_s: f64,
    /// Seconds in which it would have let more jobs through.
    pub higher_s: f64,
    /// Seconds in which its breaker would have been open.
    pub stopped_s: f64,
    /// Share of the time above the setpoint in which it would have braked; `null` without such a time.
    pub braked_share: Option<f64>,
    /// All of it in words.
    pub sentence: String,
}

/// What a watchdog of a governor has found.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct FindingState {
    /// `oscillating`, `shared`, `deaf`, `unreachable` or `idle`.
    pub finding: String,
    /// Since when.
    pub since: Timestamp,
    /// What is the matter, by what evidence, and what to do, in one sentence.
    pub sentence: String,
}

/// One signal of a governor.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct SignalState {
    /// Its name.
    pub name: String,
    /// `load`, `latency` or `ratio`.
    pub kind: String,
    /// The last reading; `null` if there was none.
    pub value: Option<f64>,
    /// Where it shall be.
    pub setpoint: f64,
    /// Where the breaker trips.
    pub trip: Option<f64>,
    /// The reading's own time.
    pub at: Option<Timestamp>,
    /// Age of the reading when this was said, in seconds.
    pub age_s: Option<f64>,
    /// True when the reading is too old or unusable.
    pub stale: bool,
    /// The rate that it asks for; `null` before its first reading.
    pub ask_rps: Option<f64>,
    /// What refusals have taught of a quota that nobody told; `null` for other signals and before the first refusal.
    pub learned_quota: Option<QuotaState>,
}

/// A quota as refusals have taught it.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = LearnedQuota)]
pub struct QuotaState {
    /// What was let through of it, in tokens per second (or slots, where these are turned).
    pub rps: f64,
    /// When it was learned: the newest refusal.
    pub at: Timestamp,
    /// The share that was refused then, 0 to 1.
    pub refused_share: f64,
}

/// A journal with nothing in it, for processes that have no governor and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDecisions;

impl Decisions for NoDecisions {
    fn recent<'a>(
        &'a self,
        _: Option<&'a str>,
        _: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorState>, ReadError>> {
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    fn why<'a>(
        &'a self,
        _: &'a throttle::Status,
    ) -> BoxFuture<'a, Result<Option<String>, ReadError>> {
        Box::pin(async { Ok(None) })
    }
}

/// What every route gets.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// The parts of [`App`].
pub struct Parts {
    /// What the composition root handed over.
    pub deps: Deps,
    /// Counters of the requests.
    pub http: HttpMetrics,
    /// What our own throttles have said of requests.
    pub gate: Gate,
    /// Requests that wait for tokens.
    pub lines: Lines,
    /// Sessions that people have ended.
    pub signed_out: SignedOut,
    /// `/openapi.json`.
    pub openapi: String,
}

impl App {
    /// Puts the parts together.
    pub fn new(deps: Deps, openapi: String) -> Self {
        let (http, gate, lines) = (HttpMetrics::default(), Gate::default(), Lines::default());
        Self(Arc::new(Parts {
            deps,
            http,
            gate,
            lines,
            signed_out: SignedOut::default(),
            openapi,
        }))
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}
