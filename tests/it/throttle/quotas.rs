//! Quotas stated in a server's answers.

use std::time::Duration;

use flyball::throttle::{KeyOutcomes, Limit, Quota};

use super::refusals::{success, work};
use super::world::{World, laws, name};

laws! {
    a_quota_that_is_reported_slows_its_key_and_is_forgotten_with_its_window,
    a_quota_that_is_reported_stops_its_key_for_a_minute_at_most_and_a_stranger_stops_no_lane_of_many,
}

async fn a_quota_that_is_reported_slows_its_key_and_is_forgotten_with_its_window(world: World) {
    world.knobs("a", &[("rps", "-1")]);
    let granted = async || {
        world
            .store
            .acquire(&work("a", &[("k", 1000, 1.0)]))
            .await
            .lanes
            .remove(0)
    };
    let quota = Some(Quota {
        remaining: 20.0,
        reset: Duration::from_secs(10),
    });
    world
        .store
        .ended(
            &name("a"),
            &[KeyOutcomes {
                quota,
                ..success("k", 1)
            }],
        )
        .await
        .unwrap();

    let mut taken = granted().await.granted;
    for _ in 0..99 {
        world.pass(Duration::from_millis(100));
        taken += granted().await.granted;
    }
    assert!((20..=22).contains(&taken), "{taken}");
    world.pass(Duration::from_millis(100));
    assert!(
        granted().await.granted <= 3,
        "the next window begins as this one did"
    );
    world.pass(Duration::from_secs(10));
    assert_eq!(granted().await.granted, 1000);

    let spent = Some(Quota {
        remaining: 0.0,
        reset: Duration::from_secs(10),
    });
    world
        .store
        .ended(
            &name("a"),
            &[KeyOutcomes {
                quota: spent,
                ..success("k", 1)
            }],
        )
        .await
        .unwrap();
    let grant = granted().await;
    assert_eq!(
        (grant.granted, grant.limit, grant.wait),
        (0, Some(Limit::Learned), Duration::from_secs(10))
    );
}

async fn a_quota_that_is_reported_stops_its_key_for_a_minute_at_most_and_a_stranger_stops_no_lane_of_many(
    world: World,
) {
    let year = Some(Quota {
        remaining: 0.0,
        reset: Duration::from_secs(31_536_000),
    });
    world.knobs("a", &[("rps", "-1")]);
    let granted = async |key: &str| {
        world
            .store
            .acquire(&work("a", &[(key, 1000, 1.0)]))
            .await
            .lanes
            .remove(0)
            .granted
    };
    for key in ["k", ""] {
        let ended = KeyOutcomes {
            quota: year,
            is_untrusted: true,
            ..success(key, 1)
        };
        world.store.ended(&name("a"), &[ended]).await.unwrap();
    }
    assert_eq!((granted("k").await, granted("").await), (0, 1000));

    let mut probes = 0;
    for _ in 0..600 {
        world.pass(Duration::from_secs(1));
        let probe = granted("k").await;
        probes += probe;
        if probe > 0 {
            world
                .store
                .ended(
                    &name("a"),
                    &[KeyOutcomes {
                        quota: year,
                        is_untrusted: true,
                        ..success("k", probe)
                    }],
                )
                .await
                .unwrap();
        }
    }
    assert!((9..=10).contains(&probes), "one a minute: {probes} in ten");
    world.pass(Duration::from_secs(3600));
    assert_eq!(granted("k").await, 1000, "it counts for an hour");

    world.knobs("a", &[("trust_scope", "throttle")]);
    world
        .store
        .ended(
            &name("a"),
            &[KeyOutcomes {
                quota: year,
                is_untrusted: true,
                ..success("", 1)
            }],
        )
        .await
        .unwrap();
    assert_eq!(granted("").await, 0, "where one stands behind all");
    world.knobs("b", &[("rps", "-1"), ("max_pause", "5")]);
    world
        .store
        .ended(
            &name("b"),
            &[KeyOutcomes {
                quota: year,
                ..success("k", 1)
            }],
        )
        .await
        .unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(
        world
            .store
            .acquire(&work("b", &[("k", 1000, 1.0)]))
            .await
            .lanes[0]
            .granted,
        1000,
        "no longer than the knob says"
    );
}
