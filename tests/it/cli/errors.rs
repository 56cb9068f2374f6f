//! Errors: exit codes, text, JSON.

use std::process::Command;

use serde_json::{Value, json};

use super::shell::shell;
use crate::support::PROGRAM;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_postgres_is_reported_by_its_place_and_its_remedy() {
    let usual = shell().await;
    let base: url::Url = usual.variables["DATABASE_URL"].parse().unwrap();
    let with = async |change: &dyn Fn(&mut url::Url)| {
        let mut url = base.clone();
        change(&mut url);
        shell().await.with("DATABASE_URL", url.as_str())
    };
    let began = std::time::Instant::now();
    let nothing = shell().await.with(
        "DATABASE_URL",
        "postgres://ann:s3cret-word@127.0.0.1:1/shop",
    );
    nothing.refused(&["job", "list"], 69, "nothing listens at 127.0.0.1:1");
    assert!(began.elapsed().as_secs() < 60);
    with(&|url| url.set_path("/nowhere")).await.refused(
        &["job", "list"],
        69,
        "there is no database \"nowhere\" at ",
    );
    with(&|url| url.set_username("nobody-here").unwrap())
        .await
        .refused(&["status"], 69, "role \"nobody-here\"");

    for printed in [
        nothing.run(&["job", "list"]),
        with(&|url| url.set_path("/nowhere"))
            .await
            .run(&["migrate"]),
    ] {
        assert!(
            !printed.err.contains("s3cret-word") && !printed.err.contains(" at line "),
            "{}",
            printed.err
        );
        assert_eq!(printed.code, 69, "{}", printed.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_of_the_databases_url_that_nothing_reads_is_named_without_its_value() {
    let shell = shell().await;
    let mut url: url::Url = shell.variables["DATABASE_URL"].parse().unwrap();
    url.query_pairs_mut()
        .append_pair("sslpassword", "s3cret-word");
    let shell = shell
        .with("DATABASE_URL", url.as_str())
        .with("FLYBALL_LOG", "trace");
    let words = "DATABASE_URL (setting database_url): the parameter sslpassword is not known";

    let outputs = [
        shell.ok(&["job", "list"]),
        shell.ok(&["doctor"]),
        shell.run(&["serve", "--listen", "0.0.0.0:0"]),
    ];

    for printed in &outputs {
        let all = format!("{}{}", printed.out, printed.err);
        assert!(!all.contains("s3cret-word"), "{all}");
    }
    assert!(outputs[1].out.contains(words), "{}", outputs[1].out);
    assert!(outputs[2].err.contains(words), "{}", outputs[2].err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_missing_older_or_newer_is_called_so() {
    let shell = shell().await;
    let mut database =
        <sqlx::PgConnection as sqlx::Connection>::connect(&shell.variables["DATABASE_URL"])
            .await
            .unwrap();
    let mut sql = async |text: &'static str| {
        sqlx::raw_sql(text).execute(&mut database).await.unwrap();
    };
    shell.ok(&["job", "list"]);

    sql("insert into flyball.migration (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0)")
        .await;
    shell.ok(&["job", "list"]);
    shell.ok(&["migrate"]);
    sql("update flyball.compatibility set oldest_program = 9999").await;
    let too_new = "the schema is too new for this program (unknown migration 9999)";
    shell.refused(&["job", "list"], 69, too_new);
    for command in [&["migrate"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        shell.refused(command, 69, too_new);
    }
    sql("delete from flyball.migration where version in (9999, (select max(version) from flyball.migration where version < 9999))")
        .await;
    shell.refused(
        &["job", "list"],
        69,
        "the schema is older than this program, which has 1 more migration",
    );
    sql("drop schema flyball cascade").await;
    for command in [&["job", "list"][..], &["status"], &["why", "default"]] {
        shell.refused(command, 69, "there is no schema yet: run flyball migrate");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_an_unreleased_program_made_is_refused_with_the_way_out() {
    let shell = shell().await;
    let mut database =
        <sqlx::PgConnection as sqlx::Connection>::connect(&shell.variables["DATABASE_URL"])
            .await
            .unwrap();
    shell.ok(&["job", "list"]);
    // As before its first version: the same numbers with other texts, more of them, and an oldest
    // program that this one does not know.
    sqlx::raw_sql(
        "update flyball.migration set checksum = '\\x00';
        insert into flyball.migration (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0);
        update flyball.compatibility set oldest_program = 9998",
    )
    .execute(&mut database)
    .await
    .unwrap();
    let told = "made by a version of Flyball that was not released (its migration 1 is not that of \
                this program) and cannot be brought up to date: set DATABASE_URL to a new database";

    for command in [
        &["job", "list"][..],
        &["migrate"],
        &["serve", "--listen", "127.0.0.1:0"],
    ] {
        shell.refused(command, 69, told);
    }

    let left: i64 = sqlx::query_scalar(
        "select count(*) from flyball.migration where checksum in ('\\x00', '')",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    let all: i64 = sqlx::query_scalar("select count(*) from flyball.migration")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(left, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_command_that_was_asked_for_json_is_json_with_its_exit_code() {
    let shell = shell().await;
    shell.ok(&["migrate"]);
    let printed = shell.run(&["job", "show", "42", "--json"]);
    let error: Value = serde_json::from_str(&printed.err)
        .unwrap_or_else(|error| panic!("{error}: {}", printed.err));
    assert_eq!(
        (printed.code, &error["error"]["exit_code"]),
        (3, &json!(3)),
        "{error}"
    );
    assert!(
        error["error"]["message"].as_str().unwrap().contains("42"),
        "{error}"
    );
    assert_eq!(printed.out, "");
    let printed = shell.run(&["job", "show", "many", "--json"]);
    let error: Value = serde_json::from_str(&printed.err)
        .unwrap_or_else(|error| panic!("{error}: {}", printed.err));
    assert_eq!(
        (printed.code, &error["error"]["exit_code"]),
        (2, &json!(2)),
        "{error}"
    );
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("invalid value 'many' for"), "{error}");
    assert!(
        shell
            .ok(&["job", "show", "--json", "--help"])
            .out
            .contains("Usage:")
    );
    assert!(
        shell
            .run(&["job", "show", "42"])
            .err
            .starts_with("flyball: ")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_outside_has_an_exit_code_of_its_own() {
    let down = shell()
        .await
        .with("DATABASE_URL", "postgres://ann:s3cret-word@127.0.0.1:1/x")
        .with("REDIS_URL", "redis://127.0.0.1:1");
    let printed = down.run(&["job", "list"]);
    assert_eq!(
        (printed.code, printed.err.as_str()),
        (
            69,
            "flyball: cannot reach Postgres: nothing listens at 127.0.0.1:1\n"
        )
    );
    let printed = down.run(&["throttle", "list"]);
    assert!(
        printed.code == 69 && printed.err.contains("cannot reach Redis; set REDIS_URL"),
        "{} {}",
        printed.code,
        printed.err
    );

    for (variable, value, words) in [
        (
            "DATABASE_URL",
            "mysql://x",
            "DATABASE_URL (setting database_url): must be a URL like postgres://",
        ),
        ("DATABASE_URL", "postgres://[", "invalid IPv6 address"),
        (
            "REDIS_URL",
            "http://x",
            "REDIS_URL (setting redis_url): must be a URL",
        ),
        (
            "FLYBALL_CONCURRENCY",
            "many",
            "FLYBALL_CONCURRENCY (setting concurrency): must be a whole number",
        ),
        (
            "FLYBALL_LOG",
            "banana==",
            "FLYBALL_LOG (setting log): must be error, warn",
        ),
        (
            "FLYBALL_LOG",
            "info,flyball[claim]=debug",
            "FLYBALL_LOG (setting log): must be error, warn, info, debug, trace, off, or a filter such as \
             flyball=debug,sqlx=warn, not \"flyball[claim]=debug\"",
        ),
        (
            "FLYBALL_LOG",
            "flyball=debug,verbose",
            "FLYBALL_LOG (setting log): must be error, warn, info, debug, trace, off, or a filter such as \
             flyball=debug,sqlx=warn, not \"verbose\"",
        ),
        ("FLYBALL_API_TOKEN", "short", "at least 16 characters"),
        ("FLYBALL_CONFIG", "none.toml", "cannot read none.toml"),
    ] {
        shell()
            .await
            .with(variable, value)
            .refused(&["job", "list"], 78, words);
    }
    shell()
        .await
        .with("REDIS_URL", "redis://127.0.0.1:x")
        .refused(
            &["throttle", "list"],
            78,
            "REDIS_URL: the URL cannot be used",
        );

    let shell = shell()
        .await
        .with("FLYBALL_API_TOKEN", "")
        .with("FLYBALL_CONFIG", "");
    shell.write("flyball.toml", "\nconcurency = 3\n");
    shell.refused(
        &["job", "list"],
        78,
        "flyball.toml:2: concurency: is not a known field",
    );
    shell.write("flyball.toml", "");
    shell.refused(
        &["serve", "--listen", "0.0.0.0:0"],
        78,
        "without a token; set FLYBALL_API_TOKEN",
    );
    shell.refused(&["serve", "--listen", "banana"], 78, "is not an address");
    // Secrets are read before Postgres is reached; nothing listens on this port.
    for (variable, value, words) in [
        (
            "FLYBALL_WEBHOOK_SECRET_ACME_TENANTS",
            "acme,",
            "FLYBALL_WEBHOOK_SECRET_ACME_TENANTS: needs FLYBALL_WEBHOOK_SECRET_ACME, or",
        ),
        (
            "FLYBALL_WEBHOOK_SECRET_ACME",
            "short",
            "FLYBALL_WEBHOOK_SECRET_ACME: cannot be used: it must be",
        ),
        ("FLYBALL_SECRET_KEYS", "short", "FLYBALL_SECRET_KEYS"),
    ] {
        self::shell()
            .await
            .with("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")
            .with(variable, value)
            .refused(&["serve", "--listen", "127.0.0.1:0"], 78, words);
    }
    for (text, words) in [
        ("rps = [\n", "knobs/mine.toml:1: unclosed array"),
        (
            "[knobs]\nrps = -5\n",
            "knobs/mine.toml:2: knobs.rps: must be a number from 0.000001",
        ),
        (
            "[knobs]\nrps = 1\nrpz = 1\n",
            "knobs/mine.toml:3: knobs.rpz: is not a known knob",
        ),
        (
            "[knobs]\nrps = 1\nparent = \"mine\"\n",
            "knobs/mine.toml:3: knobs.parent: ",
        ),
        (
            "[knobs]\nrps = 1\n[[signal]]\nname = \"a\"\nkind = \"lod\"\n",
            "knobs/mine.toml:5: signal.kind: must be load, latency or ratio, not \"lod\"",
        ),
    ] {
        shell.write("knobs/mine.toml", text);
        shell.refused(&["serve", "--listen", "127.0.0.1:0"], 78, words);
    }
    assert_eq!(
        shell.ok(&["throttle", "list", "--json"]).json(),
        json!({"throttles": []}),
        "nothing was seeded"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_early_and_a_variable_of_garbage_cause_no_panic() {
    use std::os::unix::ffi::OsStrExt;
    let shell = shell().await;
    shell.ok(&["throttle", "set", "hooks", "rps=20"]);
    for args in [
        &["throttle", "list"][..],
        &["throttle", "show", "hooks"],
        &["job", "list", "--json"],
        &["why", "hooks"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let left = shell.command(args).stdout(writer).output().unwrap();
        assert!(
            left.status.success() && left.stderr.is_empty(),
            "{args:?}: {}",
            String::from_utf8_lossy(&left.stderr)
        );
    }

    let garbage = std::ffi::OsStr::from_bytes(b"\xff");
    assert!(
        shell
            .command(&["job", "list"])
            .env("SOMETHING", garbage)
            .output()
            .unwrap()
            .status
            .success()
    );
    let refused = shell
        .command(&["job", "list"])
        .env("FLYBALL_LISTEN", garbage)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(78));
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .contains("FLYBALL_LISTEN: must be a text in UTF-8")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_cannot_steer_the_terminal() {
    let shell = shell().await;
    shell.ok(&[
        "enqueue",
        "http",
        "--args",
        r#"{"url":"http://example.com/"}"#,
        "--throttle",
        "hooks",
        "--key",
        "a\u{1b}[2Jb\nc",
    ]);
    let list = shell.ok(&["job", "list"]).out;
    assert!(
        list.contains(r"a\u{1b}[2Jb\nc") && !list.contains('\u{1b}'),
        "{list}"
    );
}

#[test]
fn every_help_text_explains_what_the_command_is_for() {
    let help = |args: &[&str]| {
        let printed = Command::new(PROGRAM.as_path())
            .args(args)
            .arg("--help")
            .output()
            .unwrap();
        assert!(printed.status.success(), "{args:?}");
        String::from_utf8(printed.stdout).unwrap()
    };
    let whole = help(&[]);
    assert!(
        whole.contains("Exit codes:\n  0   done\n  1   failed\n  2   the command line"),
        "{whole}"
    );
    for command in [
        "serve", "migrate", "enqueue", "job", "throttle", "why", "services",
    ] {
        assert!(
            whole.contains(&format!("  {command} ")),
            "{command} is not in {whole}"
        );
        let text = help(&[command]);
        assert!(
            text.len() > 100 && text.contains("Usage: flyball"),
            "{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_say_what_is_wrong_in_words_of_their_own() {
    let shell = shell().await;
    let url = "{\"url\": \"https://example.com/\"}";
    shell.ok(&[
        "enqueue",
        "http",
        "--args",
        url,
        "--run-at",
        "2h",
        "--timeout",
        "10m",
        "--unique-key",
        "u",
        "--unique-for",
        "1h",
    ]);
    shell.write("jobs", b"{\"kind\": \"x\"}\n{\"kind\": x}\n");
    shell.refused(
        &["enqueue", "--file", "jobs"],
        4,
        "jobs, line 2: is not JSON from column 10 on; allowed is one job per line",
    );
    shell.write(
        "jobs",
        b"{\"kind\": \"x\", \"args\": {\"id\": 123456789012345678901}}\n",
    );
    shell.refused(
        &["enqueue", "--file", "jobs"],
        4,
        "jobs, line 1: args/id: is 123456789012345678901, which would be rounded",
    );
    shell.write("jobs", b"{\"kind\": \"x\"}\n{\"kid\": \"x\"}\n");
    shell.refused(
        &["enqueue", "--file", "jobs"],
        4,
        "jobs, line 2: kid: is not a known field; did you mean \"kind\"?",
    );
    shell.write(
        "jobs",
        "{\"kind\": \"x\", \"priority\": 7, \"run_at\": \"2h\", \"timeout\": \"ten\"}\n",
    );
    for words in [
        "jobs, line 1: priority: must be a whole number from 0 to 3 (0 runs first), not 7; run_at: must be",
        "; timeout: must be",
        "; nothing was enqueued",
    ] {
        shell.refused(&["enqueue", "--file", "jobs"], 4, words);
    }
    shell.write("jobs", "[]\n");
    shell.refused(
        &["enqueue", "--file", "jobs"],
        4,
        "jobs, line 1: is a list; allowed is one job per line, as an object",
    );
    shell.write("jobs", [0xff, 0xfe, b'\n']);
    shell.refused(
        &["enqueue", "--file", "jobs"],
        4,
        "jobs, line 1: is not UTF-8 text; nothing was enqueued",
    );
    shell.refused(
        &["throttle", "delete", "nosuch"],
        3,
        "there is no throttle nosuch; nothing was deleted",
    );
    shell.refused(
        &["lane", "weight", "x", "k", "0"],
        4,
        "flyball: weight: is 0; allowed are 0.001 to 1000",
    );
    // A negative number is not taken for an option.
    let pause = ["throttle", "pause", "x", "--key", "k", "--seconds", "-5"];
    let negative: [(&[&str], i32, &str); 5] = [
        (
            &pause,
            4,
            "--seconds is -5; allowed is more than 0 and at most 2592000",
        ),
        (&["failures", "--limit", "-1"], 2, "-1 is not in 1..=1000"),
        (
            &["enqueue", "http", "--count", "-1"],
            2,
            "-1 is not in 1..=1000000",
        ),
        (&["group", "show", "-7"], 2, "-7 is not in 1.."),
        (
            &["lane", "weight", "x", "k", "-1"],
            4,
            "weight: is -1; allowed are 0.001 to 1000",
        ),
    ];
    for (words, code, range) in negative {
        shell.refused(words, code, range);
    }
    shell.refused(
        &["job", "cancel"],
        4,
        "give the number of a job, or one or more of --kind, --throttle",
    );
    for (command, done) in [
        (["job", "cancel"], "cancelled"),
        (["dead", "requeue"], "requeued"),
        (["dead", "discard"], "discarded"),
    ] {
        let of_a_tenant = [&command[..], &["--tenant", "acme", "--yes"]].concat();
        let words =
            "flyball: --tenant alone is not enough; add one or more of --kind, --throttle, --key";
        shell.refused(&of_a_tenant, 4, words);
        shell.refused(&of_a_tenant, 4, &format!("; nothing was {done}"));
    }
    shell.refused(&["job", "list", "--throttle", "a b"], 4, "a b");
    for command in [
        ["job", "cancel"],
        ["notification", "list"],
        ["dead", "requeue"],
    ] {
        let empty = [&command[..], &["--tenant", ""]].concat();
        shell.refused(&empty, 2, "leave the option out");
    }
    shell.ok(&["throttle", "set", "quiet", "rps=1"]);
    for (more, words) in [
        (
            &["--by-key"][..],
            "there is no known lane of throttle quiet",
        ),
        (&[], "no lane of throttle quiet had ready jobs"),
    ] {
        let list = [&["lane", "list", "quiet"][..], more].concat();
        assert!(shell.ok(&list).out.contains(words), "{words}");
    }
    shell.ok(&["lane", "purge", "quiet", "", "--yes"]);
    for lane in [
        &["lane", "list", "nosuch"][..],
        &["lane", "show", "nosuch", ""],
        &["lane", "purge", "nosuch", "", "--yes"],
    ] {
        shell.refused(lane, 3, "there is no throttle nosuch; create it with");
    }
    assert!(shell.ok(&["simulate", "--list", "--json"]).json()["scenarios"][0]["name"].is_string());
    let url = "{\"url\": \"https://example.com/beat\"}";
    shell.ok(&["cron", "set", "beat", "@hourly", "http", "--args", url]);
    let shown = shell.ok(&["cron", "show", "beat"]).out;
    assert!(
        shown.contains("args       {\"url\":\"https://example.com/beat\"}")
            && shown.contains("last       never"),
        "{shown}"
    );
    shell.ok(&["cron", "pause", "beat"]);
    let again = shell
        .ok(&["cron", "set", "beat", "@daily", "http", "--args", url])
        .out;
    assert!(
        again.starts_with("schedule beat is changed, and stays paused; next occurrences:\n"),
        "{again}"
    );
    shell.refused(&["cron", "show", "none"], 3, "there is no schedule none");
    let dark = shell.with("REDIS_URL", "redis://127.0.0.1:1");
    let printed = dark.run(&["status"]);
    assert!(
        printed.code == 69 && printed.out.contains("cannot reach Redis") && printed.err.is_empty(),
        "{} {}",
        printed.out,
        printed.err
    );
    let printed = dark.run(&["throttle", "list"]);
    assert!(
        printed.code == 69 && printed.err.lines().count() == 1,
        "{}",
        printed.err
    );
}
