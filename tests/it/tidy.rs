//! Keeps the house in order: imports point down only, nouns are pure, a technology appears in its own files only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Which rooms each room may name. A room that is not here may name none.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("control", &[]),
    ("input", &[]),
    ("postgres", &[]),
    ("service", &["postgres"]),
    ("plot", &[]),
    ("stack", &[]),
    ("throttle", &["control", "input", "postgres"]),
    ("signals", &["control", "postgres"]),
    ("jobs", &["control", "input", "postgres", "throttle"]),
    ("cron", &["jobs", "postgres", "service"]),
    ("testing", &["input", "jobs", "postgres", "throttle"]),
    (
        "governor",
        &[
            "control", "input", "postgres", "service", "signals", "throttle",
        ],
    ),
    ("simulate", &["control", "governor", "plot"]),
    (
        "runner",
        &["control", "input", "jobs", "service", "throttle"],
    ),
    ("outbound", &["control", "input", "jobs"]),
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
            "service",
            "throttle",
        ],
    ),
    ("calibrate", &["control", "governor", "signals", "throttle"]),
    ("replay", &["control", "governor", "plot", "signals"]),
    (
        "api",
        &[
            "control",
            "cron",
            "governor",
            "input",
            "jobs",
            "notify",
            "postgres",
            "providers",
            "service",
            "signals",
            "throttle",
        ],
    ),
    (
        "config",
        &["input", "postgres", "providers", "reindex", "throttle"],
    ),
    (
        "app",
        &[
            "api",
            "config",
            "control",
            "cron",
            "governor",
            "jobs",
            "notify",
            "outbound",
            "postgres",
            "providers",
            "reindex",
            "runner",
            "service",
            "signals",
            "stack",
            "throttle",
        ],
    ),
    (
        "cli",
        &[
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
    (
        "lib",
        &[
            "api",
            "app",
            "calibrate",
            "cli",
            "config",
            "control",
            "cron",
            "governor",
            "jobs",
            "notify",
            "outbound",
            "plot",
            "postgres",
            "providers",
            "reindex",
            "replay",
            "runner",
            "service",
            "signals",
            "simulate",
            "stack",
            "testing",
            "throttle",
        ],
    ),
];

/// Files that hold nouns: no async, no I/O, no clock. Every file of `control` is one as well.
const NOUNS: &[&str] = &[
    "api/http/connection_slots.rs",
    "calibrate/edit.rs",
    "calibrate/fit.rs",
    "calibrate/margins.rs",
    "calibrate/pulse.rs",
    "cron/expression.rs",
    "cron/occurrence.rs",
    "cron/schedule.rs",
    "governor/actuator.rs",
    "governor/plan.rs",
    "governor/policy.rs",
    "governor/watchdogs/deaf.rs",
    "governor/watchdogs/idle.rs",
    "governor/watchdogs/oscillation.rs",
    "governor/watchdogs/reach.rs",
    "governor/watchdogs/sharing.rs",
    "governor/watchdogs/watch.rs",
    "governor/week.rs",
    "governor/why.rs",
    "input/file.rs",
    "input/issue.rs",
    "input/reader.rs",
    "input/toml.rs",
    "input/wording.rs",
    "jobs/check.rs",
    "jobs/handler_error.rs",
    "jobs/job.rs",
    "jobs/depth_counter.rs",
    "jobs/operate.rs",
    "jobs/outcome.rs",
    "jobs/record.rs",
    "jobs/retry.rs",
    "notify/args.rs",
    "notify/notification.rs",
    "notify/recipient.rs",
    "notify/record.rs",
    "notify/state.rs",
    "outbound/quota.rs",
    "outbound/request.rs",
    "outbound/response.rs",
    "outbound/host_backoff.rs",
    "outbound/retry_after.rs",
    "outbound/signature.rs",
    "outbound/template.rs",
    "providers/account.rs",
    "providers/arguments.rs",
    "providers/apns/lines.rs",
    "providers/apns/push.rs",
    "providers/apns/reasons.rs",
    "providers/apns/token.rs",
    "providers/code.rs",
    "providers/event.rs",
    "providers/events/age.rs",
    "providers/events/envelope.rs",
    "providers/events/mailgun.rs",
    "providers/events/sendgrid.rs",
    "providers/events/ses.rs",
    "providers/events/twilio.rs",
    "providers/message.rs",
    "providers/outcome.rs",
    "providers/pool/breaker.rs",
    "providers/pool/choice.rs",
    "providers/pool/shedding.rs",
    "providers/pool/view.rs",
    "providers/provider.rs",
    "providers/sent.rs",
    "providers/settings.rs",
    "providers/smtp/words.rs",
    "providers/words.rs",
    "reindex/args.rs",
    "reindex/catalogue.rs",
    "reindex/progress.rs",
    "replay/record.rs",
    "replay/report.rs",
    "replay/run.rs",
    "replay/smooth.rs",
    "runner/lane_scheduler.rs",
    "signals/reading.rs",
    "simulate/bare_pid.rs",
    "simulate/controller.rs",
    "simulate/curve.rs",
    "simulate/exporter.rs",
    "simulate/plant.rs",
    "simulate/run.rs",
    "simulate/scenario.rs",
    "simulate/score.rs",
    "simulate/disturbance.rs",
    "throttle/bucket.rs",
    "throttle/knobs.rs",
    "throttle/lease.rs",
    "throttle/name.rs",
    "throttle/quota_window.rs",
    "throttle/redis/layout.rs",
    "throttle/store.rs",
];

/// What a noun must not contain.
const IMPURE: &[&str] = &[
    "async fn",
    "async {",
    "async move",
    ".await",
    "tokio::",
    "redis::",
    "reqwest::",
    "axum::",
    "std::fs",
    "std::net",
    "::now()",
];

/// A library, and the words in a path below `src` one of which must occur where it is named.
const TECHNOLOGIES: &[(&str, &[&str])] = &[
    ("sqlx::", &["postgres", "jobs/record.rs"]),
    ("redis::", &["redis"]),
    ("pid::", &["control/", "simulate/bare_pid"]),
    ("axum::", &["api/"]),
    ("rust_embed::", &["api/"]),
    ("plotters::", &["plot"]),
    ("minijinja::", &["outbound/template"]),
    (
        "hyper_util::",
        &["outbound/hyper", "providers/apns", "api/serve"],
    ),
    ("lettre::", &["providers/smtp"]),
    ("aws_sigv4::", &["providers/ses"]),
    ("clap::", &["cli/"]),
];

struct Source {
    path: String,
    room: String,
    /// The text without comments and without its own unit tests.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
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
            let before_tests = text.split("#[cfg(test)]").next().unwrap();
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            let code = before_tests
                .lines()
                .filter(is_code)
                .collect::<Vec<_>>()
                .join("\n");
            Source { path, room, code }
        })
        .filter(|source| !source.path.ends_with("_tests.rs"))
        .collect()
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Whether `name::` occurs as a path of its own, not as the end of another word or path.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

fn rooms_named(code: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let group = group.split('}').next().unwrap_or_default();
            rooms.extend(
                group
                    .split(',')
                    .map(|one| one.trim().split("::").next().unwrap().trim().to_owned()),
            );
        } else {
            rooms.insert(
                rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    rooms.retain(|room| MAY_NAME.iter().any(|(name, _)| name == room));
    rooms
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
        for room in rooms_named(&source.code) {
            if room != source.room && !may.contains(&room.as_str()) {
                wrong.push(format!("{} names {room}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nouns_are_pure() {
    let sources = sources();
    for noun in NOUNS {
        assert!(
            sources.iter().any(|source| source.path == *noun),
            "{noun} is gone; say where its noun lives now"
        );
    }
    let mut wrong = Vec::new();
    for source in sources
        .iter()
        .filter(|one| one.room == "control" || NOUNS.contains(&one.path.as_str()))
    {
        let found = IMPURE.iter().filter(|word| source.code.contains(**word));
        wrong.extend(found.map(|word| format!("{} contains {word}", source.path)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_technology_appears_in_its_own_files_only() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (library, places) in TECHNOLOGIES {
            if names(&source.code, library)
                && !places.iter().any(|place| source.path.contains(place))
            {
                wrong.push(format!("{} names {library}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_door_holds_no_logic() {
    let doors = sources()
        .into_iter()
        .filter(|source| source.path.ends_with("mod.rs") && source.room != "cli");
    let wrong: Vec<String> = doors
        .filter(|door| door.code.contains("fn "))
        .map(|door| door.path)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Names that every module may have for itself.
const COMMON_NAMES: [&str; 3] = ["Args", "Command", "Error"];

/// The name of the type that a line defines. Associated types of an `impl` are none of ours to choose.
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

/// Words with which no comment of an item begins: it begins with a verb or a noun.
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

/// All Rust sources of the product and of the laboratory.
fn all_files() -> Vec<PathBuf> {
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
    for folder in ["src", "lab/src", "lab/fakes/src"] {
        walk(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
            &mut found,
        );
    }
    found
}
