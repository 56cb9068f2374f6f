//! Rejections by a job's server: which jobs wait, how long, and what is learned.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flyball::throttle::{AcquireRequest, Holder, KeyOutcomes, Limit, Scope, UpstreamRefusal};

use super::world::{START, World, ask, change, laws, name};

laws! {
    a_refusal_pauses_the_key_and_one_job_goes_first,
    a_refusal_of_the_account_pauses_everything_below_it,
    a_refusal_of_a_throttle_holds_whatever_its_server_said,
    a_strangers_word_slows_down_no_more_than_is_trusted,
    no_answer_pauses_for_longer_than_the_knob_allows,
    load_that_is_shed_pauses_the_key_and_teaches_no_rate,
    a_naive_throttle_lets_the_refused_job_wait_by_itself,
    a_passive_throttle_does_not_hold_keys_to_their_rate,
    whoever_takes_the_pause_off_takes_off_the_refusal_too,
    only_keys_that_were_refused_are_remembered,
}

/// A request of a job-running process.
pub fn work(throttle: &str, lanes: &[(&str, u32, f64)]) -> AcquireRequest {
    let holder = Some(Holder {
        id: "w".to_owned(),
        ttl: Duration::from_secs(30),
        held: 0,
    });
    AcquireRequest {
        holder,
        ..ask(throttle, lanes)
    }
}

fn refusal(key: &str, scope: Scope, delay_s: u64) -> UpstreamRefusal<'_> {
    let delay = Some(Duration::from_secs(delay_s));
    UpstreamRefusal {
        key,
        scope,
        is_overload: false,
        is_untrusted: false,
        delay,
        jitter: 0.0,
        why: "answered 429",
    }
}

pub fn success(key: &str, jobs: u32) -> KeyOutcomes<'_> {
    KeyOutcomes {
        key,
        succeeded: jobs,
        tokens: f64::from(jobs),
        ..KeyOutcomes::default()
    }
}

async fn a_refusal_pauses_the_key_and_one_job_goes_first(world: World) {
    world.knobs(
        "a",
        &[("rps", "-1"), ("key_rps", "1000"), ("key_burst", "0")],
    );
    let granted = async |key: &str| {
        world
            .store
            .acquire(&work("a", &[(key, 10, 1.0)]))
            .await
            .lanes
            .remove(0)
    };
    granted("k").await;

    let paused = world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 5))
        .await
        .unwrap();

    assert_eq!((paused.until_ms, paused.alone), (START / 1000 + 5000, None));
    assert!(matches!(
        granted("k").await.limit,
        Some(Limit::Paused { name: None, .. })
    ));
    assert!(granted("other").await.granted > 0, "another key flows");
    world.pass(Duration::from_secs(5));
    let probe = granted("k").await;
    assert_eq!(
        (probe.granted, probe.watched, probe.limit),
        (
            1,
            true,
            Some(Limit::Probing {
                name: name("a"),
                key: true
            })
        )
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(
        granted("k").await.granted,
        0,
        "one at a time, until it is known to be welcome"
    );
    world
        .store
        .ended(&name("a"), &[success("k", 1)])
        .await
        .unwrap();
    assert_eq!(granted("k").await.granted, 2);
    world
        .store
        .ended(&name("a"), &[success("k", 2), success("k", 20)])
        .await
        .unwrap();
    let mut open = 0;
    for _ in 0..1000 {
        world.pass(Duration::from_millis(1));
        let grant = granted("k").await;
        open += grant.granted;
        world
            .store
            .ended(&name("a"), &[success("k", grant.granted)])
            .await
            .unwrap();
    }
    assert!(
        (700..=790).contains(&open),
        "seven tenths of the key's own rate, and growing: {open}"
    );
}

async fn a_refusal_of_the_account_pauses_everything_below_it(world: World) {
    world.knobs("account", &[("rps", "100")]);
    world.knobs("one", &[("rps", "-1"), ("parent", "account")]);
    world.knobs("two", &[("rps", "-1"), ("parent", "account")]);
    world.take("one", 1).await;
    world.take("two", 1).await;

    world
        .store
        .refused(&name("one"), &refusal("k", Scope::Account, 3))
        .await
        .unwrap();

    let limit = world
        .store
        .acquire(&work("two", &[("", 1, 1.0)]))
        .await
        .lanes
        .remove(0)
        .limit;
    let until_ms = START / 1000 + 3000;
    assert_eq!(
        limit,
        Some(Limit::Paused {
            until_ms,
            why: "answered 429".into(),
            name: Some(name("account"))
        })
    );
    world.pass(Duration::from_secs(3));
    assert_eq!(
        world.began("two", 9).await,
        0,
        "a pause is no time in which tokens are saved up"
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(world.began("two", 9).await, 1);
    assert_eq!(
        world.began("one", 9).await,
        0,
        "one job of the account goes first, whoever it is"
    );
    world
        .store
        .ended(&name("two"), &[success("", 1)])
        .await
        .unwrap();
    assert_eq!(world.began("one", 9).await, 2);
    world
        .store
        .ended(&name("one"), &[success("", 8)])
        .await
        .unwrap();
    assert_eq!(world.began("one", 9).await, 9);
}

async fn a_refusal_of_a_throttle_holds_whatever_its_server_said(world: World) {
    for (throttle, why) in [("a", "slow|down now"), ("b", "429|"), ("c", "|")] {
        world.knobs(throttle, &[("rps", "-1")]);
        let refused = UpstreamRefusal {
            why,
            ..refusal("k", Scope::Throttle, 60)
        };
        world
            .store
            .refused(&name(throttle), &refused)
            .await
            .unwrap();

        let mut answer = world.store.acquire(&work(throttle, &[("", 1, 1.0)])).await;

        let limit = Limit::Paused {
            until_ms: START / 1000 + 60_000,
            why: why.to_owned(),
            name: Some(name(throttle)),
        };
        assert_eq!(answer.lanes.remove(0).limit, Some(limit));
    }
}

/// The paused scope after an untrusted answer, whatever it claims: the job alone, its key, its
/// throttle, or a tier.
async fn a_strangers_word_slows_down_no_more_than_is_trusted(world: World) {
    world.knobs("account", &[("rps", "-1")]);
    let cases = [
        ("", 0),
        ("nonsense", 0),
        ("key", 0),
        ("throttle", 1),
        ("account", 2),
    ];
    for (n, (trust, breadth)) in cases.into_iter().enumerate() {
        for (claimed, scope) in [Scope::Key, Scope::Throttle, Scope::Account]
            .into_iter()
            .enumerate()
        {
            for key in ["k", ""] {
                let (mine, beside) = (format!("m{n}{claimed}{key}"), format!("b{n}{claimed}{key}"));
                let parent = format!("p{n}{claimed}{key}");
                world.knobs(&parent, &[("rps", "-1")]);
                world.knobs(&mine, &[("rps", "-1"), ("parent", &parent)]);
                world.knobs(&beside, &[("rps", "-1"), ("parent", &parent)]);
                if !trust.is_empty() {
                    world.knobs(&mine, &[("trust_scope", trust)]);
                }
                let limit = async |throttle: &str, key: &str| {
                    world
                        .store
                        .acquire(&work(throttle, &[(key, 1, 1.0)]))
                        .await
                        .lanes
                        .remove(0)
                        .limit
                };
                for throttle in [&mine, &beside] {
                    assert_eq!(limit(throttle, "other").await, None);
                }

                let claim = UpstreamRefusal {
                    is_untrusted: true,
                    is_overload: claimed == 1,
                    ..refusal(key, scope, 86_400)
                };
                let paused = world.store.refused(&name(&mine), &claim).await.unwrap();

                let answer = format!("trust {trust}, claimed {scope:?}, key {key:?}");
                let reach = claimed.min(breadth);
                let is_alone = key.is_empty() && breadth == 0;
                assert_eq!(paused.alone.is_some(), is_alone, "{answer}");
                assert_eq!(limit(&mine, key).await.is_some(), !is_alone, "{answer}");
                assert_eq!(limit(&mine, "other").await.is_some(), reach > 0, "{answer}");
                assert_eq!(
                    limit(&beside, "other").await.is_some(),
                    reach > 1,
                    "{answer}"
                );

                // A trusted server's own scope applies.
                world
                    .store
                    .refused(
                        &name(&mine),
                        &UpstreamRefusal {
                            is_untrusted: false,
                            ..claim
                        },
                    )
                    .await
                    .unwrap();
                assert_eq!(
                    limit(&mine, "other").await.is_some(),
                    claimed > 0,
                    "{answer}"
                );
                assert_eq!(
                    limit(&beside, "other").await.is_some(),
                    claimed > 1,
                    "{answer}"
                );
            }
        }
    }
}

async fn no_answer_pauses_for_longer_than_the_knob_allows(world: World) {
    let (day, quarter) = (86_400_000, 900_000);
    let knobs = [
        ("", day, quarter),
        ("1", 1000, 1000),
        ("60.5", 60_500, 60_500),
        ("7200", 7_200_000, 7_200_000),
        ("soon", day, quarter),
    ];
    for (n, (max_pause, of_key, of_throttle)) in knobs.into_iter().enumerate() {
        for (scope, most_ms) in [(Scope::Key, of_key), (Scope::Throttle, of_throttle)] {
            for naive in [false, true] {
                let throttle = format!("t{n}{scope:?}{naive}");
                world.knobs(&throttle, &[("rps", "-1"), ("trust_scope", "throttle")]);
                if !max_pause.is_empty() {
                    world.knobs(&throttle, &[("max_pause", max_pause)]);
                }
                if naive {
                    world.knobs(&throttle, &[("on_429", "active-naive")]);
                }
                let output = [
                    None,
                    Some(0),
                    Some(1),
                    Some(59_999),
                    Some(86_400_000),
                    Some(u64::MAX),
                ];
                for (step, (output, jitter)) in output
                    .iter()
                    .flat_map(|output| [0.0, 0.5, 1.0].map(|jitter| (*output, jitter)))
                    .enumerate()
                {
                    let refused = UpstreamRefusal {
                        delay: output.map(Duration::from_millis),
                        jitter,
                        is_overload: step % 3 == 0,
                        is_untrusted: step % 2 == 0,
                        ..refusal("k", scope, 0)
                    };
                    let until_ms = world
                        .store
                        .refused(&name(&throttle), &refused)
                        .await
                        .unwrap()
                        .until_ms;
                    let now_ms = world.now.load(Ordering::SeqCst) / 1000;
                    assert!(
                        until_ms - now_ms <= most_ms,
                        "{max_pause:?}, {scope:?}: {refused:?} pauses {} ms",
                        until_ms - now_ms
                    );
                    // Every other job arrives when the pause is over, so the strikes grow.
                    if step % 2 == 0 {
                        world.pass(Duration::from_millis((until_ms - now_ms).max(0) as u64 + 1));
                    }
                }
            }
        }
    }
}

async fn load_that_is_shed_pauses_the_key_and_teaches_no_rate(world: World) {
    world.knobs("a", &[("rps", "-1"), ("key_rps", "100")]);
    let shed = UpstreamRefusal {
        is_overload: true,
        ..refusal("k", Scope::Key, 5)
    };
    world.store.refused(&name("a"), &shed).await.unwrap();

    world.pass(Duration::from_secs(4));
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 9, 1.0)]))
            .await
            .lanes[0]
            .granted,
        0
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 9, 1.0)]))
            .await
            .lanes[0]
            .granted,
        1,
        "one goes first all the same"
    );
    world
        .store
        .ended(&name("a"), &[success("k", 8)])
        .await
        .unwrap();
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 90, 1.0)]))
            .await
            .lanes[0]
            .granted,
        90,
        "and then the key's own rate holds"
    );
}

async fn a_naive_throttle_lets_the_refused_job_wait_by_itself(world: World) {
    world.knobs("a", &[("rps", "-1"), ("on_429", "active-naive")]);

    for scope in [Scope::Key, Scope::Throttle] {
        let paused = world
            .store
            .refused(&name("a"), &refusal("k", scope, 5))
            .await
            .unwrap();
        assert_eq!(paused.alone, Some(Duration::from_secs(5)));
    }
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 5, 1.0)]))
            .await
            .lanes[0]
            .granted,
        5
    );
}

async fn a_passive_throttle_does_not_hold_keys_to_their_rate(world: World) {
    world.knobs(
        "a",
        &[
            ("rps", "-1"),
            ("key_rps", "1"),
            ("on_429", "passive-informed"),
        ],
    );
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        50
    );

    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 5))
        .await
        .unwrap();
    world.pass(Duration::from_secs(5));

    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        1
    );
    world
        .store
        .ended(&name("a"), &[success("k", 8)])
        .await
        .unwrap();
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        50,
        "and learns no rate"
    );
}

async fn whoever_takes_the_pause_off_takes_off_the_refusal_too(world: World) {
    world.knobs("a", &[("rps", "-1")]);
    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Throttle, 60))
        .await
        .unwrap();
    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 60))
        .await
        .unwrap();
    assert_eq!(world.began("a", 5).await, 0);

    world
        .store
        .set(&name("a"), &change(&[("paused", "0")]))
        .await
        .unwrap();
    assert_eq!(world.began("a", 5).await, 5);
    assert!(world.store.resume_key(&name("a"), "k").await.unwrap());
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        50
    );
}

async fn only_keys_that_were_refused_are_remembered(world: World) {
    world.knobs("a", &[("rps", "-1"), ("key_rps", "100")]);
    world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await;
    world
        .store
        .ended(&name("a"), &[success("k", 1)])
        .await
        .unwrap();
    assert!(!world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].watched);

    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 1))
        .await
        .unwrap();
    world.pass(Duration::from_secs(2));
    assert!(world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].watched);
    // After a minute without a rejection the configured rate is reached again, and nothing learned
    // remains.
    world.pass(Duration::from_secs(60));
    world
        .store
        .ended(&name("a"), &[success("k", 20)])
        .await
        .unwrap();

    assert!(!world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].watched);
}
