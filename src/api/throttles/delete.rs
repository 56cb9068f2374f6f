//! Deletion of a throttle.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, State};
use axum::{Extension, Json};
use serde::Serialize;

use super::knobs::name_or_pattern_of;
use super::state::ThrottlesState;
use crate::api::audit::entry::AuditEntry;
use crate::api::audit::log;
use crate::api::http::caller::Caller;
use crate::api::http::limits;
use crate::api::http::operate::signed_of_query;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::jobs::{self, Attribution, CancelFilter, Count, Queue, State as JobState};
use crate::throttle::postgres::KnobRecord;
use crate::throttle::{self, Name, Status, Store};

/// The states in which a job waits.
const WAITING: [JobState; 3] = [JobState::Ready, JobState::Scheduled, JobState::Retryable];

/// A throttle that was deleted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ThrottleDeleted {
    /// The name of the throttle.
    throttle: String,
    /// Waiting jobs of the throttle, counted up to 10,000 of each state; only with `force` are there
    /// any. They are kept, and run when the throttle is created again.
    waiting: Count,
    /// Warnings about side effects that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The reason for which a throttle was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum NotDeleted {
    /// The throttle does not exist.
    #[error("there is no throttle {0}; nothing was deleted")]
    Unknown(Name),
    /// Other throttles have it as their parent, and would stop.
    #[error(
        "{name} is the parent of {children}, which would stop without it; remove their knob parent \
         first; nothing was deleted"
    )]
    Parent {
        name: Name,
        /// The first of its children, by name.
        children: String,
    },
    /// Jobs wait for its tokens.
    #[error("{}", would_wait(.name, *.waiting, "force=true"))]
    Waiting {
        name: Name,
        /// The jobs, as counted.
        waiting: Count,
    },
    /// Redis refused, or did not answer.
    #[error(transparent)]
    Throttles(#[from] throttle::Error),
    /// Postgres refused, or did not answer.
    #[error(transparent)]
    Queue(#[from] jobs::Error),
}

impl NotDeleted {
    /// Returns the text for a caller that deletes it all the same with `force`.
    pub fn told(&self, force: &str) -> String {
        match self {
            Self::Waiting { name, waiting } => would_wait(name, *waiting, force),
            other => other.to_string(),
        }
    }
}

fn would_wait(name: &Name, waiting: Count, force: &str) -> String {
    format!(
        "{} for throttle {name}, and would wait until it is created again; cancel the jobs or empty \
         its lanes first, or delete it with {force}; nothing was deleted",
        jobs_wait(waiting)
    )
}

/// Returns the subject and the verb of a sentence about waiting jobs. A count that was cut off
/// before the first of them does not say that there are none.
pub fn jobs_wait(waiting: Count) -> String {
    match waiting {
        Count {
            jobs: 0,
            more: true,
        } => "an unknown number of jobs may wait".to_owned(),
        Count {
            jobs: 1,
            more: false,
        } => "1 job waits".to_owned(),
        _ => format!("{waiting} jobs wait"),
    }
}

/// Deletes a throttle with its record, and returns its last status and its waiting jobs, which are
/// kept: with any of them, or if their count was cut off, it is deleted only by `force`. The record
/// goes first, or the keeper of knobs would restore the throttle.
pub async fn take_away(
    store: &dyn Store,
    queue: &Queue,
    name: &Name,
    force: bool,
) -> Result<(Status, Count), NotDeleted> {
    let before = store
        .status(name)
        .await?
        .ok_or_else(|| NotDeleted::Unknown(name.clone()))?;
    let children = children(store, name).await?;
    if !children.is_empty() {
        return Err(NotDeleted::Parent {
            name: name.clone(),
            children,
        });
    }
    let waiting = waiting(queue, name).await?;
    if (waiting.jobs > 0 || waiting.more) && !force {
        return Err(NotDeleted::Waiting {
            name: name.clone(),
            waiting,
        });
    }
    KnobRecord::new(queue.pool.clone())
        .forget(name)
        .await
        .map_err(jobs::Error::from)?;
    store.delete(name).await?;
    Ok((before, waiting))
}

/// Lists the throttles whose parent is `parent`, for a message; empty for none.
async fn children(store: &dyn Store, parent: &Name) -> Result<String, throttle::Error> {
    const TOLD: usize = 5;
    let names = store.names().await?;
    let statuses: Result<Vec<Option<Status>>, _> =
        store.statuses(&names).await.into_iter().collect();
    let mut found: Vec<String> = statuses?
        .into_iter()
        .flatten()
        .filter(|child| child.knobs.parent.as_ref() == Some(parent))
        .map(|child| child.name.to_string())
        .collect();
    found.sort();
    let more = found.len().saturating_sub(TOLD);
    found.truncate(TOLD);
    if more > 0 {
        found.push(format!("{more} more"));
    }
    Ok(found.join(", "))
}

/// Deletes a throttle. One with waiting jobs is deleted only with `force`: they are kept, and wait
/// until it is created again.
#[utoipa::path(delete, path = "/api/v1/throttles/{name}", operation_id = "delete_throttle", tag = "throttles",
    params(
        ("name" = String, Path, description = "The name, with slashes percent-encoded."),
        ("force" = Option<bool>, Query, description = "True to delete it although jobs wait for it."),
        ("by" = Option<String>, Query, description = "The author of the change, for the audit log."),
        ("why" = Option<String>, Query, description = "The reason for the change, for the audit log.")),
    responses((status = 200, body = ThrottleDeleted)))]
pub async fn delete(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<ThrottleDeleted>, Problem> {
    let name = name_or_pattern_of(name)?;
    let mut query = Query::open(pairs, &["force", "by", "why"]);
    let force = query.flag("force").unwrap_or(false);
    let signed = signed_of_query(&mut query, &caller);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    if limits::is_of_the_api(name.as_str()) {
        let detail = format!("throttle {name} limits the API itself; change or pause it");
        return Err(Problem::new(Code::InUse, detail));
    }
    if state.pools.get(name.as_str()).is_some() {
        let detail = format!(
            "throttle {name} belongs to the pool {name}; remove [pools.{name}] from the settings \
             first"
        );
        return Err(Problem::new(Code::InUse, detail));
    }
    let (queue, throttles) = (&state.queue, &*state.throttles);

    let (before, waiting) = with_timeout(LIST_TIMEOUT, async {
        let taken = take_away(throttles, queue, &name, force).await;
        taken.map_err(Problem::from)
    })
    .await?;

    let mut entry =
        AuditEntry::now(signed.by, "throttle.delete", name.to_string(), signed.why).by(&caller);
    entry.before = serde_json::to_value(&before.raw).ok();
    let warnings = log::note(&state.queue, &entry).await.into_iter().collect();
    Ok(Json(ThrottleDeleted {
        throttle: name.to_string(),
        waiting,
        warnings,
    }))
}

async fn waiting(queue: &Queue, name: &Name) -> Result<Count, jobs::Error> {
    let mut all = Count::default();
    for state in WAITING {
        let filter = CancelFilter {
            throttle: Some(name.to_string()),
            state: Some(state),
            ..CancelFilter::default()
        };
        let Count { jobs, more } = queue
            .count_cancel_jobs(&filter, &Attribution::default())
            .await?;
        all = Count {
            jobs: all.jobs + jobs,
            more: all.more || more,
        };
    }
    Ok(all)
}

impl From<NotDeleted> for Problem {
    fn from(kept: NotDeleted) -> Self {
        match kept {
            NotDeleted::Unknown(name) => Self::throttle_not_found(&name),
            kept @ (NotDeleted::Parent { .. } | NotDeleted::Waiting { .. }) => {
                Self::new(Code::InUse, kept.to_string())
            }
            NotDeleted::Throttles(error) => error.into(),
            NotDeleted::Queue(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_option_of_its_interface() {
        let kept = NotDeleted::Waiting {
            name: Name::new("mail").unwrap(),
            waiting: Count {
                jobs: 4,
                more: false,
            },
        };
        let http = kept.to_string();
        assert!(
            http.starts_with("4 jobs wait for throttle mail")
                && http.contains("delete it with force=true;"),
            "{http}"
        );
        assert!(kept.told("--force").contains("delete it with --force;"));
    }

    #[test]
    fn a_count_that_was_cut_off_says_that_jobs_may_wait() {
        let words = |jobs, more| jobs_wait(Count { jobs, more });
        assert_eq!(words(1, false), "1 job waits");
        assert_eq!(words(4, false), "4 jobs wait");
        assert_eq!(words(10_000, true), "10000+ jobs wait");
        assert_eq!(words(0, true), "an unknown number of jobs may wait");
    }
}
