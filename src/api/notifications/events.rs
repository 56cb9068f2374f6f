//! Events from providers. Their senders have no token of ours: the signature of the provider is the
//! credential.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use tokio::sync::Semaphore;

use crate::api::http::problem::{Code, Problem};

use crate::api::clock;
use crate::api::http::body;
use crate::api::http::gate::{Gate, address as address_of};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::notify::{Deliveries, EventReport};
use crate::providers::{DriverClients, Pools, RejectedWebhook, WebhookRequest, events};

/// The dependencies of the route of the providers' events.
pub struct WebhookState {
    pub pools: Arc<Pools>,
    pub deliveries: Deliveries,
    pub tools: DriverClients,
    pub public_url: String,
    /// The permits of requests of clients that must wait after invalid ones.
    pub doubted: Semaphore,
}

/// The message for a request whose signature is invalid.
const UNSIGNED: &str = "the request is not signed with this account's secret";

/// The requests of clients that must wait after invalid ones that are checked at once all the same:
/// behind a proxy the provider has the address of everybody.
pub const DOUBTED_MAX: usize = 4;

/// The largest request, in bytes.
const BYTES_MAX: usize = 1024 * 1024;

/// Records a provider's events about an account's messages. Each is accepted by its signature
/// alone, and counts once however often it arrives.
#[utoipa::path(post, path = "/api/v1/provider-events/{pool}/{account}", operation_id = "receive_provider_events", tag = "notifications",
    params(
        ("pool" = String, Path, description = "The pool."),
        ("account" = String, Path, description = "The account, by its name in the pool.")),
    request_body(content = String, content_type = "*/*", description = "The body, as sent by the provider."),
    security(()),
    responses((status = 204, description = "The events were recorded.")))]
pub async fn receive_events(
    State(state): State<Arc<WebhookState>>,
    State(gate): State<Arc<Gate>>,
    Path((pool, account)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let address = address_of(request.extensions());
    let found = state
        .pools
        .get(&pool)
        .and_then(|pool| Some((pool, pool.account(&account)?)));
    let Some((pool, account)) = found else {
        return Err(refuse(
            &gate,
            address,
            Code::AccountNotFound,
            "there is no such account",
        )
        .await);
    };
    if state.doubted.available_permits() == 0
        && let Some(problem) = gate.denied(address)
    {
        return Err(problem);
    }
    let url = public_url(&state.public_url, request.headers(), request.uri());
    let headers = headers(request.headers());
    let bytes = body::raw(request, BYTES_MAX).await?;
    // Not before: bodies that never end would hold all permits.
    let _doubted = match gate.denied(address) {
        Some(problem) => Some(state.doubted.try_acquire().map_err(|_| problem)?),
        None => None,
    };
    let posted = WebhookRequest {
        url: &url,
        headers: &headers,
        body: &bytes,
        now_s: clock::now().as_second(),
    };
    let read = events::read(pool.provider, account, &posted, &state.tools).await;
    // Every authentic signature is recorded, also beside events that report nothing: another body
    // could report a complaint with it.
    if matches!(read, Ok(_) | Err(RejectedWebhook::Unreadable(_)))
        && let Some(once) = events::once(pool.provider, account, &posted)
        && !with_timeout(ROW_TIMEOUT, state.deliveries.is_of_this_body(&once)).await?
    {
        let (pool, account) = (&pool.name, &account.name);
        tracing::warn!(
            pool,
            account,
            "provider events rejected: the signature was used for another body"
        );
        return Err(refuse(&gate, address, Code::Unauthorized, UNSIGNED).await);
    }
    match read {
        Ok(events) if events.is_empty() => {}
        Ok(events) => {
            let notice = EventReport {
                pool: pool.name.clone(),
                account: account.name.clone(),
                channel: pool.channel(),
                events,
            };
            // After an error the provider sends the event again, and an event that is already
            // recorded counts once.
            with_timeout(ROW_TIMEOUT, state.deliveries.record_events(notice)).await?;
        }
        // A forger must not learn the reason of the refusal; the operator of the account finds it
        // in the log.
        Err(error @ (RejectedWebhook::Signature(_) | RejectedWebhook::NoSecret { .. })) => {
            tracing::warn!(pool = pool.name, account = account.name, %error, "provider events rejected");
            return Err(refuse(&gate, address, Code::Unauthorized, UNSIGNED).await);
        }
        Err(error @ RejectedWebhook::Later(_)) => {
            tracing::warn!(pool = pool.name, account = account.name, %error, "provider events cannot be checked yet");
            return Err(Problem::new(
                Code::Overloaded,
                "the request cannot be checked at the moment; send it again",
            )
            .retry_after(5));
        }
        Err(error @ RejectedWebhook::Unreadable(_)) => {
            tracing::warn!(pool = pool.name, account = account.name, %error, "provider events cannot be parsed");
            return Err(Problem::new(
                Code::BadRequest,
                "the request is signed but cannot be parsed",
            ));
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the refusal; a client that guesses signatures is slowed down like one that guesses
/// tokens.
async fn refuse(
    gate: &Gate,
    address: Option<std::net::IpAddr>,
    code: Code,
    detail: &str,
) -> Problem {
    gate.deny(address)
        .await
        .unwrap_or_else(|| Problem::new(code, detail))
}

/// Returns the URL as the provider knows it: the base from the settings, or else from the request,
/// with the path and the query as received.
fn public_url(public: &str, headers: &HeaderMap, uri: &Uri) -> String {
    let path = uri
        .path_and_query()
        .map_or(uri.path(), |path| path.as_str());
    if !public.is_empty() {
        return format!("{}{path}", public.trim_end_matches('/'));
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = text("x-forwarded-proto")
        .filter(|scheme| *scheme == "https")
        .unwrap_or("http");
    format!("{scheme}://{}{path}", text("host").unwrap_or_default())
}

/// Returns the headers with names in lower case, as the HTTP library stores them. Values that are
/// not text are omitted, because no signature covers them.
fn headers(all: &HeaderMap) -> BTreeMap<String, String> {
    all.iter()
        .filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        })
        .collect()
}

/// Returns a pool of two accounts at Mailgun, for tests of this room.
#[cfg(test)]
pub fn example_pools() -> crate::providers::Pools {
    use std::time::Duration;

    use crate::providers::{Account, Limited, Pool, Pools, Provider};

    let account = |name: &str| Limited {
        account: Account {
            name: name.to_owned(),
            ..Account::default()
        },
        rps: crate::throttle::RateLimit::Unlimited,
    };
    let pool = Pool {
        name: "mail".to_owned(),
        provider: Provider::Mailgun,
        accounts: vec![account("a1"), account("a2")],
        shedding: false,
        headroom: 1.0,
        breaker_failures: 5,
        breaker_window: Duration::from_secs(60),
        breaker_cooldown: Duration::from_secs(30),
        alert_url: None,
        alert_secret: None,
        retry_ambiguous: true,
        valid_for: Duration::from_secs(3600),
        requeue_on_recovery: true,
        timeout: Duration::from_secs(10),
    };
    Pools(BTreeMap::from([(pool.name.clone(), pool)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_public_one_with_the_path_and_query_that_came() {
        let uri: Uri = "/api/v1/provider-events/sms/a%201?x=1&y=%20"
            .parse()
            .unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("host", "10.0.0.7:8080".parse().unwrap());
        let path = "/api/v1/provider-events/sms/a%201?x=1&y=%20";
        assert_eq!(
            public_url("https://jobs.example.com/", &headers, &uri),
            format!("https://jobs.example.com{path}")
        );
        assert_eq!(
            public_url("https://example.com/flyball", &headers, &uri),
            format!("https://example.com/flyball{path}")
        );
        assert_eq!(
            public_url("", &headers, &uri),
            format!("http://10.0.0.7:8080{path}")
        );
        headers.insert("x-forwarded-proto", "https".parse().unwrap());
        assert_eq!(
            public_url("", &headers, &uri),
            format!("https://10.0.0.7:8080{path}")
        );
    }
}
