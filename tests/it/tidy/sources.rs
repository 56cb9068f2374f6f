//! The checked source files: their paths, rooms and code.

use std::path::{Path, PathBuf};

use super::scanner::{NamedPath, bare, paths_of, without_tests};

/// The folders of the product's two packages. A room is in one of them.
const PRODUCT: [&str; 2] = ["core/src", "src"];

/// A file of the product, with its path below one of the folders.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) room: String,
    /// The code without comments, string contents and unit tests.
    pub(super) code: String,
    /// All paths in the code, with groups expanded.
    pub(super) paths: Vec<NamedPath>,
}

/// Returns all files of the product except unit tests.
pub(super) fn sources() -> Vec<Source> {
    PRODUCT
        .iter()
        .flat_map(|folder| sources_of(folder))
        .collect()
}

fn sources_of(folder: &str) -> Vec<Source> {
    let root = Path::new(crate::support::ROOT).join(folder);
    let files = files_under(&[folder]);
    assert!(files.len() > 50, "the sources were found");
    files
        .into_iter()
        .map(|file| {
            let path = file
                .strip_prefix(&root)
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/");
            let room = path
                .split('/')
                .next()
                .unwrap()
                .trim_end_matches(".rs")
                .to_owned();
            let text = std::fs::read_to_string(&file).unwrap();
            let code = without_tests(&bare(&text));
            let paths = paths_of(&code);
            Source {
                path,
                room,
                code,
                paths,
            }
        })
        .filter(|source| !source.path.ends_with("_tests.rs") && !source.path.ends_with("/tests.rs"))
        .collect()
}

/// Returns true if a pattern matches this file: the file itself, a folder prefix, or any folder of
/// that name.
pub(super) fn is_at(path: &str, pattern: &str) -> bool {
    match pattern.strip_prefix("**/") {
        Some(part) => path.starts_with(part) || path.contains(&format!("/{part}")),
        None if pattern.ends_with('/') => path.starts_with(pattern),
        None => path == pattern,
    }
}

/// Returns all Rust sources of the product and of `lab`.
pub(super) fn all_files() -> Vec<PathBuf> {
    let [core, product] = PRODUCT;
    files_under(&[core, product, "lab/src", "lab/fakes/src"])
}

/// Returns all Rust files under these folders.
pub(super) fn files_under(folders: &[&str]) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    for folder in folders {
        walk(&Path::new(crate::support::ROOT).join(folder), &mut found);
    }
    found
}
