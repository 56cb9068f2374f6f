//! The rules for dependencies: `deny.toml`, checked without cargo-deny, and no unused dependency.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

fn root() -> PathBuf {
    PathBuf::from(crate::support::ROOT)
}

fn table(file: &str) -> Table {
    std::fs::read_to_string(root().join(file))
        .unwrap()
        .parse()
        .unwrap()
}

fn locked() -> Vec<Table> {
    let lock = table("Cargo.lock");
    let packages = lock["package"].as_array().unwrap();
    packages
        .iter()
        .map(|package| package.as_table().unwrap().clone())
        .collect()
}

fn text<'a>(table: &'a Table, key: &str) -> &'a str {
    table[key].as_str().unwrap()
}

#[test]
fn every_dependency_comes_from_the_registry() {
    let sources: BTreeSet<_> = locked()
        .iter()
        .filter_map(|package| Some(package.get("source")?.as_str()?.to_owned()))
        .collect();
    assert_eq!(sources.len(), 1, "{sources:?}");
    assert!(
        sources.iter().all(|source| source.starts_with("registry+")),
        "{sources:?}"
    );
}

#[test]
fn a_crate_in_two_versions_is_listed_with_its_reason() {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in locked() {
        let (name, version) = (text(&package, "name"), text(&package, "version"));
        versions
            .entry(name.to_owned())
            .or_default()
            .push(version.to_owned());
    }
    let older = |(name, versions): (&String, &Vec<String>)| -> Vec<String> {
        let number = |version: &String| -> Vec<u64> {
            version
                .split(['.', '-', '+'])
                .filter_map(|part| part.parse().ok())
                .collect()
        };
        let mut versions = versions.clone();
        versions.sort_by_key(number);
        versions.pop();
        versions
            .iter()
            .map(|version| format!("{name}@{version}"))
            .collect()
    };
    let found: BTreeSet<String> = versions.iter().flat_map(older).collect();

    let deny = table("deny.toml");
    let skipped = deny["bans"]["skip"].as_array().unwrap();
    let listed: BTreeSet<String> = skipped
        .iter()
        .map(|entry| {
            let entry = entry.as_table().unwrap();
            assert!(!text(entry, "reason").is_empty(), "{entry:?}");
            text(entry, "crate").to_owned()
        })
        .collect();
    assert_eq!(
        found, listed,
        "deny.toml lists the older versions under bans.skip"
    );
}

/// Evaluates an SPDX expression from left to right: `OR` and `/` are alternatives, `AND` binds
/// closer.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    fn any(
        words: &mut std::iter::Peekable<std::vec::IntoIter<String>>,
        allowed: &BTreeSet<&str>,
    ) -> bool {
        let mut ok = all(words, allowed);
        while words.next_if(|word| word == "OR").is_some() {
            ok |= all(words, allowed);
        }
        ok
    }
    fn all(
        words: &mut std::iter::Peekable<std::vec::IntoIter<String>>,
        allowed: &BTreeSet<&str>,
    ) -> bool {
        let mut ok = one(words, allowed);
        while words.next_if(|word| word == "AND").is_some() {
            ok &= one(words, allowed);
        }
        ok
    }
    fn one(
        words: &mut std::iter::Peekable<std::vec::IntoIter<String>>,
        allowed: &BTreeSet<&str>,
    ) -> bool {
        let word = words.next().unwrap_or_default();
        if word == "(" {
            let ok = any(words, allowed);
            assert_eq!(words.next().as_deref(), Some(")"));
            return ok;
        }
        match words.next_if(|word| word == "WITH") {
            Some(_) => {
                let exception = words.next().unwrap_or_default();
                allowed.contains(format!("{word} WITH {exception}").as_str())
            }
            None => allowed.contains(word.as_str()),
        }
    }
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let mut words = words.into_iter().peekable();
    let ok = any(&mut words, allowed);
    assert_eq!(words.next(), None, "{expression}");
    ok
}

#[test]
fn licences_are_read_with_their_alternatives() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("ISC AND (GPL-3.0 OR MIT)", true),
        ("(GPL-3.0 OR AGPL-3.0) AND MIT", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("Apache-2.0", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let rustc = Command::new("rustc")
        .arg("-vV")
        .output()
        .expect("rustc runs");
    let printed = String::from_utf8(rustc.stdout).unwrap();
    let host = printed
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    // Offline and for this platform only, because these crates are already downloaded.
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .args(["--filter-platform", host])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();

    let deny = table("deny.toml");
    let allowed = deny["licenses"]["allow"].as_array().unwrap();
    let allowed: BTreeSet<&str> = allowed.iter().filter_map(Value::as_str).collect();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 200, "{}", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .map(|package| {
            (
                package["name"].to_string(),
                package["license"].as_str().unwrap_or_default(),
            )
        })
        .filter(|(_, licence)| !is_allowed(licence, &allowed))
        .map(|(name, licence)| format!("{name}: {licence}"))
        .collect();
    assert_eq!(refused, Vec::<String>::new());
}

#[test]
fn every_dependency_is_used() {
    for (package, of_tests) in [
        ("", &["src", "examples"][..]),
        ("core", &["src"]),
        ("lab", &["src", "tests", "benches"]),
        ("lab/fakes", &["src", "examples"]),
        ("tests/it", &[""]),
    ] {
        let folder = root().join(package);
        let manifest = table(folder.join("Cargo.toml").to_str().unwrap());
        let read = |folders: &[&str]| -> String {
            folders
                .iter()
                .map(|name| sources(&folder.join(name)))
                .collect()
        };
        let (product, tests) = (read(&of_tests[..1]), read(of_tests));
        for (section, sources) in [("dependencies", &product), ("dev-dependencies", &tests)] {
            for name in manifest[section].as_table().unwrap().keys() {
                let word = name.replace('-', "_");
                let is_used = [
                    format!("{word}::"),
                    format!("use {word};"),
                    format!("use {word} "),
                ]
                .iter()
                .any(|text| sources.contains(text.as_str()));
                assert!(is_used, "nothing uses {name} of [{section}] in {package:?}");
            }
        }
    }
}

/// Returns all Rust sources below a folder, concatenated.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return all;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            all += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all += &std::fs::read_to_string(&path).unwrap();
        }
    }
    all
}
