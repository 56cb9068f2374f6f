//! A pass over the corpus: one reindex job into one index.

use std::time::Duration;

use anyhow::bail;
use flyball::config::{ReindexSettings, SinkSettings, SourceSettings};
use flyball::jobs::{JobFilter, NewJob, Queue, State};
use flyball::reindex;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::knobs::THROTTLE;
use super::narrate::print_line;
use super::run::AppHandle;
use super::watch::StoreClient;
use super::{DemoOptions, postgres};

/// The name of the documents' source in the settings.
const SOURCE: &str = "demo";
/// The name of the search store in the settings.
const SINK: &str = "store";
/// The most documents in one bulk request.
///
/// It is small, so that few documents are in flight when they become harder.
pub(super) const BATCH_DOCS: usize = 20;
/// The most bulk requests in flight.
pub(super) const CONCURRENCY: usize = 6;
/// The time limit for cancelling the reindex of an earlier demo, including the time to live of a
/// dead worker.
const CANCELLED_WITHIN: Duration = Duration::from_secs(90);

/// Returns the table that the reindex may read and the indexes that it may write.
pub(super) fn places(store_url: &str) -> ReindexSettings {
    let source = SourceSettings {
        tables: vec!["demo.to_index".to_owned()],
        ..SourceSettings::default()
    };
    let sink = SinkSettings {
        kind: "elastic".to_owned(),
        url: Some(store_url.to_owned()),
        indexes: vec!["documents-*".to_owned()],
        ..SinkSettings::default()
    };
    ReindexSettings {
        sources: [(SOURCE.to_owned(), source)].into(),
        sinks: [(SINK.to_owned(), sink)].into(),
    }
}

/// A reindex job that fills one index.
pub(super) struct Pass {
    /// The job; `None` after it was cancelled or died.
    pub(super) job: Option<i64>,
    number: i32,
    pub(super) index: String,
}

impl Pass {
    /// Continues the interrupted pass of an earlier demo, or begins a new one.
    ///
    /// A headless run measures, so it always begins a new one.
    pub(super) async fn begin(
        options: &DemoOptions,
        app: &AppHandle,
        store: &StoreClient,
        first_rps: f64,
    ) -> anyhow::Result<Self> {
        postgres::set_hard(&app.queue.pool, false).await?;
        let unfinished = unfinished(&app.queue).await?;
        let detail = match unfinished.last() {
            Some(id) if !options.headless => app.queue.get(*id).await?,
            _ => None,
        };
        let same_store = |args: &serde_json::Value| args["sink"]["name"] == SINK;
        if let Some(detail) = detail.filter(|d| same_store(&d.args)) {
            print_line(&format!(
                "continuing with job {} where the last demo stopped",
                detail.summary.id
            ));
            let index = detail.args["sink"]["index"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let number = index
                .rsplit('-')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
            set_knobs(options, app, first_rps).await?;
            return Ok(Self {
                job: Some(detail.summary.id),
                number,
                index,
            });
        }
        for id in unfinished {
            app.queue.cancel(id).await?;
        }
        // The job of a killed worker ends only after the worker is found lost.
        let cancelled = Instant::now();
        while !self::unfinished(&app.queue).await?.is_empty() {
            if cancelled.elapsed() > CANCELLED_WITHIN {
                bail!(
                    "an earlier reindex did not stop within {CANCELLED_WITHIN:?}; --fresh starts \
                     over"
                );
            }
            sleep(Duration::from_millis(200)).await;
        }
        set_knobs(options, app, first_rps).await?;
        let mut pass = Self {
            job: None,
            number: 0,
            index: String::new(),
        };
        pass.next(app, store).await?;
        Ok(pass)
    }

    /// Begins the next pass when this one is completed; after a cancelled or dead job no further
    /// pass begins.
    pub(super) async fn poll(
        &mut self,
        app: &AppHandle,
        store: &StoreClient,
    ) -> anyhow::Result<()> {
        let Some(job) = self.job else { return Ok(()) };
        // A failed query is repeated in a second.
        let Ok(Some(detail)) = app.queue.get(job).await else {
            return Ok(());
        };
        match detail.summary.state {
            State::Completed => {
                let stored = store.count(&self.index).await?;
                print_line(&format!(
                    "all {stored} documents are in the index {}; starting again with a new index",
                    self.index
                ));
                self.next(app, store).await
            }
            State::Cancelled => {
                print_line(&format!("job {job} was cancelled; the demo keeps running"));
                self.job = None;
                Ok(())
            }
            State::Dead => {
                let why = detail.summary.last_error.unwrap_or_default();
                print_line(&format!(
                    "job {job} is dead ({why}); `flyball job retry {job}` runs it again"
                ));
                self.job = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Enqueues a pass into a new index, because updates of unchanged documents would cost the
    /// store far less than inserts.
    async fn next(&mut self, app: &AppHandle, store: &StoreClient) -> anyhow::Result<()> {
        self.number = postgres::next_pass(&app.queue.pool).await?;
        self.index = format!("documents-{}", self.number);
        // A run that kept its store but not its database may have left an index of this name.
        store.remove(&self.index).await?;
        let args = json!({
            "source": {"name": SOURCE, "table": "demo.to_index", "key": "id"},
            "sink": {"name": SINK, "index": self.index},
            "batch_docs": BATCH_DOCS,
            "concurrency": CONCURRENCY,
        });
        let mut job = NewJob::new(reindex::KIND, args);
        job.throttle = THROTTLE.to_owned();
        job.unique_key = Some(format!("demo pass {}", self.number));
        job.max_attempts = 1000;
        let enqueued = app.queue.enqueue(&[job]).await?;
        self.job = enqueued.first().map(|e| e.id);
        // The index filled last is kept until the next one is full, so that one complete index can
        // always be searched.
        store
            .remove(&format!("documents-{}", self.number - 2))
            .await?;
        Ok(())
    }
}

async fn unfinished(queue: &Queue) -> anyhow::Result<Vec<i64>> {
    let mut ids = Vec::new();
    for state in [
        State::Scheduled,
        State::Ready,
        State::Retryable,
        State::Running,
    ] {
        let filter = JobFilter {
            state: Some(state),
            kind: Some(reindex::KIND.to_owned()),
            throttle: Some(THROTTLE.to_owned()),
            limit: 100,
            ..JobFilter::default()
        };
        ids.extend(queue.list(&filter).await?.iter().map(|job| job.id));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Sets the throttle's knobs to their initial values, which discards a person's changes of an
/// earlier demo.
async fn set_knobs(options: &DemoOptions, app: &AppHandle, first_rps: f64) -> anyhow::Result<()> {
    let rps = options.rps.unwrap_or(first_rps).to_string();
    let knobs = [
        ("rps", Some(rps.as_str())),
        ("mode", Some("manual")),
        ("paused", Some("0")),
        ("valid_until", None),
    ];
    app.set_knobs(THROTTLE, &knobs, "the story begins").await
}
