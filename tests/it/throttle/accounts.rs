//! The knob `capacity`, the capacity of a pool's accounts. Each property in memory and in Redis.

use std::time::Duration;

use flyball::throttle::{
    Change, Error, Grant, KeyState, LeasedStore, Limit, RateLimit, Status, Store,
};

use crate::throttle::{World, ask, fields, laws, name};

laws! {
    the_rate_is_never_above_what_can_be_borne,
    what_bears_nothing_is_stopped_with_its_reason_and_resumes_empty,
    a_capacity_that_cannot_be_read_speeds_nothing_up,
    a_pools_word_is_nobodys_edit,
    who_writes_under_a_condition_is_not_disturbed_by_a_pools_word,
    a_persons_capacity_is_an_edit_and_takes_the_pools_reason_away,
    a_lease_lets_go_when_nothing_can_be_borne,
}

async fn status(world: &World, throttle: &str) -> Status {
    world.store.status(&name(throttle)).await.unwrap().unwrap()
}

async fn set_capacity(world: &World, throttle: &str, capacity: Option<f64>, why: &str) {
    world
        .store
        .set_capacity(
            &name(throttle),
            capacity.map_or(RateLimit::Unlimited, RateLimit::new),
            why,
        )
        .await
        .unwrap();
}

async fn took(world: &World, throttle: &str, want: u32) -> Grant {
    world
        .store
        .acquire(&ask(throttle, &[("", want, 1.0)]))
        .await
        .lanes
        .remove(0)
}

/// Returns the tokens granted to requests for everything, in small steps, within a time.
async fn drunk(world: &World, throttle: &str, time: Duration) -> u32 {
    let mut taken = 0;
    for _ in 0..100 {
        world.pass(time / 100);
        taken += took(world, throttle, 100_000).await.granted;
    }
    taken
}

async fn the_rate_is_never_above_what_can_be_borne(world: World) {
    for (knobs, capacity, expected) in [
        (vec![("rps", "20")], Some(5.0), 5.0),
        (vec![("rps", "20")], Some(50.0), 20.0),
        (vec![("rps", "-1")], Some(5.0), 5.0),
        (vec![("rps", "20")], Some(-1.0), 20.0),
        (vec![("rps", "20")], None, 20.0),
        (vec![("rps", "20")], Some(f64::NAN), 0.0),
        (vec![("rps", "20"), ("paused", "1")], Some(5.0), 0.0),
        (vec![("rps", "ten"), ("safe_rps", "8")], Some(5.0), 5.0),
        (
            vec![
                ("rps", "20"),
                ("safe_rps", "8"),
                ("mode", "auto"),
                ("valid_until", "1"),
            ],
            Some(5.0),
            5.0,
        ),
        (
            vec![
                ("rps", "20"),
                ("safe_rps", "8"),
                ("mode", "auto"),
                ("valid_until", "1"),
            ],
            Some(9.0),
            8.0,
        ),
        // Without a capacity, a throttle that drops rounds up to whole tokens.
        (
            vec![("rps", "20.5"), ("over_limit", "drop")],
            Some(5.5),
            5.5,
        ),
    ] {
        let throttle =
            format!("t{}-{capacity:?}-{}", knobs.len(), knobs[0].1).replace(['(', ')'], "");
        let sentence = format!("{knobs:?} {capacity:?}");
        world.knobs(&throttle, &knobs);
        set_capacity(&world, &throttle, capacity, "two accounts").await;
        let answer = world.store.peek(&ask(&throttle, &[("", 1, 1.0)])).await;
        assert_eq!(answer.effective_rps.number(), expected, "{sentence}");
        assert_eq!(
            status(&world, &throttle).await.effective_rps.number(),
            expected,
            "{sentence}"
        );
        for (field, _) in &knobs {
            world.remove(&throttle, field);
        }
    }
    world.knobs("flow", &[("rps", "1000"), ("burst", "0")]);
    set_capacity(&world, "flow", Some(10.0), "").await;
    drunk(&world, "flow", Duration::from_secs(1)).await;
    let flowed = drunk(&world, "flow", Duration::from_secs(20)).await;
    assert!(
        (199..=201).contains(&flowed),
        "{flowed} in 20 s at 10 a second"
    );
}

async fn what_bears_nothing_is_stopped_with_its_reason_and_resumes_empty(world: World) {
    world.knobs("sms", &[("rps", "10"), ("burst", "10")]);
    world.knobs("below", &[("rps", "10"), ("parent", "sms")]);
    took(&world, "sms", 1).await;
    world.pass(Duration::from_secs(60));
    let stopped = |why: &str| {
        Some(Limit::Stopped {
            name: name("sms"),
            why: why.to_owned(),
        })
    };

    set_capacity(
        &world,
        "sms",
        Some(0.0),
        "no account is available: tokyo blocked for 60 s",
    )
    .await;
    let sentence = stopped("no account is available: tokyo blocked for 60 s");
    assert_eq!(took(&world, "sms", 1).await.limit, sentence);
    assert_eq!(
        took(&world, "below", 1).await.limit,
        sentence,
        "and its children report the same"
    );
    set_capacity(&world, "sms", Some(0.0), "").await;
    assert_eq!(
        took(&world, "sms", 1).await.limit,
        stopped("its capacity is 0")
    );
    world.write("sms", "paused", "1");
    assert_eq!(
        took(&world, "sms", 1).await.limit,
        stopped(""),
        "a person's pause comes first"
    );
    world.remove("sms", "paused");
    world.pass(Duration::from_secs(60));

    set_capacity(&world, "sms", Some(4.0), "one account").await;
    assert_eq!(
        took(&world, "sms", 100).await.granted,
        0,
        "what passed while nothing was borne is no refill"
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(took(&world, "sms", 100).await.granted, 4);
    set_capacity(&world, "sms", None, "").await;
    let after = status(&world, "sms").await;
    assert_eq!(
        (
            after.effective_rps.number(),
            after.raw.get("capacity"),
            after.raw.get("capacity_reason")
        ),
        (10.0, None, None)
    );
}

async fn a_capacity_that_cannot_be_read_speeds_nothing_up(world: World) {
    world.knobs(
        "a",
        &[("rps", "20"), ("safe_rps", "2"), ("capacity", "much")],
    );
    let careful = status(&world, "a").await;
    assert_eq!(careful.effective_rps.number(), 2.0);
    assert_eq!(careful.problems[0].field, "capacity");
    assert!(
        careful.problems[0]
            .message
            .contains("running at 2 tokens per second"),
        "{}",
        careful.problems[0].message
    );
    world.write("a", "rps", "1");
    assert_eq!(status(&world, "a").await.effective_rps.number(), 1.0);
    assert_eq!(
        world
            .store
            .peek(&ask("a", &[("", 1, 1.0)]))
            .await
            .effective_rps
            .number(),
        1.0
    );
}

async fn a_pools_word_is_nobodys_edit(world: World) {
    let change = Change {
        fields: fields(&[("rps", "10")]),
        by: "ann".into(),
        why: "a test".into(),
        create: true,
        ..Change::default()
    };
    world.store.set(&name("a"), &change).await.unwrap();
    let before = status(&world, "a").await;
    world.pass(Duration::from_secs(9));

    set_capacity(&world, "a", Some(3.5), "two of five accounts").await;

    let after = status(&world, "a").await;
    let sentence = |status: &Status| {
        (
            status.knobs.seq,
            status.knobs.by.clone(),
            status.knobs.at_ms,
            status.knobs.why.clone(),
        )
    };
    assert_eq!(sentence(&after), sentence(&before));
    assert_eq!(
        (
            after.knobs.capacity.number(),
            after.knobs.capacity_reason.as_str()
        ),
        (3.5, "two of five accounts")
    );
    assert_eq!(after.knobs.rps.number(), 10.0);
    let missing = world
        .store
        .set_capacity(&name("missing"), RateLimit::PerSecond(1.0), "")
        .await;
    assert!(matches!(missing, Err(Error::Unknown(missing)) if missing == name("missing")));
    assert_eq!(
        world.store.status(&name("missing")).await.unwrap(),
        None,
        "and makes no throttle"
    );
}

async fn who_writes_under_a_condition_is_not_disturbed_by_a_pools_word(world: World) {
    world.knobs("a", &[("rps", "10"), ("seq", "7")]);
    for capacity in [Some(5.0), Some(0.0), None, Some(6.0)] {
        let seen = status(&world, "a").await;
        set_capacity(&world, "a", capacity, "").await;
        let change = Change {
            fields: fields(&[("rps", &format!("{}", seen.knobs.rps.number() + 1.0))]),
            if_seq: Some(seen.knobs.seq),
            if_rps: seen.raw.get("rps").cloned(),
            term: Some(1),
            by: "governor".into(),
            ..Change::default()
        };
        set_capacity(&world, "a", capacity, "again").await;
        world.store.set(&name("a"), &change).await.unwrap();
    }
    let after = status(&world, "a").await;
    assert_eq!(
        (after.knobs.rps.number(), after.knobs.capacity.number()),
        (14.0, 6.0)
    );
}

async fn a_persons_capacity_is_an_edit_and_takes_the_pools_reason_away(world: World) {
    world.knobs("a", &[("rps", "10")]);
    set_capacity(&world, "a", Some(0.0), "no account is available").await;
    let change = Change {
        fields: fields(&[("capacity", "0")]),
        by: "ann".into(),
        why: "provider is down".into(),
        ..Change::default()
    };
    let (_, after) = world.store.set(&name("a"), &change).await.unwrap();
    assert_eq!(
        (
            after.knobs.by.as_str(),
            after.knobs.capacity.number(),
            after.knobs.capacity_reason.as_str()
        ),
        ("ann", 0.0, "")
    );
}

async fn a_lease_lets_go_when_nothing_can_be_borne(world: World) {
    world.knobs("a", &[("rps", "1000"), ("burst", "1")]);
    let leased = LeasedStore::new(world.store.clone(), Duration::from_millis(250));
    let one = ask("a", &[("", 1, 1.0)]);
    for _ in 0..300 {
        world.pass(Duration::from_millis(2));
        leased.acquire(&one).await;
    }
    leased
        .set_capacity(&name("a"), RateLimit::Stopped, "no account is available")
        .await
        .unwrap();
    let limit = leased.acquire(&one).await.lanes.remove(0).limit;
    assert_eq!(
        limit,
        Some(Limit::Stopped {
            name: name("a"),
            why: "no account is available".into()
        })
    );
    assert_eq!(
        leased.look(&name("a"), &["k".to_owned()]).await.unwrap(),
        [KeyState::default()]
    );
}
