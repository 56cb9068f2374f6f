//! The source in the arguments of reindex jobs.

use super::arg_fields::{
    DATABASES, NO_URL, columns, key, missing, named, not_allowed, refuse, refuse_free, required,
    required_choice, table, text, variable, wrong,
};
use super::catalogue::{
    Catalogue, DatabaseRights, NamedSource, SecretLocation, SourceKind, one_query,
};
use crate::input::Reader;
use crate::input::patterns::allows;

/// A table or statement in Postgres, or a collection in MongoDB, read in the order of a unique key.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceArgs {
    /// The location of the database's URL; `None` for the queue's own database.
    pub database: Option<SecretLocation>,
    /// The role to read as, and the limit on each statement's time.
    pub rights: DatabaseRights,
    /// The table or query to read.
    pub rows: Rows,
    /// Columns that together are unique and never null; the scan follows them upwards.
    pub key: Vec<String>,
    /// Columns that make up the document; `None` for all.
    pub columns: Option<Vec<String>>,
    /// True if the job copies changes as well, from the start of the scan on, and does not end.
    pub follow: bool,
    /// The response to changes that the source no longer has.
    pub on_lost_changes: OnLostChanges,
}

/// The response to changes that the source no longer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLostChanges {
    /// The job ends dead and says so. A retry scans from the beginning.
    #[default]
    DeadLetter,
    /// The job scans from the beginning by itself.
    Rescan,
}

/// The rows of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// A table or view, as its schema (if named) and its name.
    Table(Vec<String>),
    /// A query that starts with `select` or `with`.
    Query(String),
    /// A collection of MongoDB.
    Collection(CollectionName),
}

/// A collection of MongoDB with its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionName {
    pub database: String,
    pub name: String,
}

/// The words of `on_lost_changes`.
const ON_LOST_CHANGES: [(&str, OnLostChanges); 2] = [
    ("dead_letter", OnLostChanges::DeadLetter),
    ("rescan", OnLostChanges::Rescan),
];

pub(super) fn read(fields: &mut Reader<'_>, catalogue: &Catalogue) -> Option<SourceArgs> {
    if fields.has("name") {
        let given = named(fields, &catalogue.sources, "source")?;
        if given.kind == SourceKind::Mongodb {
            fields.only(&["name", "collection", "columns", "follow", "on_lost_changes"]);
            let allowed = Some(given.collections.as_slice());
            let rights = given.rights.clone();
            return collection(fields, given.database.clone(), rights, allowed);
        }
        fields.only(&["name", "table", "statement", "key", "columns"]);
        return named_source(fields, given);
    }
    if !catalogue.allow_queries {
        return refuse_free(fields, "source", catalogue.sources.keys());
    }
    let kinds = [
        ("postgres", SourceKind::Postgres),
        ("mongodb", SourceKind::Mongodb),
    ];
    // Only a build with MongoDB offers it.
    let kinds = if cfg!(feature = "mongodb") {
        &kinds[..]
    } else {
        &kinds[..1]
    };
    let kind = required_choice(fields, "type", kinds);
    refuse(fields, "url", NO_URL);
    if kind == Some(SourceKind::Mongodb) {
        fields.only(&[
            "name",
            "type",
            "url",
            "url_env",
            "collection",
            "columns",
            "follow",
            "on_lost_changes",
        ]);
        let database = variable(fields, "url_env", DATABASES).map(SecretLocation::Variable);
        if database.is_none() && !fields.has("url_env") {
            fields.missing(
                "url_env",
                "an environment variable that holds the URL of a deployment",
            );
        }
        return collection(fields, Some(database?), DatabaseRights::default(), None);
    }
    fields.only(&[
        "name", "type", "url", "url_env", "table", "query", "key", "columns",
    ]);
    let database = variable(fields, "url_env", DATABASES).map(SecretLocation::Variable);
    let rows = match (text(fields, "table"), text(fields, "query")) {
        (Some(_), Some(_)) => wrong(
            fields,
            "query",
            "must be left out beside \"table\": give one of them",
        ),
        (Some(name), None) => table(fields, "table", &name).map(Rows::Table),
        (None, Some(query)) => select(fields, &query),
        (None, None) if fields.has("table") || fields.has("query") => None,
        (None, None) => missing(
            fields,
            "table",
            "a table (\"schema.table\"), or give a \"query\"",
        ),
    };
    let key = key(fields, None);
    let columns = columns(fields, "columns");
    Some(SourceArgs {
        database,
        rights: DatabaseRights::default(),
        rows: rows?,
        key: key?,
        columns,
        follow: false,
        on_lost_changes: OnLostChanges::default(),
    })
}

/// Reads a collection of MongoDB; `allowed` are the settings' names of those that jobs may read,
/// and without them jobs may read any.
fn collection(
    fields: &mut Reader<'_>,
    database: Option<SecretLocation>,
    rights: DatabaseRights,
    allowed: Option<&[String]>,
) -> Option<SourceArgs> {
    let name = required(
        fields,
        "collection",
        "a collection, as \"database.collection\"",
    );
    let name = name.and_then(|name| match allowed {
        Some(patterns) if !allows(patterns, &name) => {
            not_allowed(fields, "collection", "collections", patterns.iter())
        }
        _ => match name.split_once('.') {
            Some((database, rest)) if !database.is_empty() && !rest.is_empty() => {
                let (database, name) = (database.to_owned(), rest.to_owned());
                Some(CollectionName { database, name })
            }
            _ => wrong(fields, "collection", "must be \"database.collection\""),
        },
    });
    let columns = columns(fields, "columns");
    let follow = fields.flag("follow").unwrap_or_default();
    let on_lost_changes = fields.choice("on_lost_changes", &ON_LOST_CHANGES);
    if on_lost_changes.is_some() && !follow {
        fields.wrong(
            "on_lost_changes",
            "must be left out without \"follow\": true",
        );
    }
    Some(SourceArgs {
        database,
        rights,
        rows: Rows::Collection(name?),
        key: vec!["_id".to_owned()],
        columns,
        follow,
        on_lost_changes: on_lost_changes.unwrap_or_default(),
    })
}

fn named_source(fields: &mut Reader<'_>, given: &NamedSource) -> Option<SourceArgs> {
    let rows = match (text(fields, "table"), text(fields, "statement")) {
        (Some(_), Some(_)) => wrong(
            fields,
            "statement",
            "must be left out beside \"table\": give one of them",
        ),
        (Some(name), None) if allows(&given.tables, &name) => {
            table(fields, "table", &name).map(Rows::Table)
        }
        (Some(_), None) => not_allowed(fields, "table", "tables", given.tables.iter()),
        (None, Some(statement)) => match given.statements.get(&statement) {
            Some(query) => Some(Rows::Query(query.clone())),
            None => not_allowed(fields, "statement", "statements", given.statements.keys()),
        },
        (None, None) if fields.has("table") || fields.has("statement") => None,
        (None, None) => missing(
            fields,
            "table",
            "a table of this source, or give a \"statement\"",
        ),
    };
    let key = key(fields, given.key.as_deref());
    let columns = columns(fields, "columns");
    Some(SourceArgs {
        database: given.database.clone(),
        rights: given.rights.clone(),
        rows: rows?,
        key: key?,
        columns,
        follow: false,
        on_lost_changes: OnLostChanges::default(),
    })
}

/// Accepts one statement that reads; the transaction is read-only besides.
fn select(fields: &mut Reader<'_>, query: &str) -> Option<Rows> {
    match one_query(query) {
        Some(query) => Some(Rows::Query(query)),
        None => wrong(
            fields,
            "query",
            "must be one query that starts with select or with",
        ),
    }
}
