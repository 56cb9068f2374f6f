//! The parts of a process that need no server, built from its settings.
//!
//! Everything that is wrong with the settings themselves is found here: at a start before any
//! server is reached, and by the doctor, which lists all of it.

use super::faults::Faults;
#[cfg(feature = "cli")]
use super::faults::Unusable;
use super::governing::PreparedGovernor;
use super::http_api::{self, PreparedApi};
use super::kinds::{check_outbound, kinds_of, kinds_served};
use super::knobs::read_knobs;
use super::logging;
use super::messaging::{self, PreparedMessages};
use super::otel;
use super::roles::Roles;
use super::secret_keys::secret_keys;
use crate::config::{self, Settings};
use crate::jobs::{Kinds, SecretKeys};
use crate::postgres::connect_options;
use crate::throttle::KnobsFile;

/// The parts of a process that need no server.
pub(super) struct Prepared {
    /// The knobs files of the settings.
    pub(super) files: Vec<KnobsFile>,
    /// The keys of secret arguments.
    pub(super) secret_keys: SecretKeys,
    /// The governor's policies and sources.
    pub(super) governor: PreparedGovernor,
    /// The tokens and other parts of the API.
    pub(super) api: PreparedApi,
    /// The pools of accounts, and the rules for recipients.
    pub(super) messages: PreparedMessages,
}

/// Returns every reason for which no process with all roles starts with these settings. No server
/// is reached.
#[cfg(feature = "cli")]
pub(crate) async fn unusable(settings: &Settings) -> Vec<Unusable> {
    match prepare(settings, Roles::ALL, &Kinds::default()).await {
        Ok(_) => Vec::new(),
        Err(faults) => faults.0,
    }
}

/// Builds the parts, or returns everything that is wrong. `more` are the kinds of the program.
pub(super) async fn prepare(
    settings: &Settings,
    roles: Roles,
    more: &Kinds,
) -> Result<Prepared, Faults> {
    let mut faults = Faults::default();
    faults.take(logging::check(settings), "correct the filter");
    let files = faults.take(knobs_files(settings), "correct the knobs file");
    let knobs = files.as_deref().unwrap_or_default();
    let governor = PreparedGovernor::read(knobs, &mut faults);
    faults.take(
        direct_url(settings),
        "correct the URL, or leave it empty for none",
    );
    let tokens = http_api::tokens(settings, roles, &mut faults).await;
    faults.take(otel::check(), "correct the variable");
    let secret_keys = faults.take(
        secret_keys(),
        "correct the variable; flyball secret-key prints a key",
    );
    check_outbound(settings, &mut faults);
    faults.take(
        kinds_of(settings, more).and_then(|kinds| match roles.runner {
            true => kinds_served(settings, &kinds).map(drop),
            false => Ok(()),
        }),
        "correct the list of kinds",
    );
    let clients = messaging::clients(settings, &mut faults);
    let api = http_api::prepare(tokens, clients.as_ref(), settings, roles, &mut faults);
    let messages = messaging::prepare(settings, clients, &mut faults);
    let governor = governor.with_sources(settings, roles, knobs, &mut faults);

    let (Some(files), Some(secret_keys), Some(api), Some(messages)) =
        (files, secret_keys, api, messages)
    else {
        return Err(faults);
    };
    if !faults.0.is_empty() {
        return Err(faults);
    }
    Ok(Prepared {
        files,
        secret_keys,
        governor,
        api,
        messages,
    })
}

fn knobs_files(settings: &Settings) -> anyhow::Result<Vec<KnobsFile>> {
    read_knobs(settings.knobs_folder()?)
}

/// Refuses a direct URL that cannot be parsed. The error of the driver does not show the URL.
fn direct_url(settings: &Settings) -> Result<(), config::Error> {
    let url = &settings.database_direct_url;
    if url.is_empty() {
        return Ok(());
    }
    connect_options(url).map(drop).map_err(|error| {
        config::Error::at(
            "DATABASE_DIRECT_URL (setting database_direct_url)",
            format!(
                "must be a URL like postgres://user@host/database, or empty for none ({error})"
            ),
        )
    })
}
