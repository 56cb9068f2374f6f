//! The export of traces by a real process to a collector over a socket. The build has the feature
//! `otel`: `make otel-test`.

mod collector;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::{Kinds, Outcome};
use flyball::stack::{RunningStack, SpawnOptions, spawn};
use flyball_fakes::collector::CollectedSpan;
use serde_json::{Value, json};

use collector::TraceCollector;

const SOON: Duration = Duration::from_secs(60);

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The variables of the server that a test starts.
const ADDRESS_FILE: &str = "OTEL_TEST_ADDRESS_FILE";

/// A process of Flyball with private servers; all end when dropped.
struct TracedServer {
    base: String,
    child: Child,
    client: reqwest::Client,
    _stack: RunningStack,
    _dir: tempfile::TempDir,
}

impl TracedServer {
    /// Starts this test program again as a server, because the variables of OpenTelemetry are those
    /// of a process.
    async fn start(variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = SpawnOptions {
            program: Some(PathBuf::from(env!("CARGO_BIN_EXE_flyball-lab"))),
            ephemeral: true,
            stderr: Some(dir.path().join("services.log")),
            prometheus_url: Some("http://127.0.0.1:9".to_owned()),
            ..SpawnOptions::default()
        };
        let stack = spawn(dir.path(), &options).unwrap();
        let address = dir.path().join("address");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server", "--ignored", "--nocapture"])
            .env(ADDRESS_FILE, &address)
            .env("DATABASE_URL", &stack.urls.database_url)
            .env("REDIS_URL", &stack.urls.redis_url)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let base = eventually("the server's address", async || read(&address)).await;
        Self {
            base,
            child,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            _stack: stack,
            _dir: dir,
        }
    }

    async fn enqueue(&self, header: Option<&str>, job: &Value) -> i64 {
        let mut request = self.client.post(format!("{}/api/v1/jobs", self.base));
        if let Some(header) = header {
            request = request.header("traceparent", header);
        }
        let answer = request.json(job).send().await.unwrap();
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.unwrap();
        assert_eq!(status, 201, "{body}");
        body["id"].as_i64().unwrap()
    }

    async fn ended(&self, id: i64) -> Value {
        let url = format!("{}/api/v1/jobs/{id}?wait_s=60", self.base);
        let job: Value = self
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        assert_eq!(job["state"], "completed", "{job}");
        job
    }

    /// Returns the metrics whose names begin with `flyball_spans`.
    async fn counts(&self) -> BTreeMap<String, f64> {
        let url = format!("{}/metrics", self.base);
        let text = self
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        text.lines()
            .filter(|line| line.starts_with("flyball_spans"))
            .map(|line| {
                let (name, value) = line.split_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }
}

impl Drop for TracedServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.strip_suffix('\n').map(str::to_owned)
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + SOON;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "no sign of {what}");
        // Real time: the pause between two looks.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
#[ignore = "the server of the other tests, which end it"]
fn server() {
    let Some(address) = std::env::var_os(ADDRESS_FILE) else {
        return;
    };
    let environment: BTreeMap<String, String> = [
        ("DATABASE_URL", std::env::var("DATABASE_URL").unwrap()),
        ("REDIS_URL", std::env::var("REDIS_URL").unwrap()),
        ("FLYBALL_LISTEN", "127.0.0.1:0".to_owned()),
        ("FLYBALL_KNOBS_DIR", String::new()),
        ("FLYBALL_ALLOW_PRIVATE_URLS", "true".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let settings = Settings::load(None, &environment).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut kinds = Kinds::default();
        kinds.register_fn("noop", |_, _| async { Outcome::Done });
        let app = App::start(&settings, Roles::ALL, kinds).await.unwrap();
        let base = format!("http://{}\n", app.address.unwrap());
        std::fs::write(address, base).unwrap();
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        let _ = ended.await;
        app.stop().await;
    });
}

fn one<'a>(spans: &'a [CollectedSpan], name: &str) -> &'a CollectedSpan {
    let found: Vec<&CollectedSpan> = spans.iter().filter(|span| span.name == name).collect();
    let [one] = found.as_slice() else {
        panic!("{} spans are called {name}: {spans:#?}", found.len());
    };
    one
}

#[tokio::test(flavor = "multi_thread")]
async fn the_spans_of_a_job_are_one_trace_from_its_request_to_its_receiver() {
    let collector = TraceCollector::start().await;
    let server = TracedServer::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cr%3Dt"),
        ("OTEL_SERVICE_NAME", "jobs-of-acme"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ])
    .await;
    let url = format!("{}/job?token=in-the-url", collector.url);
    let job = json!({"kind": "http", "key": "customer-7", "args": {
        "method": "POST", "url": url, "headers": {"x-note": "of-the-args"}, "body": "of-the-body",
    }});

    let id = server
        .enqueue(Some(&format!("00-{TRACE}-00f067aa0ba902b7-01")), &job)
        .await;
    server.ended(id).await;

    let spans = eventually("three spans", async || {
        let spans = collector.seen.lock().spans.clone();
        let of_trace = |span: &CollectedSpan| span.trace_id == TRACE;
        (spans.iter().filter(|span| of_trace(span)).count() >= 3).then_some(spans)
    })
    .await;
    let request = one(&spans, "POST /api/v1/jobs");
    let attempt = one(&spans, "process default");
    let call = one(&spans, "POST");
    assert_eq!(
        [&request.parent, &attempt.parent, &call.parent],
        ["00f067aa0ba902b7", &request.span_id, &attempt.span_id]
    );
    assert_eq!((request.kind, attempt.kind, call.kind), (2, 5, 3));
    assert!(
        spans
            .iter()
            .all(|span| span.trace_id == TRACE && !span.is_error)
    );
    assert!(attempt.took_ns >= call.took_ns);
    for (span, name, value) in [
        (request, "http.response.status_code", "201"),
        (attempt, "messaging.system", "flyball"),
        (attempt, "messaging.destination.name", "default"),
        (attempt, "messaging.message.id", &id.to_string()),
        (attempt, "flyball.job.kind", "http"),
        (attempt, "flyball.job.attempt", "1"),
        (attempt, "flyball.job.outcome", "completed"),
        (call, "http.response.status_code", "204"),
    ] {
        assert_eq!(
            span.attributes.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    assert_eq!(attempt.resource["service.name"], "jobs-of-acme");
    assert_eq!(attempt.resource["deployment.environment"], "test");
    // Nothing of the job's address, arguments or key is in any span.
    let all = format!("{spans:?}");
    for hidden in [
        "in-the-url",
        "127.0.0.1",
        "of-the-args",
        "of-the-body",
        "customer-7",
        "s3cr",
    ] {
        assert!(!all.contains(hidden), "{hidden}: {all}");
    }
    let seen = collector.seen.lock();
    assert_eq!(
        seen.requests[0]["traceparent"],
        format!("00-{TRACE}-{}-01", call.span_id).as_str()
    );
    assert_eq!(seen.exports[0]["api-key"], "s3cr=t");
    assert_eq!(seen.exports[0]["content-type"], "application/x-protobuf");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_comes_without_a_trace_begins_one_with_its_request() {
    let collector = TraceCollector::start().await;
    let server = TracedServer::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ])
    .await;

    let id = server.enqueue(None, &json!({"kind": "noop"})).await;
    let job = server.ended(id).await;

    let spans = eventually("two spans", async || {
        let spans = collector.seen.lock().spans.clone();
        (spans.len() >= 2).then_some(spans)
    })
    .await;
    let request = one(&spans, "POST /api/v1/jobs");
    let attempt = one(&spans, "process default");
    assert_eq!(request.parent, "");
    assert_eq!(attempt.parent, request.span_id);
    assert_eq!(attempt.trace_id, request.trace_id);
    let stored = format!("00-{}-{}-01", request.trace_id, request.span_id);
    assert_eq!(job["traceparent"], stored.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_its_caller_does_not_record_is_not_exported_and_is_handed_on() {
    let collector = TraceCollector::start().await;
    let server = TracedServer::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ])
    .await;
    let job = json!({"kind": "http", "args": {"url": format!("{}/job", collector.url)}});
    let silent = server
        .enqueue(Some(&format!("00-{TRACE}-00f067aa0ba902b7-00")), &job)
        .await;
    server.ended(silent).await;
    let loud = server.enqueue(None, &job).await;
    server.ended(loud).await;

    // The second job's spans come after those that the first would have had.
    let spans = eventually("three spans", async || {
        let spans = collector.seen.lock().spans.clone();
        (spans.len() >= 3).then_some(spans)
    })
    .await;
    assert!(
        spans.iter().all(|span| span.trace_id != TRACE),
        "{spans:#?}"
    );
    let header = collector.seen.lock().requests[0]["traceparent"].clone();
    let header = header.to_str().unwrap();
    assert!(
        header.starts_with(&format!("00-{TRACE}-")) && header.ends_with("-00"),
        "{header}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_or_hangs_delays_no_job_and_its_spans_are_counted() {
    let collector = TraceCollector::start().await;
    let hung = format!("{}/hung", collector.url);
    for (endpoint, fate) in [
        ("http://127.0.0.1:9", "flyball_spans_refused_total"),
        (hung.as_str(), "flyball_spans_dropped_total"),
    ] {
        let server = TracedServer::start(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_BSP_SCHEDULE_DELAY", "10"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"),
        ])
        .await;
        for _ in 0..10 {
            let id = server.enqueue(None, &json!({"kind": "noop"})).await;
            server.ended(id).await;
        }
        let counts = eventually(fate, async || {
            let counts = server.counts().await;
            (counts.get(fate).copied().unwrap_or_default() > 0.0).then_some(counts)
        })
        .await;
        assert_eq!(counts["flyball_spans_exported_total"], 0.0, "{counts:?}");
    }
}
