//! The governor's journal as the API reads it, valid in every process, whether or not it leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::clock;
use crate::api::{
    Decisions, Obstacles, ReadError, full_slots, has_free_token, has_idle_token, held_keys, served,
    wait_for_grant, wait_of_keys, with_those_above,
};
use crate::governor::postgres::Error;
use crate::governor::time::unix_s;
use crate::governor::why::{self, WhyInput};
use crate::governor::{Decision, GovernorView, Journal, Policy};
use crate::jobs::serving::{remedy, serves_throttle};
use crate::jobs::{
    Attribution, CancelFilter, Count, Pause, Queue, QueueStatus, State, WorkerCapabilities,
};
use crate::throttle::on_demand::MADE_MAX;
use crate::throttle::status::EXPIRES;
use crate::throttle::{
    AcquireRequest, LaneRequest, Makers, Name, OnStoreLoss, Status, Store, is_of_admission,
    nearly_called,
};

/// Decisions that explain the rate's recent changes: one every five seconds for five minutes.
const TREND_DECISIONS: i64 = 60;

/// Longest count of the jobs of a throttle that no live worker serves.
const COUNT_WITHIN: Duration = Duration::from_secs(3);

/// The age of the oldest ready job from which a free token shows that no worker has a free slot.
const LATE_S: f64 = 10.0;

/// The time in which it is watched if the rate is the limit of a throttle with a free token.
const WATCHED_FOR: Duration = Duration::from_secs(1);

/// The wait of jobs whose throttle would grant them their tokens.
const NO_SLOT: &str = "tokens are available, and the next job starts when a worker has a free \
                       slot: flyball worker list shows how many jobs each runs";

/// The unfinished jobs of a throttle.
struct JobsOf {
    /// The ready jobs; `None` if their number is unknown.
    ready: Option<Count>,
    /// The scheduled and the running jobs, when they were last counted.
    others: i64,
    /// The time from which the oldest ready job waits, at the last count.
    oldest_at: Option<Timestamp>,
    /// The age of these numbers, if they are old.
    age: Option<String>,
}

impl JobsOf {
    /// Describes jobs that no live worker serves; `None` if there are none.
    fn unserved(&self, live: &[WorkerCapabilities], throttle: &Name) -> Option<String> {
        let throttle = throttle.as_str();
        let ready = self.ready.map_or(0, |ready| ready.jobs);
        let waits = ready + self.others > 0 && !serves_throttle(live, throttle);
        waits.then(|| served::unserved(self.ready, &remedy(live, throttle, None, &[])))
    }

    /// Returns true if a job has been ready for longer than a free worker takes to claim it.
    fn are_late(&self, now: f64) -> bool {
        self.oldest_at.is_some_and(|at| now - unix_s(at) > LATE_S)
    }
}

/// The journal, read with the policies of this process.
pub struct JournalReader {
    journal: Journal,
    queue: Queue,
    throttles: Arc<dyn Store>,
    policies: Arc<BTreeMap<Name, Policy>>,
    made_max: usize,
}

impl JournalReader {
    /// Creates a reader of the journal in the queue's database.
    pub fn new(queue: &Queue, throttles: &Arc<dyn Store>, policies: &[(Name, Policy)]) -> Self {
        Self {
            journal: Journal::new(queue.pool.clone()),
            queue: queue.clone(),
            throttles: throttles.clone(),
            policies: Arc::new(policies.iter().cloned().collect()),
            made_max: MADE_MAX,
        }
    }

    /// Sets the number of throttles beyond which none is made on first use.
    pub fn with_made_max(mut self, made_max: usize) -> Self {
        self.made_max = made_max;
        self
    }

    /// Returns the state of a throttle's governor at `now` (unix seconds); `None` if the throttle
    /// has no governor or it has not decided yet.
    pub async fn view(&self, name: &Name, now: f64) -> Result<Option<GovernorView>, ReadError> {
        let Some(policy) = self.policies.get(name) else {
            return Ok(None);
        };
        let stored = self.journal.load(name.as_str()).await.map_err(read_error)?;
        Ok(stored.and_then(|(_, state)| GovernorView::of_stored(state, policy, now)))
    }

    /// Returns one sentence that explains the current rate of a throttle. `status` is `None` if
    /// there is no such throttle. Unless the reader `sees_all`, what people and servers said of
    /// other throttles is left out, and why signals have no reading.
    pub async fn sentence(
        &self,
        name: &Name,
        status: Option<&Status>,
        sees_all: bool,
    ) -> Result<String, ReadError> {
        let now = status.map_or_else(clock::unix_s, |status| status.at_us as f64 / 1e6);
        let view = self.view(name, now).await?;
        let view = match sees_all {
            true => view,
            false => view.map(GovernorView::without_problems),
        };
        let decisions = self
            .journal
            .recent(Some(name.as_str()), TREND_DECISIONS)
            .await
            .map_err(read_error)?;
        let (live, jobs) = self.jobs_of(name).await?;
        let unserved = jobs.unserved(&live, name);
        let ready = jobs.ready.map(|ready| ready.jobs.unsigned_abs());
        let names = match status {
            Some(_) => Vec::new(),
            None => self.throttles.names().await.unwrap_or_default(),
        };
        let makers = Makers::of(&names, self.made_max);
        let input = WhyInput {
            name: name.as_str(),
            status,
            view: view.as_ref(),
            decisions: &decisions,
            pattern: makers.pattern_of(name).map(Name::as_str),
            // The sentence about workers has the number as well.
            ready: ready.filter(|ready| *ready == 0 || unserved.is_none()),
            now,
        };
        let mut sentence = why::sentence(input);
        if status.is_none()
            && input.pattern.is_none()
            && let Some(other) = nearly_called(name.as_str(), &names)
        {
            sentence += &format!("; there is also {other}");
        }
        let governed = view.as_ref().map_or("rps", |view| view.actuator.field());
        // The sentence covers a problem of the governed knob itself; problems of other knobs are
        // added here.
        for problem in status
            .iter()
            .flat_map(|status| &status.problems)
            .filter(|problem| problem.field != governed)
        {
            sentence += &match problem.field.as_str() {
                EXPIRES => format!(" Its knobs expire {}.", problem.message),
                field => format!(" Its knob {field}: {}.", problem.message),
            };
        }
        let unserved = match unserved {
            Some(all) => vec![all],
            None => self.unserved_kinds(name).await?,
        };
        if let Some(status) = status {
            let ready = ready.unwrap_or(0);
            // A message that waits for the limits of its tenant needs no slot of a worker.
            let need_slots = unserved.is_empty() && !is_of_admission(name.as_str());
            let are_late = need_slots && jobs.are_late(now);
            let jobs = (ready, are_late);
            let obstacles = self.with_obstacles(&sentence, status, jobs, now, sees_all);
            sentence = obstacles.await?;
        }
        let age = jobs.age.map(|age| format!("Its jobs {age}."));
        let sentences = unserved.into_iter().chain([sentence]).chain(age);
        Ok(sentences.collect::<Vec<_>>().join(" "))
    }

    /// Describes the jobs of a throttle whose kind or needs no live worker serves.
    async fn unserved_kinds(&self, name: &Name) -> Result<Vec<String>, ReadError> {
        let unserved = self.queue.unserved().await?;
        let of_kinds = unserved
            .iter()
            .filter(|one| one.throttle == name.as_str() && one.kind.is_some());
        let told = of_kinds.map(|one| {
            let count = Count {
                jobs: one.jobs,
                more: false,
            };
            served::unserved(Some(count), &one.remedy)
        });
        Ok(told.collect())
    }

    /// Returns the live workers, and the unfinished jobs of a throttle.
    ///
    /// Counts that nobody keeps miss what came since, so without a worker the jobs are counted
    /// here.
    async fn jobs_of(&self, name: &Name) -> Result<(Vec<WorkerCapabilities>, JobsOf), ReadError> {
        let live = self.queue.serving().await?;
        let depths = self.queue.depths().await?;
        let depth = depths
            .throttles
            .iter()
            .find(|depth| depth.throttle == name.as_str());
        let counted = depth.map(|depth| Count {
            jobs: depth.ready,
            more: false,
        });
        let mut found = JobsOf {
            ready: counted,
            others: depth.map_or(0, |depth| depth.scheduled + depth.running),
            oldest_at: depth.and_then(|depth| depth.oldest_ready_at),
            age: served::age_of(&depths),
        };
        if served::are_old(&depths) && !serves_throttle(&live, name.as_str()) {
            let filter = CancelFilter {
                throttle: Some(name.to_string()),
                state: Some(State::Ready),
                ..CancelFilter::default()
            };
            let signed = Attribution::default();
            let count = self.queue.count_cancel_jobs(&filter, &signed);
            // A count that was cut off before the first job tells nothing.
            if let Ok(Ok(ready)) = tokio::time::timeout(COUNT_WITHIN, count).await
                && (ready.jobs > 0 || !ready.more)
            {
                found.ready = Some(ready);
                found.age = found.age.filter(|_| found.others > 0 || ready.more);
            }
        }
        Ok((live, found))
    }

    /// Adds the other obstacles of the throttle's jobs to the sentence, by the number of those that
    /// are ready and whether they are late although a worker serves them.
    async fn with_obstacles(
        &self,
        sentence: &str,
        status: &Status,
        (ready, are_late): (u64, bool),
        now: f64,
        sees_all: bool,
    ) -> Result<String, ReadError> {
        let (name, throttles) = (&status.name, &*self.throttles);
        let QueueStatus {
            is_paused,
            is_read_only,
        } = self.queue.status().await?;
        let everything = match is_paused {
            true => self.queue.paused().await?,
            false => None,
        };
        let everything = everything.map(|pause| match sees_all {
            true => pause,
            false => without_author(pause),
        });
        let failing = self.queue.failing_of(name.as_str()).await?;
        let refusing = refusing_store(throttles, status).await;
        // A store that grants nothing tells nothing of keys and slots either.
        let ready = if refusing.is_some() { 0 } else { ready };
        let (held, full) = if ready > 0 {
            (
                held_keys(&self.queue, throttles, name).await?,
                full_slots(throttles, status).await,
            )
        } else {
            // Worth telling before the first job waits.
            let closed = status.knobs.concurrency == Some(0);
            (None, closed.then(|| status.clone()))
        };
        let chain = with_those_above(throttles, status).await;
        let above = chain[1..].iter().find(|above| above.lets_nothing_through());
        let above = above.cloned().map(|above| match sees_all {
            true => above,
            false => without_texts(above),
        });
        let mut behind = None;
        if ready > 0 && above.is_none() {
            behind = wait_for_grant(throttles, status).await;
            if behind.is_none() {
                behind = wait_of_keys(&self.queue, throttles, status).await?;
            }
            let is_held = everything.is_some() || is_read_only || held.is_some() || full.is_some();
            if are_late && !is_held && behind.is_none() && has_free_token(throttles, status).await {
                // Between two tokens of a throttle that flows one may be free for a moment as well.
                tokio::time::sleep(WATCHED_FOR).await;
                let is_idle = has_idle_token(throttles, &chain).await;
                behind = is_idle.then(|| NO_SLOT.to_owned());
            }
        }
        let obstacles = Obstacles {
            status,
            is_read_only,
            everything: everything.as_ref(),
            above: above.as_ref(),
            behind: behind.as_deref(),
            full: full.as_ref(),
            held: held.as_ref(),
            failing: failing.as_ref(),
            now,
        };
        let told = refusing.into_iter().chain([obstacles.around(sentence)]);
        Ok(told.collect::<Vec<_>>().join(" "))
    }
}

/// Describes a store that tells its knobs and refuses requests for tokens, as while it is out of
/// memory, and what the jobs of a throttle do then; `None` for any other store.
async fn refusing_store(throttles: &dyn Store, status: &Status) -> Option<String> {
    // Nothing takes tokens from a pattern.
    if status.name.is_pattern() {
        return None;
    }
    let one = AcquireRequest {
        throttle: status.name.clone(),
        lanes: vec![LaneRequest::default()],
        holder: None,
    };
    let error = throttles.peek(&one).await.server_error?;
    let follows = match status.knobs.on_store_loss {
        OnStoreLoss::Closed => "No job starts, because",
        OnStoreLoss::Local => "Jobs start at a part of the last known rate that falls, because",
        OnStoreLoss::Open => "Jobs start without a limit, because",
    };
    let loss = status.knobs.on_store_loss.as_str();
    Some(format!(
        "{follows} Redis refuses requests for tokens ({error}) and the knob on_store_loss of {} is \
         {loss}.",
        status.name
    ))
}

/// Removes the author of a pause and the reason, which may tell about other tenants.
fn without_author(pause: Pause) -> Pause {
    Pause {
        by: "an operator".to_owned(),
        why: String::new(),
        ..pause
    }
}

/// Removes from a throttle what people and servers said of it, which may tell about other tenants.
fn without_texts(mut status: Status) -> Status {
    let hidden = || "not shown".to_owned();
    status.knobs.by.clear();
    status.knobs.why = hidden();
    status.knobs.capacity_reason.clear();
    if let Some(pause) = &mut status.refusal {
        pause.why = hidden();
    }
    status
}

impl Decisions for JournalReader {
    fn recent<'a>(
        &'a self,
        throttle: Option<&'a str>,
        limit: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>> {
        Box::pin(async move {
            let read = |queue: Queue| async move {
                let journal = Journal::new(queue.pool);
                journal.recent(throttle, limit).await.map_err(read_error)
            };
            self.queue.read_lagging(read).await
        })
    }

    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorView>, ReadError>> {
        Box::pin(async move {
            // Without policies there is no governor to show.
            if self.policies.is_empty() {
                return Ok(BTreeMap::new());
            }
            let now = clock::unix_s();
            let stored = self.journal.load_all().await.map_err(read_error)?;
            let view = |(name, state): (String, serde_json::Value)| {
                let policy = self.policies.get(&Name::new(name.clone()).ok()?)?;
                Some((name, GovernorView::of_stored(state, policy, now)?))
            };
            Ok(stored.into_iter().filter_map(view).collect())
        })
    }

    fn why<'a>(
        &'a self,
        status: &'a Status,
        sees_all: bool,
    ) -> BoxFuture<'a, Result<Option<String>, ReadError>> {
        Box::pin(async move {
            let sentence = self.sentence(&status.name, Some(status), sees_all);
            sentence.await.map(Some)
        })
    }
}

fn read_error(error: Error) -> ReadError {
    match error {
        Error::Postgres(error) => error.into(),
        error @ Error::Fenced { .. } => ReadError::Failed(error.to_string()),
    }
}
