//! The pause of a tenant's messages, and the side that made it. Pure; the time is an argument.

use crate::throttle::Knobs;

/// The time after which a client should ask again while messages are paused, in seconds.
pub const PAUSED_RETRY_S: u64 = 60;

/// The side that paused the messages of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedBy {
    /// The operators, also where they set the rate to 0.
    Operators,
    /// A token of the tenant.
    Tenant,
}

impl PausedBy {
    /// Returns the side that paused a throttle of a tenant; `None` while it grants.
    pub fn of(tenant: &str, knobs: &Knobs, now_us: i64) -> Option<Self> {
        if !knobs.effective_rps(now_us).is_stopped() {
            return None;
        }
        let is_own = knobs.paused && is_author(tenant, &knobs.by);
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
            Self::Tenant => "paused by the tenant",
        }
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

    fn knobs(fields: &[(&str, &str)]) -> Knobs {
        let raw: BTreeMap<String, String> = fields
            .iter()
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect();
        Knobs::read(&raw).0
    }

    #[test]
    fn a_pause_is_the_tenants_only_if_one_of_its_tokens_made_it() {
        let own = tenant_author("acme", "ada");
        let own = own.as_str();
        type Fields<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Fields, Option<PausedBy>); 6] = [
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
