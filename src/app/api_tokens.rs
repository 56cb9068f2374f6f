//! The tokens of the API in its own form, by the settings.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api;
use crate::config::{DEFAULT_SCOPES, Settings, TokenFound};
use crate::providers::DriverClients;

/// Returns the tenants of the tokens, and the one of callers without a tenant.
pub(super) fn tenants(tokens: &[TokenFound<'_>]) -> Vec<String> {
    let tenants: BTreeSet<&str> = tokens
        .iter()
        .filter_map(|token| token.settings?.tenant.as_deref())
        .filter(|tenant| *tenant != api::ALL_TENANTS)
        .chain([api::DEFAULT_TENANT])
        .collect();
    tenants.into_iter().map(str::to_owned).collect()
}

/// Builds the check of JSON Web Tokens, if the settings have one.
pub(super) fn jwt(
    settings: &Settings,
    tools: &DriverClients,
) -> anyhow::Result<Option<Arc<api::JwtAuth>>> {
    let Some(set) = &settings.jwt else {
        return Ok(None);
    };
    let source = match (&set.jwks_file, &set.jwks_url) {
        (Some(file), _) => api::JwksSource::File(file.into()),
        (None, Some(url)) => api::JwksSource::Url(url.clone(), tools.guarded.clone()),
        (None, None) => api::JwksSource::None,
    };
    let claim = |name: &Option<String>, usual: &str| name.clone().unwrap_or_else(|| usual.into());
    let rules = api::JwtRules {
        issuer: set.issuer.clone(),
        audience: set.audience.clone(),
        // The settings have been validated, so every algorithm is known.
        algorithms: set
            .algorithms
            .iter()
            .filter_map(|word| api::SigningAlgorithm::of(word))
            .collect(),
        secret: settings.jwt_secret()?.map(api::TokenSecret::new),
        leeway_s: set.leeway_s.unwrap_or(api::LEEWAY_S),
        claims: api::ClaimRules {
            tenant: claim(&set.tenant_claim, "tenant"),
            module: claim(&set.module_claim, "module.id"),
            scope: claim(&set.scope_claim, "scope"),
            kinds: claim(&set.kinds_claim, "kinds"),
            throttles: claim(&set.throttles_claim, "throttles"),
            default_kinds: set.kinds.clone().map(|kinds| kinds.into_iter().collect()),
            default_throttles: set.throttles.clone(),
            all_tenants: set.all_tenants,
        },
    };
    Ok(Some(Arc::new(api::JwtAuth::new(rules, source))))
}

/// Builds the API's form of a token.
pub(super) fn token(found: &TokenFound<'_>) -> api::AuthToken {
    let secret = api::TokenSecret::new(found.secret.clone());
    let Some(set) = found.settings else {
        return api::AuthToken::new(secret);
    };
    let scopes = set
        .scopes
        .clone()
        .unwrap_or_else(|| DEFAULT_SCOPES.map(str::to_owned).to_vec());
    let leave = api::Permissions {
        // The settings have been validated, so every scope is known.
        scopes: scopes
            .iter()
            .filter_map(|word| api::TokenScope::of(word))
            .collect(),
        kinds: set
            .kinds
            .as_ref()
            .map(|kinds| kinds.iter().cloned().collect()),
        throttles: set.throttles.clone(),
    };
    let token = api::AuthToken::of(found.name, set.tenant.as_deref(), leave, secret);
    match &set.module {
        Some(module) => token.with_module(module),
        None => token,
    }
}
