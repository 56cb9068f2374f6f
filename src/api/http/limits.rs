//! The throttles of our own API: the requests that pass each of them, and their default rates.
//!
//! Every group of endpoints has one throttle per tenant. Its keys are tokens, so `key_rps` limits
//! one token and `rps` limits all tokens of the tenant together: a tenant that changes tokens gains
//! nothing. Health checks, metrics, pages and the live stream pass no throttle, or the API could
//! hide its own state. Dashboards have their own group, so that no program can starve the
//! people who use them.

use std::collections::BTreeMap;

use axum::http::Method;

use crate::throttle::api_limit::API_PREFIX;
pub use crate::throttle::api_limit::is_of_the_api;
use crate::throttle::rolling_window::WindowLimit;
use crate::throttle::{ApiLimit, Change, Error, Knobs, Name, OWN_API, RateLimit, Store};

/// The tenant of tokens that name none.
pub const DEFAULT_TENANT: &str = "default";

/// The rate of a tenant as a multiple of the rate of one token: it may use three tokens at full
/// rate.
const TENANT_TOKENS: f64 = 3.0;

/// A group of endpoints that are limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Group {
    /// Requests that change nothing.
    Read,
    /// Requests that change something and are in no other group.
    Write,
    /// Requests that enqueue jobs.
    Enqueue,
    /// Requests for tokens by other programs, and the claims and reports of workers.
    Acquire,
    /// All requests of dashboards.
    Dashboard,
    /// Requests without a valid token; its keys are clients' addresses.
    Denied,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Enqueue,
        Self::Acquire,
        Self::Dashboard,
        Self::Denied,
    ];

    /// Returns the group of an admitted request; `None` for requests that pass no throttle.
    pub fn of(method: &Method, path: &str, is_dashboard: bool) -> Option<Self> {
        const TOKENS: [&str; 6] = [
            "/acquire", "/peek", "/return", "/settle", "/refused", "/ended",
        ];
        const WORK: [&str; 6] = [
            "/heartbeat",
            "/complete",
            "/fail",
            "/snooze",
            "/throttled",
            "/release",
        ];
        let is_api = path.starts_with("/api/") || path == "/openapi.json";
        // Connections stay open, and have limits of their own.
        if !is_api || path == "/api/v1/stream" || opens_gateway(path) {
            return None;
        }
        Some(match *method {
            _ if is_dashboard => Self::Dashboard,
            Method::GET | Method::HEAD | Method::OPTIONS => Self::Read,
            Method::POST
                if [
                    "/api/v1/jobs",
                    "/api/v1/jobs/batch",
                    "/api/v1/notifications",
                    "/api/v1/notifications/batch",
                ]
                .contains(&path) =>
            {
                Self::Enqueue
            }
            Method::POST if ["/api/v1/check", "/api/v1/claim"].contains(&path) => Self::Acquire,
            Method::POST
                if path.starts_with("/api/v1/jobs/")
                    && WORK.iter().any(|verb| path.ends_with(verb)) =>
            {
                Self::Acquire
            }
            Method::POST
                if path.starts_with("/api/v1/throttles/")
                    && TOKENS.iter().any(|verb| path.ends_with(verb)) =>
            {
                Self::Acquire
            }
            _ => Self::Write,
        })
    }

    fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the default rate of one token, or of one address for [`Group::Denied`], in requests
    /// per second.
    fn key_rps(self) -> f64 {
        match self {
            Self::Read => 200.0,
            Self::Write | Self::Dashboard => 100.0,
            Self::Enqueue => 1000.0,
            Self::Acquire => 2000.0,
            Self::Denied => 10.0,
        }
    }

    /// Returns the throttle of this group for a tenant.
    pub fn throttle(self, tenant: &str) -> Result<Name, String> {
        of_tenant(self.as_str(), tenant)
    }
}

/// Returns the throttle of a limit of our own API for a tenant.
pub fn own_throttle(limit: &ApiLimit, tenant: &str) -> Result<Name, String> {
    of_tenant(&limit.name, tenant)
}

/// Returns the throttles of our own API that every server creates: those of the groups, and of the
/// limits in the settings.
pub fn own_throttles(limits: &[ApiLimit]) -> Vec<Name> {
    let groups = Group::ALL.map(|group| group.throttle(DEFAULT_TENANT));
    let of_own = limits.iter().filter(|limit| limit.api == OWN_API);
    let named = of_own.map(|limit| own_throttle(limit, DEFAULT_TENANT));
    groups.into_iter().chain(named).flatten().collect()
}

fn of_tenant(group: &str, tenant: &str) -> Result<Name, String> {
    let name = match tenant {
        DEFAULT_TENANT => format!("{API_PREFIX}{group}"),
        tenant => format!("{API_PREFIX}{group}:{tenant}"),
    };
    Name::new(name).map_err(|error| error.to_string())
}

/// Creates the missing throttles of the limits in the settings; knobs that are set already stay.
pub async fn seed_api_limits(
    store: &dyn Store,
    tenants: &[&str],
    limits: &[ApiLimit],
) -> Result<(), Error> {
    for limit in limits {
        let number = |number: f64| number.to_string();
        let (key_rps, all_rps) = (number(limit.key_rps), number(limit.customer_rps()));
        let shape = |rps: String, key_rps: String| {
            [
                ("rps", rps),
                ("key_rps", key_rps),
                ("burst", number(limit.key_burst)),
                ("key_burst", number(limit.key_burst)),
                ("window", number(limit.window)),
                // Without Redis the limited API stays open, as our own does.
                ("on_store_loss", "open".to_owned()),
            ]
        };
        if limit.api == OWN_API {
            for name in tenants
                .iter()
                .filter_map(|tenant| own_throttle(limit, tenant).ok())
            {
                create(store, &name, shape(all_rps.clone(), key_rps.clone())).await?;
            }
            continue;
        }
        for (name, rps) in [(limit.of_keys(), key_rps), (limit.of_customers(), all_rps)] {
            if let Ok(name) = name {
                create(store, &name, shape("-1".to_owned(), rps)).await?;
            }
        }
    }
    Ok(())
}

/// Creates a throttle of an API, if it is missing.
async fn create(store: &dyn Store, name: &Name, fields: [(&str, String); 6]) -> Result<(), Error> {
    let change = Change {
        fields: fields
            .into_iter()
            .map(|(field, text)| (field.to_owned(), Some(text)))
            .collect::<BTreeMap<_, _>>(),
        by: "flyball".to_owned(),
        why: "a rate limit of the API; adjust it as needed".to_owned(),
        create: true,
        absent_only: true,
        ..Change::default()
    };
    match store.set(name, &change).await {
        Ok(_) => Ok(()),
        // An invalid knob that a person set stays and is shown in the dashboard; it must not
        // prevent the process from starting.
        Err(error @ Error::Invalid(_)) => {
            let reason = error.to_string();
            tracing::warn!(throttle.name = %name, reason, "the API's limits conflict with the knobs in the store");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Creates the missing throttles of the API; knobs that are set already stay.
pub async fn seed(store: &dyn Store, tenants: &[&str]) -> Result<(), Error> {
    let all = tenants
        .iter()
        .flat_map(|tenant| Group::ALL.map(|group| (group, *tenant)));
    // A client without a valid token has no tenant.
    for (group, tenant) in
        all.filter(|(group, tenant)| *group != Group::Denied || *tenant == DEFAULT_TENANT)
    {
        let Ok(name) = group.throttle(tenant) else {
            continue;
        };
        let total = if group == Group::Denied {
            20.0
        } else {
            TENANT_TOKENS
        };
        let fields = [
            ("rps", (group.key_rps() * total).to_string()),
            ("key_rps", group.key_rps().to_string()),
            ("burst", "5".to_owned()),
            ("key_burst", "5".to_owned()),
            ("window", "1".to_owned()),
            // Without Redis the API stays open, because people need it to find the fault.
            ("on_store_loss", "open".to_owned()),
        ];
        create(store, &name, fields).await?;
    }
    Ok(())
}

/// The longest window of the quota of a rate that grants a request within it.
const QUOTA_SECONDS_MAX: u64 = 60;

/// The limits of a throttle of the API, for the headers of draft-ietf-httpapi-ratelimit-headers-10.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimitPolicy {
    /// The name of each quota, its requests, and its seconds.
    quotas: Vec<(String, u64, u64)>,
    /// True if one token has no quota, and all tokens of its tenant together have one.
    is_total: bool,
}

/// Returns true for the routes that open a connection of the gateway, which a browser does with a
/// ticket in place of a token.
pub fn opens_gateway(path: &str) -> bool {
    let channel = path.strip_prefix("/api/v1/channels/");
    path == "/api/v1/ws" || channel.is_some_and(|rest| rest.ends_with("/events"))
}

impl RateLimitPolicy {
    /// Reads the limits from the knobs: the quotas of one token, and those of all tokens of its
    /// tenant. Each of the two has a rate, rolling windows, or both; the first has the plain name,
    /// to which [`Self::rate_limit_header`] refers, and another one also its span.
    pub fn of(name: &Name, knobs: &Knobs) -> Self {
        let cost = knobs.cost_factor;
        let of_part = |part: &str, rate: RateLimit, windows: &[WindowLimit]| {
            let rate = rate.rate().map(|rps| (None, quota(rps / cost)));
            let windows = windows
                .iter()
                .map(|limit| (Some(limit.span_s), window_quota(limit, cost)));
            let named = rate.into_iter().chain(windows).enumerate();
            let named = named.map(|(place, (span_s, (requests, seconds)))| {
                let span = match span_s {
                    Some(span_s) if place > 0 => format!("/{span_s}s"),
                    _ => String::new(),
                };
                (format!("{name}{part}{span}"), requests, seconds)
            });
            named.collect::<Vec<_>>()
        };
        let mut quotas = of_part("", knobs.key_rps, &knobs.key_windows);
        let of_all = of_part("/total", knobs.rps, &knobs.windows);
        let is_total = quotas.is_empty() && !of_all.is_empty();
        quotas.extend(of_all);
        Self { quotas, is_total }
    }

    /// Returns true if the requests that are left to one token are those of its whole tenant.
    pub fn is_total(&self) -> bool {
        self.is_total
    }

    /// Returns the `RateLimit-Policy` header; empty where nothing limits.
    pub fn policy(&self) -> String {
        let policies = self
            .quotas
            .iter()
            .map(|(name, requests, seconds)| format!("\"{name}\";q={requests};w={seconds}"));
        policies.collect::<Vec<_>>().join(", ")
    }

    /// Returns the `RateLimit` header: the requests that are left and, if none is, the wait until
    /// the next.
    pub fn rate_limit_header(name: &Name, is_total: bool, remaining: u32, wait_s: u64) -> String {
        let part = if is_total { "/total" } else { "" };
        let wait = if wait_s > 0 {
            format!(";t={wait_s}")
        } else {
            String::new()
        };
        format!("\"{name}{part}\";r={remaining}{wait}")
    }
}

/// Converts a rate to a whole quota in whole seconds: the highest that the rate grants, within a
/// minute unless one request takes longer.
fn quota(rps: f64) -> (u64, u64) {
    // A rate such as 0.29 has no exact form.
    let within = |seconds: u64| (rps * seconds as f64 * (1.0 + 1e-9)).floor() as u64;
    let (mut requests, mut seconds) = (within(1), 1);
    for longer in 2..=QUOTA_SECONDS_MAX {
        let more = within(longer);
        if u128::from(more) * u128::from(seconds) > u128::from(requests) * u128::from(longer) {
            (requests, seconds) = (more, longer);
        }
    }
    match requests {
        0 => (1, (1.0 / rps).ceil() as u64),
        _ => (requests, seconds),
    }
}

/// Converts a rolling window to a whole quota in whole seconds; a request costs `cost` tokens. One
/// that costs more than the limit goes alone.
fn window_quota(limit: &WindowLimit, cost: f64) -> (u64, u64) {
    let requests = (limit.tokens / cost).floor() as u64;
    (requests.max(1), limit.span_s.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_administrators_change_what_limits_an_api() {
        assert!(
            [
                "api:read",
                "api:own_jobs:acme",
                "limit:lead",
                "limit:lead:customer"
            ]
            .into_iter()
            .all(is_of_the_api)
        );
        assert!(!["mail", "apis", "limits:x"].into_iter().any(is_of_the_api));
    }

    #[test]
    fn requests_are_grouped_by_method_and_path() {
        let of = |method: Method, path: &str| Group::of(&method, path, false);
        assert_eq!(of(Method::GET, "/api/v1/jobs"), Some(Group::Read));
        assert_eq!(of(Method::POST, "/api/v1/jobs"), Some(Group::Enqueue));
        assert_eq!(of(Method::POST, "/api/v1/jobs/batch"), Some(Group::Enqueue));
        assert_eq!(
            of(Method::POST, "/api/v1/notifications"),
            Some(Group::Enqueue)
        );
        assert_eq!(of(Method::POST, "/api/v1/suppressions"), Some(Group::Write));
        assert_eq!(of(Method::POST, "/api/v1/jobs/cancel"), Some(Group::Write));
        assert_eq!(of(Method::POST, "/api/v1/claim"), Some(Group::Acquire));
        assert_eq!(
            of(Method::POST, "/api/v1/jobs/7/heartbeat"),
            Some(Group::Acquire)
        );
        assert_eq!(
            of(Method::PATCH, "/api/v1/throttles/mail"),
            Some(Group::Write)
        );
        assert_eq!(
            of(Method::POST, "/api/v1/throttles/a%2Fb/acquire"),
            Some(Group::Acquire)
        );
        assert_eq!(
            of(Method::POST, "/api/v1/throttles/mail/return"),
            Some(Group::Acquire)
        );
        assert_eq!(
            of(Method::POST, "/api/v1/throttles/mail/pause"),
            Some(Group::Write)
        );
        assert_eq!(
            Group::of(&Method::PATCH, "/api/v1/throttles/mail", true),
            Some(Group::Dashboard)
        );
    }

    #[test]
    fn what_shows_how_the_process_stands_passes_no_throttle() {
        for path in [
            "/",
            "/assets/app.js",
            "/login",
            "/healthz",
            "/readyz",
            "/metrics",
            "/api/v1/stream",
            "/api/v1/ws",
            "/api/v1/channels/orders/events",
        ] {
            for is_dashboard in [true, false] {
                assert_eq!(Group::of(&Method::GET, path, is_dashboard), None, "{path}");
            }
        }
    }

    #[test]
    fn rates_are_promised_in_whole_requests_and_seconds_and_never_more_than_there_are() {
        assert_eq!(quota(40.0), (40, 1));
        assert_eq!(quota(2.9), (29, 10));
        assert_eq!(quota(1.5), (3, 2));
        assert_eq!(quota(0.5), (1, 2));
        assert_eq!(quota(0.3), (3, 10));
        assert_eq!(quota(1.0 / 3.0), (1, 3));
        assert_eq!(quota(0.29), (11, 38), "0.29 needs 100 seconds");
        assert_eq!(quota(1.9999), (119, 60));
        assert_eq!(quota(0.01), (1, 100));
        let name = Group::Write.throttle("acme").unwrap();
        let knobs = Knobs {
            rps: RateLimit::PerSecond(120.0),
            key_rps: RateLimit::PerSecond(40.0),
            ..Knobs::default()
        };
        assert_eq!(
            RateLimitPolicy::of(&name, &knobs).policy(),
            r#""api:write:acme";q=40;w=1, "api:write:acme/total";q=120;w=1"#
        );
        assert_eq!(
            RateLimitPolicy::of(
                &name,
                &Knobs {
                    rps: RateLimit::Unlimited,
                    key_rps: RateLimit::Unlimited,
                    ..knobs
                }
            )
            .policy(),
            ""
        );
        // Two tokens a request, and windows beside a rate and without one.
        let windows = |text| WindowLimit::parse_all(text).unwrap();
        let knobs = Knobs {
            rps: RateLimit::PerSecond(120.0),
            key_rps: RateLimit::Unlimited,
            windows: windows("9000/3600"),
            key_windows: windows("5/0.5 1/60 90/3600"),
            cost_factor: 2.0,
            ..Knobs::default()
        };
        let policy = RateLimitPolicy::of(&name, &knobs).policy();
        let shared = Knobs {
            key_rps: RateLimit::Unlimited,
            key_windows: Vec::new(),
            ..knobs.clone()
        };
        assert!(RateLimitPolicy::of(&name, &shared).is_total());
        assert!(!RateLimitPolicy::of(&name, &knobs).is_total());
        assert_eq!(
            policy.split(", ").collect::<Vec<_>>(),
            [
                r#""api:write:acme";q=2;w=1"#,
                r#""api:write:acme/60s";q=1;w=60"#,
                r#""api:write:acme/3600s";q=45;w=3600"#,
                r#""api:write:acme/total";q=60;w=1"#,
                r#""api:write:acme/total/3600s";q=4500;w=3600"#,
            ]
        );
        assert_eq!(
            RateLimitPolicy::rate_limit_header(&name, false, 7, 0),
            r#""api:write:acme";r=7"#
        );
        assert_eq!(
            RateLimitPolicy::rate_limit_header(&name, true, 0, 3),
            r#""api:write:acme/total";r=0;t=3"#
        );
    }
}
