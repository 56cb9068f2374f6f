//! The properties of concurrency limits, each in memory and in Redis, and those of Redis alone.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Holder, LaneRequest, Limit, RedisStore, Store,
};

use crate::support::eventually;
use crate::support::redis_server::Server;
use crate::throttle::{World, ask, fields, laws, name};

const TTL: Duration = Duration::from_secs(30);

fn holder(id: &str, held: u32) -> Holder {
    Holder {
        id: id.to_owned(),
        ttl: TTL,
        held,
    }
}

/// A request of `id`, which runs `held` jobs, for lanes of (key, want, held by the key).
fn ask_of(id: &str, held: u32, throttle: &str, lanes: &[(&str, u32, u32)]) -> AcquireRequest {
    let lane = |(key, want, held): &(&str, u32, u32)| LaneRequest {
        key: (*key).to_owned(),
        want: *want,
        held: *held,
        cost: 1.0,
    };
    AcquireRequest {
        throttle: name(throttle),
        lanes: lanes.iter().map(lane).collect(),
        holder: Some(holder(id, held)),
    }
}

fn granted(answer: &AcquireResponse) -> Vec<u32> {
    answer.lanes.iter().map(|lane| lane.granted).collect()
}

impl World {
    /// Returns the grant of `id`, which runs `held` jobs and wants `want` more without a key.
    async fn more(&self, id: &str, held: u32, throttle: &str, want: u32) -> u32 {
        granted(
            &self
                .store
                .acquire(&ask_of(id, held, throttle, &[("", want, 0)]))
                .await,
        )[0]
    }

    async fn hold(&self, id: &str, held: u32, throttle: &str, keys: &[(&str, u32)]) {
        let keys: Vec<_> = keys
            .iter()
            .map(|(key, held)| ((*key).to_owned(), *held))
            .collect();
        self.store
            .hold(&name(throttle), &holder(id, held), &keys)
            .await
            .unwrap();
    }
}

laws! {
    as_many_run_as_may_over_all_holders,
    what_a_dead_holder_held_is_free_when_its_word_has_lapsed,
    a_word_is_renewed_and_lowered_by_the_next,
    an_answer_that_was_lost_is_made_good_by_the_next_ask,
    a_limit_turned_down_kills_nothing_and_begins_nothing,
    zero_lets_none_run_and_nonsense_one,
    a_key_has_a_limit_of_its_own_below_that_of_the_throttle,
    a_tier_limits_the_throttles_below_it_together,
    whoever_asks_for_tokens_alone_is_not_limited,
    the_longer_wait_is_reported,
    a_clock_that_steps_back_does_not_keep_the_dead_alive,
    peeking_says_no_word,
}

async fn as_many_run_as_may_over_all_holders(world: World) {
    world.knobs("a", &[("rps", "-1"), ("concurrency", "5")]);

    let first = world
        .store
        .acquire(&ask_of("u", 0, "a", &[("x", 2, 0), ("y", 1, 0)]))
        .await;
    let second = world
        .store
        .acquire(&ask_of(
            "v",
            0,
            "a",
            &[("x", 1, 0), ("y", 3, 0), ("z", 1, 0)],
        ))
        .await;

    assert_eq!(
        (granted(&first), granted(&second)),
        (vec![2, 1], vec![1, 1, 0])
    );
    let crowded = Some(Limit::Concurrency {
        name: name("a"),
        key: false,
    });
    assert_eq!(
        (&second.lanes[1].limit, &second.lanes[2].limit),
        (&crowded, &crowded)
    );
    assert_eq!(second.lanes[2].wait, Duration::from_millis(50));
    assert!(first.limits_concurrency);
    assert_eq!(world.more("u", 3, "a", 9).await, 0);
    assert_eq!(
        world.more("u", 1, "a", 9).await,
        2,
        "two of its three have ended"
    );
}

async fn what_a_dead_holder_held_is_free_when_its_word_has_lapsed(world: World) {
    world.knobs(
        "a",
        &[
            ("rps", "-1"),
            ("concurrency", "5"),
            ("key_concurrency", "4"),
        ],
    );
    world
        .store
        .acquire(&ask_of("dead", 0, "a", &[("k", 4, 0)]))
        .await;
    world.pass(TTL - Duration::from_millis(1));
    let before = world
        .store
        .acquire(&ask_of("v", 0, "a", &[("k", 9, 0), ("l", 9, 0)]))
        .await;
    world.pass(Duration::from_millis(1));
    let after = world
        .store
        .acquire(&ask_of("v", 1, "a", &[("k", 9, 0), ("l", 9, 1)]))
        .await;

    assert_eq!(
        (granted(&before), granted(&after)),
        (vec![0, 1], vec![4, 0])
    );
}

async fn a_word_is_renewed_and_lowered_by_the_next(world: World) {
    world.knobs(
        "a",
        &[
            ("rps", "-1"),
            ("concurrency", "5"),
            ("key_concurrency", "4"),
        ],
    );
    world
        .store
        .acquire(&ask_of("u", 0, "a", &[("k", 4, 0)]))
        .await;
    for _ in 0..3 {
        world.pass(TTL - Duration::from_secs(1));
        world.hold("u", 4, "a", &[("k", 4)]).await;
    }
    assert_eq!(
        world.more("v", 0, "a", 9).await,
        1,
        "three times its time to live later it still holds four"
    );
    assert_eq!(
        granted(
            &world
                .store
                .acquire(&ask_of("v", 0, "a", &[("k", 9, 0)]))
                .await
        ),
        [0]
    );

    world.hold("u", 1, "a", &[("k", 0)]).await;

    assert_eq!(
        granted(
            &world
                .store
                .acquire(&ask_of("v", 0, "a", &[("k", 9, 0)]))
                .await
        ),
        [4]
    );
}

async fn an_answer_that_was_lost_is_made_good_by_the_next_ask(world: World) {
    world.knobs("a", &[("rps", "-1"), ("concurrency", "5")]);
    world.more("u", 0, "a", 4).await;

    assert_eq!(
        world.more("u", 0, "a", 9).await,
        5,
        "it never heard of the four"
    );
}

async fn a_limit_turned_down_kills_nothing_and_begins_nothing(world: World) {
    world.knobs("a", &[("rps", "-1")]);
    let free = world
        .store
        .acquire(&ask_of("u", 0, "a", &[("", 6, 0)]))
        .await;
    assert_eq!((granted(&free), free.limits_concurrency), (vec![6], false));
    world.hold("u", 6, "a", &[]).await;
    world.write("a", "concurrency", "4");
    world.hold("u", 6, "a", &[]).await;
    assert_eq!(world.more("v", 0, "a", 9).await, 0);
    world.hold("u", 4, "a", &[]).await;
    assert_eq!(world.more("v", 0, "a", 9).await, 0, "as many run as may");
    world.hold("u", 3, "a", &[]).await;
    assert_eq!(world.more("v", 0, "a", 9).await, 1);

    world.write("a", "concurrency", "9");
    assert_eq!(
        world.more("v", 1, "a", 9).await,
        5,
        "turned up, it counts at once"
    );
    world.remove("a", "concurrency");
    assert_eq!(world.more("v", 6, "a", 900).await, 900);
}

async fn zero_lets_none_run_and_nonsense_one(world: World) {
    for (text, all) in [("0", 0), ("ten", 1), ("2.5", 1), ("-7", 1), ("-1", 9)] {
        world.knobs("a", &[("rps", "-1"), ("concurrency", text)]);
        assert_eq!(world.more("u", 0, "a", 9).await, all, "{text}");
    }
}

async fn a_key_has_a_limit_of_its_own_below_that_of_the_throttle(world: World) {
    world.knobs(
        "a",
        &[
            ("rps", "-1"),
            ("concurrency", "6"),
            ("key_concurrency", "2"),
            ("key_rps", "100"),
        ],
    );

    let first = world
        .store
        .acquire(&ask_of(
            "u",
            0,
            "a",
            &[("k", 1, 0), ("l", 9, 0), ("", 1, 0)],
        ))
        .await;
    let second = world
        .store
        .acquire(&ask_of(
            "v",
            0,
            "a",
            &[("k", 9, 0), ("l", 9, 0), ("m", 9, 0), ("", 9, 0)],
        ))
        .await;

    assert_eq!(
        (granted(&first), granted(&second)),
        (vec![1, 2, 1], vec![1, 0, 1, 0])
    );
    let limit = |key| {
        Some(Limit::Concurrency {
            name: name("a"),
            key,
        })
    };
    assert_eq!(
        second
            .lanes
            .iter()
            .map(|lane| lane.limit.clone())
            .collect::<Vec<_>>(),
        [limit(true), limit(true), limit(false), limit(false)]
    );
    let twice = world
        .store
        .acquire(&ask_of("w", 0, "a", &[("k", 1, 0), ("k", 1, 0)]))
        .await;
    assert_eq!(
        granted(&twice),
        [0, 0],
        "one key named twice is still one key"
    );
}

async fn a_tier_limits_the_throttles_below_it_together(world: World) {
    world.knobs("root", &[("rps", "-1"), ("concurrency", "3")]);
    world.knobs(
        "a",
        &[("rps", "-1"), ("parent", "root"), ("concurrency", "2")],
    );
    world.knobs("b", &[("rps", "-1"), ("parent", "root")]);

    assert_eq!(world.more("u", 0, "a", 9).await, 2);
    let below = world
        .store
        .acquire(&ask_of("u", 0, "b", &[("", 9, 0)]))
        .await;

    assert_eq!(
        granted(&below),
        [1],
        "one holder counts for each throttle that it runs jobs of"
    );
    assert_eq!(
        below.lanes[0].limit,
        Some(Limit::Concurrency {
            name: name("root"),
            key: false
        })
    );
    assert_eq!(world.more("v", 0, "root", 9).await, 0);
    world.hold("u", 0, "a", &[]).await;
    assert_eq!(world.more("v", 0, "root", 9).await, 2);
}

async fn whoever_asks_for_tokens_alone_is_not_limited(world: World) {
    world.knobs(
        "a",
        &[
            ("rps", "-1"),
            ("concurrency", "0"),
            ("key_concurrency", "0"),
        ],
    );

    assert_eq!(
        granted(&world.store.acquire(&ask("a", &[("k", 7, 1.0)])).await),
        [7]
    );
}

async fn the_longer_wait_is_reported(world: World) {
    world.knobs("a", &[("rps", "1"), ("concurrency", "2")]);
    world.knobs("b", &[("rps", "1000"), ("concurrency", "2")]);
    for throttle in ["a", "b"] {
        world.pass(Duration::from_secs(10));
        world.more("u", 0, throttle, 1).await;
        world.pass(Duration::from_secs(10));
    }
    let limit = |throttle| {
        let ask = ask_of("u", 1, throttle, &[("", 9, 0)]);
        let store = world.store.clone();
        async move { store.acquire(&ask).await.lanes[0].limit.clone() }
    };

    assert_eq!(
        limit("b").await,
        Some(Limit::Concurrency {
            name: name("b"),
            key: false
        })
    );
    world.more("v", 0, "a", 9).await;
    assert_eq!(limit("a").await, Some(Limit::Throttle));
}

async fn a_clock_that_steps_back_does_not_keep_the_dead_alive(world: World) {
    world.knobs("a", &[("rps", "-1"), ("concurrency", "5")]);
    world.more("dead", 0, "a", 5).await;
    world.now.fetch_sub(2 * 3_600_000_000, Ordering::SeqCst);

    assert_eq!(world.more("v", 0, "a", 9).await, 5);
}

async fn peeking_says_no_word(world: World) {
    world.knobs(
        "a",
        &[
            ("rps", "-1"),
            ("concurrency", "5"),
            ("key_concurrency", "3"),
        ],
    );
    let one = ask_of("u", 0, "a", &[("k", 9, 0)]);

    assert_eq!(granted(&world.store.peek(&one).await), [3]);
    assert_eq!(
        granted(
            &world
                .store
                .acquire(&ask_of("v", 0, "a", &[("k", 9, 0)]))
                .await
        ),
        [3]
    );
    assert_eq!(granted(&world.store.peek(&one).await), [0]);
}

// === Redis alone ===

async fn two_processes(server: &Server, knobs: &[(&str, &str)]) -> [RedisStore; 2] {
    let connect = || {
        RedisStore::connect(&server.url(), "")
            .unwrap()
            .with_bound(Duration::from_secs(5))
    };
    let stores = [connect(), connect()];
    let change = Change {
        fields: fields(knobs),
        create: true,
        ..Change::default()
    };
    stores[0].set(&name("a"), &change).await.unwrap();
    stores
}

#[tokio::test]
async fn a_process_that_dies_frees_what_it_held_within_its_time_to_live() {
    let server = Server::start();
    let [dying, living] = two_processes(
        &server,
        &[
            ("rps", "-1"),
            ("concurrency", "3"),
            ("key_concurrency", "2"),
        ],
    )
    .await;
    let ttl = Duration::from_millis(700);
    let asks = |id: &str, held| {
        let mut ask = ask_of(id, held, "a", &[("k", 9, held)]);
        ask.holder = Some(Holder {
            ttl,
            ..ask.holder.unwrap()
        });
        ask
    };
    let begin = Instant::now();
    assert_eq!(granted(&dying.acquire(&asks("dying", 0)).await), [2]);
    assert_eq!(granted(&living.acquire(&asks("living", 0)).await), [0]);
    drop(dying);

    let last = eventually(
        "what the dead held is free",
        Duration::from_secs(5),
        async || {
            let answer = living.acquire(&asks("living", 0)).await;
            (answer.lanes[0].granted > 0).then_some(answer)
        },
    )
    .await;

    assert_eq!(granted(&last), [2]);
    assert!(begin.elapsed() >= ttl, "{:?}", begin.elapsed());
    living
        .hold(&name("a"), &holder("living", 0), &[("k".to_owned(), 0)])
        .await
        .unwrap();
    assert_eq!(
        keys(&server),
        ["throttle:a:bucket", "throttle:a:knobs", "throttle:names"],
        "who holds nothing leaves nothing"
    );
}

#[tokio::test]
async fn a_redis_that_restarts_empty_learns_who_holds_what_from_the_next_words() {
    let mut server = Server::start();
    let [one, other] = two_processes(&server, &[("rps", "-1"), ("concurrency", "4")]).await;
    assert_eq!(
        granted(&one.acquire(&ask_of("one", 0, "a", &[("", 3, 0)])).await),
        [3]
    );

    server.restart();
    eventually(
        "redis is found again",
        Duration::from_secs(10),
        async || {
            let change = Change {
                fields: fields(&[("rps", "-1"), ("concurrency", "4")]),
                create: true,
                ..Change::default()
            };
            one.set(&name("a"), &change).await.ok()
        },
    )
    .await;
    eventually("the holder is heard", Duration::from_secs(10), async || {
        one.hold(&name("a"), &holder("one", 3), &[]).await.ok()
    })
    .await;

    let left = eventually(
        "the other finds redis",
        Duration::from_secs(10),
        async || {
            let answer = other.acquire(&ask_of("other", 0, "a", &[("", 9, 0)])).await;
            (answer.at_us > 0).then(|| granted(&answer))
        },
    )
    .await;
    assert_eq!(left, [1]);
}

#[tokio::test]
async fn without_a_limit_nobody_is_remembered() {
    let server = Server::start();
    let [store, _] = two_processes(&server, &[("rps", "-1")]).await;

    let answer = store
        .acquire(&ask_of("u", 0, "a", &[("k", 5, 0), ("l", 5, 0)]))
        .await;
    store
        .hold(&name("a"), &holder("u", 10), &[("k".to_owned(), 5)])
        .await
        .unwrap();

    assert_eq!(
        (granted(&answer), answer.limits_concurrency),
        (vec![5, 5], false)
    );
    assert_eq!(
        keys(&server),
        ["throttle:a:bucket", "throttle:a:knobs", "throttle:names"]
    );
}

#[tokio::test]
async fn more_lanes_than_one_call_takes_are_counted_once() {
    let server = Server::start();
    let [store, _] = two_processes(
        &server,
        &[
            ("rps", "-1"),
            ("concurrency", "500"),
            ("key_concurrency", "1"),
        ],
    )
    .await;
    let many: Vec<String> = (0..600).map(|n| format!("k{n}")).collect();
    let lanes: Vec<(&str, u32, u32)> = many.iter().map(|key| (key.as_str(), 2, 0)).collect();

    let all = granted(&store.acquire(&ask_of("u", 0, "a", &lanes)).await);
    let held: Vec<(String, u32)> = many.iter().map(|key| (key.clone(), 0)).collect();
    store
        .hold(&name("a"), &holder("u", 0), &held)
        .await
        .unwrap();

    assert_eq!(
        (
            all.iter().sum::<u32>(),
            all[..500].iter().all(|one| *one == 1)
        ),
        (500, true)
    );
    assert_eq!(
        keys(&server),
        ["throttle:a:bucket", "throttle:a:knobs", "throttle:names"]
    );
}

fn keys(server: &Server) -> Vec<String> {
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    keys.sort();
    keys
}
