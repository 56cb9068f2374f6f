//! Commands that read and change what else only HTTP did: messages, suppressions, pools, workers,
//! kinds, failures, the audit log, and tokens.

use serde_json::json;
use sqlx::AssertSqlSafe;

use super::shell::{Shell, shell};

/// The settings of one pool with two accounts.
const POOL: &str = r#"
[pools.mail]
provider = "sendgrid"

[[pools.mail.accounts]]
name = "main"
from = "News <news@example.com>"
api_key_env = "SENDGRID_API_KEY"

[[pools.mail.accounts]]
name = "spare"
from = "News <news@example.com>"
api_key_env = "SENDGRID_API_KEY"
"#;

async fn migrated() -> Shell {
    let shell = shell()
        .await
        .with("SENDGRID_API_KEY", "SG.0123456789abcdef");
    shell.ok(&["migrate"]);
    shell
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_is_suppressed_looked_up_listed_and_allowed_again() {
    let shell = migrated().await;
    let ada = ["email", "Ada@Example.com"];
    let command = |verb| [&["suppression", verb][..], &ada].concat();

    assert!(
        shell
            .ok(&command("check"))
            .out
            .contains("is not suppressed")
    );
    let added = [&command("add")[..], &["--reason", "asked for it"]].concat();
    assert_eq!(shell.ok(&added).out, "email a***@e***.com is suppressed\n");
    assert!(shell.ok(&added).out.contains("was suppressed already"));
    let shown = shell
        .ok(&["suppression", "check", "email", "ada@example.com"])
        .out;
    assert!(
        shown.contains("is suppressed since") && shown.contains("asked for it"),
        "{shown}"
    );
    let listed = shell.ok(&["suppression", "list", "--json"]).json();
    assert_eq!(
        listed["suppressions"].as_array().unwrap().len(),
        1,
        "{listed}"
    );
    let audit = shell.ok(&["audit", "--json"]).json();
    assert_eq!(
        (&audit["entries"][0]["actor"], &audit["entries"][0]["why"]),
        (&json!("tester"), &json!("asked for it")),
        "{audit}"
    );
    assert!(
        shell
            .ok(&command("remove"))
            .out
            .contains("may get messages again")
    );
    assert!(
        shell
            .ok(&command("remove"))
            .out
            .contains("was not suppressed")
    );
    assert!(shell.ok(&["audit"]).out.contains("tester"));

    for (arguments, code, words) in [
        (
            &["suppression", "add", "fax", "1"][..],
            2,
            "allowed are sms, email, push",
        ),
        (&["suppression", "add", "email", "nobody"], 4, "recipient: "),
        (
            &["suppression", "list", "--after", "x"],
            2,
            "allowed is a channel, a colon and a digest",
        ),
        (&["audit", "--limit", "0"], 2, "invalid value '0'"),
    ] {
        shell.refused(arguments, code, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_seen_and_accounts_resumed_without_a_server() {
    let shell = migrated().await;
    shell.write("flyball.toml", POOL);

    let listed = shell.ok(&["pool", "list", "--json"]).json();
    let names: Vec<&str> = listed["pools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pool| pool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["inapp", "mail"]);
    shell.ok(&["throttle", "set", "mail:accounts", "rps=-1", "key_rps=100"]);
    shell.ok(&[
        "throttle",
        "pause",
        "mail:accounts",
        "--key",
        "main",
        "--seconds",
        "600",
        "--why",
        "unpaid",
    ]);
    let shown = shell.ok(&["pool", "show", "mail"]).out;
    assert!(
        shown.contains("1 of 2 accounts are available") && shown.contains("unpaid"),
        "{shown}"
    );
    assert!(shell.ok(&["pool", "list"]).out.contains("1 of 2"));
    assert_eq!(
        shell
            .ok(&["pool", "resume", "mail", "main", "--why", "paid"])
            .out,
        "account main of pool mail is resumed\n"
    );
    assert!(
        shell
            .ok(&["pool", "resume", "mail", "main"])
            .out
            .contains("was flowing")
    );
    assert!(
        shell
            .ok(&["pool", "show", "mail"])
            .out
            .contains("2 of 2 accounts are available")
    );
    let audit = shell.ok(&["audit"]).out;
    assert!(
        audit.contains("account.resume") && audit.contains("mail/main"),
        "{audit}"
    );

    let unsent = "select flyball.register_kind('notification');
        select flyball.enqueue('notification', '{\"channel\": \"email\", \"to\": \"ada@example.com\", \"body\": \"x\"}', throttle => 'mail');
        with gone as (delete from flyball.ready returning *)
        insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error) select job_id, lane_id, priority, 1, cost, 'no account' from gone;
        insert into flyball.delivery (job_id, channel, pool, state, unsent, updated_at, recipient, category)
        select job_id, 'email', 'mail', 'failed', true, now() - interval '1 hour', '', '' from flyball.dead
        on conflict (job_id) do update set unsent = true, updated_at = now() - interval '1 hour'";
    sqlx::raw_sql(unsent)
        .execute(shell.database.pool())
        .await
        .unwrap();
    let mut open = shell.database.pool().begin().await.unwrap();
    sqlx::query("select from flyball.dead for update")
        .execute(&mut *open)
        .await
        .unwrap();
    shell.refused(
        &["pool", "requeue-unsent", "mail"],
        75,
        "0 messages of pool mail run again; open transactions hold 1 more; try again later",
    );
    open.rollback().await.unwrap();
    assert_eq!(
        shell
            .ok(&["pool", "requeue-unsent", "mail", "--why", "paid"])
            .out,
        "1 message of pool mail runs again\n"
    );
    let requeued = shell.ok(&["audit", "--json", "--limit", "1"]).json();
    assert_eq!(
        (
            &requeued["entries"][0]["action"],
            &requeued["entries"][0]["why"]
        ),
        (&json!("dead.requeue"), &json!("paid"))
    );

    for (arguments, words) in [
        (
            &["pool", "show", "sms"][..],
            "there is no pool sms in the settings; they have inapp, mail",
        ),
        (
            &["pool", "resume", "mail", "third"],
            "pool mail has no account third; it has main, spare",
        ),
        (&["pool", "requeue-unsent", "sms"], "there is no pool sms"),
    ] {
        shell.refused(arguments, 3, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_listed_shown_and_cancelled() {
    let shell = migrated().await;
    shell.write("flyball.toml", POOL);
    let sent = shell
        .ok(&[
            "notify",
            "email",
            "ada@example.com",
            "--body",
            "Hello",
            "--json",
        ])
        .json();
    let id = sent["id"].to_string();

    let listed = shell
        .ok(&[
            "notification",
            "list",
            "--state",
            "queued",
            "--channel",
            "email",
            "--json",
        ])
        .json();
    assert_eq!(listed["notifications"][0]["id"].to_string(), id, "{listed}");
    let shown = shell.ok(&["notification", "show", &id]).out;
    assert!(
        shown.contains("state      queued") && shown.contains("a***@e***.com"),
        "{shown}"
    );
    assert!(!shown.contains("Hello"), "{shown}");
    assert_eq!(
        shell.ok(&["notification", "cancel", &id]).out,
        format!("notification {id} is cancelled\n")
    );
    assert!(shell.ok(&["notification", "list"]).out.contains("failed"));
    for (arguments, code, words) in [
        (
            &["notification", "show", "7"][..],
            3,
            "there is no notification 7",
        ),
        (
            &["notification", "cancel", "7"],
            3,
            "there is no notification 7",
        ),
        (
            &["notification", "list", "--state", "lost"],
            2,
            "allowed are queued, sent",
        ),
    ] {
        shell.refused(arguments, code, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_kinds_and_failures_are_listed() {
    let shell = migrated().await;
    let worker = "insert into flyball.worker (name, host, pid, ttl, kinds, role) values
        ('pdf-1', 'far', 1, '1 hour', '{render}', 'remote'), ('flyball-1', 'near', 2, '1 hour', '{http}', 'runner');
        insert into flyball.failure (job_id, attempt, outcome, error) values (17, 2, 'failed', 'answered 500')";
    sqlx::raw_sql(worker)
        .execute(shell.database.pool())
        .await
        .unwrap();

    let all = shell.ok(&["worker", "list"]).out;
    assert!(all.contains("pdf-1") && all.contains("flyball-1"), "{all}");
    let remote = shell.ok(&["worker", "list", "--remote", "--json"]).json();
    assert_eq!(remote["workers"].as_array().unwrap().len(), 1, "{remote}");
    let shown = shell.ok(&["worker", "show", "pdf-1"]).out;
    assert!(
        shown.contains("kinds      render") && shown.contains("throttles  all"),
        "{shown}"
    );
    assert!(shown.contains("another one on far\n"), "{shown}");
    sqlx::raw_sql("update flyball.worker set host = '' where name = 'pdf-1'")
        .execute(shell.database.pool())
        .await
        .unwrap();
    let shown = shell.ok(&["worker", "show", "pdf-1"]).out;
    assert!(shown.contains("program    another one\n"), "{shown}");
    let failures = shell.ok(&["failures"]).out;
    assert!(
        failures.contains("answered 500") && failures.contains("17"),
        "{failures}"
    );

    let registered = shell
        .ok(&["kind", "register", "report", "--public", "false"])
        .out;
    assert_eq!(registered, "kind report is registered, not public\n");
    assert!(
        shell
            .ok(&["kind", "register", "report"])
            .out
            .contains("not public")
    );
    let kinds = shell.ok(&["kind", "list", "--json"]).json();
    let report = kinds["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .find(|kind| kind["name"] == "report");
    assert_eq!(report.unwrap()["public"], false, "{kinds}");
    for (arguments, code, words) in [
        (
            &["worker", "show", "nobody"][..],
            3,
            "there is no live worker nobody",
        ),
        (&["kind", "register", ""], 4, "name: must not be empty"),
        (
            &["kind", "register", "x", "--public", "maybe"],
            2,
            "invalid value 'maybe'",
        ),
    ] {
        shell.refused(arguments, code, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_taken_returned_and_settled_and_a_throttle_with_jobs_is_deleted_by_force_alone()
{
    let shell = migrated().await;
    shell.ok(&[
        "throttle",
        "set",
        "mail",
        "rps=0.0001",
        "burst=2",
        "window=50000",
    ]);
    // It starts empty, and a full bucket holds ten.
    shell.ok(&["throttle", "return", "mail", "--tokens", "500"]);

    assert!(
        shell
            .ok(&["throttle", "peek", "mail", "--tokens", "10"])
            .out
            .contains("can be taken now")
    );
    assert_eq!(
        shell
            .ok(&["throttle", "acquire", "mail", "--tokens", "6"])
            .out,
        "6 tokens of mail are taken\n"
    );
    let more = shell.run(&["throttle", "acquire", "mail", "--tokens", "6"]);
    assert!(
        more.code == 75 && more.out.starts_with("not now: throttle mail grants"),
        "{}",
        more.out
    );
    shell.ok(&["throttle", "return", "mail", "--tokens", "1"]);
    let settled = shell.ok(&[
        "throttle",
        "settle",
        "mail",
        "--charged",
        "6",
        "--cost",
        "5",
        "--json",
    ]);
    assert_eq!(settled.json()["settled"], -1.0);
    assert!(
        shell
            .ok(&["throttle", "peek", "mail", "--tokens", "6"])
            .out
            .contains("can be taken")
    );
    let refused = shell
        .ok(&[
            "throttle",
            "refused",
            "mail",
            "--key",
            "acme",
            "--retry-after",
            "600",
        ])
        .out;
    assert!(refused.contains("waits until"), "{refused}");
    let paused = shell.run(&["throttle", "acquire", "mail", "--key", "acme"]);
    assert!(
        paused.code == 75 && paused.out.contains("is paused"),
        "{}",
        paused.out
    );
    shell.ok(&[
        "throttle",
        "ended",
        "mail",
        "--key",
        "acme",
        "--succeeded",
        "1",
    ]);

    for (arguments, code, words) in [
        (
            &["throttle", "acquire", "none"][..],
            3,
            "there is no throttle none",
        ),
        (
            &["throttle", "acquire", "mail", "--tokens", "0"],
            4,
            "--tokens is 0; allowed is more than 0",
        ),
        (
            &[
                "throttle",
                "settle",
                "mail",
                "--charged",
                "1",
                "--cost",
                "-1",
            ],
            4,
            "--cost is -1; allowed is 0 to",
        ),
        (
            &["throttle", "refused", "mail", "--scope", "all"],
            2,
            "allowed are key, throttle, account",
        ),
        (
            &["throttle", "ended", "mail"],
            4,
            "--succeeded and --failed are 0",
        ),
    ] {
        shell.refused(arguments, code, words);
    }

    shell.ok(&[
        "enqueue",
        "http",
        "--args",
        r#"{"url":"http://example.com/"}"#,
        "--throttle",
        "mail",
    ]);
    shell.refused(
        &["throttle", "delete", "mail"],
        4,
        "or delete it with --force; nothing was deleted",
    );
    let forced = shell.ok(&["throttle", "delete", "mail", "--force"]).out;
    assert!(
        forced.contains("1 job waits until mail is created again"),
        "{forced}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_shown_without_redis_which_alone_knows_what_holds_them_back() {
    let shell = migrated().await;
    shell.ok(&["lane", "weight", "hooks", "acme", "2"]);
    let dark = shell.with("REDIS_URL", "redis://127.0.0.1:1");
    for (lane, words) in [
        (&["lane", "list", "hooks", "--by-key"][..], "acme"),
        (&["lane", "show", "hooks", "acme"], "weight     2"),
    ] {
        let told = dark.ok(lane);
        assert!(
            told.out.contains(words) && told.out.contains('?'),
            "{}",
            told.out
        );
        assert!(
            told.err
                .contains("flyball: whether keys are held back is unknown: cannot reach Redis"),
            "{}",
            told.err
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_a_database_without_writes_misses_no_worker() {
    let shell = migrated().await;
    let args = r#"{"url":"http://example.com/"}"#;
    shell.ok(&["enqueue", "http", "--args", args]);
    let missed = shell.ok(&["status"]).out;
    assert!(missed.contains("0 live workers: no job runs"), "{missed}");
    let url = url::Url::parse(shell.database.url()).unwrap();
    let name = url.path().trim_start_matches('/');
    let set = format!("alter database {name} set default_transaction_read_only = on");
    sqlx::raw_sql(AssertSqlSafe(set))
        .execute(&shell.database.superuser())
        .await
        .unwrap();

    let told = shell.ok(&["status"]).out;

    assert!(
        told.contains("no job starts: the database is read-only")
            && told.contains("live workers are unknown"),
        "{told}"
    );
    assert!(
        !told.contains("0 live workers") && !told.contains("no worker is live"),
        "{told}"
    );
}
