//! The scope that each route needs. A route that is not listed here is for administrators.

use axum::http::Method;

use super::caller::Caller;
use super::limits;
use super::problem::{Code, Problem};
use super::token_scope::TokenScope::{
    self, JobsEnqueue, JobsRead, MetricsRead, NotifyRead, NotifySend, OpsRead, OpsWrite,
    ThrottlesAcquire,
};
use crate::throttle::Name;
use crate::throttle::tenant::tenant_of;

/// The permission that a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No token: the request comes from the operator of the process, or from a provider with its
    /// own signature.
    Open,
    /// A valid token of any kind.
    Token,
    /// A token with this scope.
    Scope(TokenScope),
}

/// The part of a route's data that a caller reaches who is bound to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None: the route shows or changes what all tenants share.
    Operators,
    /// The data of its tenant: the statements of the route filter by it.
    Tenant,
    /// The throttles of its tenant.
    OwnThrottle,
    /// The throttles of its tenant, and the shared ones that the settings of its token name.
    UsableThrottle,
}

/// The routes that need less than an administrator's token.
const ROUTES: [(&str, &str, Need, Reach); 68] = [
    ("GET", "/healthz", Need::Open, Reach::Tenant),
    ("GET", "/readyz", Need::Open, Reach::Tenant),
    (
        "POST",
        "/api/v1/provider-events/{pool}/{account}",
        Need::Open,
        Reach::Tenant,
    ),
    ("GET", "/openapi.json", Need::Token, Reach::Tenant),
    (
        "GET",
        "/metrics",
        Need::Scope(MetricsRead),
        Reach::Operators,
    ),
    (
        "POST",
        "/api/v1/jobs",
        Need::Scope(JobsEnqueue),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/batch",
        Need::Scope(JobsEnqueue),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications",
        Need::Scope(NotifySend),
        Reach::Tenant,
    ),
    ("GET", "/api/v1/jobs", Need::Scope(JobsRead), Reach::Tenant),
    (
        "GET",
        "/api/v1/jobs/{id}",
        Need::Scope(JobsRead),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/jobs/{id}/attempts",
        Need::Scope(JobsRead),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications",
        Need::Scope(NotifyRead),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/{id}",
        Need::Scope(NotifyRead),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batch",
        Need::Scope(NotifySend),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/batches",
        Need::Scope(NotifyRead),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/batches/{id}",
        Need::Scope(NotifyRead),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/pause",
        Need::Scope(NotifySend),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/resume",
        Need::Scope(NotifySend),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/cancel",
        Need::Scope(NotifySend),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/acquire",
        Need::Scope(ThrottlesAcquire),
        Reach::UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/peek",
        Need::Scope(ThrottlesAcquire),
        Reach::UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/return",
        Need::Scope(ThrottlesAcquire),
        Reach::UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/check",
        Need::Scope(ThrottlesAcquire),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/pause",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/throttles",
        Need::Scope(OpsRead),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}",
        Need::Scope(OpsRead),
        Reach::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/why",
        Need::Scope(OpsRead),
        Reach::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/history",
        Need::Scope(OpsRead),
        Reach::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/lanes",
        Need::Scope(OpsRead),
        Reach::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/keys/{key}",
        Need::Scope(OpsRead),
        Reach::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/pools",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/pools/{name}",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/tenants",
        Need::Scope(OpsRead),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/tenants/{tenant}/modules",
        Need::Scope(OpsRead),
        Reach::Tenant,
    ),
    (
        "GET",
        "/api/v1/crons",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/crons/{name}",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/suppressions",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/decisions",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    (
        "GET",
        "/api/v1/failures",
        Need::Scope(OpsRead),
        Reach::Tenant,
    ),
    ("GET", "/api/v1/audit", Need::Scope(OpsRead), Reach::Tenant),
    (
        "GET",
        "/api/v1/workers",
        Need::Scope(OpsRead),
        Reach::Operators,
    ),
    ("GET", "/api/v1/stream", Need::Scope(OpsRead), Reach::Tenant),
    (
        "POST",
        "/api/v1/jobs/cancel",
        Need::Scope(OpsWrite),
        Reach::Tenant,
    ),
    (
        "DELETE",
        "/api/v1/jobs/{id}",
        Need::Scope(OpsWrite),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/{id}/retry",
        Need::Scope(OpsWrite),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/{id}/reschedule",
        Need::Scope(OpsWrite),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/{id}/discard",
        Need::Scope(OpsWrite),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/dead/requeue",
        Need::Scope(OpsWrite),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/dead/discard",
        Need::Scope(OpsWrite),
        Reach::Tenant,
    ),
    (
        "POST",
        "/api/v1/pause",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "POST",
        "/api/v1/resume",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "PATCH",
        "/api/v1/throttles/{name}",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "DELETE",
        "/api/v1/throttles/{name}",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/pause",
        Need::Scope(OpsWrite),
        Reach::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/resume",
        Need::Scope(OpsWrite),
        Reach::OwnThrottle,
    ),
    (
        "PATCH",
        "/api/v1/throttles/{name}/keys/{key}",
        Need::Scope(OpsWrite),
        Reach::OwnThrottle,
    ),
    (
        "DELETE",
        "/api/v1/throttles/{name}/keys/{key}/jobs",
        Need::Scope(OpsWrite),
        Reach::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/keys/{key}/pause",
        Need::Scope(OpsWrite),
        Reach::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/keys/{key}/resume",
        Need::Scope(OpsWrite),
        Reach::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/pools/{name}/accounts/{account}/resume",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "PUT",
        "/api/v1/crons/{name}",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "DELETE",
        "/api/v1/crons/{name}",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/run",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/pause",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/resume",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "POST",
        "/api/v1/suppressions",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    (
        "DELETE",
        "/api/v1/suppressions",
        Need::Scope(OpsWrite),
        Reach::Operators,
    ),
    ("POST", "/logout", Need::Open, Reach::Tenant),
];

/// Returns the row of a route.
fn row(method: &Method, template: &str) -> Option<(Need, Reach)> {
    let method = if *method == Method::HEAD {
        "GET"
    } else {
        method.as_str()
    };
    ROUTES
        .iter()
        .find(|(of, path, ..)| (*of, *path) == (method, template))
        .map(|(_, _, need, reach)| (*need, *reach))
}

/// Returns the permission that a route needs, by its template. Pages and files of the dashboard
/// show no data by themselves.
pub fn need(method: &Method, template: &str) -> Need {
    match row(method, template) {
        Some((need, _)) => need,
        None if template.starts_with("/api/") || template == "/metrics" => {
            Need::Scope(TokenScope::Admin)
        }
        None => Need::Token,
    }
}

/// Returns the part of a route's data that a caller bound to a tenant reaches; none of a route that
/// the table does not list.
pub fn reach(method: &Method, template: &str) -> Reach {
    row(method, template).map_or(Reach::Operators, |(_, reach)| reach)
}

/// Returns true if the table lists a route, so that its permission was chosen deliberately.
pub fn is_known(method: &Method, template: &str) -> bool {
    row(method, template).is_some()
}

/// Admits a caller to a route, or returns the missing permission.
pub fn check(caller: &Caller, method: &Method, template: &str, path: &str) -> Result<(), Problem> {
    let leave = &caller.leave;
    let Need::Scope(scope) = need(method, template) else {
        return Ok(());
    };
    if leave.is_admin() {
        return Ok(());
    }
    if !leave.has(scope) {
        let (scope, token, scopes) = (scope.as_str(), caller.token_name(), leave.scopes_reported());
        let detail =
            format!("{method} {template} needs the scope {scope}; token {token} has {scopes}");
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    if let Some(tenant) = &caller.tenant {
        within_tenant(caller, tenant, method, template, path)?;
    }
    // Operators may read the API's own throttles, but not edit, stop or drain them.
    let Some(throttle) =
        throttle_in(template, path).filter(|_| *method != Method::GET && *method != Method::HEAD)
    else {
        return Ok(());
    };
    if limits::is_of_the_api(&throttle) {
        let detail = format!(
            "throttle {throttle} limits the API itself and needs the scope admin; token {} has {}",
            caller.token_name(),
            leave.scopes_reported()
        );
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    if scope == ThrottlesAcquire && !leave.may_use(&throttle) {
        let detail = format!(
            "token {} may not use throttle {throttle}; allowed: {}",
            caller.token_name(),
            leave.throttles_reported()
        );
        return Err(Problem::new(Code::NotAllowed, detail));
    }
    Ok(())
}

/// Admits a caller bound to a tenant to a route, or returns the refusal. A throttle that it does not
/// reach is not found, whether or not it exists.
fn within_tenant(
    caller: &Caller,
    tenant: &str,
    method: &Method,
    template: &str,
    path: &str,
) -> Result<(), Problem> {
    let is_reached = |throttle: &str| match reach(method, template) {
        Reach::OwnThrottle => tenant_of(throttle) == Some(tenant),
        Reach::UsableThrottle => caller.may_take_from(throttle),
        Reach::Operators | Reach::Tenant => true,
    };
    if reach(method, template) == Reach::Operators {
        let detail = format!(
            "{method} {template} concerns all tenants and needs a token of operators; token {} is \
             bound to tenant {tenant}",
            caller.token_name()
        );
        return Err(Problem::new(Code::NotAllowed, detail));
    }
    let throttle = throttle_in(template, path).filter(|throttle| !is_reached(throttle));
    match throttle.map(Name::or_pattern) {
        Some(Ok(name)) => Err(Problem::throttle_not_found(&name)),
        // The route refuses what is no name.
        Some(Err(_)) | None => Ok(()),
    }
}

/// Returns the throttle that a path names, if its route has one.
pub fn throttle_in(template: &str, path: &str) -> Option<String> {
    let rest = template.strip_prefix("/api/v1/throttles/{name}")?;
    if !rest.is_empty() && !rest.starts_with('/') {
        return None;
    }
    let name = path.strip_prefix("/api/v1/throttles/")?.split('/').next()?;
    Some(
        percent_encoding::percent_decode_str(name)
            .decode_utf8_lossy()
            .into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_is_found_in_a_path_however_it_is_written() {
        for (template, path, name) in [
            (
                "/api/v1/throttles/{name}",
                "/api/v1/throttles/api%3Awrite",
                Some("api:write"),
            ),
            (
                "/api/v1/throttles/{name}/pause",
                "/api/v1/throttles/a%2Fb/pause",
                Some("a/b"),
            ),
            (
                "/api/v1/throttles/{name}/keys/{key}",
                "/api/v1/throttles/%61pi:read/keys/x",
                Some("api:read"),
            ),
            ("/api/v1/throttles", "/api/v1/throttles", None),
            ("/api/v1/pools/{name}", "/api/v1/pools/api:read", None),
        ] {
            assert_eq!(throttle_in(template, path).as_deref(), name);
        }
    }

    #[test]
    fn what_nobody_thought_about_is_for_administrators() {
        assert_eq!(
            need(&Method::POST, "/api/v1/new"),
            Need::Scope(TokenScope::Admin)
        );
        assert_eq!(need(&Method::HEAD, "/api/v1/jobs"), Need::Scope(JobsRead));
        assert_eq!(need(&Method::GET, "/"), Need::Token);
    }
}
