//! Servers that policies name: their settings, with credentials from the environment or from files.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::config::{self, DatabaseServer, PrometheusServer, Settings};
use crate::governor::Sources;
use crate::reindex::catalogue::{NamedSink, SecretLocation, SourceKind};
use crate::signals::server::{Access, Credentials, SecretSource};
use crate::signals::{Prometheus, SignalDatabase};

/// Builds sources with the Prometheus servers of the settings, for commands that read signals
/// without a governor.
pub fn prometheus_sources(settings: &Settings) -> anyhow::Result<Sources> {
    Ok(named(settings, Sources::new(usual(settings)?))?)
}

/// Returns the Prometheus of the setting `prometheus_url`.
pub(super) fn usual(settings: &Settings) -> Result<Prometheus, config::Error> {
    let place = "PROMETHEUS_URL (setting prometheus_url)";
    Prometheus::new(&settings.prometheus_url)
        .map_err(|error| config::Error::at(place, error.to_string()))
}

/// Adds the servers of the settings to the sources. A server that cannot be read or used stops the
/// start, and no message repeats a secret.
pub(super) fn named(settings: &Settings, mut sources: Sources) -> Result<Sources, config::Error> {
    let refused = |table: &str, name: &str, error: anyhow::Error| {
        config::Error::at(
            &format!("settings of [{table}.{name}]"),
            format!("{error:#}"),
        )
    };
    for (name, server) in &settings.prometheus {
        let built = access(server).and_then(|access| Ok(Prometheus::with(&access)?));
        let server = built.map_err(|error| refused("prometheus", name, error))?;
        sources = sources.with_server(name, server);
    }
    for (name, server) in &settings.postgres {
        let built = url(server).and_then(|url| Ok(SignalDatabase::new(name, &url)?));
        let database = built.map_err(|error| refused("postgres", name, error))?;
        sources = sources.with_database(name, database);
    }
    Ok(with_reindex(settings, sources))
}

/// Adds the search engines and MongoDB servers that jobs may name. One with a secret that this
/// process does not have is left out, because it may be none of its business.
fn with_reindex(settings: &Settings, mut sources: Sources) -> Sources {
    let catalogue = settings.catalogue();
    for (name, sink) in &catalogue.sinks {
        let NamedSink::Elastic {
            url,
            authorization,
            ca_file,
            ..
        } = sink
        else {
            continue;
        };
        let credentials = match authorization.as_ref().map(text) {
            None => Some(Credentials::None),
            Some(text) => text.map(Credentials::Whole),
        };
        let authorities = ca_file.as_ref().map(std::fs::read).transpose();
        let (Some(credentials), Ok(authorities)) = (credentials, authorities) else {
            tracing::info!(
                sink = name,
                "signals cannot use a sink whose files or variables are missing"
            );
            continue;
        };
        let access = Access {
            url: url.clone(),
            credentials,
            headers: Vec::new(),
            authorities,
        };
        sources = sources.with_cluster(name, access);
    }
    for (name, source) in &catalogue.sources {
        let url = source.database.as_ref().and_then(url_at);
        if let Some(url) = url.filter(|_| source.kind == SourceKind::Mongodb) {
            sources = sources.with_mongodb(name, &url);
        }
    }
    sources
}

/// Returns the location of a header's text; `None` if it is a variable that is not set, or empty.
fn text(location: &SecretLocation) -> Option<SecretSource> {
    match location {
        SecretLocation::Variable(variable) | SecretLocation::Bound(variable) => {
            let text = std::env::var(variable).ok()?;
            filled(&text).map(SecretSource::Text)
        }
        SecretLocation::File(path) => Some(SecretSource::File(PathBuf::from(path))),
    }
}

/// Returns the URL at a location; `None` if it is missing or empty.
fn url_at(location: &SecretLocation) -> Option<String> {
    match text(location)? {
        SecretSource::Text(url) => Some(url),
        SecretSource::File(path) => filled(&std::fs::read_to_string(path).ok()?),
    }
}

/// Returns a secret's text as jobs read it, without the line's end behind it.
fn filled(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_in_a_file_ends_before_the_end_of_its_line() {
        let path = std::env::temp_dir().join(format!("flyball-url-{}", std::process::id()));
        let location = SecretLocation::File(path.to_str().unwrap().to_owned());
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            url_at(&location)
        };
        let found = read("mongodb://host/?replicaSet=rs0\n");
        let empty = read(" \n");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.as_deref(), Some("mongodb://host/?replicaSet=rs0"));
        assert_eq!((empty, url_at(&location)), (None, None));
    }
}
