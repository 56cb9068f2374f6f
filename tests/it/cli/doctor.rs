//! `flyball doctor`: a sound set-up, and broken ones, each with the finding that names it.

use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::shell::{SOON, Said, Shell, shell};
use crate::support::pgbouncer::{PgBouncer, without_server};
use crate::support::proxy::Proxy;
use crate::support::redis_server::Server;
use crate::support::{PROGRAM, connect_redis, eventually};

/// The findings of a check with this status.
fn found<'a>(report: &'a Value, check: &str, status: &str) -> Vec<&'a str> {
    report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["check"] == check && one["status"] == status)
        .filter_map(|one| one["seen"].as_str())
        .collect()
}

/// Runs the doctor on a set-up that must fail; the check must have a finding with these words, and
/// something to do.
fn fails(shell: &Shell, check: &str, words: &str) -> Value {
    let printed = shell.run(&["doctor", "--json"]);
    assert_eq!(printed.code, 1, "{}{}", printed.out, printed.err);
    is_found(&printed, check, "fail", words)
}

fn is_found(printed: &Said, check: &str, status: &str, words: &str) -> Value {
    let report = printed.json();
    let seen = found(&report, check, status);
    assert!(
        seen.iter().any(|seen| seen.contains(words)),
        "{check} {status} {words:?}: {report:#}"
    );
    for one in report["checks"].as_array().unwrap() {
        assert_eq!(one["todo"].is_string(), one["status"] != "ok", "{one}");
    }
    let secrets = [
        "127.0.0.1",
        "localhost",
        "s3cret-word",
        "postgres://",
        "redis://",
    ];
    for secret in secrets {
        assert!(!printed.out.contains(secret), "{secret}: {}", printed.out);
    }
    report
}

/// Changes the configuration of a Redis.
async fn configure(server: &Server, words: &[&str; 2]) {
    let mut connection = connect_redis(&server.url()).await.unwrap();
    redis::cmd("CONFIG")
        .arg("SET")
        .arg(words)
        .exec_async(&mut connection)
        .await
        .unwrap();
}

async fn sql(shell: &Shell, text: &'static str) {
    sqlx::raw_sql(text)
        .execute(shell.database.pool())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_set_up_is_found_so_and_each_check_is_one_line() {
    let shell = shell().await;
    let printed = shell.ok(&["doctor"]);

    let lines: Vec<&str> = printed.out.lines().collect();
    for (line, check) in [
        (0, "settings"),
        (1, "limits"),
        (2, "postgres"),
        (3, "clocks"),
        (4, "schema"),
    ] {
        assert!(
            lines[line].starts_with("ok   ") || lines[line].starts_with("warn "),
            "{}",
            printed.out
        );
        assert!(lines[line][5..].starts_with(check), "{}", printed.out);
    }
    // The servers of the test run are not made to last, and no worker is live.
    let report = is_found(
        &shell.run(&["doctor", "--json"]),
        "workers",
        "warn",
        "none is live",
    );
    assert_eq!(report["failed"], 0, "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_cannot_be_used_is_named_without_its_address_and_password() {
    let nothing = shell().await.with(
        "DATABASE_URL",
        "postgres://ann:s3cret-word@127.0.0.1:1/shop",
    );
    fails(
        &nothing,
        "postgres",
        "nothing answers where DATABASE_URL leads",
    );

    // Longer than a name may be, so no name server is asked.
    let unknown = format!("postgres://ann:s3cret-word@{}/shop", "x".repeat(70));
    let unknown = shell().await.with("DATABASE_URL", &unknown);
    fails(&unknown, "postgres", "cannot be resolved");

    let usual = shell().await;
    let mut url: url::Url = usual.variables["DATABASE_URL"].parse().unwrap();
    url.set_path("/nowhere");
    let nowhere = shell().await.with("DATABASE_URL", url.as_str());
    fails(&nowhere, "postgres", "does not exist");

    let pooler = PgBouncer::start(usual.database.url()).await;
    let hidden = shell().await.with("DATABASE_URL", &pooler.url);
    fails(&hidden, "postgres", "a pooler in transaction mode");

    let alone = shell().await;
    let alone = alone.with("DATABASE_URL", &without_server(false).await);
    fails(&alone, "postgres", "reaches no server");

    let told = hidden.with("DATABASE_POOLER", "transaction");
    let printed = told.run(&["doctor", "--json"]);
    is_found(&printed, "postgres", "warn", "behind the pooler");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_does_not_fit_is_named() {
    let shell = shell().await;
    sql(&shell, "insert into flyball.migration (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0)").await;
    let printed = shell.run(&["doctor", "--json"]);
    is_found(
        &printed,
        "schema",
        "warn",
        "does not know migration 9999, and can run beside it",
    );
    sql(
        &shell,
        "update flyball.compatibility set oldest_program = 9999",
    )
    .await;
    fails(
        &shell,
        "schema",
        "too new for this program, which does not know migration 9999",
    );
    sql(&shell, "delete from flyball.migration where version in (9999, (select max(version) from flyball.migration where version < 9999))").await;
    fails(
        &shell,
        "schema",
        "older than this program, which has 1 more",
    );
    sql(
        &shell,
        "update flyball.migration set checksum = '\\x00' where version = 1",
    )
    .await;
    fails(
        &shell,
        "schema",
        "made by a version that was not released: its migration 1",
    );
    sql(&shell, "drop schema flyball cascade").await;
    fails(&shell, "schema", "there is none yet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_cannot_be_used_or_that_evicts_is_named() {
    let nothing = shell().await.with("REDIS_URL", "redis://127.0.0.1:1");
    fails(&nothing, "redis", "nothing answers where REDIS_URL leads");
    let unknown = format!("redis://{}", "x".repeat(70));
    let unknown = shell().await.with("REDIS_URL", &unknown);
    fails(&unknown, "redis", "cannot be resolved");

    let server = Server::start();
    let evicting = shell().await.with("REDIS_URL", &server.url());
    for words in [["maxmemory", "100mb"], ["maxmemory-policy", "allkeys-lru"]] {
        configure(&server, &words).await;
    }
    fails(&evicting, "redis", "maxmemory-policy is allkeys-lru");

    configure(&server, &["maxmemory-policy", "noeviction"]).await;
    configure(&server, &["requirepass", "s3cret-word"]).await;
    fails(&evicting, "redis", "NOAUTH");

    let wrong = shell()
        .await
        .with("REDIS_URL", &format!("{}?pass=s3cret-guess", server.url()));
    let report = fails(
        &wrong,
        "redis",
        "WRONGPASS: it refuses the user or password of REDIS_URL",
    );
    let todo = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["check"] == "redis")
        .map(|one| &one["todo"]);
    assert!(
        todo.unwrap()
            .as_str()
            .unwrap()
            .starts_with("correct the user and the password")
    );
    wrong.refused(
        &["throttle", "list"],
        69,
        "Redis cannot be used: the throttle store refused: WRONGPASS",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_answers_later_than_jobs_wait_is_named() {
    let server = Server::start();
    let proxy = Proxy::to_redis(server.socket()).await;
    proxy.delay(Duration::from_millis(120));
    let slow = shell().await.with("REDIS_URL", &proxy.url);
    let printed = slow.run(&["doctor", "--json"]);
    is_found(&printed, "redis", "warn", "a job waits for 50 ms");

    let patient = slow.with("FLYBALL_REDIS_TIMEOUT_MS", "10000");
    let printed = patient.run(&["doctor", "--json"]);
    is_found(&printed, "redis", "ok", "a job waits for 10000 ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_and_knobs_files_that_cannot_be_used_are_named() {
    let wrong = shell().await.with("FLYBALL_CONCURRENCY", "many");
    fails(&wrong, "settings", "FLYBALL_CONCURRENCY");

    let shell = shell().await;
    shell.write("knobs/hooks.toml", "[knobs]\nrps = \"fast\"\n");
    fails(&shell, "settings", "hooks.toml");

    shell.write("knobs/hooks.toml", "[knobs]\nrps = 5\n");
    shell.write(
        "flyball.toml",
        "[api_tokens.billing]\nsecret_env = \"NOT_SET\"\n",
    );
    fails(&shell, "settings", "billing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_governed_throttle_without_readings_is_named() {
    let governed = "[knobs]\nrps = 5\n[governor]\n[[signal]]\nname = \"load\"\nquery = \"load_of_nothing\"\nsetpoint = 2\n";
    let away = shell().await.with("PROMETHEUS_URL", "http://127.0.0.1:1");
    away.write("knobs/search.toml", governed);
    fails(
        &away,
        "prometheus",
        "it cannot be reached, for signal load of throttle search",
    );

    let empty = shell().await;
    empty.write("knobs/search.toml", governed);
    fails(
        &empty,
        "prometheus",
        "signal load of throttle search: no value",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_low_limit_of_open_files_is_named() {
    let shell = shell().await;
    let command = shell.command(&["doctor", "--json"]);
    let limited = format!("ulimit -n 200; exec {} doctor --json", PROGRAM.display());
    let mut under = std::process::Command::new("sh");
    under.args(["-c", &limited]).env_clear();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            under.env(name, value);
        }
    }
    under.current_dir(shell.folder.path());
    let printed = under.output().unwrap();

    assert_eq!(printed.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let seen = found(&report, "limits", "fail");
    assert_eq!(seen, ["a process may open 200 files and sockets"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_nobody_serves_or_whose_throttle_is_missing_are_named() {
    let shell = shell().await;
    sql(
        &shell,
        "insert into flyball.worker (name, host, pid, ttl) values ('silent', 'box', 1, interval '1 hour');
        update flyball.worker set heartbeat_at = now() - interval '1 minute';
        insert into flyball.unserved (throttle, kind, needs, jobs) values ('pdf', 'render_pdf', '{}', 7);
        insert into flyball.depth (throttle, ready, scheduled, running, dead) values ('pdf', 7, 0, 0, 0)",
    )
    .await;

    let report = fails(
        &shell,
        "workers",
        "no live worker serves 7 jobs of kind render_pdf",
    );

    assert!(
        found(&report, "workers", "warn")[0].contains("silent"),
        "{report:#}"
    );
    assert!(
        found(&report, "throttles", "fail")[0].contains("there is no throttle pdf"),
        "{report:#}"
    );
    shell.ok(&["throttle", "set", "pdf", "rps=5"]);
    shell
        .redis(&["HSET", "throttle:pdf:knobs", "rps", "fast"])
        .await;
    fails(&shell, "throttles", "pdf: knob rps");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_claims_fail_is_named_with_the_error() {
    let shell = shell().await;
    sql(
        &shell,
        "insert into flyball.worker (name, host, pid, ttl, kinds, claims_failed_at, claims_error)
        values ('stuck', 'box', 1, interval '1 hour', '{http}', clock_timestamp() + interval '5 minutes', 'no lease today')",
    )
    .await;
    shell.ok(&["throttle", "set", "hooks", "rps=5"]);
    let args = r#"{"url": "https://example.com/"}"#;
    let enqueue = [
        "enqueue",
        "http",
        "--args",
        args,
        "--throttle",
        "hooks",
        "--json",
    ];
    let id = shell.ok(&enqueue).json()["jobs"][0]["id"].to_string();

    fails(&shell, "workers", "cannot claim jobs: no lease today");
    let why = || shell.ok(&["why", "--job", &id]).out;
    let told = "the claims of every worker that serves it fail; flyball doctor tells the error";
    assert!(why().contains(told), "{}", why());

    // Another one can, so the job waits for it alone.
    sql(
        &shell,
        "insert into flyball.worker (name, host, pid, ttl, kinds) values ('sound', 'box', 2, interval '1 hour', '{http}')",
    )
    .await;
    assert!(why().contains("when its turn comes"), "{}", why());

    sql(
        &shell,
        "update flyball.worker set claims_failed_at = clock_timestamp() - interval '1 minute'",
    )
    .await;
    let report = shell.run(&["doctor", "--json"]).json();
    assert!(found(&report, "workers", "fail").is_empty(), "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_in_other_programs_do_not_stand_in_for_a_process_with_the_role_runner() {
    let shell = shell().await;
    sql(
        &shell,
        "insert into flyball.worker (name, host, pid, ttl, kinds, role) values
            ('pdf-1', 'far', 1, interval '1 hour', '{render}', 'remote'),
            ('broker', 'near', 2, interval '1 hour', '{render}', 'broker')",
    )
    .await;
    let words = "no process has the role runner, so no scheduled job or retry becomes ready";

    is_found(&shell.run(&["doctor", "--json"]), "workers", "warn", words);
    let status = shell.ok(&["status"]).out;
    assert!(
        status.contains(&format!("0 live workers: {words}")),
        "{status}"
    );

    sql(
        &shell,
        "insert into flyball.worker (name, host, pid, ttl) values ('runner', 'near', 3, interval '1 hour')",
    )
    .await;
    let status = shell.ok(&["status"]).out;
    assert!(status.contains("1 live worker\n"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_lose_jobs_or_stand_still_later_warns_and_does_not_fail() {
    let shell = shell().await;
    let mut url: url::Url = shell.variables["DATABASE_URL"].parse().unwrap();
    url.query_pairs_mut()
        .append_pair("options", "-c synchronous_commit=off");
    let shell = shell.with("DATABASE_URL", url.as_str());

    let printed = shell.run(&["doctor", "--json"]);

    assert_eq!(printed.code, 0, "{}", printed.out);
    is_found(&printed, "postgres", "warn", "synchronous_commit is off");
}

#[tokio::test(flavor = "multi_thread")]
async fn days_that_no_process_creates_or_empties_are_named() {
    let shell = shell().await;
    sql(
        &shell,
        "do $$ begin
            execute format('drop table flyball.job_%1$s, flyball.attempt_%1$s', flyball.day_of(now()) + 1);
            perform flyball.ensure_day(flyball.day_of(now()) - 20);
        end $$",
    )
    .await;

    let report = fails(
        &shell,
        "housekeeping",
        "1 of the next 3 days have no partition",
    );
    let warned = found(&report, "housekeeping", "warn");
    assert!(warned[0].starts_with("1 days of jobs"), "{warned:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_with_a_problem_is_named_unless_it_is_paused() {
    let shell = shell().await;
    sql(
        &shell,
        "select flyball.schedule(name, '@daily', 'http', paused => name = 'paused')
         from unnest(array['nightly', 'paused']) as name;
         update flyball.cron set problem = 'expression: is unknown'",
    )
    .await;

    let printed = shell.run(&["doctor", "--json"]);

    let report = is_found(
        &printed,
        "schedules",
        "warn",
        "nightly: expression: is unknown",
    );
    assert_eq!(found(&report, "schedules", "warn").len(), 1, "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_locked_a_table_of_the_queue_is_named_with_the_way_to_end_it() {
    let shell = shell().await;
    let mut open = PgConnection::connect(shell.database.url()).await.unwrap();
    let locked = open.execute("begin; lock table flyball.ready in share mode");
    locked.await.unwrap();
    let own = sqlx::query_scalar("select pg_backend_pid()");
    let pid: i32 = own.fetch_one(&mut open).await.unwrap();

    // Real time: Flyball's own statements hold such locks for a moment.
    let words = format!("session {pid} of the role ");
    eventually("the session is named", SOON, || async {
        let printed = shell.run(&["doctor", "--json"]);
        let report = printed.json();
        let seen = found(&report, "postgres", "fail");
        seen.iter().any(|seen| seen.contains(&words)).then_some(())
    })
    .await;
    let report = fails(&shell, "postgres", "has locked a table of the queue for ");
    assert!(
        report
            .to_string()
            .contains(&format!("select pg_terminate_backend({pid})")),
        "{report:#}"
    );

    open.execute("rollback").await.unwrap();
    let report = shell.run(&["doctor", "--json"]).json();
    assert!(found(&report, "postgres", "fail").is_empty(), "{report:#}");
}
