//! The settings of sources and sinks that all workers must share. Pure.
//!
//! The locations of secrets are left out, because they may differ between machines.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::catalogue::{Catalogue, NamedSink, NamedSource};
use crate::jobs::serving::SharedSettings;
use crate::outbound::signature::digest_of;

/// Returns the settings of a catalogue, by source or sink, and by field.
pub fn shared_settings(catalogue: &Catalogue) -> SharedSettings {
    let sources = catalogue
        .sources
        .iter()
        .map(|(name, source)| (format!("source {name}"), of_source(source)));
    let sinks = catalogue
        .sinks
        .iter()
        .map(|(name, sink)| (format!("sink {name}"), of_sink(sink)));
    sources.chain(sinks).collect()
}

fn of_source(source: &NamedSource) -> BTreeMap<String, String> {
    let NamedSource {
        kind,
        collections,
        database: _,
        rights,
        tables,
        statements,
        key,
    } = source;
    fields(&[
        ("type", kind),
        ("collections", collections),
        ("role", &rights.role),
        ("statement_timeout_s", &rights.statement_timeout),
        ("tables", tables),
        ("statements", statements),
        ("key", key),
    ])
}

fn of_sink(sink: &NamedSink) -> BTreeMap<String, String> {
    match sink {
        NamedSink::Elastic {
            url,
            indexes,
            bulk_path,
            pipelines,
            aliases,
            authorization: _,
            ca_file: _,
        } => fields(&[
            ("type", &"elastic"),
            ("url", url),
            ("indexes", indexes),
            ("bulk_path", bulk_path),
            ("pipelines", pipelines),
            ("aliases", aliases),
        ]),
        NamedSink::Postgres {
            database: _,
            rights,
            tables,
        } => fields(&[
            ("type", &"postgres"),
            ("role", &rights.role),
            ("statement_timeout_s", &rights.statement_timeout),
            ("tables", tables),
        ]),
    }
}

fn fields(all: &[(&str, &dyn Debug)]) -> BTreeMap<String, String> {
    all.iter()
        .map(|(field, value)| ((*field).to_owned(), digest_of(*value)))
        .collect()
}
