//! The settings of a pool that all workers must share. Pure.
//!
//! Credentials and headers are left out, so that a digest tells nothing about them.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::outbound::signature::digest_of;
use crate::providers::{Account, Limited, Pool};

/// Returns the settings of a pool, by field, each as a digest.
pub fn shared_settings(pool: &Pool) -> BTreeMap<String, String> {
    let Pool {
        name: _,
        provider,
        accounts,
        shedding,
        headroom,
        breaker_failures,
        breaker_window,
        breaker_cooldown,
        alert_url,
        alert_secret,
        retry_ambiguous,
        valid_for,
        requeue_on_recovery,
        timeout,
    } = pool;
    let own: [(&str, &dyn Debug); 12] = [
        ("provider", provider),
        ("shedding", shedding),
        ("headroom", headroom),
        ("breaker_failures", breaker_failures),
        ("breaker_window_s", breaker_window),
        ("breaker_cooldown_s", breaker_cooldown),
        ("alert_url", alert_url),
        ("alert_secret", alert_secret),
        ("on_ambiguous", retry_ambiguous),
        ("valid_for_s", valid_for),
        ("requeue_on_recovery", requeue_on_recovery),
        ("timeout_s", timeout),
    ];
    let mut fields: BTreeMap<String, String> = own
        .into_iter()
        .map(|(field, value)| (field.to_owned(), digest_of(value)))
        .collect();
    let names: Vec<&str> = accounts
        .iter()
        .map(|one| one.account.name.as_str())
        .collect();
    fields.insert("accounts".to_owned(), digest_of(&names));
    fields.extend(accounts.iter().flat_map(of_account));
    fields
}

fn of_account(one: &Limited) -> Vec<(String, String)> {
    let Limited { account, rps } = one;
    let Account {
        name,
        base_url,
        headers: _,
        options,
        secrets: _,
    } = account;
    let names: Vec<&String> = options.keys().collect();
    let own: [(&str, &dyn Debug); 3] = [("rps", rps), ("base_url", base_url), ("settings", &names)];
    let options = options.iter().map(|(option, value)| {
        let value: &dyn Debug = value;
        (option.as_str(), value)
    });
    own.into_iter()
        .chain(options)
        .map(|(field, value)| (format!("{field} of account {name}"), digest_of(value)))
        .collect()
}
