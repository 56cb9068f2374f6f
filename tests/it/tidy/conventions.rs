//! Conventions of names and comments: entry files without logic, unique type names, doc comments
//! that begin with a verb or a noun.

use std::collections::BTreeMap;

use super::sources::{all_files, sources};

#[test]
fn a_facade_holds_no_logic() {
    let facades = sources()
        .into_iter()
        .filter(|source| source.path.ends_with("mod.rs") && source.room != "cli");
    let wrong: Vec<String> = facades
        .filter(|facade| facade.code.contains("fn "))
        .map(|facade| facade.path)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Folders whose statements have names. On a bare connection a name stays for the next borrower.
const NAMED_STATEMENTS: [&str; 2] = ["gateway/postgres/", "recipient/postgres/"];

#[test]
fn statements_with_names_run_on_a_transaction_and_not_on_its_connection() {
    for folder in NAMED_STATEMENTS {
        let files: Vec<_> = sources()
            .into_iter()
            .filter(|file| file.path.contains(folder))
            .collect();
        let bare = files
            .iter()
            .filter(|file| file.code.contains("PgConnection"));
        let bare: Vec<&str> = bare.map(|file| file.path.as_str()).collect();
        assert!(!files.is_empty() && bare.is_empty(), "{folder}: {bare:?}");
    }
}

/// Type names that every module may define.
const COMMON_NAMES: [&str; 3] = ["Args", "Command", "Error"];

/// Returns the name of the type defined on a line. Associated types of an `impl` do not count,
/// because the trait chooses their names.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").or_else(|| {
        let rest = line.strip_prefix("pub(")?;
        Some(rest.split_once(") ")?.1)
    });
    let (word, rest) = line?.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&word);
    let name = rest
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    let is_name = name.starts_with(|c: char| c.is_ascii_uppercase());
    (is_type && is_name).then_some(name)
}

#[test]
fn a_type_name_occurs_at_most_twice() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in all_files() {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            let line = if line.starts_with("pub") {
                line.to_owned()
            } else {
                format!("pub {line}")
            };
            if let Some(name) = defined_type(&line) {
                places
                    .entry(name.to_owned())
                    .or_default()
                    .push(path.display().to_string());
            }
        }
    }
    assert!(places.len() > 500, "{}", places.len());
    places.retain(|name, places| places.len() > 2 && !COMMON_NAMES.contains(&name.as_str()));
    assert!(places.is_empty(), "{places:#?}");
}

/// Words that must not begin a doc comment.
const QUESTIONS: [&str; 11] = [
    "Who", "Whose", "Whom", "What", "How", "Which", "Whether", "Where", "When", "Why", "That",
];

#[test]
fn a_doc_comment_begins_with_a_verb_or_a_noun() {
    let mut wrong = Vec::new();
    for path in all_files() {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut is_inside = false;
        for (n, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            let comment = comment
                .strip_prefix("///")
                .or_else(|| comment.strip_prefix("//!"));
            let Some(comment) = comment else {
                is_inside = false;
                continue;
            };
            let first = comment.split_whitespace().next().unwrap_or_default();
            let first = first.trim_end_matches([',', ':']);
            if !is_inside && QUESTIONS.contains(&first) {
                wrong.push(format!("{}:{}: {}", path.display(), n + 1, comment.trim()));
            }
            is_inside = true;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
