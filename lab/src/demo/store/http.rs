//! The store's HTTP routes, in Elasticsearch's format.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::answer::{self, Done};
use super::bulk::{self, Action, StoredDocument, Verb};
use super::load::Load;
use super::postgres::{Engine, unusable};

/// The largest bulk request, in bytes: 100 MB, as Elasticsearch's own default.
const MAX_BODY_BYTES: usize = 100 << 20;

/// The state that all requests share.
pub(super) struct SearchStore {
    pub(super) engine: Engine,
    cores: u32,
    queue: u32,
    turns: Semaphore,
    load: parking_lot::Mutex<Load>,
    stored: AtomicU64,
    rejected: AtomicU64,
    since: Instant,
}

impl SearchStore {
    /// Creates a store with `cores` engine connections and room for `queue` waiting requests.
    pub(super) fn new(engine: Engine, cores: u32, queue: u32) -> Self {
        Self {
            engine,
            cores,
            queue,
            turns: Semaphore::new(cores as usize),
            load: parking_lot::Mutex::new(Load::new(cores, 0.0)),
            stored: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            since: Instant::now(),
        }
    }

    fn load<T>(&self, act: impl FnOnce(&mut Load, f64) -> T) -> T {
        let now_s = self.since.elapsed().as_secs_f64();
        act(&mut self.load.lock(), now_s)
    }

    /// Takes a place among the running and queued requests; `None` if the queue is full.
    fn enter(self: &Arc<Self>) -> Option<QueueSlot> {
        let most = self.cores + self.queue;
        let entered = self.load(|load, now_s| {
            let room = load.level() < most;
            if room {
                load.enter(now_s);
            }
            room
        });
        entered.then(|| QueueSlot(self.clone()))
    }

    /// Runs the actions of one request on one engine connection.
    async fn run(&self, actions: &[Action], ids: &[String]) -> Vec<Done> {
        let Ok(_turn) = self.turns.acquire().await else {
            return vec![Done::Rejected; actions.len()];
        };
        let mut done = vec![Done::Created; actions.len()];
        let mut from = 0;
        while from < actions.len() {
            let same = |a: &Action| {
                a.verb == actions[from].verb
                    && a.index == actions[from].index
                    && a.verb == Verb::Index
            };
            let to = from
                + actions[from..]
                    .iter()
                    .take_while(|a| same(a))
                    .count()
                    .max(1);
            self.run_alike(&actions[from..to], &ids[from..to], &mut done[from..to])
                .await;
            from = to;
        }
        let stored = done
            .iter()
            .filter(|d| matches!(d, Done::Created | Done::Updated))
            .count();
        self.stored.fetch_add(stored as u64, Ordering::Relaxed);
        done
    }

    /// Runs `index` actions on one index in one statement, or a single other action.
    async fn run_alike(&self, actions: &[Action], ids: &[String], done: &mut [Done]) {
        let failed = |error: sqlx::Error| match unusable(&error) {
            true => Done::Unusable(error.to_string()),
            false => Done::Failed(error.to_string()),
        };
        let index = &actions[0].index;
        let mut good = Vec::new();
        for (place, action) in actions.iter().enumerate() {
            match &action.document {
                Ok(entry) => good.push((place, ids[place].as_str(), entry)),
                Err(reason) => done[place] = Done::Unusable(reason.clone()),
            }
        }
        if let (Verb::Create | Verb::Delete, Some((place, id, entry))) =
            (actions[0].verb, good.first())
        {
            let one = match actions[0].verb {
                Verb::Delete => self.engine.delete(index, id).await,
                _ => self.engine.create(index, id, entry).await,
            };
            done[*place] = one.unwrap_or_else(failed);
            return;
        }
        let documents: Vec<(&str, &StoredDocument)> =
            good.iter().map(|(_, id, entry)| (*id, *entry)).collect();
        if documents.is_empty() {
            return;
        }
        match self.engine.index(index, &documents).await {
            Ok(results) => {
                for (place, id, _) in good {
                    done[place] = results.get(id).cloned().unwrap_or(Done::Updated);
                }
            }
            // One bad document fails the whole statement, so each document is retried alone.
            Err(error) if unusable(&error) && good.len() > 1 => {
                for (place, id, entry) in good {
                    let one = self.engine.index(index, &[(id, entry)]).await;
                    done[place] =
                        one.map_or_else(failed, |mut r| r.remove(id).unwrap_or(Done::Updated));
                }
            }
            Err(error) => {
                let outcome = failed(error);
                good.iter()
                    .for_each(|(place, _, _)| done[*place] = outcome.clone());
            }
        }
    }
}

/// A place among the running and queued requests, released when dropped.
struct QueueSlot(Arc<SearchStore>);

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.load(|load, now_s| load.leave(now_s));
    }
}

type StoreState = State<Arc<SearchStore>>;

/// Returns the router of all routes.
pub(super) fn router(store: Arc<SearchStore>) -> Router {
    Router::new()
        .route("/", get(store_info))
        .route("/metrics", get(metrics))
        .route("/_bulk", post(bulk_anywhere).put(bulk_anywhere))
        .route(
            "/{index}",
            axum::routing::delete(drop_index).head(head).put(accept),
        )
        .route("/{index}/_bulk", post(bulk_into).put(bulk_into))
        .route("/{index}/_count", get(count).post(count))
        .route("/{index}/_doc/{id}", get(document))
        .route("/{index}/_search", get(search).post(search))
        .route("/{index}/_refresh", post(accept).get(accept))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(store)
}

async fn store_info() -> Json<Value> {
    Json(json!({
        "name": "flyball demo-store", "cluster_name": "demo", "tagline": "You Know, for Demos",
        "version": {"number": env!("CARGO_PKG_VERSION"), "build_flavor": "postgres"},
    }))
}

async fn metrics(State(store): StoreState) -> impl IntoResponse {
    let (average, level, busy_s) =
        store.load(|load, now_s| (load.average(now_s), load.level(), load.busy_s(now_s)));
    let (stored, rejected) = (
        store.stored.load(Ordering::Relaxed),
        store.rejected.load(Ordering::Relaxed),
    );
    let page = answer::metrics(average, level, busy_s, stored, rejected, store.cores);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}

async fn bulk_anywhere(State(store): StoreState, body: String) -> Response {
    bulk(store, None, body).await
}

async fn bulk_into(State(store): StoreState, Path(index): Path<String>, body: String) -> Response {
    bulk(store, Some(index), body).await
}

async fn bulk(store: Arc<SearchStore>, index: Option<String>, body: String) -> Response {
    let began = Instant::now();
    let actions = match bulk::parse(&body, index.as_deref()) {
        Ok(actions) => actions,
        Err(reason) => {
            return refuse(
                StatusCode::BAD_REQUEST,
                "illegal_argument_exception",
                &reason,
            );
        }
    };
    drop(body);
    let ids: Vec<_> = actions
        .iter()
        .map(|a| {
            a.id.clone()
                .unwrap_or_else(|| format!("{:016x}", rand::random::<u64>()))
        })
        .collect();
    let done = match store.enter() {
        // A separate task, so that a client that disconnects does not stop a running statement.
        Some(place) => {
            let (actions, ids) = (actions.clone(), ids.clone());
            let task = tokio::spawn(async move { place.0.clone().run(&actions, &ids).await });
            task.await.unwrap_or_default()
        }
        None => {
            store
                .rejected
                .fetch_add(actions.len() as u64, Ordering::Relaxed);
            vec![Done::Rejected; actions.len()]
        }
    };
    let mut errors = false;
    let items: Vec<_> = actions
        .iter()
        .zip(&ids)
        .zip(&done)
        .map(|((action, id), done)| {
            let (item, is_error) = answer::item(action, id, done);
            errors |= is_error;
            item
        })
        .collect();
    Json(json!({"took": began.elapsed().as_millis() as u64, "errors": errors, "items": items}))
        .into_response()
}

async fn count(State(store): StoreState, Path(index): Path<String>) -> Response {
    match checked(&index, store.engine.count(&index)).await {
        Ok(Some(count)) => Json(json!({"count": count})).into_response(),
        Ok(None) => missing(&index),
        Err(response) => response,
    }
}

async fn document(State(store): StoreState, Path((index, id)): Path<(String, String)>) -> Response {
    match checked(&index, store.engine.get(&index, &id)).await {
        Ok(Some(source)) => {
            Json(json!({"_index": index, "_id": id, "found": true, "_source": source}))
                .into_response()
        }
        Ok(None) => (
            StatusCode::NOT_FOUND,
            Json(json!({"_index": index, "_id": id, "found": false})),
        )
            .into_response(),
        Err(response) => response,
    }
}

async fn search(
    State(store): StoreState,
    Path(index): Path<String>,
    Query(requested): Query<HashMap<String, String>>,
) -> Response {
    let began = Instant::now();
    let words = requested.get("q").map(String::as_str).unwrap_or_default();
    let size = requested
        .get("size")
        .and_then(|s| s.parse().ok())
        .unwrap_or(10_i64)
        .clamp(0, 100);
    match checked(&index, store.engine.search(&index, words, size)).await {
        Ok(Some((total, hits))) => {
            let hit = |(id, score, source)| json!({"_index": index, "_id": id, "_score": score, "_source": source});
            let hits: Vec<_> = hits.into_iter().map(hit).collect();
            let total = json!({"value": total, "relation": "eq"});
            Json(json!({"took": began.elapsed().as_millis() as u64, "hits": {"total": total, "hits": hits}})).into_response()
        }
        Ok(None) => missing(&index),
        Err(response) => response,
    }
}

async fn drop_index(State(store): StoreState, Path(index): Path<String>) -> Response {
    match checked(&index, store.engine.drop_index(&index)).await {
        Ok(true) => accept().await,
        Ok(false) => missing(&index),
        Err(response) => response,
    }
}

async fn head(State(store): StoreState, Path(index): Path<String>) -> Response {
    match checked(&index, store.engine.exists(&index)).await {
        Ok(exists) => if exists {
            StatusCode::OK
        } else {
            StatusCode::NOT_FOUND
        }
        .into_response(),
        Err(response) => response,
    }
}

async fn accept() -> Response {
    Json(json!({"acknowledged": true, "_shards": {"total": 1, "successful": 1, "failed": 0}}))
        .into_response()
}

/// Rejects an invalid index name before it reaches the engine.
async fn checked<T>(
    index: &str,
    requested: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Response> {
    bulk::check_index(index).map_err(|reason| {
        refuse(
            StatusCode::BAD_REQUEST,
            "invalid_index_name_exception",
            &reason,
        )
    })?;
    requested.await.map_err(|error| {
        refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "engine_failed_exception",
            &error.to_string(),
        )
    })
}

fn missing(index: &str) -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        "index_not_found_exception",
        &format!("no such index [{index}]"),
    )
}

fn refuse(status: StatusCode, kind: &str, reason: &str) -> Response {
    (status, Json(answer::error(status.as_u16(), kind, reason))).into_response()
}
