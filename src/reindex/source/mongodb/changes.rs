//! The change stream of a collection.
//!
//! An event says which document changed. The document itself is read afterwards, so that several
//! changes of one are a single write, and the index never gets an older state after a newer one.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bson::{Bson, Document as BsonDocument, doc};
use mongodb::ClientSession;
use mongodb::change_stream::event::ResumeToken;
use mongodb::change_stream::session::SessionChangeStream;
use serde_json::Value;

use super::conversion::document_id;
use super::error::classify;
use super::source::{MongoSource, id_of, key_of};
use crate::reindex::document::{Action, Document};
use crate::reindex::source::{ChangePage, Error};

/// Longest wait of the server for the first change.
const AWAIT: Duration = Duration::from_millis(500);

/// The collection's stream with the session that reads it and the position that it has reached.
pub(super) struct OpenStream {
    session: ClientSession,
    events: SessionChangeStream<BsonDocument>,
    position: String,
}

impl MongoSource {
    /// Returns the present position, from which later reads are causally ordered.
    pub(super) async fn present(&self) -> Result<String, Error> {
        let mut stream = self.open_stream(None).await?;
        for _ in 0..5 {
            if let Some(token) = stream.events.resume_token() {
                return position_of(&token);
            }
            // The server sends a position with each answer; an event before it is after the position
            // that is being asked for and must not be skipped, so the stream is opened again.
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
        let mut session = self.begin().await?;
        // The stream keeps what names a document and nothing else, so that its size does not matter.
        let fields =
            doc! {"operationType": 1, "documentKey": 1, "clusterTime": 1, "ns": 1, "to": 1};
        let mut watch = self
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
            position,
        };
        self.follow_session(&opened).await?;
        Ok(opened)
    }

    /// Makes the session of the scan at least as new as the stream.
    async fn follow_session(&self, stream: &OpenStream) -> Result<(), Error> {
        let mut held = self.session.lock().await;
        if held.is_none() {
            *held = Some(self.begin().await?);
        }
        if let Some(session) = held.as_mut() {
            if let Some(time) = stream.session.cluster_time() {
                session.advance_cluster_time(time);
            }
            if let Some(time) = stream.session.operation_time() {
                session.advance_operation_time(time);
            }
        }
        Ok(())
    }

    /// Returns changes after `position`.
    pub(super) async fn changed(&self, position: &str, limit: usize) -> Result<ChangePage, Error> {
        let mut held = self.stream.lock().await;
        // A stream is used on only from where it stands; after an error it is opened again.
        let mut stream = match held.take() {
            Some(stream) if stream.position == position => stream,
            _ => self.open_stream(Some(position)).await?,
        };
        let mut changed: BTreeMap<String, Bson> = BTreeMap::new();
        let mut newest = None;
        while changed.len() < limit {
            let event = stream.events.next_if_any(&mut stream.session).await;
            let Some(event) = event.map_err(|error| classify(&error))? else {
                break;
            };
            if let Some(at) = event.get("clusterTime").and_then(Bson::as_timestamp) {
                newest = Some(at.time);
            }
            match event.get_str("operationType").unwrap_or_default() {
                "insert" | "update" | "replace" | "delete" => {
                    let key = event.get_document("documentKey").ok();
                    if let Some(id) = key.and_then(|key| key.get("_id")) {
                        changed.insert(key_of(id), id.clone());
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
        if let Some(token) = stream.events.resume_token() {
            stream.position = position_of(&token)?;
        }
        self.follow_session(&stream).await?;
        let page = ChangePage {
            documents: self.as_they_are(changed).await?,
            position: stream.position.clone(),
            lag: newest.map_or(Duration::ZERO, age),
            log_window: self.log_window().await,
        };
        *held = Some(stream);
        Ok(page)
    }

    /// Returns these documents as they are now; one that is gone is to be deleted.
    async fn as_they_are(&self, changed: BTreeMap<String, Bson>) -> Result<Vec<Document>, Error> {
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.find(changed.values().cloned().collect()).await?;
        let mut found: BTreeMap<_, _> = found
            .into_iter()
            .map(|(id, document)| (key_of(&id), document))
            .collect();
        let mut documents = Vec::with_capacity(changed.len());
        for key in changed.into_keys() {
            documents.push(match found.remove(&key) {
                Some(document) => document,
                None => {
                    let key = [key];
                    Document {
                        id: Some(document_id(&id_of(&key)?)),
                        key: key.into(),
                        routing: None,
                        action: Action::Delete,
                    }
                }
            });
        }
        self.refuse_lookalikes(&mut documents).await?;
        Ok(documents)
    }

    /// Returns the age of the oldest change in the log, if this user may read it.
    async fn log_window(&self) -> Option<Duration> {
        let log = self.log();
        let first = log.find_one(doc! {}).sort(doc! {"$natural": 1});
        let first = first.projection(doc! {"ts": 1}).await.ok()??;
        first.get_timestamp("ts").ok().map(|ts| age(ts.time))
    }
}

/// Returns the time since a second of the server's clock.
fn age(second: u32) -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_sub(Duration::from_secs(u64::from(second)))
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
