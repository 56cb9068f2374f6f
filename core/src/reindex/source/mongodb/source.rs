//! A collection as a source: its scan, and its change stream.
//!
//! An event says which document changed. The document itself is read afterwards, so that several
//! changes of one are a single write, and the index never gets an older state after a newer one.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document as BsonDocument, doc};
use futures_util::future::BoxFuture;
use mongodb::ClientSession;
use mongodb::change_stream::event::ResumeToken;
use mongodb::change_stream::session::SessionChangeStream;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::changed::ChangedIds;
use super::error::classify;
use super::scan::{CollectionScan, pauses};
use crate::reindex::document::{Action, Document};
use crate::reindex::source::{ChangePage, DocumentPage, DocumentSource, Error};
use crate::reindex::source_args::{CollectionName, SourceArgs};

/// Longest wait of the server for the first change.
const AWAIT: Duration = Duration::from_millis(500);
/// Longest time in which changes are collected, from the first one on. A few documents that change
/// without a pause would never fill a page.
const COLLECT_WITHIN: Duration = Duration::from_secs(1);

/// The collection's stream, with the session that reads it.
struct OpenStream {
    session: ClientSession,
    events: SessionChangeStream<BsonDocument>,
    /// The position up to which all changes were returned.
    position: String,
    /// The position up to which changes were collected.
    reached: String,
    /// The documents that changed between the two and were not returned yet.
    changed: ChangedIds,
    /// The second of the newest of these changes.
    newest: Option<u32>,
}

impl OpenStream {
    /// Collects the next changes, of at most `limit` documents.
    async fn collect(&mut self, limit: usize) -> Result<(), Error> {
        self.newest = None;
        let mut until: Option<Instant> = None;
        while self.changed.len() < limit && until.is_none_or(|until| Instant::now() < until) {
            let event = self.events.next_if_any(&mut self.session).await;
            let Some(event) = event.map_err(|error| classify(&error))? else {
                break;
            };
            until.get_or_insert_with(|| Instant::now() + COLLECT_WITHIN);
            if let Some(at) = event.get("clusterTime").and_then(Bson::as_timestamp) {
                self.newest = Some(at.time);
            }
            match event.get_str("operationType").unwrap_or_default() {
                "insert" | "update" | "replace" | "delete" => {
                    let key = event.get_document("documentKey").ok();
                    if let Some(id) = key.and_then(|key| key.get("_id")) {
                        self.changed.insert(id);
                    }
                }
                // The rest of an index that is left behind must not look complete.
                ended @ ("drop" | "rename" | "dropDatabase" | "invalidate") => {
                    return Err(Error::ChangesLost(format!(
                        "the collection has ended ({ended})"
                    )));
                }
                _ => {}
            }
        }
        if let Some(token) = self.events.resume_token() {
            self.reached = position_of(&token)?;
        }
        Ok(())
    }
}

/// A collection, with a stream of its changes that stays open from page to page.
pub struct MongoSource {
    scan: CollectionScan,
    stream: Mutex<Option<OpenStream>>,
}

impl MongoSource {
    /// Opens a source for the job, with the fields that the sink needs beside the document.
    ///
    /// Connections are made when they are needed. Reads go to secondaries unless the URL says
    /// otherwise, and see only what a majority of the replica set has.
    ///
    /// # Errors
    ///
    /// Fails if the URL is not one of MongoDB's; the error does not show it.
    pub async fn open(
        url: &str,
        collection: &CollectionName,
        source: &SourceArgs,
        id: &str,
        routing: Option<&str>,
    ) -> Result<Self, String> {
        Ok(Self {
            scan: CollectionScan::open(url, collection, source, id, routing).await?,
            stream: Mutex::default(),
        })
    }

    /// Returns the present position, from which later reads are causally ordered.
    async fn present(&self) -> Result<String, Error> {
        let mut stream = self.open_stream(None).await?;
        for _ in 0..5 {
            if let Some(token) = stream.events.resume_token() {
                return position_of(&token);
            }
            // The server sends a position with each answer; an event before it is after the
            // position that is being asked for and must not be skipped, so the stream is opened
            // again.
            let next = stream.events.next_if_any(&mut stream.session).await;
            if next.map_err(|error| classify(&error))?.is_some() {
                stream = self.open_stream(None).await?;
            }
        }
        Err(Error::Wrong(
            "the server gives no position in its log of changes; follow needs a replica set of MongoDB 4.0.7 or newer"
                .to_owned(),
        ))
    }

    async fn open_stream(&self, after: Option<&str>) -> Result<OpenStream, Error> {
        let mut session = self.scan.begin().await?;
        // The stream keeps only a document's identity, so that its size does not matter.
        let fields =
            doc! {"operationType": 1, "documentKey": 1, "clusterTime": 1, "ns": 1, "to": 1};
        let mut watch = self
            .scan
            .collection
            .watch()
            .pipeline([doc! {"$project": fields}])
            .max_await_time(AWAIT);
        if let Some(after) = after {
            watch = watch.resume_after(token_of(after)?);
        }
        let events = watch
            .session(&mut session)
            .await
            .map_err(|e| classify(&e))?;
        let events = events.with_type::<BsonDocument>();
        let position = after.unwrap_or_default().to_owned();
        let opened = OpenStream {
            session,
            events,
            reached: position.clone(),
            position,
            changed: ChangedIds::default(),
            newest: None,
        };
        self.scan.catch_up(&opened.session).await?;
        Ok(opened)
    }

    /// Returns changes after `position`.
    async fn changed(&self, position: &str, limit: usize) -> Result<ChangePage, Error> {
        for pause in pauses() {
            match self.try_changes(position, limit).await {
                // The stream is opened again after `position`.
                Err(Error::Lost(_)) => tokio::time::sleep(pause).await,
                answer => return answer,
            }
        }
        self.try_changes(position, limit).await
    }

    async fn try_changes(&self, position: &str, limit: usize) -> Result<ChangePage, Error> {
        let mut held = self.stream.lock().await;
        // A stream can only continue from its position; after an error it is opened again.
        let mut stream = match held.take() {
            Some(stream) if stream.position == position => stream,
            _ => self.open_stream(Some(position)).await?,
        };
        if stream.changed.is_empty() {
            stream.collect(limit).await?;
        }
        self.scan.catch_up(&stream.session).await?;
        let documents = self.as_they_are(&mut stream.changed).await?;
        // While documents are left, a worker that is killed must begin before them.
        if stream.changed.is_empty() {
            stream.position.clone_from(&stream.reached);
        }
        let lag = stream
            .newest
            .map_or(Duration::ZERO, |second| age(&stream.session, second));
        let page = ChangePage {
            documents,
            position: stream.position.clone(),
            lag,
            log_window: match lag.is_zero() {
                true => None,
                false => self.log_window(&stream.session).await,
            },
        };
        *held = Some(stream);
        Ok(page)
    }

    /// Takes documents out of `changed` and returns them as they are now; an id that none has is to
    /// be deleted. If they are large, some are left for the next page.
    async fn as_they_are(&self, changed: &mut ChangedIds) -> Result<Vec<Document>, Error> {
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        let (mut documents, is_all) = self.scan.take(changed).await?;
        self.scan.refuse_lookalikes(&mut documents).await?;
        if is_all {
            let gone = changed.take_gone().into_iter();
            documents.extend(gone.map(|id| Document {
                key: Arc::from([id.clone()]),
                id: Some(id),
                routing: None,
                action: Action::Delete,
            }));
        }
        Ok(documents)
    }

    /// Returns the age of the oldest change in the log, if this user may read it.
    async fn log_window(&self, session: &ClientSession) -> Option<Duration> {
        let log = self.scan.log();
        let first = log.find_one(doc! {}).sort(doc! {"$natural": 1});
        let first = first.projection(doc! {"ts": 1}).await.ok()??;
        first
            .get_timestamp("ts")
            .ok()
            .map(|ts| age(session, ts.time))
    }
}

impl DocumentSource for MongoSource {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(self.scan.count())
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        Box::pin(self.scan.read(after, limit))
    }

    fn position(&self) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(self.present())
    }

    fn changes<'a>(
        &'a self,
        position: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<ChangePage, Error>> {
        Box::pin(self.changed(position, limit))
    }
}

/// Returns the time from a second to the server's present, as far as the session has seen it.
fn age(session: &ClientSession, second: u32) -> Duration {
    let now = session.operation_time().map_or(second, |now| now.time);
    Duration::from_secs(u64::from(now.saturating_sub(second)))
}

fn position_of(token: &ResumeToken) -> Result<String, Error> {
    serde_json::to_string(token)
        .map_err(|_| Error::Wrong("it sent a position that is not a document".to_owned()))
}

fn token_of(position: &str) -> Result<ResumeToken, Error> {
    let wrong = || Error::Wrong("the checkpoint does not hold a position".to_owned());
    let value: Value = serde_json::from_str(position).map_err(|_| wrong())?;
    serde_json::from_value(value).map_err(|_| wrong())
}
