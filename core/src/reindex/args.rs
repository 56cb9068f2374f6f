//! Arguments of reindex jobs, parsed with every fault listed.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::arg_fields::refuse;
use super::catalogue::Catalogue;
use super::sink_args::{self, SinkArgs};
use super::source_args::{self, SourceArgs};
use crate::input::{Issue, Reader};
use crate::outbound::signature::digest_of;

/// Most documents that one bulk request may carry.
pub const MAX_BATCH_DOCS: u64 = 10_000;
/// Most bytes that one bulk request may carry; Elasticsearch itself refuses more than 100 MB.
pub const MAX_BATCH_BYTES: u64 = 50_000_000;
/// Most bulk requests in flight.
pub const MAX_CONCURRENCY: u64 = 64;

/// The arguments of a reindex job, all of them valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// The source of the documents.
    pub source: SourceArgs,
    /// The destination of the documents.
    pub sink: SinkArgs,
    /// Most documents in one bulk request, 1 to 10,000; default 500.
    pub batch_docs: usize,
    /// Most bytes in one bulk request, 1,000 to 50,000,000; default 5,000,000. A larger document
    /// travels alone.
    pub batch_bytes: usize,
    /// Most bulk requests in flight, 1 to 64; default 8.
    pub concurrency: usize,
    /// The outcome of a job some of whose documents the index refused for good.
    pub on_bad_document: OnBadDocument,
    /// True if the alias moves to the index even if the source has no documents and the alias shows
    /// some.
    pub allow_empty: bool,
}

/// The outcome of a job some of whose documents the index refused for good; in either case all
/// others are indexed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadDocument {
    /// The job ends dead with the count and the first refused ids, so that a person looks at it. A
    /// retry starts over.
    #[default]
    DeadLetter,
    /// The job ends completed; its progress note keeps the count and the first refused ids. If all
    /// were refused, one with an alias ends dead and does not move it.
    Skip,
}

/// The fields of the arguments.
const FIELDS: [&str; 7] = [
    "source",
    "sink",
    "batch_docs",
    "batch_bytes",
    "concurrency",
    "on_bad_document",
    "allow_empty",
];

/// The words of `on_bad_document`.
const ON_BAD_DOCUMENT: [(&str, OnBadDocument); 2] = [
    ("dead_letter", OnBadDocument::DeadLetter),
    ("skip", OnBadDocument::Skip),
];

/// The refusal of what makes a deleted document impossible to find.
const FOLLOWED_BY_ID: &str =
    "must be left out with \"follow\": a deleted document is known by its _id alone";

impl Args {
    /// Parses arguments against the operator's catalogue, or lists everything that is wrong with
    /// them.
    pub fn parse(args: &Value, catalogue: &Catalogue) -> Result<Self, Vec<Issue>> {
        let mut issues = Vec::new();
        let read = Reader::of(args, "", &FIELDS, &mut issues)
            .and_then(|fields| Self::read(fields.null_is_absent(), catalogue));
        match read {
            Some(read) if issues.is_empty() => Ok(read),
            _ => Err(issues),
        }
    }

    fn read(mut fields: Reader<'_>, catalogue: &Catalogue) -> Option<Self> {
        let source = fields
            .part("source", &[])
            .and_then(|mut source| source_args::read(&mut source, catalogue));
        // An invalid source is one fault, not two: its missing key is not a fault of the sink.
        let key = source.as_ref().map_or(Some(String::new()), |source| {
            (source.key.len() == 1).then(|| source.key[0].clone())
        });
        let follow = source.as_ref().is_some_and(|source| source.follow);
        let sink = fields.part("sink", &[]).and_then(|mut sink| {
            if follow {
                refuse(&mut sink, "id", FOLLOWED_BY_ID);
                refuse(&mut sink, "routing", FOLLOWED_BY_ID);
                refuse(&mut sink, "op_type", FOLLOWED_BY_ID);
            }
            sink_args::read(&mut sink, key, catalogue)
        });
        let mut count = |name: &str, usual: usize, range: RangeInclusive<u64>| {
            let range = *range.start() as i64..=*range.end() as i64;
            let number = fields.whole(name, range, "");
            number.map_or(usual, |number| number as usize)
        };
        let batch_docs = count("batch_docs", 500, 1..=MAX_BATCH_DOCS);
        let batch_bytes = count("batch_bytes", 5_000_000, 1_000..=MAX_BATCH_BYTES);
        let concurrency = count("concurrency", 8, 1..=MAX_CONCURRENCY);
        let on_bad_document = fields.choice("on_bad_document", &ON_BAD_DOCUMENT);
        let allow_empty = fields.flag("allow_empty");
        let has_no_alias = sink.as_ref().is_some_and(|sink| sink.alias().is_none());
        if allow_empty.is_some() && has_no_alias {
            fields.wrong(
                "allow_empty",
                "must be left out without an alias of the sink",
            );
        }
        Some(Self {
            source: source?,
            sink: sink?,
            batch_docs,
            batch_bytes,
            concurrency,
            on_bad_document: on_bad_document.unwrap_or_default(),
            allow_empty: allow_empty.unwrap_or_default(),
        })
    }

    /// Returns a digest of the rows, their order and the address of the sink. Settings may have
    /// others before the next attempt, and a cursor is a place in these rows, up to which they are
    /// in this sink.
    pub fn route(&self) -> String {
        let address = match &self.sink {
            SinkArgs::Elastic(elastic) => elastic.url.as_str(),
            SinkArgs::Postgres { .. } => "",
        };
        digest_of(&(&self.source.rows, &self.source.key, address))
    }

    /// Returns the source and the sink that a job names, such as `source shop`.
    pub fn needs(args: &Value) -> Vec<String> {
        let name = |part: &str| Some(format!("{part} {}", args.get(part)?.get("name")?.as_str()?));
        ["source", "sink"].into_iter().filter_map(name).collect()
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
