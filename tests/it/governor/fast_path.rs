//! The fast path between two ticks: what a person wrote meanwhile is theirs, and a trip reaches the
//! knob.

use std::sync::atomic::Ordering;

use flyball::governor::RoundReport;

use super::rig::{Rig, SECOND_US};

/// A load so far above the trip level that one look trips the breaker.
const WILD: f64 = 9.0;

impl Rig {
    /// Runs the fast path alone, a second later, on a page that shows `load`.
    async fn look(&self, load: f64) -> RoundReport {
        self.clock.fetch_add(SECOND_US, Ordering::SeqCst);
        {
            let mut world = self.world.lock().unwrap();
            world.now_s += 1.0;
            world.average = load;
        }
        let report = self.governor.fast(self.term).await;
        assert!(report.problems.is_empty(), "{report:?}");
        report
    }

    /// Begins a term whose next tick is several seconds away.
    async fn between_ticks() -> Self {
        let mut rig = Self::new("auto").await;
        rig.run(60).await;
        rig.policy.law.tick_s = 10.0;
        rig.succeed();
        rig.run(2).await;
        rig
    }
}

#[tokio::test]
async fn a_stop_and_nonsense_that_no_tick_has_seen_yet_are_not_replaced_by_a_trip() {
    for text in ["0", "ten"] {
        let mut rig = Rig::between_ticks().await;
        rig.store.write_raw(&rig.name, "rps", text);
        for _ in 0..2 {
            assert_eq!(rig.look(WILD).await.tripped, 0, "{text}");
        }
        assert_eq!(rig.status().await.raw["rps"], text);

        rig.world.lock().unwrap().average = 0.2;
        rig.background = 0.0;
        rig.run(90).await;
        assert_eq!(rig.status().await.raw["rps"], text);
        assert_eq!(rig.newest().await.limiting, "person");
    }
}

#[tokio::test]
async fn a_rate_that_no_tick_has_seen_yet_is_held_after_a_trip() {
    let mut rig = Rig::between_ticks().await;
    rig.store.write_raw(&rig.name, "rps", "5");
    assert_eq!(rig.look(WILD).await.tripped, 1);
    assert_eq!(rig.status().await.raw["rps"], "0.000");

    rig.world.lock().unwrap().average = 0.2;
    for _ in 0..50 {
        rig.second().await;
        assert!(rig.rps().await <= 5.0, "{}", rig.rps().await);
    }
    assert!(rig.rps().await > 0.0, "{}", rig.newest().await.reason);
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    let hand = view.manual_override.expect("an override");
    assert_eq!((hand.what.as_str(), hand.by.as_deref()), ("rps 5", None));
}
