//! Imports point down only: the allowed imports of each room.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Modules;
use super::sources::{Source, sources};

/// The rooms that each room may import. A room that is not listed may import none.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("control", &[]),
    ("input", &[]),
    ("postgres", &[]),
    ("service", &["postgres"]),
    ("plot", &[]),
    ("stack", &[]),
    ("throttle", &["control", "input", "postgres"]),
    ("signals", &["control", "postgres"]),
    ("trace", &[]),
    (
        "jobs",
        &["control", "input", "postgres", "throttle", "trace"],
    ),
    ("cron", &["jobs", "postgres", "service"]),
    ("testing", &["input", "jobs", "postgres", "throttle"]),
    (
        "governor",
        &[
            "control", "input", "postgres", "service", "signals", "throttle",
        ],
    ),
    ("simulate", &["control", "governor", "plot", "signals"]),
    (
        "runner",
        &["control", "input", "jobs", "service", "throttle", "trace"],
    ),
    ("outbound", &["control", "input", "jobs", "trace"]),
    (
        "reindex",
        &[
            "control", "input", "jobs", "outbound", "postgres", "throttle",
        ],
    ),
    (
        "providers",
        &[
            "control", "input", "jobs", "outbound", "postgres", "service", "throttle",
        ],
    ),
    (
        "notify",
        &[
            "control",
            "input",
            "jobs",
            "outbound",
            "postgres",
            "providers",
            "recipient",
            "service",
            "throttle",
        ],
    ),
    ("messages", &["jobs", "notify", "providers"]),
    ("admission", &["jobs", "throttle"]),
    (
        "gateway",
        &["inbox", "input", "jobs", "postgres", "service", "throttle"],
    ),
    (
        "inbox",
        &[
            "input",
            "jobs",
            "notify",
            "postgres",
            "providers",
            "service",
        ],
    ),
    (
        "recipient",
        &[
            "cron",
            "input",
            "jobs",
            "outbound",
            "postgres",
            "providers",
            "service",
        ],
    ),
    ("calibrate", &["control", "governor", "signals", "throttle"]),
    ("replay", &["control", "governor", "plot", "signals"]),
    (
        "api",
        &[
            "admission",
            "control",
            "cron",
            "gateway",
            "governor",
            "inbox",
            "input",
            "jobs",
            "notify",
            "postgres",
            "providers",
            "recipient",
            "service",
            "signals",
            "throttle",
            "trace",
        ],
    ),
    (
        "config",
        &["input", "postgres", "providers", "reindex", "throttle"],
    ),
    (
        "app",
        &[
            "admission",
            "api",
            "config",
            "control",
            "cron",
            "gateway",
            "governor",
            "inbox",
            "jobs",
            "notify",
            "outbound",
            "postgres",
            "providers",
            "recipient",
            "reindex",
            "runner",
            "service",
            "signals",
            "stack",
            "throttle",
            "trace",
        ],
    ),
    (
        "cli",
        &[
            "admission",
            "api",
            "app",
            "calibrate",
            "config",
            "control",
            "cron",
            "governor",
            "input",
            "jobs",
            "notify",
            "outbound",
            "postgres",
            "providers",
            "recipient",
            "reindex",
            "replay",
            "runner",
            "service",
            "signals",
            "simulate",
            "stack",
            "throttle",
        ],
    ),
    ("main", &["cli"]),
    ("lib", &["app", "jobs"]),
];

/// Returns the rooms imported by a file.
fn rooms_named(source: &Source) -> BTreeSet<String> {
    let modules = Modules::of(std::slice::from_ref(source));
    source
        .paths
        .iter()
        .filter_map(|path| modules.absolute(source, path)?.into_iter().next())
        .filter(|room| MAY_NAME.iter().any(|(name, _)| name == room))
        .collect()
}

#[test]
fn imports_point_down_only() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_NAME.iter().copied().collect();
    let mut wrong = Vec::new();
    for source in sources() {
        let may = allowed
            .get(source.room.as_str())
            .copied()
            .unwrap_or_default();
        for room in rooms_named(&source) {
            if room != source.room && !may.contains(&room.as_str()) {
                wrong.push(format!("{} names {room}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
