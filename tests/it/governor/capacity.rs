//! A limit below the governor's own rate: the integral does not wind up beyond a capacity, beside a
//! typo or beside a window, a pool's capacity does not count as a manual edit, and with no capacity
//! there is no decision.

use flyball::governor::Policy;
use flyball::throttle::{Limit, RateLimit, Store};

use super::Rig;

impl Rig {
    async fn set_capacity(&self, capacity: Option<f64>, why: &str) {
        self.store
            .set_capacity(
                &self.name,
                capacity.map_or(RateLimit::Unlimited, RateLimit::new),
                why,
            )
            .await
            .unwrap();
    }

    /// Returns the rate as written, which a typo elsewhere may keep from being in force.
    async fn written_rps(&self) -> f64 {
        self.status().await.raw["rps"].parse().unwrap()
    }
}

#[tokio::test]
async fn the_knob_does_not_wind_up_beyond_what_can_be_borne() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    assert!(rig.rps().await > 60.0, "{}", rig.rps().await);

    // A pool reports its capacity every second, with slightly different values.
    for second in 0..150 {
        let capacity = 20.0 + f64::from(second % 3);
        rig.set_capacity(Some(capacity), &format!("{second}: two of five accounts"))
            .await;
        assert!(rig.status().await.effective_rps.number() <= capacity);
        rig.second().await;
        assert!(
            second < 3 || rig.rps().await <= 22.0,
            "{second}: {}",
            rig.rps().await
        );
    }
    let status = rig.status().await;
    assert!(
        status.knobs.rps.number() >= 19.9,
        "there is no other reason to be slower: {}",
        status.knobs.rps.number()
    );
    assert_eq!(
        (status.knobs.by.as_str(), status.lease_expired),
        ("governor", false)
    );
    let newest = rig.newest().await;
    assert!(
        newest
            .reason
            .contains("the highest rate allowed (max or capacity)"),
        "{}",
        newest.reason
    );
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(view.manual_override, None, "no person did that");

    rig.set_capacity(None, "").await;
    rig.run(4).await;
    assert!(
        rig.rps().await < 30.0,
        "it grows from there as from anywhere: {}",
        rig.rps().await
    );
    rig.run(150).await;
    assert!(rig.rps().await > 60.0, "{}", rig.rps().await);
}

#[tokio::test]
async fn where_nothing_can_be_borne_nothing_is_decided_and_the_rate_is_there_afterwards() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    let before = rig.status().await;

    rig.set_capacity(Some(0.0), "no account is available").await;
    rig.run(120).await;

    let during = rig.status().await;
    assert_eq!(
        (during.effective_rps.number(), during.raw.get("rps")),
        (0.0, before.raw.get("rps"))
    );
    assert!(!during.lease_expired, "the lease of the rate is kept");
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert!(
        view.reason
            .contains("the system behind this throttle can take nothing (no account is available)"),
        "{}",
        view.reason
    );
    let ask = crate::throttle::ask("reindex", &[("", 1, 1.0)]);
    let limit = rig.store.peek(&ask).await.lanes.remove(0).limit;
    assert_eq!(
        limit,
        Some(Limit::Stopped {
            name: rig.name.clone(),
            why: "no account is available".into()
        })
    );

    rig.set_capacity(Some(1000.0), "").await;
    assert_eq!(
        rig.status().await.effective_rps.number(),
        before.knobs.rps.number()
    );
    rig.run(10).await;
    assert!(
        rig.rps().await > 0.7 * before.knobs.rps.number(),
        "{}",
        rig.rps().await
    );
}

#[tokio::test]
async fn a_trip_does_not_become_a_manual_stop_while_nothing_can_be_borne() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.trip().await;

    rig.set_capacity(Some(0.0), "no account is available").await;
    rig.run(10).await;
    rig.set_capacity(None, "").await;
    rig.cost /= 10.0;
    rig.run(120).await;

    assert!(rig.rps().await > 0.0, "{}", rig.newest().await.reason);
}

#[tokio::test]
async fn the_knob_does_not_wind_up_while_a_typo_holds_the_rate_at_safe_rps() {
    let mut rig = Rig::new("auto").await;
    rig.run(20).await;
    assert!(rig.written_rps().await > 5.0, "{}", rig.written_rps().await);

    rig.store.write_raw(&rig.name, "burst", "abc");
    rig.run(300).await;
    assert!(
        rig.written_rps().await <= 5.0,
        "{}",
        rig.written_rps().await
    );

    rig.store.write_raw(&rig.name, "burst", "1");
    assert!(rig.rps().await <= 5.0, "{}", rig.rps().await);
    rig.run(150).await;
    assert!(
        rig.rps().await > 20.0,
        "it grows from there as from anywhere: {}",
        rig.rps().await
    );
}

#[tokio::test]
async fn the_knob_does_not_wind_up_while_jobs_wait_for_a_window() {
    let mut rig = Rig::new("auto").await;
    rig.run(20).await;
    rig.store.write_raw(&rig.name, "windows", "60/600");
    // The window is used up within seconds.
    rig.run(10).await;
    let before = rig.rps().await;

    for second in 0..300 {
        rig.second().await;
        assert!(
            rig.rps().await <= before,
            "{second}: {} after {before}",
            rig.rps().await
        );
    }
}

#[tokio::test]
async fn a_successor_leaves_slots_alone_where_nothing_can_be_borne() {
    let mut rig = Rig::new("auto").await;
    let text = "[[signal]]\nname = \"search-load\"\nquery = \"load\"\nsetpoint = 1.0\nlag_s = 5\n\
         [governor]\nactuator = \"concurrency\"\ntick_s = 2\ngain = 4\nintegral_min_s = 6\n\
         stale_hold_s = 20\nstale_half_s = 20\n";
    rig.policy = Policy::parse(text, "knobs/reindex.toml").unwrap().unwrap();
    rig.store.write_raw(&rig.name, "concurrency", "8");
    rig.succeed();
    rig.run(10).await;
    let before = rig.status().await;
    assert_eq!(before.knobs.by, "governor");

    rig.set_capacity(Some(0.0), "no account is available").await;
    rig.succeed();
    rig.run(10).await;

    let during = rig.status().await;
    assert_eq!(
        (&during.raw["concurrency"], &during.raw["rps"]),
        (&before.raw["concurrency"], &before.raw["rps"])
    );
}
