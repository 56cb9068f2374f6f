//! The gate behind the door: our own API asks our own throttles before it works for anybody.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::acquire::remaining;
use super::auth::{Caller, Proof};
use super::denied::{Denied, origin};
use super::limits::{DEFAULT_TENANT, Group, Promise, is_of_the_api};
use super::problem::{Code, Problem};
use super::state::App;
use super::{scopes, waiting};
use crate::throttle::{Ask, LaneAsk, Limit, Name};

/// Knobs are looked at again after so long, for what the headers promise, and a throttle that was not there; what passes is decided
/// by Redis each time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// No request waits longer than this for its token.
const MOMENT: Duration = Duration::from_millis(50);

/// And none asks again sooner than this.
const NAP_MIN: Duration = Duration::from_millis(5);

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What the gate remembers between requests.
#[derive(Debug, Default)]
pub struct Gate {
    denied: Denied,
    /// Throttles that Redis has answered for, with what they promise. As many as groups and tenants.
    known: Mutex<HashMap<Name, Known>>,
    /// When throttles were looked for that are not there.
    absent: Mutex<HashMap<Name, Instant>>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    promise: Option<Promise>,
    read_at: Option<Instant>,
}

impl Gate {
    fn locked(&self) -> MutexGuard<'_, HashMap<Name, Known>> {
        // The map is whole between any two statements, so a poisoned lock is still good.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent(&self) -> MutexGuard<'_, HashMap<Name, Instant>> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a throttle says of a request.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// Nothing limits it.
    Free,
    /// It has taken its token.
    Admitted,
    /// There is none.
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq)]
struct Refusal {
    wait: Duration,
    limit: Option<Limit>,
    effective_rps: f64,
}

impl Refusal {
    /// Whole seconds until the next request fits, at least one.
    fn wait_s(&self) -> u64 {
        (self.wait.as_secs_f64().ceil() as u64).max(1)
    }

    /// A bucket refills; whatever else limits does not end by waiting.
    fn is_soon(&self) -> bool {
        matches!(
            self.limit,
            Some(Limit::Key | Limit::Throttle | Limit::Tier { .. })
        )
    }

    /// What was stopped by hand goes on by hand.
    fn ends_by_waiting(&self) -> bool {
        !matches!(self.limit, Some(Limit::Stopped { .. }))
    }

    fn is_of_key(&self) -> bool {
        matches!(self.limit, Some(Limit::Key | Limit::Paused { .. }))
    }

    fn sentence(&self, name: &Name, client: &Caller) -> String {
        match &self.limit {
            Some(Limit::Key) => {
                format!("your token has sent what throttle {name} lets one token send (key_rps)")
            }
            Some(Limit::Throttle) => {
                format!(
                    "the tokens of tenant {} have sent what throttle {name} lets them send together (rps)",
                    client.tenant
                )
            }
            // Nobody comes in by waiting, and the way round is not that of other throttles.
            Some(Limit::Stopped { name, why }) => {
                let why = if why.is_empty() {
                    String::new()
                } else {
                    format!(" ({why})")
                };
                format!(
                    "throttle {name} is stopped{why}: its rate is 0 or somebody paused it; whoever may do everything can resume or turn it here, \
                     and anybody on the machine with: flyball throttle resume {name}, or flyball throttle set {name} rps=<rate>"
                )
            }
            Some(limit) => waiting::sentence(name.as_str(), &client.key, self.effective_rps, limit),
            None => format!("throttle {name} has no token left"),
        }
    }
}

/// Lets a request pass with a token of its group's throttle, or answers that there is none.
pub async fn gate(State(app): State<App>, request: Request, next: Next) -> Response {
    // Who has shown nothing has been let in to what is open to everybody.
    let Some(client) = request.extensions().get::<Caller>().cloned() else {
        return next.run(request).await;
    };
    // Who may do everything cannot be locked out by the throttles that he turns.
    if client.leave.is_admin() && turns_the_api(&request) {
        return next.run(request).await;
    }
    let is_dashboard = client.proof == Proof::Session
        || (client.proof == Proof::Loopback && is_page(request.headers()));
    let group = Group::of(request.method(), request.uri().path(), is_dashboard);
    let Some(name) = group.and_then(|group| group.throttle(&client.tenant).ok()) else {
        return next.run(request).await;
    };
    match ask_patiently(&app, &name, &client.key).await {
        Verdict::Free => next.run(request).await,
        Verdict::Admitted => {
            // What is left is found out while the request is served, so that nobody waits for it.
            let taken = LaneAsk {
                key: client.key.to_string(),
                want: 0,
                ..LaneAsk::default()
            };
            let (mut response, left, promise) = tokio::join!(
                next.run(request),
                remaining(&app, &name, taken),
                promise(&app, &name)
            );
            let standing = left.map(|left| Promise::standing(&name, false, left, 0));
            tell(&mut response, promise, standing);
            response
        }
        Verdict::Refused(refusal) => {
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
            let standing = Promise::standing(&name, !refusal.is_of_key(), 0, wait_s);
            tell(&mut response, promise(&app, &name).await, Some(standing));
            response
        }
    }
}

/// Whether somebody without a valid token may be told so: `None`, or what to answer in its place. Costs Redis nothing while
/// the client is known to be refused.
pub async fn deny(app: &App, address: Option<IpAddr>) -> Option<Problem> {
    let Ok(name) = Group::Denied.throttle(DEFAULT_TENANT) else {
        return None;
    };
    let (origin, now) = (origin(address), Instant::now());
    let mut left = app.gate.denied.left(&origin, now);
    if left.is_zero() {
        let key = super::auth::digest_of(&origin);
        let Verdict::Refused(refusal) = ask(app, &name, &key).await else {
            return None;
        };
        left = refusal.wait;
        app.gate
            .denied
            .refuse(refusal.is_of_key().then_some(&origin), left, now);
    }
    Some(too_many(left))
}

/// What to answer somebody who has been refused for the lack of a valid token and is to wait; `None` if nobody said so.
pub fn denied(app: &App, address: Option<IpAddr>) -> Option<Problem> {
    let left = app.gate.denied.left(&origin(address), Instant::now());
    (!left.is_zero()).then(|| too_many(left))
}

fn too_many(left: Duration) -> Problem {
    let wait_s = (left.as_secs_f64().ceil() as u64).max(1);
    let detail = format!(
        "too many requests without a valid token; try again in {wait_s} s with the right one"
    );
    Problem::new(Code::TooManyRequests, detail).retry_after(wait_s)
}

/// The address from which a request came, where the listener has told it.
pub fn address(extensions: &Extensions) -> Option<IpAddr> {
    extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(address)| address.ip())
}

/// Whether a request is about one of the API's own throttles.
fn turns_the_api(request: &Request) -> bool {
    let template = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("", MatchedPath::as_str);
    scopes::throttle_in(template, request.uri().path()).is_some_and(|name| is_of_the_api(&name))
}

/// A page of ours, where browsers need no session: no program can pretend it by accident, and who does it on purpose gains
/// one more share.
fn is_page(headers: &HeaderMap) -> bool {
    headers
        .get("sec-fetch-site")
        .is_some_and(|site| site == "same-origin")
}

/// Asks again where the next token is due within a moment: a page that loads sends some requests at once, and a bucket that was
/// lost begins with one token.
async fn ask_patiently(app: &App, name: &Name, key: &str) -> Verdict {
    let began = Instant::now();
    loop {
        let verdict = ask(app, name, key).await;
        match &verdict {
            Verdict::Refused(refusal)
                if refusal.is_soon() && began.elapsed() + refusal.wait <= MOMENT =>
            {
                tokio::time::sleep(refusal.wait.max(NAP_MIN)).await;
            }
            _ => return verdict,
        }
    }
}

async fn ask(app: &App, name: &Name, key: &str) -> Verdict {
    if app
        .gate
        .absent()
        .get(name)
        .is_some_and(|at| at.elapsed() < LOOK_EVERY)
    {
        return Verdict::Free;
    }
    let ask = Ask {
        throttle: name.clone(),
        lanes: vec![LaneAsk {
            key: key.to_owned(),
            ..LaneAsk::default()
        }],
        holder: None,
    };
    let answer = app.deps.throttles.acquire(&ask).await;
    let was_asked = answer.at_us > 0;
    let effective_rps = answer.effective_rps;
    let Some(grant) = answer.lanes.into_iter().next() else {
        return Verdict::Free;
    };
    if grant.granted > 0 {
        if was_asked {
            app.gate.locked().entry(name.clone()).or_default();
            return Verdict::Admitted;
        }
        return Verdict::Free;
    }
    match &grant.limit {
        // A throttle that somebody took away limits nothing.
        Some(Limit::Unknown { name: unknown }) if unknown == name => {
            app.gate.absent().insert(name.clone(), Instant::now());
            Verdict::Free
        }
        // Nor does one that Redis has not yet told this process of: its word for that case is not known.
        Some(Limit::StoreLost) if !app.gate.locked().contains_key(name) => Verdict::Free,
        _ => Verdict::Refused(Refusal {
            wait: grant.wait,
            limit: grant.limit,
            effective_rps,
        }),
    }
}

async fn promise(app: &App, name: &Name) -> Option<Promise> {
    let now = Instant::now();
    {
        let mut known = app.gate.locked();
        let known = known.entry(name.clone()).or_default();
        if known
            .read_at
            .is_some_and(|at| now.duration_since(at) < LOOK_EVERY)
        {
            return known.promise.clone();
        }
        // One request reads; those beside it tell what was known before, but for the first.
        if known.promise.is_some() {
            known.read_at = Some(now);
        }
    }
    let status = app.deps.throttles.status(name).await.ok()?;
    let promise = status.map(|status| Promise::of(name, &status.knobs));
    app.gate.locked().insert(
        name.clone(),
        Known {
            promise: promise.clone(),
            read_at: Some(now),
        },
    );
    promise
}

fn tell(response: &mut Response, promise: Option<Promise>, standing: Option<String>) {
    let policy = promise
        .map(|promise| promise.policy())
        .filter(|policy| !policy.is_empty());
    for (name, text) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, standing)] {
        if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
}
