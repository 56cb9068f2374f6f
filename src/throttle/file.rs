//! Knobs files: `knobs/<throttle>.toml`, whose `[knobs]` are seeded into the store if absent.
//!
//! The signals and the governor's settings in the same file belong to the governor, which parses
//! the same text.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::rules;
use super::{Knobs, Name};

/// The tables that a knobs file may have at its top.
const TABLES: [&str; 3] = ["knobs", "signal", "governor"];

/// A knobs file with valid knobs.
#[derive(Clone, Debug, PartialEq)]
pub struct KnobsFile {
    /// The throttle: the file's name without `.toml`.
    pub name: Name,
    /// The knobs as texts for the hash.
    pub fields: BTreeMap<String, String>,
    /// The whole file, for the readers of its other parts.
    pub text: String,
    /// The path of the file.
    pub path: PathBuf,
}

/// An error in a file of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// The file as the caller named it.
    pub file: String,
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// The key, e.g. `knobs.rps`; empty if the text is not TOML.
    pub key: String,
    /// The error, with the allowed values.
    pub reason: String,
}

/// All errors in the knobs files.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct FileError(pub Vec<FileProblem>);

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl KnobsFile {
    /// Reads every `*.toml` of a directory, in the order of their names. A directory that does not
    /// exist has none.
    pub fn read_dir(dir: &Path) -> Result<Vec<Self>, FileError> {
        let whole = |file: &Path, reason: String| FileProblem {
            file: file.display().to_string(),
            line: 0,
            key: String::new(),
            reason,
        };
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(FileError(vec![whole(
                    dir,
                    format!("cannot be read: {error}"),
                )]));
            }
        };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        paths.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        });
        paths.sort();
        let (mut files, mut problems) = (Vec::new(), Vec::new());
        for path in paths {
            match std::fs::read_to_string(&path) {
                Err(error) => problems.push(whole(&path, format!("cannot be read: {error}"))),
                Ok(text) => match Self::parse(&path, text) {
                    Ok(file) => files.push(file),
                    Err(found) => problems.extend(found.0),
                },
            }
        }
        if problems.is_empty() {
            Ok(files)
        } else {
            Err(FileError(problems))
        }
    }

    /// Parses one file's text; the stem of `path` is the name of the throttle.
    pub fn parse(path: &Path, text: String) -> Result<Self, FileError> {
        let file = path.display().to_string();
        let problem = |span: Option<Range<usize>>, key: String, reason: String| FileProblem {
            file: file.clone(),
            line: span.map_or(0, |span| line_of(&text, span.start)),
            key,
            reason,
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = Name::new(name)
            .map_err(|error| FileError(vec![problem(None, String::new(), error.to_string())]))?;
        let table = DeTable::parse(&text).map_err(|error| {
            FileError(vec![problem(
                error.span(),
                String::new(),
                error.message().trim().replace('\n', ", "),
            )])
        })?;
        let mut problems = Vec::new();
        for key in table
            .get_ref()
            .keys()
            .filter(|key| !TABLES.contains(&key.get_ref().as_ref()))
        {
            let reason = format!("is not a table of a knobs file; use {}", TABLES.join(", "));
            problems.push(problem(Some(key.span()), key.get_ref().to_string(), reason));
        }
        let mut fields = BTreeMap::new();
        match table
            .get_ref()
            .get("knobs")
            .map(|knobs| (knobs.span(), knobs.get_ref()))
        {
            None => problems.push(problem(
                None,
                "knobs".to_owned(),
                "is missing: write [knobs] and rps".to_owned(),
            )),
            Some((span, DeValue::Table(knobs))) => {
                if !knobs.contains_key("rps") {
                    let reason = format!("is missing: it must be {}", rules::allowed("rps"));
                    problems.push(problem(Some(span), "knobs.rps".to_owned(), reason));
                }
                let mut values = BTreeMap::new();
                let mut spans = BTreeMap::new();
                for (key, value) in knobs {
                    spans.insert(key.get_ref().to_string(), key.span());
                    values.insert(key.get_ref().to_string(), json_of(value.get_ref()));
                }
                if values.get("parent").and_then(Value::as_str) == Some(name.as_str()) {
                    let reason = format!(
                        "{:?} is the throttle itself: it must be the name of another one",
                        name.as_str()
                    );
                    problems.push(problem(
                        spans.get("parent").cloned(),
                        "knobs.parent".to_owned(),
                        reason,
                    ));
                }
                match Knobs::check(&values) {
                    Ok(texts) => {
                        fields = texts
                            .into_iter()
                            .filter_map(|(field, text)| Some((field, text?)))
                            .collect()
                    }
                    Err(found) => problems.extend(found.into_iter().map(|found| {
                        problem(
                            spans.get(&found.field).cloned(),
                            format!("knobs.{}", found.field),
                            found.message,
                        )
                    })),
                }
            }
            Some((span, _)) => {
                problems.push(problem(
                    Some(span),
                    "knobs".to_owned(),
                    "must be a table: write [knobs]".to_owned(),
                ));
            }
        }
        problems.sort_by_key(|problem| problem.line);
        drop(table);
        if problems.is_empty() {
            Ok(Self {
                name,
                fields,
                text,
                path: path.to_owned(),
            })
        } else {
            Err(FileError(problems))
        }
    }
}

/// Returns the line, counted from 1, of a byte of the text.
pub fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

fn json_of(value: &DeValue<'_>) -> Value {
    let number = |text: &str| {
        text.replace('_', "")
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64)
    };
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix())
            .map_or_else(|_| Value::String(n.as_str().to_owned()), Value::from),
        DeValue::Float(n) => {
            number(n.as_str()).map_or_else(|| Value::String(n.as_str().to_owned()), Value::Number)
        }
        DeValue::Datetime(at) => Value::String(at.to_string()),
        DeValue::Array(_) => Value::Array(Vec::new()),
        DeValue::Table(_) => Value::Object(serde_json::Map::new()),
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
