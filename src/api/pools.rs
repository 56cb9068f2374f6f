//! Pools of accounts at providers: the state of each account, and the capacity of the pool.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::json;

use crate::api::audit::entry::AuditEntry;
use crate::api::audit::log;
use crate::api::http::caller::Caller;
use crate::api::http::fields::ObjectReader;
use crate::api::http::operate::Reason;
use crate::api::http::operate::signed;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::jobs::Queue;
use crate::notify::{AccountEvent, Alarms, Deliveries, StepResult};
use crate::providers::pool::{AccountPool, PoolView};

/// The most breaker events that are shown with a pool.
const EVENTS: i64 = 50;

/// The most messages that one request requeues.
pub(in crate::api) const UNSENT_MAX: i64 = 1000;

/// All pools.
#[derive(Serialize, utoipa::ToSchema)]
pub struct PoolList {
    /// The pools, by name.
    #[schema(value_type = Vec<PoolView>)]
    pools: Vec<Arc<PoolView>>,
}

/// One pool.
#[derive(Serialize, utoipa::ToSchema)]
pub struct PoolDetail {
    /// The state of the pool.
    #[serde(flatten)]
    #[schema(value_type = PoolView)]
    pool: Arc<PoolView>,
    /// The newest changes of the breakers of its accounts, newest first.
    events: Vec<AccountEvent>,
}

/// The result of the resumption of an account.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AccountResumed {
    /// True if the account was blocked or its breaker was open.
    changed: bool,
    /// Warnings about side effects that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Lists the pools with their accounts.
#[utoipa::path(get, path = "/api/v1/pools", operation_id = "list_pools", tag = "pools", responses((status = 200, body = PoolList)))]
pub async fn list(State(pools): State<Arc<[AccountPool]>>) -> Json<PoolList> {
    Json(PoolList {
        pools: pools.iter().map(AccountPool::view).collect(),
    })
}

/// Shows one pool with the newest changes of its accounts' breakers.
#[utoipa::path(get, path = "/api/v1/pools/{name}", operation_id = "show_pool", tag = "pools",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = PoolDetail)))]
pub async fn show(
    State(pools): State<Arc<[AccountPool]>>,
    State(queue): State<Queue>,
    Path(name): Path<String>,
) -> Result<Json<PoolDetail>, Problem> {
    let pool = pool_named(&pools, &name)?.view();
    let alarms = Alarms::new(queue);
    let events = with_timeout(ROW_TIMEOUT, alarms.newest(&name, EVENTS)).await?;
    Ok(Json(PoolDetail { pool, events }))
}

/// The extent of a requeue of messages that found no account.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct UnsentMessages {
    /// The most messages of this request, 1 to 1000; 1000 if absent.
    limit: Option<i64>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// Messages that were requeued.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RequeuedMessages {
    /// Messages that run again; their deadlines count from now.
    jobs: u64,
    /// True if there may be more: ask again.
    more: bool,
}

/// Ends the block of an account and closes its breaker, for instance because its owner has paid.
#[utoipa::path(post, path = "/api/v1/pools/{name}/accounts/{account}/resume", operation_id = "resume_account", tag = "pools",
    params(("name" = String, Path, description = "The pool."), ("account" = String, Path, description = "The account.")),
    request_body = Reason,
    responses((status = 200, body = AccountResumed)))]
pub async fn resume(
    State(pools): State<Arc<[AccountPool]>>,
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path((name, account)): Path<(String, String)>,
    request: Request,
) -> Result<Json<AccountResumed>, Problem> {
    let pool = pool_named(&pools, &name)?;
    if pool.pool().account(&account).is_none() {
        let message = format!(
            "pool {name} has no account {:?}; GET /api/v1/pools/{name} lists them",
            crate::api::http::fields::clipped(&account)
        );
        return Err(Problem::new(Code::AccountNotFound, message));
    }
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let changed = pool.resume(&account).await?;
    let subject = format!("{name}/{account}");
    let (by, why) = (signed.by.clone(), signed.why.clone());
    let mut entry = AuditEntry::now(by, "account.resume", subject, why).by(&caller);
    entry.after = Some(json!({ "changed": changed }));
    let warnings = log::note(&queue, &entry).await.into_iter().collect();
    // As texts in quotes: a line break in them must not begin a line of the log.
    tracing::info!(
        pool = name,
        account,
        by = signed.by,
        why = signed.why,
        changed,
        "a person resumed an account"
    );
    Ok(Json(AccountResumed { changed, warnings }))
}

/// Runs messages of a pool again that died because no account was available, the oldest first.
#[utoipa::path(post, path = "/api/v1/pools/{name}/requeue-unsent", operation_id = "requeue_unsent", tag = "pools",
    params(("name" = String, Path, description = "The pool.")),
    request_body = UnsentMessages,
    responses((status = 200, body = RequeuedMessages)))]
pub async fn requeue_unsent(
    State(pools): State<Arc<[AccountPool]>>,
    State(deliveries): State<Deliveries>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<RequeuedMessages>, Problem> {
    pool_named(&pools, &name)?;
    let read = |fields: &mut ObjectReader<'_>| fields.whole("limit", 1..=UNSENT_MAX, " messages");
    let (limit, signed) = signed(request, &caller, &["limit"], read).await?;
    let limit = u32::try_from(limit.unwrap_or(UNSENT_MAX)).unwrap_or(1);
    let requeued = deliveries.requeue_unsent(&name, limit, &signed);
    let StepResult { jobs, more, .. } = with_timeout(LIST_TIMEOUT, requeued).await?;
    Ok(Json(RequeuedMessages { jobs, more }))
}

fn pool_named<'a>(pools: &'a [AccountPool], name: &str) -> Result<&'a AccountPool, Problem> {
    let found = pools.iter().find(|pool| pool.pool().name == name);
    found.ok_or_else(|| {
        Problem::new(
            Code::PoolNotFound,
            format!(
                "there is no pool {:?}; GET /api/v1/pools lists them",
                crate::api::http::fields::clipped(name)
            ),
        )
    })
}

/// Returns the pool of this name as last observed.
pub fn view_of(pools: &[AccountPool], name: &str) -> Option<Arc<PoolView>> {
    let found = pools.iter().find(|accounts| accounts.pool().name == name);
    found.map(AccountPool::view)
}

/// Adds the limits of a pool's accounts to a sentence, if there are any.
pub fn add_limits(sentence: &mut String, pool: &PoolView, names: bool) {
    if let Some(limits) = pool.limits(names) {
        sentence.push_str("; ");
        sentence.push_str(&limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::pool::{AccountView, Flow};

    #[test]
    fn only_a_pool_with_a_limited_account_adds_to_a_sentence() {
        let mut pool = PoolView {
            name: "mail".to_owned(),
            available: 1,
            accounts: vec![AccountView::default()],
            ..PoolView::default()
        };
        let told = |pool: &PoolView| {
            let mut sentence = "it waits".to_owned();
            add_limits(&mut sentence, pool, false);
            sentence
        };
        assert_eq!(told(&pool), "it waits");
        pool.accounts[0].state = Flow::Open;
        pool.available = 0;
        assert_eq!(
            told(&pool),
            "it waits; 0 of 1 accounts of pool mail are available"
        );
    }
}
