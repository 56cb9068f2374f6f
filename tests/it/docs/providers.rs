//! The guide of providers is correct: its tables match the drivers, its examples are valid
//! settings, and the page of answers is generated from the classification tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use flyball::config::{ACCOUNT_KEYS, POOL_KEYS, Settings};
use flyball::governor::policy::Policy;
use flyball::outbound::Guard;
use flyball::providers::build::{build, fields};
use flyball::providers::pool::{BreakerState, Change};
use flyball::providers::{
    Class, Code, DriverClients, Field, Http, Provider, Scope, apns, fcm, mailgun, sendgrid, ses,
    slack, smtp, telegram, twilio, webhook,
};
use flyball::throttle::KnobsFile;

use crate::docs::{blocks, code, read, rows, section};

/// The guide's name of each provider.
fn title(provider: Provider) -> &'static str {
    match provider {
        Provider::Twilio => "Twilio",
        Provider::Sendgrid => "SendGrid",
        Provider::Mailgun => "Mailgun",
        Provider::Ses => "Amazon SES",
        Provider::Smtp => "SMTP",
        Provider::Apns => "Apple Push Notification service",
        Provider::Fcm => "Firebase Cloud Messaging",
        Provider::Telegram => "Telegram",
        Provider::Slack => "Slack",
        Provider::Webhook => "Webhooks of recipients",
        Provider::Inbox => unreachable!("the settings cannot name it"),
    }
}

fn codes(provider: Provider) -> &'static [Code] {
    match provider {
        Provider::Twilio => twilio::CODES,
        Provider::Sendgrid => sendgrid::CODES,
        Provider::Mailgun => mailgun::CODES,
        Provider::Ses => ses::CODES,
        Provider::Smtp => smtp::CODES,
        Provider::Apns => apns::CODES,
        Provider::Fcm => fcm::CODES,
        Provider::Telegram => telegram::CODES,
        Provider::Slack => slack::CODES,
        Provider::Webhook => webhook::CODES,
        Provider::Inbox => &[],
    }
}

// === Tables ===

/// Returns the expected table of a provider's keys.
fn keys(fields: &[Field]) -> String {
    let mut table = "| key | needed | credential | what it is |\n|---|---|---|---|\n".to_owned();
    let yes = |flag: bool| if flag { "yes" } else { "" };
    for field in fields {
        let row = format!(
            "| `{}` | {} | {} | {} |\n",
            field.name,
            yes(field.is_required),
            yes(field.is_secret),
            field.about
        );
        table.push_str(&row.replace("|  |", "| |").replace("|  |", "| |"));
    }
    table
}

#[test]
fn the_guide_has_every_key_of_every_provider() {
    let guide = read("docs/providers.md");
    for provider in Provider::ALL {
        let wanted = keys(fields(provider));
        let found = section(&guide, &format!("## {}", title(provider)));
        assert!(
            found.contains(&wanted),
            "docs/providers.md, {}: the table of keys should read:\n{wanted}",
            title(provider)
        );
    }
}

#[test]
fn the_guide_has_every_key_of_pools_and_accounts() {
    let guide = read("docs/providers.md");
    let answer = |heading: &str| -> Vec<String> {
        rows(section(&guide, heading))
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };

    assert_eq!(answer("### Keys of a pool"), POOL_KEYS);
    assert_eq!(answer("### Keys of every account"), ACCOUNT_KEYS);
    let default = read("core/src/default.toml");
    for key in POOL_KEYS.iter().chain(&ACCOUNT_KEYS) {
        assert!(
            default.contains(&format!("# {key} = ")) || *key == "accounts",
            "core/src/default.toml lacks {key}"
        );
    }
}

#[test]
fn the_ranges_of_a_pool_are_those_that_are_enforced() {
    let guide = read("docs/providers.md");
    let load = |key: &str, value: f64| {
        let text = format!(
            "[pools.sms]\nprovider = \"twilio\"\n{key} = {value:?}\n[[pools.sms.accounts]]\nname = \"main\"\naccount_sid = \"AC1\"\n"
        );
        settings(&text).map(drop)
    };
    let mut ranges = 0;
    for row in rows(section(&guide, "### Keys of a pool")) {
        let Some((low, high)) = row[2].split_once(" to ") else {
            continue;
        };
        let (Ok(low), Ok(high)) = (low.parse::<f64>(), high.parse::<f64>()) else {
            continue;
        };
        for good in [low, high] {
            assert_eq!(load(code(&row[0]), good), Ok(()), "{}", row[0]);
        }
        for bad in [low / 2.0, high * 2.0] {
            let refused = load(code(&row[0]), bad).unwrap_err();
            assert!(refused.contains(&row[2]), "{}: {refused}", row[0]);
        }
        ranges += 1;
    }
    assert_eq!(ranges, 6, "numbers are documented as `low to high`");
}

// === Answers ===

fn outcome(class: Class) -> &'static str {
    match class {
        Class::Delivered => "delivered",
        Class::Accepted => "accepted",
        Class::Throttled(Scope::Account) => "throttled: the account",
        Class::Throttled(Scope::Connection) => "throttled: the connection",
        Class::Throttled(Scope::Sender) => "throttled: the sender",
        Class::Throttled(Scope::Recipient) => "throttled: the recipient",
        Class::Transient => "transient",
        Class::Recipient => "permanent_recipient",
        Class::Suppress => "permanent_recipient, suppressed",
        Class::Request => "permanent_request",
        Class::Account => "account_failure",
        Class::Ambiguous => "ambiguous",
    }
}

/// Returns the expected page of answers.
fn answers() -> String {
    let mut page = read("docs/reference/provider-answers.md")
        .split("\n## ")
        .next()
        .unwrap()
        .trim_end()
        .to_owned();
    page.push('\n');
    for provider in Provider::ALL {
        page.push_str(&format!(
            "\n## {}\n\n| status | code | outcome | meaning |\n|---|---|---|---|\n",
            title(provider)
        ));
        for row in codes(provider) {
            let code = if row.code.is_empty() {
                String::new()
            } else {
                format!(" `{}`", row.code)
            };
            page.push_str(&format!(
                "| `{}` |{code} | {} | {} |\n",
                row.status,
                outcome(row.class),
                row.about
            ));
        }
    }
    page
}

#[test]
fn the_page_of_answers_is_what_the_tables_say() {
    let wanted = answers();
    let page = read("docs/reference/provider-answers.md");
    assert!(
        page == wanted,
        "docs/reference/provider-answers.md differs; it should read:\n{wanted}"
    );
}

// === Examples ===

/// Returns settings from a text, written to a file.
fn settings(text: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flyball.toml");
    std::fs::write(&file, text).unwrap();
    Settings::load(Some(&file), &BTreeMap::new()).map_err(|error| error.to_string())
}

/// Returns a valid credential for a key; a key that does not identify the account takes any text.
fn credential(key: &str) -> String {
    match key {
        "private_key" => read("tests/it/support/apns_test_only.p8"),
        "service_account" => serde_json::json!({
            "type": "service_account", "project_id": "shop-1", "client_email": "flyball@shop-1.iam.gserviceaccount.com",
            "private_key": read("lab/fakes/src/keys/test_only_sns_key.pem"), "token_uri": "https://oauth2.googleapis.com/token",
        })
        .to_string(),
        "signing_secret" => "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz".to_owned(),
        "webhook_url" => "https://hooks.slack.com/services/T0/B0/not-a-real-one".to_owned(),
        "token" => "123456:ABC-not-a-real-token".to_owned(),
        _ => "0123456789abcdef0123456789abcdef".to_owned(),
    }
}

/// Returns the text with every credential in a file of this folder.
fn with_credentials(text: &str, folder: &Path) -> String {
    let line = |line: &str| {
        let named = line
            .split_once(" = ")
            .and_then(|(key, _)| key.strip_suffix("_env").or(key.strip_suffix("_file")));
        let Some(key) = named.filter(|key| *key != "headers") else {
            return line.to_owned();
        };
        let file = folder.join(key);
        std::fs::write(&file, credential(key)).unwrap();
        format!("{key}_file = {:?}", file.display().to_string())
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_example_of_settings_works() {
    let folder = tempfile::tempdir().unwrap();
    let tools = || {
        let http = || Arc::new(Http::new(Guard::open()).unwrap());
        DriverClients {
            http: http(),
            guarded: http(),
        }
    };
    let mut built = std::collections::BTreeSet::new();
    for page in [
        "docs/providers.md",
        "docs/guides/notifications.md",
        "docs/reference/config.md",
    ] {
        for (_, text) in blocks(&read(page))
            .into_iter()
            .filter(|(language, text)| language == "toml" && text.contains("[pools."))
        {
            let text = with_credentials(&text, folder.path());
            let settings =
                settings(&text).unwrap_or_else(|error| panic!("{page}: {error}\n{text}"));
            let pools = settings
                .pools()
                .unwrap_or_else(|error| panic!("{page}: {error}\n{text}"));
            let named = |pool: &&flyball::providers::Pool| pool.provider != Provider::Inbox;
            for pool in pools.0.values().filter(named) {
                for limited in &pool.accounts {
                    let driver = build(pool.provider, &limited.account, &tools());
                    assert!(driver.is_ok(), "{page}: {:?}\n{text}", driver.err());
                }
                built.insert(pool.provider.as_str());
            }
        }
    }
    assert_eq!(
        built,
        Provider::ALL.map(Provider::as_str).into_iter().collect(),
        "every provider has an example"
    );
}

#[test]
fn what_is_wrong_with_an_account_stops_the_start_before_anything_is_connected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    let refusal = |sid: &str, variable: &str| {
        let account =
            format!("name = \"main\"\naccount_sid = {sid:?}\nauth_token_env = {variable:?}\n");
        std::fs::write(
            &file,
            format!("[pools.sms]\nprovider = \"twilio\"\n[[pools.sms.accounts]]\n{account}"),
        )
        .unwrap();
        let output = std::process::Command::new(crate::support::PROGRAM.as_path())
            .args(["serve", "--config"])
            .arg(&file)
            .env_clear()
            .envs([
                ("TOKEN", "s3cret"),
                ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none"),
                ("REDIS_URL", "redis://127.0.0.1:1"),
            ])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(78));
        String::from_utf8(output.stderr).unwrap()
    };

    let printed = refusal("AC00000000000000000000000000000000", "NOT_SET");
    assert!(
        printed.contains(
            "own.toml:6: pools.sms.main.auth_token_env: names the variable NOT_SET, which is not set"
        ),
        "{printed}"
    );
    let printed = refusal("nonsense", "TOKEN");
    assert!(
        printed.contains("own.toml:5: pools.sms.main.account_sid: must be AC and"),
        "{printed}"
    );
    assert!(!printed.contains("s3cret"), "{printed}");
}

#[test]
fn every_example_of_a_knobs_file_is_one() {
    let mut governed = 0;
    for page in ["docs/providers.md", "docs/guides/notifications.md"] {
        for (_, text) in blocks(&read(page))
            .into_iter()
            .filter(|(language, text)| language == "toml" && text.contains("[knobs]"))
        {
            let path = text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("# "))
                .expect("its name");
            KnobsFile::parse(Path::new(path), text.clone())
                .unwrap_or_else(|error| panic!("{page}: {error}\n{text}"));
            let policy = Policy::parse(&text, path)
                .unwrap_or_else(|error| panic!("{page}: {error}\n{text}"));
            governed += usize::from(policy.is_some());
        }
    }
    assert_eq!(governed, 3);
}

// === Metrics ===

#[test]
fn the_page_of_metrics_has_every_family_of_pools() {
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = flyball::providers::PoolMetrics::register(&mut registry);
    metrics.sent("sms", "main", "accepted", 0.1);
    metrics.of_pool(&flyball::providers::pool::PoolView {
        name: "sms".to_owned(),
        ..Default::default()
    });
    let (from, to) = (BreakerState::Closed, BreakerState::Open);
    metrics.changed(
        "sms",
        &Change {
            account: "main".to_owned(),
            from,
            to,
            why: String::new(),
            at_ms: 0,
            until_ms: 0,
        },
    );
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let families: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| {
            if kind == "counter" {
                format!("{name}_total")
            } else {
                name.to_owned()
            }
        })
        .collect();

    let page = read("docs/reference/metrics.md");
    let answer: Vec<String> = rows(&page)
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();
    assert!(families.len() >= 5, "{families:?}");
    for family in families {
        assert!(
            answer.contains(&family),
            "docs/reference/metrics.md lacks {family}"
        );
    }
}
