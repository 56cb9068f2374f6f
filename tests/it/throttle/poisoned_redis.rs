//! Foreign data in Redis affect only their own throttle, and the store's own error is reported.

use std::time::Duration;

use flyball::jobs::Queue;
use flyball::throttle::{
    Change, Error, Holder, KeyOutcomes, LUA_TEXT, RedisStore, Refund, Scope, Store,
    UpstreamRefusal, reason_meaning,
};

use super::world::app_on;
use crate::support::redis_server::Server;
use crate::support::{database, eventually};
use crate::throttle::{ask, fields, name};

const SOON: Duration = Duration::from_secs(60);

fn command(server: &Server, words: &[&[u8]]) {
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let mut command = redis::cmd(std::str::from_utf8(words[0]).unwrap());
    for word in &words[1..] {
        command.arg(*word);
    }
    command.exec(&mut connection).unwrap();
}

fn store(server: &Server) -> RedisStore {
    RedisStore::connect(&server.url(), "")
        .unwrap()
        .with_bound(Duration::from_secs(10))
}

async fn has_names(store: &RedisStore) {
    eventually("Redis", SOON, || async { store.names().await.ok() }).await;
}

/// A program in another language calls the script itself, and its numbers may be nonsense.
#[tokio::test]
async fn nonsense_for_a_cost_takes_no_limit_away() {
    let server = Server::start();
    let store = store(&server);
    has_names(&store).await;
    let mail = name("mail");
    let change = Change {
        fields: fields(&[("rps", "5")]),
        create: true,
        ..Change::default()
    };
    store.set(&mail, &change).await.unwrap();
    let keys = ["knobs", "bucket", "holds", "pauses"].map(|part| format!("throttle:mail:{part}"));
    let call = |words: &[&str]| {
        let mut connection = redis::Client::open(server.url())
            .unwrap()
            .get_connection()
            .unwrap();
        let mut script = redis::cmd("EVAL");
        script.arg(LUA_TEXT).arg(4).arg(&keys[..]);
        let answer: Result<redis::Value, _> = script.arg(words).query(&mut connection);
        answer
    };

    for nonsense in ["nan", "-nan", "inf", "-inf", "0x7fffffff", "x", ""] {
        let words = [
            "acquire", "", "1", "1", "", "", "", "", "", "1", "1", nonsense, "0", "0",
        ];
        // An error is an answer as well; what counts is the state that it leaves behind.
        let _ = call(&words);
        let _ = call(&["settle", "", "1", "", nonsense, "0"]);
    }

    let answer = store.acquire(&ask("mail", &[("", 1000, 1.0)])).await;
    assert!(answer.lanes[0].granted < 1000, "{answer:?}");
    let status = store.status(&mail).await.unwrap().unwrap();
    assert!(status.used.is_finite(), "{status:?}");

    // A bucket that is nonsense already counts as lost.
    let bucket = b"throttle:mail:bucket";
    command(
        &server,
        &[
            b"HSET",
            bucket,
            b"spent_to",
            b"nan",
            b"debt",
            b"nan",
            b"used",
            b"inf",
        ],
    );
    let granted: u32 = {
        let answer = store.acquire(&ask("mail", &[("", 1000, 1.0)])).await;
        answer.lanes[0].granted
    };
    assert!(granted < 1000, "{granted}");
}

#[tokio::test]
async fn one_bad_hash_of_knobs_stops_neither_a_start_nor_the_recording_of_others() {
    let (server, database, folder) = (
        Server::start(),
        database().await,
        tempfile::tempdir().unwrap(),
    );
    command(
        &server,
        &[
            b"HSET",
            b"throttle:aaa:knobs",
            b"rps",
            b"5",
            b"note",
            b"a\0b",
        ],
    );
    command(
        &server,
        &[
            b"HSET",
            b"throttle:aab:knobs",
            b"rps",
            b"5",
            b"\xff\xfe\0",
            b"\xc3\x28",
            b"parent",
            b"\xff",
        ],
    );
    command(&server, &[b"SET", b"throttle:aac:knobs", b"no hash"]);
    command(
        &server,
        &[
            b"HSET",
            b"throttle:aad:knobs",
            b"rps",
            b"5",
            b"why",
            "x".repeat(1 << 20).as_bytes(),
        ],
    );
    command(&server, &[b"HSET", b"throttle:zzz:knobs", b"rps", b"7"]);
    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();
    queue.migrate().await.unwrap();
    for (throttle, record) in [("odd", "[1, 2]"), ("odder", "{\"rps\": 5}")] {
        let insert = "insert into flyball.knobs (throttle, fields) values ($1, $2::jsonb)";
        sqlx::query(insert)
            .bind(throttle)
            .bind(record)
            .execute(&queue.pool)
            .await
            .unwrap();
    }

    let app = app_on(&server, &database, folder.path()).await;

    eventually("every throttle that can be is recorded", SOON, || async {
        let text =
            "select fields::text from flyball.knobs where throttle = any($1) order by throttle";
        let rows: Vec<(String,)> = sqlx::query_as(text)
            .bind(vec!["aaa", "aab", "aad", "zzz"])
            .fetch_all(&queue.pool)
            .await
            .unwrap();
        (rows.len() == 4
            && rows
                .iter()
                .all(|(fields,)| fields.contains("\"rps\"") && fields.len() < 5000))
        .then_some(())
    })
    .await;
    // The app's store has a timeout of 250 ms, which a busy machine may exceed.
    let status = eventually("the status is read", SOON, || async {
        app.throttles.status(&name("aaa")).await.ok()
    })
    .await
    .unwrap();
    assert!(
        status
            .problems
            .iter()
            .any(|problem| problem.message.contains("NUL")),
        "{:?}",
        status.problems
    );
    // An invalid parent name counts as none.
    eventually("a token at 5 a second", SOON, || async {
        let granted = app.throttles.acquire(&ask("aab", &[("", 1, 1.0)])).await;
        (granted.lanes[0].granted == 1 && granted.effective_rps.number() == 5.0).then_some(())
    })
    .await;
    app.stop().await;
}

#[tokio::test]
async fn keys_of_jobs_that_end_like_knobs_are_no_throttles() {
    let server = Server::start();
    let store = store(&server);
    has_names(&store).await;
    let change = flyball::throttle::Change {
        fields: fields(&[("rps", "-1"), ("key_rps", "1"), ("key_concurrency", "5")]),
        create: true,
        ..Default::default()
    };
    store.set(&name("kk"), &change).await.unwrap();
    for key in ["phantom:knobs", "ghost:knobs"] {
        let mut wanted = ask("kk", &[(key, 1, 1.0)]);
        wanted.holder = Some(flyball::throttle::Holder {
            id: "w".into(),
            ttl: Duration::from_secs(30),
            held: 0,
        });
        assert_eq!(store.acquire(&wanted).await.lanes[0].granted, 1);
        store
            .pause_key(&name("kk"), key, Duration::from_secs(60), "why")
            .await
            .unwrap();
    }

    let fresh = self::store(&server);
    has_names(&fresh).await;

    assert_eq!(fresh.names().await.unwrap(), [name("kk")]);
    assert_eq!(fresh.search().await.unwrap(), ["kk"]);
}

#[tokio::test]
async fn a_redis_that_refuses_is_reported_in_its_own_words_and_is_not_said_to_be_silent() {
    let server = Server::start();
    let store = store(&server);
    has_names(&store).await;
    let change = |rps: &str| flyball::throttle::Change {
        fields: fields(&[("rps", rps)]),
        create: true,
        ..Default::default()
    };
    store.set(&name("mail"), &change("5")).await.unwrap();
    store.acquire(&ask("mail", &[("", 1, 1.0)])).await;
    assert!(store.takes_writes().await.is_ok());
    command(
        &server,
        &[b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction"],
    );
    command(&server, &[b"CONFIG", b"SET", b"maxmemory", b"1"]);

    let (written, set) = (
        store.takes_writes().await,
        store.set(&name("mail"), &change("6")).await,
    );
    let requested = store.acquire(&ask("mail", &[("", 1, 1.0)])).await;

    for refused in [written.unwrap_err(), set.unwrap_err()] {
        let Error::Lost(reason) = refused else {
            panic!("{refused}")
        };
        assert!(
            reason_meaning(&reason)
                .unwrap()
                .starts_with("OOM: it is out of memory"),
            "{reason}"
        );
    }
    assert!(
        requested.server_error.unwrap().starts_with("OOM"),
        "{requested:?}"
    );
    assert_eq!(requested.at_us, 0);
    command(&server, &[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    assert!(store.takes_writes().await.is_ok());
}

#[tokio::test]
async fn a_redis_that_takes_no_writes_still_tells_its_throttles() {
    let server = Server::start();
    let first = store(&server);
    has_names(&first).await;
    let change = Change {
        fields: fields(&[("rps", "5")]),
        create: true,
        ..Change::default()
    };
    first.set(&name("mail"), &change).await.unwrap();
    command(
        &server,
        &[b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction"],
    );
    let out_of_memory: [&[u8]; 4] = [b"CONFIG", b"SET", b"maxmemory", b"1"];
    let replica: [&[u8]; 3] = [b"REPLICAOF", b"127.0.0.1", b"1"];
    for change in [&out_of_memory[..], &replica[..]] {
        command(&server, change);

        // As a command or a process that starts now does, this one searches all of Redis at first.
        let other = store(&server);
        let names = eventually("Redis", SOON, || async { other.names().await.ok() }).await;

        assert_eq!(names, [name("mail")]);
        let status = other.status(&name("mail")).await.unwrap().unwrap();
        assert_eq!(status.knobs.rps.number(), 5.0);
        command(&server, &[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    }
}

#[tokio::test]
async fn state_of_another_type_counts_as_lost_and_no_report_about_it_fails() {
    let server = Server::start();
    let store = store(&server);
    has_names(&store).await;
    let mail = name("mail");
    let knobs = [
        ("rps", "100"),
        ("key_rps", "10"),
        ("concurrency", "5"),
        ("key_concurrency", "5"),
    ];
    let change = Change {
        fields: fields(&knobs),
        create: true,
        ..Change::default()
    };
    store.set(&mail, &change).await.unwrap();
    let asked = store.acquire(&ask("mail", &[("k", 1, 1.0)])).await;
    let poison = |parts: &[&str]| {
        for part in parts {
            let key = format!("throttle:mail:{part}");
            command(&server, &[b"DEL", key.as_bytes()]);
            command(&server, &[b"RPUSH", key.as_bytes(), b"x"]);
        }
    };

    let bucket: &[u8] = b"throttle:mail:bucket";
    command(&server, &[b"HSET", bucket, b"refusal", b"9e15 b c d|429"]);
    let again = store.acquire(&ask("mail", &[("", 1, 1.0)])).await;
    assert!(again.at_us > 0, "{again:?}");
    let status = store.status(&name("mail")).await.unwrap().unwrap();
    assert_eq!(status.refusal, None);

    poison(&["lane:k"]);
    let refund = Refund {
        key: "k",
        grant: &asked.lanes[0],
        units: 1,
        cost: 1.0,
    };
    store.refund_many(&mail, &[refund]).await.unwrap();
    poison(&["lane:k"]);
    store.settle_many(&mail, &[("k", 1.0)]).await.unwrap();
    poison(&["lane:k"]);
    store.window_usage(&mail, "k").await.unwrap();
    poison(&["pause:k", "learned:k", "pauses"]);
    let refused = UpstreamRefusal {
        key: "k",
        scope: Scope::Key,
        is_overload: false,
        is_untrusted: false,
        delay: None,
        jitter: 0.0,
        why: "429",
    };
    store.refused(&mail, &refused).await.unwrap();
    poison(&["learned:k"]);
    let ended = KeyOutcomes {
        key: "k",
        succeeded: 1,
        tokens: 1.0,
        ..KeyOutcomes::default()
    };
    store.ended(&mail, &[ended]).await.unwrap();
    poison(&["pause:k"]);
    let pause = Duration::from_secs(5);
    store.pause_key(&mail, "k", pause, "by hand").await.unwrap();
    poison(&["pause:k"]);
    assert!(!store.resume_key(&mail, "k").await.unwrap());
    for held in [1, 0] {
        poison(&["holds", "holds:k"]);
        let holder = Holder {
            id: "w".to_owned(),
            ttl: Duration::from_secs(30),
            held,
        };
        let lanes = [("k".to_owned(), held)];
        store.hold(&mail, &holder, &lanes).await.unwrap();
    }
}
