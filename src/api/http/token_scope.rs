//! The scopes and permissions of a token.

use std::collections::BTreeSet;

use super::limits;
use crate::input::patterns::allows;
use TokenScope::{
    ChannelsPublish, ChannelsSubscribe, JobsEnqueue, JobsRead, JobsWork, MetricsRead,
    NotifyCritical, NotifyRead, NotifySend, OpsRead, OpsWrite, ThrottlesAcquire,
};

/// The tenant of a token that is bound to none: it sees and changes what all tenants have.
pub const ALL_TENANTS: &str = "*";

/// A permission of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenScope {
    /// Permission to enqueue jobs other than messages.
    JobsEnqueue,
    /// Permission to read the jobs of the token's tenant, or of all, with their arguments.
    JobsRead,
    /// Permission to claim jobs and to end them.
    JobsWork,
    /// Permission to send messages.
    NotifySend,
    /// Permission to send messages that are critical, in addition to the one to send.
    NotifyCritical,
    /// Permission to read messages of the token's tenant, or of all.
    NotifyRead,
    /// Permission to open connections of the gateway, and to read channels.
    ChannelsSubscribe,
    /// Permission to publish to channels.
    ChannelsPublish,
    /// Permission to take tokens of throttles.
    ThrottlesAcquire,
    /// Permission to read `/metrics`.
    MetricsRead,
    /// Permission to read throttles, lanes, pools, schedules, workers, journals and the live
    /// stream.
    OpsRead,
    /// Permission to make the changes of operators, except to the throttles of the API itself.
    OpsWrite,
    /// Permission to do everything; for a token bound to a tenant, everything within it.
    Admin,
}

impl TokenScope {
    /// All scopes with their names.
    pub const WORDS: [(&str, Self); 13] = [
        ("jobs:enqueue", JobsEnqueue),
        ("jobs:read", JobsRead),
        ("jobs:work", JobsWork),
        ("notify:send", NotifySend),
        ("notify:critical", NotifyCritical),
        ("notify:read", NotifyRead),
        ("channels:subscribe", ChannelsSubscribe),
        ("channels:publish", ChannelsPublish),
        ("throttles:acquire", ThrottlesAcquire),
        ("metrics:read", MetricsRead),
        ("ops:read", OpsRead),
        ("ops:write", OpsWrite),
        ("admin", Self::Admin),
    ];

    /// Returns the scope of a name.
    pub fn of(word: &str) -> Option<Self> {
        Self::WORDS
            .iter()
            .find(|(other, _)| *other == word)
            .map(|(_, scope)| *scope)
    }

    /// Returns the name of the scope.
    pub fn as_str(self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(_, other)| *other == self)
            .map_or("admin", |(word, _)| word)
    }
}

/// The permissions of one token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    pub scopes: BTreeSet<TokenScope>,
    /// The kinds that the token may enqueue and work on; the public ones if `None`.
    pub kinds: Option<BTreeSet<String>>,
    /// The throttles that the token may give work to and take tokens from, by name or by a prefix
    /// followed by `*`; all of them if `None`.
    pub throttles: Option<Vec<String>>,
}

impl Permissions {
    /// Returns unrestricted permissions.
    pub fn admin() -> Self {
        Self {
            scopes: BTreeSet::from([TokenScope::Admin]),
            ..Self::default()
        }
    }

    /// Returns the permissions within one tenant: `admin` becomes every other scope, because
    /// nothing of other tenants, of the installation or of the API itself belongs to it.
    #[must_use]
    pub fn within_tenant(mut self) -> Self {
        if self.scopes.remove(&TokenScope::Admin) {
            let all = TokenScope::WORDS.iter().map(|(_, scope)| *scope);
            self.scopes
                .extend(all.filter(|scope| *scope != TokenScope::Admin));
        }
        self
    }

    /// Returns true if everything is allowed.
    pub fn is_admin(&self) -> bool {
        self.scopes.contains(&TokenScope::Admin)
    }

    /// Returns true if the token has a scope.
    pub fn has(&self, scope: TokenScope) -> bool {
        self.is_admin() || self.scopes.contains(&scope)
    }

    /// Returns true if a throttle may be used. The throttles of the API itself are for
    /// administrators.
    pub fn may_use(&self, throttle: &str) -> bool {
        self.is_admin()
            || !limits::is_of_the_api(throttle)
                && self
                    .throttles
                    .as_ref()
                    .is_none_or(|patterns| allows(patterns, throttle))
    }

    /// Returns the throttles that may be used, for messages.
    pub fn throttles_reported(&self) -> String {
        match &self.throttles {
            Some(patterns) if !patterns.is_empty() => patterns.join(", "),
            Some(_) => "none".to_owned(),
            None => "all but those that begin with api: or limit:".to_owned(),
        }
    }

    /// Returns the scopes, for messages.
    pub fn scopes_reported(&self) -> String {
        let words: Vec<&str> = self.scopes.iter().map(|scope| scope.as_str()).collect();
        if words.is_empty() {
            "no scope".to_owned()
        } else {
            words.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_administrator_of_a_tenant_has_every_scope_but_that_one() {
        let bound = Permissions::admin().within_tenant();
        assert!(!bound.is_admin());
        for (word, scope) in TokenScope::WORDS {
            assert_eq!(bound.has(scope), word != "admin", "{word}");
        }
        let plain = Permissions::default().within_tenant();
        assert_eq!(plain, Permissions::default());
    }

    #[test]
    fn patterns_name_throttles_and_never_those_of_the_api() {
        let leave = |patterns: Option<&[&str]>| Permissions {
            throttles: patterns.map(|all| all.iter().map(|one| (*one).to_owned()).collect()),
            ..Permissions::default()
        };
        assert!(leave(None).may_use("mail") && !leave(None).may_use("api:write"));
        let some = leave(Some(&["mail", "shop:*"]));
        assert!(
            some.may_use("mail")
                && some.may_use("shop:eu")
                && !some.may_use("mailing")
                && !some.may_use("shop")
        );
        assert!(!leave(Some(&["*"])).may_use("api:read:acme") && !leave(Some(&[])).may_use("mail"));
        assert!(Permissions::admin().may_use("api:write"));
    }
}
