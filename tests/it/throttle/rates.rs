//! Rates: exact, stopped, resumed, unlimited, unreadable; and the counters of tokens.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flyball::throttle::Limit;

use super::world::{START, World, ask, change, laws, name, stop_of};

laws! {
    rates_are_exact,
    a_throttle_nobody_knows_grants_nothing_and_says_so,
    a_hash_without_rps_runs_at_safe_rps,
    a_new_throttle_starts_with_one_token_and_an_idle_key_full,
    zero_stops_and_minus_one_is_unlimited,
    a_cut_frees_nothing,
    a_stop_resumes_empty,
    a_pause_resumes_empty,
    a_typo_runs_at_safe_rps_and_is_visible,
    a_lapsed_lease_runs_at_safe_rps,
    peeking_charges_nothing,
    counters_report_tokens_used_and_time_limited,
    a_clock_that_steps_back_does_not_stop_the_flow,
    a_factor_of_the_cost_makes_each_job_dearer_here_and_above_at_once,
}

async fn rates_are_exact(world: World) {
    for rps in [
        "0.0001", "0.02", "0.3", "1.5", "7.3", "120", "9950", "10000",
    ] {
        world.knobs(rps, &[("rps", rps)]);
        let ideal = 1000.0;
        world.take(rps, 1).await;
        let end =
            world.now.load(Ordering::SeqCst) + (ideal * 1e6 / rps.parse::<f64>().unwrap()) as i64;
        let mut taken = 0.0;
        // A client that comes at the advised time, 3 µs late.
        while world.now.load(Ordering::SeqCst) < end {
            let lane = world.take(rps, 1_000_000).await.lanes[0].clone();
            taken += f64::from(lane.granted);
            world.pass(lane.wait + Duration::from_micros(3));
        }

        assert!(
            (taken - ideal).abs() <= ideal * 0.002,
            "{rps} tokens/s gave {taken} where {ideal} were due"
        );
    }
}

async fn a_throttle_nobody_knows_grants_nothing_and_says_so(world: World) {
    let answer = world.take("ghost", 5).await;

    assert_eq!(answer.lanes[0].granted, 0);
    assert_eq!(
        answer.lanes[0].limit,
        Some(Limit::Unknown {
            name: name("ghost")
        })
    );
    assert!(answer.lanes[0].wait <= Duration::from_secs(1));
    assert_eq!(world.store.status(&name("ghost")).await.unwrap(), None);
}

async fn a_hash_without_rps_runs_at_safe_rps(world: World) {
    world.knobs("a", &[("burst", "1"), ("safe_rps", "3")]);

    assert_eq!(world.take("a", 0).await.effective_rps.number(), 3.0);
    assert_eq!(world.status("a").await.problems[0].field, "rps");
}

async fn a_new_throttle_starts_with_one_token_and_an_idle_key_full(world: World) {
    world.knobs("a", &[("rps", "50"), ("key_rps", "5")]);
    assert_eq!(world.granted("a", 100).await, 1);
    world.pass(Duration::from_secs(10));

    let answer = world.store.acquire(&ask("a", &[("k", 100, 1.0)])).await;

    assert_eq!(answer.lanes[0].granted, 5);
    assert_eq!(answer.lanes[0].limit, Some(Limit::Key));
}

async fn zero_stops_and_minus_one_is_unlimited(world: World) {
    world.knobs("a", &[("rps", "0")]);
    let stopped = world.take("a", 5).await;
    world.write("a", "rps", "-1");
    let unlimited = world.take("a", 5_000_000).await;

    assert_eq!(
        (stopped.effective_rps.number(), stopped.lanes[0].granted),
        (0.0, 0)
    );
    assert_eq!(stopped.lanes[0].limit, Some(stop_of("a")));
    assert!(
        stopped.lanes[0].wait <= Duration::from_secs(1),
        "a person's edit is seen within a second"
    );
    assert_eq!(
        (unlimited.effective_rps.number(), unlimited.lanes[0].granted),
        (-1.0, 5_000_000)
    );
}

async fn a_cut_frees_nothing(world: World) {
    world.knobs("a", &[("rps", "100")]);
    world.drink("a", Duration::from_secs(2)).await;
    for rps in ["10", "1", "0.01"] {
        world.write("a", "rps", rps);
        assert_eq!(world.granted("a", 1000).await, 0, "{rps}");
    }
}

async fn a_stop_resumes_empty(world: World) {
    world.knobs("a", &[("rps", "20"), ("burst", "5")]);
    world.take("a", 1).await;
    world.write("a", "rps", "0");
    world.pass(Duration::from_secs(60));
    world.take("a", 1).await;
    world.write("a", "rps", "20");

    assert_eq!(world.granted("a", 1000).await, 0);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.granted("a", 1000).await, 20);

    // The same through the public interface, without requests in between.
    world
        .store
        .set(&name("a"), &change(&[("rps", "0")]))
        .await
        .unwrap();
    world.pass(Duration::from_secs(60));
    world
        .store
        .set(&name("a"), &change(&[("rps", "20")]))
        .await
        .unwrap();
    assert_eq!(world.granted("a", 1000).await, 0);
}

async fn a_pause_resumes_empty(world: World) {
    world.knobs("a", &[("rps", "20")]);
    world
        .store
        .set(&name("a"), &change(&[("paused", "1")]))
        .await
        .unwrap();
    assert_eq!(world.take("a", 1).await.lanes[0].limit, Some(stop_of("a")));
    world.pass(Duration::from_secs(60));
    world
        .store
        .set(&name("a"), &change(&[("paused", "0")]))
        .await
        .unwrap();

    assert_eq!(world.granted("a", 1000).await, 0);
    assert_eq!(world.status("a").await.knobs.rps.number(), 20.0);
}

async fn a_typo_runs_at_safe_rps_and_is_visible(world: World) {
    for (field, text) in [
        ("rps", "ten"),
        ("burst", "NaN"),
        ("window", "-1"),
        ("key_rps", "1e99"),
        ("key_burst", ""),
    ] {
        world.knobs(field, &[("rps", "100"), ("safe_rps", "4")]);
        world.write(field, field, text);

        let answer = world.take(field, 1).await;
        let status = world.status(field).await;

        assert_eq!(answer.effective_rps.number(), 4.0, "{field}");
        assert_eq!(
            (
                status.effective_rps.number(),
                status.problems[0].field.as_str()
            ),
            (4.0, field)
        );
        let taken = world.drink(field, Duration::from_secs(100)).await;
        assert!((398.0..=402.0).contains(&taken), "{field}: {taken}");
    }
}

async fn a_lapsed_lease_runs_at_safe_rps(world: World) {
    let until = (START / 1000 + 5000).to_string();
    world.knobs(
        "a",
        &[
            ("rps", "100"),
            ("safe_rps", "4"),
            ("valid_until", &until),
            ("mode", "auto"),
        ],
    );
    assert_eq!(world.take("a", 1).await.effective_rps.number(), 100.0);
    world.pass(Duration::from_millis(5001));

    assert_eq!(world.take("a", 1).await.effective_rps.number(), 4.0);
    assert!(world.status("a").await.lease_expired);
    world.write("a", "mode", "manual");
    assert_eq!(world.take("a", 1).await.effective_rps.number(), 100.0);
}

async fn peeking_charges_nothing(world: World) {
    world.knobs("a", &[("rps", "10"), ("key_rps", "5")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));
    let request = ask("a", &[("k", 3, 1.0), ("l", 99, 1.0)]);

    let peeked = world.store.peek(&request).await;

    assert_eq!(world.store.peek(&request).await, peeked);
    assert_eq!(world.store.acquire(&request).await, peeked);
    assert_ne!(world.store.acquire(&request).await, peeked);
}

async fn counters_report_tokens_used_and_time_limited(world: World) {
    world.knobs("a", &[("rps", "10")]);
    world.drink("a", Duration::from_secs(20)).await;
    let before = world.status("a").await;
    world.drink("a", Duration::from_secs(20)).await;
    let after = world.status("a").await;

    assert!((after.used - before.used - 200.0).abs() <= 1.0);
    assert!(
        (after.limited_us - before.limited_us - 20e6).abs() < 1e5,
        "{}",
        after.limited_us - before.limited_us
    );

    // A request for less than is available is not limited.
    world.pass(Duration::from_secs(5));
    let before = world.status("a").await.limited_us;
    for _ in 0..50 {
        world.pass(Duration::from_millis(200));
        world.take("a", 1).await;
    }
    assert_eq!(world.status("a").await.limited_us, before);
}

async fn a_clock_that_steps_back_does_not_stop_the_flow(world: World) {
    world.knobs("a", &[("rps", "10"), ("key_rps", "10")]);
    let request = ask("a", &[("k", 1000, 1.0)]);
    world.store.acquire(&request).await;
    world.now.fetch_sub(3_600_000_000, Ordering::SeqCst);
    let mut taken = 0;
    for _ in 0..200 {
        world.pass(Duration::from_millis(100));
        taken += world.store.acquire(&request).await.lanes[0].granted;
    }

    assert!(
        (150..=210).contains(&taken),
        "in 20 s at 10 tokens/s, of which some are lost by the step: {taken}"
    );
}

async fn a_factor_of_the_cost_makes_each_job_dearer_here_and_above_at_once(world: World) {
    world.knobs("root", &[("rps", "100")]);
    world.knobs("mail", &[("rps", "10"), ("parent", "root")]);
    world.take("mail", 1).await;
    world.pass(Duration::from_secs(10));
    let used = world.status("root").await.used;
    assert_eq!(world.granted("mail", 100).await, 10);
    world.write("mail", "cost_factor", "2.5");
    world.pass(Duration::from_secs(10));

    let dearer = world.take("mail", 100).await;

    assert_eq!(
        (dearer.lanes[0].granted, dearer.effective_rps.number()),
        (4, 10.0)
    );
    assert_eq!(world.status("mail").await.used, 1.0 + 10.0 + 10.0);
    assert_eq!(world.status("root").await.used - used, 20.0);
    // A returned unit and a real cost count just as often.
    world.refund("mail", "", &dearer.lanes[0], 2).await;
    world
        .store
        .settle_many(&name("mail"), &[("", 1.0)])
        .await
        .unwrap();
    assert_eq!(world.status("mail").await.used, 21.0 - 5.0 + 2.5);
    world.write("mail", "cost_factor", "0.5");
    world.pass(Duration::from_secs(10));
    assert_eq!(world.granted("mail", 100).await, 20);
    world.write("mail", "cost_factor", "nothing");
    world.pass(Duration::from_secs(10));
    assert_eq!(
        world.take("mail", 100).await.effective_rps.number(),
        1.0,
        "a typo never speeds anything up"
    );
}
