//! The scan of a collection.
//!
//! A query for `_id`s above a value finds only those of its type, so the scan bounds the index
//! instead: every `_id` from the last one on, of any type, in the order of the index.

use std::collections::BTreeSet;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, Document as BsonDocument, doc};
use mongodb::action::Find;
use mongodb::error::ErrorKind;
use mongodb::options::{
    ClientOptions, Hint, ReadConcern, ReadPreference, SelectionCriteria, SessionOptions,
};
use mongodb::{Client, ClientSession, Collection};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::changed::ChangedIds;
use super::conversion::{
    document_id, document_json, extended_json, from_extended_json, lookalikes,
};
use super::error::classify;
use crate::reindex::document::{Action, Document};
use crate::reindex::source::page::PAGE_BYTES;
use crate::reindex::source::{DocumentPage, Error};
use crate::reindex::source_args::{CollectionName, SourceArgs};

/// The name of the connections in the server's list of operations.
const APPLICATION: &str = "flyball reindex";
/// Longest wait for a server that can answer.
const SELECT_WITHIN: Duration = Duration::from_secs(10);
/// Longest time of the estimate.
const COUNT_WITHIN: Duration = Duration::from_secs(5);
/// Most attempts at one page, with pauses of 0.2 s doubling in between: long enough for an
/// election.
const MAX_TRIES: usize = 7;
/// First pause between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// A collection read over its own connections.
pub(super) struct CollectionScan {
    pub(super) collection: Collection<RawDocumentBuf>,
    client: Client,
    projection: Option<BsonDocument>,
    id: String,
    routing: Option<String>,
    timeout: Duration,
    /// The session that makes each read at least as new as the one before it, whichever member of
    /// the replica set answers.
    session: OnceCell<Mutex<ClientSession>>,
    /// Set once the collection is known to be one that can be scanned.
    checked: OnceCell<()>,
}

impl CollectionScan {
    /// Opens the collection; see [`super::MongoSource::open`].
    pub(super) async fn open(
        url: &str,
        collection: &CollectionName,
        source: &SourceArgs,
        id: &str,
        routing: Option<&str>,
    ) -> Result<Self, String> {
        let parsed = ClientOptions::parse(url.trim()).await;
        let mut options = parsed.map_err(|error| match &*error.kind {
            ErrorKind::DnsResolve { .. } => "names a host that cannot be resolved".to_owned(),
            _ => "does not hold a MongoDB URL".to_owned(),
        })?;
        options.app_name = Some(APPLICATION.to_owned());
        options
            .server_selection_timeout
            .get_or_insert(SELECT_WITHIN);
        options.connect_timeout.get_or_insert(SELECT_WITHIN);
        let secondary = ReadPreference::SecondaryPreferred { options: None };
        options
            .selection_criteria
            .get_or_insert(SelectionCriteria::ReadPreference(secondary));
        options.read_concern = Some(ReadConcern::majority());
        let client = Client::with_options(options)
            .map_err(|_| "holds options that the driver refuses".to_owned())?;
        let projection = source.columns.as_ref().map(|columns| {
            let extra = [Some(id), routing].into_iter().flatten().map(str::to_owned);
            let all = columns.iter().cloned().chain(extra);
            all.map(|column| (column, Bson::Int32(1))).collect()
        });
        Ok(Self {
            collection: client
                .database(&collection.database)
                .collection(&collection.name),
            client,
            projection,
            id: id.to_owned(),
            routing: routing.map(str::to_owned),
            timeout: source.rights.statement_timeout,
            session: OnceCell::new(),
            checked: OnceCell::new(),
        })
    }

    /// Begins a session.
    pub(super) async fn begin(&self) -> Result<ClientSession, Error> {
        let options = SessionOptions::builder().causal_consistency(true).build();
        let begun = self.client.start_session().with_options(options).await;
        begun.map_err(|error| classify(&error))
    }

    /// Returns the session of the scan.
    async fn session(&self) -> Result<MutexGuard<'_, ClientSession>, Error> {
        let begin = async || self.begin().await.map(Mutex::new);
        Ok(self.session.get_or_try_init(begin).await?.lock().await)
    }

    /// Makes later reads at least as new as what `other` has seen.
    pub(super) async fn catch_up(&self, other: &ClientSession) -> Result<(), Error> {
        let mut session = self.session().await?;
        if let Some(time) = other.cluster_time() {
            session.advance_cluster_time(time);
        }
        if let Some(time) = other.operation_time() {
            session.advance_operation_time(time);
        }
        Ok(())
    }

    /// Returns the client's database of logs, for the age of the oldest change.
    pub(super) fn log(&self) -> Collection<BsonDocument> {
        self.client.database("local").collection("oplog.rs")
    }

    pub(super) async fn read(
        &self,
        after: Option<&[String]>,
        limit: usize,
    ) -> Result<DocumentPage, Error> {
        self.check_kind().await?;
        let after = after.map(id_of).transpose()?;
        for pause in pauses() {
            match self.try_page(after.as_ref(), limit).await {
                // An election, a lost cursor, a cut connection: the next query begins where this
                // one would have.
                Err(Error::Lost(_)) => tokio::time::sleep(pause).await,
                answer => return answer,
            }
        }
        self.try_page(after.as_ref(), limit).await
    }

    /// Refuses a view or a time series, which have no index on `_id`, and a collection that is not
    /// there.
    async fn check_kind(&self) -> Result<(), Error> {
        let check = async || {
            let database = self.client.database(&self.collection.namespace().db);
            let name = self.collection.name();
            let listed = database
                .list_collections()
                .filter(doc! {"name": name})
                .await;
            let mut listed = listed.map_err(|error| classify(&error))?;
            if !listed.advance().await.map_err(|error| classify(&error))? {
                return Err(Error::Wrong(format!("there is no collection {name}")));
            }
            match listed.current().get_str("type") {
                Ok(kind @ ("view" | "timeseries")) => Err(Error::Wrong(format!(
                    "{name} is a {kind}, which has no index on _id to follow"
                ))),
                _ => Ok(()),
            }
        };
        self.checked.get_or_try_init(check).await.copied()
    }

    async fn try_page(&self, after: Option<&Bson>, limit: usize) -> Result<DocumentPage, Error> {
        let mut session = self.session().await?;
        // One document more than asked shows whether more follow, and one is the last of the page
        // before.
        let most = limit + 1 + usize::from(after.is_some());
        let mut query = self
            .query(doc! {})
            .sort(doc! {"_id": 1})
            .hint(Hint::Keys(doc! {"_id": 1}))
            .limit(most as i64)
            .batch_size(u32::try_from(most).unwrap_or(u32::MAX));
        if let Some(after) = after {
            query = query.min(doc! {"_id": after.clone()});
        }
        let mut cursor = query
            .session(&mut *session)
            .await
            .map_err(|e| classify(&e))?;
        // Compared as keys, because NaN is an `_id` and no equal of itself.
        let after = after.map(key_of);
        let (mut page, mut bytes) = (DocumentPage::default(), 0);
        while cursor
            .advance(&mut session)
            .await
            .map_err(|e| classify(&e))?
        {
            let read = cursor.current().to_owned();
            let id = id(&read)?;
            if after.as_ref() == Some(&key_of(&id)) {
                continue;
            }
            if page.documents.len() == limit || bytes > PAGE_BYTES {
                page.more = true;
                break;
            }
            bytes += read.as_bytes().len();
            page.documents.push(self.document(&read, &id));
        }
        drop(session);
        self.refuse_lookalikes(&mut page.documents).await?;
        Ok(page)
    }

    /// Returns a query for the fields of the job.
    fn query(&self, filter: BsonDocument) -> Find<'_, RawDocumentBuf> {
        let query = self.collection.find(filter).max_time(self.timeout);
        match &self.projection {
            Some(projection) => query.projection(projection.clone()),
            None => query,
        }
    }

    /// Takes documents out of `wanted` and returns them as they are now, in any order, until
    /// [`PAGE_BYTES`]. Also returns true if all were read, so that those left in `wanted` are gone.
    pub(super) async fn take(
        &self,
        wanted: &mut ChangedIds,
    ) -> Result<(Vec<Document>, bool), Error> {
        let mut session = self.session().await?;
        let query = self.query(doc! {"_id": {"$in": wanted.ids()}});
        let mut cursor = query
            .session(&mut *session)
            .await
            .map_err(|e| classify(&e))?;
        let (mut documents, mut bytes) = (Vec::new(), 0);
        while bytes <= PAGE_BYTES {
            let is_one = cursor.advance(&mut session).await;
            if !is_one.map_err(|e| classify(&e))? {
                return Ok((documents, true));
            }
            let read = cursor.current().to_owned();
            let id = id(&read)?;
            if wanted.take(&id) {
                bytes += read.as_bytes().len();
                documents.push(self.document(&read, &id));
            }
        }
        Ok((documents, false))
    }

    fn document(&self, read: &RawDocument, id: &Bson) -> Document {
        let field = |name: &str| match name {
            "_id" => Ok(Some(document_id(id))),
            _ => text_at(read, name),
        };
        let routing = self.routing.as_deref().map_or(Ok(None), field);
        let own_id = field(&self.id);
        let json = match own_id.as_ref().and(routing.as_ref()) {
            Ok(_) => document_json(read),
            Err(fault) => Err(fault.clone()),
        };
        Document {
            key: Arc::from([key_of(id)]),
            id: own_id.unwrap_or_default(),
            routing: routing.unwrap_or_default(),
            action: match json {
                Ok(json) => Action::Store(Arc::from(json)),
                Err(fault) => Action::Refuse(fault),
            },
        }
    }

    /// Refuses each document whose `_id` is a string for which the collection has a second document
    /// that would have the same id, such as `"7"` beside `7`: one would overwrite the other.
    pub(super) async fn refuse_lookalikes(&self, documents: &mut [Document]) -> Result<(), Error> {
        if self.id != "_id" {
            return Ok(());
        }
        let mut twins = Vec::new();
        for document in documents.iter() {
            if let Ok(Bson::String(text)) = id_of(&document.key) {
                twins.extend(lookalikes(&text));
            }
        }
        if twins.is_empty() {
            return Ok(());
        }
        // At least as new as the documents, or a member that is behind would hide a twin.
        let mut session = self.session().await?;
        let found = self
            .collection
            .find(doc! {"_id": {"$in": twins}})
            .projection(doc! {"_id": 1})
            .max_time(self.timeout);
        let found = found.session(&mut *session).await;
        let mut found = found.map_err(|e| classify(&e))?;
        let mut taken = BTreeSet::new();
        while found
            .advance(&mut session)
            .await
            .map_err(|e| classify(&e))?
        {
            taken.insert(document_id(&id(&found.current().to_owned())?));
        }
        drop(session);
        for document in documents {
            let is_text = matches!(id_of(&document.key), Ok(Bson::String(_)));
            if is_text && document.id.as_ref().is_some_and(|id| taken.contains(id)) {
                document.action = Action::Refuse(
                    "its _id is a string that reads like the _id of another document, which has the same id in the index"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    pub(super) async fn count(&self) -> Result<Option<u64>, Error> {
        // A source that answers neither now nor at the first page says so there.
        let counted = self
            .collection
            .estimated_document_count()
            .max_time(COUNT_WITHIN);
        Ok(counted.await.ok())
    }
}

/// Returns the pauses between the attempts at one read.
pub(super) fn pauses() -> impl Iterator<Item = Duration> {
    successors(Some(FIRST_PAUSE), |pause| Some(*pause * 2)).take(MAX_TRIES - 1)
}

/// Returns an `_id` as a key: its canonical extended JSON, which keeps its type.
fn key_of(id: &Bson) -> String {
    extended_json(id)
}

/// Returns the `_id` of a key.
fn id_of(key: &[String]) -> Result<Bson, Error> {
    let wrong = || Error::Wrong("the cursor does not hold an _id".to_owned());
    let [key] = key else { return Err(wrong()) };
    from_extended_json(key).ok_or_else(wrong)
}

fn id(document: &RawDocumentBuf) -> Result<Bson, Error> {
    let missing = || Error::Wrong("a document has no _id".to_owned());
    let id = document.get("_id").map_err(|_| missing())?;
    Bson::try_from(id.ok_or_else(missing)?).map_err(|_| missing())
}

/// Returns the text of a field, which may be within others (`a.b`); `None` if it is absent or null.
///
/// # Errors
///
/// Fails with the reason if the field is not BSON, such as a string that is not UTF-8.
fn text_at(document: &RawDocument, name: &str) -> Result<Option<String>, String> {
    let mut value = RawBsonRef::Document(document);
    for part in name.split('.') {
        let RawBsonRef::Document(document) = value else {
            return Ok(None);
        };
        value = match document.get(part) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(_) => return Err(format!("its field {name} is not BSON")),
        };
    }
    match Bson::try_from(value) {
        Ok(Bson::Null | Bson::Undefined) => Ok(None),
        Ok(found) => Ok(Some(document_id(&found))),
        Err(_) => Err(format!("its field {name} is not BSON")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_whatever_the_others_hold() {
        let document = doc! {"a": "??", "in": {"id": 7, "none": Bson::Null}, "last": "x"};
        let mut bytes = RawDocumentBuf::try_from(&document).unwrap().into_bytes();
        let at = bytes.windows(2).position(|two| two == b"??").unwrap();
        bytes[at] = 0xff;
        let read = RawDocumentBuf::from_bytes(bytes).unwrap();

        for (name, text) in [
            ("in.id", Some("7")),
            ("last", Some("x")),
            ("in.none", None),
            ("none", None),
            ("last.id", None),
        ] {
            assert_eq!(text_at(&read, name), Ok(text.map(str::to_owned)), "{name}");
        }
        assert_eq!(
            text_at(&read, "a"),
            Err("its field a is not BSON".to_owned())
        );
    }
}
