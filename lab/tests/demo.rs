//! The demo: its search store as a process (it indexes, queues, answers per document, keeps
//! confirmed documents), and its campaign.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_flyball-lab");

const SOON: Duration = Duration::from_secs(60);

struct Store {
    url: String,
    child: Child,
}

impl Store {
    fn start(dir: &Path, more: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["demo-store", "--dir"])
            .arg(dir)
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("the store did not start: {line:?}"));
        Self {
            url: ready["url"].as_str().unwrap().to_owned(),
            child,
        }
    }

    async fn bulk(&self, index: &str, body: String) -> Value {
        let url = format!("{}/{index}/_bulk", self.url);
        reqwest::Client::new()
            .post(url)
            .body(body)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        reqwest::get(format!("{}/{path}", self.url))
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }

    async fn metric(&self, name: &str) -> f64 {
        let page = reqwest::get(format!("{}/metrics", self.url))
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        page.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            .unwrap()
    }

    /// Closes its standard input, like the death of its parent, and waits until it has stopped.
    fn leave(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

fn documents(from: u64, to: u64) -> String {
    (from..to)
        .map(|n| {
            let text = format!(
                "the flyball governor number {n} keeps engine {} at an even speed",
                n % 17
            );
            format!(
                "{}\n{}\n",
                json!({"index": {"_id": n.to_string()}}),
                json!({"title": format!("engine {n}"), "body": text})
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_indexes_finds_counts_and_removes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start(dir.path(), &[]);

    let answer = store.bulk("engines", documents(0, 300)).await;
    assert_eq!(
        (
            answer["errors"].as_bool(),
            answer["items"].as_array().unwrap().len()
        ),
        (Some(false), 300)
    );
    assert_eq!(answer["items"][0]["index"]["status"], 201);
    let again = store.bulk("engines", documents(0, 1)).await;
    assert_eq!(again["items"][0]["index"]["result"], "updated");

    assert_eq!(store.get("engines/_count").await["count"], 300);
    assert_eq!(
        store.get("engines/_doc/7").await["_source"]["title"],
        "engine 7"
    );
    let found = store.get("engines/_search?q=engines+speeds").await;
    assert_eq!(found["hits"]["total"]["value"], 300);
    assert_eq!(
        store.get("nothing/_count").await["error"]["type"],
        "index_not_found_exception"
    );

    let mixed = "{\"delete\":{\"_id\":\"7\"}}\n{\"create\":{\"_id\":\"8\"}}\n{}\n{\"index\":{\"_id\":\"9\"}}\n[1]\n";
    let answer = store.bulk("engines", mixed.to_owned()).await;
    let statuses: Vec<_> = answer["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i.as_object().unwrap().values().next().unwrap()["status"].clone())
        .collect();
    assert_eq!(statuses, [200, 409, 400]);
    assert_eq!(store.get("engines/_count").await["count"], 299);
    assert_eq!(store.metric("search_store_documents_total ").await, 301.0);
    store.leave();
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_were_answered_for_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::start(dir.path(), &[]);
    store.bulk("engines", documents(0, 500)).await;

    store.child.kill().unwrap();
    store.child.wait().unwrap();

    let before = store.url.clone();
    // The engine of the killed store stops by itself once its supervisor's input is closed.
    let store = tokio::task::spawn_blocking({
        let dir = dir.path().to_path_buf();
        move || {
            std::thread::sleep(Duration::from_secs(1));
            Store::start(&dir, &[])
        }
    })
    .await
    .unwrap();
    assert_eq!(
        store.url, before,
        "a reindex that goes on finds the store where it was"
    );
    assert_eq!(store.get("engines/_count").await["count"], 500);
    store.leave();
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_too_hard_it_queues_then_rejects_per_document_and_its_load_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start(dir.path(), &["--cores", "1", "--queue", "2"]);
    let client = reqwest::Client::new();

    let requests = (0..8u64).map(|n| {
        let body = documents(n * 2_000, (n + 1) * 2_000);
        let request = client
            .post(format!("{}/engines/_bulk", store.url))
            .body(body);
        async move { request.send().await.unwrap().json::<Value>().await.unwrap() }
    });
    let answers = futures_util::future::join_all(requests).await;

    let rejected = |a: &Value| a["items"][0]["index"]["status"] == 429;
    let refused = answers.iter().filter(|a| rejected(a)).count();
    assert!((1..=5).contains(&refused), "{refused} of 8 were rejected");
    let count = store.get("engines/_count").await["count"].as_u64().unwrap();
    assert_eq!(count, (8 - refused as u64) * 2_000);
    assert_eq!(
        store.metric("search_store_rejected_total ").await,
        refused as f64 * 2_000.0
    );
    let load = store.metric("search_store_load ").await;
    assert!(load > 0.1, "{load}");
    let begun = Instant::now();
    while store.metric("search_store_load ").await >= 0.05 {
        assert!(begun.elapsed() < SOON, "the load stays");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    store.leave();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_has_little_time_loses_nothing_sends_nothing_twice_and_reports_so() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let mut command = tokio::process::Command::new(PROGRAM);
    command
        .args([
            "demo",
            "--act",
            "campaign",
            "--headless",
            "--seconds",
            "20",
            "--listen",
            "127.0.0.1:0",
            "--dir",
        ])
        .arg(dir.path().join("demo"))
        .arg("--report")
        .arg(&report)
        .current_dir(dir.path())
        .env_remove("DATABASE_URL")
        .env_remove("REDIS_URL")
        .env_remove("PROMETHEUS_URL")
        .kill_on_drop(true);

    let output = command.output().await.unwrap();

    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{printed}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for message in [
        "is blocked: 429, Retry-After 15 s",
        "is suspended: 401",
        "is available again",
        "is halved, from ",
    ] {
        assert!(printed.contains(message), "{message:?} is not in {printed}");
    }
    let text = std::fs::read_to_string(report.with_extension("campaign.json")).unwrap();
    let campaign: Value = serde_json::from_str(&text).unwrap();
    let of = |name: &str| {
        campaign[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {text}"))
    };
    assert_eq!((of("lost"), of("duplicates")), (0, 0), "{printed}");
    assert!(
        of("sent") > 100 && of("sent") + of("waiting") == of("messages"),
        "{printed}"
    );
    let picture = std::fs::read_to_string(report.with_extension("campaign.svg")).unwrap();
    assert!(picture.contains("every quota is halved"));
}

/// Returns the options of a command, each with its default, as listed by `--help`.
fn options(command: &[&str]) -> BTreeMap<String, Option<String>> {
    let output = Command::new(PROGRAM)
        .args(command)
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut options = BTreeMap::new();
    let mut name = String::new();
    for line in help.lines().map(str::trim_start) {
        if let Some(at) = line
            .find("--")
            .filter(|at| *at == 0 || line.starts_with('-'))
        {
            let word = |c: char| !c.is_ascii_alphanumeric() && c != '-';
            name = line[at..].split(word).next().unwrap().to_owned();
            options.insert(name.clone(), None);
        }
        if let Some((_, rest)) = line.split_once("[default: ") {
            options.insert(name.clone(), rest.split(']').next().map(str::to_owned));
        }
    }
    for common in ["--config", "--help", "--version"] {
        assert!(options.remove(common).is_some(), "{help}");
    }
    options
}

#[test]
fn the_page_of_the_demo_has_every_option_with_its_default() {
    let page = include_str!("../../docs/demo.md");
    for command in [["demo"].as_slice(), &["demo", "plot"]] {
        let heading = format!("\n### `flyball-lab {}`\n", command.join(" "));
        let (_, rest) = page.split_once(&heading).expect(&heading);
        let section = rest.split("\n#").next().unwrap();
        let documented: BTreeMap<String, String> = section
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split(" | ");
                let name = cells.next()?.trim_end_matches('`').to_owned();
                Some((name, cells.next()?.trim_matches('`').to_owned()))
            })
            .collect();
        let options = options(command);
        assert_eq!(
            documented.keys().collect::<Vec<_>>(),
            options.keys().collect::<Vec<_>>(),
            "{heading}"
        );
        for (name, default) in options {
            if let Some(default) = default {
                assert_eq!(documented[&name], default, "{heading}: {name}");
            }
        }
    }
}
