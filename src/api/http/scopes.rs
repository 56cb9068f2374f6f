//! The scope that each route needs. A route that is not listed here is for administrators.

use axum::http::Method;

use self::RequiredAccess::{Open, Scope, Token};
use self::TenantAccess::{Operators, OwnThrottle, Tenant, UsableThrottle};
use super::caller::Caller;
use super::limits;
use super::problem::{Code, Problem};
use super::token_scope::TokenScope::{
    self, ChannelsPublish, ChannelsSubscribe, JobsEnqueue, JobsRead, JobsWork, MetricsRead,
    NotifyRead, NotifySend, OpsRead, OpsWrite, ThrottlesAcquire,
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
const ROUTES: [(&str, &str, RequiredAccess, TenantAccess); 111] = [
    ("GET", "/healthz", Open, Tenant),
    ("GET", "/readyz", Open, Tenant),
    (
        "POST",
        "/api/v1/provider-events/{pool}/{account}",
        Open,
        Tenant,
    ),
    ("GET", "/openapi.json", Token, Tenant),
    ("GET", "/asyncapi.json", Token, Tenant),
    ("GET", "/metrics", Scope(MetricsRead), Operators),
    ("POST", "/api/v1/jobs", Scope(JobsEnqueue), Tenant),
    ("POST", "/api/v1/jobs/batch", Scope(JobsEnqueue), Tenant),
    ("POST", "/api/v1/groups", Scope(JobsEnqueue), Tenant),
    ("GET", "/api/v1/groups", Scope(JobsRead), Tenant),
    ("GET", "/api/v1/groups/{id}", Scope(JobsRead), Tenant),
    (
        "POST",
        "/api/v1/groups/{id}/seal",
        Scope(JobsEnqueue),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/groups/{id}/cancel",
        Scope(OpsWrite),
        Tenant,
    ),
    ("POST", "/api/v1/notifications", Scope(NotifySend), Tenant),
    ("GET", "/api/v1/jobs", Scope(JobsRead), Tenant),
    ("GET", "/api/v1/jobs/{id}", Scope(JobsRead), Tenant),
    ("GET", "/api/v1/jobs/{id}/attempts", Scope(JobsRead), Tenant),
    ("POST", "/api/v1/claim", Scope(JobsWork), Tenant),
    (
        "POST",
        "/api/v1/jobs/{id}/heartbeat",
        Scope(JobsWork),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/jobs/{id}/complete",
        Scope(JobsWork),
        Tenant,
    ),
    ("POST", "/api/v1/jobs/{id}/fail", Scope(JobsWork), Tenant),
    ("POST", "/api/v1/jobs/{id}/snooze", Scope(JobsWork), Tenant),
    (
        "POST",
        "/api/v1/jobs/{id}/throttled",
        Scope(JobsWork),
        Tenant,
    ),
    ("POST", "/api/v1/jobs/{id}/release", Scope(JobsWork), Tenant),
    ("GET", "/api/v1/notifications", Scope(NotifyRead), Tenant),
    (
        "GET",
        "/api/v1/notifications/{id}/explain",
        Scope(NotifyRead),
        Tenant,
    ),
    ("GET", "/api/v1/recipients/check", Scope(NotifyRead), Tenant),
    (
        "POST",
        "/api/v1/recipients/{id}/replan",
        Scope(NotifySend),
        Tenant,
    ),
    ("GET", "/api/v1/digests", Scope(NotifyRead), Tenant),
    (
        "DELETE",
        "/api/v1/digests/items/{id}",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/{id}/cancel",
        Scope(NotifySend),
        Tenant,
    ),
    ("GET", "/api/v1/gates", Scope(OpsRead), Operators),
    (
        "GET",
        "/api/v1/notifications/{id}",
        Scope(NotifyRead),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batch",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/batches",
        Scope(NotifyRead),
        Tenant,
    ),
    (
        "GET",
        "/api/v1/notifications/batches/{id}",
        Scope(NotifyRead),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/pause",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/resume",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/notifications/batches/{id}/cancel",
        Scope(NotifySend),
        Tenant,
    ),
    ("GET", "/api/v1/recipients", Scope(NotifyRead), Tenant),
    ("POST", "/api/v1/recipients", Scope(NotifySend), Tenant),
    (
        "GET",
        "/api/v1/recipients/{recipient}",
        Scope(NotifyRead),
        Tenant,
    ),
    (
        "PUT",
        "/api/v1/recipients/{recipient}",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "DELETE",
        "/api/v1/recipients/{recipient}",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "GET",
        "/api/v1/recipients/{recipient}/inbox",
        Scope(NotifyRead),
        Tenant,
    ),
    (
        "GET",
        "/api/v1/recipients/{recipient}/inbox/counts",
        Scope(NotifyRead),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/recipients/{recipient}/inbox/mark",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "GET",
        "/api/v1/recipient-defaults",
        Scope(NotifyRead),
        Tenant,
    ),
    (
        "PUT",
        "/api/v1/recipient-defaults",
        Scope(NotifySend),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/acquire",
        Scope(ThrottlesAcquire),
        UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/peek",
        Scope(ThrottlesAcquire),
        UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/return",
        Scope(ThrottlesAcquire),
        UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/settle",
        Scope(ThrottlesAcquire),
        UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/refused",
        Scope(ThrottlesAcquire),
        UsableThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/ended",
        Scope(ThrottlesAcquire),
        UsableThrottle,
    ),
    ("POST", "/api/v1/check", Scope(ThrottlesAcquire), Operators),
    ("GET", "/api/v1/pause", Scope(OpsRead), Operators),
    ("GET", "/api/v1/throttles", Scope(OpsRead), Tenant),
    (
        "GET",
        "/api/v1/throttles/{name}",
        Scope(OpsRead),
        OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/why",
        Scope(OpsRead),
        OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/history",
        Scope(OpsRead),
        OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/lanes",
        Scope(OpsRead),
        OwnThrottle,
    ),
    (
        "GET",
        "/api/v1/throttles/{name}/keys/{key}",
        Scope(OpsRead),
        OwnThrottle,
    ),
    ("GET", "/api/v1/pools", Scope(OpsRead), Operators),
    ("GET", "/api/v1/pools/{name}", Scope(OpsRead), Operators),
    ("GET", "/api/v1/tenants", Scope(OpsRead), Tenant),
    (
        "GET",
        "/api/v1/tenants/{tenant}/modules",
        Scope(OpsRead),
        Tenant,
    ),
    ("GET", "/api/v1/crons", Scope(OpsRead), Operators),
    ("GET", "/api/v1/crons/{name}", Scope(OpsRead), Operators),
    ("GET", "/api/v1/suppressions", Scope(OpsRead), Operators),
    ("GET", "/api/v1/decisions", Scope(OpsRead), Operators),
    ("GET", "/api/v1/failures", Scope(OpsRead), Tenant),
    ("GET", "/api/v1/audit", Scope(OpsRead), Tenant),
    ("GET", "/api/v1/workers", Scope(OpsRead), Operators),
    ("GET", "/api/v1/stream", Scope(OpsRead), Tenant),
    ("POST", "/api/v1/jobs/cancel", Scope(OpsWrite), Tenant),
    ("DELETE", "/api/v1/jobs/{id}", Scope(OpsWrite), Tenant),
    ("PATCH", "/api/v1/jobs/{id}", Scope(OpsWrite), Tenant),
    ("POST", "/api/v1/jobs/{id}/retry", Scope(OpsWrite), Tenant),
    (
        "POST",
        "/api/v1/jobs/{id}/reschedule",
        Scope(OpsWrite),
        Tenant,
    ),
    ("POST", "/api/v1/jobs/{id}/discard", Scope(OpsWrite), Tenant),
    ("POST", "/api/v1/dead/requeue", Scope(OpsWrite), Tenant),
    ("POST", "/api/v1/dead/discard", Scope(OpsWrite), Tenant),
    ("POST", "/api/v1/pause", Scope(OpsWrite), Operators),
    ("POST", "/api/v1/resume", Scope(OpsWrite), Operators),
    (
        "PATCH",
        "/api/v1/throttles/{name}",
        Scope(OpsWrite),
        Operators,
    ),
    (
        "DELETE",
        "/api/v1/throttles/{name}",
        Scope(OpsWrite),
        Operators,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/pause",
        Scope(OpsWrite),
        OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/resume",
        Scope(OpsWrite),
        OwnThrottle,
    ),
    (
        "PATCH",
        "/api/v1/throttles/{name}/keys/{key}",
        Scope(OpsWrite),
        OwnThrottle,
    ),
    (
        "DELETE",
        "/api/v1/throttles/{name}/keys/{key}/jobs",
        Scope(OpsWrite),
        OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/keys/{key}/pause",
        Scope(OpsWrite),
        OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/throttles/{name}/keys/{key}/resume",
        Scope(OpsWrite),
        OwnThrottle,
    ),
    (
        "POST",
        "/api/v1/pools/{name}/accounts/{account}/resume",
        Scope(OpsWrite),
        Operators,
    ),
    (
        "POST",
        "/api/v1/pools/{name}/requeue-unsent",
        Scope(OpsWrite),
        Operators,
    ),
    ("GET", "/api/v1/kinds", Scope(OpsRead), Operators),
    ("PUT", "/api/v1/kinds/{name}", Scope(OpsWrite), Operators),
    ("GET", "/api/v1/cron-next", Scope(OpsRead), Operators),
    ("PUT", "/api/v1/crons/{name}", Scope(OpsWrite), Operators),
    ("DELETE", "/api/v1/crons/{name}", Scope(OpsWrite), Operators),
    (
        "POST",
        "/api/v1/crons/{name}/run",
        Scope(OpsWrite),
        Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/pause",
        Scope(OpsWrite),
        Operators,
    ),
    (
        "POST",
        "/api/v1/crons/{name}/resume",
        Scope(OpsWrite),
        Operators,
    ),
    ("POST", "/api/v1/suppressions", Scope(OpsWrite), Operators),
    ("DELETE", "/api/v1/suppressions", Scope(OpsWrite), Operators),
    ("GET", "/api/v1/channels", Scope(OpsRead), Tenant),
    ("GET", "/api/v1/ws", Scope(ChannelsSubscribe), Tenant),
    (
        "POST",
        "/api/v1/ws/tickets",
        Scope(ChannelsSubscribe),
        Tenant,
    ),
    (
        "GET",
        "/api/v1/channels/{channel}/events",
        Scope(ChannelsSubscribe),
        Tenant,
    ),
    (
        "POST",
        "/api/v1/channels/{channel}/messages",
        Scope(ChannelsPublish),
        Tenant,
    ),
    ("POST", "/logout", Open, Tenant),
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

/// Returns true if the table lists a path with other methods alone: it lists every route, so this
/// one does not exist.
pub fn is_other_method(method: &Method, template: &str) -> bool {
    !is_known(method, template) && ROUTES.iter().any(|(_, path, ..)| *path == template)
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
    if is_other_method(method, template) {
        return Err(Problem::method_not_allowed(method, path));
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
