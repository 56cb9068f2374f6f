use std::collections::BTreeMap;
use std::time::Duration;

use super::super::SettingsOrigin;
use super::*;
use crate::input::TomlDocument;

/// Variables and files of a test.
#[derive(Default)]
struct MapVault(BTreeMap<&'static str, &'static str>);

impl Vault for MapVault {
    fn variable(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|text| (*text).to_owned())
    }

    fn file(&self, path: &str) -> Option<String> {
        self.0.get(path).map(|text| (*text).to_owned())
    }
}

/// Texts that must never appear in a message.
const SECRET: &str = "s3cret-value-that-nobody-sees";

fn vault() -> MapVault {
    let known = [
        ("TOKEN", SECRET),
        ("/run/token", "  s3cret-value-that-nobody-sees\n"),
        ("EMPTY", " \n"),
        ("/run/empty", ""),
    ];
    MapVault(known.into_iter().collect())
}

fn tables(text: &str) -> BTreeMap<String, Table> {
    let all: Table = toml::from_str(text).unwrap();
    all["pools"]
        .as_table()
        .unwrap()
        .iter()
        .map(|(name, pool)| (name.clone(), pool.as_table().unwrap().clone()))
        .collect()
}

fn pools_of(text: &str) -> Pools {
    read(&tables(text), Some(&vault())).unwrap_or_else(|issues| panic!("{issues:?}"))
}

fn refusal(text: &str) -> String {
    let tables = tables(text);
    let issues = read(&tables, Some(&vault())).expect_err(text);
    let origin = SettingsOrigin {
        file: "own.toml".to_owned(),
        document: Some(TomlDocument::parse(text).unwrap()),
        ..SettingsOrigin::default()
    };
    let located = origin.error(&tables, issues).to_string();
    assert!(!located.contains("s3cret"), "{located}");
    located
}

/// Returns a pool of Twilio with these keys and one account with those keys.
fn sms(of_pool: &str, of_account: &str) -> String {
    format!(
        "[pools.sms]\nprovider = \"twilio\"\n{of_pool}\n[[pools.sms.accounts]]\nname = \"main\"\naccount_sid = \"AC1\"\n{of_account}\n"
    )
}

#[test]
fn no_pool_has_the_name_of_a_throttle_of_other_jobs() {
    let named = |name: &str| sms("auth_token_env = \"TOKEN\"", "").replace("pools.sms", name);
    for (name, reason) in [
        ("inapp", "the inbox has a built-in pool of this name"),
        (
            "webhooks",
            "the webhooks of jobs are called through the throttle of this name",
        ),
        (
            "default",
            "jobs that name no throttle are in the throttle of this name",
        ),
    ] {
        let refused = refusal(&named(&format!("pools.{name}")));
        let expected = format!("pools.{name}: must have another name: {reason}");
        assert!(refused.contains(&expected), "{refused}");
    }
    assert!(pools_of(&named("pools.webhook")).get("webhook").is_some());
}

#[test]
fn what_a_pool_says_holds_for_accounts_that_do_not_say_otherwise() {
    let pools = pools_of(
        "[pools.sms]\nprovider = \"twilio\"\nrps = 100\nfrom = \"+15550100\"\nbase_url = \"https://pool.example/\"\nauth_token_env = \"TOKEN\"\n\
         headers = { X-Team = \"growth\" }\nheaders_env = { X-Key = \"TOKEN\" }\n\
         [[pools.sms.accounts]]\nname = \"a\"\naccount_sid = \"AC1\"\n\
         [[pools.sms.accounts]]\nname = \"b\"\naccount_sid = \"AC2\"\nrps = 2.5\nfrom = \"+15550199\"\nbase_url = \"http://b.example\"\n\
         auth_token_file = \"/run/token\"\nheaders = {}\ncapture = true\n",
    );
    let pool = pools.get("sms").unwrap();
    let [a, b] = pool.accounts.as_slice() else {
        panic!("two accounts")
    };

    assert_eq!((a.rps.number(), b.rps.number()), (100.0, 2.5));
    assert_eq!(
        (a.account.option("from"), b.account.option("from")),
        (Some("+15550100"), Some("+15550199"))
    );
    assert_eq!(
        (a.account.option("capture"), b.account.option("capture")),
        (None, Some("true"))
    );
    let base = |limited: &Limited| limited.account.base_url.clone().unwrap();
    assert_eq!(
        (base(a), base(b)),
        (
            "https://pool.example".to_owned(),
            "http://b.example".to_owned()
        )
    );
    assert_eq!(
        (
            a.account.secret("auth_token"),
            b.account.secret("auth_token")
        ),
        (Some(SECRET), Some(SECRET))
    );
    let headers = |limited: &Limited| -> Vec<(String, String)> {
        limited
            .account
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
            .collect()
    };
    assert_eq!(
        headers(a),
        [
            ("X-Team".into(), "growth".into()),
            ("X-Key".into(), SECRET.into())
        ]
    );
    assert_eq!(headers(b), [("X-Key".into(), SECRET.into())]);
    assert!(!format!("{pools:?}").contains("s3cret"));
}

#[test]
fn a_pool_that_says_little_has_the_defaults() {
    let pools = pools_of(&sms("", "auth_token_env = \"TOKEN\""));
    let pool = pools.get("sms").unwrap();
    assert_eq!(
        (pool.accounts[0].rps.number(), pool.shedding, pool.headroom),
        (-1.0, true, 0.98)
    );
    assert_eq!(
        (
            pool.breaker_failures,
            pool.breaker_window,
            pool.breaker_cooldown
        ),
        (5, secs(30), secs(30))
    );
    assert_eq!((pool.valid_for, pool.timeout), (secs(86_400), secs(10)));
    assert!(
        pool.retry_ambiguous
            && !pool.requeue_on_recovery
            && pool.alert_url.is_none()
            && pool.alert_secret.is_none()
    );
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn each_ip_pool_is_an_account_with_a_rate_of_its_own() {
    let text = "[pools.mail]\nprovider = \"sendgrid\"\napi_key_env = \"TOKEN\"\nrps = 100\n\
                [[pools.mail.accounts]]\nname = \"main\"\nip_pools = [\"one\", \"two\"]\n[[pools.mail.accounts]]\nname = \"other\"\n";
    let pools = pools_of(text);
    let seen: Vec<(&str, f64, Option<&str>)> = pools.0["mail"]
        .accounts
        .iter()
        .map(|limited| {
            (
                limited.account.name.as_str(),
                limited.rps.number(),
                limited.account.option("ip_pool_name"),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("main/one", 100.0, Some("one")),
            ("main/two", 100.0, Some("two")),
            ("other", 100.0, None)
        ]
    );

    let with = |list: &str| refusal(&text.replace("[\"one\", \"two\"]", list));
    for list in ["[]", "[\"\"]", "\"one\"", "[1]"] {
        assert_eq!(
            with(list),
            "own.toml:7: pools.mail.main.ip_pools: must be a list of names of IP pools, each with a rate of its own; only sendgrid has them"
        );
    }
    assert!(with("[\"one\", \"one\"]").contains(
        "pools.mail.accounts: must have names of their own, and \"main/one\" is given twice"
    ));
    assert!(
        refusal(&sms("", "auth_token_env = \"TOKEN\"\nip_pools = [\"one\"]"))
            .contains("only sendgrid has them")
    );
}

#[test]
fn credentials_are_named_and_never_shown() {
    let answer = |account: &str| refusal(&sms("", account));
    let cases = [
        // The credential written into the file, in the account and in the pool.
        (
            answer(&format!("auth_token = \"{SECRET}\"")),
            "own.toml:7: pools.sms.main.auth_token: must be left out: a credential is not written down; name where it is, with auth_token_env or auth_token_file",
        ),
        (
            refusal(&sms(&format!("auth_token = \"{SECRET}\""), "")),
            "own.toml:3: pools.sms.auth_token: must be left out: a credential is not written down; name where it is, with auth_token_env or auth_token_file",
        ),
        (
            answer("auth_token_env = \"NOT_SET\""),
            "own.toml:7: pools.sms.main.auth_token_env: names the variable NOT_SET, which is not set or empty",
        ),
        (
            answer("auth_token_env = \"EMPTY\""),
            "own.toml:7: pools.sms.main.auth_token_env: names the variable EMPTY, which is not set or empty",
        ),
        (
            answer("auth_token_file = \"/run/none\""),
            "own.toml:7: pools.sms.main.auth_token_file: names the file /run/none, which cannot be read or is empty",
        ),
        (
            answer("auth_token_file = \"/run/empty\""),
            "own.toml:7: pools.sms.main.auth_token_file: names the file /run/empty, which cannot be read or is empty",
        ),
        // The credential itself in place of its name.
        (
            answer(&format!("auth_token_env = \"{SECRET}\"")),
            "own.toml:7: pools.sms.main.auth_token_env: names a variable, which is not set or empty",
        ),
        (
            answer(&format!("auth_token_file = \"{SECRET}\"")),
            "own.toml:7: pools.sms.main.auth_token_file: names a file, which cannot be read or is empty",
        ),
        (
            answer("auth_token_env = \"TOKEN\"\nauth_token_file = \"/run/token\""),
            "own.toml:8: pools.sms.main.auth_token_file: must be left out beside auth_token_env",
        ),
        (
            answer("auth_token_env = 7"),
            "own.toml:7: pools.sms.main.auth_token_env: must be a text",
        ),
    ];
    for (answer, expected) in cases {
        assert_eq!(answer, expected);
    }
    let missing =
        "[pools.mail]\nprovider = \"sendgrid\"\n[[pools.mail.accounts]]\nname = \"main\"\n";
    let answer = refusal(missing);
    assert!(
        answer
            .starts_with("own.toml:3: pools.mail.main.api_key_env: is missing (or api_key_file): "),
        "{answer}"
    );
}

#[test]
fn what_is_no_credential_may_be_kept_like_one() {
    let pools = pools_of(&sms(
        "",
        "auth_token_env = \"TOKEN\"\nfrom_file = \"/run/token\"",
    ));
    assert_eq!(
        pools.0["sms"].accounts[0].account.option("from"),
        Some(SECRET)
    );
}

#[test]
fn without_a_vault_credentials_are_not_looked_for_but_must_be_named() {
    let good = sms("", "auth_token_env = \"NOT_SET\"");
    assert!(read(&tables(&good), None).is_ok());
    let none = "[pools.chat]\nprovider = \"telegram\"\n[[pools.chat.accounts]]\nname = \"bot\"\n";
    assert!(
        read(&tables(none), None)
            .unwrap_err()
            .iter()
            .any(|issue| issue.pointer == "/pools/chat/accounts/0/token_env"
                && issue.message.starts_with("is missing"))
    );
}

#[test]
fn unknown_keys_wrong_types_and_ranges_are_reported_with_what_is_allowed() {
    let of_pool = [
        (
            "colour = 1",
            "own.toml:3: pools.sms.colour: is not a known field; allowed: provider, accounts, shedding",
        ),
        (
            "name = \"x\"",
            "own.toml:3: pools.sms.name: must be left out: the pool's name is sms",
        ),
        (
            "shedding = \"yes\"",
            "own.toml:3: pools.sms.shedding: must be true or false",
        ),
        (
            "headroom = 0",
            "own.toml:3: pools.sms.headroom: must be a number from 0.01 to 1",
        ),
        (
            "headroom = 1.01",
            "own.toml:3: pools.sms.headroom: must be a number from 0.01 to 1",
        ),
        (
            "headroom = nan",
            "own.toml:3: pools.sms.headroom: must be a number from 0.01 to 1",
        ),
        (
            "headroom = \"all\"",
            "own.toml:3: pools.sms.headroom: must be a number from 0.01 to 1",
        ),
        (
            "breaker_failures = 0",
            "own.toml:3: pools.sms.breaker_failures: must be a whole number from 1 to 10000",
        ),
        (
            "breaker_failures = 2.5",
            "own.toml:3: pools.sms.breaker_failures: must be a whole number from 1 to 10000",
        ),
        (
            "breaker_window_s = 0",
            "own.toml:3: pools.sms.breaker_window_s: must be a number from 0.1 to 3600",
        ),
        (
            "breaker_cooldown_s = 1e9",
            "own.toml:3: pools.sms.breaker_cooldown_s: must be a number from 0.1 to 86400",
        ),
        (
            "valid_for_s = -1",
            "own.toml:3: pools.sms.valid_for_s: must be a number from 1 to 2592000",
        ),
        (
            "timeout_s = 301",
            "own.toml:3: pools.sms.timeout_s: must be a number from 0.01 to 300",
        ),
        (
            "timeout_s = inf",
            "own.toml:3: pools.sms.timeout_s: must be a number from 0.01 to 300",
        ),
        (
            "on_ambiguous = \"drop\"",
            "own.toml:3: pools.sms.on_ambiguous: must be retry or dead",
        ),
        (
            "requeue_on_recovery = 1",
            "own.toml:3: pools.sms.requeue_on_recovery: must be true or false",
        ),
        (
            "alert_url = \"example.com\"",
            "own.toml:3: pools.sms.alert_url: must be a URL that begins with https:// or http://",
        ),
        (
            "alert_url = \"https://u:s3cret@example.com\"",
            "own.toml:3: pools.sms.alert_url: must be a URL",
        ),
        (
            "alert_secret = 7",
            "own.toml:3: pools.sms.alert_secret: must be a text",
        ),
        (
            "rps = 0",
            "own.toml:3: pools.sms.main.rps: must be a number from 0.0001 to 1000000 messages per second, or -1 for no limit",
        ),
        (
            "from = []",
            "own.toml:3: pools.sms.main.from: must be a text or a number",
        ),
    ];
    for (line, expected) in of_pool {
        let answer = refusal(&sms(line, "auth_token_env = \"TOKEN\""));
        assert!(answer.starts_with(expected), "{line}: {answer}");
    }
    let of_account = [
        (
            "rps = \"fast\"",
            "own.toml:8: pools.sms.main.rps: must be a number from 0.0001 to 1000000",
        ),
        (
            "rps = -2",
            "own.toml:8: pools.sms.main.rps: must be a number from 0.0001 to 1000000",
        ),
        (
            "rps = nan",
            "own.toml:8: pools.sms.main.rps: must be a number from 0.0001 to 1000000",
        ),
        (
            "timeout_s = 5",
            "own.toml:8: pools.sms.main.timeout_s: is not a known field; allowed: name, rps, base_url",
        ),
        (
            "base_url = \"twilio\"",
            "own.toml:8: pools.sms.main.base_url: must be a URL that begins with https:// or http://",
        ),
        (
            "base_url = 7",
            "own.toml:8: pools.sms.main.base_url: must be a URL",
        ),
        (
            "base_url = \"https://u:s3cret@example.com\"",
            "own.toml:8: pools.sms.main.base_url: must be a URL",
        ),
        (
            "headers = \"a\"",
            "own.toml:8: pools.sms.main.headers: must be a table of names and texts",
        ),
        (
            "headers = { \"a b\" = \"s3cret\" }",
            "own.toml:8: pools.sms.main.headers: must be headers' names, each with a text, which \"a b\" is not",
        ),
        (
            "headers = { a = 7 }",
            "own.toml:8: pools.sms.main.headers: must be headers' names, each with a text, which \"a\" is not",
        ),
        (
            "headers = { a = \"s3cret\\n\" }",
            "own.toml:8: pools.sms.main.headers: must be texts of one line, which that of a is not",
        ),
        (
            "capture = 1",
            "own.toml:8: pools.sms.main.capture: must be true or false",
        ),
        (
            "headers_env = { a = \"NOT_SET\" }",
            "own.toml:8: pools.sms.main.headers_env: must name variables that are set, which the variable NOT_SET for a is not",
        ),
        (
            "headers_env = { a = \"s3cret\" }",
            "own.toml:8: pools.sms.main.headers_env: must name variables that are set, which a variable for a is not",
        ),
    ];
    for (line, expected) in of_account {
        let answer = refusal(&sms("", &format!("auth_token_env = \"TOKEN\"\n{line}")));
        assert!(answer.starts_with(expected), "{line}: {answer}");
    }
}

#[test]
fn pools_and_accounts_have_names_of_their_own_and_a_provider() {
    let providers = "twilio, sendgrid, ses, smtp, mailgun, apns, fcm, telegram, slack or webhook";
    let cases = [
        ("[pools.sms]\n", format!("own.toml:1: pools.sms.provider: is missing: it must be {providers}")),
        ("[pools.sms]\nprovider = \"twillio\"\n", format!("own.toml:2: pools.sms.provider: must be {providers}")),
        ("[pools.sms]\nprovider = 7\n", "own.toml:2: pools.sms.provider: must be twilio, sendgrid,".to_owned()),
        (
            "[pools.sms]\nprovider = \"twilio\"\n",
            "own.toml:1: pools.sms.accounts: must be 1 to 5000 tables: [[pools.sms.accounts]]".to_owned(),
        ),
        (
            "[pools.sms]\nprovider = \"twilio\"\naccounts = []\n",
            "own.toml:3: pools.sms.accounts: must be 1 to 5000 tables".to_owned(),
        ),
        ("[pools.sms]\nprovider = \"twilio\"\naccounts = [7]\n", "own.toml:3: pools.sms.accounts[0]: must be an object".to_owned()),
        (
            "[pools.sms]\nprovider = \"twilio\"\n[[pools.sms.accounts]]\naccount_sid = \"AC1\"\n",
            "own.toml:3: pools.sms.accounts[0].name: must name the account: a text of 1 to 128 characters".to_owned(),
        ),
        (
            "[pools.\"s ms\"]\nprovider = \"twilio\"\n",
            "own.toml:1: pools.s ms: must have a name of 1 to 119 letters".to_owned(),
        ),
    ];
    for (text, expected) in cases {
        let answer = refusal(text);
        assert!(answer.starts_with(&expected), "{text}: {answer}");
    }
    let twice = format!(
        "{}[[pools.sms.accounts]]\nname = \"main\"\naccount_sid = \"AC2\"\n",
        sms("auth_token_env = \"TOKEN\"", "")
    );
    assert!(
        refusal(&twice).contains(
            "pools.sms.accounts: must have names of their own, and \"main\" is given twice"
        )
    );
    let long = sms("auth_token_env = \"TOKEN\"", "")
        .replace("\"main\"", &format!("{:?}", "n".repeat(129)));
    assert!(refusal(&long).contains("must name the account"));
}

#[test]
fn five_hundred_accounts_keep_their_order() {
    let mut text =
        "[pools.sms]\nprovider = \"twilio\"\nauth_token_env = \"TOKEN\"\nrps = 1000\n".to_owned();
    for at in 0..500 {
        text.push_str(&format!(
            "[[pools.sms.accounts]]\nname = \"account-{at}\"\naccount_sid = \"AC{at}\"\n"
        ));
    }
    let pools = pools_of(&text);
    let pool = &pools.0["sms"];
    assert_eq!(pool.accounts.len(), 500);
    assert!(
        pool.accounts
            .iter()
            .enumerate()
            .all(|(at, limited)| limited.account.name == format!("account-{at}"))
    );
    assert_eq!(
        pool.accounts
            .iter()
            .map(|limited| limited.rps.number())
            .sum::<f64>(),
        500_000.0
    );
    // The place of the last one is known as well.
    text.push_str("colour = 1\n");
    assert!(
        refusal(&text)
            .starts_with("own.toml:1505: pools.sms.account-499.colour: is not a known field")
    );
}
