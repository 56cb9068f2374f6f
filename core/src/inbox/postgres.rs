//! Inboxes in Postgres, by the functions of `0014_inbox.sql`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff_sqlx::ToSqlx as _;
use sqlx::Row;
use sqlx::types::Json;
use tokio::sync::Semaphore;

use super::message::{InboxCounts, InboxMessage, InboxPage, MarkedMessages};
use super::request::{MarkRequest, MarkTarget, PageRequest};
use crate::jobs::Error;
use crate::postgres::Db;
use crate::service::{BatchBroken, Batcher, in_waves};

const DELIVER: &str = "select d.job_id, d.kept from flyball.deliver_inboxes($1, $2, $3, $4, $5) d";

const PAGE: &str = "
select flyball.inbox_entry(m) as entry from flyball.inbox_page($1, $2, $3, $4, $5, $6) m order by m.id desc";

const COUNTS: &str =
    "select c.unseen, c.unread from flyball.inbox_count c where c.tenant = $1 and c.recipient = $2";

const MARK: &str = "
select m.changed, m.more, m.unseen, m.unread from flyball.mark_inbox_messages($1, $2, $3, $4, $5, $6, $7, $8) m";

const PRUNE: &str = "select flyball.prune_inbox($1, $2)";

/// The statements of this file, for the test that prepares each.
pub const INBOX_STATEMENTS: &[(&str, &str)] = &[
    ("inbox: deliver", DELIVER),
    ("inbox: page", PAGE),
    ("inbox: counts", COUNTS),
    ("inbox: mark", MARK),
    ("inbox: prune", PRUNE),
];

/// The most messages that are written in one transaction.
const DELIVERED_MAX: usize = 128;

/// The shortest time between such transactions while messages keep coming.
const DELIVER_EVERY: Duration = Duration::from_millis(2);

/// The messages that wait at once for inboxes which others have locked, each on a connection.
const WAITING_MAX: usize = 2;

/// The time in which one of these must begin to wait. Postgres waits for a second.
const WAIT_WITHIN: Duration = Duration::from_secs(1);

/// The most messages that are marked in one transaction.
const MARKED_MAX: i32 = 10_000;

/// The most messages that are deleted in one transaction.
pub const PRUNED_MAX: i32 = 5000;

/// The most bytes of one page, so that a connection can send it in one frame; a page has at least
/// one message.
const PAGE_BYTES: usize = 256 * 1024;

/// A message for an inbox.
#[derive(Clone, PartialEq)]
pub struct NewInboxMessage {
    pub job_id: i64,
    pub recipient: String,
    pub subject: Option<String>,
    pub body: String,
}

/// The fate of a message for an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxDelivery {
    /// It is in the inbox, since now or since an earlier attempt.
    Kept,
    /// Too many publications of its tenant wait; nothing was written.
    Full,
    /// Another transaction has locked the inbox for long; nothing was written.
    Locked,
}

/// The store of inboxes. Cheap to clone; clones share their batches.
#[derive(Clone)]
pub struct Inbox {
    db: Db,
    delivers: Batcher<NewInboxMessage, Result<InboxDelivery, Error>>,
    /// The permits of messages that wait for locked inboxes.
    waiting: Arc<Semaphore>,
}

impl Inbox {
    /// Creates a store on a database, whose schema must be up to date.
    pub fn new(db: impl Into<Db>) -> Self {
        let db = db.into();
        let of_batches = db.clone();
        let delivers = Batcher::paced(DELIVERED_MAX, DELIVER_EVERY, move |items: Vec<_>| {
            let db = of_batches.clone();
            Box::pin(async move { deliver(&db, &items).await })
        });
        Self {
            db,
            delivers,
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }

    /// Writes a message into an inbox and publishes it, once for its job; concurrent calls share a
    /// transaction. One whose inbox is locked waits for it apart, so that it delays no other.
    pub async fn deliver(&self, message: NewInboxMessage) -> Result<InboxDelivery, Error> {
        let lost = |broken: BatchBroken| Err(Error::Lost(broken.to_string()));
        let delivered = self.delivers.submit(message.clone()).await;
        match delivered.unwrap_or_else(lost)? {
            InboxDelivery::Locked => self.deliver_apart(&message).await,
            delivery => Ok(delivery),
        }
    }

    async fn deliver_apart(&self, message: &NewInboxMessage) -> Result<InboxDelivery, Error> {
        let permit = tokio::time::timeout(WAIT_WITHIN, self.waiting.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Ok(InboxDelivery::Locked);
        };
        match delivered(&self.db, std::slice::from_ref(message), true).await {
            Ok(mut fates) => fates.pop().unwrap_or(Ok(InboxDelivery::Locked)),
            Err(error) if error.was_broken_off() => Ok(InboxDelivery::Locked),
            Err(error) => Err(error),
        }
    }

    /// Returns a page of an inbox.
    pub async fn page(
        &self,
        tenant: &str,
        recipient: &str,
        asked: &PageRequest,
    ) -> Result<InboxPage, Error> {
        let limit = i32::try_from(asked.limit.max(1)).unwrap_or(i32::MAX);
        // One more tells whether there is a next page.
        let rows = sqlx::query(PAGE)
            .bind(tenant)
            .bind(recipient)
            .bind(asked.state)
            .bind(&asked.category)
            .bind(asked.before)
            .bind(limit.saturating_add(1))
            .fetch_all(&self.db)
            .await?;
        let mut page = InboxPage::default();
        let mut bytes = 0;
        for row in &rows {
            let Json(message): Json<InboxMessage> = row.try_get("entry")?;
            bytes += serde_json::to_vec(&message).map_or(0, |text| text.len());
            let is_full = page.messages.len() as i64 >= asked.limit
                || bytes > PAGE_BYTES && !page.messages.is_empty();
            if is_full {
                page.next = page.messages.last().map(|last| last.id.clone());
                break;
            }
            page.messages.push(message);
        }
        Ok(page)
    }

    /// Returns the counts of an inbox.
    pub async fn counts(&self, tenant: &str, recipient: &str) -> Result<InboxCounts, Error> {
        let row = sqlx::query(COUNTS)
            .bind(tenant)
            .bind(recipient)
            .fetch_optional(&self.db)
            .await?;
        row.as_ref().map_or(Ok(InboxCounts::default()), counts)
    }

    /// Marks messages of an inbox; those of other inboxes are left alone. Its devices are told
    /// while fewer than `waiting_max` publications of the tenant wait.
    pub async fn mark(
        &self,
        tenant: &str,
        recipient: &str,
        asked: &MarkRequest,
        waiting_max: i64,
    ) -> Result<MarkedMessages, Error> {
        let (ids, up_to, time) = match &asked.target {
            MarkTarget::Ids(ids) => (Some(ids), None, None),
            MarkTarget::UpToId(id) => (None, Some(*id), None),
            MarkTarget::UpToTime(time) => (None, None, Some(time.to_sqlx())),
        };
        let mut marked = MarkedMessages::default();
        loop {
            let row = sqlx::query(MARK)
                .bind(tenant)
                .bind(recipient)
                .bind(asked.mark)
                .bind(ids)
                .bind(up_to)
                .bind(time)
                .bind(MARKED_MAX)
                .bind(waiting_max)
                .fetch_one(&self.db)
                .await
                .map_err(mark_error)?;
            marked.changed += row.try_get::<i64, _>("changed")?;
            marked.counts = counts(&row)?;
            if !row.try_get::<bool, _>("more")? {
                return Ok(marked);
            }
        }
    }

    /// Deletes messages that are older than some days, oldest first and at most [`PRUNED_MAX`];
    /// returns their number.
    pub async fn prune(&self, days: u32) -> Result<i64, Error> {
        let statement = sqlx::query_scalar(PRUNE)
            .bind(i32::try_from(days).unwrap_or(i32::MAX))
            .bind(PRUNED_MAX);
        Ok(statement.fetch_one(&self.db).await?)
    }
}

fn counts(row: &sqlx::postgres::PgRow) -> Result<InboxCounts, Error> {
    Ok(InboxCounts {
        unseen: row.try_get("unseen")?,
        unread: row.try_get("unread")?,
    })
}

/// Converts the error of a mark. One that waited too long for its inbox may be sent again.
fn mark_error(error: sqlx::Error) -> Error {
    let error = Error::from(error);
    match error.was_broken_off() {
        true => Error::Lost("another transaction has locked the inbox".to_owned()),
        false => error,
    }
}

/// Writes messages, those of free inboxes in one transaction. If that fails because of one of them,
/// each is written alone, because the others may be of other tenants.
async fn deliver(db: &Db, items: &[NewInboxMessage]) -> Vec<Result<InboxDelivery, Error>> {
    let error = match delivered(db, items, false).await {
        Ok(fates) => return fates,
        Err(error) => error,
    };
    let is_of_one = error.blames_a_row() || error.was_broken_off();
    if items.len() == 1 || !is_of_one {
        let lost = |_: &NewInboxMessage| Err(Error::Lost(error.to_string()));
        return items.iter().map(lost).collect();
    }
    let mut fates = Vec::with_capacity(items.len());
    let each: Vec<_> = items
        .chunks(1)
        .map(|item| delivered(db, item, false))
        .collect();
    for answer in in_waves(each, 1).await {
        match answer {
            Some(answer) => fates.extend(answer.unwrap_or_else(|error| vec![Err(error)])),
            None => fates.push(Err(Error::Lost(error.to_string()))),
        }
    }
    fates
}

/// Writes messages in one transaction, in the order in which they were sent, whichever attempt was
/// faster; returns the fate of each.
async fn delivered(
    db: &Db,
    items: &[NewInboxMessage],
    waits: bool,
) -> Result<Vec<Result<InboxDelivery, Error>>, Error> {
    let mut sent: Vec<&NewInboxMessage> = items.iter().collect();
    sent.sort_by_key(|one| one.job_id);
    let jobs: Vec<i64> = sent.iter().map(|one| one.job_id).collect();
    let recipients: Vec<&str> = sent.iter().map(|one| one.recipient.as_str()).collect();
    let subjects: Vec<Option<&str>> = sent.iter().map(|one| one.subject.as_deref()).collect();
    let bodies: Vec<&str> = sent.iter().map(|one| one.body.as_str()).collect();
    let rows = sqlx::query(DELIVER)
        .bind(jobs)
        .bind(recipients)
        .bind(subjects)
        .bind(bodies)
        .bind(waits)
        .fetch_all(db)
        .await?;
    let mut kept: HashMap<i64, Option<bool>> = HashMap::with_capacity(rows.len());
    for row in &rows {
        kept.insert(row.try_get("job_id")?, row.try_get("kept")?);
    }
    let fate = |one: &NewInboxMessage| match kept.get(&one.job_id) {
        Some(Some(true)) => Ok(InboxDelivery::Kept),
        Some(Some(false)) => Ok(InboxDelivery::Full),
        Some(None) => Ok(InboxDelivery::Locked),
        None => Err(Error::Lost("the job of the message is gone".to_owned())),
    };
    Ok(items.iter().map(fate).collect())
}
