//! Workers in Python and TypeScript, as processes of their own: killed, suspended, stopped, and
//! while the server dies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::extract::State as Shared;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use flyball::jobs::{NewJob, State};
use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::process::SOON;
use crate::support::pgbouncer::free_port;
use crate::support::process::{Process, ProcessFixture};
use crate::support::{eventually, skip};

/// The program that runs the workers of a language, and its worker.
const PYTHON: (&str, &str) = ("python3", "worker.py");
const TYPESCRIPT: (&str, &str) = ("node", "worker.ts");

/// The file that `node` runs for the worker in TypeScript: made by `tsc` with strict types, or the
/// worker itself where there is no `tsc` and `node` runs TypeScript; an error that says what is
/// missing. Compiled once for all tests.
static RUNNABLE: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let worker = examples().join(TYPESCRIPT.1);
    let run = |command: &mut Command| command.output().map_err(|_| ());
    if run(Command::new("tsc").arg("--version")).is_err() {
        let node = run(Command::new("node").args(["-p", "process.features.typescript"]));
        return match node {
            Ok(node) if node.stdout.starts_with(b"strip") => Ok(worker),
            _ => Err("neither tsc nor a node that runs TypeScript is installed".to_owned()),
        };
    }
    let made = tempfile::tempdir().unwrap().keep();
    std::fs::write(made.join("package.json"), r#"{"type": "module"}"#).unwrap();
    let types = Path::new(crate::support::ROOT).join("tests/it/runner/node.d.ts");
    let compiled = Command::new("tsc")
        .args(["--strict", "--target", "es2022", "--lib", "es2022"])
        .args(["--module", "es2022", "--moduleResolution", "node"])
        .arg("--outDir")
        .arg(&made)
        .args([types, worker])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&compiled.stdout);
    assert!(compiled.status.success(), "{said}");
    Ok(made.join("worker.js"))
});

fn examples() -> PathBuf {
    Path::new(crate::support::ROOT).join("examples/workers")
}

/// Returns true if the workers of both languages can run here; says what is missing if not.
async fn can_run() -> bool {
    for (program, _) in [PYTHON, TYPESCRIPT] {
        if Command::new(program).arg("--version").output().is_err() {
            skip(&format!("{program} is not installed"));
            return false;
        }
    }
    let compiled = tokio::task::spawn_blocking(|| &*RUNNABLE).await.unwrap();
    if let Err(missing) = compiled {
        skip(missing);
        return false;
    }
    true
}

/// Returns the command of a worker that asks this server and whose leases last so many seconds.
fn command((program, file): (&str, &str), url: &str, name: &str, lease_s: u32) -> Command {
    let path = match RUNNABLE.as_ref() {
        Ok(runnable) if file == TYPESCRIPT.1 => runnable.clone(),
        _ => examples().join(file),
    };
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" \"$1\" 1>&2", program])
        .arg(path)
        .current_dir(examples())
        .env("FLYBALL_URL", url)
        .env("WORKER_NAME", name)
        .env("LEASE_S", lease_s.to_string())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A server, and the workers that ask it for jobs.
struct RemoteFixture {
    fixture: ProcessFixture,
    server: Process,
    url: String,
}

impl RemoteFixture {
    async fn new(knobs: &str) -> Option<Self> {
        if !can_run().await {
            return None;
        }
        let fixture = ProcessFixture::new(knobs).await;
        let server = fixture.serve();
        let url = server.url().await;
        Some(Self {
            fixture,
            server,
            url,
        })
    }

    /// Starts a worker whose leases last so many seconds, and waits until its claim has reached the
    /// server.
    async fn worker(&self, language: (&str, &str), name: &str, lease_s: u32) -> Process {
        let worker = Process::start(command(language, &self.url, name, lease_s));
        eventually(&format!("{name} claims"), SOON, || async {
            let sql = "select 1 from flyball.worker where name = $1 and role = 'remote' and stopped_at is null";
            let found: Option<i32> = sqlx::query_scalar(sql)
                .bind(name)
                .fetch_optional(self.fixture.pool())
                .await
                .unwrap();
            found
        })
        .await;
        worker
    }

    async fn enqueue(&self, args: Value) -> i64 {
        let job = NewJob::new("render", args).key("acme");
        self.fixture.enqueue_as(1, |_| job.clone()).await[0]
    }

    async fn outcomes(&self, id: i64) -> Vec<String> {
        let sql =
            "select outcome::text from flyball.attempt where job_id = $1 order by finished_at";
        sqlx::query_scalar(sql)
            .bind(id)
            .fetch_all(self.fixture.pool())
            .await
            .unwrap()
    }

    /// Waits until the job has completed; returns the worker that its result names.
    async fn completed_by(&self, id: i64) -> String {
        self.fixture.until_completed(&[id], SOON).await;
        let job = self.fixture.queue.get(id).await.unwrap().unwrap();
        assert_eq!(job.summary.state, State::Completed);
        job.result.unwrap()["worker"].as_str().unwrap().to_owned()
    }
}

/// Returns the pages that a worker has rendered of a job.
fn pages(worker: &Process, id: i64) -> Vec<u32> {
    worker
        .log()
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("job {id} attempt 1 page ")))
        .filter_map(|page| page.parse().ok())
        .collect()
}

#[tokio::test]
async fn the_job_of_a_killed_worker_goes_on_from_its_checkpoint_in_another_language() {
    let Some(world) = RemoteFixture::new("rps = -1").await else {
        return;
    };
    for (doomed, heir) in [(PYTHON, TYPESCRIPT), (TYPESCRIPT, PYTHON)] {
        let mut first = world
            .worker(doomed, &format!("doomed {}", doomed.0), 2)
            .await;
        let id = world.enqueue(json!({"pages": 8, "page_s": 0.2})).await;
        first.logged("page 3", SOON).await;

        first.kill();

        let name = format!("heir {}", heir.0);
        let second = world.worker(heir, &name, 30).await;
        assert_eq!(world.completed_by(id).await, name);
        let rendered = pages(&second, id);
        assert!(
            rendered[0] >= 3 && rendered.ends_with(&[6, 7]),
            "{rendered:?}"
        );
        assert_eq!(world.outcomes(id).await, ["lost", "completed"]);
        second.signal(Signal::TERM);
    }
}

#[tokio::test]
async fn a_worker_that_was_suspended_longer_than_its_lease_is_fenced_and_the_job_is_done_once() {
    let Some(world) = RemoteFixture::new("rps = -1").await else {
        return;
    };
    for (sleeper, other) in [(PYTHON, TYPESCRIPT), (TYPESCRIPT, PYTHON)] {
        let first = world
            .worker(sleeper, &format!("sleeper {}", sleeper.0), 2)
            .await;
        // Its last page is the one in which it is suspended, so its next call is the end.
        let id = world.enqueue(json!({"pages": 4, "page_s": 0.5})).await;
        first.logged("page 1", SOON).await;

        first.signal(Signal::STOP);

        let name = format!("awake {}", other.0);
        let second = world.worker(other, &name, 30).await;
        assert_eq!(world.completed_by(id).await, name);
        first.signal(Signal::CONT);
        first.logged(&format!("job {id} is lost"), SOON).await;
        assert_eq!(world.outcomes(id).await, ["lost", "completed"]);
        for worker in [&first, &second] {
            worker.signal(Signal::TERM);
        }
    }
}

#[tokio::test]
async fn a_refusal_a_snooze_and_a_failure_end_as_in_our_own_kinds() {
    let Some(world) = RemoteFixture::new("rps = -1").await else {
        return;
    };
    for language in [PYTHON, TYPESCRIPT] {
        let worker = world
            .worker(language, &format!("busy {}", language.0), 30)
            .await;
        let refused = world.enqueue(json!({"refused_s": 1, "pages": 2})).await;
        let snoozed = world.enqueue(json!({"snooze_s": 0.5, "pages": 2})).await;
        let dead = world.enqueue(json!({"dead": "there is no template"})).await;

        world.completed_by(refused).await;
        world.completed_by(snoozed).await;

        assert_eq!(world.outcomes(refused).await, ["throttled", "completed"]);
        assert_eq!(world.outcomes(snoozed).await, ["snoozed", "completed"]);
        for id in [refused, snoozed] {
            assert_eq!(pages(&worker, id), [1], "no attempt was used");
        }
        eventually("the job is dead", SOON, || async {
            let job = world.fixture.queue.get(dead).await.unwrap().unwrap();
            (job.summary.state == State::Dead
                && job.summary.last_error.as_deref() == Some("there is no template"))
            .then_some(())
        })
        .await;
        worker.signal(Signal::TERM);
    }
}

#[tokio::test]
async fn a_worker_outlives_errors_and_results_that_are_too_long() {
    let Some(world) = RemoteFixture::new("rps = -1").await else {
        return;
    };
    for language in [PYTHON, TYPESCRIPT] {
        let name = format!("wordy {}", language.0);
        let worker = world.worker(language, &name, 30).await;
        let error = world.enqueue(json!({"dead": "é".repeat(5000)})).await;
        // Python fails on such a number of pages; TypeScript has it in its result.
        let result = NewJob {
            max_attempts: 1,
            ..NewJob::new("render", json!({"pages": "x".repeat(70_000)})).key("acme")
        };
        let result = world.fixture.enqueue_as(1, |_| result.clone()).await[0];
        // A job without arguments has one page.
        let next = world.enqueue(json!({})).await;

        assert_eq!(world.completed_by(next).await, name);

        let mut errors = Vec::new();
        for id in [error, result] {
            // They are of two lanes, so the last may end before the others.
            let last_error = eventually("the job is dead", SOON, || async {
                let job = world.fixture.queue.get(id).await.unwrap().unwrap();
                let summary = job.summary;
                (summary.state == State::Dead).then_some(summary.last_error?)
            })
            .await;
            errors.push(last_error);
        }
        assert_eq!(errors[0], "é".repeat(1000));
        assert!(errors[1].contains("Error"), "{}", errors[1]);
        worker.signal(Signal::TERM);
    }
}

#[tokio::test]
async fn a_worker_that_is_stopped_gives_its_job_back_with_its_checkpoint() {
    let Some(world) = RemoteFixture::new("rps = -1").await else {
        return;
    };
    for (first, other) in [(PYTHON, TYPESCRIPT), (TYPESCRIPT, PYTHON)] {
        let mut first = world
            .worker(first, &format!("stopped {}", first.0), 30)
            .await;
        let id = world.enqueue(json!({"pages": 6, "page_s": 0.2})).await;
        first.logged("page 2", SOON).await;

        first.signal(Signal::TERM);

        assert!(first.ends(SOON).await.success());
        let name = format!("next {}", other.0);
        let second = world.worker(other, &name, 30).await;
        assert_eq!(world.completed_by(id).await, name);
        assert_eq!(
            world.outcomes(id).await,
            ["completed"],
            "giving back is no attempt"
        );
        assert!(pages(&second, id)[0] >= 3, "{:?}", pages(&second, id));
        second.signal(Signal::TERM);
    }
}

#[tokio::test]
async fn workers_go_on_while_the_server_is_killed_and_their_slots_stay_taken() {
    let Some(mut world) = RemoteFixture::new("rps = -1\nconcurrency = 1").await else {
        return;
    };
    // The process with the API; the one that gives back expired leases goes on.
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let serve = |fixture: &ProcessFixture| {
        fixture.serve_with(&["--roles", "api", "--listen", &listen], &[])
    };
    let mut api = serve(&world.fixture);
    world.url = api.url().await;
    let first = world.worker(PYTHON, "first", 30).await;
    let id = world.enqueue(json!({"pages": 30, "page_s": 0.3})).await;
    first.logged("page 2", SOON).await;

    api.kill();
    api = serve(&world.fixture);
    api.url().await;
    let second = world.worker(TYPESCRIPT, "second", 30).await;
    let other = world.enqueue(json!({"pages": 1})).await;

    assert_eq!(world.completed_by(id).await, "first");
    assert_eq!(world.outcomes(id).await, ["completed"]);
    assert_eq!(pages(&first, id).len(), 30);
    world.completed_by(other).await;
    let sql = "select max(started_at) filter (where job_id = $2) >= max(finished_at) filter (where job_id = $1)
        from flyball.attempt";
    let in_turn: bool = sqlx::query_scalar(sql)
        .bind(id)
        .bind(other)
        .fetch_one(world.fixture.pool())
        .await
        .unwrap();
    assert!(in_turn, "the only slot was free too early");
    drop((first, second));
    assert!(world.server.ended().is_none());
}

/// The calls of a worker, by their verbs.
type Verbs = Arc<Mutex<Vec<String>>>;

/// Hands out one job, and answers its end first as a proxy whose server restarts.
async fn answer_as_a_proxy(Shared(verbs): Shared<Verbs>, uri: Uri) -> Response {
    let verb = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let seen = {
        let mut verbs = verbs.lock();
        verbs.push(verb.clone());
        verbs.iter().filter(|other| **other == verb).count()
    };
    match (verb.as_str(), seen) {
        ("claim", 1) => {
            let job = json!({
                "id": 1, "lease": "0000000000000001", "kind": "render", "args": {"pages": 0},
                "attempt": 1, "checkpoint": null
            });
            Json(json!({"worker_id": 1, "jobs": [job]})).into_response()
        }
        ("claim", _) => std::future::pending().await,
        ("complete", 1) => StatusCode::BAD_GATEWAY.into_response(),
        ("complete", 2) => StatusCode::GATEWAY_TIMEOUT.into_response(),
        _ => Json(json!({"id": 1, "state": "completed"})).into_response(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_proxy_whose_server_restarts_is_no_failure_of_the_job() {
    if !can_run().await {
        return;
    }
    for language in [PYTHON, TYPESCRIPT] {
        let verbs = Verbs::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new()
            .fallback(answer_as_a_proxy)
            .with_state(verbs.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });

        let _worker = Process::start(command(language, &url, "behind-a-proxy", 60));

        let claims_again = || async {
            let verbs = verbs.lock();
            let claims = verbs.iter().filter(|verb| *verb == "claim").count();
            (claims > 1).then(|| verbs.clone())
        };
        let called = eventually("the worker claims again", SOON, claims_again).await;
        let expected = ["claim", "complete", "complete", "complete", "claim"];
        assert_eq!(called, expected, "{}", language.0);
    }
}

/// Answers that the server is away until a date, as some proxies do.
async fn answer_with_a_date(Shared(verbs): Shared<Verbs>, uri: Uri) -> Response {
    verbs.lock().push(uri.path().to_owned());
    let until = [("retry-after", "Fri, 31 Dec 2100 23:59:59 GMT")];
    (StatusCode::SERVICE_UNAVAILABLE, until).into_response()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_server_is_away_rests_between_its_claims_and_ends_when_it_is_told_to() {
    if !can_run().await {
        return;
    }
    for language in [PYTHON, TYPESCRIPT] {
        let claims = Verbs::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new()
            .fallback(answer_with_a_date)
            .with_state(claims.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let mut worker = Process::start(command(language, &url, "waits", 60));
        eventually("the worker claims", SOON, || async {
            (!claims.lock().is_empty()).then_some(())
        })
        .await;

        worker.signal(Signal::TERM);

        let status = worker.ends(SOON).await;
        assert_eq!(status.code(), Some(0), "{}: {}", language.0, worker.log());
        assert!(claims.lock().len() < 10, "{}", language.0);
    }
}
