//! Commands that enqueue, list, show and change jobs.

use std::process::Stdio;

use serde_json::json;

use super::shell::{SOON, Serve, shell};
use crate::support::eventually;
use crate::support::proxy::{Proxy, Way};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_enqueued_listed_shown_cancelled_and_retried() {
    let shell = shell().await;
    let args = r#"{"url":"http://example.com/"}"#;
    assert!(
        shell
            .ok(&["enqueue", "http", "--args", args, "--throttle", "hooks"])
            .out
            .starts_with("enqueued job ")
    );
    let id = shell
        .ok(&[
            "enqueue",
            "http",
            "--args",
            args,
            "--throttle",
            "hooks",
            "--json",
        ])
        .json()["jobs"][0]["id"]
        .to_string();

    let list = shell.ok(&["job", "list"]).out;
    assert!(
        list.lines().count() == 3 && list.contains("hooks") && list.contains(&id),
        "{list}"
    );
    assert_eq!(
        shell
            .ok(&["job", "list", "--json", "--state", "ready", "--limit", "1"])
            .json()["jobs"][0]["id"]
            .to_string(),
        id
    );
    assert!(
        shell
            .ok(&["job", "show", &id])
            .out
            .contains("state      ready")
    );
    assert_eq!(
        shell.ok(&["job", "show", &id, "--json"]).json()["throttle"],
        "hooks"
    );
    assert!(
        shell
            .ok(&["why", "--job", &id])
            .out
            .contains("there is no throttle hooks yet")
    );
    assert!(shell.ok(&["why", "--job", &id, "--json"]).json()["waiting"]["reason"].is_string());
    assert_eq!(
        shell.ok(&["job", "cancel", &id, "--json"]).json(),
        json!({"id": id.parse::<i64>().unwrap(), "result": "cancelled"})
    );

    assert_eq!(
        shell.ok(&["job", "cancel", &id]).out,
        format!("job {id} is cancelled\n"),
        "twice is as good as once"
    );
    shell.refused(
        &["job", "retry", &id],
        4,
        "only dead, retryable and scheduled jobs",
    );
    shell.refused(&["job", "show", "7"], 3, "there is no job 7");
    shell.refused(&["why", "--job", "7"], 3, "there is no job 7");
    shell.refused(&["why", "--message", "7"], 3, "there is no message 7");
    shell.refused(
        &["job", "show", "seven"],
        2,
        "invalid value 'seven' for '<ID>': allowed are whole numbers, such as 42",
    );
    shell.refused(
        &["job", "list", "--state", "redy"],
        2,
        "allowed are scheduled, ready",
    );
    shell.refused(&["job", "list", "--limit", "0"], 2, "1..=1000");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_is_refused_and_nothing_is_enqueued() {
    let shell = shell().await;
    let url = r#"{"url":"http://example.com/"}"#;
    let cases: &[(&[&str], &str)] = &[
        (
            &["enqueue", "htp"],
            "kind: \"htp\" is not a kind that any worker has registered; known kinds: batch, http, notification, reindex",
        ),
        (&["enqueue", "http"], "args/url: is missing"),
        (&["enqueue", "http", "--args", "{"], "args: is not JSON"),
        (
            &[
                "enqueue",
                "noop",
                "--args",
                r#"{"ids":[1,123456789012345678901]}"#,
            ],
            "args/ids/1: is 123456789012345678901, which would be rounded",
        ),
        (
            &["enqueue", "http", "--args", r#"{"url":"example.com"}"#],
            "args/url: must be a URL that begins with http:// or https://, not one without a scheme",
        ),
        (
            &["enqueue", "http", "--args", url, "--throttle", "a b"],
            "is not a throttle's name",
        ),
        (
            &["enqueue", "http", "--args", url, "--priority", "-1"],
            "priority: is -1; allowed are 0",
        ),
        (
            &["enqueue", "http", "--args", url, "--cost", "nan"],
            "cost: is NaN; allowed is a number above 0",
        ),
        (
            &["enqueue", "http", "--args", url, "--max-attempts", "0"],
            "max_attempts: is 0; allowed are 1 to 1000",
        ),
    ];
    for (args, words) in cases {
        shell.refused(args, 4, words);
    }
    shell.write(
        "jobs.ndjson",
        format!("{{\"kind\":\"http\",\"args\":{url}}}\n{{\"kind\":\"http\",\"colour\":1}}\n"),
    );
    shell.refused(
        &["enqueue", "--file", "jobs.ndjson"],
        4,
        "line 2: colour: is not a known field",
    );
    // The database alone knows all kinds.
    shell.write(
        "jobs.ndjson",
        format!("{{\"kind\":\"http\",\"args\":{url}}}\n\n{{\"kind\":\"htp\"}}\n"),
    );
    let file = ["enqueue", "--file", "jobs.ndjson"];
    shell.refused(
        &file,
        4,
        "nothing was enqueued: jobs.ndjson, line 3: kind: \"htp\"",
    );
    shell.write("jobs.ndjson", "{\"kind\":\"htp\"}\n");
    shell.refused(&file, 4, "jobs.ndjson, line 1: kind: \"htp\"");
    shell.refused(
        &["enqueue", "--file", "none.ndjson"],
        3,
        "cannot read none.ndjson",
    );
    shell.refused(
        &["enqueue", "http", "--args", "@none.json"],
        3,
        "cannot read none.json: No such file",
    );
    shell.refused(&["enqueue"], 2, "required arguments");
    for alone in [
        ["--throttle", "hooks"],
        ["--args", "{}"],
        ["--run-at", "2h"],
        ["--retry-delay", "5s"],
    ] {
        let with_file = [&["enqueue", "--file", "jobs.ndjson"][..], &alone].concat();
        shell.refused(&with_file, 2, "cannot be used with");
    }

    assert_eq!(
        shell.ok(&["job", "list", "--json"]).json()["jobs"],
        json!([])
    );
}

#[tokio::test]
async fn a_file_of_which_a_part_was_enqueued_is_no_refusal_that_can_be_repeated() {
    let shell = shell().await;
    let url = r#"{"url":"http://example.com/"}"#;
    let line = |throttle: &str, kind: &str| {
        format!("{{\"kind\":\"{kind}\",\"args\":{url},\"throttle\":\"{throttle}\"}}\n")
    };
    let file = ["enqueue", "--file", "jobs.ndjson"];
    shell.write(
        "jobs.ndjson",
        line("a", "http").repeat(1000) + &line("a", "htp"),
    );
    let told = "the first 1000 jobs were enqueued, the rest was not: jobs.ndjson, line 1001: kind: \"htp\"";
    shell.refused(&file, 1, told);

    sqlx::query("insert into flyball.knobs (throttle, fields) values ('b', $1)")
        .bind(json!({"max_backlog": "1", "on_backlog": "reject"}))
        .execute(shell.database.pool())
        .await
        .unwrap();
    shell.write(
        "jobs.ndjson",
        line("a", "http").repeat(1000) + &line("b", "http").repeat(2),
    );
    let told = "the first 1000 jobs were enqueued, the rest was not: throttle \"b\"";
    shell.refused(&file, 1, told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_enqueued_without_an_answer_is_not_told_as_not_enqueued() {
    let shell = shell().await;
    let pool = shell.database.pool().clone();
    let proxy = Proxy::start(shell.database.url()).await;
    let shell = shell.with("DATABASE_URL", &proxy.url);
    let mut open = pool.begin().await.unwrap();
    sqlx::query("lock table flyball.ready in exclusive mode")
        .execute(&mut *open)
        .await
        .unwrap();
    let url = r#"{"url":"http://example.com/"}"#;
    let command = shell
        .command(&["enqueue", "http", "--args", url])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let wait = |what: &'static str, sql: &'static str| {
        let pool = pool.clone();
        async move {
            eventually(what, SOON, || async {
                let rows: i64 = sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap();
                (rows > 0).then_some(())
            })
            .await;
        }
    };
    let blocked = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'";
    wait("the command waits", blocked).await;

    proxy.way(Way::Hung);
    open.rollback().await.unwrap();
    wait("its job is there", "select count(*) from flyball.ready").await;
    proxy.cut();

    let told = command.wait_with_output().unwrap();
    let error = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(69), "{error}");
    let words = "flyball: it is not known whether anything was enqueued; look before you repeat it";
    assert!(error.starts_with(words), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_an_open_transaction_holds_up_says_so() {
    let shell = shell().await;
    let url = r#"{"url":"http://example.com/"}"#;
    let later = ["enqueue", "http", "--args", url, "--run-at", "2h", "--json"];
    let job = shell.ok(&later).json()["jobs"][0]["id"].to_string();
    let mut open = shell.database.pool().begin().await.unwrap();
    sqlx::query("select flyball.cancel($1)")
        .bind(job.parse::<i64>().unwrap())
        .execute(&mut *open)
        .await
        .unwrap();

    shell.refused(
        &["job", "cancel", &job],
        75,
        "flyball: an open transaction holds what the command needs; try again later\n",
    );
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn a_full_lane_has_an_exit_code_of_its_own_and_a_lane_above_its_cap_is_reported() {
    let shell = shell().await;
    let pool = shell.database.pool();
    let args = r#"{"url":"http://example.com/"}"#;
    let on = |throttle| {
        [
            "enqueue",
            "http",
            "--args",
            args,
            "--throttle",
            throttle,
            "--key",
            "k",
        ]
    };
    for (throttle, fields) in [
        ("hooks", json!({"max_backlog": "1", "on_backlog": "reject"})),
        ("mails", json!({"max_backlog": "1"})),
    ] {
        sqlx::query("insert into flyball.knobs (throttle, fields) values ($1, $2)")
            .bind(throttle)
            .bind(fields)
            .execute(pool)
            .await
            .unwrap();
        shell.ok(&on(throttle));
    }

    shell.refused(
        &on("hooks"),
        75,
        "throttle \"hooks\", key \"k\": 1 job of this lane is ready; its knob max_backlog allows 1",
    );
    let over = shell.ok(&on("mails"));
    assert!(
        over.out.starts_with("enqueued job ") && over.err.contains("a lane has 2 ready jobs"),
        "{}{}",
        over.out,
        over.err
    );
}

#[tokio::test]
async fn the_command_line_replaces_and_debounces_and_carries_a_trace() {
    let shell = shell().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let job = |more: &[&'static str]| {
        let mut words = vec![
            "enqueue",
            "http",
            "--args",
            r#"{"url":"http://example.com/"}"#,
        ];
        words.extend(more);
        words
    };
    shell.ok(&job(&[
        "--unique-key",
        "k",
        "--debounce",
        "600",
        "--debounce-max",
        "1200",
    ]));
    let output = shell.ok(&job(&[
        "--unique-key",
        "k",
        "--replace",
        "--timeout",
        "7",
        "--traceparent",
        trace,
    ]));
    assert!(
        output
            .out
            .contains("was waiting and has been replaced by this job"),
        "{}",
        output.out
    );

    let sql = "select traceparent || ' ' || timeout_s from flyball.job";
    let kept: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(shell.database.pool())
        .await
        .unwrap();

    assert_eq!(kept, [format!("{trace} 7")]);
    shell.refused(
        &job(&["--traceparent", "00-x"]),
        4,
        "traceparent: \"00-x\" is not a W3C trace parent",
    );
    shell.refused(
        &job(&["--timeout", "-1"]),
        4,
        "timeout: is -00:00:01; allowed is at least a microsecond",
    );
    shell.refused(
        &job(&["--timeout", "inf"]),
        4,
        "timeout: is inf; allowed is a number above 0",
    );
    shell.refused(
        &job(&[
            "--unique-key",
            "k",
            "--debounce",
            "5",
            "--debounce-max",
            "4",
        ]),
        4,
        "debounce_max: is 00:00:04; allowed is at least",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guides_first_job_needs_no_folder_of_the_repository_and_no_setting_of_the_server() {
    let shell = shell().await;
    // Reachable addresses are a setting of the server, so the command does not check them.
    let local = "{\"url\": \"http://127.0.0.1:9000/\"}";
    assert!(
        shell
            .ok(&["enqueue", "http", "--args", local, "--count", "300"])
            .out
            .contains("enqueued 300 jobs")
    );
    // The forms of POST /api/v1/jobs: a span may be a text.
    let same = format!(
        r#"{{"kind": "http", "args": {local}, "unique_key": "same", "timeout": "10 minutes"}}"#
    );
    shell.write("twins", format!("{same}\n{same}\n"));
    assert_eq!(
        shell.ok(&["enqueue", "--file", "twins"]).out,
        "enqueued 1 job; 1 was a duplicate\n"
    );
    let cron = ["cron", "set", "beat", "@hourly", "http", "--args", local];
    shell.ok(&cron);
    for (option, words) in [
        ("--overlap", "allowed are skip, allow"),
        ("--catch-up", "allowed are one, all, none"),
    ] {
        shell.refused(&[&cron[..], &[option, "never"]].concat(), 2, words);
    }
    shell.refused(
        &["enqueue", "http", "--args", "{\"url\": 7}", "--count", "300"],
        4,
        "flyball: args/url: must be a text such as \"https://example.com/hook\", not 7; nothing was enqueued",
    );
    let _server = Serve::start(&shell);
    assert!(
        shell
            .ok(&["throttle", "show", "default"])
            .out
            .contains("in force        100\n")
    );
    let nowhere = shell.with("FLYBALL_KNOBS_DIR", "nowhere");
    nowhere.refused(
        &["serve", "--listen", "127.0.0.1:0"],
        78,
        "FLYBALL_KNOBS_DIR (setting knobs_dir): must be a folder of files <throttle>.toml, or empty for none, not \"nowhere\"",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_found_by_their_arguments_and_an_index_for_it_is_added_and_dropped() {
    let shell = shell().await;
    let args = r#"{"method":"POST","url":"http://example.com/","body":{"order":17}}"#;
    let id = shell
        .ok(&["enqueue", "http", "--args", args, "--tag", "eu", "--json"])
        .json()["jobs"][0]["id"]
        .to_string();
    shell.ok(&[
        "enqueue",
        "http",
        "--args",
        r#"{"url":"http://example.com/"}"#,
    ]);
    let found = |filter: &[&str]| {
        let list = shell
            .ok(&[&["job", "list", "--json"][..], filter].concat())
            .json();
        let jobs = list["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["id"].to_string()).collect::<Vec<_>>()
    };
    let by_args = ["--args", r#"{"body":{"order":17}}"#];
    for filter in [
        &by_args[..],
        &["--args-path", "$.body.order == 17"],
        &["--tag", "eu"],
    ] {
        assert_eq!(found(filter), std::slice::from_ref(&id), "{filter:?}");
    }
    shell.refused(
        &["job", "list", "--args-path", "$.a"],
        4,
        "args_path: \"$.a\" is not allowed",
    );
    shell.refused(&["job", "cancel", "--args", "x"], 2, "is not JSON");
    shell.refused(
        &["job", "cancel", &id, "--tag", "eu"],
        2,
        "cannot be used with",
    );
    shell.refused(
        &["job", "cancel", "--tenant", "shop"],
        4,
        "--args-path, --tag; nothing was cancelled",
    );

    let created = shell.ok(&["index", "create", "--args", "$.body.order"]).out;
    assert_eq!(created, "the index by $.body.order is ready\n");
    assert_eq!(found(&by_args), std::slice::from_ref(&id));
    let list = shell.ok(&["index", "list", "--json"]).json();
    assert_eq!(
        (&list["indexes"][0]["by"], &list["indexes"][0]["ready"]),
        (&json!("$.body.order"), &json!(true))
    );
    shell.refused(
        &["index", "create", "--args", "body"],
        2,
        "allowed is a path of names",
    );
    shell.refused(
        &["index", "create", "--args", "$.a b"],
        4,
        "letters, digits and _",
    );
    shell.refused(
        &["index", "drop", "--trace"],
        3,
        "there is no index by trace",
    );
    shell.ok(&["index", "drop", "--args", "$.body.order"]);
    assert_eq!(
        shell.ok(&["index", "list", "--json"]).json()["indexes"],
        json!([])
    );
    assert_eq!(
        shell
            .ok(&[
                "job",
                "cancel",
                "--args-path",
                "$.body.order == 17",
                "--yes"
            ])
            .out,
        "1 job cancelled\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_shown_with_its_progress_and_its_result() {
    let shell = shell().await;
    let args = r#"{"url":"http://example.com/"}"#;
    let enqueued = shell.ok(&["enqueue", "http", "--args", args, "--json"]);
    let id = enqueued.json()["jobs"][0]["id"].to_string();
    let kept = format!(
        "insert into flyball.checkpoint (job_id, cursor, done, total) values ({id}, '{{}}', 41, 200);
         insert into flyball.result (job_id, result, kept_until) values ({id}, '{{\"pages\": 200}}', now() + interval '1 day')"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(kept))
        .execute(shell.database.pool())
        .await
        .unwrap();

    let shown = shell.ok(&["job", "show", &id]).out;

    for line in ["progress   20.5 %\n", "result     {\"pages\":200}\n"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}
