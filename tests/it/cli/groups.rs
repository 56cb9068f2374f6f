//! Groups of jobs on the command line.

use super::shell::shell;
use crate::docs::read;

const URL: &str = r#"{"url":"http://example.com/"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_created_joined_sealed_shown_listed_and_cancelled() {
    let shell = shell().await;
    let callback = format!(r#"{{"kind":"http","args":{URL}}}"#);
    let created = shell.ok(&[
        "group",
        "create",
        "--callback",
        &callback,
        "--name",
        "import",
        "--json",
    ]);
    let id = created.json()["id"].to_string();
    for _ in 0..2 {
        shell.ok(&["enqueue", "http", "--args", URL, "--group", &id]);
    }

    let shown = shell.ok(&["group", "show", &id]).out;
    for line in [
        "name       import",
        "state      open",
        "jobs       2: 2 pending, 0 completed, 0 dead, 0 cancelled",
        "callback   {",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    assert_eq!(
        shell.ok(&["group", "seal", &id]).out,
        format!("group {id} is sealed\n")
    );
    assert_eq!(
        shell.ok(&["group", "seal", &id]).out,
        format!("group {id} was sealed before\n")
    );
    let listed = shell.ok(&["job", "list", "--group", &id, "--json"]).json();
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 2);
    assert!(
        shell
            .ok(&["job", "show", &listed["jobs"][0]["id"].to_string()])
            .out
            .contains(&format!("group      {id}\n"))
    );
    let cancelled = shell.ok(&["group", "cancel", &id, "--json"]).json();
    assert_eq!(
        (&cancelled["cancelled"], &cancelled["requested"]),
        (&2.into(), &0.into())
    );
    let ended = shell.ok(&["group", "show", &id, "--json"]).json();
    assert_eq!(
        (&ended["state"], &ended["cancelled"]),
        (&"ended".into(), &2.into())
    );
    let groups = shell.ok(&["group", "list"]).out;
    assert!(
        groups.contains("import") && groups.contains("ended"),
        "{groups}"
    );

    for (state, wanted) in [("ended", 1), ("open", 0), ("running", 0)] {
        let listed = shell
            .ok(&["group", "list", "--state", state, "--json"])
            .json();
        assert_eq!(
            listed["groups"].as_array().unwrap().len(),
            wanted,
            "{state}"
        );
    }
    let aged =
        "insert into flyball.job_group (created_at) values (now() - interval '2 days'), (now())";
    sqlx::raw_sql(aged)
        .execute(shell.database.pool())
        .await
        .unwrap();
    let status = shell.ok(&["status"]).out;
    assert!(
        status.contains("1 group is open for more than a day, since"),
        "{status}"
    );
    let old = [
        "group",
        "list",
        "--state",
        "open",
        "--created-before",
        "24h",
        "--json",
    ];
    let old = shell.ok(&old).json();
    assert_eq!(old["groups"].as_array().unwrap().len(), 1, "{old}");
    let forget = "truncate flyball.job_group restart identity";
    sqlx::raw_sql(forget)
        .execute(shell.database.pool())
        .await
        .unwrap();

    // The forms of POST /api/v1/jobs: a span may be a text.
    let spans = format!(
        r#"{{"kind":"http","args":{URL},"timeout":"10 minutes","unique_key":"k","unique_for":"PT1H"}}"#
    );
    let whole = format!("[{callback}, {spans}]");
    assert_eq!(
        shell.ok(&["group", "create", "--jobs", &whole]).out,
        "created group 1 with 2 jobs, sealed\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_cannot_be_is_refused_and_nothing_is_created() {
    let shell = shell().await;
    for (arguments, code, message) in [
        (
            &["group", "create", "--callback", "{"][..],
            4,
            "callback: is not JSON",
        ),
        (
            &["group", "create", "--callback", r#"{"kind":"http"}"#],
            4,
            "args/url: is missing",
        ),
        (
            &["group", "create", "--callback", r#"{"kind":"nope"}"#],
            4,
            "callback.kind: \"nope\" is not a kind that any worker has registered",
        ),
        (
            &[
                "group",
                "create",
                "--callback",
                r#"{"kind":"batch","prio":1}"#,
            ],
            4,
            "callback/prio: is not a known field",
        ),
        (
            &["group", "create", "--callback", r#"{"callback": 3}"#],
            4,
            "callback/callback: is not a known field; allowed: kind",
        ),
        (
            &[
                "group",
                "create",
                "--callback",
                r#"{"kind":"batch","priority":"high"}"#,
            ],
            4,
            "callback/priority: must be a whole number from 0 to 3",
        ),
        (
            &["group", "create", "--callback", r#"{"throttle":"mail"}"#],
            4,
            "callback/kind: is missing",
        ),
        (
            &[
                "group",
                "create",
                "--jobs",
                r#"[{"kind":"batch"},{"kind":7}]"#,
            ],
            4,
            "jobs/1/kind: must be a text of 1 to 128 bytes, not 7",
        ),
        (
            &["group", "create", "--jobs", "{}"],
            4,
            "jobs: must be a list of jobs",
        ),
        (
            &["group", "list", "--state", "shut"],
            2,
            "allowed are open, running, ended",
        ),
        (&["group", "show", "7"], 3, "there is no group 7"),
        (&["group", "seal", "7"], 3, "there is no group 7"),
        (&["group", "cancel", "7"], 3, "there is no group 7"),
        (&["group", "show", "seven"], 2, "invalid value 'seven'"),
        (
            &["enqueue", "http", "--args", URL, "--group", "7"],
            4,
            "group: 7 is not the number of a group of yours",
        ),
    ] {
        shell.refused(arguments, code, message);
    }
    assert_eq!(
        shell.ok(&["group", "list", "--json"]).json()["groups"],
        serde_json::json!([])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_group_ends_although_an_open_transaction_holds_a_job() {
    let shell = shell().await;
    let jobs = format!(r#"[{{"kind":"http","args":{URL}}},{{"kind":"http","args":{URL}}}]"#);
    let id = shell
        .ok(&["group", "create", "--jobs", &jobs, "--json"])
        .json()["id"]
        .to_string();
    let mut open = shell.database.pool().begin().await.unwrap();
    sqlx::query("select from flyball.ready order by job_id limit 1 for update")
        .execute(&mut *open)
        .await
        .unwrap();

    shell.refused(
        &["group", "cancel", &id],
        75,
        "is sealed, and 1 job will not run, 0 are asked to stop; an open transaction holds others",
    );

    let audited: i64 =
        sqlx::query_scalar("select count(*) from flyball.audit where action = 'group.cancel'")
            .fetch_one(shell.database.pool())
            .await
            .unwrap();
    assert_eq!(audited, 1, "the steps that changed nothing are not told");
    open.rollback().await.unwrap();
    let told = shell.ok(&["group", "cancel", &id]).out;
    assert_eq!(
        told,
        format!("group {id} is cancelled: 1 job will not run, 0 are asked to stop\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_field_of_a_group_is_named_with_its_job() {
    let shell = shell().await;
    let jobs = |second: &str| format!(r#"[{{"kind":"http","args":{URL}}},{second}]"#);
    let refused = |arguments: &[&str], words: &str| {
        shell.refused(&[&["group", "create"][..], arguments].concat(), 4, words);
    };

    refused(
        &["--jobs", &jobs(r#"{"kind":"http"}"#)],
        "jobs/1/args/url: is missing",
    );
    refused(
        &["--jobs", &jobs(r#"{"kind":"htp"}"#)],
        "jobs/1/kind: \"htp\" is not a kind",
    );
    refused(
        &["--callback", r#"{"kind":"http"}"#],
        "callback/args/url: is missing",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callback_of_a_group_is_shown_as_in_the_guide() {
    let shell = shell().await;
    let guide = read("docs/guides/groups.md");
    let callback =
        r#"{"kind": "http", "args": {"method": "POST", "url": "https://example.com/imported"}}"#;
    assert!(guide.contains(&format!("--callback '{callback}'")));
    let created = shell.ok(&["group", "create", "--callback", callback, "--json"]);
    let id = created.json()["id"].to_string();
    let shown = shell.ok(&["group", "show", &id]).out;
    let line = shown
        .lines()
        .find(|line| line.starts_with("callback "))
        .unwrap();
    assert!(guide.contains(&format!("\n{line}\n")), "{shown}");
}
