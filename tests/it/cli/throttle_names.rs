//! The answers of `flyball throttle` to a name that no throttle has, and to one of a pattern.

use super::shell::shell;

#[tokio::test(flavor = "multi_thread")]
async fn a_throttle_that_did_not_exist_is_said_to_be_new_with_those_of_similar_names() {
    let shell = shell().await;
    let set = |name: &str| shell.ok(&["throttle", "set", name, "rps=20"]).out;
    assert!(set("hooks").starts_with("created throttle hooks\n"));
    assert!(!set("hooks").contains("created"));

    let mistyped = set("hoks");

    assert!(
        mistyped.starts_with("created throttle hoks; there is also hooks\n"),
        "{mistyped}"
    );
    assert!(set("other").starts_with("created throttle other\n"));

    let meant = "there is no throttle hook; create it with: flyball throttle set hook rps=10; there is \
                 also hooks";
    for args in [
        &["throttle", "show", "hook"][..],
        &["throttle", "pause", "hook"],
        &["throttle", "acquire", "hook"],
        &["throttle", "pause", "hook", "--key", "a", "--seconds", "5"],
        &["lane", "list", "hook"],
    ] {
        shell.refused(args, 3, meant);
    }
    let why = shell.run(&["why", "hook"]).out;
    assert!(why.contains("; there is also hooks"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_gives_no_tokens_and_neither_it_nor_a_key_of_it_is_paused() {
    let shell = shell().await;
    shell.ok(&["throttle", "set", "gcal:*", "rps=20"]);
    let refused = |args: &[&str], words: &str| {
        let args = [&["throttle", args[0], "gcal:*"][..], &args[1..]].concat();
        shell.refused(&args, 4, words);
    };

    for args in [
        &["acquire"][..],
        &["peek"],
        &["pause", "--key", "acme", "--seconds", "5"],
    ] {
        refused(args, "gcal:* is a pattern, which has no tokens and no keys");
    }
    refused(&["pause"], "paused: must be 0 for a pattern");

    let json = shell.ok(&["throttle", "show", "gcal:*", "--json"]).json();
    assert_eq!(json["knobs"]["paused"], false, "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_stores_jobs_says_which_throttles_do_not_exist() {
    let shell = shell().await;
    shell.ok(&["throttle", "set", "hooks", "rps=20"]);
    let (args, jobs) = (
        r#"{"url":"http://example.com/"}"#,
        r#"[{"kind":"http","args":{"url":"http://example.com/"},"throttle":"hoks"}]"#,
    );
    let told = "flyball: there is no throttle hoks, so its jobs wait; there is also hooks; create \
                it with: flyball throttle set hoks rps=10\n";
    let enqueue = ["enqueue", "http", "--args", args, "--throttle"];
    let with = |throttle: &'static str| shell.ok(&[&enqueue[..], &[throttle]].concat()).err;
    assert_eq!(with("hoks"), told);
    assert_eq!(with("hooks"), "");
    let cron = [
        "cron",
        "set",
        "nightly",
        "@daily",
        "http",
        "--args",
        args,
        "--throttle",
        "hoks",
    ];
    assert_eq!(shell.ok(&cron).err, told);
    assert_eq!(shell.ok(&["group", "create", "--jobs", jobs]).err, told);
    let weight = ["lane", "weight", "hoks", "acme", "3"];
    assert_eq!(shell.ok(&weight).err, told);
    let job =
        shell.ok(&["job", "list", "--limit", "1", "--json"]).json()["jobs"][0]["id"].to_string();
    let update = ["job", "update", job.as_str(), "--throttle"];
    let moved = |throttle| shell.ok(&[&update[..], &[throttle]].concat()).err;
    assert_eq!(moved("hoks"), told);
    assert_eq!(moved("hooks"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttle_of_a_pattern_is_made_on_first_use_and_nobody_is_told_to_create_it() {
    let shell = shell().await;
    shell.ok(&["throttle", "set", "gcal:*", "rps=20"]);
    let args = r#"{"url": "https://calendar.example.com"}"#;
    shell.ok(&["enqueue", "http", "--args", args, "--throttle", "gcal:1"]);
    let count = "insert into flyball.depth (throttle, ready, scheduled, running, dead)
        values ('gcal:1', 1, 0, 0, 0)";
    sqlx::raw_sql(count)
        .execute(shell.database.pool())
        .await
        .unwrap();

    let told = shell.run(&["why", "gcal:1"]);
    assert!(
        told.code == 3
            && told
                .out
                .contains("there is no throttle gcal:1 yet; the first request for its tokens"),
        "{} {}",
        told.code,
        told.out
    );
    for args in [
        &["throttle", "show", "gcal:1"][..],
        &["throttle", "pause", "gcal:1"],
    ] {
        let words =
            "no throttle gcal:1 yet; the first request for its tokens makes it, from gcal:*";
        shell.refused(args, 3, words);
    }
    let checks = shell.run(&["doctor", "--json"]).json();
    assert!(
        !checks.to_string().contains("no throttle gcal:1"),
        "{checks:#}"
    );

    let taken = shell.ok(&["throttle", "acquire", "gcal:1"]).out;
    assert!(taken.contains("1 tokens of gcal:1 are taken"), "{taken}");
    let made = shell.ok(&["throttle", "show", "gcal:1", "--json"]).json();
    assert_eq!(made["raw"]["rps"], "20", "{made}");
    for verb in ["acquire", "peek"] {
        let words = "there is no throttle other; create it with";
        shell.refused(&["throttle", verb, "other"], 3, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_that_makes_no_more_is_not_said_to_make_one() {
    let shell = shell().await.with("FLYBALL_THROTTLES_CREATED_MAX", "0");
    shell.ok(&["throttle", "set", "gcal:*", "rps=20"]);
    let create = "create it with: flyball throttle set gcal:1 rps=10";

    let missing = format!("there is no throttle gcal:1; {create}");
    for verb in ["show", "pause", "acquire"] {
        shell.refused(&["throttle", verb, "gcal:1"], 3, &missing);
    }
    let why = shell.run(&["why", "gcal:1"]).out;
    assert!(why.starts_with(&missing), "{why}");
    let args = r#"{"url": "https://calendar.example.com"}"#;
    let enqueued = shell.ok(&["enqueue", "http", "--args", args, "--throttle", "gcal:1"]);
    assert_eq!(
        enqueued.err,
        format!("flyball: there is no throttle gcal:1, so its jobs wait; {create}\n")
    );
}
