//! The record of knobs in Postgres, of more throttles than one call of Redis reads.

use std::collections::BTreeMap;
use std::time::Duration;

use flyball::jobs::Queue;
use flyball::throttle::on_demand::{CALLER, KnobTexts, make};

use super::world::{app_on, change};
use crate::support::redis_server::Server;
use crate::support::{database, eventually};
use crate::throttle::name;

const SOON: Duration = Duration::from_secs(60);

const THROTTLES: i64 = 450;

fn connection(server: &Server) -> redis::Connection {
    redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap()
}

/// Writes the rate of every throttle by hand.
fn write(server: &Server, rps: i64) {
    let mut pipe = redis::pipe();
    for n in 0..THROTTLES {
        pipe.hset(format!("throttle:many-{n}:knobs"), "rps", rps + n)
            .ignore();
    }
    pipe.exec(&mut connection(server)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_throttles_are_recorded_follow_edits_and_come_back_when_redis_is_emptied() {
    let (server, database, folder) = (
        Server::start(),
        database().await,
        tempfile::tempdir().unwrap(),
    );
    write(&server, 1000);
    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();
    let recorded = async |rps: i64| {
        let sql = "select count(*) from flyball.knobs
            where throttle like 'many-%' and (fields ->> 'rps')::int = $1 + substr(throttle, 6)::int";
        let count: i64 = sqlx::query_scalar(sql)
            .bind(rps)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        (count == THROTTLES).then_some(())
    };

    let app = app_on(&server, &database, folder.path()).await;
    eventually("all are recorded", SOON, || recorded(1000)).await;
    write(&server, 5000);
    eventually("all edits are recorded", SOON, || recorded(5000)).await;

    redis::cmd("FLUSHALL")
        .exec(&mut connection(&server))
        .unwrap();

    eventually("all are back", SOON, || async {
        let mut pipe = redis::pipe();
        for n in 0..THROTTLES {
            pipe.hget(format!("throttle:many-{n}:knobs"), "rps");
        }
        let rates: Vec<Option<i64>> = pipe.query(&mut connection(&server)).unwrap();
        let expected = (0..THROTTLES).map(|n| Some(5000 + n));
        rates.into_iter().eq(expected).then_some(())
    })
    .await;
    // A throttle that is deleted by hand, in a Redis that is not empty, stays deleted.
    redis::cmd("DEL")
        .arg("throttle:many-7:knobs")
        .exec(&mut connection(&server))
        .unwrap();
    eventually("its record is gone", SOON, || async {
        let sql = "select count(*) from flyball.knobs where throttle = 'many-7'";
        let count: i64 = sqlx::query_scalar(sql)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        (count == 0).then_some(())
    })
    .await;
    let names = app.throttles.names().await.unwrap();
    assert!(!names.contains(&name("many-7")), "{names:?}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_redis_has_lost_with_an_older_copy_of_the_knobs_comes_back() {
    let (server, database, folder) = (
        Server::start(),
        database().await,
        tempfile::tempdir().unwrap(),
    );
    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();
    let app = app_on(&server, &database, folder.path()).await;
    let set = async |fields: &[(&str, &str)]| {
        let set = app.throttles.set(&name("older"), &change(fields)).await;
        set.unwrap();
    };
    let key = "throttle:older:knobs";
    set(&[("rps", "5"), ("borrow", "1")]).await;
    let mut copy = redis::cmd("HGETALL");
    let copy: BTreeMap<String, String> = copy.arg(key).query(&mut connection(&server)).unwrap();
    set(&[("rps", "0")]).await;
    eventually("the stop is recorded", SOON, || async {
        let sql = "select count(*) from flyball.knobs where throttle = 'older' and fields ->> 'rps' = '0'";
        let count: i64 = sqlx::query_scalar(sql)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        (count == 1).then_some(())
    })
    .await;

    let copy: Vec<(String, String)> = copy.into_iter().collect();
    let mut older = redis::pipe();
    older.atomic().del(key).ignore();
    older.hset_multiple(key, &copy).ignore();
    older.exec(&mut connection(&server)).unwrap();

    let knobs = eventually("the stop is back", SOON, || async {
        let mut all = redis::cmd("HGETALL");
        let all: BTreeMap<String, String> = all.arg(key).query(&mut connection(&server)).unwrap();
        (all["rps"] == "0").then_some(all)
    })
    .await;
    assert_eq!(
        (knobs["borrow"].as_str(), knobs["by"].as_str()),
        ("1", "flyball")
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttle_made_again_in_an_emptied_redis_gets_back_the_knobs_that_a_person_set() {
    let (server, database, folder) = (
        Server::start(),
        database().await,
        tempfile::tempdir().unwrap(),
    );
    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();
    let app = app_on(&server, &database, folder.path()).await;
    let recorded = async |throttle: &str, rps: &str| {
        let sql =
            "select count(*) from flyball.knobs where throttle = $1 and fields ->> 'rps' = $2";
        let count: i64 = sqlx::query_scalar(sql)
            .bind(throttle)
            .bind(rps)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        (count == 1).then_some(())
    };
    let knobs = KnobTexts::from([("rps".to_owned(), "5".to_owned())]);
    for throttle in ["cal:turned", "cal:edited", "cal:deleted"] {
        let made = make(CALLER, &knobs);
        app.throttles.set(&name(throttle), &made).await.unwrap();
    }
    let slower = change(&[("rps", "0.1")]);
    for throttle in ["cal:turned", "cal:deleted"] {
        app.throttles.set(&name(throttle), &slower).await.unwrap();
    }
    redis::cmd("HSET")
        .arg("throttle:cal:edited:knobs")
        .arg("rps")
        .arg("0.1")
        .exec(&mut connection(&server))
        .unwrap();
    for throttle in ["cal:turned", "cal:edited", "cal:deleted"] {
        eventually("the slower rate is recorded", SOON, || {
            recorded(throttle, "0.1")
        })
        .await;
    }

    // What a caller makes before the recorded knobs are back, in the same moment.
    let (s, us): (u64, u64) = redis::cmd("TIME").query(&mut connection(&server)).unwrap();
    let now_ms = (s * 1000 + us / 1000).to_string();
    let made = |pipe: &mut redis::Pipeline, throttle: &str| {
        let fields = [
            ("rps", "5"),
            ("burst", "1"),
            ("window", "1"),
            ("seq", "1"),
            ("at", now_ms.as_str()),
            ("by", "flyball"),
            ("why", "made on first use, from caller"),
            ("made_from", CALLER),
            ("made_of", "rps=5"),
        ];
        pipe.hset_multiple(format!("throttle:{throttle}:knobs"), &fields)
            .ignore();
    };
    let mut again = redis::pipe();
    again.atomic().del("throttle:cal:deleted:knobs").ignore();
    made(&mut again, "cal:deleted");
    again.exec(&mut connection(&server)).unwrap();
    eventually("a throttle that was deleted is a new one", SOON, || {
        recorded("cal:deleted", "5")
    })
    .await;
    let mut emptied = redis::pipe();
    emptied.atomic().cmd("FLUSHALL").ignore();
    made(&mut emptied, "cal:turned");
    made(&mut emptied, "cal:edited");
    emptied.exec(&mut connection(&server)).unwrap();

    for throttle in ["cal:turned", "cal:edited"] {
        eventually("the slower rate is back", SOON, || async {
            let mut rps = redis::cmd("HGET");
            rps.arg(format!("throttle:{throttle}:knobs")).arg("rps");
            let rps: String = rps.query(&mut connection(&server)).unwrap();
            (rps == "0.1").then_some(())
        })
        .await;
        recorded(throttle, "0.1").await.unwrap();
    }
    app.stop().await;
}
