//! Limits of requests by method and URL prefix: for another API, by a check or behind nginx, and
//! for our own API.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::routing::any;
use flyball::throttle::{Name, RedisStore, Store};
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::fixture::turn;
use crate::support::process::{Process, ProcessFixture};
use crate::support::proxy::Proxy;
use crate::support::redis_server::Server;
use crate::support::{database, eventually, redis_prefix, skip};

const SOON: Duration = Duration::from_secs(30);

/// Longer than a busy machine makes a process wait for Redis: without an answer the API is open.
const PATIENT: &str = "redis_timeout_ms = 10000";

/// Limits on creating leads; a key gets one in ten seconds after the first four.
const LIMITS: &str = r#"
[[api_limits]]
name = "lead"
prefix = "/api/v1/lead/"
methods = ["POST"]
key_rps = 0.1
key_burst = 4
window = 10
customer_multiple = 2

[[api_limits]]
name = "shop_lead"
api = "shop"
prefix = "/api/v1/lead/"
key_rps = 0.1

[[api_limits]]
name = "own_jobs"
api = "flyball"
prefix = "/api/v1/jobs"
methods = ["GET"]
key_rps = 0.1
key_burst = 3
window = 10
customer_multiple = 1000
"#;

async fn limited() -> (ProcessFixture, Process, String) {
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.settings_file(&format!("{PATIENT}{LIMITS}"));
    let process = fixture.serve();
    let url = process.url().await;
    (fixture, process, url)
}

async fn check(url: &str, body: &Value) -> Response {
    let request = Client::new().post(format!("{url}/api/v1/check"));
    request.json(body).send().await.unwrap()
}

async fn answer(url: &str, body: &Value) -> Value {
    let response = check(url, body).await;
    assert_eq!(response.status(), StatusCode::OK);
    response.json().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn another_api_asks_for_each_request_and_a_customer_with_many_keys_gains_nothing() {
    let (fixture, _process, url) = limited().await;
    let lead = |key: &str| json!({ "method": "POST", "path": "/api/v1/lead/7?x=1", "key": key, "customer": "acme" });

    let began = std::time::Instant::now();
    let first = check(&url, &lead("k1")).await;
    assert_eq!(
        header(&first, "ratelimit-policy"),
        "\"limit:lead\";q=1;w=10"
    );
    assert_eq!(
        first.json::<Value>().await.unwrap(),
        json!({ "allowed": true, "limit": "lead", "level": null, "remaining": 3, "reset_s": 0.0 })
    );
    // Four at once for a key, eight for its customer, whatever the path looks like.
    let disguised = json!({ "method": "post", "path": "/api//v1/%6Cead/../lead/8", "key": "k1", "customer": "acme" });
    for _ in 0..3 {
        assert_eq!(answer(&url, &disguised).await["allowed"], true);
    }
    let refused = check(&url, &lead("k1")).await;
    let wait: u64 = header(&refused, "retry-after").parse().unwrap();
    assert!((1..=10).contains(&wait), "{wait}");
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(
        (
            &refused["allowed"],
            &refused["level"],
            &refused["remaining"]
        ),
        (&json!(false), &json!("key"), &json!(0))
    );
    assert!(refused["reset_s"].as_f64().unwrap() > 5.0, "{refused}");

    let (mut allowed, mut refused_key) = (0, String::new());
    for n in 0..12 {
        let key = format!("rotated-{n}");
        let answer = answer(&url, &lead(&key)).await;
        if answer["allowed"] == true {
            allowed += 1;
        } else {
            assert_eq!(answer["level"], "customer");
            refused_key = key;
        }
    }
    // A customer gets one more every five seconds, which a busy machine may take.
    let later = (began.elapsed().as_secs_f64() / 5.0) as i32;
    assert!((4..=4 + later).contains(&allowed), "{allowed}, {later}");
    // A request rejected by the customer's limit is not counted against the key.
    let alone = json!({ "method": "POST", "path": "/api/v1/lead/7", "key": refused_key });
    assert_eq!(answer(&url, &alone).await["remaining"], 3);
    let metrics = reqwest::get(format!("{url}/metrics")).await.unwrap();
    let (metrics, served) = (metrics.text().await.unwrap(), 4 + allowed + 1);
    let counted = format!(
        "flyball_throttle_requests_total{{throttle=\"limit:lead\",answer=\"allowed\"}} {served}\n"
    );
    assert!(metrics.contains(&counted), "{counted}\n{metrics}");

    // No limit matches these requests, and another API has its own limits.
    for (method, path) in [("GET", "/api/v1/lead/7"), ("POST", "/api/v1/leads")] {
        let free = answer(
            &url,
            &json!({ "method": method, "path": path, "key": "k1" }),
        )
        .await;
        assert_eq!(
            (&free["allowed"], &free["limit"]),
            (&json!(true), &Value::Null)
        );
    }
    let shop = json!({ "method": "GET", "path": "/api/v1/lead/7", "key": "k1", "api": "shop" });
    assert_eq!(answer(&url, &shop).await["limit"], "shop_lead");

    // The knob is live, and keeps its value when a process restarts with the same settings.
    let store = RedisStore::connect(&fixture.redis_url, &fixture.prefix).unwrap();
    // One that a person sets for all keys together is told as that.
    turn(&store, "limit:lead", &[("windows", "1/3600")]).await;
    let keys = AtomicUsize::new(0);
    eventually("the window of all keys", SOON, || async {
        let key = format!("new-{}", keys.fetch_add(1, Ordering::Relaxed));
        let request = json!({ "method": "POST", "path": "/api/v1/lead/7", "key": key });
        let answer = check(&url, &request).await;
        header(&answer, "ratelimit")
            .starts_with("\"limit:lead/total\";r=0;t=")
            .then_some(())
    })
    .await;
    turn(&store, "limit:lead", &[("windows", ""), ("paused", "1")]).await;
    eventually("the pause of all keys", SOON, || async {
        (answer(&url, &alone).await["level"] == "limit").then_some(())
    })
    .await;
    turn(&store, "limit:lead", &[("paused", "0"), ("key_rps", "0")]).await;
    eventually("the knob", SOON, || async {
        (answer(&url, &alone).await["level"] == "key").then_some(())
    })
    .await;
    let again = fixture.serve();
    again.url().await;
    let lead = Name::new("limit:lead").unwrap();
    let status = store.status(&lead).await;
    assert!(status.unwrap().unwrap().knobs.key_rps.is_stopped());
    // Without its throttle a limit holds nothing, and nothing is told of what is left of it.
    let told = eventually("a limit without its throttle", SOON, || async {
        store.delete(&lead).await.unwrap();
        let free = check(&url, &alone).await;
        let told = header(&free, "ratelimit").to_owned();
        let free: Value = free.json().await.unwrap();
        (free["allowed"] == true).then(|| (told, free["remaining"].clone()))
    })
    .await;
    assert_eq!(told, (String::new(), Value::Null));
}

#[tokio::test]
async fn what_is_wrong_in_a_check_or_in_the_limits_is_named() {
    let (fixture, process, url) = limited().await;
    let wrong = check(&url, &json!({ "path": 7, "kee": "k", "api": "flyball" })).await;
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let text = wrong.text().await.unwrap();
    for expected in ["/method", "/path", "/kee", "did you mean", "/api"] {
        assert!(text.contains(expected), "{text}");
    }
    drop(process);

    fixture.settings_file(
        "[[api_limits]]\nname = \"read\"\nprefix = \"api\"\nmethods = [\"FETCH\"]\nkey_rps = 0\n\
         [[api_limits]]\nname = \"a b\"\nkey_rps = 1\nbrust = 2\n",
    );
    let mut command = fixture.command();
    command.arg("serve");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for part in [
        "settings:2: api_limits.0.name: must be another one: the API has a group of this name",
        "settings:3: api_limits.0.prefix: must begin with /",
        "settings:4: api_limits.0.methods: must be a list of GET, HEAD",
        "settings:5: api_limits.0.key_rps: must be",
        "settings:7: api_limits.1.name: must be letters, digits",
        "api_limits.1.prefix: is missing",
        "settings:9: api_limits.1.brust: is not a known field",
    ] {
        assert!(error.contains(part), "{part}\n{error}");
    }
}

#[tokio::test]
async fn our_own_api_has_groups_of_the_settings_too() {
    let (_fixture, _process, url) = limited().await;
    let get = |path: &str| reqwest::get(format!("{url}{path}"));
    for _ in 0..3 {
        let response = get("/api/v1/jobs?limit=1").await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(header(&response, "ratelimit-policy").starts_with("\"api:own_jobs\";q=1;w=10"));
    }
    let refused = get("/api/v1/jobs?limit=1").await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.text().await.unwrap().contains("api:own_jobs"));
    // Other requests keep their own limit group.
    assert_eq!(
        get("/api/v1/workers").await.unwrap().status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_process_waits_for_a_slow_redis_as_long_as_its_settings_say() {
    let redis = Server::start();
    for (timeout, last) in [
        ("", StatusCode::OK),
        (PATIENT, StatusCode::TOO_MANY_REQUESTS),
    ] {
        let proxy = Proxy::to_redis(redis.socket()).await;
        let database = database().await;
        let url = database.url().to_owned();
        let prometheus = "http://127.0.0.1:9";
        let fixture = ProcessFixture::on(
            &url,
            &proxy.url,
            prometheus,
            &redis_prefix(),
            "rps = -1",
            Some(database),
        )
        .await;
        fixture.settings_file(&format!("{timeout}{LIMITS}"));
        let process = fixture.serve();
        let url = process.url().await;
        let jobs = format!("{url}/api/v1/jobs?limit=1");
        // The limit has got its knobs.
        eventually("an answer of Redis", SOON, || async {
            let response = reqwest::get(&jobs).await.unwrap();
            let policy = header(&response, "ratelimit-policy");
            policy.starts_with("\"api:own_jobs\"").then_some(())
        })
        .await;
        proxy.delay(Duration::from_millis(400));
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(reqwest::get(&jobs).await.unwrap().status());
        }
        assert_eq!(statuses.last(), Some(&last), "{timeout}: {statuses:?}");
    }
}

#[tokio::test]
async fn a_limit_that_is_closed_without_redis_allows_no_request_while_redis_is_lost() {
    let mut redis = Server::start();
    let database = database().await;
    let database_url = database.url().to_owned();
    let prefix = redis_prefix();
    let fixture = ProcessFixture::on(
        &database_url,
        &redis.url(),
        "http://127.0.0.1:9",
        &prefix,
        "rps = -1",
        Some(database),
    )
    .await;
    fixture.settings_file(&format!("{PATIENT}{LIMITS}"));
    let process = fixture.serve();
    let url = process.url().await;
    let lead = json!({ "method": "POST", "path": "/api/v1/lead/7", "key": "k1" });
    let other = json!({ "method": "POST", "path": "/api/v1/lead/7", "key": "k1", "api": "shop" });
    // A process that has asked Redis for nothing yet knows no knob.
    eventually("the limit has its knobs", SOON, || async {
        let checked = answer(&url, &lead).await;
        checked["remaining"].is_number().then_some(())
    })
    .await;
    assert_eq!(answer(&url, &other).await["allowed"], true);
    let store = RedisStore::connect(&redis.url(), &prefix)
        .unwrap()
        .with_bound(Duration::from_secs(10));
    turn(&store, "limit:lead", &[("on_store_loss", "closed")]).await;
    answer(&url, &lead).await;

    redis.kill();

    let refused = answer(&url, &lead).await;
    assert_eq!(
        (&refused["allowed"], &refused["level"]),
        (&json!(false), &json!("limit")),
        "{refused}"
    );
    assert_eq!(answer(&url, &other).await["allowed"], true, "it is open");
}

/// A mistyped `parent` stops every other throttle, and `why` and `doctor` say so of this one too.
#[tokio::test]
async fn a_limit_whose_parent_does_not_exist_allows_no_request() {
    let (fixture, _process, url) = limited().await;
    let lead = json!({ "method": "POST", "path": "/api/v1/lead/7", "key": "k1" });
    let other = json!({ "method": "POST", "path": "/api/v1/lead/7", "key": "k1", "api": "shop" });
    assert_eq!(answer(&url, &lead).await["allowed"], true);
    let store = RedisStore::connect(&fixture.redis_url, &fixture.prefix).unwrap();
    turn(&store, "limit:lead", &[("parent", "nobody")]).await;

    let refused = eventually("the limit stands still", SOON, || async {
        let refused = answer(&url, &lead).await;
        (refused["allowed"] == false).then_some(refused)
    })
    .await;

    assert_eq!(
        (&refused["level"], &refused["remaining"]),
        (&json!("limit"), &json!(0)),
        "{refused}"
    );
    assert_eq!(answer(&url, &other).await["allowed"], true, "it has none");
}

/// A proxy lets a request through after any answer but a refusal, so what a client sends must never
/// make an error.
#[tokio::test]
async fn a_proxy_gets_no_error_for_odd_bytes_of_a_client() {
    let (_fixture, _process, url) = limited().await;
    let odd = |bytes: &[u8]| reqwest::header::HeaderValue::from_bytes(bytes).unwrap();
    let ask = async |key: &[u8], customer: &[u8]| {
        let request = Client::new()
            .post(format!("{url}/api/v1/check"))
            .header("x-original-method", "POST")
            .header("x-original-uri", odd(b"/api/v1/lead/7?\xff"))
            .header("x-limit-key", odd(key))
            .header("x-limit-customer", odd(customer));
        request.send().await.unwrap().status().as_u16()
    };
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(ask(b"abc\xff", b"").await);
    }
    assert_eq!(statuses, [204, 204, 204, 204, 403]);
    // Each sequence of bytes is a key and a customer of its own.
    assert_eq!(ask(b"abc\xfe", b"").await, 204);
    let began = std::time::Instant::now();
    let mut of_customer = Vec::new();
    for n in 0..9_u8 {
        of_customer.push(ask(&[b'k', n + b'0'], b"acme \x80").await);
    }
    // A customer gets one more every five seconds, which a busy machine may take.
    let later = (began.elapsed().as_secs_f64() / 5.0) as usize;
    let allowed = of_customer.iter().filter(|status| **status == 204).count();
    assert!((8..=8 + later).contains(&allowed), "{of_customer:?}");
    assert!(
        later > 0 || of_customer.ends_with(&[403]),
        "{of_customer:?}"
    );
    assert_eq!(ask(b"k0", b"acme \x81").await, 204);
}

/// A running nginx.
struct Nginx(std::process::Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nginx() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let unpacked = Path::new(&home).join(".cache/flyball/apt/root/usr/sbin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), unpacked])
        .map(|dir| dir.join("nginx"))
        .find(|program| program.is_file())
}

#[tokio::test]
async fn nginx_limits_an_api_as_the_guide_shows_and_lets_it_live_when_flyball_is_away() {
    let Some(program) = nginx() else {
        return skip("nginx is not installed");
    };
    let (_fixture, process, url) = limited().await;
    let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend_at = backend.local_addr().unwrap().to_string();
    let served = axum::Router::new().fallback(any(|| async { "served" }));
    tokio::spawn(async move { axum::serve(backend, served).await });
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let front = free.local_addr().unwrap().to_string();
    drop(free);

    let guide =
        std::fs::read_to_string(Path::new(crate::support::ROOT).join("docs/guides/api-limits.md"));
    let guide = guide.unwrap();
    let server = guide.split("```nginx\n").nth(1).unwrap();
    let server = server.split("```").next().unwrap();
    let server = server
        .replace("127.0.0.1:8000", &front)
        .replace("127.0.0.1:9000", &backend_at)
        .replace("http://127.0.0.1:8080", &url);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|part| format!("{part}_temp_path {at}/{part};"))
        .join("\n");
    let config = format!(
        "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\nevents {{}}\n\
         http {{\naccess_log off;\n{paths}\n{server}\n}}\n"
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let child = Command::new(program)
        .arg("-c")
        .arg(&file)
        .arg("-p")
        .arg(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _nginx = Nginx(child);

    let send = |path: &str, key: &str| {
        let request = Client::new().post(format!("http://{front}{path}"));
        request.header("x-api-key", key).body("a lead").send()
    };
    // nginx waits a second for an answer, and serves without one. Where that happens, after the start
    // or on a busy machine, the requests begin again with a key of their own.
    let keys = AtomicUsize::new(0);
    let refused = eventually("nginx, and answers in time", SOON, || async {
        let key = format!("k{}", keys.fetch_add(1, Ordering::Relaxed));
        for left in (0..4).rev() {
            let response = send("/api/v1/lead/7", &key).await.ok()?;
            assert_eq!(response.status(), StatusCode::OK);
            let limit = header(&response, "ratelimit").to_owned();
            if limit.is_empty() {
                return None;
            }
            assert_eq!(limit, format!("\"limit:lead\";r={left}"));
            assert_eq!(response.text().await.unwrap(), "served");
        }
        let refused = send("/api/v1/%6cead/7", &key).await.ok()?;
        (refused.status() != StatusCode::OK).then_some(refused)
    })
    .await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = header(&refused, "retry-after").parse().unwrap();
    assert!((1..=10).contains(&wait), "{wait}");
    assert_eq!(
        send("/api/v1/lead/7", "another").await.unwrap().status(),
        StatusCode::OK,
        "another key has its own limit"
    );
    // A header that HTTP forbids would make the check fail.
    let mut socket = tokio::net::TcpStream::connect(&front).await.unwrap();
    let request = b"POST /api/v1/lead/7 HTTP/1.1\r\nhost: a\r\nx-api-key: a\x01b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    socket.write_all(request).await.unwrap();
    let mut text = Vec::new();
    socket.read_to_end(&mut text).await.unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.starts_with("HTTP/1.1 400"), "{text}");
    drop(process);
    eventually("nginx without Flyball", SOON, || async {
        let response = send("/api/v1/lead/7", "k0").await.ok()?;
        (response.status() == StatusCode::OK).then_some(())
    })
    .await;
}
