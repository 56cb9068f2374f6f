//! Keeps the house in order: imports point down only and in no circle, a file is pure unless it is listed, a technology
//! appears in its own files only.

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

/// Adapters and services, which may wait, do I/O and read a clock, each with its reason. Every other file is pure.
///
/// A pattern that ends in `/` is a folder; one that begins with `**/` is met in every folder.
const SERVICES: &[(&str, &str)] = &[
    ("cli/", "Opens what the command line names and prints."),
    ("app/", "Puts the parts of the program together."),
    ("api/", "HTTP doors."),
    ("stack/", "Starts and watches processes."),
    ("service/", "Runs loops, batches and supervisors."),
    ("**/postgres", "Speaks to Postgres."),
    ("notify/alarm_postgres.rs", "Speaks to Postgres."),
    ("signals/complaints_postgres.rs", "Speaks to Postgres."),
    ("**/redis", "Speaks to Redis."),
    ("throttle/leased.rs", "Speaks to Redis."),
    ("throttle/foreign.rs", "Speaks to Redis."),
    ("config.rs", "Reads the settings' files."),
    ("config/pools.rs", "Reads the settings' files."),
    ("throttle/file.rs", "Reads the settings' files."),
    ("throttle/seed.rs", "Reads the settings' files."),
    ("calibrate/knob.rs", "Drives a throttle while it measures."),
    ("calibrate/run.rs", "Drives a throttle while it measures."),
    ("cron/scheduler.rs", "Wakes when a schedule is due."),
    (
        "governor/reconcile.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    ("governor/sources.rs", "Ticks: reads signals, writes knobs."),
    (
        "input/pinned.rs",
        "Reads and renews the pins of the unit tests.",
    ),
    ("jobs/context.rs", "Runs a user's code, which is async."),
    ("jobs/handler.rs", "Runs a user's code, which is async."),
    ("notify/deliver/handler.rs", "Sends, watches and cleans up."),
    (
        "notify/deliver/postpone.rs",
        "Sends, watches and cleans up.",
    ),
    ("notify/deliver/run.rs", "Sends, watches and cleans up."),
    ("notify/deliver/send.rs", "Sends, watches and cleans up."),
    ("notify/maintenance.rs", "Sends, watches and cleans up."),
    ("notify/watch.rs", "Sends, watches and cleans up."),
    ("outbound/apart.rs", "Sends HTTP requests."),
    ("outbound/deliver.rs", "Sends HTTP requests."),
    ("outbound/descriptors.rs", "Sends HTTP requests."),
    ("outbound/guard.rs", "Sends HTTP requests."),
    ("outbound/hyper.rs", "Sends HTTP requests."),
    ("outbound/mod.rs", "Sends HTTP requests."),
    ("outbound/reqwest.rs", "Sends HTTP requests."),
    ("outbound/resolve.rs", "Sends HTTP requests."),
    ("providers/apns/connections.rs", "Speaks to providers."),
    ("providers/apns/driver.rs", "Speaks to providers."),
    ("providers/events/read.rs", "Speaks to providers."),
    ("providers/events/sns.rs", "Speaks to providers."),
    ("providers/exchange.rs", "Speaks to providers."),
    ("providers/fcm.rs", "Speaks to providers."),
    ("providers/http.rs", "Speaks to providers."),
    ("providers/oauth.rs", "Speaks to providers."),
    ("providers/ses.rs", "Speaks to providers."),
    ("providers/slack.rs", "Speaks to providers."),
    ("providers/smtp/connections.rs", "Speaks to providers."),
    ("providers/smtp/driver.rs", "Speaks to providers."),
    ("providers/telegram.rs", "Speaks to providers."),
    ("providers/webhook.rs", "Speaks to providers."),
    (
        "providers/pool/account_pool.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    (
        "providers/pool/breakers.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    (
        "providers/pool/maintenance.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    ("providers/clock.rs", "Reads the clock for its room."),
    ("testing/clock.rs", "Reads the clock for its room."),
    (
        "reindex/backfill.rs",
        "Copies pages from a source to a sink.",
    ),
    (
        "reindex/connect.rs",
        "Copies pages from a source to a sink.",
    ),
    ("reindex/flight.rs", "Copies pages from a source to a sink."),
    ("reindex/hidden.rs", "Copies pages from a source to a sink."),
    ("reindex/reader.rs", "Copies pages from a source to a sink."),
    (
        "reindex/sink/elastic.rs",
        "Copies pages from a source to a sink.",
    ),
    ("replay/prometheus.rs", "Asks Prometheus."),
    ("signals/direct.rs", "Asks Prometheus."),
    ("signals/probe.rs", "Asks Prometheus."),
    ("signals/prometheus.rs", "Asks Prometheus."),
    ("signals/range.rs", "Asks Prometheus."),
    ("signals/server.rs", "Asks Prometheus."),
    (
        "runner/completions.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/depth.rs", "Claims, executes and finishes jobs."),
    ("runner/discover.rs", "Claims, executes and finishes jobs."),
    ("runner/dispatch.rs", "Claims, executes and finishes jobs."),
    ("runner/execute.rs", "Claims, executes and finishes jobs."),
    ("runner/finisher.rs", "Claims, executes and finishes jobs."),
    ("runner/heartbeat.rs", "Claims, executes and finishes jobs."),
    (
        "runner/hold_reports.rs",
        "Claims, executes and finishes jobs.",
    ),
    (
        "runner/maintenance.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/notifier.rs", "Claims, executes and finishes jobs."),
    (
        "runner/report_completions.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/running.rs", "Claims, executes and finishes jobs."),
    ("runner/settle.rs", "Claims, executes and finishes jobs."),
    ("runner/shared.rs", "Claims, executes and finishes jobs."),
    (
        "runner/uncertain_claims.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/worker.rs", "Claims, executes and finishes jobs."),
    ("testing/backing.rs", "Runs a user's jobs inside a test."),
    ("testing/memory.rs", "Runs a user's jobs inside a test."),
    ("testing/queue.rs", "Runs a user's jobs inside a test."),
    ("throttle/cost.rs", "Traits with async methods."),
    ("throttle/mod.rs", "Traits with async methods."),
];

/// Pure files inside the folders above.
const PURE_ALL_THE_SAME: &[&str] = &["api/http/connection_slots.rs", "throttle/redis/layout.rs"];

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

/// Libraries and the files and folders in which each may be named.
const TECHNOLOGIES: &[(&str, &[&str])] = &[
    ("arc_swap", &["api/", "providers/pool/", "throttle/redis/"]),
    ("aws_credential_types", &["providers/ses.rs"]),
    (
        "aws_lc_rs",
        &[
            "api/",
            "notify/",
            "outbound/signature.rs",
            "providers/apns/",
            "providers/events/",
        ],
    ),
    ("aws_sigv4", &["providers/ses.rs"]),
    ("axum", &["api/"]),
    ("base64", &["outbound/", "providers/", "signals/server.rs"]),
    ("clap", &["cli/"]),
    ("comfy_table", &["cli/output.rs"]),
    ("h2", &["providers/apns/connections.rs"]),
    ("http", &["outbound/hyper.rs", "providers/apns/"]),
    ("http_body_util", &["outbound/hyper.rs", "providers/apns/"]),
    (
        "httpdate",
        &["outbound/retry_after.rs", "signals/server.rs"],
    ),
    (
        "hyper",
        &["api/", "outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    (
        "hyper_rustls",
        &["outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    (
        "hyper_util",
        &["api/", "outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    ("indicatif", &["cli/"]),
    (
        "jiff_sqlx",
        &["**/postgres", "api/", "jobs/", "notify/alarm_postgres.rs"],
    ),
    (
        "jsonwebtoken",
        &["providers/apns/token.rs", "providers/oauth.rs"],
    ),
    ("lettre", &["providers/smtp/"]),
    ("mime_guess", &["api/"]),
    ("minijinja", &["outbound/template.rs", "outbound/template/"]),
    ("percent_encoding", &["api/", "outbound/credentials.rs"]),
    ("pid", &["control/", "simulate/bare_pid.rs"]),
    (
        "plotters",
        &["plot.rs", "replay/plot.rs", "simulate/plot.rs"],
    ),
    (
        "prometheus_client",
        &[
            "api/",
            "app.rs",
            "app/",
            "notify/metrics.rs",
            "providers/metrics.rs",
            "runner/metrics.rs",
            "runner/runs.rs",
            "throttle/leased.rs",
        ],
    ),
    ("prometheus_http_query", &["signals/"]),
    ("redis", &["**/redis"]),
    (
        "reqwest",
        &[
            "outbound/reqwest.rs",
            "reindex/connect.rs",
            "reindex/sink/elastic.rs",
            "signals/",
        ],
    ),
    ("rust_embed", &["api/"]),
    (
        "rustix",
        &[
            "app/descriptors.rs",
            "outbound/descriptors.rs",
            "runner/shared.rs",
            "stack/",
        ],
    ),
    (
        "rustls",
        &[
            "outbound/hyper.rs",
            "providers/apns/connections.rs",
            "providers/events/chain.rs",
        ],
    ),
    ("rustls_platform_verifier", &["providers/events/chain.rs"]),
    ("serde_path_to_error", &["jobs/typed.rs"]),
    (
        "sqlx",
        &[
            "**/postgres",
            "jobs/record.rs",
            "notify/alarm_postgres.rs",
            "signals/complaints_postgres.rs",
            "testing/queue.rs",
        ],
    ),
    (
        "toml",
        &[
            "calibrate/edit.rs",
            "cli/simulate.rs",
            "config.rs",
            "config/",
            "governor/parse.rs",
            "input/toml.rs",
            "simulate/scenario.rs",
            "throttle/file.rs",
        ],
    ),
    ("strsim", &["input/"]),
    ("tower_http", &["api/"]),
    (
        "tower_service",
        &["api/", "outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    ("tracing_subscriber", &["app/logging.rs"]),
    (
        "utoipa",
        &["api/", "cron/", "jobs/", "notify/", "providers/"],
    ),
    ("utoipa_axum", &["api/"]),
    ("x509_parser", &["providers/events/"]),
];

/// Vocabulary that every file may use.
const EVERYWHERE: &[&str] = &[
    "anyhow",
    "bytes",
    "futures_util",
    "jiff",
    "parking_lot",
    "rand",
    "serde",
    "serde_json",
    "thiserror",
    "tokio",
    "tokio_util",
    "tracing",
    "url",
];

/// Rooms whose files still import each other in a circle.
const KNOTS_STILL_CLOSED: &[&str] = &["governor"];

struct Source {
    path: String,
    room: String,
    /// The text without comments, without what is quoted and without its own unit tests.
    code: String,
    /// All paths that the code names, groups opened.
    paths: Vec<NamedPath>,
}

/// A path such as `crate::jobs::State`.
#[derive(Debug)]
struct NamedPath {
    segments: Vec<String>,
    is_import: bool,
    is_public: bool,
    /// The name under which an import is known in its file.
    alias: Option<String>,
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

/// The code without comments; literals of text keep their quotes only.
fn bare(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut i = 0;
    while i < chars.len() {
        let c = at(i);
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            while i < chars.len() {
                if at(i) == '/' && at(i + 1) == '*' {
                    depth += 1;
                    i += 2;
                } else if at(i) == '*' && at(i + 1) == '/' {
                    depth -= 1;
                    i += 2;
                } else {
                    i += 1;
                }
                if depth == 0 {
                    break;
                }
            }
        } else if c == '"' {
            i += 1;
            while i < chars.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
            out.push_str("\"\"");
        } else if is_word(c) {
            let start = i;
            while is_word(at(i)) {
                i += 1;
            }
            let word: String = chars[start..i].iter().collect();
            let hashes = (0..).take_while(|n| at(i + n) == '#').count();
            if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                i += hashes + 1;
                let is_end = |i: usize| at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#');
                while i < chars.len() && !is_end(i) {
                    i += 1;
                }
                i += 1 + hashes;
                out.push_str("\"\"");
            } else {
                out.push_str(&word);
            }
        } else if c == '\'' && at(i + 1) == '\\' {
            i += 3;
            while i < chars.len() && at(i) != '\'' {
                i += 1;
            }
            i += 1;
            out.push_str("' '");
        } else if c == '\'' && at(i + 2) == '\'' {
            i += 3;
            out.push_str("' '");
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

/// The code without each item that `#[cfg(test)]` marks; what follows such an item stays.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        out.push_str(before);
        let mut after = after.trim_start();
        while after.starts_with("#[") {
            after = after[balanced(after, '[', ']')..].trim_start();
        }
        let end = after.find([';', '{']).expect("an item ends");
        rest = if after[end..].starts_with(';') || after.starts_with("use ") {
            after.split_once(';').expect("an import ends").1
        } else {
            &after[balanced(after, '{', '}')..]
        };
    }
    out.push_str(rest);
    out
}

/// The place behind the first group of these brackets.
fn balanced(code: &str, open: char, close: char) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                return at + 1;
            }
        }
    }
    panic!("{open} has no {close}")
}

/// Words, `::` and single signs.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        found.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn paths_of(code: &str) -> Vec<NamedPath> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" {
            let is_public = at > 0 && matches!(tokens[at - 1], "pub" | ")");
            let first = found.len();
            at = tree(&tokens, at + 1, &[], &mut found);
            for path in &mut found[first..] {
                path.is_import = true;
                path.is_public = is_public;
            }
        } else if is_name(tokens[at]) && tokens.get(at + 1) == Some(&"::") {
            at = tree(&tokens, at, &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one path, or one group of paths, that begins at `at`; answers with the place behind it.
fn tree(tokens: &[&str], mut at: usize, prefix: &[String], found: &mut Vec<NamedPath>) -> usize {
    let mut segments = prefix.to_vec();
    loop {
        match tokens.get(at).copied() {
            Some("::") => at += 1,
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    if tokens[at] == "," {
                        at += 1;
                        continue;
                    }
                    let next = tree(tokens, at, &segments, found);
                    assert!(next > at, "a group of names: {:?}", &tokens[at..at + 3]);
                    at = next;
                }
                return at + 1;
            }
            Some(token) if is_name(token) || token == "*" => {
                segments.push(token.to_owned());
                at += 1;
                let goes_on = tokens.get(at) == Some(&"::")
                    && tokens
                        .get(at + 1)
                        .is_some_and(|next| is_name(next) || matches!(*next, "{" | "*"));
                if !goes_on {
                    break;
                }
            }
            _ => break,
        }
    }
    let mut alias = None;
    if tokens.get(at) == Some(&"as") && tokens.get(at + 1).is_some_and(|name| is_name(name)) {
        alias = Some(tokens[at + 1].to_owned());
        at += 2;
    }
    if segments.last().is_some_and(|last| last == "self") && segments.len() > 1 {
        segments.pop();
    }
    if segments.is_empty() {
        return at;
    }
    found.push(NamedPath {
        segments,
        is_import: false,
        is_public: false,
        alias,
    });
    at
}

fn rooms_named(source: &Source) -> BTreeSet<String> {
    let modules = Modules::of(std::slice::from_ref(source));
    source
        .paths
        .iter()
        .filter_map(|path| modules.absolute(source, path)?.into_iter().next())
        .filter(|room| MAY_NAME.iter().any(|(name, _)| name == room))
        .collect()
}

/// The module of a file: `jobs/postgres/mod.rs` is `jobs::postgres`.
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
struct Modules<'a> {
    files: BTreeMap<Vec<String>, &'a Source>,
}

impl<'a> Modules<'a> {
    fn of(sources: &'a [Source]) -> Self {
        let files = sources
            .iter()
            .filter(|source| source.path != "main.rs")
            .map(|source| (module_of(&source.path), source))
            .collect();
        Self { files }
    }

    /// The path from the root of the crate, if it is one of the crate's own.
    fn absolute(&self, from: &Source, path: &NamedPath) -> Option<Vec<String>> {
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

    /// The file that defines what an absolute path names, through the doors that pass it on.
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

    /// The files of the same room that each file names.
    fn inside_rooms(&self) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for source in self.files.values() {
            let is_door = source.path.ends_with("mod.rs");
            let to = graph.entry(&source.path).or_default();
            for path in &source.paths {
                if path.is_public && path.is_import && is_door {
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

/// The groups of files of which each reaches each other.
fn circles(graph: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let reach = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = graph[from].iter().copied().collect();
        while let Some(file) = open.pop() {
            if reached.insert(file) {
                open.extend(graph[file].iter().copied());
            }
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|file| (*file, reach(file))).collect();
    let mut found = BTreeSet::new();
    for (file, to) in &reached {
        let circle: BTreeSet<&str> = to
            .iter()
            .copied()
            .filter(|other| reached[other].contains(file))
            .collect();
        if !circle.is_empty() {
            found.insert(circle);
        }
    }
    let say = |circle: BTreeSet<&str>| {
        let arrows: Vec<String> = circle
            .iter()
            .flat_map(|from| {
                let inside = graph[from].intersection(&circle);
                inside.map(move |to| format!("{from} -> {to}"))
            })
            .collect();
        arrows.join(", ")
    };
    found.into_iter().map(say).collect()
}

#[test]
fn the_reader_of_imports_sees_all_forms() {
    let text = r##"
        use crate::{jobs::{self, postgres::{Db as Base, Tally}}, throttle};
        pub use super::lane::Lane;
        // use crate::api::Nothing;
        const TEXT: &str = "crate::api::Nothing";
        const RAW: &str = r#"crate::api::"Nothing"#;
        #[cfg(test)]
        #[path = "x_tests.rs"]
        mod tests;
        #[cfg(test)]
        mod more { use crate::api::Nothing; fn f() { if true {} } }
        fn f<'a>(c: char) -> crate::cron::Next { if c == '"' { crate::replay::run::<u8>(c) } }
    "##;
    let paths = paths_of(&without_tests(&bare(text)));
    let seen: Vec<String> = paths.iter().map(|path| path.segments.join("::")).collect();
    assert_eq!(
        seen,
        [
            "crate::jobs",
            "crate::jobs::postgres::Db",
            "crate::jobs::postgres::Tally",
            "crate::throttle",
            "super::lane::Lane",
            "crate::cron::Next",
            "crate::replay::run",
        ]
    );
    assert_eq!(paths[1].alias.as_deref(), Some("Base"));
    assert!(paths[4].is_public && !paths[3].is_public);
    let graph = BTreeMap::from([
        ("a", BTreeSet::from(["b"])),
        ("b", BTreeSet::from(["c"])),
        ("c", BTreeSet::from(["b"])),
    ]);
    assert_eq!(circles(&graph), ["b -> c, c -> b"]);
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

#[test]
fn no_circle_of_imports_inside_a_room() {
    let sources = sources();
    let mut graph = Modules::of(&sources).inside_rooms();
    let arrows: usize = graph.values().map(BTreeSet::len).sum();
    assert!(arrows > 500, "{arrows} arrows between files of one room");
    graph.retain(|file, _| {
        let room = file.split('/').next().unwrap();
        !KNOTS_STILL_CLOSED.contains(&room)
    });
    let circles = circles(&graph);
    assert!(circles.is_empty(), "{circles:#?}");
}

/// Whether a pattern means this file: the file itself, a folder's begin, or any folder of that name.
fn is_at(path: &str, pattern: &str) -> bool {
    match pattern.strip_prefix("**/") {
        Some(part) => path.starts_with(part) || path.contains(&format!("/{part}")),
        None if pattern.ends_with('/') => path.starts_with(pattern),
        None => path == pattern,
    }
}

#[test]
fn a_file_is_pure_unless_it_is_an_adapter_or_a_service() {
    let sources = sources();
    let is_gone = |path: &str| !sources.iter().any(|source| source.path == path);
    let mut wrong: Vec<String> = PURE_ALL_THE_SAME
        .iter()
        .filter(|path| is_gone(path))
        .map(|path| format!("{path} is gone; say where its noun lives now"))
        .collect();
    let mut used = BTreeSet::new();
    for source in &sources {
        let place = SERVICES
            .iter()
            .find(|(pattern, _)| is_at(&source.path, pattern))
            .filter(|_| !PURE_ALL_THE_SAME.contains(&source.path.as_str()));
        let found = IMPURE.iter().filter(|word| source.code.contains(**word));
        for word in found {
            match place {
                Some((pattern, _)) => _ = used.insert(*pattern),
                None => wrong.push(format!("{} contains {word}", source.path)),
            }
        }
    }
    let unused = SERVICES
        .iter()
        .filter(|(pattern, _)| !used.contains(pattern));
    wrong.extend(unused.map(|(pattern, _)| format!("{pattern} is pure by now: take it out")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_technology_appears_in_its_own_files_only() {
    let mut wrong = Vec::new();
    let sources = sources();
    let modules = Modules::of(&sources);
    for source in &sources {
        let foreign = |path: &&NamedPath| modules.absolute(source, path).is_none();
        for path in source.paths.iter().filter(foreign) {
            let library = path.segments[0].as_str();
            let places = TECHNOLOGIES.iter().find(|(name, _)| *name == library);
            if let Some((_, places)) = places
                && !places.iter().any(|place| is_at(&source.path, place))
            {
                wrong.push(format!("{} names {library}", source.path));
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_dependency_has_its_place() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let (_, after) = manifest.split_once("\n[dependencies]\n").unwrap();
    let names: BTreeSet<String> = after
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['=', '.', ' ']).next())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(|name| name.replace('-', "_"))
        .collect();
    assert!(names.contains("sqlx") && names.len() > 30, "{names:?}");
    let placed: BTreeSet<String> = TECHNOLOGIES
        .iter()
        .map(|(name, _)| *name)
        .chain(EVERYWHERE.iter().copied())
        .map(str::to_owned)
        .collect();
    let difference: Vec<_> = names.symmetric_difference(&placed).collect();
    assert!(difference.is_empty(), "{difference:?}");
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
