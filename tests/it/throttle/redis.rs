//! Behaviour of Redis alone: restarts, hangs, foreign keys.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use flyball::throttle::{AcquireResponse, Error, Limit, RedisStore, Store};

use super::world::{ask, change, name};
use crate::support::proxy::Proxy;
use crate::support::redis_server::Server;
use crate::support::timeline::Control;
use crate::support::{eventually, poll};

/// The bounds of the store: for workers, and for operators.
const ASK_BOUND: Duration = Duration::from_millis(50);
const OPERATOR_BOUND: Duration = Duration::from_millis(250);

async fn real(server: &Server) -> RedisStore {
    RedisStore::connect(&server.url(), "").unwrap()
}

/// Watches how late this machine wakes, by which a bound is extended.
fn control() -> Arc<Control> {
    let control = Arc::new(Control::default());
    tokio::spawn(control.clone().watch(Arc::new(AtomicBool::new(false))));
    control
}

/// Retries for a while until Redis answers again.
pub async fn answered(store: &RedisStore, throttle: &str) -> AcquireResponse {
    eventually("Redis answers again", Duration::from_secs(10), || async {
        let answer = store.acquire(&ask(throttle, &[("", 100, 1.0)])).await;
        (answer.at_us != 0).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn redis_that_restarts_empty_gives_one_token_and_not_a_burst() {
    let mut server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(&name("a"), &change(&[("rps", "50"), ("burst", "10")]))
        .await
        .unwrap();
    store.acquire(&ask("a", &[("", 1, 1.0)])).await;

    server.restart();
    let unknown = answered(&store, "a").await;
    store
        .set(&name("a"), &change(&[("rps", "50"), ("burst", "10")]))
        .await
        .unwrap();
    let first = answered(&store, "a").await;

    assert_eq!(
        unknown.lanes[0].limit,
        Some(Limit::Unknown { name: name("a") })
    );
    assert_eq!(first.lanes[0].granted, 1);
}

#[tokio::test]
async fn a_flush_forgets_the_functions_and_they_are_loaded_again() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(&name("a"), &change(&[("rps", "-1")]))
        .await
        .unwrap();
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    for kept in ["SCRIPT", "FUNCTION"] {
        redis::cmd(kept).arg("FLUSH").exec(&mut connection).unwrap();
    }

    assert_eq!(
        store.acquire(&ask("a", &[("", 3, 1.0)])).await.lanes[0].granted,
        3
    );
}

#[tokio::test]
async fn a_redis_that_hangs_or_is_gone_is_answered_for_within_the_bound() {
    let mut server = Server::start();
    let store = real(&server).await;
    let set = |throttle: &'static str, word: &'static str| {
        let server_store = &store;
        async move {
            let knobs = change(&[("rps", "100"), ("on_store_loss", word)]);
            eventually("Redis is there", Duration::from_secs(10), || async {
                server_store.set(&name(throttle), &knobs).await.ok()
            })
            .await;
            answered(server_store, throttle).await;
        }
    };
    set("closed", "closed").await;
    set("open", "open").await;
    set("local", "local").await;
    set("looked-at", "local").await;
    store.set_workers(2);
    let control = control();

    server.freeze();
    let mut slowest = Duration::ZERO;
    for throttle in ["closed", "open", "local", "closed"] {
        let begin = Instant::now();
        let answer = store.acquire(&ask(throttle, &[("", 40, 1.0)])).await;
        slowest = slowest.max(begin.elapsed());
        let lane = &answer.lanes[0];
        match throttle {
            "closed" => assert_eq!((lane.granted, &lane.limit), (0, &Some(Limit::StoreLost))),
            "open" => assert_eq!(lane.granted, 40),
            _ => assert!((1..=50).contains(&lane.granted), "{}", lane.granted),
        }
    }
    let begin = Instant::now();
    assert!(matches!(
        store.status(&name("open")).await,
        Err(Error::Lost(_))
    ));
    assert!(matches!(
        store.set(&name("open"), &change(&[("rps", "1")])).await,
        Err(Error::Lost(_))
    ));
    let took = begin.elapsed();
    assert!(
        took <= control.allows(ASK_BOUND),
        "known to be lost: answered at once, not in {took:?}"
    );
    assert!(slowest <= control.allows(ASK_BOUND), "{slowest:?}");

    server.thaw();
    answered(&store, "closed").await;
    server.kill();
    let begin = Instant::now();
    assert_eq!(
        store.acquire(&ask("closed", &[("", 1, 1.0)])).await.at_us,
        0
    );
    let took = begin.elapsed();
    assert!(took <= control.allows(ASK_BOUND), "{took:?}");
    // A lane that is only looked at takes nothing of what the process grants by itself.
    let both = ask("looked-at", &[("", 1, 1.0), ("", 1_000_000_000, 1.0)]);
    let answer = store.acquire_and_peek(&both).await;
    let granted: Vec<u32> = answer.lanes.iter().map(|lane| lane.granted).collect();
    assert_eq!((answer.at_us, granted.as_slice()), (0, &[1, 0][..]));
}

/// The throttles would all stop for a list that only an operator waits for.
#[tokio::test]
async fn a_list_that_takes_too_long_does_not_lose_the_store() {
    let server = Server::start();
    let store = real(&server).await;
    eventually("Redis is there", Duration::from_secs(10), || async {
        store.names().await.ok()
    })
    .await;

    server.freeze();
    for _ in 0..2 {
        let begin = Instant::now();
        assert!(matches!(store.names().await, Err(Error::Lost(_))));
        assert!(
            begin.elapsed() >= Duration::from_millis(200),
            "a lost store is not asked: {:?}",
            begin.elapsed()
        );
    }
    server.thaw();
    answered(&store, "a").await;
}

#[tokio::test]
async fn a_redis_that_was_never_there_is_lost_at_once_and_found_when_it_comes() {
    let mut server = Server::start();
    server.kill();
    let control = control();
    let begin = Instant::now();
    let store = real(&server).await;
    let lost = store.status(&name("a")).await;
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    let took = begin.elapsed();
    assert!(took <= control.allows(OPERATOR_BOUND), "{took:?}");

    server.restart();
    answered(&store, "a").await;
}

/// A fail-over that is planned demotes the primary and gives its name to the new one, while the
/// connections to the old one stay open and answer PING.
#[tokio::test]
async fn a_primary_that_became_a_replica_is_left_for_the_new_one() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::to_redis(old.socket()).await;
    let (bound, knobs) = (Duration::from_secs(5), change(&[("rps", "-1")]));
    let there = real(&new).await.with_bound(bound);
    there.set(&name("a"), &knobs).await.unwrap();
    let store = RedisStore::connect(&proxy.url, "")
        .unwrap()
        .with_bound(bound);
    store.set(&name("a"), &knobs).await.unwrap();
    assert!(store.acquire(&ask("a", &[("", 1, 1.0)])).await.at_us > 0);

    let mut connection = redis::Client::open(old.url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", "1"])
        .exec(&mut connection)
        .unwrap();
    for _ in 0..2 {
        let lost = store.acquire(&ask("a", &[("", 1, 1.0)])).await;
        assert_eq!(lost.at_us, 0);
        assert!(
            lost.server_error.unwrap().starts_with("READONLY"),
            "{lost:?}"
        );
    }
    proxy.lead_to_redis(new.socket());

    answered(&store, "a").await;
}

#[test]
fn a_url_that_cannot_be_used_is_refused_without_its_password() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    for url in [
        "localhost:6379",
        "http://:hunter2@localhost",
        "redis://user:hunter2@local host/x",
    ] {
        let message = RedisStore::connect(url, "")
            .err()
            .expect("refused")
            .to_string();
        assert!(
            message.contains("REDIS_URL") && message.contains("redis://host:port"),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[tokio::test]
async fn keys_that_are_idle_leave_nothing_behind() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(
            &name("a"),
            &change(&[("rps", "-1"), ("key_rps", "100"), ("window", "0.05")]),
        )
        .await
        .unwrap();
    store.acquire(&ask("a", &[("k", 5, 1.0)])).await;
    store
        .pause_key(&name("a"), "k", Duration::from_millis(50), "429")
        .await
        .unwrap();

    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let mut keys: Vec<String> = Vec::new();
    let left = poll(Duration::from_secs(5), || {
        keys = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        keys.sort();
        let is_clean = keys == ["throttle:a:bucket", "throttle:a:knobs", "throttle:names"];
        std::future::ready(is_clean.then_some(()))
    })
    .await;
    assert!(left.is_some(), "{keys:?}");
}

#[tokio::test]
async fn a_key_of_the_wrong_type_stops_one_throttle_and_no_worker() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(&name("good"), &change(&[("rps", "-1")]))
        .await
        .unwrap();
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("SET")
        .arg("throttle:bad:knobs")
        .arg("oops")
        .exec(&mut connection)
        .unwrap();
    redis::cmd("SET")
        .arg("throttle:good:lane:k")
        .arg("oops")
        .exec(&mut connection)
        .unwrap();

    let bad = store.acquire(&ask("bad", &[("", 1, 1.0)])).await;

    assert_eq!(
        bad.lanes[0].limit,
        Some(Limit::Unknown { name: name("bad") })
    );
    assert_eq!(
        store.acquire(&ask("good", &[("k", 1, 1.0)])).await.lanes[0].granted,
        1
    );
}

#[tokio::test]
async fn a_throttle_without_a_rate_is_unknown_as_soon_as_its_knobs_are_gone() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    // None of the fields that make a knob: the hash alone makes the throttle.
    redis::cmd("HSET")
        .arg(&["throttle:a:knobs", "why", "by hand"])
        .exec(&mut connection)
        .unwrap();
    for _ in 0..2 {
        let known = store.acquire(&ask("a", &[("", 1, 1.0)])).await;
        assert!(!matches!(known.lanes[0].limit, Some(Limit::Unknown { .. })));
    }

    redis::cmd("DEL")
        .arg("throttle:a:knobs")
        .exec(&mut connection)
        .unwrap();

    let gone = store.acquire(&ask("a", &[("", 1, 1.0)])).await;
    assert_eq!(
        gone.lanes[0].limit,
        Some(Limit::Unknown { name: name("a") })
    );
}

/// The serialized hash of knobs stands for its fields; a user who may not serialize it has them read
/// one by one.
#[tokio::test]
async fn knobs_that_a_person_edits_take_effect_with_the_next_ask_and_for_one_throttle_alone() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("ACL")
        .arg(&["SETUSER", "some", "on", ">pw", "~*", "&*", "+@all", "-dump"])
        .exec(&mut connection)
        .unwrap();
    let users = [
        server.url(),
        format!("{}?user=some&pass=pw", server.url()),
        server.url(),
    ];
    for (number, url) in users.iter().enumerate() {
        let store = RedisStore::connect(url, "")
            .unwrap()
            .with_bound(Duration::from_secs(5));
        let names = ["a", "b"].map(|name| format!("{name}{number}"));
        let mut write = |name: &str, command: &str, fields: &[&str]| {
            redis::cmd(command)
                .arg(format!("throttle:{name}:knobs"))
                .arg(fields)
                .exec(&mut connection)
                .unwrap();
        };
        for name in &names {
            write(name, "HSET", &["rps", "-1", "windows", "5/3600"]);
        }
        let granted = async |name: &str| {
            let answer = store.acquire(&ask(name, &[("", 100, 1.0)])).await;
            answer.lanes[0].granted
        };
        assert_eq!([granted(&names[0]).await, granted(&names[1]).await], [5; 2]);

        write(&names[0], "HSET", &["windows", "7/3600"]);
        assert_eq!(
            [granted(&names[0]).await, granted(&names[1]).await],
            [2, 0],
            "{url}"
        );
        write(&names[0], "HSET", &["windows", "5/3600"]);
        assert_eq!(granted(&names[0]).await, 0);
        write(&names[0], "HDEL", &["windows"]);
        assert_eq!(
            [granted(&names[0]).await, granted(&names[1]).await],
            [100, 0]
        );
    }
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .unwrap();
    let dumps = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_dump:"))
        .unwrap_or_else(|| panic!("{stats}"));
    assert!(dumps.contains("rejected_calls=1,"), "{dumps}");
    assert!(!dumps.contains("dump:calls=0,"), "{dumps}");
}

#[tokio::test]
async fn the_life_of_a_bucket_is_renewed_once_an_hour_and_not_with_each_grant() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(
            &name("a"),
            &change(&[("rps", "-1"), ("windows", "100/60"), ("key_rps", "5")]),
        )
        .await
        .unwrap();
    store.acquire(&ask("a", &[("k", 1, 1.0)])).await;
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let mut run = |command: &str, args: &[&str]| {
        redis::cmd(command)
            .arg("throttle:a:bucket")
            .arg(args)
            .query::<i64>(&mut connection)
            .unwrap()
    };
    let week = 7 * 86_400;
    assert!(run("TTL", &[]) > week);

    run("EXPIRE", &["1000"]);
    store.acquire(&ask("a", &[("k", 1, 1.0)])).await;
    assert!(run("TTL", &[]) <= 1000);

    let an_hour_ago = "1000000000";
    run("HSET", &["kept", an_hour_ago]);
    store.acquire(&ask("a", &[("k", 1, 1.0)])).await;
    assert!(run("TTL", &[]) > week);
}

#[tokio::test]
async fn the_bucket_of_a_slow_throttle_outlives_the_wait_for_its_next_token() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    let slow = change(&[("rps", "0.000001")]);
    store.set(&name("a"), &slow).await.unwrap();
    assert_eq!(
        store.acquire(&ask("a", &[("", 1, 1.0)])).await.lanes[0].granted,
        1
    );
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let lives: i64 = redis::cmd("TTL")
        .arg("throttle:a:bucket")
        .query(&mut connection)
        .unwrap();
    assert!(lives > 1_000_000, "{lives}");
}
