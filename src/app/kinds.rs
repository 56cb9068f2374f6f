//! The kinds of the process: those that come with Flyball, their tuning by the settings, and the
//! choice of those that the process serves.

#[cfg(feature = "http")]
use std::ffi::OsString;
#[cfg(feature = "notifications")]
use std::sync::Arc;
use std::time::Duration;

use super::faults::Faults;
#[cfg(feature = "notifications")]
use crate::admission::{BATCH, ExpandBatch};
use crate::config::{self, KindSettings, Settings};
use crate::jobs::{Kinds, Queue, Tuning};
#[cfg(feature = "notifications")]
use crate::notify::{NotificationHandler, recipient::KIND};
#[cfg(feature = "http")]
use crate::outbound::{self, Guard, HttpHandler, Secrets};
#[cfg(feature = "reindex")]
use crate::reindex::{self, ReindexDatabase, ReindexHandler};

/// Builds the kinds that come with Flyball. Without a queue they can check arguments, but no
/// reindex can read the queue's own database.
#[cfg(feature = "http")]
pub fn built_in_kinds(settings: &Settings, queue: Option<&Queue>) -> anyhow::Result<Kinds> {
    // The worker process decides which addresses may be reached, not the process that only checks
    // arguments.
    let guard = if queue.is_some() {
        guard(settings)?
    } else {
        Guard::open()
    };
    // A process that only checks arguments needs no secrets, and may have no right to read them.
    let secrets = match queue {
        Some(_) => webhook_secrets()?,
        None => Secrets::default(),
    };
    let mut kinds = Kinds::default();
    kinds.register(
        "http",
        HttpHandler::new(outbound::HttpConfig {
            guard: guard.clone(),
            secrets,
            lookup: None,
        })?,
    );
    #[cfg(feature = "reindex")]
    kinds.register(
        "reindex",
        ReindexHandler::new(
            reindex::BackfillConfig {
                guard,
                catalogue: settings.catalogue(),
            },
            queue.map(|queue| ReindexDatabase::of(&queue.pool)),
        )?,
    );
    #[cfg(feature = "notifications")]
    kinds.register(
        KIND,
        NotificationHandler::new(Arc::new(settings.pools_without_credentials()), None),
    );
    Ok(kinds)
}

/// Builds no kinds: this build contains none.
#[cfg(not(feature = "http"))]
pub fn built_in_kinds(_: &Settings, _: Option<&Queue>) -> anyhow::Result<Kinds> {
    Ok(Kinds::default())
}

/// Builds the guard on the addresses that jobs may reach besides the public internet.
#[cfg(feature = "http")]
pub(super) fn guard(settings: &Settings) -> anyhow::Result<Guard> {
    if settings.allow_private_urls {
        return Ok(Guard::open());
    }
    let place = "FLYBALL_ALLOW_URLS (setting allow_urls)";
    Guard::allowing(&settings.allow_urls)
        .map_err(|error| config::Error::at(place, error.to_string()).into())
}

/// Notes faults of the secrets that sign requests, and of the list of addresses.
#[cfg(feature = "http")]
pub(super) fn check_outbound(settings: &Settings, faults: &mut Faults) {
    faults.take(webhook_secrets(), "correct the variable of the secret");
    faults.take(guard(settings), "correct the list");
}

/// Notes nothing: this build makes no requests.
#[cfg(not(feature = "http"))]
pub(super) fn check_outbound(_: &Settings, _: &mut Faults) {}

/// Reads the secrets that sign requests; without the variables there are none.
#[cfg(feature = "http")]
pub(super) fn webhook_secrets() -> anyhow::Result<Secrets> {
    let variables = texts(std::env::vars_os());
    Secrets::from_variables(variables, |path| std::fs::read_to_string(path))
        .map_err(|error| config::Error::at(&error.variable, error.message).into())
}

/// Returns variables as texts. A value that is not UTF-8 stays, with marks in it: left out, it
/// would not bind the secret that it is about.
#[cfg(feature = "http")]
fn texts(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (String, String)> {
    variables.into_iter().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.to_string_lossy().into_owned()))
    })
}

/// Tunes the kinds as the settings say.
pub(super) fn tune(kinds: &mut Kinds, settings: &Settings) {
    for (kind, set) in &settings.kinds {
        if !kinds.tune(kind, &tuning(set)) {
            tracing::info!(
                kind,
                "settings name a kind that this process does not have; they hold for workers elsewhere"
            );
        }
    }
}

pub(super) fn tuning(set: &KindSettings) -> Tuning {
    // The settings have been validated, so every number of seconds is in range.
    let seconds = |seconds: Option<f64>| {
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    };
    Tuning {
        timeout: seconds(set.timeout_s),
        max_attempts: set.max_attempts,
        public: set.public,
        retry_base: seconds(set.retry_base_s),
        retry_factor: set.retry_factor,
        retry_max: seconds(set.retry_max_s),
    }
}

/// Returns the kinds that a process of these settings has; `more` are those of the program. They
/// check arguments and run nothing.
pub(super) fn kinds_of(settings: &Settings, more: &Kinds) -> anyhow::Result<Kinds> {
    let mut kinds = built_in_kinds(settings, None)?;
    #[cfg(feature = "notifications")]
    kinds.register(BATCH, ExpandBatch::new(None));
    kinds.extend(more.clone());
    Ok(kinds)
}

/// Returns the kinds that the process was told to serve. Refuses a pattern that stands for none of
/// its kinds.
pub(super) fn kinds_served(settings: &Settings, kinds: &Kinds) -> anyhow::Result<Kinds> {
    for pattern in &settings.serve_kinds {
        let found = kinds.only(std::slice::from_ref(pattern));
        if found.names().is_empty() {
            let message = format!(
                "must be kinds of this process ({}), or their beginnings with a * behind, not {pattern:?}",
                kinds.names().join(", ")
            );
            let place = "FLYBALL_SERVE_KINDS (setting serve_kinds)";
            return Err(config::Error::at(place, message).into());
        }
    }
    Ok(kinds.only(&settings.serve_kinds))
}

#[cfg(test)]
mod tests {
    #[cfg(all(unix, feature = "http"))]
    #[test]
    fn a_list_of_origins_that_is_no_text_leaves_no_secret_unbound() {
        use std::os::unix::ffi::OsStringExt;

        use super::*;

        let variables = [
            (
                "FLYBALL_WEBHOOK_SECRET_A",
                &b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"[..],
            ),
            (
                "FLYBALL_WEBHOOK_SECRET_A_ORIGINS",
                b"https://hooks.example.com\xff",
            ),
        ];
        let variables = variables
            .map(|(name, value)| (OsString::from(name), OsString::from_vec(value.to_vec())));

        let refused =
            Secrets::from_variables(texts(variables), |path| std::fs::read_to_string(path))
                .unwrap_err();

        assert_eq!(refused.variable, "FLYBALL_WEBHOOK_SECRET_A_ORIGINS");
    }
}
