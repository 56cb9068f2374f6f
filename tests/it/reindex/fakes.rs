//! Stand-ins for the servers of a reindex, which fail on request.

use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use flyball::jobs::{Checkpoint, CheckpointError, Checkpoints, Context, Job};
use flyball::reindex::source::{DocumentPage, DocumentSource, Error};
use flyball::reindex::{Action, Document};
use flyball::throttle::{MemoryStore, Name};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::observed_store::Refusals;

// === An index that speaks _bulk ===

/// The index's reaction to its next request.
#[derive(Clone, Debug)]
pub enum Mood {
    /// Stores everything.
    Good,
    /// Answers 200, but 429 for documents whose number is odd.
    OddBusy,
    /// Answers with this status as a whole, with Retry-After in seconds if given.
    Whole(u16, Option<u64>),
    /// Stores everything, and cuts the connection instead of answering.
    Cut,
    /// Waits, then stores everything.
    Slow(Duration),
    /// Answers 200 with a body that is no answer to `_bulk`.
    Nonsense,
}

/// A request as the index received it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub ids: Vec<String>,
}

#[derive(Default)]
pub struct Index {
    pub documents: Mutex<BTreeMap<String, Value>>,
    pub seen: Mutex<Vec<Seen>>,
    pub moods: Mutex<VecDeque<Mood>>,
    /// Ids that are rejected for good.
    pub refused: Mutex<BTreeSet<String>>,
    /// Ids that find the index busy, each with the status and the type of error in the answer.
    pub busy: Mutex<BTreeMap<String, (u16, &'static str)>>,
    /// Requests with more documents than this are answered 413; 0 for no limit.
    pub most: Mutex<usize>,
    /// The query and the first action of each request.
    pub asked: Mutex<Vec<(String, String)>>,
    /// The `authorization` header of each request; empty for none.
    pub authorizations: Mutex<Vec<String>>,
}

impl Index {
    /// Starts the index on a free port; returns it and its URL.
    pub async fn start() -> (Arc<Self>, String) {
        let index = Arc::new(Self::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new()
            .route("/{index}/_bulk", post(bulk))
            .with_state(index.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        (index, url)
    }

    pub fn then(&self, moods: impl IntoIterator<Item = Mood>) {
        self.moods.lock().unwrap().extend(moods);
    }

    pub fn ids(&self) -> BTreeSet<u64> {
        self.documents
            .lock()
            .unwrap()
            .keys()
            .map(|id| id.parse().unwrap())
            .collect()
    }

    /// Returns the number of times that each document was sent.
    pub fn times_sent(&self) -> BTreeMap<String, usize> {
        let mut times = BTreeMap::new();
        for id in self.seen.lock().unwrap().iter().flat_map(|s| &s.ids) {
            *times.entry(id.clone()).or_default() += 1;
        }
        times
    }

    pub fn sent(&self) -> usize {
        self.seen.lock().unwrap().iter().map(|s| s.ids.len()).sum()
    }
}

async fn bulk(
    State(index): State<Arc<Index>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: String,
) -> Response<Body> {
    let authorization = headers
        .get("authorization")
        .map_or("", |value| value.to_str().unwrap());
    index
        .authorizations
        .lock()
        .unwrap()
        .push(authorization.to_owned());
    let lines: Vec<&str> = body.lines().collect();
    let action = if body.starts_with("{\"create\"") {
        "create"
    } else {
        "index"
    };
    index
        .asked
        .lock()
        .unwrap()
        .push((query.unwrap_or_default(), action.to_owned()));
    let mut pairs: Vec<(String, Value)> = Vec::new();
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        let action: Value = serde_json::from_str(line).unwrap();
        let (verb, target) = action.as_object().unwrap().iter().next().unwrap();
        // A delete has no document.
        let document = match verb.as_str() {
            "delete" => Value::Null,
            _ => serde_json::from_str(lines.next().unwrap()).unwrap(),
        };
        pairs.push((target["_id"].as_str().unwrap().to_owned(), document));
    }
    let ids = pairs.iter().map(|(id, _)| id.clone()).collect();
    index.seen.lock().unwrap().push(Seen {
        at: Instant::now(),
        ids,
    });
    let most = *index.most.lock().unwrap();
    if most > 0 && pairs.len() > most {
        return (StatusCode::PAYLOAD_TOO_LARGE, "too large").into_response();
    }
    if let Some((id, _)) = pairs.iter().find(|(id, _)| id.is_empty() || id.len() > 512) {
        let reason = format!(
            "id is too long, must be no longer than 512 bytes but was: {}",
            id.len()
        );
        let error = json!({"type": "action_request_validation_exception", "reason": reason});
        let body = json!({"error": error, "status": 400});
        return (StatusCode::BAD_REQUEST, axum::Json(body)).into_response();
    }
    let mood = index
        .moods
        .lock()
        .unwrap()
        .pop_front()
        .unwrap_or(Mood::Good);
    match mood {
        Mood::Whole(status, retry_after) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), "no").into_response();
            if let Some(seconds) = retry_after {
                response.headers_mut().insert("retry-after", seconds.into());
            }
            return response;
        }
        Mood::Nonsense => return "<html>welcome</html>".into_response(),
        Mood::Slow(time) => tokio::time::sleep(time).await,
        _ => {}
    }
    let mut errors = false;
    let mut items = Vec::new();
    for (id, document) in pairs {
        let odd = id.parse::<u64>().is_ok_and(|n| n % 2 == 1);
        let error = if matches!(mood, Mood::OddBusy) && odd {
            Some((429, "es_rejected_execution_exception"))
        } else if let Some(busy) = index.busy.lock().unwrap().get(&id) {
            Some(*busy)
        } else if index.refused.lock().unwrap().contains(&id) {
            Some((400, "mapper_parsing_exception"))
        } else {
            None
        };
        items.push(match error {
            Some((status, kind)) => {
                errors = true;
                json!({"index": {"_id": id, "status": status, "error": {"type": kind, "reason": "as requested"}}})
            }
            None if document.is_null() => {
                let there = index.documents.lock().unwrap().remove(&id).is_some();
                json!({"delete": {"_id": id, "status": if there { 200 } else { 404 }}})
            }
            None => {
                index.documents.lock().unwrap().insert(id.clone(), document);
                json!({"index": {"_id": id, "status": 201}})
            }
        });
    }
    if matches!(mood, Mood::Cut) {
        // A truncated body: the client sees a connection closed in the middle.
        let broken =
            futures_util::stream::once(async { Err::<String, _>(std::io::Error::other("cut")) });
        return Response::new(Body::from_stream(broken));
    }
    axum::Json(json!({"took": 1, "errors": errors, "items": items})).into_response()
}

// === A source of numbers ===

/// Documents 1 to n.
pub struct Numbers(pub u64);

impl DocumentSource for Numbers {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async { Ok(Some(self.0)) })
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        let first = after.map_or(1, |key| key[0].parse::<u64>().unwrap() + 1);
        let last = (first + limit as u64 - 1).min(self.0);
        let documents = (first..=last).map(number).collect();
        Box::pin(async move {
            Ok(DocumentPage {
                documents,
                more: last < self.0,
            })
        })
    }
}

fn number(n: u64) -> Document {
    Document {
        key: Arc::from([n.to_string()]),
        id: Some(n.to_string()),
        routing: None,
        action: Action::Store(Arc::from(json!({"n": n}).to_string())),
    }
}

// === Checkpoints in memory ===

/// The checkpoint of one job, kept only for the fence that holds its lease.
#[derive(Default)]
pub struct Memory {
    pub kept: Mutex<Option<Checkpoint>>,
    pub fence: AtomicI64,
}

impl Checkpoints for Memory {
    fn load(&self, _: i64) -> BoxFuture<'_, Result<Option<Checkpoint>, CheckpointError>> {
        Box::pin(async { Ok(self.kept.lock().unwrap().clone()) })
    }

    fn store<'a>(
        &'a self,
        job_id: i64,
        fence: i64,
        at: &'a Checkpoint,
    ) -> BoxFuture<'a, Result<(), CheckpointError>> {
        Box::pin(async move {
            if self.fence.load(Ordering::SeqCst) != fence {
                return Err(CheckpointError::LeaseLost(job_id));
            }
            *self.kept.lock().unwrap() = Some(at.clone());
            Ok(())
        })
    }
}

// === The hands of a handler ===

/// A throttle in memory, a checkpoint in memory, a token to cancel.
pub struct Hands {
    pub throttles: Arc<MemoryStore>,
    /// The handler's asks that were refused.
    pub refusals: Refusals,
    pub checkpoints: Arc<Memory>,
    pub cancelled: CancellationToken,
}

impl Hands {
    /// Hands with a throttle `reindex` at this rate.
    pub fn at(rps: &str) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the fake stands for a server, and servers have clocks"
        )]
        let clock = || jiff::Timestamp::now().as_microsecond();
        let hands = Self {
            throttles: Arc::new(MemoryStore::new(Arc::new(clock))),
            refusals: Refusals::default(),
            checkpoints: Arc::default(),
            cancelled: CancellationToken::new(),
        };
        hands.turn(rps);
        hands
    }

    /// The hands of the worker that takes over.
    pub fn successor(&self) -> Self {
        Self {
            throttles: self.throttles.clone(),
            refusals: self.refusals.clone(),
            checkpoints: self.checkpoints.clone(),
            cancelled: CancellationToken::new(),
        }
    }

    pub fn turn(&self, rps: &str) {
        self.throttles
            .write_raw(&Name::new("reindex").unwrap(), "rps", rps);
    }

    pub fn context(&self) -> Context {
        Context::new(
            Arc::new((&job(Value::Null)).into()),
            self.cancelled.clone(),
            self.refusals.of(self.throttles.clone()),
            self.checkpoints.clone(),
        )
    }

    pub fn cursor(&self) -> u64 {
        let kept = self.checkpoints.kept.lock().unwrap();
        kept.as_ref()
            .and_then(|c| c.cursor["key"][0].as_str()?.parse().ok())
            .unwrap_or(0)
    }

    pub fn note(&self) -> String {
        self.checkpoints
            .kept
            .lock()
            .unwrap()
            .as_ref()
            .map_or(String::new(), |c| c.note.clone())
    }
}

/// A job of the kind `reindex` under the fence 0.
pub fn job(args: Value) -> Job {
    Job {
        id: 1,
        kind: "reindex".into(),
        args,
        throttle: "reindex".into(),
        key: String::new(),
        priority: 1,
        attempt: 1,
        max_attempts: 10,
        cost: 1.0,
        fence: 0,
        created_at: jiff::Timestamp::UNIX_EPOCH,
        timeout: None,
        traceparent: None,
        retry: None,
    }
}
