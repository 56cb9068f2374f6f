//! The pages under `docs/` are true: every reference table is compared with what it describes.
//!
//! Elsewhere, beside what they describe: `knobs.md` in `throttle/knobs_tests.rs`, `policy.md` in `governor/keys.rs`,
//! `errors.md` in `api/problem.rs`, the guide of providers in `docs_providers.rs`, and the part of `metrics.md` that the API makes in `api/metrics_tests.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flyball::app::{self, App, Roles};
use flyball::config::{
    API_TOKEN_KEYS, DEFAULT_FILE, KEYS, KIND_KEYS, POSTGRES_KEYS, PROMETHEUS_KEYS, SINK_KEYS,
    SOURCE_KEYS, Settings,
};
use flyball::jobs::{Kinds, NewJob};
use flyball::throttle::{Name, Store};
use serde_json::{Value, json};

use crate::support::{PROGRAM, database, eventually, patient_store, redis_prefix, stack};

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every page, relative to the root.
fn pages() -> Vec<String> {
    let mut pages = vec![
        "ARCHITECTURE.md".to_owned(),
        "CHANGELOG.md".to_owned(),
        "README.md".to_owned(),
    ];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    pages.retain(|page| root().join(page).exists());
    pages
}

/// The part of a page under a heading, up to the next heading of the same or a higher level.
pub fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let level = heading.split(' ').next().unwrap();
    let start = page
        .find(&format!("{heading}\n"))
        .unwrap_or_else(|| panic!("there is no heading {heading:?}"));
    let rest = &page[start + heading.len()..];
    let ends = (1..=level.len()).filter_map(|n| rest.find(&format!("\n{} ", "#".repeat(n))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

/// The cells of a table's rows that begin with a code span, without the bars and the backticks of the first cell.
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.trim_matches('|')
            .split(" |")
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .map(cells)
        .collect()
}

/// The text of a cell that is one code span.
pub fn code(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// The code blocks of a page with their languages.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

// === Settings ===

#[test]
fn the_page_of_settings_has_every_key_with_its_variable_and_its_default() {
    let defaults: toml::Table = toml::from_str(DEFAULT_FILE).unwrap();
    let wanted: Vec<[String; 3]> = KEYS
        .iter()
        .map(|(key, variable)| {
            [
                (*key).to_owned(),
                (*variable).to_owned(),
                defaults[*key].to_string(),
            ]
        })
        .collect();

    let page = read("docs/reference/config.md");
    let table = page.split("\n## ").next().unwrap();
    let documented: Vec<[String; 3]> = rows(table)
        .iter()
        .map(|row| [0, 1, 2].map(|cell| code(&row[cell]).to_owned()))
        .collect();

    assert_eq!(documented, wanted);
}

#[test]
fn the_ranges_of_settings_are_those_that_are_enforced() {
    let page = read("docs/reference/config.md");
    let load = |variable: &str, value: i64| {
        Settings::load(
            None,
            &BTreeMap::from([(variable.to_owned(), value.to_string())]),
        )
        .map(|_| ())
        .map_err(|e| e.to_string())
    };
    let mut ranges = 0;
    for row in rows(page.split("\n## ").next().unwrap()) {
        let (variable, allowed) = (code(&row[1]), row[4].as_str());
        let Some((low, high)) = allowed.split_once(" to ") else {
            continue;
        };
        let (low, high): (i64, i64) = (low.parse().unwrap(), high.parse().unwrap());
        for good in [low, high] {
            assert_eq!(load(variable, good), Ok(()), "{variable}");
        }
        for bad in [low - 1, high + 1] {
            let refused = load(variable, bad).unwrap_err();
            assert!(
                bad < 0 || refused.contains(allowed),
                "{variable}={bad}: {refused}"
            );
        }
        ranges += 1;
    }
    assert_eq!(ranges, 9, "numbers are documented as `low to high`");
}

#[test]
fn the_page_of_settings_has_every_key_of_a_kind_with_its_range() {
    let page = read("docs/reference/config.md");
    let documented: Vec<(String, String)> = rows(section(&page, "## Settings of one kind"))
        .iter()
        .map(|row| (code(&row[0]).to_owned(), row[3].clone()))
        .collect();

    let wanted: Vec<(String, String)> = KIND_KEYS
        .iter()
        .map(|(key, _, _, allowed)| ((*key).to_owned(), (*allowed).to_owned()))
        .collect();
    assert_eq!(documented, wanted);
    assert!(
        wanted
            .iter()
            .all(|(key, _)| DEFAULT_FILE.contains(&format!("# {key} = ")))
    );
}

#[test]
fn the_page_of_settings_has_every_key_of_a_token() {
    let page = read("docs/reference/config.md");
    let documented: Vec<String> = rows(section(&page, "## More tokens of the API"))
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();

    assert_eq!(documented, API_TOKEN_KEYS);
    assert!(
        API_TOKEN_KEYS
            .iter()
            .all(|key| DEFAULT_FILE.contains(&format!("# {key} = ")))
    );
}

#[test]
fn the_page_of_settings_has_every_key_of_a_server_that_policies_name() {
    let page = read("docs/reference/config.md");
    let keys = |heading: &str| -> Vec<String> {
        rows(section(&page, heading))
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };

    assert_eq!(keys("## More Prometheus servers"), PROMETHEUS_KEYS);
    assert_eq!(keys("## Databases for signals"), POSTGRES_KEYS);
    let reindex = section(&page, "## Sources and sinks of reindex");
    let (sources, sinks) = reindex
        .split_once("A table `[reindex.sinks.<name>]`")
        .unwrap();
    let of = |text: &str| -> Vec<String> {
        rows(text)
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };
    assert_eq!(
        (of(sources), of(sinks)),
        (
            SOURCE_KEYS.map(str::to_owned).to_vec(),
            SINK_KEYS.map(str::to_owned).to_vec()
        )
    );
    let all = PROMETHEUS_KEYS
        .iter()
        .chain(&POSTGRES_KEYS)
        .chain(&SOURCE_KEYS)
        .chain(&SINK_KEYS);
    assert!(
        all.into_iter()
            .all(|key| DEFAULT_FILE.contains(&format!("# {key} = ")))
    );
}

// === The command line ===

/// What `--help` of the real program says about one command.
struct Help {
    commands: Vec<String>,
    /// Long options with their defaults.
    options: BTreeMap<String, Option<String>>,
}

fn help(command: &[String]) -> Help {
    let output = Command::new(PROGRAM.as_path())
        .args(command)
        .arg("--help")
        .env_clear()
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !text.is_empty(), "{command:?}");
    let mut help = Help {
        commands: Vec::new(),
        options: BTreeMap::new(),
    };
    let mut part = "";
    let mut option = None;
    for line in text.lines() {
        let line = line.trim_end();
        let word = line.trim_start();
        match line {
            "Commands:" | "Options:" | "Arguments:" => part = line,
            _ if line.is_empty() => {}
            _ if !line.starts_with(' ') => part = "",
            _ if part == "Commands:" => help
                .commands
                .push(word.split(' ').next().unwrap().to_owned()),
            _ if part == "Options:" => {
                let long = word
                    .strip_prefix("-h, ")
                    .or(word.strip_prefix("-V, "))
                    .unwrap_or(word);
                if let Some(name) = long.strip_prefix("--") {
                    let name = format!("--{}", name.split([' ', '[']).next().unwrap());
                    help.options.insert(name.clone(), None);
                    option = Some(name);
                }
                if let (Some(name), Some((_, rest))) = (&option, line.split_once("[default: ")) {
                    help.options.insert(
                        name.clone(),
                        Some(rest.split(']').next().unwrap().to_owned()),
                    );
                }
            }
            _ => {}
        }
    }
    help.commands.retain(|name| name != "help");
    help
}

/// Every command with its help, subcommands after their parents.
fn commands() -> Vec<(Vec<String>, Help)> {
    let mut all = Vec::new();
    let mut next = vec![Vec::new()];
    while let Some(command) = next.pop() {
        let help = help(&command);
        next.extend(
            help.commands
                .iter()
                .map(|name| [command.as_slice(), std::slice::from_ref(name)].concat()),
        );
        all.push((command, help));
    }
    all
}

/// Options of every command, which the page tells once.
const COMMON: [&str; 3] = ["--config", "--help", "--version"];

#[test]
fn the_page_of_commands_has_every_command_with_every_option_and_its_default() {
    let page = read("docs/reference/cli.md");
    let mut headings = BTreeSet::new();
    for (command, help) in commands() {
        // A command that only groups others has nothing of its own.
        let groups = !help.commands.is_empty()
            && help
                .options
                .keys()
                .all(|name| COMMON.contains(&name.as_str()));
        if groups {
            continue;
        }
        let heading = format!("## `flyball {}`", command.join(" "));
        let documented: BTreeMap<String, String> = rows(section(&page, &heading))
            .into_iter()
            .map(|row| (code(&row[0]).to_owned(), code(&row[1]).to_owned()))
            .collect();

        let wanted: BTreeSet<_> = help
            .options
            .keys()
            .filter(|name| !COMMON.contains(&name.as_str()))
            .collect();
        assert_eq!(
            documented.keys().collect::<BTreeSet<_>>(),
            wanted,
            "{heading}"
        );
        for (name, default) in help
            .options
            .iter()
            .filter(|(name, _)| !COMMON.contains(&name.as_str()))
        {
            if let Some(default) = default {
                assert_eq!(&documented[name], default, "{heading}: {name}");
            }
        }
        headings.insert(heading);
    }
    let told: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with("## `"))
        .map(str::to_owned)
        .collect();
    assert_eq!(told, headings, "commands that do not exist");
}

#[test]
fn the_page_of_commands_has_the_exit_codes_that_help_tells() {
    let output = Command::new(PROGRAM.as_path())
        .arg("--help")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let said = said
        .split_once("Exit codes: ")
        .unwrap()
        .1
        .replace('\n', " ");
    let said: Vec<&str> = said.trim().trim_end_matches('.').split("; ").collect();

    let page = read("docs/reference/cli.md");
    let table = section(&page, "## Exit codes");
    let told: Vec<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| line.replace(" | ", " "))
        .collect();

    assert_eq!(told, said);
}

#[tokio::test]
async fn the_exit_codes_are_those_of_the_page() {
    let (database, redis) = (database().await, stack().await.redis_url.clone());
    let run = |words: &str, more: &[(&str, &str)]| {
        let output = Command::new(PROGRAM.as_path())
            .args(words.split(' '))
            .env_clear()
            .envs([("DATABASE_URL", database.url()), ("REDIS_URL", &redis)])
            .envs(more.iter().copied())
            .current_dir(std::env::temp_dir())
            .output()
            .unwrap();
        output.status.code()
    };

    assert_eq!(run("migrate", &[]), Some(0));
    assert_eq!(run("job", &[]), Some(2));
    assert_eq!(run("job show x", &[]), Some(2));
    assert_eq!(run("job show 1", &[]), Some(3));
    assert_eq!(run("throttle show no-such-throttle", &[]), Some(3));
    assert_eq!(run("why no-such-throttle", &[]), Some(3));
    assert_eq!(run("why --job 1", &[]), Some(3));
    assert_eq!(run("enqueue http", &[]), Some(4));
    assert_eq!(run("enqueue no-such-kind", &[]), Some(4));
    assert_eq!(run("throttle set a rps=ten", &[]), Some(4));
    assert_eq!(
        run("throttle list", &[("REDIS_URL", "redis://127.0.0.1:1")]),
        Some(69)
    );
    assert_eq!(
        run(
            "migrate",
            &[("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")]
        ),
        Some(69)
    );
    assert_eq!(run("migrate", &[("FLYBALL_CONCURRENCY", "0")]), Some(78));
    assert_eq!(run("serve", &[("FLYBALL_LISTEN", "0.0.0.0:0")]), Some(78));
}

#[test]
fn commands_on_every_page_exist_with_the_options_that_are_used() {
    let commands: BTreeMap<Vec<String>, Help> = commands().into_iter().collect();
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        let shell = blocks(&text)
            .into_iter()
            .filter(|(language, _)| language == "console" || language == "sh");
        // Between the commands of a console stands what they print.
        let lines = shell.flat_map(|(language, text)| {
            let lines = text
                .replace("\\\n", " ")
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>();
            lines
                .into_iter()
                .filter(move |line| language == "sh" || line.starts_with("$ "))
        });
        for line in lines {
            let line = line.trim_start_matches("$ ");
            // Variables may stand before a command, a comment after it.
            let words: Vec<&str> = line
                .split(" # ")
                .next()
                .unwrap()
                .split_whitespace()
                .collect();
            let at = words
                .iter()
                .position(|word| !word.contains('='))
                .unwrap_or(0);
            if words.get(at) != Some(&"flyball") {
                continue;
            }
            let mut command: Vec<String> = Vec::new();
            for word in &words[at + 1..] {
                let mut longer = command.clone();
                longer.push((*word).to_owned());
                if !commands.contains_key(&longer) {
                    break;
                }
                command = longer;
            }
            let help = &commands[&command];
            let unknown = words
                .iter()
                .filter(|word| word.starts_with("--"))
                .map(|word| word.split('=').next().unwrap());
            let unknown: Vec<&str> = unknown
                .filter(|word| !help.options.contains_key(*word))
                .collect();
            if command.is_empty() && !words[at + 1..].iter().all(|word| word.starts_with("--"))
                || !unknown.is_empty()
            {
                wrong.push(format!("{page}: {line}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// === SQL ===

const ARGUMENTS: &str = "
    select coalesce(p.proargnames[a.n], ''), format_type(a.type, null), coalesce(pg_get_function_arg_default(p.oid, a.n::int), '')
    from pg_proc p
    cross join lateral unnest(p.proargtypes::oid[]) with ordinality as a(type, n)
    where p.oid = $1::regproc
    order by a.n";

#[tokio::test]
async fn the_page_of_sql_has_every_argument_with_its_type_and_default() {
    let database = database().await;
    let page = read("docs/reference/sql.md");
    let functions: Vec<&str> = page
        .lines()
        .filter_map(|line| {
            line.trim_start_matches('#')
                .strip_prefix(" `flyball.")?
                .strip_suffix('`')
        })
        .collect();
    assert!(functions.len() > 3, "{functions:?}");
    for function in functions {
        let function = &format!("flyball.{function}");
        let arguments: Vec<(String, String, String)> = sqlx::query_as(ARGUMENTS)
            .bind(function)
            .fetch_all(database.pool())
            .await
            .unwrap();
        let level = if page.contains(&format!("\n### `{function}`")) {
            "###"
        } else {
            "##"
        };
        let text = section(&page, &format!("{level} `{function}`"));
        let table = text.split("It answers").next().unwrap();
        let documented: Vec<(String, String, String)> = rows(table)
            .iter()
            .map(|row| {
                let default = if row[2] == "required" {
                    ""
                } else {
                    code(&row[2])
                };
                (
                    code(&row[0]).to_owned(),
                    code(&row[1]).to_owned(),
                    default.to_owned(),
                )
            })
            .collect();

        // `'{}'::jsonb` is `'{}'` to a reader who sees the type beside it.
        let plain = |default: String| default.split("::").next().unwrap_or_default().to_owned();
        let wanted: Vec<_> = arguments
            .into_iter()
            .map(|(name, kind, default)| (name, kind, plain(default)))
            .collect();
        assert_eq!(documented, wanted, "{function}");
    }
}

#[tokio::test]
async fn a_job_has_the_same_fields_in_sql_http_and_rust() {
    let job = serde_json::to_value(NewJob::new("http", json!({}))).unwrap();
    let fields: BTreeSet<String> = job.as_object().unwrap().keys().cloned().collect();
    let told = |page: &str, heading: &str, end: &str| -> BTreeSet<String> {
        let page = read(page);
        rows(section(&page, heading).split(end).next().unwrap())
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };

    assert_eq!(
        told(
            "docs/reference/sql.md",
            "## `flyball.enqueue`",
            "It answers"
        ),
        fields
    );
    assert_eq!(
        told("docs/reference/http.md", "### `POST /api/v1/jobs`", "```"),
        fields
    );
}

#[tokio::test]
async fn the_rights_that_the_guide_gives_a_producer_are_enough_and_no_more() {
    let database = database().await;
    let guide = read("docs/guides/operating.md");
    let sql = blocks(section(&guide, "### Roles for SQL producers"));
    let grants = &sql
        .iter()
        .find(|(language, _)| language == "sql")
        .expect("the grants")
        .1;
    // Roles belong to the whole server, which other tests share.
    let role = format!("producer_{}", &crate::support::unique()[..8]);
    let grants = grants.replace("billing", &role);

    let mut connection = database.superuser().acquire().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants))
        .execute(&mut *connection)
        .await
        .unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("set role {role}")))
        .execute(&mut *connection)
        .await
        .unwrap();
    let allowed = [
        "select flyball.enqueue('http')",
        "select flyball.enqueue('http', unique_key => 'a', unique_for => '1 hour')",
        "select flyball.enqueue('http', unique_key => 'a')",
        "select flyball.enqueue('http', run_at => now() + interval '1 hour')",
        "select flyball.enqueue_many('[{\"kind\": \"http\"}, {\"kind\": \"http\", \"unique_key\": \"b\"}]')",
    ];
    for statement in allowed {
        sqlx::raw_sql(statement)
            .execute(&mut *connection)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let forbidden = [
        "select args from flyball.job",
        "delete from flyball.ready",
        "insert into flyball.ready (lane_id, priority, job_id, cost) values (1, 1, 1, 1)",
        "select flyball.register_kind('x')",
        "insert into flyball.audit (who, action, subject) values ('a', 'b', 'c')",
    ];
    for statement in forbidden {
        let refused = sqlx::raw_sql(statement)
            .execute(&mut *connection)
            .await
            .expect_err(statement)
            .to_string();
        assert!(
            refused.contains("permission denied"),
            "{statement}: {refused}"
        );
    }
}

// === Kinds ===

/// Settings with the sources and sinks that the pages name, and a pool for each channel.
fn settings_of_the_pages() -> Settings {
    let providers = [
        ("sms", "twilio"),
        ("mail", "sendgrid"),
        ("push", "apns"),
        ("chat", "slack"),
        ("hooks", "webhook"),
    ];
    let pool = |(name, provider)| {
        format!(
            "[pools.{name}]\nprovider = {provider:?}\n[[pools.{name}.accounts]]\nname = \"main\"\n"
        )
    };
    let mut settings = Settings::load(None, &BTreeMap::new()).unwrap();
    let mut tables: toml::Table = toml::from_str(&providers.map(pool).concat()).unwrap();
    let needed = [
        ("sms", vec!["account_sid"]),
        ("mail", vec!["api_key_env"]),
        (
            "push",
            vec!["team_id", "key_id", "private_key_env", "topic"],
        ),
        ("hooks", vec!["signing_secret_env"]),
        ("chat", vec![]),
    ];
    for (name, keys) in needed {
        let pool = tables["pools"][name].as_table_mut().unwrap();
        pool.extend(
            keys.into_iter()
                .map(|key| (key.to_owned(), toml::Value::from("X"))),
        );
    }
    let pools = tables.remove("pools").unwrap();
    settings.pools = pools.try_into().unwrap();
    let reindex = r#"
        sources.shop = { tables = ["public.articles"], statements = { visible = "select 1" } }
        sinks.search = { type = "elastic", url = "https://search.example.com:9200", indexes = ["articles-*"], pipelines = ["clean"] }
        sinks.full-text = { type = "postgres", tables = ["search.articles"] }"#;
    settings.reindex = toml::from_str(reindex).unwrap();
    settings
}

/// The built-in kinds as a process without a queue checks them.
fn kinds() -> Kinds {
    app::built_in_kinds(&settings_of_the_pages(), None).unwrap()
}

fn issues(kind: &str, args: &Value) -> BTreeMap<String, String> {
    kinds()
        .get(kind)
        .unwrap()
        .prepare(args)
        .err()
        .into_iter()
        .flatten()
        .map(|issue| (issue.pointer, issue.message))
        .collect()
}

#[test]
fn every_job_on_every_page_passes_the_check_of_its_kind() {
    let mut jobs = 0;
    for page in pages() {
        for (_, text) in blocks(&read(&page))
            .iter()
            .filter(|(language, text)| language == "json" && text.contains("\"kind\""))
        {
            // Answers of the API hold a kind as well, and what is left out of them.
            let Ok(job) = serde_json::from_str::<NewJob>(text) else {
                assert!(
                    page != "docs/reference/kinds.md",
                    "{page}: not a job:\n{text}"
                );
                continue;
            };
            assert_eq!(
                issues(&job.kind, &job.args),
                BTreeMap::new(),
                "{page}:\n{text}"
            );
            jobs += 1;
        }
    }
    assert!(jobs >= 4, "{jobs}");
}

#[test]
fn the_page_of_kinds_has_every_argument() {
    let page = read("docs/reference/kinds.md");
    let told = |heading: &str| -> BTreeSet<String> {
        rows(section(&page, &format!("### {heading}")))
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };
    // A field that does not exist is answered with those that do.
    let known = |kind: &str, args: Value, pointer: &str| -> BTreeSet<String> {
        let said = issues(kind, &args)
            .remove(pointer)
            .unwrap_or_else(|| panic!("{pointer} was accepted"));
        let list = said.split_once("allowed: ").unwrap().1;
        list.split(", ").map(str::to_owned).collect()
    };
    let elastic =
        json!({"source": {"name": "shop", "x": 1}, "sink": {"name": "search", "x": 1}, "x": 1});
    let postgres = json!({"source": {"name": "shop"}, "sink": {"name": "full-text", "x": 1}});

    assert_eq!(
        told("Arguments of `http`"),
        known("http", json!({"x": 1}), "/x")
    );
    assert_eq!(
        told("Arguments of `notification`"),
        known("notification", json!({"x": 1}), "/x")
    );
    assert_eq!(
        told("Arguments of `reindex`"),
        known("reindex", elastic.clone(), "/x")
    );
    assert_eq!(
        told("`source`"),
        known("reindex", elastic.clone(), "/source/x")
    );
    assert_eq!(
        told("`sink` of the type `elastic`"),
        known("reindex", elastic, "/sink/x")
    );
    assert_eq!(
        told("`sink` of the type `postgres`"),
        known("reindex", postgres, "/sink/x")
    );
}

#[test]
fn the_ranges_of_arguments_are_those_that_are_enforced() {
    let page = read("docs/reference/kinds.md");
    let good = json!({
        "http": {"url": "https://example.com/"},
        "notification": {"channel": "sms", "to": "+15550100", "body": "hello"},
        "reindex": {
            "source": {"name": "shop", "table": "public.articles", "key": "id"},
            "sink": {"name": "search", "index": "articles-2"},
        },
    });
    let mut ranges = 0;
    for kind in ["http", "notification", "reindex"] {
        for row in rows(section(&page, &format!("### Arguments of `{kind}`"))) {
            let (field, default) = (code(&row[0]), code(&row[2]));
            let Some((low, high)) = row[3]
                .split_once(" to ")
                .and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)))
            else {
                continue;
            };
            let with = |value: i64| {
                let mut args = good[kind].clone();
                args[field] = value.into();
                issues(kind, &args)
            };
            let (low, high): (i64, i64) = (low, high);
            for value in [low, high].into_iter().chain(default.parse()) {
                assert_eq!(with(value), BTreeMap::new(), "{field} = {value}");
            }
            for value in [low - 1, high + 1] {
                let said = &with(value)[&format!("/{field}")];
                assert!(said.contains(&row[3]), "{field} = {value}: {said}");
            }
            ranges += 1;
        }
    }
    assert_eq!(ranges, 8);
}

#[test]
fn the_defaults_of_a_reindex_are_those_of_the_page() {
    let args = json!({
        "source": {"name": "shop", "table": "public.articles", "key": "id"},
        "sink": {"name": "search", "index": "articles-2"},
    });
    let args = flyball::reindex::Args::parse(&args, &settings_of_the_pages().catalogue()).unwrap();
    let page = read("docs/reference/kinds.md");
    let told: BTreeMap<String, String> = rows(section(&page, "### Arguments of `reindex`"))
        .iter()
        .map(|row| (code(&row[0]).to_owned(), code(&row[2]).to_owned()))
        .collect();

    let wanted = [
        ("batch_docs", args.batch_docs),
        ("batch_bytes", args.batch_bytes),
        ("concurrency", args.concurrency),
    ];
    for (field, value) in wanted {
        assert_eq!(told[field], value.to_string(), "{field}");
    }
}

// === HTTP and metrics ===

#[test]
fn the_page_of_the_api_has_every_route() {
    let (_, document) = flyball::api::router::api().split_for_parts();
    let document = serde_json::to_value(&document).unwrap();
    let mut routes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let methods = methods
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| ["get", "post", "patch", "put", "delete"].contains(&key.as_str()));
        routes.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }

    let page = read("docs/reference/http.md");
    let mut told = BTreeSet::new();
    for heading in page.lines().filter(|line| line.starts_with("##")) {
        // `…/resume` differs from the route before it in its last part, and a path alone has the method before it.
        let (mut method, mut path) = (String::new(), String::new());
        for span in heading.split('`').skip(1).step_by(2) {
            let route = match span.split_once(' ') {
                Some((word, route)) => {
                    word.clone_into(&mut method);
                    route
                }
                None => span,
            };
            let route = route.split('?').next().unwrap();
            path = match route.strip_prefix('…') {
                Some(last) => format!("{}{last}", path.rsplit_once('/').unwrap().0),
                None => route.to_owned(),
            };
            told.insert(format!("{method} {path}"));
        }
    }

    assert_eq!(told, routes);
}

#[tokio::test]
async fn the_page_of_metrics_has_every_family_that_a_working_process_exposes() {
    let (stack, database, prefix) = (stack().await, database().await, redis_prefix());
    let environment = [
        ("DATABASE_URL", database.url()),
        ("REDIS_URL", &stack.redis_url),
        ("PROMETHEUS_URL", &stack.prometheus_url),
        ("FLYBALL_REDIS_PREFIX", &prefix),
        ("FLYBALL_LISTEN", "127.0.0.1:0"),
        (
            "FLYBALL_KNOBS_DIR",
            concat!(env!("CARGO_MANIFEST_DIR"), "/knobs"),
        ),
        ("FLYBALL_DATABASE_CONNECTIONS", "6"),
    ];
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let app = App::start(
        &Settings::load(None, &environment).unwrap(),
        Roles::ALL,
        Kinds::default(),
    )
    .await
    .unwrap();
    let url = format!("http://{}/metrics", app.address.unwrap());
    // A job that ends at once, so that families which count jobs have something to show.
    app.queue
        .enqueue(&[NewJob::new("http", json!({}))])
        .await
        .unwrap();
    // And one whose key is paused, for those that tell what keys hold back.
    let store = patient_store(&prefix).await;
    store
        .pause_key(
            &Name::new("default").unwrap(),
            "acme",
            Duration::from_secs(600),
            "test",
        )
        .await
        .unwrap();
    app.queue
        .enqueue(&[NewJob {
            key: "acme".into(),
            ..NewJob::new("http", json!({}))
        }])
        .await
        .unwrap();

    let exposed = eventually(
        "an ended job in the metrics",
        Duration::from_secs(30),
        || async {
            let text = reqwest::get(&url).await.ok()?.text().await.ok()?;
            let families = text.lines().filter_map(|line| {
                line.strip_prefix("# TYPE ")?
                    .split(' ')
                    .next()
                    .map(str::to_owned)
            });
            let families: BTreeSet<String> = families.collect();
            // These need two looks at a throttle, a second apart, and a walk over all jobs.
            let complete = [
                "flyball_jobs_finished_total",
                "flyball_governor_signal_stale",
                "flyball_throttle_limiting_share",
                "flyball_depth_age_seconds",
                "flyball_throttle_held_jobs",
            ];
            complete
                .iter()
                .all(|name| families.contains(*name))
                .then_some(families)
        },
    )
    .await;
    app.stop().await;

    let told: BTreeSet<String> = rows(&read("docs/reference/metrics.md"))
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();
    assert_eq!(
        exposed.difference(&told).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "docs/reference/metrics.md lacks these"
    );
    // Readings need a signal, which nobody exports here; no throttle is in shadow mode, nobody refuses anything, and there is no pool.
    let absent = [
        "flyball_governor_signal_ratio",
        "flyball_governor_signal_age_seconds",
        "flyball_notifications_total",
        "flyball_provider_events_total",
    ];
    let families = [
        "flyball_governor_shadow_",
        "flyball_governor_learned_quota_",
        "flyball_jobs_not_served_",
        "flyball_account_",
        "flyball_pool_",
        "flyball_provider_answer_",
    ];
    let is_absent = |name: &str| {
        absent.contains(&name) || families.iter().any(|family| name.starts_with(family))
    };
    let invented: Vec<_> = told
        .difference(&exposed)
        .filter(|name| !is_absent(name))
        .collect();
    assert_eq!(invented, Vec::<&String>::new(), "these do not exist");
}

#[test]
fn alerts_and_the_guide_speak_of_metrics_that_exist() {
    let known: BTreeSet<String> = rows(&read("docs/reference/metrics.md"))
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();
    for file in [
        "prometheus/rules/flyball.yml",
        "docs/guides/operating.md",
        "grafana/flyball.json",
    ] {
        // The parts of a histogram are one family.
        let text = ["_bucket[", "_sum[", "_count["]
            .iter()
            .fold(read(file), |text, part| text.replace(part, "["));
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        // Recorded series have colons in their names; a name of an alert's group has no unit and no type.
        let metrics = words.filter(|word| word.starts_with("flyball_") && !word.contains(':'));
        let strangers: BTreeSet<&str> = metrics
            .filter(|word| {
                !known.contains(*word)
                    && !["flyball_alerts", "flyball_recorded", "flyball_api_token"].contains(word)
            })
            .collect();
        assert!(strangers.is_empty(), "{file}: {strangers:?}");
    }
}

#[test]
fn the_guide_names_every_alert() {
    let guide = read("docs/guides/operating.md");
    let rules = read("prometheus/rules/flyball.yml");
    let alerts: BTreeSet<&str> = rules
        .split("- alert: ")
        .skip(1)
        .map(|alert| alert.lines().next().unwrap())
        .collect();

    let table = rows(section(&guide, "### Alerts"));
    let told: BTreeSet<&str> = table.iter().map(|row| code(&row[0])).collect();

    assert_eq!(told, alerts);
}

#[test]
fn the_page_of_the_protocol_has_every_verb() {
    let lua = read("src/throttle/throttle.lua");
    let verbs: BTreeSet<&str> = lua
        .lines()
        .filter_map(|line| line.strip_prefix("if verb == '")?.split('\'').next())
        .collect();

    let page = read("docs/reference/throttle-protocol.md");
    let asking = section(&page, "## Asking");
    let mut told: BTreeSet<&str> = ["acquire", "peek"]
        .into_iter()
        .filter(|verb| asking.contains(&format!("`{verb}`")))
        .collect();
    let others = rows(section(&page, "## The other verbs"));
    told.extend(others.iter().map(|row| code(&row[0])));

    assert!(verbs.len() > 4, "{verbs:?}");
    assert_eq!(told, verbs);
}

// === Handlers ===

#[test]
fn the_handlers_of_the_guide_are_code_that_is_compiled_and_run() {
    let sources = [
        "examples/greet.rs",
        "examples/program.rs",
        "tests/it/docs_handler.rs",
        "tests/it/library.rs",
    ]
    .map(read);
    let guide = read("docs/guides/handlers.md");
    let code: Vec<(String, String)> = blocks(&guide)
        .into_iter()
        .filter(|(language, _)| language == "rust")
        .collect();

    for (_, text) in &code {
        assert!(
            sources.iter().any(|source| source.contains(text.trim())),
            "not in the sources:\n{text}"
        );
    }
    assert!(code.len() >= 3);
}

// === The whole ===

#[test]
fn the_index_leads_to_every_page() {
    let index = read("docs/README.md");
    for page in pages() {
        let Some(page) = page
            .strip_prefix("docs/")
            .filter(|page| *page != "README.md")
        else {
            continue;
        };
        assert!(
            index.contains(&format!("]({page})")),
            "docs/README.md does not lead to {page}"
        );
    }
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let anchor = |heading: &str| -> String {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        text.chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() {
                root().join(&page)
            } else {
                root().join(&page).parent().unwrap().join(file)
            };
            let there = path.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&path).is_ok_and(|text| {
                        text.lines()
                            .any(|line| line.starts_with('#') && anchor(line) == heading)
                    }));
            if !there {
                wrong.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
