//! Throttles on a Redis Cluster of a test's own, with slots that move and primaries that die and hang under load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use flyball::throttle::{
    AcquireRequest, Change, Error, Holder, LaneRequest, Limit, Name, RedisStore, Refund, Status,
    Store,
};
use tokio::task::JoinSet;

use crate::support::process::House;
use crate::support::redis_cluster::{PATIENCE, PRIMARIES, RedisCluster, wait};
use crate::support::timeline::{Control, Habit, Timeline};
use crate::support::{database, stack};

/// Longer than any hitch of the machine: nobody is taken for dead who is not.
const CALM: Duration = Duration::from_secs(30);

/// Short, for a fail-over within seconds.
const HASTY: Duration = Duration::from_secs(2);

/// What the store waits for an answer here.
const BOUND: Duration = Duration::from_millis(250);

/// A throttle of 200 per second that holds at most 50.
const FLOW: [(&str, &str); 4] = [
    ("rps", "200"),
    ("burst", "1"),
    ("window", "0.25"),
    ("on_store_loss", "closed"),
];
const RPS: f64 = 200.0;
const DEPTH: f64 = 50.0;

const HABIT: Habit = Habit {
    want: 5,
    rest: Duration::from_millis(4),
};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn change(fields: &[(&str, &str)]) -> Change {
    let fields: BTreeMap<_, _> = fields
        .iter()
        .map(|(field, text)| ((*field).to_owned(), Some((*text).to_owned())))
        .collect();
    Change {
        fields,
        by: "test".into(),
        why: "test".into(),
        create: true,
        ..Change::default()
    }
}

fn lane(key: &str, want: u32) -> LaneRequest {
    LaneRequest {
        key: key.into(),
        want,
        ..LaneRequest::default()
    }
}

fn store(cluster: &RedisCluster, bound: Duration) -> Arc<RedisStore> {
    Arc::new(
        RedisStore::connect(&cluster.url(), "")
            .unwrap()
            .with_bound(bound),
    )
}

/// Sleeps and asks until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn set(store: &RedisStore, throttle: &str, fields: &[(&str, &str)]) {
    let change = change(fields);
    until("the knobs are set", async || {
        store.set(&name(throttle), &change).await.is_ok()
    })
    .await;
}

/// The throttle as an operator sees it; a server that is slow for a moment is asked again.
async fn look(store: &RedisStore, throttle: &str) -> Status {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.status(&name(throttle)).await {
            Ok(status) => return status.expect("the knobs are there"),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Clients of one throttle and what they got.
struct Load {
    timeline: Timeline,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    control: Arc<Control>,
}

impl Load {
    fn new() -> Self {
        let (stop, control) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Control::default()),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(control.clone().watch(stop.clone()));
        Self {
            timeline: Timeline::new(Instant::now()),
            stop,
            tasks,
            control,
        }
    }

    fn on(&mut self, throttle: &str, stores: &[Arc<RedisStore>]) -> Timeline {
        let timeline = self.timeline.beside();
        for (client, store) in stores.iter().enumerate() {
            self.tasks.spawn(timeline.clone().call(
                client,
                store.clone(),
                name(throttle),
                HABIT,
                self.stop.clone(),
            ));
        }
        timeline
    }

    fn now(&self) -> Duration {
        self.timeline.now()
    }

    async fn end(mut self) -> Arc<Control> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a client ended by itself");
        }
        self.control
    }
}

fn granted(timeline: &Timeline, from: Duration, to: Duration, is_stored: bool) -> u32 {
    timeline
        .within(from, to)
        .iter()
        .filter(|entry| entry.is_stored == is_stored)
        .map(|entry| entry.granted)
        .sum()
}

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

        // Rate-limit keys whose braces are none of the throttle's business.
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

    // A tree under one tag, and a hash that a person wrote.
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

    // Every primary is told the text again.
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
async fn a_primary_that_is_killed_takes_along_its_own_throttles_alone_until_its_replica_stands_in()
{
    a_primary_is_killed("redis-server").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey_is_the_same() {
    let found = std::process::Command::new("valkey-server")
        .arg("--version")
        .output();
    if found.is_err() {
        println!("skipped: there is no valkey-server on this machine");
        return;
    }
    a_slot_moves("valkey-server").await;
    a_primary_is_killed("valkey-server").await;
}

async fn a_slot_moves(program: &str) {
    let cluster = RedisCluster::start(program, false, CALM);
    let stores: Vec<_> = (0..3).map(|_| store(&cluster, BOUND)).collect();
    // The other lies at the server that the slot is taken from.
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
        // Half here and half there, and at last all there though the slot is still said to be here.
        tokio::time::sleep(Duration::from_millis(150)).await;
    };
    assert_eq!(
        look(&stores[2], &moving).await.knobs.rps,
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

async fn a_primary_is_killed(program: &str) {
    let mut cluster = RedisCluster::start(program, true, HASTY);
    let stores: Vec<_> = (0..3).map(|_| store(&cluster, BOUND)).collect();
    let (dying, open, other) = (
        cluster.name_at(0, "dying"),
        cluster.name_at(0, "open"),
        cluster.name_at(1, "other"),
    );
    for throttle in [&dying, &open, &other] {
        set(&stores[0], throttle, &FLOW).await;
    }
    set(&stores[0], &open, &[("on_store_loss", "open")]).await;
    let mut load = Load::new();
    let (died, opened, flowed) = (
        load.on(&dying, &stores),
        load.on(&open, &stores[..1]),
        load.on(&other, &stores[1..2]),
    );
    let begun = load.now();
    until("all flow", async || {
        [&died, &opened, &flowed]
            .iter()
            .all(|timeline| granted(timeline, begun, load.now(), true) > 100)
    })
    .await;
    // Whatever came before has reached the replica: what is lost is lost in the moment of the kill.
    wait("the replica", || {
        cluster.ask::<i64>(0, &["WAIT", "1", "1000"]) == 1
    });

    let before = load.now();
    cluster.kill(0);
    let killed = load.now();
    until("the replica stands in", async || {
        granted(&died, killed, load.now(), true) > 0
    })
    .await;
    let back = load.now();
    until("all flow again", async || {
        [&died, &opened, &flowed]
            .iter()
            .all(|timeline| granted(timeline, back, load.now(), true) > 100)
    })
    .await;
    let status = look(&stores[1], &dying).await;
    let ended = load.now();
    let control = load.end().await;

    assert_eq!(
        (status.knobs.rps, status.problems.as_slice()),
        (RPS, [].as_slice())
    );
    for (timeline, what) in [
        (&died, "before and after"),
        (&opened, "open"),
        (&flowed, "other"),
    ] {
        for (from, to) in [(begun, before), (back, ended)] {
            let beyond = timeline.beyond(RPS, from, to);
            assert!(beyond <= DEPTH + 2.0, "{what}: {beyond} beyond the line");
        }
        assert!(
            timeline.longest() <= control.allows(BOUND),
            "{what}: {:?}",
            timeline.longest()
        );
    }
    // What the dead primary granted last and did not pass on is granted again: at most what a bucket holds.
    let through = died.beyond(RPS, begun, ended);
    assert!(
        through <= 2.0 * (DEPTH + 2.0),
        "{through} beyond the line through the fail-over"
    );
    assert!(
        flowed.beyond(RPS, begun, ended) <= DEPTH + 2.0,
        "the others lose nothing"
    );
    assert_eq!(granted(&died, killed, back, false), 0, "closed");
    assert!(granted(&opened, killed, back, false) > 0, "open");
    let meanwhile = granted(&flowed, killed, back, true);
    let outage = (back - killed).as_secs_f64();
    assert!(
        f64::from(meanwhile) > 0.2 * RPS * outage,
        "{meanwhile} by another primary in {outage} s"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_costs_each_call_the_bound_once_and_others_nothing() {
    let cluster = RedisCluster::start("redis-server", false, CALM);
    let stores: Vec<_> = (0..2).map(|_| store(&cluster, BOUND)).collect();
    let (hanging, other) = (cluster.name_at(2, "hanging"), cluster.name_at(1, "other"));
    for throttle in [&hanging, &other] {
        set(&stores[0], throttle, &FLOW).await;
    }
    let mut load = Load::new();
    let (hung, flowed) = (load.on(&hanging, &stores), load.on(&other, &stores));
    let begun = load.now();
    until("both flow", async || {
        [&hung, &flowed]
            .iter()
            .all(|timeline| granted(timeline, begun, load.now(), true) > 50)
    })
    .await;

    cluster.freeze(2);
    let frozen = load.now();
    until("the other has flowed on", async || {
        granted(&flowed, frozen, load.now(), true) > 200
    })
    .await;
    let thawed = load.now();
    cluster.thaw(2);
    until("both flow again", async || {
        granted(&hung, thawed, load.now(), true) > 100
    })
    .await;
    let ended = load.now();
    let control = load.end().await;

    let waited = hung
        .within(frozen, thawed)
        .iter()
        .filter(|entry| entry.end - entry.begin >= BOUND)
        .count();
    assert!(
        waited <= stores.len() * (2 + control.stalls()),
        "{waited} calls waited"
    );
    for timeline in [&hung, &flowed] {
        assert!(
            timeline.longest() <= control.allows(BOUND),
            "{:?}",
            timeline.longest()
        );
        let beyond = timeline.beyond(RPS, begun, ended);
        assert!(beyond <= DEPTH + 2.0, "{beyond} beyond the line");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_on_a_cluster_through_the_death_of_a_primary() {
    let mut cluster = RedisCluster::start("redis-server", true, HASTY);
    let (database, stack) = (database().await, stack().await);
    let url = database.url().to_owned();
    let house = House::on(
        &url,
        &cluster.url(),
        &stack.prometheus_url,
        "",
        "rps = 200",
        Some(database),
    )
    .await;
    let (dying, other) = (cluster.name_at(0, "dying"), cluster.name_at(1, "other"));
    for throttle in [&dying, &other] {
        house.knobs_file(throttle, "[knobs]\nmode = \"manual\"\nrps = 200\n");
    }
    let enqueue = async |throttle: &str, path: &str| {
        let job = |n: usize| NewJob {
            throttle: throttle.to_owned(),
            ..house.call(&format!("{throttle}-{path}-{n}"))
        };
        house.enqueue_as(20, job).await
    };
    let _process = house.serve();
    for throttle in [&dying, &other] {
        house
            .until_completed(&enqueue(throttle, "before").await, PATIENCE)
            .await;
    }

    cluster.kill(0);
    house
        .until_completed(&enqueue(&other, "meanwhile").await, PATIENCE)
        .await;
    house
        .until_completed(&enqueue(&dying, "after").await, PATIENCE)
        .await;

    until("the throttles are listed", async || {
        let list = house
            .command()
            .args(["throttle", "list", "--json"])
            .output()
            .unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        [&dying, &other]
            .iter()
            .all(|throttle| list.contains(throttle.as_str()))
    })
    .await;
    assert_eq!(house.target.counts().len(), 80, "each job ran");
}
