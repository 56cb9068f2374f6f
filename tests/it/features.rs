//! The library's features: the crates that each compiles are pinned in `features.txt`, and the page
//! of features lists them all.
//!
//! `FLYBALL_BLESS=1` rewrites the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const PINNED: &str = "tests/it/features.txt";
/// The library's own packages.
const OWN: [&str; 2] = ["flyball", "flyball-core"];
const PAGE: &str = "docs/reference/features.md";

/// The counts are those of this platform; others have crates of their own.
const COUNTS_HOLD: bool = cfg!(all(
    target_os = "linux",
    target_arch = "x86_64",
    target_env = "gnu"
));

fn root() -> &'static Path {
    Path::new(crate::support::ROOT)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the features of `Cargo.toml` except `default`, each with the features it enables.
fn features() -> BTreeMap<String, BTreeSet<String>> {
    features_of("Cargo.toml")
}

fn features_of(manifest: &str) -> BTreeMap<String, BTreeSet<String>> {
    let manifest: toml::Table = read(manifest).parse().unwrap();
    let features = manifest["features"].as_table().unwrap();
    let of = |name: &String| {
        let list = features[name].as_array().unwrap().iter();
        list.map(|entry| entry.as_str().unwrap().to_owned())
            .filter(|entry| features.contains_key(entry))
            .collect()
    };
    features
        .keys()
        .filter(|name| *name != "default")
        .map(|name| (name.clone(), of(name)))
        .collect()
}

/// Returns the crates compiled for a program that uses the library with these features, without the
/// library itself.
struct Compiled {
    direct: BTreeSet<String>,
    all: BTreeSet<String>,
}

impl Compiled {
    fn with(feature: &str) -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--package", "flyball"])
            .args(["--edges", "normal", "--prefix", "depth", "--format", " {p}"])
            .args(["--no-default-features", "--features", feature])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut compiled = Self {
            direct: BTreeSet::new(),
            all: BTreeSet::new(),
        };
        // The way from the library to the crate of the line.
        let mut way: Vec<&str> = Vec::new();
        // A line holds the depth, the name, the version and remarks.
        for line in text.lines() {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
            let (depth, name, version) = (word(), word(), word());
            way.truncate(depth.parse().unwrap());
            let is_of_own = way.iter().all(|crate_name| OWN.contains(crate_name));
            way.push(name);
            if OWN.contains(&name) {
                continue;
            }
            if is_of_own {
                compiled.direct.insert(name.to_owned());
            }
            compiled.all.insert(format!("{name} {version}"));
        }
        compiled
    }

    fn has(&self, name: &str) -> bool {
        self.all
            .iter()
            .any(|one| one.split(' ').next() == Some(name))
    }
}

/// Returns one line per set of features: its name, the number of all crates, the direct ones.
fn pin(sets: &BTreeMap<String, Compiled>) -> String {
    let mut text = String::new();
    for (feature, compiled) in sets {
        let name = if feature.is_empty() { "none" } else { feature };
        let direct: Vec<_> = compiled.direct.iter().map(String::as_str).collect();
        let count = compiled.all.len();
        writeln!(text, "{name}: {count} crates; {}", direct.join(" ")).unwrap();
    }
    text
}

fn sets() -> BTreeMap<String, Compiled> {
    let names = features().into_keys().chain([String::new()]);
    names
        .map(|feature| (feature.clone(), Compiled::with(&feature)))
        .collect()
}

#[test]
fn each_feature_compiles_the_crates_that_are_pinned() {
    let sets = sets();
    let found = pin(&sets);
    if std::env::var_os("FLYBALL_BLESS").is_some() {
        std::fs::write(root().join(PINNED), &found).unwrap();
    }
    let without_counts = |text: &str| -> Vec<String> {
        let line = |line: &str| {
            let (name, rest) = line.split_once(": ").unwrap();
            format!("{name}: {}", rest.split_once("; ").unwrap().1)
        };
        text.lines().map(line).collect()
    };
    let pinned = read(PINNED);
    let hint = "FLYBALL_BLESS=1 renews tests/it/features.txt";
    assert_eq!(without_counts(&found), without_counts(&pinned), "{hint}");
    if COUNTS_HOLD {
        assert_eq!(found, pinned, "{hint}");
    }

    // A program that only enqueues or takes tokens compiles no crates for sending, serving, drawing
    // or control.
    for heavy in [
        "axum",
        "tower-http",
        "utoipa",
        "rust-embed",
        "lettre",
        "aws-sigv4",
        "x509-parser",
        "jsonwebtoken",
        "hyper",
        "h2",
        "reqwest",
        "minijinja",
        "clap",
        "comfy-table",
        "indicatif",
        "plotters",
        "tracing-subscriber",
    ] {
        assert!(!sets[""].has(heavy), "no feature needs {heavy}");
        let is_of_runner = heavy == "tracing-subscriber";
        assert!(
            is_of_runner || !sets["runner"].has(heavy),
            "runner needs {heavy}"
        );
    }
    for (feature, compiled) in sets.iter().filter(|(feature, _)| *feature != "cli") {
        for own in ["clap", "comfy-table", "indicatif", "plotters"] {
            assert!(!compiled.has(own), "{feature} needs {own}");
        }
        for own in ["axum", "utoipa", "rust-embed"] {
            assert!(feature == "api" || !compiled.has(own), "{feature}: {own}");
        }
        for own in ["lettre", "aws-sigv4", "x509-parser"] {
            let sends = ["api", "notifications"].contains(&feature.as_str());
            assert!(sends || !compiled.has(own), "{feature}: {own}");
        }
    }
}

#[test]
fn the_page_of_features_has_each_with_what_it_turns_on_and_its_number_of_crates() {
    let page = read(PAGE);
    let pinned = read(PINNED);
    let counts: BTreeMap<&str, usize> = pinned
        .lines()
        .map(|line| {
            let (name, rest) = line.split_once(": ").unwrap();
            (name, rest.split(' ').next().unwrap().parse().unwrap())
        })
        .collect();
    let mut documented = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let code = |text: &str| -> BTreeSet<String> {
            let words = text.split('`').skip(1).step_by(2);
            words.map(str::to_owned).collect()
        };
        let name = code(cells[0]).pop_first().unwrap_or("none".to_owned());
        let count: usize = cells[3].parse().unwrap();
        let pinned = counts[name.as_str()];
        assert!(
            pinned.abs_diff(count) <= 10,
            "{name} compiles {pinned} crates, and {PAGE} says {count}"
        );
        documented.insert(name, code(cells[1]));
    }
    documented.remove("none");
    assert_eq!(documented, features());
}

#[test]
fn each_feature_is_passed_on_to_the_lower_package() {
    let lower = features_of("core/Cargo.toml");
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    for (name, includes) in features() {
        assert_eq!(lower.get(&name), Some(&includes), "core/Cargo.toml: {name}");
        let entries = manifest["features"][name.as_str()].as_array().unwrap();
        let passed_on = format!("flyball-core/{name}");
        assert!(
            entries
                .iter()
                .any(|entry| entry.as_str() == Some(&passed_on)),
            "Cargo.toml: {name} lacks {passed_on}"
        );
    }
}

#[test]
fn both_packages_of_the_library_have_one_version_and_one_compiler() {
    let package = |manifest: &str| -> toml::Table { read(manifest).parse().unwrap() };
    let (upper, lower) = (package("Cargo.toml"), package("core/Cargo.toml"));
    for key in ["version", "rust-version", "edition", "license"] {
        assert_eq!(upper["package"][key], lower["package"][key], "{key}");
    }
    assert_eq!(
        upper["dependencies"]["flyball-core"]["version"], upper["package"]["version"],
        "the library depends on the lower package of its own version"
    );
}
