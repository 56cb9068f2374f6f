//! The pages of settings and of kinds list every key with its range and default.

use std::collections::{BTreeMap, BTreeSet};

use flyball::app;
use flyball::config::{
    API_LIMIT_KEYS, API_TOKEN_KEYS, DEFAULT_FILE, JWT_KEYS, KEYS, KIND_KEYS, POSTGRES_KEYS,
    PROMETHEUS_KEYS, SINK_KEYS, SOURCE_KEYS, Settings,
};
use flyball::jobs::{Kinds, NewJob};
use serde_json::{Value, json};

use super::page::{blocks, code, pages, read, rows, section};

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
fn the_page_of_settings_has_the_refusal_of_an_unknown_field_with_every_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    std::fs::write(&path, "concurency = 3\n").unwrap();
    let refused = Settings::load(Some(&path), &BTreeMap::new()).err().unwrap();
    let refused = refused.to_string();
    let (_, words) = refused.split_once("own.toml:1: ").unwrap();

    let page = read("docs/reference/config.md");

    assert!(page.contains(&format!("own.toml:1: {words}\n")), "{words}");
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
            assert!(refused.contains(allowed), "{variable}={bad}: {refused}");
        }
        ranges += 1;
    }
    assert_eq!(ranges, 22, "numbers are documented as `low to high`");
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
fn the_page_of_settings_has_every_key_of_json_web_tokens() {
    let page = read("docs/reference/config.md");
    let documented: Vec<String> = rows(section(&page, "## Tokens of an identity provider"))
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();

    assert_eq!(documented, JWT_KEYS);
    assert!(
        JWT_KEYS
            .iter()
            .all(|key| DEFAULT_FILE.contains(&format!("# {key} = ")))
    );
}

#[test]
fn the_page_of_settings_has_every_key_of_a_limit() {
    let page = read("docs/reference/config.md");
    let documented: Vec<String> = rows(section(&page, "## Limits of an API"))
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();

    assert_eq!(documented, API_LIMIT_KEYS);
    assert!(
        API_LIMIT_KEYS
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

/// Settings with the sources and sinks named on the pages, and a pool for each channel.
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
        sources.catalog = { type = "mongodb", url_env = "CATALOG_URL", collections = ["shop.articles"] }
        sinks.search = { type = "elastic", url = "https://search.example.com:9200", indexes = ["articles-*"], pipelines = ["clean"], aliases = ["articles"] }
        sinks.full-text = { type = "postgres", tables = ["search.articles"] }"#;
    settings.reindex = toml::from_str(reindex).unwrap();
    settings
}

/// The built-in kinds, as a process without a queue checks them.
fn kinds() -> Kinds {
    app::built_in_kinds(&settings_of_the_pages(), None).unwrap()
}

fn issues(kind: &str, args: &Value) -> BTreeMap<String, String> {
    let kinds = kinds();
    assert!(kinds.get(kind).is_some(), "{kind}");
    kinds
        .check(kind, args)
        .into_iter()
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
            // API responses contain a kind as well; they are excluded.
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
    let answer = |heading: &str| -> BTreeSet<String> {
        rows(section(&page, &format!("### {heading}")))
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };
    // The error for an unknown field lists the known ones.
    let known = |kind: &str, args: Value, pointer: &str| -> BTreeSet<String> {
        let output = issues(kind, &args)
            .remove(pointer)
            .unwrap_or_else(|| panic!("{pointer} was accepted"));
        let list = output.split_once("allowed: ").unwrap().1;
        list.split(", ").map(str::to_owned).collect()
    };
    let elastic =
        json!({"source": {"name": "shop", "x": 1}, "sink": {"name": "search", "x": 1}, "x": 1});
    let postgres = json!({"source": {"name": "shop"}, "sink": {"name": "full-text", "x": 1}});

    assert_eq!(
        answer("Arguments of `http`"),
        known("http", json!({"x": 1}), "/x")
    );
    assert_eq!(
        answer("Arguments of `notification`"),
        known("notification", json!({"x": 1}), "/x")
    );
    assert_eq!(
        answer("Arguments of `reindex`"),
        known("reindex", elastic.clone(), "/x")
    );
    assert_eq!(
        answer("`source`"),
        known("reindex", elastic.clone(), "/source/x")
    );
    let collection = json!({"source": {"name": "catalog", "x": 1}});
    assert_eq!(
        answer("`source` of the type `mongodb`"),
        known("reindex", collection, "/source/x")
    );
    assert_eq!(
        answer("`sink` of the type `elastic`"),
        known("reindex", elastic, "/sink/x")
    );
    assert_eq!(
        answer("`sink` of the type `postgres`"),
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
                let output = &with(value)[&format!("/{field}")];
                assert!(output.contains(&row[3]), "{field} = {value}: {output}");
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
    let answer: BTreeMap<String, String> = rows(section(&page, "### Arguments of `reindex`"))
        .iter()
        .map(|row| (code(&row[0]).to_owned(), code(&row[2]).to_owned()))
        .collect();

    let wanted = [
        ("batch_docs", args.batch_docs),
        ("batch_bytes", args.batch_bytes),
        ("concurrency", args.concurrency),
    ];
    for (field, value) in wanted {
        assert_eq!(answer[field], value.to_string(), "{field}");
    }
}
