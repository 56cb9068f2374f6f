//! A running `flyball serve`: its metrics, and tokens from the settings file.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::shell::{SOON, Serve, shell};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_as_documented_and_promtool_has_nothing_to_say() {
    let shell = shell().await.with("FLYBALL_LOG", "info");
    let signal = "[[signal]]\nname = \"load\"\nkind = \"load\"\nsource = \"prometheus\"\nquery = \"vector(0.5)\"\nsetpoint = 1.0\n";
    // Some families exist only for a throttle in shadow mode.
    for (throttle, mode) in [("hooks", "auto"), ("shadowed", "shadow")] {
        let policy =
            format!("[knobs]\nrps = 100\nmode = \"{mode}\"\n\n{signal}\n[governor]\ntick_s = 1\n");
        shell.write(&format!("knobs/{throttle}.toml"), policy);
    }
    let serve = Serve::start(&shell);
    for key in 0..20 {
        // Such a URL is rejected at run time: the attempt ends as dead.
        let args = r#"{"url":"http://localhost/"}"#;
        shell.ok(&[
            "enqueue",
            "http",
            "--args",
            args,
            "--throttle",
            "hooks",
            "--key",
            &format!("customer-{key}"),
        ]);
    }
    eventually("the jobs have ended", SOON, || async {
        let dead = serve.json("/api/v1/jobs?state=dead&limit=100").await;
        (dead["jobs"].as_array()?.len() == 20).then_some(())
    })
    .await;
    // One job waits for its key, so that the families about blocked keys have series.
    shell.ok(&[
        "throttle",
        "pause",
        "hooks",
        "--key",
        "held",
        "--seconds",
        "600",
    ]);
    shell.ok(&[
        "enqueue",
        "http",
        "--args",
        r#"{"url":"http://localhost/"}"#,
        "--throttle",
        "hooks",
        "--key",
        "held",
    ]);
    for path in [
        "/api/v1/nothing/1",
        "/api/v1/nothing/2",
        "/api/v1/jobs/12345",
        "/api/v1/throttles/made-up-1",
    ] {
        serve.text(path).await;
    }
    let reference =
        std::fs::read_to_string(Path::new(crate::support::ROOT).join("docs/reference/metrics.md"))
            .unwrap();
    let documented: BTreeSet<&str> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    // There is no message, no pool but that of inboxes, no rejection, no replica, no throttle below
    // another and none that expires here; those families are exposed elsewhere.
    let elsewhere = [
        "flyball_account_",
        "flyball_gate_findings_",
        "flyball_provider_",
        "flyball_notifications_",
        "flyball_governor_learned_quota_",
        "flyball_throttle_expires_seconds",
        "flyball_throttle_key_requests_",
        "flyball_throttle_limiting_share_above",
        "flyball_jobs_not_served_",
        "flyball_jobs_unserved",
        "flyball_replica_",
    ];
    let documented: BTreeSet<&str> = documented
        .into_iter()
        .filter(|name| !elsewhere.iter().any(|family| name.starts_with(family)))
        .collect();
    // Families measured over seconds, or read by the governor, are exposed only once they have a
    // value.
    let text = eventually("every documented family is exposed", SOON, || async {
        let text = serve.text("/metrics").await;
        families(&text).is_superset(&documented).then_some(text)
    })
    .await;

    let why = serve.json("/api/v1/throttles/hooks/why?limit=5").await;
    let sentence = why["sentence"].as_str().unwrap();
    assert!(
        sentence.contains(" rps, ") && sentence.contains("load 0.5 of 1.0 (sample "),
        "{sentence}"
    );
    assert!(why["decisions"][0]["terms"]["u"].is_f64(), "{why}");
    let output = shell.ok(&["why", "shadowed"]).out;
    assert!(
        output.starts_with("100 rps, set")
            && output.contains("; mode shadow: the governor would set "),
        "{output}"
    );
    assert!(
        output.contains(" of shadow mode it would have let "),
        "{output}"
    );
    let shown = serve.json("/api/v1/throttles/shadowed").await;
    assert!(
        shown["governor"]["shadow"]["seconds"].is_f64() && shown["governor"]["rps"].is_f64(),
        "{shown}"
    );

    assert_eq!(
        families(&text),
        documented,
        "docs/reference/metrics.md lacks what is only on the left"
    );
    assert!(
        text.contains(r#"flyball_jobs_finished_total{kind="http",outcome="dead"} 20"#),
        "{text}"
    );
    for grown in ["customer-", "12345", "made-up", "nothing"] {
        assert!(!text.contains(grown), "{grown} has become a label");
    }
    promtool(&text);
}

fn families(text: &str) -> BTreeSet<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect()
}

fn promtool(text: &str) {
    let check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = check.expect("promtool, which comes with Prometheus");
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let words = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && words.trim().is_empty(),
        "{words}"
    );
}

#[tokio::test]
async fn tokens_of_tenants_in_the_settings_file_are_let_in_and_limited_by_their_tenants_throttles()
{
    let shell = shell().await.with("FLYBALL_API_TOKEN", "0123456789abcdef");
    shell.write("secret", "0123456789-billing\n");
    shell.write("flyball.toml", "[api_tokens.billing]\ntenant = \"acme\"\nsecret_file = \"secret\"\nscopes = [\"ops:read\"]\n");
    let server = Serve::start(&shell);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let limited_by = async |token: &str| {
        // A busy Redis may answer too late.
        let answer = eventually("the throttles are listed", SOON, || async {
            let request = client.get(format!("{}/api/v1/throttles", server.url));
            let answer = request.bearer_auth(token).send().await.unwrap();
            (answer.status() != 503).then_some(answer)
        })
        .await;
        assert_eq!(answer.status(), 200);
        answer.headers()["ratelimit"]
            .to_str()
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned()
    };

    assert_eq!(limited_by("0123456789abcdef").await, "\"api:read\"");
    assert_eq!(limited_by("0123456789-billing").await, "\"api:read:acme\"");
    assert!(
        shell
            .ok(&["throttle", "list", "--all"])
            .out
            .contains("api:write:acme")
    );
}

#[tokio::test]
async fn jobs_that_the_only_process_was_told_to_leave_are_shown_by_status_why_and_the_api() {
    let shell = shell().await.with("FLYBALL_SERVE_THROTTLES", "mail:*");
    let server = Serve::start(&shell);
    let args = r#"{"url":"http://localhost/"}"#;
    let made = shell
        .ok(&["enqueue", "http", "--args", args, "--json"])
        .json();
    let id = made["jobs"][0]["id"].to_string();

    let status = eventually("the job is counted", SOON, || async {
        let status = shell.ok(&["status"]).out;
        status
            .contains("not served: 1 job of throttle default")
            .then_some(status)
    })
    .await;
    assert!(
        status.contains("serves the throttle default; start one without --throttles"),
        "{status}"
    );
    let why = shell.ok(&["why", "--job", &id]).out;
    assert!(
        why.contains("waits: no live worker serves the throttle default;"),
        "{why}"
    );
    let why = shell.ok(&["why", "default"]).out;
    assert!(
        why.starts_with(
            "1 job waits and does not start, because no live worker serves the throttle default; \
             start one without --throttles"
        ),
        "{why}"
    );
    let workers = server.json("/api/v1/workers").await;
    assert_eq!(
        workers["workers"][0]["throttles"],
        serde_json::json!(["mail:*"])
    );
    // The figures of a process are a second old at most.
    let unserved = eventually("the API shows it", SOON, || async {
        let workers = server.json("/api/v1/workers").await;
        workers["unserved"].get(0).cloned()
    })
    .await;
    assert_eq!(
        (&unserved["throttle"], &unserved["kind"], &unserved["jobs"]),
        (&"default".into(), &serde_json::Value::Null, &1.into())
    );
}

#[tokio::test]
async fn without_a_live_process_why_and_status_say_so_and_how_old_the_counts_are() {
    let shell = shell().await;
    shell.ok(&["throttle", "set", "many", "rps=-1"]);
    let args = r#"{"url":"http://localhost/"}"#;
    let enqueue = ["enqueue", "http", "--args", args, "--throttle", "many"];
    shell.ok(&[&enqueue[..], &["--count", "2000"]].concat());

    let why = shell.ok(&["why", "many"]).out;
    assert!(
        why.starts_with(
            "2000 jobs wait and none starts, because no worker is live; start one. no limit"
        ),
        "{why}"
    );
    let status = shell.ok(&["status"]).out;
    assert!(
        status.contains("0 live workers: no job runs; start one: flyball serve\n")
            && status.contains(
                "jobs have not been counted yet: no live process counts them; start one: flyball \
                 serve\n"
            ),
        "{status}"
    );

    // The counts of a process that died at night.
    sqlx::raw_sql(
        "update flyball.sweep set at = now() - interval '8 hours';
         insert into flyball.depth (throttle, ready, scheduled, running, dead) values ('many', 3, 1, 0, 0)",
    )
    .execute(shell.database.pool())
    .await
    .unwrap();
    let why = shell.ok(&["why", "many"]).out;
    assert!(
        why.starts_with("2000 jobs wait and none starts, because no worker is live; start one.")
            && why.contains(" Its jobs were last counted 8 h ago: no live process counts them;"),
        "{why}"
    );
    let status = shell.ok(&["status"]).out;
    assert!(
        status.contains("jobs were last counted 8 h ago: no live process counts them;"),
        "{status}"
    );
    let status = shell.ok(&["status", "--json"]).json();
    assert!(
        status["counts_kept"] == false && status["counts_age_s"].as_f64().unwrap() > 28_000.0,
        "{status}"
    );
}

#[tokio::test]
async fn a_process_is_not_told_to_serve_what_it_does_not_have() {
    let shell = shell().await;
    for (option, value, words) in [
        (
            "--kinds",
            "mial",
            "must be kinds of this process (batch, http, notification, reindex)",
        ),
        (
            "--pools",
            "sms",
            "serve_pools: must be inapp, or a beginning with a * behind",
        ),
        (
            "--throttles",
            "a b",
            "serve_throttles: must be names of throttles, or their beginnings",
        ),
    ] {
        let args = ["serve", "--listen", "127.0.0.1:0", option, value];
        shell.refused(&args, 78, words);
    }
}

#[tokio::test]
async fn a_misspelt_variable_is_named_when_a_server_starts_and_not_by_commands() {
    let shell = shell()
        .await
        .with("FLYBALL_API_TOKN", "s3cret-word-of-16")
        .with("FLYBALL_TEST_OF_MINE", "1");
    let words =
        "FLYBALL_API_TOKN is not a known variable and is ignored; did you mean FLYBALL_API_TOKEN?";

    let printed = shell.run(&["serve", "--listen", "0.0.0.0:0"]);

    assert_eq!(printed.code, 78, "it has no token: {}", printed.err);
    assert!(
        printed.err.contains(words)
            && printed.err.matches("is not a known variable").count() == 1
            && !printed.err.contains("s3cret-word"),
        "{}",
        printed.err
    );
    shell.ok(&["migrate"]);
    assert_eq!(shell.ok(&["job", "list"]).err, "");
    let report = shell.ok(&["doctor"]).out;
    assert!(
        report.contains(&format!("warn settings   {words}")) && !report.contains("s3cret-word"),
        "{report}"
    );
}
