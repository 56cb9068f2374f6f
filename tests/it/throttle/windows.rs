//! Rolling windows: at most a number of tokens within any span.

use std::time::{Duration, Instant};

use flyball::throttle::rolling_window::OpenWindow;
use flyball::throttle::{Limit, RedisStore, Store};

use super::world::{Raw, World, ask, change, laws, name};
use crate::support::redis_server::Server;

laws! {
    the_fifty_first_of_a_minute_waits_until_the_first_is_a_minute_old,
    a_second_and_an_hour_are_kept_in_one_call_and_so_are_those_of_the_parent,
    a_window_that_is_used_up_is_told_from_a_rate_that_is,
    each_key_has_windows_of_its_own_and_a_lasting_burst_gets_three_every_five_seconds,
    a_limit_that_is_raised_frees_who_waits_and_nonsense_speeds_nothing_up,
    what_is_given_back_is_granted_again_and_what_was_spent_beyond_counts,
    no_more_is_given_back_than_was_granted,
    a_clock_that_steps_back_costs_one_span_at_most,
    the_grants_that_count_can_be_read,
    a_span_that_is_turned_keeps_the_grants_that_count,
}

async fn the_fifty_first_of_a_minute_waits_until_the_first_is_a_minute_old(world: World) {
    world.knobs("notify", &[("rps", "-1"), ("windows", "50/60")]);
    assert_eq!(world.granted("notify", 40).await, 40);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.granted("notify", 40).await, 10);
    world.pass(Duration::from_secs(40));

    let late = world.take("notify", 1).await;

    assert_eq!(
        (late.lanes[0].granted, late.lanes[0].wait),
        (0, Duration::from_secs(18))
    );
    assert_eq!(late.lanes[0].limit, Some(Limit::Throttle));
    assert!(
        !late.levels_decide,
        "nothing may be leased, which would be spent later"
    );
    world.pass(Duration::from_secs(18));
    assert_eq!(world.granted("notify", 100).await, 40);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.granted("notify", 100).await, 10);
}

async fn a_second_and_an_hour_are_kept_in_one_call_and_so_are_those_of_the_parent(world: World) {
    world.knobs("all", &[("rps", "-1"), ("windows", "28/3600")]);
    world.knobs(
        "mail",
        &[
            ("rps", "-1"),
            ("windows", "10/1 25/3600"),
            ("parent", "all"),
        ],
    );
    world.knobs("texts", &[("rps", "-1"), ("parent", "all")]);
    let mut granted = Vec::new();
    for _ in 0..4 {
        granted.push(world.granted("mail", 100).await);
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(granted, [10, 10, 5, 0]);
    let answer = world.take("texts", 100).await;
    assert_eq!(answer.lanes[0].granted, 3);
    assert_eq!(
        answer.lanes[0].limit,
        Some(Limit::Tier { name: name("all") })
    );
    assert_eq!(answer.lanes[0].wait, Duration::from_secs(3596));
}

async fn a_window_that_is_used_up_is_told_from_a_rate_that_is(world: World) {
    world.knobs("all", &[("rps", "10"), ("windows", "20/3600")]);
    world.knobs("mail", &[("rps", "-1"), ("parent", "all")]);
    for _ in 0..2 {
        let some = world.take("all", 100).await.lanes.remove(0);
        assert_eq!(
            (some.limit, some.by_windows),
            (Some(Limit::Throttle), false),
            "there is still room in the window"
        );
        world.pass(Duration::from_secs(5));
    }
    world.take("all", 100).await;
    world.pass(Duration::from_secs(5));

    let none = world.take("all", 1).await.lanes.remove(0);
    assert_eq!(
        (none.granted, none.limit, none.by_windows),
        (0, Some(Limit::Throttle), true)
    );
    let below = world.take("mail", 1).await.lanes.remove(0);
    assert_eq!(
        (below.limit, below.by_windows),
        (Some(Limit::Tier { name: name("all") }), true)
    );
}

async fn each_key_has_windows_of_its_own_and_a_lasting_burst_gets_three_every_five_seconds(
    world: World,
) {
    world.knobs(
        "gcal",
        &[
            ("rps", "-1"),
            ("key_windows", "3/5"),
            ("over_limit", "drop"),
        ],
    );
    let (mut ada, mut bob) = ([0; 4], [0; 4]);
    for tick in 0..2000 {
        let asked = world
            .store
            .acquire(&ask(
                "gcal",
                &[
                    ("ada", 1, 1.0),
                    ("bob", 2, 1.0),
                    ("", 1, 1.0),
                    ("ada", 1, 1.0),
                ],
            ))
            .await;
        let at = tick / 500;
        ada[at] += asked.lanes[0].granted + asked.lanes[3].granted;
        bob[at] += asked.lanes[1].granted;
        assert_eq!(asked.lanes[2].granted, 1, "who has no key has no limit");
        world.pass(Duration::from_millis(10));
    }
    assert_eq!((ada, bob), ([3; 4], [3; 4]));
    world.pass(Duration::from_millis(10));
    let over = world.store.acquire(&ask("gcal", &[("ada", 9, 1.0)])).await;
    assert_eq!(over.lanes[0].granted, 3);
    let over = world.store.acquire(&ask("gcal", &[("ada", 9, 1.0)])).await;
    assert_eq!(
        (&over.lanes[0].limit, over.lanes[0].wait),
        (&Some(Limit::Key), Duration::from_secs(5))
    );
}

async fn a_limit_that_is_raised_frees_who_waits_and_nonsense_speeds_nothing_up(world: World) {
    world.knobs(
        "t",
        &[("rps", "-1"), ("windows", "5/60"), ("safe_rps", "1")],
    );
    assert_eq!(world.granted("t", 9).await, 5);
    assert_eq!(world.granted("t", 9).await, 0);
    world.write("t", "windows", "8/60");
    assert_eq!(world.granted("t", 9).await, 3);
    world.write("t", "windows", "2/60");
    world.pass(Duration::from_secs(59));
    assert_eq!(world.granted("t", 9).await, 0);

    world.write("t", "windows", "many/60");
    let careful = world.take("t", 100).await;
    assert_eq!(careful.effective_rps.number(), 1.0, "it runs at safe_rps");
    assert_eq!(world.status("t").await.problems[0].field, "windows");
}

async fn no_more_is_given_back_than_was_granted(world: World) {
    world.knobs("t", &[("rps", "-1"), ("windows", "10/60")]);
    let taken = world.take("t", 4).await;
    assert_eq!(world.granted("t", 9).await, 6);
    world.refund("t", "", &taken.lanes[0], 9).await;
    assert_eq!(world.granted("t", 9).await, 4);
}

async fn a_span_that_is_turned_keeps_the_grants_that_count(world: World) {
    let turn = |windows: &str, key_windows: &str| {
        world.write("t", "windows", windows);
        world.write("t", "key_windows", key_windows);
    };
    let ada = async || {
        world
            .store
            .acquire(&ask("t", &[("ada", 9, 1.0)]))
            .await
            .lanes[0]
            .granted
    };
    world.knobs(
        "t",
        &[("rps", "-1"), ("windows", "5/60"), ("key_windows", "3/60")],
    );
    assert_eq!(ada().await, 3);
    assert_eq!(world.granted("t", 9).await, 2);
    world.pass(Duration::from_secs(10));

    turn("5/5", "3/60");
    assert_eq!(
        world.granted("t", 2).await,
        2,
        "none of before is within the span"
    );
    turn("3/30 100/60", "3/60");
    assert_eq!(world.granted("t", 9).await, 1);
    turn("3/3600 5/5", "4/45");
    assert_eq!(ada().await, 0, "the throttle has granted three lately");
    turn("100/3600", "4/45");
    assert_eq!(ada().await, 1);
}

async fn what_is_given_back_is_granted_again_and_what_was_spent_beyond_counts(world: World) {
    world.knobs(
        "t",
        &[("rps", "-1"), ("windows", "10/60"), ("key_windows", "6/60")],
    );
    let taken = world.take("t", 10).await;
    assert_eq!(taken.lanes[0].granted, 10);
    world.refund("t", "", &taken.lanes[0], 4).await;
    assert_eq!(world.granted("t", 9).await, 4);
    world.pass(Duration::from_secs(61));

    // Two tokens were taken for the key, and the real cost added five.
    let two = world.store.acquire(&ask("t", &[("ada", 1, 2.0)])).await;
    assert_eq!(two.lanes[0].granted, 1);
    world
        .store
        .settle_many(&name("t"), &[("ada", 5.0)])
        .await
        .unwrap();
    let spent = world.store.acquire(&ask("t", &[("ada", 1, 1.0)])).await;
    assert_eq!(
        (spent.lanes[0].granted, &spent.lanes[0].limit),
        (0, &Some(Limit::Key))
    );
    assert_eq!(
        world.granted("t", 9).await,
        3,
        "the throttle was charged as well"
    );
    world
        .store
        .settle_many(&name("t"), &[("ada", -5.0)])
        .await
        .unwrap();
    let back = world.store.acquire(&ask("t", &[("ada", 1, 1.0)])).await;
    assert_eq!(back.lanes[0].granted, 1);
}

async fn a_clock_that_steps_back_costs_one_span_at_most(world: World) {
    world.knobs(
        "t",
        &[("rps", "-1"), ("windows", "3/5"), ("key_windows", "2/5")],
    );
    assert_eq!(world.granted("t", 9).await, 3);
    world
        .now
        .fetch_sub(3_600_000_000, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(world.granted("t", 9).await, 0);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.granted("t", 9).await, 3);
}

/// The calendar example in real time, on the clock of a real Redis and with shorter windows: three
/// of each key at once, and three more every two seconds during the burst.
#[tokio::test]
async fn a_burst_of_eight_real_seconds_gets_three_every_two_seconds() {
    let server = Server::start();
    let store = RedisStore::connect(&server.url(), "")
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let knobs = [
        ("rps", "-1"),
        ("key_windows", "3/2"),
        ("over_limit", "drop"),
    ];
    crate::support::fixture::turn(&store, "gcal", &knobs).await;
    let mut granted_at = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        let answer = store.acquire(&ask("gcal", &[("ada", 1, 1.0)])).await;
        granted_at.extend((answer.lanes[0].granted > 0).then_some(answer.at_us));
        // Real time: the pace of the asks.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // A late request begins its window late, so the last of the four may be cut off; none holds too
    // many.
    assert!((10..=12).contains(&granted_at.len()), "{granted_at:?}");
    for (first, fourth) in granted_at.iter().zip(granted_at.iter().skip(3)) {
        assert!(
            fourth - first >= 2_000_000,
            "four within {} µs",
            fourth - first
        );
    }
}

/// A quota of a month outlives a week in which it refuses, and a pause.
#[tokio::test]
async fn a_bucket_lives_as_long_as_its_longest_window_also_where_nothing_is_granted() {
    let world = World::redis();
    let Raw::Redis { client, prefix, .. } = &world.raw else {
        unreachable!("this world is in Redis")
    };
    let mut connection = client.get_connection().unwrap();
    let mut days_left = || {
        let seconds: i64 = redis::cmd("TTL")
            .arg(format!("{prefix}throttle:t:bucket"))
            .query(&mut connection)
            .unwrap();
        seconds / 86_400
    };
    world.knobs("t", &[("rps", "-1"), ("windows", "5/2592000")]);
    assert_eq!(world.granted("t", 9).await, 5);
    assert!(days_left() > 29, "{}", days_left());

    world.pass(Duration::from_secs(2 * 3600));
    assert_eq!(world.granted("t", 9).await, 0);
    assert!(days_left() > 29, "after a refusal: {}", days_left());

    world.pass(Duration::from_secs(2 * 3600));
    let pause = change(&[("paused", "1")]);
    world.store.set(&name("t"), &pause).await.unwrap();
    assert!(days_left() > 29, "after a pause: {}", days_left());
}

async fn the_grants_that_count_can_be_read(world: World) {
    let read = async |key: &str| world.store.window_usage(&name("t"), key).await.unwrap();
    assert_eq!(read("ada").await, None);
    world.knobs(
        "t",
        &[
            ("rps", "-1"),
            ("windows", "10/60 90/3600"),
            ("key_windows", "6/60"),
        ],
    );
    for _ in 0..2 {
        let granted = world.store.acquire(&ask("t", &[("ada", 3, 1.0)])).await;
        assert_eq!(granted.lanes[0].granted, 3);
        world.pass(Duration::from_secs(20));
    }
    world
        .store
        .settle_many(&name("t"), &[("ada", 1.0)])
        .await
        .unwrap();

    let usage = read("ada").await.unwrap();

    let now = usage.at_us as f64;
    let of = |windows: &[OpenWindow]| {
        let of = |window: &OpenWindow| {
            (
                window.limit().to_string(),
                window.left(),
                window.frees_us(now),
                window.place_us(4.0, now),
            )
        };
        windows.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        of(&usage.throttle),
        [
            ("10/60".to_owned(), 3.0, 20e6, 20e6),
            ("90/3600".to_owned(), 83.0, 3560e6, 0.0)
        ]
    );
    // One more than the limit was spent.
    assert_eq!(of(&usage.key), [("6/60".to_owned(), 0.0, 20e6, 40e6)]);
    let others = read("bob").await.unwrap();
    assert_eq!(of(&others.key), [("6/60".to_owned(), 6.0, 0.0, 0.0)]);
    assert_eq!(of(&others.throttle), of(&usage.throttle));
    world.pass(Duration::from_secs(21));
    let later = read("ada").await.unwrap();
    assert_eq!((later.key[0].left(), later.throttle[0].left()), (2.0, 6.0));
}
