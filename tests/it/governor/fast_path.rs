//! The fast path between two ticks: what a person wrote meanwhile is theirs, and a trip reaches the
//! knob.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flyball::governor::{Governor, RoundReport};
use flyball::signals::{no_depth, no_feedback};
use flyball::throttle::{MemoryStore, Name};

use super::rig::{Rig, SECOND_US};
use crate::support::observed_store::ObservedStore;

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

    /// Hands the governor over to a process that is beaten to a write of the rate by `act`, once
    /// for each time that the returned flag is set.
    async fn beaten_by(
        &mut self,
        act: impl Fn(&MemoryStore, &Name) + Send + Sync + 'static,
    ) -> Arc<AtomicBool> {
        let is_armed = Arc::new(AtomicBool::new(false));
        let (memory, name, armed) = (self.store.clone(), self.name.clone(), is_armed.clone());
        let store = ObservedStore::new(self.store.clone(), |_, _| {}).before_set(move |change| {
            if change.fields.contains_key("rps") && armed.swap(false, Ordering::SeqCst) {
                act(&memory, &name);
            }
        });
        self.governor = Governor::new(
            Arc::new(store),
            self.journal.clone(),
            &self.url,
            no_depth(),
            vec![(self.name.clone(), self.policy.clone())],
            no_feedback(),
        )
        .unwrap();
        self.term += 1;
        self.run(4).await;
        is_armed
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

#[tokio::test]
async fn a_stop_that_loses_against_another_write_is_written_at_the_next_look() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    let is_armed = rig
        .beaten_by(|store, name| {
            store.write_raw(name, "rps", "51");
            store.write_raw(name, "governed", "51");
        })
        .await;

    is_armed.store(true, Ordering::SeqCst);
    assert_eq!(rig.look(WILD).await.tripped, 1);
    assert_eq!(rig.status().await.raw["rps"], "51");
    assert_eq!(rig.look(WILD).await.tripped, 0, "it is the same trip");
    assert_eq!(rig.status().await.raw["rps"], "0.000");
}

#[tokio::test]
async fn a_throttle_that_a_person_takes_over_at_the_last_moment_keeps_its_rate() {
    for trips in [true, false] {
        let mut rig = Rig::new("auto").await;
        rig.run(20).await;
        let is_armed = rig
            .beaten_by(|store, name| store.write_raw(name, "mode", "manual"))
            .await;
        let before = rig.status().await.raw;

        is_armed.store(true, Ordering::SeqCst);
        if trips {
            assert_eq!(rig.look(WILD).await.tripped, 1);
        } else {
            rig.run(2).await;
        }
        let after = rig.status().await.raw;
        assert_eq!(after["mode"], "manual", "trips: {trips}");
        assert_eq!(after["rps"], before["rps"], "trips: {trips}");
    }
}
