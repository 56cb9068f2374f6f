//! The handler: reads ahead, acquires tokens, sends bulk requests, handles their answers and saves
//! the cursor.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout};

use super::args::{Args, OnBadDocument};
use super::document::Action;
use super::flight::{FinishedFlight, Item, send};
use super::progress::{RefusedDocument, ReindexCursor};
use super::reader::PageReader;
use super::sink::{Sink, WriteError};
use super::source::DocumentSource;
use super::source_args::OnLostChanges;
use super::{BulkPacer, Progress, Window, source};
use crate::jobs::{Checkpoint, CheckpointError, Context, Job, Outcome, Scope};
use crate::throttle::{AcquireRequest, LaneRequest, Limit, Name};

mod checkpoint;
mod follow;
mod settle;

/// Interval between checkpoints; a killed worker repeats at most this much.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait of a stopping handler for bulk requests in flight.
const DRAIN_WITHIN: Duration = Duration::from_secs(3);
/// Most scans that a job begins by itself until it is up to date with its source. A source that
/// keeps changes for less time than a scan takes would be scanned for ever.
const MAX_RESCANS: u32 = 3;
/// Delay of a job that made progress before the index or the source failed.
const PROGRESS_RETRY_DELAY: Duration = Duration::from_secs(15);

/// Copies everything after the job's checkpoint from `source` to `sink`, at the pace of the job's
/// throttle.
pub async fn backfill(
    job: &Job,
    context: &Context,
    args: &Args,
    source: Arc<dyn DocumentSource>,
    sink: Arc<dyn Sink>,
) -> Outcome {
    let throttle = match Name::new(job.throttle.clone()) {
        Ok(throttle) => throttle,
        Err(error) => {
            return Outcome::Dead {
                error: error.to_string(),
            };
        }
    };
    let mut progress = match context.checkpoints.load(job.id).await {
        Ok(checkpoint) => Progress::resume(checkpoint),
        Err(error) => {
            return Outcome::Retry {
                after: None,
                error: error.to_string(),
            };
        }
    };
    let route = args.route();
    if progress.mark.key.is_some() && progress.mark.route != route {
        tracing::warn!(
            job.id = job.id,
            "reindex starts over, because the settings of its source or sink have changed"
        );
        progress = Progress::resume(None);
    }
    progress.mark.route = route;
    let mut run = Backfill {
        job,
        context,
        args,
        sink,
        throttle,
        resumed_at: progress.done,
        resumed_from: progress.mark.clone(),
        has_followed: false,
        progress,
        pace: BulkPacer::new(args.batch_docs),
        window: Window::default(),
        refused: BTreeMap::new(),
        fresh: VecDeque::new(),
        fresh_bytes: 0,
        again: Vec::new(),
        again_bytes: 0,
        flights: JoinSet::new(),
        saving: JoinSet::new(),
        saved: None,
        rejected: None,
        stored: 0,
        watched: false,
        reporting: JoinSet::new(),
        batch_bytes: args.batch_bytes,
        batch_bytes_max: args.batch_bytes,
        started: Instant::now(),
        ask_at: Instant::now(),
        hold_until: Instant::now(),
        strikes: 0,
    };
    let end = match run.run(source).await {
        Ok(()) => BackfillEnd::Finished,
        Err(end) => end,
    };
    run.close(end).await
}

/// The end of a run.
#[derive(Debug)]
enum BackfillEnd {
    Finished,
    Stopped,
    LeaseLost,
    Failed(String),
    Wrong(String),
    Throttled(Duration, String),
    /// The source has dropped changes that were not copied.
    ChangesLost(String),
    /// The source has no documents, so that searches would find nothing any more.
    Empty(String),
    /// The index does not exist, and with it what was stored.
    Gone(String),
}

struct Backfill<'a> {
    job: &'a Job,
    context: &'a Context,
    args: &'a Args,
    sink: Arc<dyn Sink>,
    throttle: Name,
    progress: Progress,
    resumed_at: u64,
    /// The cursor with which this attempt began.
    resumed_from: ReindexCursor,
    /// True if this attempt has copied the changes since its position, even if there were none.
    has_followed: bool,
    pace: BulkPacer,
    window: Window,
    /// The refused documents that the checkpoint does not count, by number: a worker that takes
    /// over meets them again.
    refused: BTreeMap<u64, RefusedDocument>,
    /// Documents that were read and not sent yet.
    fresh: VecDeque<Item>,
    fresh_bytes: usize,
    /// Documents to retry, each with its earliest time.
    again: Vec<(Instant, Item)>,
    again_bytes: usize,
    flights: JoinSet<FinishedFlight>,
    saving: JoinSet<Result<(), CheckpointError>>,
    saved: Option<Checkpoint>,
    /// The index's reason for rejecting documents, until it is reported to the throttle.
    rejected: Option<String>,
    /// Documents stored since the last report to the throttle.
    stored: u64,
    /// True if the throttle expects reports on the work it grants.
    watched: bool,
    reporting: JoinSet<()>,
    /// Most bytes of the next bulk request.
    batch_bytes: usize,
    /// Most bytes of one that the index does not call too large.
    batch_bytes_max: usize,
    started: Instant,
    ask_at: Instant,
    hold_until: Instant,
    strikes: u32,
}

impl Backfill<'_> {
    async fn run(&mut self, source: Arc<dyn DocumentSource>) -> Result<(), BackfillEnd> {
        loop {
            let ended = match self.copy(source.clone()).await {
                Ok(()) if self.args.source.follow => self.follow(&*source).await,
                ended => ended,
            };
            match ended {
                Err(BackfillEnd::ChangesLost(error))
                    if self.args.source.on_lost_changes == OnLostChanges::Rescan
                        && self.progress.mark.rescans < MAX_RESCANS =>
                {
                    tracing::warn!(job.id = self.job.id, %error, "reindex scans from the beginning");
                    self.discard().await;
                }
                ended => return ended,
            }
        }
    }

    /// Copies everything after the cursor, or nothing if the scan is over.
    async fn copy(&mut self, source: Arc<dyn DocumentSource>) -> Result<(), BackfillEnd> {
        let cancelled = self.context.cancelled.clone();
        tokio::select! {
            () = cancelled.cancelled() => return Err(BackfillEnd::Stopped),
            ready = self.prepare(&*source) => ready?,
        }
        if self.progress.mark.scanned {
            return Ok(());
        }
        let mut reader = PageReader::start(
            source,
            self.progress.mark.key.clone(),
            self.args.batch_docs,
            self.args.batch_bytes,
        );
        let mut read_all = false;
        let mut save = saves();
        while !(read_all && self.window.is_empty()) {
            let hungry = !read_all && self.hungry();
            let pages = hungry.then_some(&mut reader.pages);
            if let Some(more) = self.step(&mut save, pages).await? {
                read_all = !more;
            }
        }
        // An incomplete index is not published, and a job that followed would never tell so.
        if self.is_unfit() {
            return Err(BackfillEnd::Finished);
        }
        tokio::select! {
            () = cancelled.cancelled() => Err(BackfillEnd::Stopped),
            published = self.publish() => published,
        }
    }

    /// Returns true if too many documents were refused to call the copy done: any, unless they may
    /// be skipped. All of them never become visible by an alias, because then the index is wrong and
    /// not a document, and every search would find nothing.
    fn is_unfit(&self) -> bool {
        let refused = self.progress.mark.refused;
        let is_void = self.args.sink.alias().is_some() && refused >= self.progress.done;
        refused > 0 && (self.args.on_bad_document == OnBadDocument::DeadLetter || is_void)
    }

    /// Waits for what happens next and acts on it; returns whether more pages follow if a page was
    /// taken in.
    async fn step(
        &mut self,
        save: &mut Interval,
        pages: Option<&mut mpsc::Receiver<Result<source::DocumentPage, source::Error>>>,
    ) -> Result<Option<bool>, BackfillEnd> {
        let send_at = self.send_at();
        let is_hungry = pages.is_some();
        let page = async {
            match pages {
                Some(pages) => pages.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.context.cancelled.cancelled() => return Err(BackfillEnd::Stopped),
            Some(landed) = self.flights.join_next() => {
                self.settle(landed.map_err(|e| BackfillEnd::Failed(format!("a bulk request was aborted: {e}")))?)?;
            }
            Some(saved) = self.saving.join_next() => self.checkpoint_saved(saved.ok())?,
            page = page, if is_hungry => {
                let page = page.ok_or_else(|| BackfillEnd::Failed("reading the source was aborted".to_owned()))??;
                let more = page.more;
                self.take_in(page);
                return Ok(Some(more));
            }
            _ = save.tick() => self.save(),
            () = sleep_until(send_at.unwrap_or(self.started)), if send_at.is_some() => self.ask_and_send().await,
        }
        Ok(None)
    }

    /// Returns true if the index is not the one that has the documents up to the cursor.
    fn is_another(&self, found: Option<&String>) -> bool {
        let known = self.progress.mark.index.as_ref();
        found.is_some() && known.is_some() && found != known
    }

    async fn prepare(&mut self, source: &dyn DocumentSource) -> Result<(), BackfillEnd> {
        self.sink.prepare().await.map_err(failed)?;
        let found = self.sink.identity().await;
        if self.is_another(found.as_ref()) {
            tracing::warn!(
                job.id = self.job.id,
                "reindex starts over, because its index was deleted and made again"
            );
            self.progress.restart();
            // With the old index its alias went.
            self.progress.mark.published = false;
            self.resumed_at = 0;
        }
        self.progress.mark.index = found.or(self.progress.mark.index.take());
        // Nothing came forward by that.
        self.resumed_from
            .index
            .clone_from(&self.progress.mark.index);
        if self.args.source.follow && self.progress.mark.position.is_none() {
            // Before the first page, so that no change can fall between the scan and the changes.
            self.progress.mark.position = Some(source.position().await?);
        }
        if self.progress.total.is_none() {
            self.progress.total = source.estimate().await?;
        }
        Ok(())
    }

    // === Reading ===

    /// Returns true if another page may be taken: less than one bulk request is left to send, in
    /// documents and in bytes, and not too much waits behind one document.
    fn hungry(&self) -> bool {
        let window = (4 * self.args.concurrency * self.args.batch_docs).max(1_000);
        self.fresh.len() < self.args.batch_docs
            && self.fresh_bytes < self.args.batch_bytes
            && self.window.len() < window
    }

    fn take_in(&mut self, page: source::DocumentPage) {
        for document in page.documents {
            let number = self.window.push(document.key.clone());
            let fault = match (&document.id, &document.action) {
                (_, Action::Refuse(fault)) => Some(fault.clone()),
                (None, _) => Some("its id is null".to_owned()),
                (Some(_), _) => None,
            };
            if let Some(fault) = fault {
                self.refuse(number, document, &fault);
                continue;
            }
            self.fresh_bytes += document.bytes();
            self.fresh.push_back(Item {
                number,
                document,
                tries: 0,
            });
        }
        self.advance();
    }

    // === Sending ===

    /// Returns the time of the next token request; `None` while there is nothing to send or no room
    /// for another bulk request.
    fn send_at(&self) -> Option<Instant> {
        if self.flights.len() >= self.args.concurrency {
            return None;
        }
        let ready = match self.may_send_fresh() {
            true => self.started,
            false => self.again.iter().map(|(due, _)| *due).min()?,
        };
        Some(ready.max(self.ask_at).max(self.hold_until))
    }

    /// Returns true if new documents may be sent. Documents to retry are held in memory, so new
    /// ones must wait when there are many.
    fn may_send_fresh(&self) -> bool {
        self.fresh_allowed() > 0
    }

    /// Returns the number of new documents that may be sent, small enough that the cursor stays
    /// near the newest stored document.
    fn fresh_allowed(&self) -> usize {
        let Some(next) = self.fresh.front() else {
            return 0;
        };
        if self.again_bytes > self.args.concurrency * self.batch_bytes {
            return 0;
        }
        let ahead = self.pace.ahead(self.args.concurrency, self.progress.rate());
        let sent = next.number.saturating_sub(self.window.first());
        usize::try_from(ahead.saturating_sub(sent)).unwrap_or(usize::MAX)
    }

    async fn ask_and_send(&mut self) {
        let now = Instant::now();
        let want = self.pace.want(self.fitting(now));
        // One unit that costs as many tokens as there are documents: see `Pace`.
        let lanes = vec![LaneRequest {
            key: self.job.key.clone(),
            cost: want as f64,
            ..LaneRequest::default()
        }];
        let ask = AcquireRequest {
            throttle: self.throttle.clone(),
            lanes,
            holder: None,
        };
        let answer = self.context.throttles.acquire(&ask).await;
        let Some(grant) = answer.lanes.first() else {
            return;
        };
        let granted = grant.granted > 0;
        self.watched = grant.watched;
        if granted {
            // Before the new rate is known: a lower one allows fewer documents than were paid for.
            let items = self.take(want, now);
            send(&mut self.flights, self.sink.clone(), items);
        }
        self.ask_at = Instant::now()
            + self
                .pace
                .learn(answer.effective_rps, want, granted, grant.wait);
        let obstacle = match granted {
            true => None,
            false => grant.limit.as_ref().and_then(spell),
        };
        // That the index did not take the last request is told until it takes one.
        if obstacle.is_some() || self.strikes == 0 {
            self.progress.trouble = obstacle;
        }
    }

    /// Counts the next documents that fit into one bulk request; at least one, however large it is.
    fn fitting(&self, now: Instant) -> usize {
        let due = self
            .again
            .iter()
            .filter(|(due, _)| *due <= now)
            .map(|(_, item)| item);
        let fresh = self.fresh.iter().take(self.fresh_allowed());
        let mut bytes = 0;
        due.chain(fresh)
            .take_while(|item| {
                bytes += item.document.bytes();
                bytes <= self.batch_bytes
            })
            .take(self.args.batch_docs)
            .count()
            .max(1)
    }

    /// Takes documents in the order in which [`Self::fitting`] counted them.
    fn take(&mut self, count: usize, now: Instant) -> Vec<Item> {
        let fresh = self.fresh_allowed();
        let mut items: Vec<_> = self
            .again
            .extract_if(.., |(due, _)| *due <= now)
            .take(count)
            .map(|(_, item)| item)
            .collect();
        self.again_bytes -= items.iter().map(|i| i.document.bytes()).sum::<usize>();
        let more = (count - items.len()).min(self.fresh.len()).min(fresh);
        for item in self.fresh.drain(..more) {
            self.fresh_bytes -= item.document.bytes();
            items.push(item);
        }
        items
    }

    // === The cursor ===

    /// Ends the run: waits for requests in flight, saves the cursor and returns the outcome.
    async fn close(mut self, end: BackfillEnd) -> Outcome {
        if matches!(end, BackfillEnd::LeaseLost) {
            return Outcome::HandedBack;
        }
        let _ = timeout(DRAIN_WITHIN, self.drain()).await;
        // A retry of a job whose changes or whose index are lost starts over as well.
        let is_at_end = matches!(
            end,
            BackfillEnd::Finished
                | BackfillEnd::ChangesLost(_)
                | BackfillEnd::Empty(_)
                | BackfillEnd::Gone(_)
        );
        self.progress.mark.complete = matches!(end, BackfillEnd::Finished) && !self.is_unfit();
        self.progress.mark.finished = is_at_end && !self.progress.mark.complete;
        if let BackfillEnd::Failed(error) = &end {
            self.progress.following = None;
            self.progress.trouble = Some(error.clone());
        }
        self.save_now().await;
        match end {
            // The runner knows whether the job was cancelled or the worker stops.
            BackfillEnd::Stopped | BackfillEnd::LeaseLost => Outcome::HandedBack,
            BackfillEnd::Throttled(delay, error) => Outcome::Throttled {
                scope: Scope::Key,
                delay: Some(delay),
                error,
            },
            BackfillEnd::Wrong(error) | BackfillEnd::Empty(error) => Outcome::Dead { error },
            BackfillEnd::Gone(error) => Outcome::Dead {
                error: format!("{error}. A retry of this job scans from the beginning"),
            },
            BackfillEnd::ChangesLost(error)
                if self.args.source.on_lost_changes == OnLostChanges::Rescan =>
            {
                Outcome::Dead {
                    error: format!(
                        "{error}: the index lacks them. After {} new scans in a row, changes were lost again before the \
                     copy was up to date: raise the rate or the size of the source's log, and retry this job",
                        self.progress.mark.rescans
                    ),
                }
            }
            BackfillEnd::ChangesLost(error) => Outcome::Dead {
                error: format!(
                    "{error}: the index lacks them. A retry of this job scans from the beginning, which brings all \
                     documents that exist and keeps those that were deleted meanwhile: better scan into a new index. \
                     \"on_lost_changes\": \"rescan\" does so without asking"
                ),
            },
            // An attempt that made progress was not in vain, so a long job does not die of many
            // small outages.
            BackfillEnd::Failed(error)
                if self.progress.done > self.resumed_at || self.has_followed =>
            {
                tracing::warn!(job.id = self.job.id, %error, "reindex pauses and continues from its checkpoint");
                Outcome::Snooze {
                    delay: PROGRESS_RETRY_DELAY,
                }
            }
            BackfillEnd::Failed(error) => Outcome::Retry { after: None, error },
            BackfillEnd::Finished => match self.progress.refusals() {
                Some(refused) if self.is_unfit() => Outcome::Dead {
                    error: format!(
                        "the index rejected {refused} of {} documents",
                        self.progress.done
                    ),
                },
                _ => Outcome::Done,
            },
        }
    }

    async fn drain(&mut self) {
        while let Some(landed) = self.flights.join_next().await {
            if let Ok(FinishedFlight {
                items,
                answer: Ok(written),
            }) = landed
            {
                for (item, written) in items.into_iter().zip(written) {
                    self.settle_one(item, written);
                }
            }
        }
        self.advance();
    }
}

/// Returns the ticks at which a checkpoint is saved.
fn saves() -> Interval {
    let mut save = interval(SAVE_EVERY);
    save.set_missed_tick_behavior(MissedTickBehavior::Delay);
    save
}

impl From<source::Error> for BackfillEnd {
    fn from(error: source::Error) -> Self {
        match &error {
            source::Error::Lost(_) => Self::Failed(error.to_string()),
            source::Error::Wrong(_) => Self::Wrong(error.to_string()),
            source::Error::ChangesLost(_) => Self::ChangesLost(error.to_string()),
        }
    }
}

fn failed(trouble: WriteError) -> BackfillEnd {
    match trouble {
        WriteError::Wrong(_) => BackfillEnd::Wrong(trouble.to_string()),
        WriteError::Gone(_) | WriteError::Absent(_) => BackfillEnd::Gone(trouble.to_string()),
        _ => BackfillEnd::Failed(trouble.to_string()),
    }
}

/// Returns the message to show when nothing is granted; waiting for the next token is normal.
fn spell(limit: &Limit) -> Option<String> {
    match limit {
        Limit::Stopped { name, why } if why.is_empty() => {
            Some(format!("waiting: the throttle {name} is stopped"))
        }
        Limit::Stopped { name, why } => {
            Some(format!("waiting: the throttle {name} is stopped: {why}"))
        }
        Limit::Unknown { name } => Some(format!("waiting: there is no throttle {name}")),
        Limit::Paused {
            why,
            name: Some(name),
            ..
        } => Some(format!("waiting: the throttle {name} is paused: {why}")),
        Limit::Paused {
            why, name: None, ..
        } => Some(format!("waiting: the key is paused: {why}")),
        Limit::StoreLost => Some("waiting: the throttle store does not answer".to_owned()),
        Limit::Tier { .. }
        | Limit::Throttle
        | Limit::Key
        | Limit::Learned
        | Limit::Probing { .. }
        | Limit::Concurrency { .. }
        | Limit::Holders { .. } => None,
    }
}
