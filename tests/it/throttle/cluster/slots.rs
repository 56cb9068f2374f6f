//! Throttles work in any slot, and move with their slots.

use std::time::Duration;

use flyball::throttle::{AcquireRequest, Error, Holder, LaneRequest, Limit, Refund, Store};

use super::fixture::{
    BOUND, CALM, DEPTH, FLOW, Load, RPS, change, granted, lane, look, name, set, store, until,
};
use super::primaries::a_primary_is_killed;
use crate::support::redis_cluster::{PRIMARIES, RedisCluster};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttles_work_wherever_they_lie() {
    let cluster = RedisCluster::start("redis-server", false, CALM);
    let store = store(&cluster, Duration::from_secs(10));
    let mut names = Vec::new();
    for primary in 0..PRIMARIES {
        let throttle = cluster.name_at(primary, "plain");
        let knobs = [
            ("rps", "0.001"),
            ("burst", "1000"),
            ("window", "86400"),
            ("key_rps", "0.001"),
            ("concurrency", "9"),
            ("key_concurrency", "2"),
        ];
        set(&store, &throttle, &knobs).await;
        let mail = name(&throttle);

        // Keys whose braces must not affect the throttle's slot.
        let lanes: Vec<LaneRequest> = ["{x}", "}{", "a{b}c", ""].map(|key| lane(key, 1)).into();
        let holder = Some(Holder {
            id: "w".into(),
            ttl: Duration::from_secs(60),
            held: 0,
        });
        store.settle_many(&mail, &[("", -3.0)]).await.unwrap();
        let answer = store
            .acquire(&AcquireRequest {
                throttle: mail.clone(),
                lanes,
                holder: holder.clone(),
            })
            .await;
        assert_eq!(
            answer.lanes.iter().map(|lane| lane.granted).sum::<u32>(),
            4,
            "{answer:?}"
        );
        store
            .refund_many(
                &mail,
                &[Refund {
                    key: "{x}",
                    grant: &answer.lanes[0],
                    units: 1,
                    cost: 1.0,
                }],
            )
            .await
            .unwrap();
        store
            .hold(&mail, holder.as_ref().unwrap(), &[("{x}".to_owned(), 0)])
            .await
            .unwrap();
        store
            .pause_key(&mail, "{x}", Duration::from_secs(60), "test")
            .await
            .unwrap();
        let paused = store
            .acquire(&AcquireRequest {
                throttle: mail.clone(),
                lanes: vec![lane("{x}", 1)],
                holder: None,
            })
            .await;
        assert!(
            matches!(paused.lanes[0].limit, Some(Limit::Paused { .. })),
            "{paused:?}"
        );
        assert!(store.resume_key(&mail, "{x}").await.unwrap());
        let peeked = store
            .peek(&AcquireRequest {
                throttle: mail.clone(),
                lanes: vec![lane("{x}", 1)],
                holder: None,
            })
            .await;
        assert_eq!(
            peeked.lanes[0].granted, 1,
            "what was given back: {peeked:?}"
        );
        assert_eq!(store.status(&mail).await.unwrap().unwrap().used, 0.0);

        let mut keys: Vec<String> =
            cluster.ask(primary, &["KEYS", &format!("*throttle:{throttle}:*")]);
        keys.sort();
        let tagged = |part: &str| format!("{{throttle:{throttle}:knobs}}:{part}");
        assert!(
            keys.contains(&format!("throttle:{throttle}:knobs")),
            "the knobs are where people look: {keys:?}"
        );
        assert!(
            keys.contains(&tagged("bucket")) && keys.contains(&tagged("lane:{x}")),
            "{keys:?}"
        );
        names.push(mail);
    }

    // A tree under one hash tag, and a hash written by hand.
    set(&store, "{notify}", &[("rps", "0.001"), ("burst", "0")]).await;
    set(
        &store,
        "{notify}:sms",
        &[("rps", "-1"), ("parent", "{notify}")],
    )
    .await;
    let sms = store
        .acquire(&AcquireRequest {
            throttle: name("{notify}:sms"),
            lanes: vec![lane("k", 5)],
            holder: None,
        })
        .await;
    assert_eq!(
        (sms.lanes[0].granted, &sms.lanes[0].limit),
        (
            1,
            &Some(Limit::Tier {
                name: name("{notify}")
            })
        )
    );
    let by_hand = cluster.name_at(1, "hand");
    cluster.ask::<()>(
        1,
        &["HSET", &format!("throttle:{by_hand}:knobs"), "rps", "3"],
    );
    let fresh = self::store(&cluster, Duration::from_secs(10));
    names.extend(["{notify}", "{notify}:sms", by_hand.as_str()].map(name));
    names.sort();
    until("all names are found", async || {
        fresh.names().await.is_ok_and(|found| found == names)
    })
    .await;

    // Every primary gets the script again.
    (0..PRIMARIES).for_each(|primary| cluster.ask(primary, &["SCRIPT", "FLUSH"]));
    for throttle in &names {
        assert!(
            store
                .peek(&AcquireRequest {
                    throttle: throttle.clone(),
                    lanes: vec![lane("", 1)],
                    holder: None
                })
                .await
                .at_us
                > 0
        );
    }
    for throttle in &names {
        assert!(store.delete(throttle).await.unwrap());
        assert!(store.status(throttle).await.unwrap().is_none());
    }
    assert_eq!(store.names().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_over_slots_is_refused_and_one_that_somebody_wrote_lets_nothing_flow() {
    let cluster = RedisCluster::start("redis-server", false, CALM);
    let store = store(&cluster, Duration::from_secs(10));
    set(&store, "tier", &[("rps", "100")]).await;
    set(&store, "mail", &[("rps", "100"), ("on_store_loss", "open")]).await;

    let refused = store
        .set(&name("mail"), &change(&[("parent", "tier")]))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Error::Invalid(problems) if problems[0].field == "parent"),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .contains("for instance {notify} and {notify}:sms"),
        "{refused}"
    );
    let refused = store
        .set(&name("a}b"), &change(&[("rps", "1")]))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Error::Invalid(problems) if problems[0].field == "name"),
        "{refused}"
    );
    assert_eq!(
        store
            .status(&name("mail"))
            .await
            .unwrap()
            .unwrap()
            .knobs
            .parent,
        None,
        "nothing was changed"
    );

    let ask = AcquireRequest {
        throttle: name("mail"),
        lanes: vec![lane("", 1)],
        holder: None,
    };
    until("a token is there", async || {
        store.acquire(&ask).await.lanes[0].granted == 1
    })
    .await;
    let home = cluster.home("throttle:mail:knobs");
    cluster.ask::<()>(home, &["HSET", "throttle:mail:knobs", "parent", "tier"]);
    let answer = store.acquire(&ask).await;
    let status = store.status(&name("mail")).await.unwrap().unwrap();
    assert_eq!(
        (answer.lanes[0].granted, &answer.lanes[0].limit),
        (0, &Some(Limit::Unknown { name: name("tier") }))
    );
    assert!(answer.at_us > 0, "the store has answered");
    assert!(
        status.has_missing_parent() && status.problems[0].message.contains("the same one"),
        "{:?}",
        status.problems
    );
    cluster.ask::<()>(home, &["HDEL", "throttle:mail:knobs", "parent"]);
    until("it flows again", async || {
        store.acquire(&ask).await.lanes[0].granted == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_takes_its_throttles_along() {
    a_slot_moves("redis-server").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey_is_the_same() {
    let found = std::process::Command::new("valkey-server")
        .arg("--version")
        .output();
    if found.is_err() {
        return crate::support::skip("valkey-server is not installed");
    }
    a_slot_moves("valkey-server").await;
    a_primary_is_killed("valkey-server").await;
}

async fn a_slot_moves(program: &str) {
    let cluster = RedisCluster::start(program, false, CALM);
    let stores: Vec<_> = (0..3).map(|_| store(&cluster, BOUND)).collect();
    // The other half is on the server that gives up the slot.
    let (moving, staying) = (cluster.name_at(0, "moving"), cluster.name_at(0, "staying"));
    for throttle in [&moving, &staying] {
        set(&stores[0], throttle, &FLOW).await;
    }
    let mut load = Load::new();
    let (moved, stayed) = (load.on(&moving, &stores), load.on(&staying, &stores));
    let begun = load.now();
    until("it flows", async || {
        granted(&moved, begun, load.now(), true) > 100
    })
    .await;

    let slot = cluster
        .slot(&format!("throttle:{moving}:knobs"))
        .to_string();
    let [from, to]: [String; 2] = [
        cluster.ask(0, &["CLUSTER", "MYID"]),
        cluster.ask(2, &["CLUSTER", "MYID"]),
    ];
    cluster.ask::<()>(2, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]);
    cluster.ask::<()>(0, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    let used_before = loop {
        let keys: Vec<String> = cluster.ask(0, &["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
        let Some(key) = keys.first() else {
            break look(&stores[1], &moving).await.used;
        };
        let port = cluster.port(2).to_string();
        cluster.ask::<()>(0, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        // Real time: clients ask while half is here and half there, and finally all here although
        // the slot is still assigned to the other server.
        tokio::time::sleep(Duration::from_millis(150)).await;
    };
    assert_eq!(
        look(&stores[2], &moving).await.knobs.rps.number(),
        RPS,
        "the knobs are found where they went"
    );
    for primary in [2, 0, 1] {
        cluster.ask::<()>(primary, &["CLUSTER", "SETSLOT", &slot, "NODE", &to]);
    }
    let settled = load.now();
    until("it flows again", async || {
        granted(&moved, settled, load.now(), true) > 100
    })
    .await;
    let used = look(&stores[0], &moving).await.used;
    let ended = load.now();
    let control = load.end().await;

    let errors: String = cluster.ask(0, &["INFO", "errorstats"]);
    for redirection in ["errorstat_ASK:", "errorstat_MOVED:", "errorstat_TRYAGAIN:"] {
        assert!(
            errors.contains(redirection),
            "{redirection} really happened: {errors}"
        );
    }
    assert!(
        used > used_before && used_before > 100.0,
        "the bucket moved along: {used_before}, then {used}"
    );
    for timeline in [&moved, &stayed] {
        let beyond = timeline.beyond(RPS, begun, ended);
        assert!(beyond <= DEPTH + 2.0, "{beyond} beyond the line");
        assert!(
            timeline.longest() <= control.allows(BOUND),
            "{:?}",
            timeline.longest()
        );
    }
    let calls = stayed.entries();
    let lost = calls.iter().filter(|entry| !entry.is_stored).count();
    assert!(
        4 * lost <= calls.len(),
        "other slots of the server do not notice: {lost} of {} calls without it",
        calls.len()
    );
}
