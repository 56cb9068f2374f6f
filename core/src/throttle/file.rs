//! Knobs files: `knobs/<throttle>.toml`, whose `[knobs]` are seeded into the store if absent.
//!
//! The signals and the governor's settings in the same file belong to the governor, which parses
//! the same text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::rules;
use super::{Knobs, Name};
pub use crate::input::{FileError, FileProblem};
use crate::input::{Reader, TomlDocument};

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

impl KnobsFile {
    /// Reads every `*.toml` of a directory, in the order of their names. A directory that does not
    /// exist has none; a link that leads nowhere is refused. Hidden files are those of editors and
    /// of file systems, and are left out.
    pub fn read_dir(dir: &Path) -> Result<Vec<Self>, FileError> {
        let whole = |file: &Path, reason: String| FileProblem {
            file: file.display().to_string(),
            line: 0,
            key: String::new(),
            reason,
        };
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    && dir.symlink_metadata().is_err() =>
            {
                return Ok(Vec::new());
            }
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
            let name = path.file_name().unwrap_or_default();
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            let extension = path.extension();
            !is_hidden && extension.is_some_and(|extension| extension == "toml")
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
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = Name::or_pattern(name).map_err(|error| {
            FileError(vec![FileProblem {
                file: file.clone(),
                line: 0,
                key: String::new(),
                reason: error.to_string(),
            }])
        })?;
        let document = TomlDocument::parse(&text)
            .map_err(|error| FileError(vec![FileProblem::not_toml(&file, error)]))?;
        let mut issues = Vec::new();
        let fields = Reader::of(&document.value, "", &TABLES, &mut issues)
            .and_then(|mut tables| knobs(&mut tables, &name))
            .unwrap_or_default();
        if !issues.is_empty() {
            return Err(FileError(FileProblem::located(&file, &document, issues)));
        }
        Ok(Self {
            name,
            fields,
            text,
            path: path.to_owned(),
        })
    }
}

/// Reads the table `[knobs]`.
fn knobs(tables: &mut Reader<'_>, throttle: &Name) -> Option<BTreeMap<String, String>> {
    match tables.get("knobs") {
        Some(knobs) if !knobs.is_object() => {
            tables.wrong("knobs", "must be a table: write [knobs]");
            return None;
        }
        Some(_) => {}
        None => {
            tables.missing("knobs", "a table: write [knobs] and rps");
            return None;
        }
    }
    if throttle.is_pattern() && tables.get("signal").is_some() {
        tables.wrong(
            "signal",
            "must be left out of the file of a pattern, from which nothing takes tokens: its governor would see no demand; \
             allowed in the file of one throttle, such as the parent of those that are made from it",
        );
    }
    let mut fields = tables.part("knobs", &[])?;
    if fields.get("rps").is_none() {
        fields.missing("rps", rules::allowed("rps"));
    }
    if fields.get("parent").and_then(Value::as_str) == Some(throttle.as_str()) {
        fields.wrong(
            "parent",
            "must be another throttle, not the throttle itself",
        );
    }
    let given = fields.names().filter_map(|name| {
        let value = fields.get(name)?.clone();
        Some((name.to_owned(), value))
    });
    let checked = Knobs::check(&given.collect()).and_then(|texts| {
        match rules::paused_pattern(throttle, &texts) {
            Some(problem) => Err(vec![problem]),
            None => Ok(texts),
        }
    });
    match checked {
        Ok(texts) => Some(
            texts
                .into_iter()
                .filter_map(|(field, text)| Some((field, text?)))
                .collect(),
        ),
        Err(problems) => {
            for problem in problems {
                fields.wrong(&problem.field, problem.message);
            }
            None
        }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
