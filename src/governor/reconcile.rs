//! The governor's loop: read the throttle and the signals, plan, persist, turn the knob, journal.
//!
//! [`Governor::tick`] and [`Governor::fast`] are called every second by whoever leads, with the leader's term; a tick acts on
//! a throttle when its policy's `tick_s` has passed. Nothing is retried here: the next call sees the whole truth again.
//!
//! The clock is the throttle store's, so a wrong clock on this machine does no harm. Order of a tick: the state is kept
//! first (fenced by the term, with the text that is about to be written), then the knob is turned (fenced by the term, and
//! only if nobody else turned it meanwhile), then the decision is journaled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use tokio::sync::{Mutex as AsyncMutex, broadcast};

use super::calibration;
use super::counters::Counters;
use super::decision::Decision;
use super::limits::Bounds;
use super::plan::{Observation, Plan, Sample, State};
use super::policy::{self, Policy, Source};
use super::postgres::{Error as JournalError, Journal};
use super::view::View;
use crate::signals::{self, DepthSource, Feedback, FeedbackSource, Missing, Probe, Prometheus};
use crate::throttle::{self, Change, Mode, Name, Status, Store};

/// The breaker's zero as it is written into the knob: a spelling of our own, so that it is never taken for a person's stop,
/// even if this process dies between writing and remembering it.
const BREAKERS_ZERO: &str = "0.000";

/// A knob is good for this many ticks, and at least this long, in seconds; past it the throttle falls back to `safe_rps`.
const LEASE_TICKS: f64 = 3.0;
const LEASE_MIN_S: f64 = 15.0;
/// A knob that need not move is written again when this share of its lease is left.
const RENEW_AT: f64 = 0.7;

/// Decisions that a slow listener may fall behind.
const LISTENER_BEHIND: usize = 256;

/// Governs the throttles that have a policy.
pub struct Governor {
    store: Arc<dyn Store>,
    journal: Journal,
    prometheus: Prometheus,
    depth: DepthSource,
    feedback: FeedbackSource,
    throttles: Vec<Governed>,
    decisions: broadcast::Sender<Decision>,
}

/// What a round did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Throttles that were decided on.
    pub decided: usize,
    /// Knobs that were written.
    pub written: usize,
    /// Trips of the fast path.
    pub tripped: usize,
    /// Another process leads: the term given is over.
    pub fenced: bool,
    /// What went wrong, by throttle.
    pub problems: Vec<(Name, String)>,
}

/// Why a throttle could not be governed this time.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] throttle::Error),
    #[error("{0}: {source}", source = std::error::Error::source(.0).map_or_else(String::new, ToString::to_string))]
    Journal(#[from] JournalError),
}

struct Governed {
    name: Name,
    policy: Policy,
    probes: Vec<(String, Probe)>,
    desk: AsyncMutex<Desk>,
    view: Mutex<Option<View>>,
    problems: Mutex<BTreeMap<String, String>>,
}

/// What is kept in memory between rounds; all that matters is in the state.
#[derive(Default)]
struct Desk {
    term: Option<u64>,
    state: Option<State>,
    /// When the next tick is due, by the store's clock.
    due: Option<f64>,
    counters: Option<Counters>,
    looked: Option<Counters>,
    feedback: Option<Feedback>,
    kept: Option<Decision>,
}

impl Desk {
    /// True if a tick is due at `now`; the next one is then due a tick later.
    fn is_due(&mut self, now: f64, tick_s: f64) -> bool {
        // A little early is on time, or the caller's own jitter would skip every other tick. A due time that is further away
        // than a tick was set by a clock that has been corrected since.
        if self.due.is_some_and(|due| now < due - 0.2 && due - now <= tick_s) {
            return false;
        }
        self.due = Some(self.due.filter(|due| (due - now).abs() < 0.5 * tick_s).unwrap_or(now) + tick_s);
        true
    }
}

impl Governor {
    /// A governor of `policies`, with signals from the Prometheus at `prometheus_url`, from `depth` and from `feedback`.
    pub fn new(
        store: Arc<dyn Store>,
        journal: Journal,
        prometheus_url: &str,
        depth: DepthSource,
        policies: Vec<(Name, Policy)>,
        feedback: FeedbackSource,
    ) -> Result<Self, signals::Error> {
        let governed = |(name, policy): (Name, Policy)| {
            let probed = policy.signals.iter().filter_map(|s| Some((s.name.clone(), s.probe.as_ref()?)));
            let probes = probed
                .map(|(name, look)| Ok((name, Probe::new(&look.url, &look.metric)?)))
                .collect::<Result<_, signals::Error>>()?;
            let desk = AsyncMutex::new(Desk::default());
            Ok(Governed { name, policy, probes, desk, view: Mutex::default(), problems: Mutex::default() })
        };
        Ok(Self {
            store,
            journal,
            prometheus: Prometheus::new(prometheus_url)?,
            depth,
            feedback,
            throttles: policies.into_iter().map(governed).collect::<Result<_, signals::Error>>()?,
            decisions: broadcast::channel(LISTENER_BEHIND).0,
        })
    }

    /// Decisions as they are made.
    pub fn decisions(&self) -> broadcast::Receiver<Decision> {
        self.decisions.subscribe()
    }

    /// The governed throttles and their policies.
    pub fn policies(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        self.throttles.iter().map(|t| (&t.name, &t.policy))
    }

    /// Every governor at a glance, as of `now` (unix seconds); empty in a process that does not lead.
    pub fn snapshot(&self, now: f64) -> BTreeMap<Name, View> {
        let view = |t: &Governed| {
            let mut view = lock(&t.view).clone()?;
            view.age(now);
            Some((t.name.clone(), view))
        };
        self.throttles.iter().filter_map(view).collect()
    }

    /// Forgets what this process knows, when it no longer leads; the stored state is the next leader's.
    pub async fn rest(&self) {
        for throttle in &self.throttles {
            *throttle.desk.lock().await = Desk::default();
            *lock(&throttle.view) = None;
        }
    }

    /// Decides for every throttle whose tick is due. Call it every second.
    pub async fn tick(&self, term: u64) -> Report {
        self.round(self.throttles.iter().map(|t| self.tick_one(t, term)), "tick").await
    }

    /// The breaker's fast path: one direct look at every probe. Call it every second.
    pub async fn fast(&self, term: u64) -> Report {
        let probed = self.throttles.iter().filter(|t| !t.probes.is_empty() && t.policy.law.breaker);
        self.round(probed.map(|t| self.fast_one(t, term)), "fast path").await
    }

    async fn round<F: Future<Output = (Name, Result<Report, Trouble>)>>(
        &self,
        work: impl Iterator<Item = F>,
        what: &str,
    ) -> Report {
        let mut total = Report::default();
        for (name, outcome) in join_all(work).await {
            match outcome {
                Ok(one) => {
                    total.decided += one.decided;
                    total.written += one.written;
                    total.tripped += one.tripped;
                }
                Err(trouble) => {
                    total.fenced |= matches!(&trouble, Trouble::Journal(JournalError::Fenced { .. }));
                    tracing::warn!(throttle.name = %name, error = %trouble, "the governor's {what} failed");
                    total.problems.push((name, trouble.to_string()));
                }
            }
        }
        total
    }

    async fn tick_one(&self, throttle: &Governed, term: u64) -> (Name, Result<Report, Trouble>) {
        (throttle.name.clone(), self.try_tick(throttle, term).await)
    }

    async fn fast_one(&self, throttle: &Governed, term: u64) -> (Name, Result<Report, Trouble>) {
        (throttle.name.clone(), self.try_fast(throttle, term).await)
    }

    async fn try_tick(&self, throttle: &Governed, term: u64) -> Result<Report, Trouble> {
        let Some(status) = self.store.status(&throttle.name).await? else { return Ok(self.unknown(throttle)) };
        let now = status.at_us as f64 / 1e6;
        if !throttle.desk.lock().await.is_due(now, throttle.policy.law.tick_s) {
            return Ok(Report::default());
        }
        // Signals are read without the desk, so that a slow Prometheus never holds up the fast path.
        let (readings, told) = tokio::join!(self.read(throttle, now), (self.feedback)(throttle.name.as_str()));
        let Some(status) = self.store.status(&throttle.name).await? else { return Ok(self.unknown(throttle)) };

        let mut desk = throttle.desk.lock().await;
        self.take_up(throttle, &mut desk, term, &status).await?;
        let seen = observe(&mut desk, &status, readings, told);
        let Some(mut state) = desk.state.take() else { return Ok(Report::default()) };
        let outcome = self.decide(throttle, &mut desk, term, &status, &mut state, seen).await;
        *lock(&throttle.view) = self.view(throttle, &state, &status);
        if !matches!(outcome, Err(Trouble::Journal(JournalError::Fenced { .. }))) {
            desk.state = Some(state);
        } else {
            *desk = Desk::default();
        }
        outcome
    }

    /// Plans by the throttle's mode and carries the plan out.
    async fn decide(
        &self,
        throttle: &Governed,
        desk: &mut Desk,
        term: u64,
        status: &Status,
        state: &mut State,
        mut seen: Observation,
    ) -> Result<Report, Trouble> {
        let (policy, knobs, bounds) = (&throttle.policy, &status.knobs, bounds(status));
        let raw = status.raw.get("rps").map(String::as_str);
        let hands_off = match knobs.mode {
            Mode::Off => Some("nothing governs this throttle (mode off)".to_owned()),
            Mode::Manual => Some("a person turns this throttle (mode manual)".to_owned()),
            Mode::Auto | Mode::Shadow if knobs.paused => Some("a person has paused this throttle".to_owned()),
            Mode::Auto => unreadable(status).or_else(|| calibration::holds(status, state.knob)),
            Mode::Shadow => None,
        };
        if let Some(why) = hands_off {
            let before = state.knob;
            state.follow(policy, bounds, &seen, knobs.rps, &why);
            if (knobs.mode != Mode::Auto || calibration::holds(status, before).is_some())
                && let Some(raw) = raw
            {
                // What a person set in manual mode is where the governor goes on from, not an edit to be held.
                state.will_write(raw);
            }
            self.keep(throttle, term, state).await?;
            return Ok(Report { decided: 1, ..Report::default() });
        }
        let mine = raw.is_some_and(|raw| raw == BREAKERS_ZERO || state.is_ours(raw)) || calibration::wrote(status);
        if knobs.mode == Mode::Auto {
            if !mine {
                seen.knob_rps = Some(knobs.rps);
            } else if status.lease_lapsed {
                state.restart_from(policy, bounds, status.effective_rps, seen.now);
            }
        }
        let before = knobs.rps;
        let plan = state.tick(policy, bounds, &seen);
        let written = match knobs.mode {
            // A person's stop stays as they wrote it.
            Mode::Auto if !state.stopped => self.turn(throttle, term, status, state, &plan).await?,
            _ => {
                self.keep(throttle, term, state).await?;
                0
            }
        };
        self.journal(throttle, desk, Decision::new(throttle.name.as_str(), seen.now, &plan, before, knobs.mode)).await;
        Ok(Report { decided: 1, written, ..Report::default() })
    }

    async fn try_fast(&self, throttle: &Governed, term: u64) -> Result<Report, Trouble> {
        let Some(status) = self.store.status(&throttle.name).await? else { return Ok(Report::default()) };
        if !matches!(status.knobs.mode, Mode::Auto | Mode::Shadow) || status.knobs.paused {
            return Ok(Report::default());
        }
        let now = status.at_us as f64 / 1e6;
        let read = |(name, probe): &(String, Probe)| {
            let (name, probe) = (name.clone(), probe.clone());
            async move { (name, probe.read(now).await) }
        };
        let looks: Vec<Sample> = join_all(throttle.probes.iter().map(read))
            .await
            .into_iter()
            .filter_map(|(signal, reading)| {
                // A page that does not answer is no reading; the tick's own staleness says what follows from that.
                reading.ok().map(|r| Sample { signal, value: Some(r.value), at: r.at })
            })
            .collect();

        let mut desk = throttle.desk.lock().await;
        if desk.term != Some(term) {
            return Ok(Report::default());
        }
        let counters = Counters::of(&status);
        let achieved = desk.looked.and_then(|earlier| counters.since(&earlier)).map(|flow| flow.achieved_rps);
        desk.looked = Some(counters);
        let Some(mut state) = desk.state.take() else { return Ok(Report::default()) };
        let plan = state.fast(&throttle.policy, bounds(&status), now, achieved, &looks);
        let outcome = match plan {
            None => Ok(Report::default()),
            Some(plan) => self.stop(throttle, &mut desk, term, &status, &mut state, plan).await,
        };
        if outcome.as_ref().is_ok_and(|report| report.tripped > 0) {
            *lock(&throttle.view) = self.view(throttle, &state, &status);
        }
        desk.state = Some(state);
        outcome
    }

    /// Carries out a trip: the knob first, everything else after.
    async fn stop(
        &self,
        throttle: &Governed,
        desk: &mut Desk,
        term: u64,
        status: &Status,
        state: &mut State,
        plan: Plan,
    ) -> Result<Report, Trouble> {
        tracing::warn!(throttle.name = %throttle.name, reason = %plan.reason, "the breaker tripped");
        let written =
            if status.knobs.mode == Mode::Auto { self.write(throttle, term, status, &plan, BREAKERS_ZERO).await? } else { 0 };
        let now = status.at_us as f64 / 1e6;
        let decision = Decision::new(throttle.name.as_str(), now, &plan, status.knobs.rps, status.knobs.mode);
        self.keep(throttle, term, state).await?;
        self.journal(throttle, desk, decision).await;
        Ok(Report { decided: 1, written, tripped: 1, ..Report::default() })
    }

    /// Keeps the state, then turns the knob if it must move or its lease must be renewed.
    async fn turn(
        &self,
        throttle: &Governed,
        term: u64,
        status: &Status,
        state: &mut State,
        plan: &Plan,
    ) -> Result<usize, Trouble> {
        let text = spell(plan.rps);
        state.will_write(&text);
        self.keep(throttle, term, state).await?;
        let lease_ms = lease_s(&throttle.policy) * 1e3;
        let left_ms = status.knobs.valid_until_ms.map_or(0.0, |until| until as f64 - status.at_us as f64 / 1e3);
        if status.raw.get("rps") == Some(&text) && left_ms > RENEW_AT * lease_ms {
            return Ok(0);
        }
        self.write(throttle, term, status, plan, &text).await
    }

    async fn write(&self, throttle: &Governed, term: u64, status: &Status, plan: &Plan, text: &str) -> Result<usize, Trouble> {
        let until_ms = status.at_us / 1000 + (lease_s(&throttle.policy) * 1e3) as i64;
        let change = Change {
            fields: [("rps", text.to_owned()), ("valid_until", until_ms.to_string())]
                .map(|(k, v)| (k.to_owned(), Some(v)))
                .into(),
            term: Some(term),
            if_rps: status.raw.get("rps").cloned(),
            by: "governor".to_owned(),
            why: plan.reason.clone(),
            ..Change::default()
        };
        match self.store.set(&throttle.name, &change).await {
            Ok(_) => Ok(1),
            // A person was faster: their rate is seen and obeyed at the next tick.
            Err(throttle::Error::Conflict { what, .. }) => {
                tracing::info!(throttle.name = %throttle.name, what, "the knob was turned meanwhile");
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps the state. Only a later leader's word stops what follows: a Postgres that is away for a while must not.
    async fn keep(&self, throttle: &Governed, term: u64, state: &State) -> Result<(), Trouble> {
        let Ok(value) = serde_json::to_value(state) else { return Ok(()) };
        match self.journal.save(throttle.name.as_str(), term, &value).await {
            Err(JournalError::Postgres(error)) => {
                tracing::warn!(throttle.name = %throttle.name, %error, "the governor's state could not be kept");
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Journals a decision if it is news, and tells the listeners.
    async fn journal(&self, throttle: &Governed, desk: &mut Desk, mut decision: Decision) {
        if !decision.is_news_after(desk.kept.as_ref()) {
            return;
        }
        match self.journal.append(&decision).await {
            Ok(id) => decision.id = id,
            Err(error) => tracing::warn!(throttle.name = %throttle.name, %error, "a decision could not be journaled"),
        }
        // Nobody listening is no trouble.
        let _ = self.decisions.send(decision.clone());
        desk.kept = Some(decision);
    }

    /// Loads the state at the beginning of a term, or begins at the knob in force.
    async fn take_up(&self, throttle: &Governed, desk: &mut Desk, term: u64, status: &Status) -> Result<(), Trouble> {
        if desk.term == Some(term) && desk.state.is_some() {
            return Ok(());
        }
        let now = status.at_us as f64 / 1e6;
        let name = throttle.name.as_str();
        let stored = self.journal.load(name).await?;
        if let Some((theirs, _)) = &stored
            && *theirs > term
        {
            return Err(JournalError::Fenced { throttle: name.to_owned(), term }.into());
        }
        let due = desk.due;
        *desk = Desk { term: Some(term), due, ..Desk::default() };
        desk.kept = self.journal.recent(Some(name), 1).await?.pop();
        desk.state = stored.and_then(|(_, stored)| State::resume(stored, &throttle.policy, now)).or_else(|| {
            let raw = status.raw.get("rps").map(String::as_str);
            let bounds = bounds(status);
            // A breaker's stop whose state is lost goes on from the lowest rate, not from a person's stop.
            let rate = if raw == Some(BREAKERS_ZERO) && !status.lease_lapsed { bounds.min } else { status.effective_rps };
            let mut state = State::new(&throttle.policy, bounds, rate, now);
            state.will_write(raw.unwrap_or_default());
            Some(state)
        });
        Ok(())
    }

    /// Reads every signal; what cannot be read is remembered for people and is no reading.
    async fn read(&self, throttle: &Governed, now: f64) -> Vec<Sample> {
        let outcomes = join_all(throttle.policy.signals.iter().map(|about| self.read_one(about, now))).await;
        let mut problems = lock(&throttle.problems);
        let mut samples = Vec::new();
        for (about, outcome) in throttle.policy.signals.iter().zip(outcomes) {
            match outcome {
                Ok(readings) => {
                    if problems.remove(&about.name).is_some() {
                        tracing::info!(throttle.name = %throttle.name, signal = about.name, "the signal is read again");
                    }
                    samples.extend(readings.iter().map(|r| Sample {
                        signal: about.name.clone(),
                        value: Some(r.value),
                        at: r.at,
                    }));
                }
                Err(error) => {
                    let told = error.to_string();
                    // Said once, not every tick.
                    if problems.get(&about.name) != Some(&told) {
                        tracing::warn!(throttle.name = %throttle.name, signal = about.name, error = told, "no reading");
                    }
                    problems.insert(about.name.clone(), told);
                }
            }
        }
        samples
    }

    async fn read_one(&self, about: &policy::Signal, now: f64) -> Result<Vec<signals::Reading>, signals::Error> {
        match about.source {
            Source::Prometheus => self.prometheus.readings(&about.query, now).await,
            Source::Depth => Ok(vec![(self.depth)(&about.query).await.ok_or(Missing::Absent)?]),
            Source::Feedback => Ok(Vec::new()),
        }
    }

    fn view(&self, throttle: &Governed, state: &State, status: &Status) -> Option<View> {
        let mut view = View::new(state, &throttle.policy, status.at_us as f64 / 1e6)?;
        let problems = lock(&throttle.problems);
        view.signals.iter_mut().for_each(|signal| signal.problem = problems.get(&signal.name).cloned());
        Some(view)
    }

    fn unknown(&self, throttle: &Governed) -> Report {
        *lock(&throttle.view) = None;
        Report::default()
    }
}

/// What was seen since the last tick.
fn observe(desk: &mut Desk, status: &Status, readings: Vec<Sample>, told: Option<Feedback>) -> Observation {
    let counters = Counters::of(status);
    let flow = desk.counters.and_then(|earlier| counters.since(&earlier));
    let step = told.and_then(|told| told.since(&desk.feedback?));
    (desk.counters, desk.feedback) = (Some(counters), told);
    Observation {
        now: status.at_us as f64 / 1e6,
        readings,
        achieved_rps: flow.map(|flow| flow.achieved_rps),
        limiting_share: flow.map(|flow| flow.limited_by(status.knobs.rps)),
        mean_duration_s: step.and_then(|step| step.mean_duration_s()),
        completed: step.map_or(0.0, |step| step.completed),
        rejected: step.map_or(0.0, |step| step.rejected),
        knob_rps: None,
    }
}

/// Why the knob cannot be read, if it cannot: the governor leaves it for a person to correct.
fn unreadable(status: &Status) -> Option<String> {
    let problem = status.problems.iter().find(|problem| problem.field == "rps")?;
    Some(format!("the knob rps {}", problem.message))
}

fn bounds(status: &Status) -> Bounds {
    Bounds { min: status.knobs.min, max: status.knobs.max, safe_rps: status.knobs.safe_rps }
}

/// How long a knob is good without being written again, in seconds.
pub fn lease_s(policy: &Policy) -> f64 {
    (LEASE_TICKS * policy.law.tick_s).max(LEASE_MIN_S)
}

/// A rate as it is written into the knob: five digits, as a person would write it.
pub fn spell(rps: f64) -> String {
    if rps <= 0.0 {
        return BREAKERS_ZERO.to_owned();
    }
    format!("{rps:.4e}").parse::<f64>().unwrap_or(rps).to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds this lock")
}

#[cfg(test)]
mod tests {
    use super::spell;

    #[test]
    fn rates_are_written_as_people_write_them() {
        let texts = [118.372_91, 20.0, 0.000_123_456, 2000.0, 1e9, 0.0].map(spell);
        assert_eq!(texts, ["118.37", "20", "0.00012346", "2000", "1000000000", "0.000"]);
    }
}
