//! The caller of a request.

use std::sync::Arc;

use aws_lc_rs::hmac;

use super::limits::DEFAULT_TENANT;
use super::token_scope::Permissions;
use crate::input::patterns::allows;
use crate::jobs::TokenIdentity;
use crate::throttle::admission::is_of_admission;
use crate::throttle::tenant::{is_made_by, tenant_of};

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The proof of the caller's identity.
    pub proof: AuthMethod,
    /// The name of the token in the settings, or the subject and issuer of a JSON Web Token; `None`
    /// where no token is set.
    pub token: Option<Arc<str>>,
    /// The tenant whose data the caller sees and changes; `None` for operators, who see all.
    pub tenant: Option<Arc<str>>,
    /// The module in whose name the caller acts: that of its credential, else the token's name.
    pub module: Arc<str>,
    /// The owner of the unique keys that the caller takes, and of its jobs; empty for operators.
    pub owner: Arc<str>,
    /// The scopes of the caller.
    pub leave: Arc<Permissions>,
    /// A digest of the token, or of the bearer of a JSON Web Token; `local` where no token is set.
    pub key: Arc<str>,
    /// The time at which the credential expires, in unix seconds; `None` if it does not.
    pub expires_at: Option<i64>,
    /// The digest of the browser's session that proves the caller, which may end before it expires.
    pub session: Option<Arc<str>>,
}

/// The proof of a caller's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// The token in the header: a program.
    Token,
    /// A token in the header that an identity provider has signed: a program.
    Jwt,
    /// The session cookie of a browser that has logged in.
    Session,
    /// No proof: no token is set, and only loopback is served.
    Loopback,
}

impl Caller {
    /// Returns the name for the audit log where the request does not name its author.
    pub fn who(&self) -> &'static str {
        match self.proof {
            AuthMethod::Token | AuthMethod::Jwt => "token",
            AuthMethod::Session => "dashboard",
            AuthMethod::Loopback => "http",
        }
    }

    /// Returns the name of the token, for messages.
    pub fn token_name(&self) -> &str {
        self.token.as_deref().unwrap_or("none")
    }

    /// Returns true if the caller may give a throttle work: one that its token may use, unless it
    /// belongs to another tenant.
    pub fn may_enqueue_to(&self, throttle: &str) -> bool {
        self.leave.may_use(throttle) && !self.is_foreign(throttle)
    }

    /// Returns true if the caller may take tokens from a throttle, return them and report how work
    /// ended. A caller that is bound to a tenant may use the throttles that the tenant makes itself.
    /// Of the shared ones it may use those that the settings of its token name, because others lack
    /// the tokens that it takes there. It may not return tokens to the operators' limit on its
    /// messages: it could send that many more.
    pub fn may_take_from(&self, throttle: &str) -> bool {
        let Some(tenant) = &self.tenant else {
            return self.leave.may_use(throttle);
        };
        let is_named = || {
            self.leave
                .throttles
                .as_ref()
                .is_some_and(|patterns| allows(patterns, throttle))
        };
        match tenant_of(throttle) {
            Some(_) => is_made_by(throttle, tenant),
            None => !is_of_admission(throttle) && self.leave.may_use(throttle) && is_named(),
        }
    }

    /// Returns true if a throttle belongs to the caller's tenant.
    pub fn owns(&self, throttle: &str) -> bool {
        self.tenant.is_some() && tenant_of(throttle) == self.tenant.as_deref()
    }

    /// Returns true if a throttle belongs to another tenant than the caller's; for operators none
    /// does.
    pub fn is_foreign(&self, throttle: &str) -> bool {
        self.tenant.is_some() && tenant_of(throttle).is_some() && !self.owns(throttle)
    }

    /// Returns true if the caller sees everything about a throttle: operators do, and the tenant
    /// that owns it.
    pub fn sees(&self, throttle: &str) -> bool {
        self.tenant.is_none() || self.owns(throttle)
    }

    /// Returns the tenant whose throttles of the API limit the caller.
    pub fn limits_tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or(DEFAULT_TENANT)
    }

    /// Returns the token and the tenant that the audit log stores beside the author's name from the
    /// request.
    pub fn identity(&self) -> TokenIdentity {
        TokenIdentity {
            token: self.token.as_deref().map(str::to_owned),
            tenant: self.tenant.as_deref().map(str::to_owned),
        }
    }
}

/// Returns a digest that names a value which must not be shown itself.
pub fn digest_of(bytes: &[u8]) -> String {
    let purpose = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, b"flyball api key 1"),
        bytes,
    );
    purpose
        .as_ref()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
