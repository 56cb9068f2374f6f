//! Commands that show and set knobs, and take throttles over by hand or from LimitLion.

use flyball::throttle::RateLimit;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::shell::{SOON, Serve, shell};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_and_windows_are_set_shown_explained_and_deleted() {
    let shell = shell().await;
    shell.ok(&["throttle", "set", "gcal:*", "rps=0.5", "window=5"]);
    let shown = shell.ok(&["throttle", "show", "gcal:*"]).out;
    assert!(shown.contains("in force        0.5"));
    assert!(shell.ok(&["throttle", "list"]).out.contains("gcal:*"));
    assert!(shell.ok(&["why", "gcal:*"]).out.contains("0.5"));
    shell.ok(&["throttle", "delete", "gcal:*"]);

    shell.ok(&[
        "throttle",
        "set",
        "notify",
        "rps=-1",
        "windows=10/1 1000/3600",
        "key_windows=50/60",
    ]);
    let why = shell.ok(&["why", "notify"]).out;
    assert!(
        why.starts_with(
            "at most 10 tokens a second and 1000 an hour, and for each key 50 tokens a minute"
        ),
        "{why}"
    );
    let shown = shell.ok(&["throttle", "show", "notify"]).out;
    assert!(shown.contains("in force        at most 10 tokens a second"));
    shell.refused(
        &["throttle", "set", "notify", "windows=50/sec"],
        4,
        "windows: must be limits such as",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn knobs_are_turned_shown_and_refused_by_name() {
    let shell = shell().await;
    assert_eq!(
        shell.ok(&["throttle", "list", "--json"]).json(),
        json!({"throttles": []})
    );
    let after = shell
        .ok(&[
            "throttle",
            "set",
            "hooks",
            "rps=20",
            "mode=manual",
            "--why",
            "a test",
            "--json",
        ])
        .json();
    assert_eq!(
        (&after["effective_rps"], &after["knobs"]["by"]),
        (&json!(20.0), &json!("tester"))
    );
    assert!(
        shell
            .ok(&["throttle", "show", "hooks"])
            .out
            .contains("in force        20")
    );
    assert!(shell.ok(&["throttle", "list"]).out.contains("hooks"));
    assert!(
        shell
            .ok(&["why", "hooks"])
            .out
            .contains("20 rps, set by tester")
    );
    assert!(shell.ok(&["why", "hooks", "--json"]).json()["sentence"].is_string());
    assert_eq!(
        shell.ok(&["throttle", "pause", "hooks", "--json"]).json()["effective_rps"],
        0.0
    );
    assert_eq!(
        shell.ok(&["throttle", "resume", "hooks", "--json"]).json()["effective_rps"],
        20.0
    );
    let paused = shell
        .ok(&[
            "throttle",
            "pause",
            "hooks",
            "--key",
            "acme",
            "--seconds",
            "30",
            "--json",
        ])
        .json();
    assert!(
        paused["key"] == "acme" && paused["until"].is_string(),
        "{paused}"
    );
    assert_eq!(
        shell
            .ok(&["throttle", "resume", "hooks", "--key", "acme", "--json"])
            .json()["resumed"],
        true
    );
    assert!(
        shell
            .ok(&["throttle", "resume", "hooks", "--key", "acme"])
            .out
            .contains("was not paused")
    );
    shell.ok(&["throttle", "set", "old", "rps=1"]);
    assert!(
        shell
            .ok(&["throttle", "delete", "old"])
            .out
            .contains("old is deleted")
    );
    assert_eq!(
        shell.ok(&["throttle", "list", "--json"]).json()["throttles"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    shell.ok(&[
        "throttle",
        "pause",
        "hooks",
        "--key",
        "acme",
        "--seconds",
        "2592000",
    ]);
    shell.ok(&["throttle", "set", "child", "rps=1", "parent=hooks"]);

    let long = "k".repeat(513);
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["throttle", "delete", "old"],
            3,
            "there is no throttle old",
        ),
        (
            &["throttle", "delete", "hooks"],
            4,
            "hooks is the parent of child, which would stop without it",
        ),
        (
            &["throttle", "set", "hooks", "rps=-5"],
            4,
            "rps: must be a number from 0.000001",
        ),
        (
            &["throttle", "set", "hooks", "rps=ten"],
            4,
            "rps: must be a number from 0.000001",
        ),
        (
            &["throttle", "set", "hooks", "rps=NaN"],
            4,
            "rps: must be a number from 0.000001",
        ),
        (
            &["throttle", "set", "hooks", "rpz=5"],
            4,
            "rpz: is not a known knob",
        ),
        (&["throttle", "set", "hooks", "rps"], 4, "is not KNOB=VALUE"),
        (
            &["throttle", "set", "hooks", "mode=banana"],
            4,
            "mode: must be auto, manual",
        ),
        (&["throttle", "set", "hooks", "parent=hooks"], 4, "parent: "),
        (
            &["throttle", "set", "two words", "rps=1"],
            4,
            "throttle name \"two words\" is not allowed",
        ),
        (&["throttle", "set", "hooks"], 2, "KNOB=VALUE"),
        (
            &["throttle", "show", "none"],
            3,
            "there is no throttle none; create it with",
        ),
        (
            &["throttle", "pause", "none"],
            3,
            "there is no throttle none",
        ),
        (
            &["throttle", "pause", "none", "--key", "a", "--seconds", "5"],
            3,
            "there is no throttle none",
        ),
        (
            &["throttle", "resume", "none", "--key", "a"],
            3,
            "there is no throttle none",
        ),
        (
            &["throttle", "pause", "hooks", "--key", "a", "--seconds", "0"],
            4,
            "--seconds is 0; allowed is more than 0",
        ),
        (
            &[
                "throttle",
                "pause",
                "hooks",
                "--key",
                "a",
                "--seconds",
                "2592001",
            ],
            4,
            "at most 2592000 (30 days)",
        ),
        (
            &[
                "throttle",
                "pause",
                "hooks",
                "--key",
                &long,
                "--seconds",
                "5",
            ],
            4,
            "--key: the key has 513 bytes; allowed: at most 512",
        ),
        (
            &["throttle", "resume", "hooks", "--key", &long],
            4,
            "--key: the key has 513 bytes",
        ),
        (
            &["throttle", "pause", "hooks", "--seconds", "5"],
            2,
            "--key",
        ),
    ];
    for (args, code, words) in cases {
        shell.refused(args, *code, words);
    }
    assert_eq!(shell.run(&["why", "none"]).code, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_in_redis_is_shown_and_hurts_no_other_throttle() {
    let shell = shell().await;
    shell.ok(&["throttle", "set", "good", "rps=20"]);
    shell
        .redis(&["HSET", "throttle:bad:knobs", "rps", "ten"])
        .await;
    shell.redis(&["SET", "throttle:worse:knobs", "hello"]).await;
    shell
        .redis(&[
            "HSET",
            "throttle:orphan:knobs",
            "rps",
            "5",
            "parent",
            "nowhere",
        ])
        .await;
    shell
        .redis(&["HSET", "throttle:ring:knobs", "rps", "5", "parent", "ring"])
        .await;
    shell.redis(&["SET", "throttle:good:bucket", "hello"]).await;

    let list = shell.ok(&["throttle", "list", "--json"]).json();
    let named: BTreeMap<&str, &Value> = list["throttles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["name"].as_str().unwrap(), one))
        .collect();

    assert_eq!(
        named.keys().copied().collect::<Vec<_>>(),
        ["bad", "good", "orphan", "ring", "worse"]
    );
    for (name, words) in [
        ("bad", ", not \"ten\""),
        ("worse", "is not a hash"),
        ("orphan", "there is no throttle nowhere"),
        ("ring", "forms a cycle; the chain ends there"),
    ] {
        let problems: Vec<&str> = named[name]["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["message"].as_str().unwrap())
            .collect();
        let problems = problems.join("; ");
        assert!(problems.contains(words), "{name}: {problems}");
        let shown = shell.ok(&["throttle", "show", name]).out;
        assert!(shown.contains("note"), "{shown}");
    }
    assert_eq!(named["good"]["problems"], json!([]));
    let prefix = &shell.variables["FLYBALL_REDIS_PREFIX"];
    let told = format!("the key {prefix}throttle:worse:knobs in Redis is not a hash");
    shell.refused(&["throttle", "set", "worse", "rps=5"], 4, &told);
}

#[tokio::test]
async fn a_throttle_is_taken_over_by_hand_until_a_time() {
    let shell = shell().await;
    let set = |more: &[&str]| shell.ok(&[&["throttle", "set", "hooks"], more].concat());
    let after = set(&["rps=20", "--until", "30m", "--why", "a test", "--json"]);
    let (knobs, raw) = (&after.json()["knobs"], &after.json()["raw"]);
    let left_ms =
        knobs["manual_until_ms"].as_f64().unwrap() - after.json()["at_us"].as_f64().unwrap() / 1e3;
    assert!((1_700_000.0..=1_800_000.0).contains(&left_ms), "{left_ms}");
    assert_eq!(
        (&raw["mode"], &raw["why"]),
        (&json!("manual"), &json!("a test"))
    );
    let why = shell.ok(&["why", "hooks"]).out;
    assert!(
        why.starts_with("20 rps, set by tester ")
            && why.contains(" s ago (\"a test\"); mode manual: "),
        "{why}"
    );

    set(&["mode=off"]);
    assert_eq!(
        shell.ok(&["throttle", "show", "hooks", "--json"]).json()["raw"]["manual_until_ms"],
        Value::Null
    );

    let set = |more: &[&'static str]| [&["throttle", "set", "hooks"], more].concat();
    shell.refused(
        &set(&["rps=5", "--until", "2001-01-01T00:00:00Z"]),
        4,
        "--until 2001-01-01T00:00:00Z is in the past",
    );
    shell.refused(
        &set(&["mode=auto", "--until", "30m"]),
        4,
        "--until ends the mode manual, but mode is \"auto\"",
    );
    shell.refused(
        &set(&["manual_until_ms=5"]),
        4,
        "must be a whole number of unix milliseconds",
    );
    shell.refused(
        &set(&["rps=5", "--until", "soon"]),
        2,
        "allowed are a time such as",
    );
    assert_eq!(
        shell.ok(&["throttle", "show", "hooks", "--json"]).json()["raw"]["rps"],
        "20",
        "nothing was changed"
    );
}

#[tokio::test]
async fn why_lists_the_history_with_every_term() {
    let shell = shell().await;
    shell.ok(&["migrate"]);
    shell.ok(&["throttle", "set", "hooks", "rps=20"]);
    let pool = sqlx::PgPool::connect(&shell.variables["DATABASE_URL"])
        .await
        .unwrap();
    let journal = flyball::governor::Journal::new(pool);
    for n in 0..30u32 {
        let plan = flyball::governor::Plan {
            rps: f64::from(n),
            limiting: "load".to_owned(),
            reason: format!("reason {n}"),
            terms: [
                ("e".to_owned(), json!(0.25)),
                (if n == 7 { "seven" } else { "x" }.to_owned(), json!(n)),
            ]
            .into(),
            ..Default::default()
        };
        let mode = flyball::throttle::Mode::Auto;
        let one = flyball::governor::Decision::new(
            "hooks",
            1_700_000_000.0 + f64::from(n),
            &plan,
            RateLimit::PerSecond(1.0),
            mode,
        );
        journal.append(1, &one).await.unwrap();
    }
    let lines = |args: &[&str]| {
        shell
            .ok(args)
            .out
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(&["why", "hooks"]).len(), 1);
    let few = lines(&["why", "hooks", "--history=3"]);
    assert_eq!(few.len(), 5, "{few:?}");
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        words(&few[1]),
        [
            "AT", "RPS", "BEFORE", "MODE", "BREAKER", "LIMITING", "e", "x", "REASON"
        ]
    );
    assert_eq!(
        words(&few[2])[1..],
        [
            "29", "1", "auto", "closed", "load", "0.25", "29", "reason", "29"
        ]
    );
    let all = lines(&["why", "hooks", "--history"]);
    assert!(
        all.len() == 32 && words(&all[1]).contains(&"seven".to_owned()),
        "{all:?}"
    );
    let output = shell.ok(&["why", "hooks", "--history", "--json"]).json();
    assert_eq!(
        (
            output["decisions"].as_array().unwrap().len(),
            &output["decisions"][0]["terms"]["x"]
        ),
        (30, &json!(29))
    );
    assert_eq!(
        (&output["throttle"], &output["governor"]),
        (&json!("hooks"), &Value::Null)
    );
    shell.refused(&["why", "hooks", "--history=0"], 2, "0 is not in 1..=1000");
    shell.refused(
        &["why", "hooks", "--decisions", "3"],
        2,
        "unexpected argument",
    );
}

#[tokio::test]
async fn throttles_of_limitlion_are_listed_taken_over_kept_and_taken_away_by_its_tools() {
    let shell = shell().await;
    let server = Serve::start(&shell);
    for (name, ttl_ms) in [
        ("throttle:mail:knobs", "259199000"),
        ("throttle:brief:knobs", "1500"),
    ] {
        shell
            .redis(&["HSET", name, "rps", "7", "burst", "1", "window", "5"])
            .await;
        shell.redis(&["PEXPIRE", name, ttl_ms]).await;
    }
    shell
        .redis(&["HSET", "throttle:two words:knobs", "rps", "1"])
        .await;

    let listed = shell.ok(&["throttle", "import-limitlion"]);
    assert!(
        listed.out.contains("mail") && listed.out.contains("nothing was changed; add --yes"),
        "{}",
        listed.out
    );
    assert!(
        listed.out.contains("it cannot be imported") && !listed.out.contains("api:read"),
        "{}",
        listed.out
    );
    assert!(
        shell
            .ok(&["throttle", "show", "mail"])
            .out
            .contains("expires: in 2 days; after that throttle mail does not exist")
    );
    assert!(
        shell
            .ok(&["why", "mail"])
            .out
            .contains("Its knobs expire in 2 days")
    );
    eventually("the end of what is let expire", SOON, || async {
        (shell.run(&["throttle", "show", "brief"]).code == 3).then_some(())
    })
    .await;

    let taken = shell
        .ok(&[
            "throttle",
            "import-limitlion",
            "--yes",
            "--json",
            "--why",
            "ours now",
        ])
        .json();
    let one = taken["throttles"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "mail")
        .unwrap();
    assert_eq!(
        (&one["adopted"], &one["knobs"]["rps"], &one["knobs"]["by"]),
        (&json!(true), &json!("7"), &json!("tester"))
    );
    let shown = shell.ok(&["throttle", "show", "mail", "--json"]).json();
    assert_eq!(
        (
            &shown["expires_in_s"],
            &shown["problems"],
            &shown["effective_rps"]
        ),
        (&Value::Null, &json!([]), &json!(7.0))
    );
    assert!(
        !shell
            .ok(&["throttle", "import-limitlion"])
            .out
            .contains("mail")
    );
    let audit: Value = reqwest::get(format!("{}/api/v1/audit", server.url))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let entry = &audit["entries"][0];
    assert_eq!(
        (&entry["action"], &entry["subject"], &entry["why"]),
        (
            &json!("throttle.import"),
            &json!("mail"),
            &json!("ours now")
        )
    );
    assert_eq!(
        shell.run(&["throttle", "show", "brief"]).code,
        3,
        "what was let expire is not put back"
    );

    // LimitLion sets the time to live again on use, and a running Flyball removes it.
    let kept = || async {
        let shown = shell.run(&["throttle", "show", "mail", "--json"]);
        (shown.code == 0 && shown.json()["expires_in_s"].is_null()).then_some(())
    };
    let recorded = || async {
        let count = "select count(*) from flyball.knobs where throttle = 'mail'";
        let count = sqlx::query_scalar::<_, i64>(count);
        count.fetch_one(shell.database.pool()).await.unwrap()
    };
    eventually("the record of the knobs", SOON, || async {
        (recorded().await == 1).then_some(())
    })
    .await;
    shell
        .redis(&["PEXPIRE", "throttle:mail:knobs", "600000"])
        .await;
    eventually("knobs that stay", SOON, kept).await;

    // LimitLion's `delete` is a deliberate act, not a loss of Redis data.
    shell.redis(&["DEL", "throttle:mail:knobs"]).await;
    eventually("the end of the record", SOON, || async {
        (recorded().await == 0).then_some(())
    })
    .await;
    assert_eq!(shell.run(&["throttle", "show", "mail"]).code, 3);
}

#[tokio::test]
async fn the_script_is_printed_as_it_is_without_any_server() {
    let shell = shell()
        .await
        .with("REDIS_URL", "redis://127.0.0.1:1")
        .with("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
    let output = shell.ok(&["throttle", "script"]);
    assert_eq!(
        output.out,
        include_str!("../../../core/src/throttle/throttle.lua")
    );
}
