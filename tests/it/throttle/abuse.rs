//! Abuse of a throttle: an expensive job does not stall it, no claim takes its slots, and long
//! texts do not slow the store.

use std::time::Duration;

use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Holder, LaneRequest, Limit, MAX_HOLDERS,
};
use proptest::prelude::*;

use crate::throttle::{World, ask, fields, laws, name};

/// The longest debt not configured by any knob.
const MINUTES: Duration = Duration::from_secs(300);

laws! {
    one_dear_job_stalls_a_throttle_for_its_highest_cost_and_no_longer,
    what_is_charged_afterwards_makes_no_debt_of_more_than_minutes,
    whoever_takes_the_pause_off_takes_off_the_debt,
    no_debt_outlives_a_time_without_a_limit,
    a_dear_job_gets_back_what_it_was_charged_and_no_more,
    a_full_bucket_may_be_spent_by_one_job,
    a_guest_takes_no_slot_by_its_word,
    a_limit_of_concurrency_keeps_so_many_names_and_refuses_new_ones,
    a_field_of_a_megabyte_is_nonsense_and_is_reported_in_forty_characters,
    a_term_written_by_hand_does_not_switch_the_fencing_off,
}

async fn wait(world: &World, throttle: &str) -> Duration {
    world
        .store
        .peek(&ask(throttle, &[("", 1, 1.0)]))
        .await
        .lanes[0]
        .wait
}

async fn set(world: &World, throttle: &str, given: &[(&str, &str)]) {
    let change = Change {
        fields: fields(given),
        by: "test".into(),
        ..Change::default()
    };
    world.store.set(&name(throttle), &change).await.unwrap();
}

async fn one_dear_job_stalls_a_throttle_for_its_highest_cost_and_no_longer(world: World) {
    for (rps, most_s) in [("10", 100), ("1", 1000), ("0.1", 3600), ("100", 100)] {
        world.knobs("mail", &[("rps", rps)]);
        world.store.acquire(&ask("mail", &[("", 1, 1.0)])).await;
        world.pass(Duration::from_secs(1_000_000));

        let answer = world.store.acquire(&ask("mail", &[("", 1, 1e9)])).await;

        assert_eq!(answer.lanes[0].granted, 1, "{rps}");
        let sentence = wait(&world, "mail").await;
        assert!(
            sentence <= Duration::from_secs(most_s) + Duration::from_secs(20),
            "{rps}: {sentence:?}"
        );
        world.pass(sentence);
        assert_eq!(
            world
                .store
                .acquire(&ask("mail", &[("", 1, 1.0)]))
                .await
                .lanes[0]
                .granted,
            1,
            "{rps}"
        );
    }
    let used = world
        .store
        .status(&name("mail"))
        .await
        .unwrap()
        .unwrap()
        .used;
    assert!(used < 10_000.0, "{used}");
}

async fn what_is_charged_afterwards_makes_no_debt_of_more_than_minutes(world: World) {
    world.knobs("mail", &[("rps", "10"), ("key_rps", "10")]);
    for _ in 0..5 {
        world
            .store
            .settle_many(&name("mail"), &[("k", 1e9), ("", 1e9)])
            .await
            .unwrap();
    }

    let answer = world.store.peek(&ask("mail", &[("k", 1, 1.0)])).await;

    assert!(
        answer.lanes[0].wait <= MINUTES + Duration::from_secs(1),
        "{answer:?}"
    );
    assert!(
        world
            .store
            .status(&name("mail"))
            .await
            .unwrap()
            .unwrap()
            .used
            <= 3100.0
    );
}

async fn whoever_takes_the_pause_off_takes_off_the_debt(world: World) {
    world.knobs("mail", &[("rps", "10")]);
    world
        .store
        .settle_many(&name("mail"), &[("", 2000.0)])
        .await
        .unwrap();
    assert!(wait(&world, "mail").await > Duration::from_secs(100));

    set(&world, "mail", &[("paused", "1")]).await;
    set(&world, "mail", &[("paused", "0")]).await;

    assert_eq!(
        wait(&world, "mail").await,
        Duration::from_millis(100),
        "an empty bucket, and no debt"
    );
}

async fn no_debt_outlives_a_time_without_a_limit(world: World) {
    world.knobs("mail", &[("rps", "10")]);
    world
        .store
        .settle_many(&name("mail"), &[("", 2000.0)])
        .await
        .unwrap();

    set(&world, "mail", &[("rps", "-1")]).await;
    set(&world, "mail", &[("rps", "10")]).await;

    assert_eq!(wait(&world, "mail").await, Duration::from_millis(100));
}

async fn a_dear_job_gets_back_what_it_was_charged_and_no_more(world: World) {
    world.knobs("mail", &[("rps", "10"), ("max_cost", "50")]);
    world.store.acquire(&ask("mail", &[("", 1, 1.0)])).await;
    world.pass(Duration::from_secs(60));
    let answer = world.store.acquire(&ask("mail", &[("", 1, 1e6)])).await;
    assert_eq!(answer.max_cost, 50.0);
    let grant = &answer.lanes[0];

    let refund = flyball::throttle::Refund {
        key: "",
        grant,
        units: 1,
        cost: answer.max_cost,
    };
    world
        .store
        .refund_many(&name("mail"), &[refund])
        .await
        .unwrap();

    assert_eq!(grant.charge_us[0], 5e6);
    assert_eq!(
        world
            .store
            .status(&name("mail"))
            .await
            .unwrap()
            .unwrap()
            .used,
        1.0
    );
    assert_eq!(
        world
            .store
            .acquire(&ask("mail", &[("", 99, 1.0)]))
            .await
            .lanes[0]
            .granted,
        10,
        "as full as before"
    );
}

async fn a_full_bucket_may_be_spent_by_one_job(world: World) {
    world.knobs(
        "mail",
        &[("rps", "0.001"), ("burst", "40"), ("window", "1000")],
    );
    world.store.acquire(&ask("mail", &[("", 1, 1.0)])).await;
    world.pass(Duration::from_secs(1_000_000));

    let answer = world.store.acquire(&ask("mail", &[("", 1, 40.0)])).await;

    assert_eq!((answer.lanes[0].granted, answer.max_cost), (1, 40.0));
    assert_eq!(
        world.store.peek(&ask("mail", &[("", 1, 1.0)])).await.lanes[0].granted,
        0
    );
}

fn held_by(id: &str, held: u32, want: u32) -> AcquireRequest {
    let lane = LaneRequest {
        want,
        ..LaneRequest::default()
    };
    let holder = Holder {
        id: id.to_owned(),
        ttl: Duration::from_secs(30),
        held,
    };
    AcquireRequest {
        throttle: name("slots"),
        lanes: vec![lane],
        holder: Some(holder),
    }
}

fn granted(answer: &AcquireResponse) -> u32 {
    answer.lanes[0].granted
}

async fn a_guest_takes_no_slot_by_its_word(world: World) {
    world.knobs("slots", &[("rps", "-1"), ("concurrency", "10")]);

    world
        .store
        .acquire(&held_by("http:evil", 1_000_000, 0))
        .await;
    world
        .store
        .hold(
            &name("slots"),
            &held_by("http:evil", 1_000_000, 0).holder.unwrap(),
            &[],
        )
        .await
        .unwrap();

    assert_eq!(
        granted(&world.store.acquire(&held_by("http:good", 0, 4)).await),
        4
    );
    world
        .store
        .hold(
            &name("slots"),
            &held_by("http:good", 1_000_000, 0).holder.unwrap(),
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        granted(&world.store.acquire(&held_by("worker", 0, 99)).await),
        6,
        "four are held, whatever was reported"
    );
    assert_eq!(
        granted(&world.store.acquire(&held_by("worker", 6, 99)).await),
        0
    );
}

async fn a_limit_of_concurrency_keeps_so_many_names_and_refuses_new_ones(world: World) {
    world.knobs("slots", &[("rps", "-1"), ("concurrency", "1000000")]);
    for who in 0..MAX_HOLDERS {
        assert_eq!(
            granted(
                &world
                    .store
                    .acquire(&held_by(&format!("http:{who}"), 0, 1))
                    .await
            ),
            1
        );
    }

    let refused = world.store.acquire(&held_by("http:new", 0, 1)).await;

    assert_eq!(
        (granted(&refused), &refused.lanes[0].limit),
        (
            0,
            &Some(Limit::Holders {
                name: name("slots")
            })
        )
    );
    assert_eq!(
        granted(&world.store.acquire(&held_by("http:7", 1, 1)).await),
        1,
        "who is known goes on"
    );
    world.pass(Duration::from_secs(31));
    assert_eq!(
        granted(&world.store.acquire(&held_by("http:new", 0, 1)).await),
        1
    );
}

async fn a_field_of_a_megabyte_is_nonsense_and_is_reported_in_forty_characters(world: World) {
    let long = "7".repeat(1 << 20);
    for field in [
        "rps",
        "burst",
        "window",
        "key_rps",
        "parent",
        "mode",
        "weight",
        "seq",
        "paused",
        "over_limit",
        "concurrency",
    ] {
        world.knobs("mail", &[("rps", "10"), ("safe_rps", "2"), (field, &long)]);

        let answer = world.store.acquire(&ask("mail", &[("", 1, 1.0)])).await;
        let status = world.store.status(&name("mail")).await.unwrap().unwrap();

        assert!(
            answer.effective_rps.number() <= 10.0 && answer.at_us > 0,
            "{field}: {answer:?}"
        );
        assert!(
            status.problems.iter().any(|problem| problem.field == field),
            "{field}"
        );
        let longest = status
            .problems
            .iter()
            .map(|problem| problem.message.len())
            .max()
            .unwrap();
        assert!(longest < 400, "{field}: {longest}");
        world.remove("mail", field);
    }
}

async fn a_term_written_by_hand_does_not_switch_the_fencing_off(world: World) {
    world.knobs("mail", &[("rps", "10"), ("term", "9e15")]);
    let by = |term| Change {
        fields: fields(&[("rps", "5")]),
        term: Some(term),
        ..Change::default()
    };

    world.store.set(&name("mail"), &by(8)).await.unwrap();

    assert!(
        world.store.set(&name("mail"), &by(7)).await.is_err(),
        "an older leader"
    );
    world.store.set(&name("mail"), &by(9)).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Whatever is requested and charged at whatever rates, a throttle is free again within
    /// minutes, or after one job of the highest cost.
    #[test]
    fn no_sequence_of_costs_and_rates_stalls_a_throttle_for_longer_than_its_longest_debt(
        steps in prop::collection::vec((0..4_u8, -4.0..9.0_f64, 0..5_000_000_u64), 1..40),
        last in prop::sample::select(vec!["0.5", "3", "10", "250"]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let world = World::memory();
            world.knobs("mail", &[("rps", "10")]);
            for (what, exponent, pass_us) in steps {
                let amount = 10.0_f64.powf(exponent);
                match what {
                    0 => drop(world.store.acquire(&ask("mail", &[("", 1, amount)])).await),
                    1 => world.store.settle_many(&name("mail"), &[("", amount)]).await.unwrap(),
                    2 => world.write("mail", "rps", &format!("{}", amount.min(1e6))),
                    _ => world.write("mail", "rps", "-1"),
                }
                world.pass(Duration::from_micros(pass_us));
            }
            world.write("mail", "rps", last);
            let most = world.store.status(&name("mail")).await.unwrap().unwrap().knobs.charged_cost(0);
            let longest = MINUTES.as_secs_f64().max(most / last.parse::<f64>().unwrap()) + 3.0 / last.parse::<f64>().unwrap();
            let sentence = wait(&world, "mail").await.as_secs_f64();
            prop_assert!(sentence <= longest, "{sentence} s, not {longest} s");
            Ok(())
        })?;
    }
}
