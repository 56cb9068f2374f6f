//! The throttles that admit the messages and the connections of tenants: their names and patterns.
//!
//! Each tenant has a throttle `notify:<tenant>`, whose keys are the tenant's modules, and a
//! throttle `notify-critical:<tenant>`, which limits messages that do not wait for the first. Both
//! are made on first use from the patterns `notify:*` and `notify-critical:*`; likewise `ws:<tenant>`
//! for the messages of its channels, and `ws-connections:<tenant>` for its open connections.

use std::collections::BTreeMap;

use super::Name;

/// The prefix of the names of throttles that admit messages.
const ADMISSION: &str = "notify:";

/// The prefix of the names of throttles that limit critical messages.
const CRITICAL: &str = "notify-critical:";

/// The prefix of the names of throttles that limit the messages of a tenant's channels.
const CHANNELS: &str = "ws:";

/// The prefix of the names of throttles that limit the connections of a tenant.
const CONNECTIONS: &str = "ws-connections:";

/// The source of the patterns' knobs.
pub const SETTINGS: &str = "settings";

/// Returns the throttle that admits the messages of a tenant; `None` if its name is too long or
/// empty.
pub fn throttle_of(tenant: &str) -> Option<Name> {
    named(ADMISSION, tenant)
}

/// Returns the throttle that limits the critical messages of a tenant.
pub fn critical_throttle_of(tenant: &str) -> Option<Name> {
    named(CRITICAL, tenant)
}

/// Returns the throttle that limits the messages of a tenant's channels.
pub fn channels_throttle_of(tenant: &str) -> Option<Name> {
    named(CHANNELS, tenant)
}

/// Returns the throttle that limits the connections of a tenant.
pub fn connections_throttle_of(tenant: &str) -> Option<Name> {
    named(CONNECTIONS, tenant)
}

fn named(beginning: &str, tenant: &str) -> Option<Name> {
    Name::new(format!("{beginning}{tenant}"))
        .ok()
        .filter(|_| !tenant.is_empty())
}

/// Returns the names of what a throttle grants and of what its keys are, for sentences.
pub fn units_of(throttle: &str) -> (&'static str, &'static str) {
    if throttle.starts_with(CONNECTIONS) {
        return ("connections", "key");
    }
    match is_of_admission(throttle) {
        true => ("messages", "module"),
        false => ("tokens", "key"),
    }
}

/// Returns true if messages wait for admission in the lanes of this throttle.
pub fn is_admission(throttle: &str) -> bool {
    throttle.starts_with(ADMISSION)
}

/// Returns true for a throttle of this module. No job is enqueued into it, and its number is not
/// limited: there are as many as tenants, which an operator registers.
pub fn is_of_admission(throttle: &str) -> bool {
    counts_messages(throttle) || throttle.starts_with(CONNECTIONS)
}

/// Returns true for a throttle that counts messages and not what runs: nobody reports the end of
/// what it grants, so a limit of concurrency would limit nothing.
pub fn counts_messages(throttle: &str) -> bool {
    let beginnings = [ADMISSION, CRITICAL, CHANNELS];
    beginnings.iter().any(|one| throttle.starts_with(one))
}

/// The tenant of a throttle that admits messages.
pub fn tenant_of(throttle: &str) -> Option<&str> {
    throttle.strip_prefix(ADMISSION)
}

/// The limits of a tenant that the settings give; the knobs of its throttles may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// Messages of a tenant within any minute.
    pub per_tenant: u32,
    /// Messages of one of its modules within any minute.
    pub per_module: u32,
    /// Critical messages of a tenant within any minute.
    pub critical_per_minute: u32,
    /// Messages of a tenant's channels within any second.
    pub channels_per_second: u32,
    /// Open connections of a tenant.
    pub connections: u32,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            per_tenant: 100,
            per_module: 50,
            critical_per_minute: 1000,
            channels_per_second: 200,
            connections: 1000,
        }
    }
}

impl TenantLimits {
    /// Returns the patterns of the throttles, each with its knobs.
    pub fn patterns(&self) -> Vec<(Name, BTreeMap<String, String>)> {
        let pattern = |beginning: &str, texts: &[(&str, String)]| {
            let mut knobs: BTreeMap<String, String> =
                BTreeMap::from([("rps".to_owned(), "-1".to_owned())]);
            for (knob, text) in texts {
                knobs.insert((*knob).to_owned(), text.clone());
            }
            let name = Name::or_pattern(format!("{beginning}*")).ok()?;
            Some((name, knobs))
        };
        let admission = [
            ("windows", format!("{}/60", self.per_tenant)),
            ("key_windows", format!("{}/60", self.per_module)),
        ];
        let critical = [("windows", format!("{}/60", self.critical_per_minute))];
        let channels = [("windows", format!("{}/1", self.channels_per_second))];
        let connections = [("concurrency", self.connections.to_string())];
        [
            (ADMISSION, &admission[..]),
            (CRITICAL, &critical[..]),
            (CHANNELS, &channels[..]),
            (CONNECTIONS, &connections[..]),
        ]
        .into_iter()
        .filter_map(|(beginning, texts)| pattern(beginning, texts))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_throttles_and_nobody_else_has() {
        let name = |name: Option<Name>| name.map(|name| name.to_string());
        assert_eq!(name(throttle_of("acme")).as_deref(), Some("notify:acme"));
        assert_eq!(
            name(critical_throttle_of("a:b")).as_deref(),
            Some("notify-critical:a:b")
        );
        assert_eq!((throttle_of(""), throttle_of("a b")), (None, None));
        assert_eq!(tenant_of("notify:a:b"), Some("a:b"));
        let kinds = ["notify:acme", "notify-critical:acme", "notify", "mail"]
            .map(|name| (is_admission(name), is_of_admission(name)));
        assert_eq!(
            kinds,
            [(true, true), (false, true), (false, false), (false, false)]
        );
    }

    #[test]
    fn the_patterns_hold_the_limits_of_a_minute() {
        let patterns = TenantLimits::default().patterns();
        let told: Vec<String> = patterns
            .iter()
            .map(|(name, knobs)| format!("{name} {knobs:?}"))
            .collect();
        assert_eq!(
            told,
            [
                r#"notify:* {"key_windows": "50/60", "rps": "-1", "windows": "100/60"}"#,
                r#"notify-critical:* {"rps": "-1", "windows": "1000/60"}"#,
                r#"ws:* {"rps": "-1", "windows": "200/1"}"#,
                r#"ws-connections:* {"concurrency": "1000", "rps": "-1"}"#,
            ]
        );
        let (admission, _) = &patterns[0];
        assert!(admission.fits(&throttle_of("acme").unwrap()));
        assert!(!admission.fits(&critical_throttle_of("acme").unwrap()));
    }
}
