//! The parts of a process that need no server, built from its settings.
//!
//! Everything that is wrong with the settings themselves is found here: at a start before any
//! server is reached, and by the doctor, which lists all of it.

#[cfg(feature = "api")]
use std::sync::Arc;

#[cfg(feature = "api")]
use super::api_tokens;
use super::faults::Faults;
#[cfg(feature = "cli")]
use super::faults::Unusable;
use super::governing::PreparedGovernor;
use super::kinds::{check_outbound, kinds_of, kinds_served};
use super::knobs::read_knobs;
#[cfg(feature = "api")]
use super::listeners::{LISTEN, METRICS_LISTEN};
use super::logging;
use super::messaging::{self, PreparedMessages};
use super::otel;
use super::roles::Roles;
use super::secret_keys::secret_keys;
#[cfg(feature = "api")]
use super::servers;
#[cfg(feature = "api")]
use crate::api;
use crate::config::{self, Settings};
use crate::jobs::{Kinds, SecretKeys};
use crate::postgres::connect_options;
#[cfg(feature = "api")]
use crate::signals::Prometheus;
use crate::throttle::KnobsFile;

/// The parts of a process that need no server.
pub(super) struct Prepared {
    /// The knobs files of the settings.
    pub(super) files: Vec<KnobsFile>,
    /// The keys of secret arguments.
    pub(super) secret_keys: SecretKeys,
    /// The governor's policies and sources.
    pub(super) governor: PreparedGovernor,
    /// The tokens of the API.
    #[cfg(feature = "api")]
    pub(super) tokens: Vec<api::AuthToken>,
    /// The tenants of these tokens, and the one of callers without a tenant.
    #[cfg(feature = "api")]
    pub(super) tenants: Vec<String>,
    /// The check of JSON Web Tokens, if the settings have one.
    #[cfg(feature = "api")]
    pub(super) jwt: Option<Arc<api::JwtAuth>>,
    /// The Prometheus that has the metrics of the throttles.
    #[cfg(feature = "api")]
    pub(super) prometheus: Arc<Prometheus>,
    /// The pools of accounts, and the rules for recipients.
    pub(super) messages: PreparedMessages,
}

#[cfg(feature = "api")]
impl Prepared {
    /// Returns true if a caller must prove who it is.
    pub(super) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty() || self.jwt.is_some()
    }
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
    #[cfg(feature = "api")]
    let found = faults.take(settings.tokens(), "correct the place of the token's secret");
    #[cfg(feature = "api")]
    {
        let has_tokens =
            settings.jwt.is_some() || found.as_ref().is_none_or(|found| !found.is_empty());
        let metrics = Some(settings.metrics_listen.as_str()).filter(|address| !address.is_empty());
        let listeners = [
            (LISTEN, roles.api.then_some(settings.listen.as_str())),
            (METRICS_LISTEN, metrics),
        ];
        for (variable, address) in listeners {
            if let Some(address) = address {
                let addresses = api::addresses_of(variable, address, has_tokens).await;
                faults.take(addresses, "set a token, or correct the address");
            }
        }
    }
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
    // The clients are those of the drivers and of the keys of JSON Web Tokens.
    #[cfg(feature = "api")]
    let jwt = clients
        .as_ref()
        .filter(|_| roles.api || !settings.metrics_listen.is_empty())
        .and_then(|clients| {
            let jwt = api_tokens::jwt(settings, clients);
            faults.take(jwt, "correct the place of the secret of [jwt]")
        })
        .flatten();
    let messages = messaging::prepare(settings, clients, &mut faults);
    let governor = governor.with_sources(settings, roles, knobs, &mut faults);

    let (Some(files), Some(secret_keys), Some(messages)) = (files, secret_keys, messages) else {
        return Err(faults);
    };
    // A fault of it was noted with the sources.
    #[cfg(feature = "api")]
    let (Some(found), Ok(prometheus)) = (found, servers::usual(settings)) else {
        return Err(faults);
    };
    if !faults.0.is_empty() {
        return Err(faults);
    }
    Ok(Prepared {
        files,
        secret_keys,
        governor,
        #[cfg(feature = "api")]
        tokens: found.iter().map(api_tokens::token).collect(),
        #[cfg(feature = "api")]
        tenants: api_tokens::tenants(&found),
        #[cfg(feature = "api")]
        jwt,
        #[cfg(feature = "api")]
        prometheus: Arc::new(prometheus),
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
