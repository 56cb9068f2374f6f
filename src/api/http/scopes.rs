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
pub enum RequiredAccess {
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
pub enum TenantAccess {
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
const ROUTES: [(&str, &str, RequiredAccess, TenantAccess); 68] = [
    (
        "GET",
        "/healthz",
        RequiredAccess::Open,
        TenantAccess::Tenant,
    ),
    ("GET", "/readyz", RequiredAccess::Open, TenantAccess::Tenant),
    (
        "POST",
        "/api/v1/provider-events/{pool}/{account}",
        RequiredAccess::Open,
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/openapi.json",
        RequiredAccess::Token,
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/metrics",
        RequiredAccess::Scope(MetricsRead),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/api/v1/jobs",
        RequiredAccess::Scope(JobsEnqueue),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/batch",
        RequiredAccess::Scope(JobsEnqueue),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications",
        RequiredAccess::Scope(NotifySend),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/jobs",
        RequiredAccess::Scope(JobsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/jobs/{id}",
        RequiredAccess::Scope(JobsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/jobs/{id}/attempts",
        RequiredAccess::Scope(JobsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications",
        RequiredAccess::Scope(NotifyRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/{id}",
        RequiredAccess::Scope(NotifyRead),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batch",
        RequiredAccess::Scope(NotifySend),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/batches",
        RequiredAccess::Scope(NotifyRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/batches/{id}",
        RequiredAccess::Scope(NotifyRead),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/pause",
        RequiredAccess::Scope(NotifySend),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/resume",
        RequiredAccess::Scope(NotifySend),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/cancel",
        RequiredAccess::Scope(NotifySend),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/acquire",
        RequiredAccess::Scope(ThrottlesAcquire),
        TenantAccess::UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/peek",
        RequiredAccess::Scope(ThrottlesAcquire),
        TenantAccess::UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/return",
        RequiredAccess::Scope(ThrottlesAcquire),
        TenantAccess::UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/check",
        RequiredAccess::Scope(ThrottlesAcquire),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/pause",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/throttles",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/why",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/history",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/lanes",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/keys/{key}",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/pools",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/pools/{name}",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/tenants",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/tenants/{tenant}/modules",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/crons",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/crons/{name}",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/suppressions",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/decisions",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/failures",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/audit",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Tenant,
    ),
    (
        "GET",
        "/api/v1/workers",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Operators,
    ),
    (
        "GET",
        "/api/v1/stream",
        RequiredAccess::Scope(OpsRead),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/cancel",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Tenant,
    ),
    (
        "DELETE",
        "/api/v1/jobs/{id}",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/{id}/retry",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/{id}/reschedule",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/{id}/discard",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/dead/requeue",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/dead/discard",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Tenant,
    ),
    (
        "POST",
        "/api/v1/pause",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/api/v1/resume",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "PATCH",
        "/api/v1/throttles/{name}",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "DELETE",
        "/api/v1/throttles/{name}",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/pause",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/resume",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::OwnThrottle,
    ),
    (
        "PATCH",
        "/api/v1/throttles/{name}/keys/{key}",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::OwnThrottle,
    ),
    (
        "DELETE",
        "/api/v1/throttles/{name}/keys/{key}/jobs",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/keys/{key}/pause",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/keys/{key}/resume",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/pools/{name}/accounts/{account}/resume",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "PUT",
        "/api/v1/crons/{name}",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "DELETE",
        "/api/v1/crons/{name}",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/run",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/pause",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/resume",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/api/v1/suppressions",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "DELETE",
        "/api/v1/suppressions",
        RequiredAccess::Scope(OpsWrite),
        TenantAccess::Operators,
    ),
    (
        "POST",
        "/logout",
        RequiredAccess::Open,
        TenantAccess::Tenant,
    ),
];

/// Returns the row of a route.
fn row(method: &Method, template: &str) -> Option<(RequiredAccess, TenantAccess)> {
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
pub fn need(method: &Method, template: &str) -> RequiredAccess {
    match row(method, template) {
        Some((need, _)) => need,
        None if template.starts_with("/api/") || template == "/metrics" => {
            RequiredAccess::Scope(TokenScope::Admin)
        }
        None => RequiredAccess::Token,
    }
}

/// Returns the part of a route's data that a caller bound to a tenant reaches; none of a route that
/// the table does not list.
pub fn reach(method: &Method, template: &str) -> TenantAccess {
    row(method, template).map_or(TenantAccess::Operators, |(_, reach)| reach)
}

/// Returns true if the table lists a route, so that its permission was chosen deliberately.
pub fn is_known(method: &Method, template: &str) -> bool {
    row(method, template).is_some()
}

/// Admits a caller to a route, or returns the missing permission.
pub fn check(caller: &Caller, method: &Method, template: &str, path: &str) -> Result<(), Problem> {
    let leave = &caller.leave;
    let RequiredAccess::Scope(scope) = need(method, template) else {
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

/// Admits a caller bound to a tenant to a route, or returns the refusal. A throttle that it does
/// not reach is not found, whether or not it exists.
fn within_tenant(
    caller: &Caller,
    tenant: &str,
    method: &Method,
    template: &str,
    path: &str,
) -> Result<(), Problem> {
    let is_reached = |throttle: &str| match reach(method, template) {
        TenantAccess::OwnThrottle => tenant_of(throttle) == Some(tenant),
        TenantAccess::UsableThrottle => caller.may_take_from(throttle),
        TenantAccess::Operators | TenantAccess::Tenant => true,
    };
    if reach(method, template) == TenantAccess::Operators {
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
        // The route refuses invalid names.
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
            RequiredAccess::Scope(TokenScope::Admin)
        );
        assert_eq!(
            need(&Method::HEAD, "/api/v1/jobs"),
            RequiredAccess::Scope(JobsRead)
        );
        assert_eq!(need(&Method::GET, "/"), RequiredAccess::Token);
    }
}
