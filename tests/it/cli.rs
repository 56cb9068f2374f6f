//! The real binary as a person meets it: exit codes, messages, JSON, pipes, and what `flyball serve` exposes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Database, PROGRAM, database, eventually, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(60);

/// What a command said.
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {:?} {}", self.out, self.err))
    }
}

/// A terminal in a folder of its own, with services of its own.
struct Shell {
    folder: tempfile::TempDir,
    variables: BTreeMap<&'static str, String>,
    _database: Database,
}

async fn shell() -> Shell {
    let (database, stack) = (database().await, stack().await);
    let folder = tempfile::tempdir().unwrap();
    let variables = BTreeMap::from([
        ("DATABASE_URL", database.url().to_owned()),
        ("REDIS_URL", stack.redis_url.clone()),
        ("PROMETHEUS_URL", stack.prometheus_url.clone()),
        ("FLYBALL_REDIS_PREFIX", redis_prefix()),
        ("USER", "tester".to_owned()),
    ]);
    Shell {
        folder,
        variables,
        _database: database,
    }
}

impl Shell {
    fn with(mut self, variable: &'static str, value: &str) -> Self {
        self.variables.insert(variable, value.to_owned());
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM.as_path());
        let kept = ["PATH", "HOME", "TMPDIR", "LANG"]
            .iter()
            .filter_map(|name| Some((*name, std::env::var(name).ok()?)));
        command
            .args(args)
            .env_clear()
            .envs(kept)
            .envs(&self.variables)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said {
            code: status.code().unwrap_or(-1),
            out: text(stdout),
            err: text(stderr),
        }
    }

    /// Runs what must succeed.
    fn ok(&self, args: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}: {}{}", said.out, said.err);
        said
    }

    /// Runs what must be refused with this code and these words, in a line of its own and without a panic.
    fn refused(&self, args: &[&str], code: i32, words: &str) {
        let said = self.run(args);
        assert!(
            said.code == code && said.err.contains(words),
            "{args:?}: {code} {words:?} was wanted, not {} {}",
            said.code,
            said.err
        );
        assert!(
            !said.err.contains("panicked") && said.out.is_empty(),
            "{args:?}: {}{}",
            said.out,
            said.err
        );
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    async fn redis(&self, words: &[&str]) {
        let client = redis::Client::open(self.variables["REDIS_URL"].as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let key = format!("{}{}", self.variables["FLYBALL_REDIS_PREFIX"], words[1]);
        redis::cmd(words[0])
            .arg(key)
            .arg(&words[2..])
            .exec_async(&mut connection)
            .await
            .unwrap();
    }
}

/// `flyball serve`, ended with the test.
struct Serve {
    url: String,
    child: Child,
}

impl Serve {
    fn start(shell: &Shell) -> Self {
        let mut child = shell
            .command(&["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                said += &line;
                Some(format!(
                    "http://{}",
                    line.split_once("dashboard and API at http://")?
                        .1
                        .trim_end_matches('/')
                ))
            })
            .unwrap_or_else(|| panic!("the server did not start: {said}"));
        std::thread::spawn(move || lines.for_each(drop));
        Self { url, child }
    }

    async fn text(&self, path: &str) -> String {
        reqwest::get(format!("{}{path}", self.url))
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).unwrap()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
    shell.refused(&["job", "show", "seven"], 2, "invalid value 'seven'");
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
            "kind: \"htp\" is not a kind that any worker has registered; known kinds: http, notification, reindex",
        ),
        (&["enqueue", "http"], "args/url: is missing"),
        (&["enqueue", "http", "--args", "{"], "args: is not JSON"),
        (
            &["enqueue", "http", "--args", r#"{"url":"example.com"}"#],
            "args/url: has no scheme",
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
        "line 2: unknown field `colour`",
    );
    shell.refused(
        &["enqueue", "--file", "none.ndjson"],
        1,
        "cannot read none.ndjson",
    );
    shell.refused(&["enqueue"], 2, "required arguments");

    assert_eq!(
        shell.ok(&["job", "list", "--json"]).json()["jobs"],
        json!([])
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
        ("worse", "is no hash"),
        ("orphan", "there is no throttle nowhere"),
        ("ring", "cut"),
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
    shell.refused(&["throttle", "set", "worse", "rps=5"], 4, "is no hash");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_postgres_is_told_by_its_place_and_its_remedy() {
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

    for said in [
        nothing.run(&["job", "list"]),
        with(&|url| url.set_path("/nowhere"))
            .await
            .run(&["migrate"]),
    ] {
        assert!(
            !said.err.contains("s3cret-word") && !said.err.contains(" at line "),
            "{}",
            said.err
        );
        assert!(
            said.code == 69 && said.err.contains("DATABASE_URL"),
            "{}",
            said.err
        );
    }
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
    let said = shell.run(&["job", "list"]);
    assert!(
        said.code == 0
            && said
                .err
                .contains("newer than this program, which does not know migration 9999"),
        "{}",
        said.err
    );
    shell.refused(&["migrate"], 1, "the schema is newer than this program");
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
async fn an_error_of_a_command_that_was_asked_for_json_is_json_with_its_exit_code() {
    let shell = shell().await;
    shell.ok(&["migrate"]);
    let said = shell.run(&["job", "show", "42", "--json"]);
    let error: Value =
        serde_json::from_str(&said.err).unwrap_or_else(|error| panic!("{error}: {}", said.err));
    assert_eq!(
        (said.code, &error["error"]["exit_code"]),
        (3, &json!(3)),
        "{error}"
    );
    assert!(
        error["error"]["message"].as_str().unwrap().contains("42"),
        "{error}"
    );
    assert_eq!(said.out, "");
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
        .with("DATABASE_URL", "postgres://127.0.0.1:1/x")
        .with("REDIS_URL", "redis://127.0.0.1:1");
    down.refused(
        &["job", "list"],
        69,
        "cannot reach Postgres; set DATABASE_URL",
    );
    let said = down.run(&["throttle", "list"]);
    assert!(
        said.code == 69 && said.err.contains("cannot reach Redis; set REDIS_URL"),
        "{} {}",
        said.code,
        said.err
    );

    for (variable, value, words) in [
        (
            "DATABASE_URL",
            "mysql://x",
            "DATABASE_URL (setting database_url) is not such a URL",
        ),
        ("DATABASE_URL", "postgres://[", "invalid IPv6 address"),
        (
            "REDIS_URL",
            "http://x",
            "REDIS_URL (setting redis_url) is not such a URL",
        ),
        (
            "FLYBALL_CONCURRENCY",
            "many",
            "FLYBALL_CONCURRENCY (setting concurrency): must be a whole number",
        ),
        (
            "FLYBALL_LOG",
            "banana==",
            "FLYBALL_LOG (setting log) is \"banana==\"",
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

    let shell = shell().await.with("FLYBALL_API_TOKEN", "");
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
    assert!(String::from_utf8_lossy(&refused.stderr).contains("FLYBALL_LISTEN is not UTF-8"));
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
fn every_help_text_tells_what_the_command_is_for() {
    let help = |args: &[&str]| {
        let said = Command::new(PROGRAM.as_path())
            .args(args)
            .arg("--help")
            .output()
            .unwrap();
        assert!(said.status.success(), "{args:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let whole = help(&[]);
    assert!(
        whole.contains("Exit codes: 0 done; 1 failed; 2 the command line"),
        "{whole}"
    );
    for command in [
        "serve", "migrate", "enqueue", "job", "throttle", "why", "services", "demo",
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
async fn metrics_are_as_documented_and_promtool_has_nothing_to_say() {
    let shell = shell().await.with("FLYBALL_LOG", "info");
    let signal = "[[signal]]\nname = \"load\"\nkind = \"load\"\nsource = \"prometheus\"\nquery = \"vector(0.5)\"\nsetpoint = 1.0\n";
    // Some are exposed for a throttle in shadow mode only.
    for (throttle, mode) in [("hooks", "auto"), ("shadowed", "shadow")] {
        let policy =
            format!("[knobs]\nrps = 100\nmode = \"{mode}\"\n\n{signal}\n[governor]\ntick_s = 1\n");
        shell.write(&format!("knobs/{throttle}.toml"), policy);
    }
    let serve = Serve::start(&shell);
    for key in 0..20 {
        // Such a URL is refused when it runs: the attempt ends as dead.
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
    // One waits for its key, so that there is something to tell of keys that hold jobs back.
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
    let reference = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/metrics.md"),
    )
    .unwrap();
    let documented: BTreeSet<&str> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    // No message is sent, no pool is there and nobody refuses anything: what tells of those is exposed where it happens.
    let elsewhere = [
        "flyball_account_",
        "flyball_pool_",
        "flyball_provider_",
        "flyball_notifications_",
        "flyball_governor_learned_quota_",
        "flyball_jobs_not_served_",
    ];
    let documented: BTreeSet<&str> = documented
        .into_iter()
        .filter(|name| !elsewhere.iter().any(|family| name.starts_with(family)))
        .collect();
    // What is measured over seconds, or read by the governor, is exposed only when it is known.
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
    let said = shell.ok(&["why", "shadowed"]).out;
    assert!(
        said.starts_with("100 rps, set") && said.contains("; mode shadow: the governor would set "),
        "{said}"
    );
    assert!(
        said.contains(" of shadow mode it would have let "),
        "{said}"
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
    let Ok(mut promtool) = check else {
        eprintln!("promtool is not installed; the exposition was not checked with it");
        return;
    };
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let said = promtool.wait_with_output().unwrap();
    let words = format!(
        "{}{}",
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
    assert!(said.status.success() && words.trim().is_empty(), "{words}");
}

#[tokio::test]
async fn a_full_lane_has_an_exit_code_of_its_own_and_a_lane_above_its_cap_is_told() {
    let shell = shell().await;
    let pool = shell._database.pool();
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
        "throttle \"hooks\", key \"k\": 1 jobs of this lane are ready; its knob max_backlog allows 1",
    );
    let over = shell.ok(&on("mails"));
    assert!(
        over.out.starts_with("enqueued job ") && over.err.contains("a lane holds 2 ready jobs"),
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
    let said = shell.ok(&job(&[
        "--unique-key",
        "k",
        "--replace",
        "--timeout",
        "7",
        "--traceparent",
        trace,
    ]));
    assert!(
        said.out.contains("was waiting and is this job now"),
        "{}",
        said.out
    );

    let sql = "select traceparent || ' ' || timeout_s from flyball.job";
    let kept: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(shell._database.pool())
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

// === what LimitLion has written ===

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
    assert!(
        shell
            .ok(&["why", "hooks"])
            .out
            .starts_with("20 rps, set by tester 0 s ago (\"a test\"); mode manual: ")
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
        "--until ends the mode manual, and mode is \"auto\"",
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
            1.0,
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
    let said = shell.ok(&["why", "hooks", "--history", "--json"]).json();
    assert_eq!(
        (
            said["decisions"].as_array().unwrap().len(),
            &said["decisions"][0]["terms"]["x"]
        ),
        (30, &json!(29))
    );
    assert_eq!(
        (&said["throttle"], &said["governor"]),
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
        listed.out.contains("it cannot be taken over") && !listed.out.contains("api:read"),
        "{}",
        listed.out
    );
    assert!(
        shell
            .ok(&["throttle", "show", "mail"])
            .out
            .contains("expires: in 2 days, and then there is no throttle mail")
    );
    assert!(
        shell
            .ok(&["why", "mail"])
            .out
            .contains("expires: in 2 days")
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

    // LimitLion in use sets the time to live again, and a running Flyball takes it away.
    let kept = || async {
        let shown = shell.run(&["throttle", "show", "mail", "--json"]);
        (shown.code == 0 && shown.json()["expires_in_s"].is_null()).then_some(())
    };
    let recorded = "select count(*) from flyball.knobs where throttle = 'mail'";
    eventually("the record of the knobs", SOON, || async {
        let pool = shell._database.pool();
        (sqlx::query_scalar::<_, i64>(recorded)
            .fetch_one(pool)
            .await
            .unwrap()
            == 1)
            .then_some(())
    })
    .await;
    shell
        .redis(&["PEXPIRE", "throttle:mail:knobs", "600000"])
        .await;
    eventually("knobs that stay", SOON, kept).await;

    // Its `delete` is a person's will and no loss of Redis.
    shell.redis(&["DEL", "throttle:mail:knobs"]).await;
    eventually("the end of the record", SOON, || async {
        let pool = shell._database.pool();
        (sqlx::query_scalar::<_, i64>(recorded)
            .fetch_one(pool)
            .await
            .unwrap()
            == 0)
            .then_some(())
    })
    .await;
    assert_eq!(shell.run(&["throttle", "show", "mail"]).code, 3);
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
        let answer = client
            .get(format!("{}/api/v1/throttles", server.url))
            .bearer_auth(token)
            .send()
            .await
            .unwrap();
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
async fn the_script_is_printed_as_it_is_without_any_server() {
    let shell = shell()
        .await
        .with("REDIS_URL", "redis://127.0.0.1:1")
        .with("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
    let said = shell.ok(&["throttle", "script"]);
    assert_eq!(said.out, include_str!("../../src/throttle/throttle.lua"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guides_first_job_needs_no_folder_of_the_repository_and_no_setting_of_the_server() {
    let shell = shell().await;
    // Which addresses may be reached is the server's setting: who enqueues does not judge it.
    let local = "{\"url\": \"http://127.0.0.1:9000/\"}";
    assert!(
        shell
            .ok(&["enqueue", "http", "--args", local, "--count", "300"])
            .out
            .contains("enqueued 300 jobs")
    );
    shell.ok(&["cron", "set", "beat", "@hourly", "http", "--args", local]);
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
        "FLYBALL_KNOBS_DIR (setting knobs_dir) is \"nowhere\"",
    );
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
        "jobs, line 2: is not JSON from column 10 on; allowed is one job a line",
    );
    shell.write("jobs", b"{\"kind\": \"x\"}\n{\"kid\": \"x\"}\n");
    shell.refused(
        &["enqueue", "--file", "jobs"],
        4,
        "jobs, line 2: unknown field `kid`",
    );
    shell.write("jobs", [0xff, 0xfe, b'\n']);
    shell.refused(
        &["enqueue", "--file", "jobs"],
        4,
        "jobs, line 1: is no text in UTF-8; nothing was enqueued",
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
    shell.refused(
        &["job", "cancel"],
        4,
        "name a job by its number, or many by one or more of --kind, --throttle",
    );
    shell.refused(&["job", "list", "--throttle", "a b"], 4, "a b");
    assert!(
        shell
            .ok(&["lane", "list", "nosuch"])
            .out
            .contains("workers have seen no lane of a throttle nosuch")
    );
    assert!(shell.ok(&["simulate", "--list", "--json"]).json()["scenarios"][0]["name"].is_string());
    shell.ok(&[
        "cron",
        "set",
        "beat",
        "@hourly",
        "http",
        "--args",
        "{\"url\": \"https://example.com/beat\"}",
    ]);
    let shown = shell.ok(&["cron", "show", "beat"]).out;
    assert!(
        shown.contains("args       {\"url\":\"https://example.com/beat\"}")
            && shown.contains("last       never"),
        "{shown}"
    );
    shell.refused(&["cron", "show", "none"], 3, "there is no schedule none");
    let dark = shell.with("REDIS_URL", "redis://127.0.0.1:1");
    let said = dark.run(&["status"]);
    assert!(
        said.code == 69 && said.out.contains("cannot reach Redis") && said.err.is_empty(),
        "{} {}",
        said.out,
        said.err
    );
    let said = dark.run(&["throttle", "list"]);
    assert!(
        said.code == 69 && said.err.lines().count() == 1,
        "{}",
        said.err
    );
}
