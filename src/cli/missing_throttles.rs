//! The answers of commands about throttles that do not exist.

use std::collections::BTreeSet;

use super::connect;
use super::exit::CliError;
use super::output::tell;
use crate::config::Settings;
use crate::throttle::{
    Error, Makers, Name, Store, made_from, nearly_called, no_throttle, no_throttle_of_job,
};

/// Most throttles of one command that are told.
const TOLD_MAX: usize = 20;

/// Tells on standard error for which of these throttles jobs wait because they do not exist: the
/// name may be misspelt. Without Redis nobody knows, and the jobs are in Postgres all the same.
pub(super) async fn tell<'a>(settings: &Settings, throttles: impl Iterator<Item = &'a str>) {
    let named: BTreeSet<&str> = throttles.collect();
    let Ok(store) = connect::redis(settings).await else {
        return;
    };
    let Ok(exist) = store.names().await else {
        return;
    };
    let pools = settings.pools_without_credentials();
    let is_pool = |name: &str| pools.get(name).is_some();
    for told in missing(&named, &exist, settings.throttles_created_max, is_pool) {
        tell!("flyball: {told}");
    }
}

/// Returns the error of a command; that of a throttle that does not exist with the pattern that
/// makes it, or with the throttle that may have been meant.
pub(super) async fn explained(
    error: anyhow::Error,
    store: &dyn Store,
    made_max: usize,
) -> anyhow::Error {
    let Some(Error::Unknown(name)) = error.downcast_ref::<Error>() else {
        return error;
    };
    let name = name.as_str();
    let names = store.names().await.unwrap_or_default();
    let makers = Makers::of(&names, made_max);
    let pattern = Name::new(name)
        .ok()
        .and_then(|name| makers.pattern_of(&name).cloned());
    if let Some(pattern) = pattern {
        let told = no_throttle(name, &made_from(pattern.as_str()));
        return CliError::NotFound(told).into();
    }
    match nearly_called(name, &names) {
        Some(other) => CliError::NotFound(format!("{error}; there is also {other}")).into(),
        None => error,
    }
}

/// Describes those of `named` that neither exist nor come by themselves: with the first server, as
/// all do before it has started, as the throttle of a pool, or from a pattern.
fn missing(
    named: &BTreeSet<&str>,
    exist: &[Name],
    made_max: usize,
    is_pool: impl Fn(&str) -> bool,
) -> Vec<String> {
    if exist.is_empty() {
        return Vec::new();
    }
    let known: BTreeSet<&str> = exist.iter().map(Name::as_str).collect();
    let makers = Makers::of(exist, made_max);
    let comes = |name: &str| {
        let made = Name::new(name).is_ok_and(|name| makers.pattern_of(&name).is_some());
        name == Name::DEFAULT || made || is_pool(name)
    };
    let missing = named.iter().copied();
    missing
        .filter(|name| !known.contains(name) && !comes(name))
        .take(TOLD_MAX)
        .map(|name| {
            let other = nearly_called(name, exist)
                .map_or_else(String::new, |other| format!("; there is also {other}"));
            let how = format!(
                ", so its jobs wait{other}; create it with: flyball throttle set {name} rps=10"
            );
            no_throttle_of_job(name, &how)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_is_missing_if_nothing_makes_it() {
        let exist: Vec<Name> = ["default", "hooks", "gcal:*"]
            .map(|name| Name::or_pattern(name).unwrap())
            .into();
        let named = BTreeSet::from(["default", "gcal:42", "hoks", "hooks", "mail", "parked"]);
        let told = |named: &[&str], made_max| {
            let named = named.iter().copied().collect();
            missing(&named, &exist, made_max, |name| name == "mail")
        };
        assert_eq!(
            missing(&named, &exist, 10, |name| name == "mail"),
            [
                "there is no throttle hoks, so its jobs wait; there is also hooks; create it with: flyball throttle set hoks rps=10",
                "there is no throttle parked, so its jobs wait; create it with: flyball throttle set parked rps=10",
            ]
        );
        assert!(missing(&named, &[], 10, |_| false).is_empty());
        assert_eq!(
            told(&["gcal:42"], 3),
            [
                "there is no throttle gcal:42, so its jobs wait; create it with: flyball throttle set gcal:42 rps=10"
            ],
            "no more are made"
        );
        let none = &told(&["hooks:lane"], 10)[0];
        assert!(
            none.contains("none can have this name") && !none.contains("throttle set"),
            "{none}"
        );
    }
}
