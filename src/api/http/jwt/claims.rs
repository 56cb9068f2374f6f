//! The claims of a verified token: tenant, module and permissions of its bearer.

use std::collections::BTreeSet;

use serde_json::Value;

use super::error::JwtError;
use crate::api::http::caller::digest_of;
use crate::api::http::token_scope::{ALL_TENANTS, Permissions, TokenScope};
use crate::input::patterns::is_tenant_name;

/// The longest module, in bytes.
const MODULE_BYTES_MAX: usize = 64;

/// The longest subject that the audit log shows, in characters.
const SUBJECT_CHARS_MAX: usize = 100;

/// The places of the claims, and the defaults for tokens without them.
#[derive(Clone, Debug)]
pub struct ClaimRules {
    /// The place of the tenant.
    pub tenant: String,
    /// The place of the module.
    pub module: String,
    /// The place of the scopes, a text with spaces or a list.
    pub scope: String,
    /// The place of the kinds that the bearer may enqueue.
    pub kinds: String,
    /// The place of the throttles that the bearer may use.
    pub throttles: String,
    /// The kinds of a token without that claim; the public ones if `None`.
    pub default_kinds: Option<BTreeSet<String>>,
    /// The throttles of a token without that claim; all of them if `None`.
    pub default_throttles: Option<Vec<String>>,
    /// True if the tenant `*` is accepted, which sees all tenants.
    pub all_tenants: bool,
}

/// The bearer of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtBearer {
    /// The name in messages and in the audit log: the subject and the issuer.
    pub name: String,
    /// The tenant; `None` for all.
    pub tenant: Option<String>,
    /// The module of the tenant.
    pub module: String,
    pub leave: Permissions,
    /// A digest that stays the same from one token of the bearer to the next.
    pub key: String,
    /// The time at which the token expires, in unix seconds.
    pub expires_at: Option<i64>,
}

/// Reads the bearer from verified claims.
pub fn bearer_of(claims: &Value, rules: &ClaimRules) -> Result<JwtBearer, JwtError> {
    let tenant = match text(claims, &rules.tenant)? {
        None => {
            return Err(JwtError::claim(
                &rules.tenant,
                "is missing: it must name the tenant",
            ));
        }
        Some(ALL_TENANTS) if rules.all_tenants => None,
        Some(ALL_TENANTS) => {
            return Err(JwtError::claim(
                &rules.tenant,
                "names all tenants, which the settings do not allow (all_tenants)",
            ));
        }
        Some(tenant) if is_tenant_name(tenant) => Some(tenant.to_owned()),
        Some(_) => {
            return Err(JwtError::claim(
                &rules.tenant,
                "must be 1 to 64 letters, digits or any of . _ - / : { }",
            ));
        }
    };
    let claim = |name: &str| claims.get(name).and_then(Value::as_str).unwrap_or_default();
    let (issuer, subject) = (claim("iss"), claim("sub"));
    let module = match text(claims, &rules.module)? {
        Some(module) if is_module(module) => module.to_owned(),
        Some(_) => {
            return Err(JwtError::claim(
                &rules.module,
                "must be 1 to 64 bytes without control characters",
            ));
        }
        None if is_module(subject) => subject.to_owned(),
        None => digest_of(subject.as_bytes()),
    };
    let scopes = list(claims, &rules.scope, true)?.unwrap_or_default();
    let kinds = list(claims, &rules.kinds, false)?.map(|kinds| kinds.into_iter().collect());
    let throttles = list(claims, &rules.throttles, false)?;
    let leave = Permissions {
        // An identity provider has scopes for other programs as well.
        scopes: scopes
            .iter()
            .filter_map(|word| TokenScope::of(word))
            .collect(),
        kinds: kinds.or_else(|| rules.default_kinds.clone()),
        throttles: throttles.or_else(|| rules.default_throttles.clone()),
    };
    let key = [
        issuer,
        tenant.as_deref().unwrap_or(ALL_TENANTS),
        &module,
        subject,
    ]
    .join("\u{1f}");
    let shown: String = subject
        .chars()
        .filter(|c| !c.is_control())
        .take(SUBJECT_CHARS_MAX)
        .collect();
    Ok(JwtBearer {
        name: format!("{shown} of {issuer}"),
        leave: match tenant {
            Some(_) => leave.within_tenant(),
            None => leave,
        },
        tenant,
        module,
        key: digest_of(key.as_bytes()),
        expires_at: claims
            .get("exp")
            .and_then(Value::as_f64)
            .map(|at| at as i64),
    })
}

fn is_module(text: &str) -> bool {
    (1..=MODULE_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

/// Returns the value at a dotted path. A claim with exactly this name takes precedence, because a
/// name may itself contain dots, such as a URL.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let object = value.as_object()?;
    let whole = object.get(path).filter(|found| !found.is_null());
    whole.or_else(|| {
        path.match_indices('.')
            .find_map(|(dot, _)| at(object.get(&path[..dot])?, &path[dot + 1..]))
    })
}

fn text<'a>(claims: &'a Value, path: &str) -> Result<Option<&'a str>, JwtError> {
    match at(claims, path) {
        None => Ok(None),
        Some(value) => match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(JwtError::claim(path, "must be a text")),
        },
    }
}

/// Returns a claim that is a list of texts; with `splits`, also one that is a text separated by
/// spaces.
fn list(claims: &Value, path: &str, splits: bool) -> Result<Option<Vec<String>>, JwtError> {
    let wrong = || JwtError::claim(path, "must be a list of texts");
    match at(claims, path) {
        None => Ok(None),
        Some(Value::String(text)) if splits => {
            Ok(Some(text.split_whitespace().map(str::to_owned).collect()))
        }
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect::<Result<_, _>>()
            .map(Some),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules() -> ClaimRules {
        ClaimRules {
            tenant: "tenant".into(),
            module: "module.id".into(),
            scope: "scope".into(),
            kinds: "kinds".into(),
            throttles: "throttles".into(),
            default_kinds: None,
            default_throttles: Some(vec!["mail".into()]),
            all_tenants: false,
        }
    }

    fn read(claims: Value, rules: &ClaimRules) -> Result<JwtBearer, String> {
        bearer_of(&claims, rules).map_err(|error| error.to_string())
    }

    #[test]
    fn tenant_module_and_permissions_are_where_the_settings_say() {
        let claims = json!({
            "iss": "https://id.example", "sub": "ada", "tenant": "acme", "module": {"id": "orders"},
            "scope": "openid notify:send jobs:enqueue", "kinds": ["http"],
        });
        let bearer = read(claims.clone(), &rules()).unwrap();
        assert_eq!(bearer.name, "ada of https://id.example");
        assert_eq!(
            (bearer.tenant.as_deref(), bearer.module.as_str()),
            (Some("acme"), "orders")
        );
        let scopes: Vec<&str> = bearer.leave.scopes.iter().map(|one| one.as_str()).collect();
        assert_eq!(scopes, ["jobs:enqueue", "notify:send"]);
        assert_eq!(
            bearer.leave.kinds,
            Some(BTreeSet::from(["http".to_owned()]))
        );
        assert_eq!(bearer.leave.throttles, Some(vec!["mail".to_owned()]));

        let elsewhere = ClaimRules {
            tenant: "https://acme.example/org.name".into(),
            module: "app.part.name".into(),
            scope: "permissions".into(),
            ..rules()
        };
        let claims = json!({
            "https://acme.example/org.name": "zeta", "app.part": {"name": "carts"}, "permissions": ["admin"],
        });
        let bearer = read(claims, &elsewhere).unwrap();
        assert_eq!(
            (bearer.tenant.as_deref(), bearer.module.as_str()),
            (Some("zeta"), "carts")
        );
        assert!(bearer.leave.has(TokenScope::OpsWrite) && !bearer.leave.is_admin());
    }

    #[test]
    fn without_a_module_the_subject_stands_for_it() {
        let with = |sub: &str| json!({"iss": "i", "sub": sub, "tenant": "acme"});
        assert_eq!(read(with("ada"), &rules()).unwrap().module, "ada");
        let long = read(with(&"x".repeat(200)), &rules()).unwrap();
        assert_eq!(long.module.len(), 16);
        assert!(long.leave.scopes.is_empty());
        assert_ne!(
            read(with("ada"), &rules()).unwrap().key,
            read(with("bob"), &rules()).unwrap().key
        );
    }

    #[test]
    fn a_tenant_is_named_and_all_tenants_only_where_the_settings_allow_it() {
        let with = |tenant: Value| json!({"iss": "i", "sub": "s", "tenant": tenant});
        for (tenant, error) in [
            (
                Value::Null,
                "the claim tenant of the token is missing: it must name the tenant",
            ),
            (json!(7), "the claim tenant of the token must be a text"),
            (json!(""), "the claim tenant of the token must be 1 to 64"),
            (
                json!("a b"),
                "the claim tenant of the token must be 1 to 64",
            ),
            (
                json!("x".repeat(65)),
                "the claim tenant of the token must be 1 to 64",
            ),
            (
                json!("*"),
                "the claim tenant of the token names all tenants",
            ),
        ] {
            let answer = read(with(tenant), &rules()).unwrap_err();
            assert!(answer.starts_with(error), "{answer}");
        }
        let open = ClaimRules {
            all_tenants: true,
            ..rules()
        };
        assert_eq!(read(with(json!("*")), &open).unwrap().tenant, None);
        for (claim, value) in [
            ("module", json!({"id": ""})),
            ("module", json!({"id": 5})),
            ("module", json!({"id": "a\nb"})),
            ("kinds", json!("http")),
            ("throttles", json!([1])),
            ("scope", json!(1)),
        ] {
            let mut claims = with(json!("acme"));
            claims[claim] = value;
            assert!(read(claims, &rules()).unwrap_err().contains(claim));
        }
    }
}
