//! Primaries that die or hang under load.

use flyball::jobs::NewJob;

use super::fixture::{
    BOUND, CALM, DEPTH, FLOW, HASTY, Load, RPS, granted, look, set, store, until,
};
use crate::support::process::ProcessFixture;
use crate::support::redis_cluster::{PATIENCE, RedisCluster, wait};
use crate::support::{database, stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_takes_along_its_own_throttles_alone_until_its_replica_stands_in()
{
    a_primary_is_killed("redis-server").await;
}

pub async fn a_primary_is_killed(program: &str) {
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
    // All earlier writes have reached the replica, so only those at the moment of the kill are
    // lost.
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
        (status.knobs.rps.number(), status.problems.as_slice()),
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
    // The last grants of the dead primary that were not replicated are granted again: at most one
    // bucket.
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
    let fixture = ProcessFixture::on(
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
        fixture.knobs_file(throttle, "[knobs]\nmode = \"manual\"\nrps = 200\n");
    }
    let enqueue = async |throttle: &str, path: &str| {
        let job = |n: usize| NewJob {
            throttle: throttle.to_owned(),
            ..fixture.call(&format!("{throttle}-{path}-{n}"))
        };
        fixture.enqueue_as(20, job).await
    };
    let _process = fixture.serve();
    for throttle in [&dying, &other] {
        fixture
            .until_completed(&enqueue(throttle, "before").await, PATIENCE)
            .await;
    }

    cluster.kill(0);
    fixture
        .until_completed(&enqueue(&other, "meanwhile").await, PATIENCE)
        .await;
    fixture
        .until_completed(&enqueue(&dying, "after").await, PATIENCE)
        .await;

    until("the throttles are listed", async || {
        let list = fixture
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
    assert_eq!(fixture.target.counts().len(), 80, "each job ran");
}
