//! Servers that policies name: their settings, with credentials from the environment or from files.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::config::{DatabaseServer, PrometheusServer, Settings};
use crate::governor::Sources;
use crate::signals::server::{Access, Credentials, SecretSource};
use crate::signals::{Prometheus, SignalDatabase};

/// Builds sources with the Prometheus servers of the settings, for commands that read signals
/// without a governor.
pub fn prometheus_sources(settings: &Settings) -> anyhow::Result<Sources> {
    named(
        settings,
        Sources::new(Prometheus::new(&settings.prometheus_url)?),
    )
}

/// Adds the servers of the settings to the sources. A server that cannot be read or used stops the
/// start, and no message repeats a secret.
pub(super) fn named(settings: &Settings, mut sources: Sources) -> anyhow::Result<Sources> {
    for (name, server) in &settings.prometheus {
        let of = || format!("settings of [prometheus.{name}]");
        let access = access(server).with_context(of)?;
        sources = sources.with_server(name, Prometheus::with(&access).with_context(of)?);
    }
    for (name, server) in &settings.postgres {
        let of = || format!("settings of [postgres.{name}]");
        let url = url(server).with_context(of)?;
        sources = sources.with_database(name, SignalDatabase::new(name, &url).with_context(of)?);
    }
    Ok(sources)
}

fn access(server: &PrometheusServer) -> anyhow::Result<Access> {
    let credentials = match &server.user {
        None => secret(
            ("token_env", &server.token_env),
            ("token_file", &server.token_file),
        )?
        .map(Credentials::Bearer),
        Some(user) => secret(
            ("password_env", &server.password_env),
            ("password_file", &server.password_file),
        )?
        .map(|password| Credentials::Basic(user.clone(), password)),
    };
    let mut headers: Vec<(String, String)> = server.headers.clone().into_iter().collect();
    for (name, variable) in &server.headers_env {
        headers.push((name.clone(), variable_of("headers_env", variable)?));
    }
    let authorities = server
        .ca_file
        .as_ref()
        .map(|path| std::fs::read(path).context("ca_file cannot be read"))
        .transpose()?;
    Ok(Access {
        url: server.url.clone(),
        credentials: credentials.unwrap_or_default(),
        headers,
        authorities,
    })
}

/// Reads the secret that one of two keys leads to. A file is read again for each use, and here only
/// to check that it can be read.
fn secret(
    (env, variable): (&str, &Option<String>),
    (file, path): (&str, &Option<String>),
) -> anyhow::Result<Option<SecretSource>> {
    if let Some(variable) = variable {
        return Ok(Some(SecretSource::Text(variable_of(env, variable)?)));
    }
    let Some(path) = path else { return Ok(None) };
    read(file, path)?;
    Ok(Some(SecretSource::File(PathBuf::from(path))))
}

fn url(server: &DatabaseServer) -> anyhow::Result<String> {
    match (&server.url_env, &server.url_file) {
        (Some(variable), _) => variable_of("url_env", variable),
        (None, Some(path)) => read("url_file", path),
        (None, None) => anyhow::bail!("neither url_env nor url_file is set; use one of the two"),
    }
}

fn variable_of(key: &str, variable: &str) -> anyhow::Result<String> {
    let text = std::env::var(variable)
        .ok()
        .filter(|text| !text.trim().is_empty());
    Ok(text
        .with_context(|| format!("{key}: the environment variable {variable} is not set"))?
        .trim()
        .to_owned())
}

fn read(key: &str, path: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{key}: the file {path} cannot be read"))?;
    anyhow::ensure!(!text.trim().is_empty(), "{key}: the file {path} is empty");
    Ok(text.trim().to_owned())
}
