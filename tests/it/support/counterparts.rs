//! Third-party servers, installed by `scripts/setup-counterparts.sh`: a MongoDB (SecantusDB) and an
//! Elasticsearch. A test that does not find its server is counted as skipped.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mongodb::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::pgbouncer::free_port;
use super::{eventually, skip};

const STARTED_WITHIN: Duration = Duration::from_secs(90);

/// A running MongoDB, which ends when dropped and with this process.
pub struct MongoServer {
    pub url: String,
    pub client: Client,
    _process: Guarded,
}

impl MongoServer {
    /// Starts a MongoDB, or reports that the calling test is skipped.
    pub async fn start(more: &[&str]) -> Option<Self> {
        let Some(program) = installed("mongodb/bin/secantusd-py") else {
            skip("no MongoDB is installed; scripts/setup-counterparts.sh installs one");
            return None;
        };
        let port = free_port();
        let process = Guarded::spawn("mongodb", |dir| {
            let mut command = Command::new(&program);
            command
                .args(["--port", &port.to_string(), "--enable-test-commands"])
                .arg("--storage-path")
                .arg(dir.join("data"))
                .args(more);
            command
        });
        let url =
            format!("mongodb://127.0.0.1:{port}/?directConnection=true&heartbeatFrequencyMS=500");
        let client = Client::with_uri_str(&url).await.expect("the URL");
        eventually("MongoDB answers", STARTED_WITHIN, || async {
            let ping = bson::doc! {"ping": 1};
            client.database("admin").run_command(ping).await.ok()
        })
        .await;
        Some(Self {
            url,
            client,
            _process: process,
        })
    }
}

impl MongoServer {
    /// Drops the oldest changes beyond `--oplog-max-entries`, as a server does by itself over time.
    pub async fn drop_changes(&self) {
        let prune = bson::doc! {"secantusAdmin.pruneOplog": 1};
        self.client
            .database("admin")
            .run_command(prune)
            .await
            .unwrap();
    }
}

/// The running Elasticsearch of this test process.
pub struct Elasticsearch {
    pub url: String,
    pub client: reqwest::Client,
    _process: Guarded,
}

impl Elasticsearch {
    /// Returns the Elasticsearch shared by all tests, or reports that the calling test is skipped.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<Elasticsearch>> = OnceCell::const_new();
        let shared = SHARED.get_or_init(Self::start).await;
        if shared.is_none() {
            skip("no Elasticsearch is installed; scripts/setup-counterparts.sh installs one");
        }
        shared.as_ref()
    }

    async fn start() -> Option<Self> {
        let server = installed("elasticsearch/server/lib")?;
        let launcher = installed("elasticsearch/launcher")?;
        let (http, transport) = (free_port(), free_port());
        let process = Guarded::spawn("elasticsearch", |dir| {
            let mut command = Command::new("java");
            let opens = [
                "java.base/java.lang",
                "java.base/java.nio",
                "java.base/sun.nio.ch",
            ];
            for package in opens {
                command
                    .arg("--add-opens")
                    .arg(format!("{package}=ALL-UNNAMED"));
            }
            command
                .args([
                    "-Xmx512m",
                    "-XX:+UseSerialGC",
                    // It ends before code that is compiled twice would pay off.
                    "-XX:TieredStopAtLevel=1",
                    "--add-modules",
                    "ALL-SYSTEM",
                ])
                .arg("--patch-module")
                .arg(format!("java.management={}", launcher.display()))
                .arg("-Des.foreground=yes")
                .arg(format!("-Des.path.home={}", dir.display()))
                .arg(format!("-Des.http.port={http}"))
                .arg(format!("-Des.transport.tcp.port={transport}"))
                .args([
                    "-Des.network.host=127.0.0.1",
                    "-Des.discovery.zen.ping.multicast.enabled=false",
                    "-Des.cluster.name=flyball-tests",
                    "-Des.index.number_of_replicas=0",
                    // A short queue, so that a fast client is rejected.
                    "-Des.threadpool.bulk.size=1",
                    "-Des.threadpool.bulk.queue_size=30",
                ])
                .arg("-cp")
                .arg(format!(
                    "{0}/elasticsearch-1.5.2.jar:{0}/*:{0}/sigar/*",
                    server.display()
                ))
                .args(["-m", "java.management/sun.management.StartElasticsearch"]);
            command
        });
        let started = Self {
            url: format!("http://127.0.0.1:{http}"),
            // Tests share it, each with a runtime of its own: a connection ends with the runtime
            // that opened it, so none is kept.
            client: reqwest::Client::builder()
                .pool_max_idle_per_host(0)
                .build()
                .expect("a client"),
            _process: process,
        };
        eventually("Elasticsearch answers", STARTED_WITHIN, || async {
            let health = format!("{}/_cluster/health", started.url);
            let answer = started.client.get(health).send().await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
        Some(started)
    }

    /// Sends a request with a JSON body and returns the JSON response.
    pub async fn call(&self, method: reqwest::Method, path: &str, body: Value) -> Value {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if body != Value::Null {
            request = request.body(body.to_string());
        }
        request.send().await.unwrap().json().await.unwrap()
    }

    /// Returns the ids and the documents of an index or an alias.
    pub async fn documents(&self, index: &str) -> std::collections::BTreeMap<String, Value> {
        use reqwest::Method;
        self.call(Method::POST, &format!("/{index}/_refresh"), Value::Null)
            .await;
        let all = json!({"query": {"match_all": {}}, "size": 200_000});
        let found = self
            .call(Method::POST, &format!("/{index}/_search"), all)
            .await;
        let hits = found["hits"]["hits"].as_array();
        let hits = hits.unwrap_or_else(|| panic!("{found}"));
        hits.iter()
            .map(|hit| {
                (
                    hit["_id"].as_str().unwrap().to_owned(),
                    hit["_source"].clone(),
                )
            })
            .collect()
    }
}

/// A process with its own directory. It ends when dropped, and also when this process dies: a shell
/// in between waits for the end of its standard input.
struct Guarded {
    child: Child,
    _dir: TempDir,
}

impl Guarded {
    fn spawn(name: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        let dir = tempfile::Builder::new()
            .prefix(&format!("flyball-{name}-"))
            .tempdir()
            .expect("a directory");
        let inner = command(dir.path());
        let log = std::fs::File::create(dir.path().join("log")).expect("the log");
        let child = Command::new("/bin/sh")
            .args([
                "-c",
                "\"$@\" & pid=$!; read -r _; kill -9 $pid; wait $pid",
                "sh",
            ])
            .arg(inner.get_program())
            .args(inner.get_args())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log)
            .process_group(0)
            .current_dir(dir.path())
            .spawn()
            .expect(name);
        Self { child, _dir: dir }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns a file installed by `scripts/setup-counterparts.sh`, if present.
pub fn installed(path: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let path = cache.join("flyball/counterparts").join(path);
    path.exists().then_some(path)
}
