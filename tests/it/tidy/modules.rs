//! Modules of the product, whose two crates are read as one tree: resolves a path in a file to the file that defines the item.

use std::collections::{BTreeMap, BTreeSet};

use super::scanner::NamedPath;
use super::sources::Source;

/// Returns the module of a file: `jobs/postgres/mod.rs` is `jobs::postgres`.
fn module_of(path: &str) -> Vec<String> {
    let mut module: Vec<String> = path
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if ["mod", "lib", "main"].contains(&module.last().unwrap().as_str()) {
        module.pop();
    }
    module
}

/// The files by their modules.
pub(super) struct Modules<'a> {
    files: BTreeMap<Vec<String>, &'a Source>,
}

impl<'a> Modules<'a> {
    pub(super) fn of(sources: &'a [Source]) -> Self {
        let files = sources
            .iter()
            .filter(|source| source.path != "main.rs")
            .map(|source| (module_of(&source.path), source))
            .collect();
        Self { files }
    }

    /// Returns the path from the crate root, if it belongs to the crate.
    pub(super) fn absolute(&self, from: &Source, path: &NamedPath) -> Option<Vec<String>> {
        let mut module = module_of(&from.path);
        let mut rest = path.segments.as_slice();
        match rest.first()?.as_str() {
            "crate" => return Some(rest[1..].to_vec()),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let mut child = module.clone();
                child.push(first.to_owned());
                let is_child = self.files.contains_key(&child)
                    || self.files.keys().any(|known| known.starts_with(&child));
                if !is_child {
                    return None;
                }
            }
        }
        module.extend(rest.iter().cloned());
        Some(module)
    }

    /// Returns the file that defines the item at an absolute path, following re-exports.
    fn file(&self, path: &[String], depth: usize) -> Option<&'a Source> {
        let (length, source) = (1..=path.len())
            .rev()
            .find_map(|length| Some((length, *self.files.get(&path[..length])?)))?;
        let Some(name) = path.get(length) else {
            return Some(source);
        };
        let passed_on = source
            .paths
            .iter()
            .filter(|import| import.is_public)
            .find(|import| import.alias.as_ref().or(import.segments.last()) == Some(name));
        if let Some(import) = passed_on.filter(|_| depth < 8)
            && let Some(target) = self.absolute(source, import)
        {
            return self.file(&target, depth + 1);
        }
        Some(source)
    }

    /// Returns, for each file, the imported files of the same room.
    pub(super) fn inside_rooms(&self) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for source in self.files.values() {
            let is_facade = source.path.ends_with("mod.rs");
            let to = graph.entry(&source.path).or_default();
            for path in &source.paths {
                if path.is_public && path.is_import && is_facade {
                    continue;
                }
                let file = self
                    .absolute(source, path)
                    .and_then(|path| self.file(&path, 0));
                to.extend(
                    file.filter(|file| file.room == source.room && file.path != source.path)
                        .map(|file| file.path.as_str()),
                );
            }
        }
        graph
    }
}
