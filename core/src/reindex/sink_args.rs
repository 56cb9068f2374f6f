//! The sink in the arguments of reindex jobs.

use serde_json::Value;

use super::arg_fields::{
    DATABASES, NO_URL, columns, missing, named, not_allowed, refuse, refuse_free, required,
    required_choice, table, text, variable, wrong,
};
use super::catalogue::{Catalogue, DatabaseRights, NamedSink, SecretLocation, USUAL_BULK_PATH};
use crate::input::Reader;
use crate::input::patterns::allows;

/// The destination of documents.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkArgs {
    /// An endpoint that speaks Elasticsearch's `_bulk`.
    Elastic(Elastic),
    /// A full-text table in Postgres: `id text`, `body jsonb`, `tsv tsvector`; created if absent.
    Postgres {
        /// The location of the database's URL; `None` for the queue's own database.
        database: Option<SecretLocation>,
        /// The role to write as, and the limit on each statement's time.
        rights: DatabaseRights,
        /// The table, as its schema (if named) and its name.
        table: Vec<String>,
        /// Fields of the document that are searched; `None` for all texts.
        text: Option<Vec<String>>,
        /// Postgres' text search configuration; default `english`.
        config: String,
        /// Column that is the document's id.
        id: String,
    },
}

/// An index behind `_bulk`, and options for writing documents to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Elastic {
    /// Base address, without a trailing slash.
    pub url: String,
    pub index: String,
    /// The path of a bulk request; `{index}` stands for the index.
    pub bulk_path: String,
    /// The alias that is moved to the index after the last document.
    pub alias: Option<String>,
    /// Column that is the document's id.
    pub id: String,
    /// The location of the text of the `authorization` header.
    pub authorization: Option<SecretLocation>,
    /// A file of certificates that are trusted besides the system's.
    pub ca_file: Option<String>,
    /// True if the address comes from the job, so that the guard must allow it.
    pub is_guarded: bool,
    /// True if documents are created and never overwritten, as data streams require.
    pub creates: bool,
    /// The ingest pipeline for the documents.
    pub pipeline: Option<String>,
    /// Column whose text determines the shard.
    pub routing: Option<String>,
}

impl Default for Elastic {
    fn default() -> Self {
        Self {
            url: String::new(),
            index: String::new(),
            bulk_path: USUAL_BULK_PATH.to_owned(),
            alias: None,
            id: String::new(),
            authorization: None,
            ca_file: None,
            is_guarded: false,
            creates: false,
            pipeline: None,
            routing: None,
        }
    }
}

impl SinkArgs {
    /// Returns the column that is the document's id.
    pub fn id(&self) -> &str {
        match self {
            Self::Elastic(Elastic { id, .. }) | Self::Postgres { id, .. } => id,
        }
    }

    /// Returns the alias that is moved after the last document, if there is one.
    pub fn alias(&self) -> Option<&str> {
        match self {
            Self::Elastic(elastic) => elastic.alias.as_deref(),
            Self::Postgres { .. } => None,
        }
    }

    /// Returns the column that determines a document's shard, if there is one.
    pub fn routing(&self) -> Option<&str> {
        match self {
            Self::Elastic(elastic) => elastic.routing.as_deref(),
            Self::Postgres { .. } => None,
        }
    }
}

/// Prefix of variables that hold texts of the `authorization` header and that jobs may name, if
/// jobs may bring their own.
const AUTHORIZATIONS: &str = "REINDEX_AUTH_";

/// Suffix of the variable that lists the origins to which such a header may be sent.
pub(super) const ORIGINS: &str = "_ORIGINS";

pub(super) fn read(
    fields: &mut Reader<'_>,
    key: Option<String>,
    catalogue: &Catalogue,
) -> Option<SinkArgs> {
    let given = match fields.has("name") {
        true => Some(named(fields, &catalogue.sinks, "sink")?),
        false if catalogue.allow_queries => None,
        false => return refuse_free(fields, "sink", catalogue.sinks.keys()),
    };
    let is_elastic = match given {
        Some(NamedSink::Elastic { .. }) => true,
        Some(NamedSink::Postgres { .. }) => false,
        None => required_choice(fields, "type", &[("elastic", true), ("postgres", false)])?,
    };
    let id = text(fields, "id");
    let id = match (id, key) {
        (Some(id), _) => Some(id),
        (None, Some(key)) if !fields.has("id") => Some(key),
        (None, _) if fields.has("id") => None,
        _ => missing(fields, "id", "the column that is the document's id"),
    };
    if is_elastic {
        elastic(fields, id, given)
    } else {
        full_text(fields, id, given)
    }
}

fn elastic(
    fields: &mut Reader<'_>,
    id: Option<String>,
    given: Option<&NamedSink>,
) -> Option<SinkArgs> {
    let base = match given {
        Some(NamedSink::Elastic {
            url,
            authorization,
            ca_file,
            bulk_path,
            ..
        }) => {
            fields.only(&[
                "name", "id", "index", "alias", "pipeline", "op_type", "routing",
            ]);
            let (authorization, ca_file) = (authorization.clone(), ca_file.clone());
            Some(Elastic {
                url: url.clone(),
                authorization,
                ca_file,
                bulk_path: bulk_path.clone(),
                ..Elastic::default()
            })
        }
        _ => {
            fields.only(&[
                "name",
                "type",
                "id",
                "url",
                "authorization_env",
                "index",
                "alias",
                "pipeline",
                "op_type",
                "routing",
            ]);
            let allowed = "the address of the search engine, e.g. \"http://127.0.0.1:9200\"";
            let url = required(fields, "url", allowed).and_then(|url| address(fields, url));
            let authorization = match variable(fields, "authorization_env", AUTHORIZATIONS) {
                Some(name) if name.ends_with(ORIGINS) => wrong(
                    fields,
                    "authorization_env",
                    "must not name the variable of the origins to which such a text may go",
                ),
                name => name.map(SecretLocation::Bound),
            };
            url.map(|url| Elastic {
                url,
                authorization,
                is_guarded: true,
                ..Elastic::default()
            })
        }
    };
    let index = required(fields, "index", "the name of the index")
        .and_then(|index| index_name(fields, "index", index));
    let alias = text(fields, "alias").and_then(|alias| index_name(fields, "alias", alias));
    if alias.is_some() && alias == index {
        fields.wrong("alias", "must not be the index itself");
    }
    let pipeline = text(fields, "pipeline").and_then(|pipeline| pipeline_name(fields, pipeline));
    let creates = fields.choice("op_type", &[("index", false), ("create", true)]);
    let routing = text(fields, "routing");
    if let Some(NamedSink::Elastic {
        indexes,
        pipelines,
        aliases,
        ..
    }) = given
    {
        if alias.as_ref().is_some_and(|alias| !allows(aliases, alias)) {
            return not_allowed(fields, "alias", "aliases", aliases.iter());
        }
        if index.as_ref().is_some_and(|index| !allows(indexes, index)) {
            return not_allowed(fields, "index", "indexes", indexes.iter());
        }
        if pipeline
            .as_ref()
            .is_some_and(|pipeline| !allows(pipelines, pipeline))
        {
            return not_allowed(fields, "pipeline", "pipelines", pipelines.iter());
        }
    }
    Some(SinkArgs::Elastic(Elastic {
        index: index?,
        id: id?,
        alias,
        pipeline,
        creates: creates.unwrap_or_default(),
        routing,
        ..base?
    }))
}

fn full_text(
    fields: &mut Reader<'_>,
    id: Option<String>,
    given: Option<&NamedSink>,
) -> Option<SinkArgs> {
    let (database, rights) = match given {
        Some(NamedSink::Postgres {
            database, rights, ..
        }) => {
            fields.only(&["name", "id", "table", "text", "config"]);
            (database.clone(), rights.clone())
        }
        _ => {
            fields.only(&[
                "name", "type", "id", "url", "url_env", "table", "text", "config",
            ]);
            refuse(fields, "url", NO_URL);
            (
                variable(fields, "url_env", DATABASES).map(SecretLocation::Variable),
                DatabaseRights::default(),
            )
        }
    };
    let table = match (text(fields, "table"), given) {
        (Some(name), Some(NamedSink::Postgres { tables, .. })) if !allows(tables, &name) => {
            not_allowed(fields, "table", "tables", tables.iter())
        }
        (Some(name), _) => table(fields, "table", &name),
        (None, _) if fields.has("table") => None,
        (None, _) => missing(
            fields,
            "table",
            "the table to write, e.g. \"search.documents\"",
        ),
    };
    let text_fields = columns(fields, "text");
    let config = text(fields, "config").unwrap_or_else(|| "english".to_owned());
    Some(SinkArgs::Postgres {
        database,
        rights,
        table: table?,
        text: text_fields,
        config,
        id: id?,
    })
}

fn address(fields: &mut Reader<'_>, url: String) -> Option<String> {
    let url = url.trim_end_matches('/').to_owned();
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let Some(rest) = rest else {
        return wrong(
            fields,
            "url",
            "must be a URL that begins with http:// or https://",
        );
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || rest.contains(['?', '#', ' ', '\n']) {
        let message = "must be the base address of the search engine, without a query";
        return wrong(fields, "url", message);
    }
    if host.contains('@') {
        let message = "must be without a user name and a password: use \"authorization_env\"";
        return wrong(fields, "url", message);
    }
    Some(url)
}

fn index_name(fields: &mut Reader<'_>, field: &str, index: String) -> Option<String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if index.len() > 255 || index.starts_with(['-', '_', '.']) || !index.chars().all(allowed) {
        let allowed =
            "1 to 255 lower-case letters, digits or any of - _ . and start with a letter or digit";
        fields.refuse(field, allowed, &Value::String(index));
        return None;
    }
    Some(index)
}

/// Accepts a name that needs no escaping in a URL.
fn pipeline_name(fields: &mut Reader<'_>, pipeline: String) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if pipeline.len() > 255 || !pipeline.chars().all(allowed) {
        let allowed = "1 to 255 letters, digits or any of - _ .";
        fields.refuse("pipeline", allowed, &Value::String(pipeline));
        return None;
    }
    Some(pipeline)
}
