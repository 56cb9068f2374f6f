//! LimitLion's tools work on our knobs, and its knobs on our throttles, with the exact commands of
//! LimitLion 1.1.

use std::time::Duration;

use flyball::throttle::{
    AcquireRequest, Change, LaneRequest, Limit, Name, RedisStore, Status, Store, foreign,
};
use redis::Commands;

use crate::support::counterparts::installed;
use crate::support::redis_server::Server;
use crate::support::{eventually, skip};

const SOON: Duration = Duration::from_secs(60);
const WEEK_S: i64 = 7 * 86_400;

/// LimitLion's operations, command by command.
struct LimitLion(redis::Connection);

impl LimitLion {
    fn of(server: &Server) -> Self {
        Self(
            redis::Client::open(server.url())
                .unwrap()
                .get_connection()
                .unwrap(),
        )
    }

    /// `throttle_set`.
    fn set(&mut self, name: &str, knobs: &[(&str, &str)], knobs_ttl: Option<i64>) {
        let key = format!("throttle:{name}:knobs");
        let mut pipe = redis::pipe();
        pipe.atomic();
        for (knob, value) in knobs {
            pipe.hset(&key, *knob, *value);
        }
        if let Some(seconds) = knobs_ttl {
            pipe.expire(&key, seconds);
        }
        pipe.query::<Vec<i64>>(&mut self.0).unwrap();
    }

    /// `throttle_get`: tokens, refreshed, rps, burst, window.
    fn get(&mut self, name: &str) -> Vec<Option<String>> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for field in ["tokens", "refreshed"] {
            pipe.hget(format!("throttle:{name}"), field);
        }
        for field in ["rps", "burst", "window"] {
            pipe.hget(format!("throttle:{name}:knobs"), field);
        }
        pipe.query(&mut self.0).unwrap()
    }

    /// `throttle_reset`.
    fn reset(&mut self, name: &str) {
        let _: i64 = self.0.del(format!("throttle:{name}:knobs")).unwrap();
    }

    /// `throttle_delete`.
    fn delete(&mut self, name: &str) {
        let key = format!("throttle:{name}");
        let _: (i64, i64) = redis::pipe()
            .atomic()
            .del(&key)
            .del(format!("{key}:knobs"))
            .query(&mut self.0)
            .unwrap();
    }
}

async fn store(server: &Server) -> RedisStore {
    let store = RedisStore::connect(&server.url(), "")
        .unwrap()
        .with_bound(Duration::from_secs(10));
    eventually("Redis", SOON, || async { store.names().await.ok() }).await;
    store
}

async fn status(store: &RedisStore, name: &str) -> Option<Status> {
    store.status(&Name::new(name).unwrap()).await.unwrap()
}

async fn limit(store: &RedisStore, name: &str) -> Option<Limit> {
    let ask = AcquireRequest {
        throttle: Name::new(name).unwrap(),
        lanes: vec![LaneRequest::default()],
        holder: None,
    };
    store.acquire(&ask).await.lanes[0].limit.clone()
}

#[tokio::test]
async fn its_tools_read_turn_and_take_away_our_knobs() {
    let server = Server::start();
    let (store, mut lion) = (store(&server).await, LimitLion::of(&server));
    let mail = Name::new("mail").unwrap();
    let fields = [
        ("rps".to_owned(), Some("12.5".to_owned())),
        ("mode".to_owned(), Some("manual".to_owned())),
    ]
    .into();
    store
        .set(
            &mail,
            &Change {
                fields,
                create: true,
                by: "test".into(),
                ..Change::default()
            },
        )
        .await
        .unwrap();
    let text = |text: &str| Some(text.to_owned());

    // LimitLion's own script needs all three.
    assert_eq!(
        lion.get("mail"),
        [None, None, text("12.5"), text("1"), text("1")]
    );
    lion.set("mail", &[("rps", "3")], None);
    assert_eq!(
        status(&store, "mail").await.unwrap().effective_rps.number(),
        3.0
    );
    lion.set("mail", &[("rps", "0")], None);
    assert_eq!(
        limit(&store, "mail").await,
        Some(Limit::Stopped {
            name: mail.clone(),
            why: String::new()
        })
    );
    lion.reset("mail");
    assert_eq!(
        limit(&store, "mail").await,
        Some(Limit::Unknown { name: mail.clone() })
    );
    lion.set(
        "mail",
        &[("rps", "4"), ("burst", "2"), ("window", "5")],
        None,
    );
    let set = status(&store, "mail").await.unwrap();
    assert_eq!(
        (
            set.effective_rps.number(),
            set.knobs.burst,
            set.knobs.window,
            set.problems.len()
        ),
        (4.0, 2.0, 5.0, 0)
    );
    lion.delete("mail");
    assert!(status(&store, "mail").await.is_none());
    assert!(!store.names().await.unwrap().contains(&mail));
}

/// A program that makes a throttle for each customer and lets it expire would add to the names
/// without end, and each list looks at all of them.
#[tokio::test]
async fn throttles_that_have_expired_leave_no_names_behind() {
    let server = Server::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_connection().unwrap();
    let key = |n: u32| format!("throttle:customer-{n}:knobs");
    let noted = |redis: &mut redis::Connection| {
        let mut count = redis::cmd("SCARD");
        count.arg("throttle:names").query::<i64>(redis).unwrap()
    };
    for n in 0..10 {
        let mut set = redis::cmd("HSET");
        set.arg(key(n)).arg(&["rps", "5"]).exec(&mut redis).unwrap();
    }
    let store = store(&server).await;
    eventually("all are found", SOON, || async {
        (store.names().await.ok()?.len() == 10).then_some(())
    })
    .await;
    assert_eq!(noted(&mut redis), 10);

    for n in 0..10 {
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(key(n)).arg(1).exec(&mut redis).unwrap();
    }
    eventually("they have expired", SOON, || async {
        store.names().await.ok()?.is_empty().then_some(())
    })
    .await;
    assert_eq!(store.names().await.unwrap(), []);
    assert_eq!(noted(&mut redis), 0);

    // One that comes back is known again.
    let again = Name::new("customer-3").unwrap();
    let change = Change {
        fields: [("rps".to_owned(), Some("5".to_owned()))].into(),
        create: true,
        ..Change::default()
    };
    store.set(&again, &change).await.unwrap();
    assert_eq!(store.names().await.unwrap(), [again]);
}

#[tokio::test]
async fn its_knobs_are_obeyed_and_their_time_to_live_is_reported_until_they_are_taken_over() {
    let server = Server::start();
    let (store, mut lion) = (store(&server).await, LimitLion::of(&server));
    lion.set(
        "mail",
        &[("rps", "7"), ("burst", "1"), ("window", "5")],
        Some(WEEK_S),
    );
    lion.set(
        "two words",
        &[("rps", "1"), ("burst", "1"), ("window", "1")],
        None,
    );

    let found = status(&store, "mail").await.unwrap();
    assert!(foreign::is_foreign(&found));
    assert_eq!(
        (found.effective_rps.number(), found.knobs.window),
        (7.0, 5.0)
    );
    assert!(
        found
            .expires_in_s
            .is_some_and(|seconds| seconds > 6.9 * 86_400.0),
        "{:?}",
        found.expires_in_s
    );
    let problem = &found.problems[0];
    assert_eq!(problem.field, "expires");
    assert!(
        problem
            .message
            .contains(" days; after that throttle mail does not exist"),
        "{}",
        problem.message
    );
    assert_eq!(store.search().await.unwrap(), ["mail", "two words"]);

    let (_, after) = foreign::adopt(&store, &found, "ann", "it is ours now")
        .await
        .unwrap();

    assert_eq!(
        (
            after.effective_rps.number(),
            after.knobs.by.as_str(),
            after.raw["window"].as_str()
        ),
        (7.0, "ann", "5")
    );
    let kept = status(&store, "mail").await.unwrap();
    assert_eq!(
        (
            kept.expires_in_s,
            kept.problems.len(),
            foreign::is_foreign(&kept)
        ),
        (None, 0, false)
    );
    let ttl: i64 = lion.0.ttl("throttle:mail:knobs").unwrap();
    assert_eq!(ttl, -1);
    let outdated = Status {
        raw: [("rps".to_owned(), "5".to_owned())].into(),
        ..kept
    };
    assert!(
        foreign::adopt(&store, &outdated, "ann", "")
            .await
            .unwrap_err()
            .to_string()
            .contains("rps is 7, not 5")
    );
}

#[tokio::test]
async fn what_is_let_expire_is_unknown_from_then_on_and_works_again_when_it_is_back() {
    let server = Server::start();
    let (store, mut lion) = (store(&server).await, LimitLion::of(&server));
    lion.set(
        "mail",
        &[("rps", "-1"), ("burst", "1"), ("window", "1")],
        Some(1),
    );

    eventually("the end of the knobs", SOON, || async {
        status(&store, "mail").await.is_none().then_some(())
    })
    .await;

    assert_eq!(
        limit(&store, "mail").await,
        Some(Limit::Unknown {
            name: Name::new("mail").unwrap()
        })
    );
    lion.set(
        "mail",
        &[("rps", "-1"), ("burst", "1"), ("window", "1")],
        None,
    );
    assert_eq!(limit(&store, "mail").await, None);
}

/// Calls LimitLion itself ten times per second, and returns its answers with their times.
const ASKS: &str = r#"
import sys, time, redis, limitlion
limitlion.throttle_configure(redis.Redis(unix_socket_path=sys.argv[1]))
began = time.monotonic()
for n in range(211):
    time.sleep(max(0, began + n / 10 - time.monotonic()))
    allowed = limitlion.throttle('theirs', rps=0.5, burst=1, window=5)[0]
    print(int((time.monotonic() - began) * 1000), int(allowed), flush=True)
"#;

/// Returns the most grants in any five seconds, with 10 ms of clock tolerance.
fn most_in_five_seconds(granted_ms: &[i64]) -> usize {
    let within = |from: &i64| {
        granted_ms
            .iter()
            .filter(|at| (*from..from + 4990).contains(*at))
            .count()
    };
    granted_ms.iter().map(within).max().unwrap_or(0)
}

#[tokio::test]
async fn a_lasting_burst_gets_three_every_five_seconds_from_it_and_from_us() {
    let Some(python) = installed("limitlion/bin/python") else {
        return skip("LimitLion is not installed; scripts/setup-counterparts.sh installs it");
    };
    let server = Server::start();
    let store = store(&server).await;
    let ours = Name::new("ours").unwrap();
    // Its 2.5 tokens in five seconds mean three grants. The guide's equivalent is a rolling window.
    let knobs = [("rps", "-1"), ("windows", "3/5")];
    let fields = knobs.map(|(knob, text)| (knob.to_owned(), Some(text.to_owned())));
    let change = Change {
        fields: fields.into(),
        create: true,
        by: "test".into(),
        ..Change::default()
    };
    store.set(&ours, &change).await.unwrap();
    let theirs = tokio::process::Command::new(python)
        .args(["-c", ASKS])
        .arg(server.socket())
        .kill_on_drop(true)
        .output();
    let asked = async {
        let began = tokio::time::Instant::now();
        let mut granted = Vec::new();
        for n in 0..=210 {
            // Real time: both implementations are asked ten times a second.
            tokio::time::sleep_until(began + Duration::from_millis(n * 100)).await;
            let lanes = vec![LaneRequest::default()];
            let ask = AcquireRequest {
                throttle: ours.clone(),
                lanes,
                holder: None,
            };
            if store.acquire(&ask).await.lanes[0].granted > 0 {
                granted.push(began.elapsed().as_millis() as i64);
            }
        }
        granted
    };

    let (theirs, ours) = tokio::join!(theirs, asked);

    let theirs = theirs.unwrap();
    let output = String::from_utf8_lossy(&theirs.stdout);
    let answers = output.lines().map(|line| line.split_once(' ').unwrap());
    let theirs: Vec<i64> = answers
        .filter(|(_, allowed)| *allowed == "1")
        .map(|(at, _)| at.parse().unwrap())
        .collect();
    println!("granted by LimitLion at {theirs:?} ms, by us at {ours:?} ms");
    // Its windows begin at multiples of five seconds, ours with the first request, so ours holds in
    // any five seconds.
    assert!(
        theirs.len().abs_diff(ours.len()) <= 3,
        "{theirs:?} and {ours:?}"
    );
    assert!((12..=15).contains(&ours.len()), "{ours:?}");
    assert!(most_in_five_seconds(&ours) <= 3, "{ours:?}");
}
