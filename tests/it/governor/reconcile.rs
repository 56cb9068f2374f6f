//! The governor's loop: it sets the knob, respects manual edits, and survives lost signals and a
//! change of leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flyball::governor::postgres::{Error as JournalError, STATEMENTS};
use flyball::governor::{Decision, Governor, GovernorView, Journal, Phase, Plan};
use flyball::signals::{no_depth, no_feedback};
use flyball::throttle::{Change, Mode, Name, RateLimit, Store};
use serde_json::json;

use super::rig::{Rig, SECOND_US, governor};
use crate::support;
use crate::support::observed_store::ObservedStore;

#[tokio::test]
async fn the_knob_is_turned_until_the_load_stands_at_the_setpoint() {
    let mut rig = Rig::new("auto").await;
    let mut answer = rig.governor.decisions();
    rig.run(300).await;

    assert!((rig.load() - 1.0).abs() < 0.1, "load {}", rig.load());
    let status = rig.status().await;
    assert!(
        (status.knobs.rps.number() - 80.0).abs() < 8.0,
        "{}",
        status.knobs.rps.number()
    );
    assert_eq!(
        (status.knobs.by.as_str(), status.knobs.term),
        ("governor", 1)
    );
    let lease_ms = status.knobs.valid_until_ms.expect("a lease") - status.at_us / 1000;
    assert!((1..=30_000).contains(&lease_ms), "{lease_ms}");

    let view = rig
        .governor
        .snapshot(rig.now())
        .remove(&rig.name)
        .expect("a view");
    let signal = &view.signals[0];
    assert_eq!(
        (signal.name.as_str(), signal.setpoint, signal.stale),
        ("search-load", 1.0, false)
    );
    assert!(signal.age_s.unwrap() < 5.0 && (signal.value.unwrap() - 1.0).abs() < 0.2);

    let kept = rig.journal.recent(None, 1000).await.unwrap();
    assert!(
        kept.len() > 10 && kept.len() < 140,
        "only news is kept: {}",
        kept.len()
    );
    assert!(
        kept.windows(2)
            .all(|w| w[0].id > w[1].id && w[0].at >= w[1].at)
    );
    assert!(
        kept[0].reason.contains("search-load reads"),
        "{}",
        kept[0].reason
    );
    assert_eq!(answer.recv().await.unwrap(), *kept.last().unwrap());
}

#[tokio::test]
async fn a_rate_that_a_person_writes_is_kept_and_not_raised_for_a_minute() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.store.write_raw(&rig.name, "rps", "30");
    for _ in 0..55 {
        rig.second().await;
        assert!(rig.rps().await <= 30.0, "{}", rig.rps().await);
    }
    assert_eq!(rig.newest().await.limiting, "person");
    rig.run(120).await;
    assert!(
        rig.rps().await > 60.0,
        "then it grows again: {}",
        rig.rps().await
    );
}

#[tokio::test]
async fn a_rate_that_the_governor_had_before_is_a_persons_if_a_person_writes_it() {
    let mut rig = Rig::new("auto").await;
    rig.run(20).await;
    let earlier = rig.status().await.raw["rps"].clone();
    rig.run(2).await;
    assert_ne!(rig.status().await.raw["rps"], earlier, "it has moved since");

    rig.store.write_raw(&rig.name, "rps", &earlier);
    let most = rig.rps().await;
    for _ in 0..55 {
        rig.second().await;
        assert!(rig.rps().await <= most, "{} above {most}", rig.rps().await);
    }
    assert_eq!(rig.newest().await.limiting, "person");

    // And if they try another one in between.
    rig.store.write_raw(&rig.name, "rps", "10");
    rig.run(4).await;
    rig.store.write_raw(&rig.name, "rps", &earlier);
    rig.run(4).await;
    assert_eq!(rig.rps().await, most);
}

#[tokio::test]
async fn a_stop_that_a_person_ends_with_the_rate_from_before_is_over() {
    let mut rig = Rig::new("auto").await;
    rig.run(20).await;
    let before = rig.status().await.raw["rps"].clone();
    rig.store.write_raw(&rig.name, "rps", "0");
    rig.run(10).await;

    rig.store.write_raw(&rig.name, "rps", &before);
    let held = rig.rps().await;
    rig.run(120).await;

    let rate = rig.rps().await;
    assert!(rate > held, "it grows again: {rate} after {held}");
}

#[tokio::test]
async fn a_stop_that_a_person_writes_stays_and_so_does_nonsense() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    for text in ["0", "ten"] {
        rig.store.write_raw(&rig.name, "rps", text);
        rig.run(90).await;
        assert_eq!(rig.status().await.raw["rps"], text);
    }
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert!(
        view.reason.contains("the knob rps must be a number")
            && view.reason.contains("not \"ten\""),
        "{}",
        view.reason
    );
    rig.store.write_raw(&rig.name, "rps", "10");
    rig.run(20).await;
    assert_eq!(rig.rps().await, 10.0);
}

#[tokio::test]
async fn in_manual_mode_the_hand_is_off_and_handing_back_is_bumpless() {
    let mut rig = Rig::new("manual").await;
    rig.run(60).await;
    let status = rig.status().await;
    assert_eq!(
        (status.raw["rps"].as_str(), status.knobs.by.as_str()),
        ("20", "seed")
    );
    rig.store.write_raw(&rig.name, "rps", "33");
    rig.run(60).await;
    let answer: Vec<String> = rig
        .journal
        .recent(None, 10)
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.reason)
        .collect();
    assert_eq!(
        answer,
        [
            "a person controls this throttle (mode manual); somebody set rps 33; the governor only \
            tracks it"
        ]
    );

    rig.store.write_raw(&rig.name, "mode", "auto");
    rig.run(3).await;
    let first = rig.rps().await;
    assert!((first / 33.0 - 1.0).abs() < 0.15, "{first}");
    rig.run(60).await;
    assert!(rig.rps().await > 40.0, "no hold after handing back");
}

#[tokio::test]
async fn in_shadow_mode_everything_is_recorded_and_nothing_written() {
    let mut rig = Rig::new("shadow").await;
    rig.run(120).await;
    assert_eq!(rig.status().await.raw["rps"], "20");
    let decision = rig.newest().await;
    assert_eq!(decision.mode, Mode::Shadow);
    assert!(decision.rps > 25.0, "would raise: {}", decision.rps);
}

#[tokio::test]
async fn a_paused_throttle_is_left_alone() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    rig.store.write_raw(&rig.name, "paused", "1");
    let before = rig.status().await.raw;
    rig.run(60).await;
    assert_eq!(rig.status().await.raw, before);
}

#[tokio::test]
async fn after_a_pause_it_goes_on_at_the_rate_before_although_the_lease_has_lapsed() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    let before = rig.rps().await;
    rig.store.write_raw(&rig.name, "paused", "1");
    rig.run(90).await;
    let paused = rig.status().await;
    assert!(
        paused.knobs.lease_expired(paused.at_us) && !paused.lease_expired,
        "nobody need look for a governor"
    );

    rig.store.write_raw(&rig.name, "paused", "0");
    rig.run(6).await;
    let after = rig.status().await;
    assert!(!after.lease_expired);
    let rps = after.effective_rps.number();
    assert!(rps > 0.7 * before, "{rps} after {before}");
}

#[tokio::test]
async fn without_prometheus_it_holds_then_decays_to_the_safe_rate_and_comes_back() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    let before = rig.rps().await;
    rig.world.lock().unwrap().down = true;
    let mut last = f64::INFINITY;
    for second in 0..160 {
        rig.second().await;
        let rate = rig.rps().await;
        if second > 4 {
            assert!(
                rate <= last * 1.001,
                "never rises while blind: {rate} after {last}"
            );
        }
        if second == 15 {
            assert!((rate / before - 1.0).abs() < 0.06, "holds: {rate}");
        }
        last = rate;
    }
    assert_eq!(rig.rps().await, 5.0);
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(view.limiting, "stale");
    assert!(
        view.signals[0].stale
            && view.signals[0]
                .problem
                .as_ref()
                .unwrap()
                .contains("status 503")
    );
    // What every other process shows.
    let (_, stored) = rig.journal.load("reindex").await.unwrap().unwrap();
    let told = GovernorView::of_stored(stored, &rig.policy, rig.now()).unwrap();
    assert_eq!(told.signals[0].problem, view.signals[0].problem);

    rig.world.lock().unwrap().down = false;
    rig.run(200).await;
    assert!((rig.load() - 1.0).abs() < 0.15, "load {}", rig.load());
}

#[tokio::test]
async fn the_fast_path_stops_the_work_within_seconds_and_restarts_below_the_setpoint() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.cost *= 10.0;
    let mut seconds = 0;
    while rig.status().await.effective_rps.number() > 0.0 {
        rig.second().await;
        seconds += 1;
        assert!(seconds <= 3, "load {}", rig.load());
    }
    let decision = rig.newest().await;
    assert_eq!(
        (decision.breaker, decision.limiting.as_str(), decision.rps),
        (Phase::Open, "breaker", 0.0)
    );
    assert!(
        decision.reason.contains("search-load rose to"),
        "{}",
        decision.reason
    );
    assert_eq!(
        rig.status().await.raw["rps"],
        "0.000",
        "our own spelling of a stop"
    );

    rig.run(100).await;
    assert!((rig.load() - 1.0).abs() < 0.15, "load {}", rig.load());
    let trips = rig
        .journal
        .recent(None, 1000)
        .await
        .unwrap()
        .iter()
        .filter(|d| d.reason.ends_with("stopped"))
        .count();
    assert_eq!(trips, 1, "no second overload");
}

#[tokio::test]
async fn a_successor_goes_on_without_a_jump_and_the_old_leader_is_refused() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    let before = rig.rps().await;
    let old = std::mem::replace(
        &mut rig.governor,
        governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy),
    );
    rig.term = 2;
    rig.run(4).await;
    assert!((rig.rps().await / before - 1.0).abs() < 0.05);
    assert_eq!(rig.status().await.knobs.term, 2);

    let raw = rig.status().await.raw;
    rig.clock.fetch_add(3 * SECOND_US, Ordering::SeqCst);
    rig.world.lock().unwrap().now_s += 3.0;
    assert!(old.tick(1).await.fenced);
    assert_eq!(rig.status().await.raw, raw);
}

#[tokio::test]
async fn a_trip_that_its_leader_could_not_record_is_told_and_ended_by_the_successor() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    let before = rig.rps().await;
    // The leader has written the stop, and ends before it saves its state and records the trip.
    for field in ["rps", "governed"] {
        rig.store.write_raw(&rig.name, field, "0.000");
    }
    rig.succeed();
    rig.run(2).await;
    assert_eq!(rig.status().await.raw["rps"], "0.000");
    let told = rig.newest().await;
    assert_eq!(
        (told.breaker, told.limiting.as_str(), told.rps),
        (Phase::Open, "breaker", 0.0)
    );
    assert!(
        told.reason
            .starts_with("the leader before tripped it and could not record the signal"),
        "{}",
        told.reason
    );

    let mut seconds = 0;
    while rig.rps().await == 0.0 {
        rig.second().await;
        seconds += 1;
        assert!(seconds <= 60, "{}", rig.newest().await.reason);
    }
    assert!(
        rig.rps().await <= before,
        "{} after {before}",
        rig.rps().await
    );
    rig.run(200).await;
    assert!((rig.load() - 1.0).abs() < 0.15, "load {}", rig.load());
}

#[tokio::test]
async fn a_rate_whose_state_could_not_be_kept_is_not_taken_for_a_persons() {
    let mut rig = Rig::new("auto").await;
    rig.run(20).await;
    let (_, older) = rig.journal.load("reindex").await.unwrap().unwrap();
    rig.run(40).await;
    let before = rig.rps().await;
    let wrote = older["wrote"].as_array().unwrap();
    assert!(
        !wrote.contains(&json!(rig.status().await.raw["rps"])),
        "the rate has moved since"
    );

    // As if Postgres had been unavailable for the last forty seconds of the first leader.
    rig.journal.save("reindex", 1, &older).await.unwrap();
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy);
    rig.term = 2;
    rig.run(4).await;
    assert_eq!(rig.status().await.knobs.term, 2);
    let decisions = rig.journal.recent(Some("reindex"), 1000).await.unwrap();
    assert!(
        !decisions.is_empty()
            && decisions
                .iter()
                .all(|decision| decision.limiting != "person"),
        "{before}: {:?}",
        decisions.first()
    );

    rig.store.write_raw(&rig.name, "rps", "30");
    rig.run(4).await;
    assert_eq!(
        (rig.rps().await, rig.newest().await.limiting.as_str()),
        (30.0, "person"),
        "and a person's is"
    );
}

#[tokio::test]
async fn the_first_word_of_a_term_is_written_even_if_the_rate_need_not_move() {
    let mut rig = Rig::new("auto").await;
    rig.run(300).await;
    let before = rig.status().await;
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy);
    rig.term = 2;
    rig.run(3).await;

    let fields = [("rps".to_owned(), Some("777".to_owned()))].into();
    let late = Change {
        fields,
        term: Some(1),
        if_rps: before.raw.get("rps").cloned(),
        by: "governor".into(),
        ..Change::default()
    };
    assert!(
        rig.store.set(&rig.name, &late).await.is_err(),
        "the old leader's word comes too late"
    );
    assert_eq!(rig.status().await.knobs.term, 2);
}

#[tokio::test]
async fn after_a_lapsed_lease_it_starts_from_the_safe_rate() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.clock.fetch_add(60 * SECOND_US, Ordering::SeqCst);
    rig.world.lock().unwrap().now_s += 60.0;
    assert_eq!(rig.status().await.effective_rps.number(), 5.0);
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy);
    rig.term = 2;
    rig.run(4).await;
    assert!(rig.rps().await < 8.0, "{}", rig.rps().await);
}

/// Lets every lease lapse, and another process lead afterwards.
async fn after_a_minute_without_a_governor(rig: &mut Rig) {
    rig.clock.fetch_add(60 * SECOND_US, Ordering::SeqCst);
    rig.world.lock().unwrap().now_s += 60.0;
    assert!(rig.status().await.lease_expired);
    rig.succeed();
}

#[tokio::test]
async fn a_trip_whose_state_is_lost_ends_after_a_lapsed_lease_too() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.trip().await;
    rig.cost /= 10.0;
    {
        let mut world = rig.world.lock().unwrap();
        world.average = 0.2;
        world.scraped.clear();
    }
    let nothing = json!({"form": 99});
    rig.journal.save("reindex", 1, &nothing).await.unwrap();

    after_a_minute_without_a_governor(&mut rig).await;
    rig.run(60).await;
    assert!(rig.rps().await > 0.0, "{}", rig.newest().await.reason);
}

#[tokio::test]
async fn after_a_lapse_to_a_safe_rate_of_0_it_starts_from_the_lowest_rate() {
    for is_lost in [false, true] {
        let mut rig = Rig::new("auto").await;
        rig.store.write_raw(&rig.name, "safe_rps", "0");
        rig.run(200).await;
        if is_lost {
            let nothing = json!({"form": 99});
            rig.journal.save("reindex", 1, &nothing).await.unwrap();
        }

        after_a_minute_without_a_governor(&mut rig).await;
        assert!(rig.status().await.effective_rps.is_stopped());
        rig.run(2).await;
        let rate = rig.rps().await;
        assert!((0.9..2.0).contains(&rate), "is_lost {is_lost}: {rate}");
        rig.run(120).await;
        assert!(rig.rps().await > 2.0 * rate, "is_lost {is_lost}");
    }
}

#[tokio::test]
async fn the_journal_keeps_a_thousand_decisions_of_each_throttle_and_refuses_old_terms() {
    let database = support::database().await;
    let journal = Journal::new(database.pool().clone());
    let decision = |throttle: &str, n: u32| {
        let plan = Plan {
            rps: f64::from(n),
            limiting: "load".to_owned(),
            ..Plan::default()
        };
        Decision::new(
            throttle,
            1_700_000_000.0 + f64::from(n),
            &plan,
            RateLimit::PerSecond(1.0),
            Mode::Auto,
        )
    };
    journal.append(1, &decision("other", 0)).await.unwrap();
    for n in 0..1010 {
        journal.append(1, &decision("reindex", n)).await.unwrap();
    }
    let kept = journal.recent(Some("reindex"), 5000).await.unwrap();
    assert_eq!(kept.len(), 1000);
    assert_eq!((kept[0].rps, kept[999].rps), (1009.0, 10.0));
    assert_eq!(kept[0].terms, json!({}));
    assert_eq!(journal.recent(Some("other"), 10).await.unwrap().len(), 1);
    assert_eq!(journal.recent(None, 3).await.unwrap().len(), 3);

    assert!(journal.load("reindex").await.unwrap().is_none());
    journal.save("reindex", 7, &json!({"a": 1})).await.unwrap();
    journal.save("reindex", 7, &json!({"a": 2})).await.unwrap();
    assert!(matches!(
        journal.save("reindex", 6, &json!({})).await,
        Err(JournalError::Fenced { term: 6, .. })
    ));
    assert!(matches!(
        journal.append(6, &decision("reindex", 1)).await,
        Err(JournalError::Fenced { term: 6, .. })
    ));
    assert_eq!(
        journal.recent(Some("reindex"), 1).await.unwrap()[0].rps,
        1009.0,
        "and nothing was appended"
    );
    assert_eq!(
        journal.load("reindex").await.unwrap(),
        Some((7, json!({"a": 2})))
    );
    assert_eq!(
        journal.load_all().await.unwrap(),
        [("reindex".to_owned(), json!({"a": 2}))]
    );
}

#[tokio::test]
async fn every_statement_of_the_journal_can_be_prepared() {
    use sqlx::{Executor, SqlSafeStr};
    let database = support::database().await;
    for statement in STATEMENTS {
        database
            .pool()
            .prepare(statement.into_sql_str())
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

#[tokio::test]
async fn a_server_that_is_away_keeps_nobody_from_governing_the_throttles_of_the_others() {
    let rig = Rig::new("auto").await;
    let away = Name::new("away").unwrap();
    let governor = |names: &[&Name]| {
        let store = ObservedStore::new(rig.store.clone(), |_, _| {}).without(&away);
        let policies = names
            .iter()
            .map(|name| ((*name).clone(), rig.policy.clone()))
            .collect();
        let (journal, url) = (rig.journal.clone(), &rig.url);
        Governor::new(
            Arc::new(store),
            journal,
            url,
            no_depth(),
            policies,
            no_feedback(),
        )
        .unwrap()
    };

    let both = governor(&[&away, &rig.name]);
    assert!(both.reaches_knobs().await);
    let report = both.tick(rig.term).await;
    assert_eq!(report.decided, 1);
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);

    assert!(!governor(&[&away]).reaches_knobs().await);
}
