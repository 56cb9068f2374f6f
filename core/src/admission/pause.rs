//! The pauses of a tenant's messages, and the side that made them. Pure; the time is an argument.

use crate::throttle::restored::author;
use crate::throttle::{KeyState, Knobs};

/// The time after which a client should ask again while messages are paused, in seconds.
pub const PAUSED_RETRY_S: u64 = 60;

/// The side that paused the messages of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedBy {
    /// The operators, also where they set the rate to 0.
    Operators,
    /// The operators, who paused all jobs.
    OperatorsAll,
    /// A token of the tenant.
    Tenant,
}

impl PausedBy {
    /// Returns the side that paused a throttle of a tenant; `None` while it grants.
    pub fn of(tenant: &str, knobs: &Knobs, now_us: i64) -> Option<Self> {
        if !knobs.effective_rps(now_us).is_stopped() {
            return None;
        }
        let is_own = knobs.paused && is_author(tenant, author(&knobs.by, &knobs.why));
        Some(if is_own {
            Self::Tenant
        } else {
            Self::Operators
        })
    }

    /// Returns the side as the end of a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Operators => "paused by operators",
            Self::OperatorsAll => "paused by operators, as all jobs are",
            Self::Tenant => "paused by the tenant",
        }
    }
}

/// The pause of one module, which ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModulePause {
    /// The side that made it.
    pub by: PausedBy,
    /// The time that is left of it, in microseconds.
    pub left_us: i64,
}

impl ModulePause {
    /// Returns the pause of a module whose key is in this state; `None` while it grants.
    pub fn of(tenant: &str, key: &KeyState, now_us: i64) -> Option<Self> {
        let until_us = key.paused_until_ms?.saturating_mul(1000);
        let by = match is_author(tenant, &key.why) {
            true => PausedBy::Tenant,
            false => PausedBy::Operators,
        };
        let left_us = until_us.saturating_sub(now_us);
        (left_us > 0).then_some(Self { by, left_us })
    }
}

/// Returns the author of a change that a token of a tenant makes, with the author that the request
/// names; for the pause of a key its reason. The beginning is not the client's to choose, so it
/// tells whose change it was.
pub fn tenant_author(tenant: &str, by: &str) -> String {
    format!("{}{by}", beginning(tenant))
}

/// Returns true if [`tenant_author`] made this author or reason for the tenant.
pub fn is_author(tenant: &str, by: &str) -> bool {
    by.starts_with(&beginning(tenant))
}

fn beginning(tenant: &str) -> String {
    format!("tenant:{tenant} ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::throttle::restored::{AUTHOR, restored_because};

    fn knobs(fields: &[(&str, &str)]) -> Knobs {
        let raw: BTreeMap<String, String> = fields
            .iter()
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect();
        Knobs::read(&raw).0
    }

    #[test]
    fn a_module_is_paused_until_its_key_grants() {
        let key = |until_ms, why: &str| KeyState {
            paused_until_ms: until_ms,
            why: why.to_owned(),
            ..KeyState::default()
        };
        let now_us = 7_000_000;
        let pause = |by, left_us| Some(ModulePause { by, left_us });
        assert_eq!(ModulePause::of("acme", &key(None, ""), now_us), None);
        assert_eq!(ModulePause::of("acme", &key(Some(7000), ""), now_us), None);
        assert_eq!(
            ModulePause::of("acme", &key(Some(7500), "too loud"), now_us),
            pause(PausedBy::Operators, 500_000)
        );
        let own = tenant_author("acme", "a loop");
        assert_eq!(
            ModulePause::of("acme", &key(Some(8000), &own), now_us),
            pause(PausedBy::Tenant, 1_000_000)
        );
    }

    #[test]
    fn a_pause_is_the_tenants_only_if_one_of_its_tokens_made_it() {
        let own = tenant_author("acme", "ada");
        let own = own.as_str();
        let recorded = [("by", own), ("why", "a loop")];
        let recorded = recorded.map(|(field, text)| (field.to_owned(), text.to_owned()));
        let restored = restored_because("Redis was empty", &BTreeMap::from(recorded));
        type Fields<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Fields, Option<PausedBy>); 7] = [
            (
                &[
                    ("rps", "-1"),
                    ("paused", "1"),
                    ("by", AUTHOR),
                    ("why", restored.as_str()),
                ],
                Some(PausedBy::Tenant),
            ),
            (&[("rps", "-1"), ("by", own)], None),
            (
                &[("rps", "-1"), ("paused", "1"), ("by", own)],
                Some(PausedBy::Tenant),
            ),
            (
                &[("rps", "-1"), ("paused", "1"), ("by", "ada")],
                Some(PausedBy::Operators),
            ),
            (
                &[("rps", "-1"), ("paused", "1"), ("by", "tenant:acme2 ada")],
                Some(PausedBy::Operators),
            ),
            (&[("rps", "-1"), ("paused", "1")], Some(PausedBy::Operators)),
            // A tenant turns no rate.
            (&[("rps", "0"), ("by", own)], Some(PausedBy::Operators)),
        ];
        for (fields, paused_by) in cases {
            assert_eq!(
                PausedBy::of("acme", &knobs(fields), 0),
                paused_by,
                "{fields:?}"
            );
        }
    }
}
