//! The store of deliveries, which batches the writes of many callers into few statements.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff_sqlx::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use super::{begin, events, record};
use crate::jobs::Error;
use crate::notify::metrics::NotifyMetrics;
use crate::notify::record::Fresh;
use crate::notify::{BeginRequest, BegunDelivery, DeliveryUpdate, EventReport};
use crate::postgres::Db;
use crate::service::{BatchBroken, Batcher, in_waves};

/// Most items of one statement.
const MAX_STATEMENT_ITEMS: usize = 256;

/// Shortest interval between statements while messages keep coming, so that the fixed cost of a
/// statement is spread over many messages.
const MIN_STATEMENT_INTERVAL: Duration = Duration::from_millis(5);

/// Most retries of a statement after a deadlock or a serialization failure.
const MAX_CONFLICT_RETRIES: u32 = 5;

/// Most items at once that run alone, because one of their batch needs a lock.
const ALONE_AT_ONCE: usize = 4;

/// Writes all items or none, and returns one result for each.
type BatchStatement<T, R> = for<'a> fn(&'a Db, &'a [T]) -> BoxFuture<'a, Result<Vec<R>, Error>>;

/// The record of messages. Cheap to clone; clones share their batches.
#[derive(Clone, Debug)]
pub struct Deliveries {
    pub(super) db: Db,
    begins: Batcher<BeginRequest, Result<BegunDelivery, Error>>,
    records: Batcher<DeliveryUpdate, Result<(), Error>>,
    notices: Batcher<EventReport, Result<Fresh, Error>>,
    pub(super) places: Arc<WalkPositions>,
    pub metrics: NotifyMetrics,
}

/// Positions of walks in bounded steps.
#[derive(Debug, Default)]
pub(super) struct WalkPositions {
    /// The position of the expiry, by throttle.
    expire: Mutex<HashMap<String, String>>,
    /// The position of the deletion: the last message that it examined.
    pub(super) forget: Mutex<i64>,
    /// The position of the search for dead messages: the last dead letter that it examined.
    pub(super) forget_dead: Mutex<(Option<Timestamp>, i64)>,
    /// The position of the sweep: the time, in unix seconds by the clock of Postgres, after which
    /// the next sweep looks for events.
    pub(super) swept_to: Mutex<Option<f64>>,
}

impl WalkPositions {
    pub(super) fn expire(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.expire.lock()
    }
}

impl Deliveries {
    /// Opens the record in this database, whose schema must be up to date.
    pub fn new(db: impl Into<Db>) -> Self {
        let db: Db = db.into();
        let (for_begin, for_record, for_notices) = (db.clone(), db.clone(), db.clone());
        let begins = Batcher::paced(
            MAX_STATEMENT_ITEMS,
            MIN_STATEMENT_INTERVAL,
            move |requests: Vec<BeginRequest>| {
                let db = for_begin.clone();
                Box::pin(async move {
                    singly(&db, &requests, |db, part| Box::pin(begin::begin(db, part))).await
                })
            },
        );
        let records = Batcher::paced(
            MAX_STATEMENT_ITEMS,
            MIN_STATEMENT_INTERVAL,
            move |written: Vec<DeliveryUpdate>| {
                let db = for_record.clone();
                Box::pin(async move {
                    let answers =
                        singly(&db, &written, |db, part| Box::pin(record::record(db, part))).await;
                    answers.into_iter().map(|answer| answer.map(drop)).collect()
                })
            },
        );
        let notices = Batcher::new(MAX_STATEMENT_ITEMS, move |notices: Vec<EventReport>| {
            let db = for_notices.clone();
            Box::pin(async move {
                singly(&db, &notices, |db, part| {
                    Box::pin(events::record_events(db, part))
                })
                .await
            })
        });
        Self {
            db,
            begins,
            records,
            notices,
            places: Arc::default(),
            metrics: NotifyMetrics::default(),
        }
    }

    /// Reads the record of a message before an attempt; concurrent calls share a statement.
    pub async fn begin(&self, request: BeginRequest) -> Result<BegunDelivery, Error> {
        self.begins
            .submit(request)
            .await
            .unwrap_or_else(|broken| Err(lost(broken)))
    }

    /// Records the result of attempts; concurrent calls share a statement. A repeated record counts
    /// once.
    pub async fn record(&self, written: DeliveryUpdate) -> Result<(), Error> {
        let (channel, pool, state) = (written.channel, written.pool.clone(), written.state);
        self.records
            .submit(written)
            .await
            .unwrap_or_else(|broken| Err(lost(broken)))?;
        self.metrics.note(channel, &pool, state);
        Ok(())
    }

    /// Records a provider's events. Returns the counts of new ones; a repeated event counts once.
    pub async fn record_events(&self, notice: EventReport) -> Result<Fresh, Error> {
        let pool = notice.pool.clone();
        let fresh = self
            .notices
            .submit(notice)
            .await
            .unwrap_or_else(|broken| Err(lost(broken)))?;
        for (event_type, events) in &fresh {
            self.metrics.count_events(&pool, *event_type, *events);
        }
        Ok(fresh)
    }
}

fn lost(broken: BatchBroken) -> Error {
    Error::Lost(broken.to_string())
}

/// Returns a statement's error once for each of its items.
fn same<R>(items: usize, error: &Error) -> Vec<Result<R, Error>> {
    (0..items)
        .map(|_| Err(Error::Lost(error.to_string())))
        .collect()
}

/// Runs a batch.
///
/// A batch with an item that Postgres rejects is halved until that item is alone, so that it fails
/// alone. A batch that lost a deadlock or a serialization conflict is retried. After a lock that
/// was not free in time, each item runs alone, so that only those wait which need the lock.
async fn singly<T, R>(db: &Db, batch: &[T], run: BatchStatement<T, R>) -> Vec<Result<R, Error>> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut parts = vec![batch];
    let mut again = MAX_CONFLICT_RETRIES;
    while let Some(part) = parts.pop() {
        match run(db, part).await {
            Ok(results) => answers.extend(results.into_iter().map(Ok)),
            Err(error) if error.was_locked_out() && part.len() > 1 => {
                let each: Vec<_> = part.chunks(1).map(|item| run(db, item)).collect();
                for answer in in_waves(each, ALONE_AT_ONCE).await {
                    match answer {
                        Some(Ok(results)) => answers.extend(results.into_iter().map(Ok)),
                        Some(Err(error)) => answers.extend(same(1, &error)),
                        None => answers.extend(same(1, &error)),
                    }
                }
            }
            Err(error) if error.was_locked_out() => answers.extend(same(part.len(), &error)),
            Err(error) if error.was_broken_off() && again > 0 => {
                again -= 1;
                parts.push(part);
                tokio::time::sleep(Duration::from_millis(10).mul_f64(1.0 + rand::random::<f64>()))
                    .await;
            }
            Err(error) if error.blames_a_row() && part.len() > 1 => {
                let (left, right) = part.split_at(part.len() / 2);
                parts.push(right);
                parts.push(left);
            }
            Err(error) if part.len() == 1 => answers.push(Err(error)),
            Err(error) => answers.extend(same(part.len(), &error)),
        }
    }
    answers
}
