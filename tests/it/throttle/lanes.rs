//! Lanes of one throttle: shares, rates of keys, waits, costs and refunds.

use std::time::Duration;

use flyball::throttle::{AcquireRequest, AcquireResponse, Error, Holder, Limit};

use super::world::{START, World, ask, laws, name};

laws! {
    lanes_of_one_ask_share_in_order,
    keys_have_a_rate_of_their_own,
    an_answer_reports_whether_the_levels_alone_decide,
    jobs_without_a_key_have_no_key_rate,
    a_paused_key_waits_and_the_later_end_wins,
    the_advised_wait_is_exact,
    a_dear_job_runs_from_a_full_bucket_and_leaves_a_debt,
    refunds_give_back_exactly_what_was_charged,
    settling_charges_the_difference,
    peeking_at_many_lanes_promises_no_token_twice,
}

async fn lanes_of_one_ask_share_in_order(world: World) {
    world.knobs("a", &[("rps", "10")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    let answer = world
        .store
        .acquire(&ask(
            "a",
            &[("x", 4, 1.0), ("y", 2, 2.0), ("z", 9, 1.0), ("w", 0, 1.0)],
        ))
        .await;

    let granted: Vec<u32> = answer.lanes.iter().map(|lane| lane.granted).collect();
    assert_eq!(granted, [4, 2, 2, 0]);
    assert_eq!(answer.lanes[1].limit, None);
    assert_eq!(answer.lanes[2].limit, Some(Limit::Throttle));
    assert_eq!(
        answer.lanes[3].limit, None,
        "who wants nothing waits for nothing"
    );
}

async fn keys_have_a_rate_of_their_own(world: World) {
    world.knobs(
        "a",
        &[("rps", "1000"), ("key_rps", "2"), ("key_burst", "1")],
    );
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    let answer = world
        .store
        .acquire(&ask("a", &[("x", 9, 1.0), ("y", 9, 1.0), ("x", 9, 1.0)]))
        .await;

    let granted: Vec<u32> = answer.lanes.iter().map(|lane| lane.granted).collect();
    assert_eq!(granted, [2, 2, 0], "one key named twice is still one key");
    assert_eq!(answer.lanes[0].wait, Duration::from_millis(500));
}

async fn an_answer_reports_whether_the_levels_alone_decide(world: World) {
    world.knobs("a", &[("rps", "50"), ("parent", "b")]);
    world.knobs("b", &[("rps", "100")]);
    let decide = async || world.take("a", 1).await.levels_decide;

    assert!(decide().await);
    assert!(
        !world.take("ghost", 1).await.levels_decide,
        "nobody decides"
    );
    world
        .store
        .pause_key(&name("a"), "k", Duration::from_secs(5), "a test")
        .await
        .unwrap();
    assert!(!decide().await, "a key of it is paused");
    world.store.resume_key(&name("a"), "k").await.unwrap();
    assert!(decide().await);
    for key_rps in ["5", "0"] {
        world.write("a", "key_rps", key_rps);
        assert!(!decide().await, "keys have a rate of {key_rps}");
    }
}

async fn jobs_without_a_key_have_no_key_rate(world: World) {
    world.knobs("a", &[("rps", "1000"), ("key_rps", "2")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    assert_eq!(world.granted("a", 500).await, 500);
}

async fn a_paused_key_waits_and_the_later_end_wins(world: World) {
    world.knobs("a", &[("rps", "-1")]);
    let pause = |delay, why| {
        let store = world.store.clone();
        async move {
            store
                .pause_key(&name("a"), "k", Duration::from_secs(delay), why)
                .await
                .unwrap()
        }
    };
    let end = pause(60, "429: slow | down").await;
    assert_eq!(pause(5, "shorter").await, end);

    let answer = world
        .store
        .acquire(&ask("a", &[("k", 1, 1.0), ("other", 1, 1.0)]))
        .await;

    assert_eq!(end, START / 1000 + 60_000);
    let paused = Limit::Paused {
        until_ms: end,
        why: "429: slow | down".to_owned(),
        name: None,
    };
    assert_eq!(
        (answer.lanes[0].granted, &answer.lanes[0].limit),
        (0, &Some(paused))
    );
    assert_eq!(answer.lanes[0].wait, Duration::from_secs(60));
    assert_eq!(answer.lanes[1].granted, 1);
    assert!(world.store.resume_key(&name("a"), "k").await.unwrap());
    assert!(!world.store.resume_key(&name("a"), "k").await.unwrap());
    assert_eq!(
        world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].granted,
        1
    );
    pause(5, "again").await;
    world.pass(Duration::from_secs(5));
    assert_eq!(
        world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].granted,
        1
    );
}

async fn the_advised_wait_is_exact(world: World) {
    for (rps, cost) in [
        ("0.01", 1.0),
        ("3", 1.0),
        ("7.7", 2.5),
        ("900", 1.0),
        ("3", 50.0),
    ] {
        world.knobs(rps, &[("rps", rps)]);
        world.drink(rps, Duration::from_secs(1)).await;
        let one = ask(rps, &[("", 1, cost)]);
        let refused = world.store.acquire(&one).await.lanes[0].clone();
        assert_eq!(refused.granted, 0);

        world.pass(refused.wait - Duration::from_micros(3));
        assert_eq!(
            world.store.acquire(&one).await.lanes[0].granted,
            0,
            "{rps} {cost}"
        );
        world.pass(Duration::from_micros(3));
        assert_eq!(
            world.store.acquire(&one).await.lanes[0].granted,
            1,
            "{rps} {cost}"
        );
    }
}

async fn a_dear_job_runs_from_a_full_bucket_and_leaves_a_debt(world: World) {
    world.knobs("a", &[("rps", "5")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(10));

    let dear = world.store.acquire(&ask("a", &[("", 3, 8.0)])).await;
    let cheap = world.take("a", 1).await;

    assert_eq!(dear.lanes[0].granted, 1);
    assert_eq!(
        dear.lanes[0].wait,
        Duration::from_millis(1600),
        "until it is full again"
    );
    assert_eq!(
        cheap.lanes[0].wait,
        Duration::from_millis(800),
        "three tokens of debt and one more"
    );
}

async fn refunds_give_back_exactly_what_was_charged(world: World) {
    world.knobs("root", &[("rps", "10")]);
    world.knobs("a", &[("rps", "10"), ("key_rps", "10"), ("parent", "root")]);
    world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await;
    world.pass(Duration::from_secs(5));
    let request = ask("a", &[("k", 10, 1.0)]);
    let grant = world.store.acquire(&request).await.lanes[0].clone();
    assert_eq!(grant.granted, 10);

    world.write("a", "rps", "1000");
    world.refund("a", "k", &grant, 4).await;

    assert_eq!(world.status("a").await.used, 7.0);
    assert_eq!(world.status("root").await.used, 7.0);
    let again = world.store.acquire(&request).await;
    assert_eq!(again.lanes[0].granted, 4, "time is given back, not more");
    for _ in 0..50 {
        world.refund("a", "k", &grant, 10).await;
    }
    assert_eq!(
        world
            .store
            .acquire(&ask("a", &[("k", 1000, 1.0)]))
            .await
            .lanes[0]
            .granted,
        10,
        "never fuller than full"
    );
}

async fn settling_charges_the_difference(world: World) {
    world.knobs("a", &[("rps", "10")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    world
        .store
        .settle_many(&name("a"), &[("", 40.0)])
        .await
        .unwrap();
    let refused = world.take("a", 1).await;
    world
        .store
        .settle_many(&name("a"), &[("", -35.0)])
        .await
        .unwrap();

    assert_eq!(refused.lanes[0].wait, Duration::from_millis(3100));
    assert_eq!(world.granted("a", 100).await, 5);
    assert_eq!(world.status("a").await.used, 11.0);
    let lost = world.store.settle_many(&name("ghost"), &[("", 1.0)]).await;
    assert!(matches!(lost, Err(Error::Unknown(ghost)) if ghost == name("ghost")));
}

async fn peeking_at_many_lanes_promises_no_token_twice(world: World) {
    world.knobs(
        "a",
        &[("rps", "10"), ("key_rps", "100"), ("key_concurrency", "5")],
    );
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let lanes: Vec<(&str, u32, f64)> = keys.iter().map(|key| (key.as_str(), 1, 1.0)).collect();
    let holder = Holder {
        id: "w".to_owned(),
        ttl: Duration::from_secs(30),
        held: 0,
    };
    let request = AcquireRequest {
        holder: Some(holder),
        ..ask("a", &lanes)
    };
    let total =
        |answer: &AcquireResponse| answer.lanes.iter().map(|lane| lane.granted).sum::<u32>();
    world.store.acquire(&request).await;
    world.pass(Duration::from_secs(1));

    assert_eq!(total(&world.store.peek(&request).await), 10);
    assert_eq!(total(&world.store.acquire(&request).await), 10);
}
