//! Throttles that take tokens from other throttles.

use std::time::Duration;

use flyball::throttle::Limit;

use super::world::{World, ask, laws, name, stop_of};

laws! {
    a_parent_limits_its_children_and_is_charged_for_what_they_got,
    a_parent_takes_effect_at_once_and_a_missing_one_stops_its_children,
    a_circle_of_parents_still_answers,
    who_borrows_takes_what_the_parent_has_to_spare_and_no_more,
    who_does_not_borrow_keeps_to_its_own_rate,
    who_borrows_may_have_blanks_around_its_rate,
    siblings_that_keep_to_their_rate_never_wait_for_a_borrower,
    four_levels_are_charged_in_one_call,
    parents_with_long_names_are_told_apart,
}

async fn a_parent_limits_its_children_and_is_charged_for_what_they_got(world: World) {
    world.knobs("root", &[("rps", "3")]);
    world.knobs("child", &[("rps", "1000"), ("parent", "root")]);
    world.take("root", 1).await;
    world.take("child", 1).await;
    world.pass(Duration::from_secs(10));

    let answer = world.take("child", 1000).await;

    assert_eq!(answer.lanes[0].granted, 3);
    assert_eq!(
        answer.lanes[0].limit,
        Some(Limit::Tier { name: name("root") })
    );
    assert_eq!(answer.lanes[0].charge_us.len(), 3);
    assert_eq!(world.granted("root", 1).await, 0);
    assert_eq!(
        world.status("child").await.used,
        3.0,
        "the child is charged for three, not for a thousand"
    );
    assert_eq!(
        world.status("child").await.limited_us,
        0.0,
        "it is not the child that limits"
    );
    world.pass(Duration::from_secs(1));
    assert!(world.status("root").await.limited_us > 0.0);
}

async fn a_parent_takes_effect_at_once_and_a_missing_one_stops_its_children(world: World) {
    world.knobs("child", &[("rps", "1000")]);
    world.take("child", 1).await;
    world.write("child", "parent", "root");
    let unknown = world.take("child", 1).await;
    world.write("root", "rps", "0");
    let stopped = world.take("child", 1).await;
    world.remove("child", "parent");
    world.pass(Duration::from_secs(1));

    assert_eq!(
        unknown.lanes[0].limit,
        Some(Limit::Unknown { name: name("root") })
    );
    assert_eq!(stopped.lanes[0].limit, Some(stop_of("root")));
    assert_eq!(stopped.effective_rps.number(), 1000.0);
    assert_eq!(world.granted("child", 1).await, 1);
}

async fn a_circle_of_parents_still_answers(world: World) {
    world.knobs("a", &[("rps", "10"), ("parent", "b")]);
    world.knobs("b", &[("rps", "10"), ("parent", "a")]);
    world.knobs("self", &[("rps", "10"), ("parent", "self")]);

    assert_eq!(world.granted("a", 1).await, 1);
    assert_eq!(world.granted("self", 1).await, 1);
}

/// Returns the tokens granted to `throttle` in a minute of requesting everything every 10 ms.
async fn minute_of(world: &World, throttle: &str) -> f64 {
    world.drink(throttle, Duration::from_secs(2)).await;
    world.drink(throttle, Duration::from_secs(60)).await / 60.0
}

async fn who_borrows_takes_what_the_parent_has_to_spare_and_no_more(world: World) {
    world.knobs("parent", &[("rps", "100")]);
    world.knobs(
        "child",
        &[("rps", "10"), ("parent", "parent"), ("borrow", "true")],
    );

    let alone = minute_of(&world, "child").await;

    assert!((99.0..=101.0).contains(&alone), "{alone}");
    world.write("parent", "rps", "-1");
    assert_eq!(
        world.granted("child", 5000).await,
        5000,
        "a parent without a limit has any number to spare"
    );
    world.write("parent", "rps", "0");
    assert_eq!(
        world.granted("child", 5).await,
        0,
        "and one that is stopped has none"
    );
}

async fn who_does_not_borrow_keeps_to_its_own_rate(world: World) {
    world.knobs("parent", &[("rps", "100")]);
    world.knobs(
        "child",
        &[("rps", "10"), ("parent", "parent"), ("borrow", "false")],
    );
    world.knobs("plain", &[("rps", "20"), ("parent", "parent")]);

    let (child, plain) = (
        minute_of(&world, "child").await,
        minute_of(&world, "plain").await,
    );

    assert!(
        (9.9..=10.1).contains(&child) && (19.9..=20.1).contains(&plain),
        "{child} and {plain}"
    );
}

async fn siblings_that_keep_to_their_rate_never_wait_for_a_borrower(world: World) {
    world.knobs("parent", &[("rps", "100")]);
    world.knobs(
        "greedy",
        &[("rps", "10"), ("parent", "parent"), ("borrow", "1")],
    );
    world.knobs("steady", &[("rps", "60"), ("parent", "parent")]);
    let (mut greedy, mut steady) = (0, 0);

    for _ in 0..6_000 {
        world.pass(Duration::from_millis(10));
        greedy += world.granted("greedy", 1000).await;
        steady += world.granted("steady", 1000).await;
    }

    assert!(
        (3_560..=3_660).contains(&steady),
        "60 a second for a minute: {steady}"
    );
    assert!(
        (2_350..=2_500).contains(&greedy),
        "and what is left of 100: {greedy}"
    );
}

async fn four_levels_are_charged_in_one_call(world: World) {
    for (name, parent) in [("a", ""), ("b", "a"), ("c", "b"), ("d", "c")] {
        world.knobs(name, &[("rps", "40"), ("parent", parent)]);
    }
    world.knobs("d", &[("rps", "100"), ("key_rps", "50")]);
    world.store.acquire(&ask("d", &[("k", 1, 1.0)])).await;
    world.pass(Duration::from_secs(1));

    let answer = world.store.acquire(&ask("d", &[("k", 100, 1.0)])).await;

    assert_eq!(answer.lanes[0].granted, 40);
    assert_eq!(answer.lanes[0].limit, Some(Limit::Tier { name: name("a") }));
    for level in ["a", "b", "c", "d"] {
        assert_eq!(world.status(level).await.used, 41.0, "{level}");
    }
}

async fn parents_with_long_names_are_told_apart(world: World) {
    let parents = ["a", "b"].map(|end| format!("{}{end}", "p".repeat(80)));
    for (child, parent) in [
        ("first", parents[0].as_str()),
        ("second", parents[1].as_str()),
    ] {
        world.knobs(parent, &[("rps", "10")]);
        world.knobs(child, &[("rps", "10"), ("parent", parent)]);
    }

    for child in ["first", "second", "first"] {
        assert_eq!(world.granted(child, 1).await, 1, "{child}");
        world.pass(Duration::from_secs(1));
    }
    for (parent, used) in parents.iter().zip([2.0, 1.0]) {
        assert_eq!(world.status(parent).await.used, used, "{parent}");
    }
}

async fn who_borrows_may_have_blanks_around_its_rate(world: World) {
    world.knobs("root", &[("rps", "10")]);
    // As `echo 2 | redis-cli -x` writes it.
    world.knobs(
        "child",
        &[("rps", " 2\n"), ("borrow", "1"), ("parent", "root")],
    );

    let answer = world.take("child", 1).await;

    assert_eq!(answer.lanes[0].granted, 1, "{answer:?}");
    assert_eq!(answer.effective_rps.number(), 2.0);
    world.knobs("child", &[("parent", "")]);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.granted("child", 1).await, 1);
}
