//! The gate behind the guard: the API asks its own throttles before it serves a request.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::{Mutex, MutexGuard};

use super::caller::{AuthMethod, Caller, digest_of};
use super::denied::{DenialCache, origin};
use super::limits::{
    DEFAULT_TENANT, Group, RateLimitPolicy, is_of_the_api, own_throttle, seed, seed_api_limits,
};
use super::problem::{Code, Problem};
use super::remaining::take_token;
use super::scopes;
use super::token_metrics::TokenMetrics;
use crate::api::waiting;
use crate::throttle::api_limit::limit_of;
use crate::throttle::{ApiLimit, LaneRequest, Limit, Name, OWN_API, RateLimit, Store};

/// The age at which the promise of a throttle and the absence of a throttle are read again. Redis
/// decides on each request regardless of age.
const KNOB_CACHE_TTL: Duration = Duration::from_secs(1);

/// The longest wait of a request for its token.
const MOMENT: Duration = Duration::from_millis(50);

/// The shortest pause before a request asks again for its token.
const NAP_MIN: Duration = Duration::from_millis(5);

/// The most tenants whose throttles one process makes.
const WELCOMED_MAX: usize = 10_000;

/// The route that checks requests of other APIs.
const CHECK: &str = "/api/v1/check";

/// The header by which a proxy that asks without a body names the URI that it asks about.
pub const ORIGINAL_URI: &str = "x-original-uri";

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The gate's memory between requests.
pub struct Gate {
    throttles: Arc<dyn Store>,
    /// The limits of the settings.
    pub limits: Arc<[ApiLimit]>,
    /// The counters of requests for tokens.
    pub tokens: TokenMetrics,
    denied: DenialCache,
    /// The throttles of the API and of the limits in the settings, with their promise; as many as
    /// groups and tenants.
    known: Mutex<HashMap<Name, CachedPromise>>,
    /// The times at which missing throttles were looked up.
    absent: Mutex<HashMap<Name, Instant>>,
    /// The tenants whose throttles were made because a token named them.
    welcomed: Mutex<HashSet<Arc<str>>>,
}

#[derive(Clone, Debug, Default)]
struct CachedPromise {
    promise: Option<RateLimitPolicy>,
    read_at: Option<Instant>,
    /// True if the throttle existed when Redis answered for it last.
    existed: bool,
}

impl Gate {
    /// Creates a gate in front of the API's throttles.
    pub fn new(throttles: Arc<dyn Store>, limits: Arc<[ApiLimit]>, tokens: TokenMetrics) -> Self {
        Self {
            throttles,
            limits,
            tokens,
            denied: DenialCache::default(),
            known: Mutex::default(),
            absent: Mutex::default(),
            welcomed: Mutex::default(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Name, CachedPromise>> {
        self.known.lock()
    }

    fn absent(&self) -> MutexGuard<'_, HashMap<Name, Instant>> {
        self.absent.lock()
    }

    /// Notes whether a throttle exists, as Redis has answered.
    pub fn note_answer(&self, name: &Name, exists: bool) {
        self.locked().entry(name.clone()).or_default().existed = exists;
    }

    /// Returns true if Redis has reported a throttle to this process, whose knob for the loss of
    /// Redis then decides.
    pub fn knows(&self, name: &Name) -> bool {
        self.locked().get(name).is_some_and(|known| known.existed)
    }

    /// Makes the throttles of a tenant that only its tokens name, once per process, as the start
    /// does for the tenants of the settings. Without Redis nothing is limited anyway.
    pub async fn welcome(&self, tenant: &Arc<str>) {
        let is_new = {
            let mut welcomed = self.welcomed.lock();
            welcomed.len() < WELCOMED_MAX && welcomed.insert(tenant.clone())
        };
        if !is_new {
            return;
        }
        let made = async {
            seed(&*self.throttles, &[tenant]).await?;
            seed_api_limits(&*self.throttles, &[tenant], &self.limits).await
        };
        if made.await.is_err() {
            self.welcomed.lock().remove(tenant);
        }
    }

    /// Returns the refusal that replaces the answer "no valid token", or `None` if that answer may
    /// be sent. Does not ask Redis while the client is known to be refused.
    pub async fn deny(&self, address: Option<IpAddr>) -> Option<Problem> {
        let Ok(name) = Group::Denied.throttle(DEFAULT_TENANT) else {
            return None;
        };
        let (origin, now) = (origin(address), Instant::now());
        let mut left = self.denied.left(&origin, now);
        if left.is_zero() {
            let key = digest_of(&origin);
            let GateDecision::Refused(refusal) = self.ask(&name, &key).await else {
                return None;
            };
            left = refusal.wait;
            self.denied
                .refuse(refusal.is_of_key().then_some(&origin), left, now);
        }
        Some(too_many(left))
    }

    /// Returns the refusal of a client that must wait because it sent no valid token; `None` if it
    /// need not wait.
    pub fn denied(&self, address: Option<IpAddr>) -> Option<Problem> {
        let left = self.denied.left(&origin(address), Instant::now());
        (!left.is_zero()).then(|| too_many(left))
    }

    /// Asks again where the next token is due within a moment: a page sends several requests when
    /// it loads, and a bucket that was lost begins with one token.
    async fn ask_patiently(&self, name: &Name, key: &str) -> GateDecision {
        let began = Instant::now();
        loop {
            let verdict = self.ask(name, key).await;
            match &verdict {
                GateDecision::Refused(refusal)
                    if refusal.is_soon() && began.elapsed() + refusal.wait <= MOMENT =>
                {
                    tokio::time::sleep(refusal.wait.max(NAP_MIN)).await;
                }
                _ => return verdict,
            }
        }
    }

    async fn ask(&self, name: &Name, key: &str) -> GateDecision {
        if self
            .absent()
            .get(name)
            .is_some_and(|at| at.elapsed() < KNOB_CACHE_TTL)
        {
            return GateDecision::Free;
        }
        let wanted = LaneRequest {
            key: key.to_owned(),
            ..LaneRequest::default()
        };
        let (answer, left) = take_token(&*self.throttles, name, wanted).await;
        let was_asked = answer.at_us > 0;
        let effective_rps = answer.effective_rps;
        let Some(grant) = answer.lanes.into_iter().next() else {
            return GateDecision::Free;
        };
        let is_unknown = grant.says_unknown(name);
        if was_asked {
            self.note_answer(name, !is_unknown);
            if !is_unknown {
                self.tokens.note(name.as_str(), key, grant.granted > 0);
            }
        }
        if grant.granted > 0 {
            if was_asked {
                return GateDecision::Admitted { left };
            }
            return GateDecision::Free;
        }
        match &grant.limit {
            // A deleted throttle limits nothing.
            _ if is_unknown => {
                self.absent().insert(name.clone(), Instant::now());
                GateDecision::Free
            }
            // A throttle that Redis has never reported to this process limits nothing either: its
            // knob for the loss of Redis is unknown.
            Some(Limit::StoreLost) if !self.knows(name) => GateDecision::Free,
            _ => GateDecision::Refused(RateLimited {
                wait: grant.wait,
                limit: grant.limit,
                by_windows: grant.by_windows,
                effective_rps,
            }),
        }
    }

    /// Returns the limits of a throttle for its headers, at most a second old; `None` if
    /// the store does not answer.
    pub async fn promise(&self, name: &Name) -> Option<RateLimitPolicy> {
        let now = Instant::now();
        {
            let mut known = self.locked();
            let known = known.entry(name.clone()).or_default();
            if known
                .read_at
                .is_some_and(|at| now.duration_since(at) < KNOB_CACHE_TTL)
            {
                return known.promise.clone();
            }
            // One request reads. Parallel ones use the previous promise, except those that have
            // none yet.
            if known.promise.is_some() {
                known.read_at = Some(now);
            }
        }
        let status = self.throttles.status(name).await.ok()?;
        let promise = status.map(|status| RateLimitPolicy::of(name, &status.knobs));
        let mut known = self.locked();
        let known = known.entry(name.clone()).or_default();
        known.promise.clone_from(&promise);
        known.read_at = Some(now);
        promise
    }
}

/// The answer of a throttle to a request.
#[derive(Clone, Debug, PartialEq)]
enum GateDecision {
    /// No throttle limits the request.
    Free,
    /// The request has taken its token; so many are left, if anything limits them.
    Admitted { left: Option<u32> },
    /// No token is left for the request.
    Refused(RateLimited),
}

#[derive(Clone, Debug, PartialEq)]
struct RateLimited {
    wait: Duration,
    limit: Option<Limit>,
    by_windows: bool,
    effective_rps: RateLimit,
}

impl RateLimited {
    /// Returns the whole seconds until the next request fits, at least one.
    fn wait_s(&self) -> u64 {
        (self.wait.as_secs_f64().ceil() as u64).max(1)
    }

    /// Returns true for a bucket that refills; no other limit ends by waiting.
    fn is_soon(&self) -> bool {
        matches!(
            self.limit,
            Some(Limit::Key | Limit::Throttle | Limit::Tier { .. })
        )
    }

    /// Returns true unless the throttle is stopped, because only an operator ends that.
    fn ends_by_waiting(&self) -> bool {
        !matches!(self.limit, Some(Limit::Stopped { .. }))
    }

    fn is_of_key(&self) -> bool {
        matches!(self.limit, Some(Limit::Key | Limit::Paused { .. }))
    }

    fn sentence(&self, name: &Name, client: &Caller) -> String {
        match &self.limit {
            Some(Limit::Key) => {
                format!(
                    "your token is at the request limit of one token (key_rps of throttle \
                         {name})"
                )
            }
            Some(Limit::Throttle) => {
                let knob = if self.by_windows { "windows" } else { "rps" };
                format!(
                    "the tokens of tenant {} are at their shared request limit ({knob} of throttle \
                     {name})",
                    client.limits_tenant()
                )
            }
            // Waiting does not help here, and the way to resume differs from that of other
            // throttles.
            Some(Limit::Stopped { name, why }) => {
                let why = if why.is_empty() {
                    String::new()
                } else {
                    format!(" ({why})")
                };
                format!(
                    "throttle {name} is stopped{why}: its rate is 0 or it is paused; resume or \
                     change it with a token that has the scope admin, or on the machine with: \
                     flyball throttle resume {name}, or flyball throttle set {name} rps=<rate>"
                )
            }
            Some(limit) => waiting::sentence(
                name.as_str(),
                &client.key,
                self.effective_rps,
                limit,
                self.by_windows,
            ),
            None => format!("throttle {name} has no token left"),
        }
    }
}

/// Returns true for the check of a proxy, which asks by headers.
pub fn is_of_proxy(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGINAL_URI)
}

/// Admits a request with a token of its group's throttle, or refuses it.
pub async fn gate(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    // A request without a caller was admitted to a public route.
    let Some(client) = request.extensions().get::<Caller>().cloned() else {
        return next.run(request).await;
    };
    // An admin cannot be locked out by the throttles that it edits.
    if client.leave.is_admin() && turns_the_api(&request) {
        return next.run(request).await;
    }
    let is_dashboard = client.proof == AuthMethod::Session
        || (client.proof == AuthMethod::Loopback && is_page(request.headers()));
    let group = Group::of(request.method(), request.uri().path(), is_dashboard);
    let path = request.uri().path();
    let is_check = path == CHECK;
    let is_of_proxy = is_check && is_of_proxy(request.headers());
    // A limit of the settings replaces the group that the request has by itself.
    let own = group.and_then(|_| limit_of(&gate.limits, OWN_API, request.method().as_str(), path));
    let name = match own {
        Some(limit) => own_throttle(limit, client.limits_tenant()),
        None => match group {
            Some(group) => group.throttle(client.limits_tenant()),
            None => return next.run(request).await,
        },
    };
    let Ok(name) = name else {
        return next.run(request).await;
    };
    match gate.ask_patiently(&name, &client.key).await {
        GateDecision::Free => next.run(request).await,
        GateDecision::Admitted { left } => {
            // The promise is read while the request is served, so that the request does not wait
            // for it.
            let (mut response, promise) = tokio::join!(next.run(request), gate.promise(&name));
            let is_total = promise.as_ref().is_some_and(RateLimitPolicy::is_total);
            let standing =
                left.map(|left| RateLimitPolicy::rate_limit_header(&name, is_total, left, 0));
            // The response to a check reports the limits of the checked request.
            if !is_check {
                set_rate_limit_headers(&mut response, promise, standing);
            }
            response
        }
        GateDecision::Refused(refusal) => {
            let sentence = refusal.sentence(&name, &client);
            let (problem, wait_s) = if refusal.ends_by_waiting() {
                let wait_s = refusal.wait_s();
                let detail = format!("{sentence}; try again in {wait_s} s");
                (
                    Problem::new(Code::TooManyRequests, detail).retry_after(wait_s),
                    wait_s,
                )
            } else {
                (Problem::new(Code::TooManyRequests, sentence), 0)
            };
            let mut response = problem.into_response();
            // A proxy lets the request through after any other status than 401 and 403.
            if is_of_proxy {
                let retry_after = response.headers_mut().remove(RETRY_AFTER);
                response = StatusCode::FORBIDDEN.into_response();
                response
                    .headers_mut()
                    .extend(retry_after.map(|seconds| (RETRY_AFTER, seconds)));
            }
            let standing =
                RateLimitPolicy::rate_limit_header(&name, !refusal.is_of_key(), 0, wait_s);
            set_rate_limit_headers(&mut response, gate.promise(&name).await, Some(standing));
            response
        }
    }
}

fn too_many(left: Duration) -> Problem {
    let wait_s = (left.as_secs_f64().ceil() as u64).max(1);
    let detail = format!(
        "too many requests without a valid token; try again in {wait_s} s with the right one"
    );
    Problem::new(Code::TooManyRequests, detail).retry_after(wait_s)
}

/// Returns the address of a client, if the listener has recorded it.
pub fn address(extensions: &Extensions) -> Option<IpAddr> {
    extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(address)| address.ip())
}

/// Returns true for a request about one of the API's own throttles.
fn turns_the_api(request: &Request) -> bool {
    let template = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("", MatchedPath::as_str);
    scopes::throttle_in(template, request.uri().path()).is_some_and(|name| is_of_the_api(&name))
}

/// Returns true for a page of the dashboard, where browsers need no session. A program does not
/// send this header by accident, and one that forges it gains only one more share.
fn is_page(headers: &HeaderMap) -> bool {
    headers
        .get("sec-fetch-site")
        .is_some_and(|site| site == "same-origin")
}

pub fn set_rate_limit_headers(
    response: &mut Response,
    promise: Option<RateLimitPolicy>,
    standing: Option<String>,
) {
    let policy = promise
        .map(|promise| promise.policy())
        .filter(|policy| !policy.is_empty());
    for (name, text) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, standing)] {
        if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
}
