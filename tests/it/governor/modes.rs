//! Manual control has priority: every change of mode is bumpless, a manual mode may have an end,
//! the author of each change is recorded, and shadow mode keeps a score.

use std::collections::BTreeSet;

use flyball::governor::GovernorView;
use flyball::governor::why::{self, WhyInput};
use flyball::governor::{Decision, Phase};
use flyball::throttle::{Change, Knobs, Mode, Store};
use serde_json::json;

use super::Rig;

impl Rig {
    /// An edit through one of Flyball's own interfaces.
    async fn turns(&self, fields: &[(&str, serde_json::Value)], by: &str, why: &str) {
        let fields = fields
            .iter()
            .map(|(field, value)| ((*field).to_owned(), value.clone()))
            .collect();
        let fields = Knobs::check(&fields).unwrap();
        let change = Change {
            fields,
            by: by.to_owned(),
            why: why.to_owned(),
            ..Change::default()
        };
        self.store.set(&self.name, &change).await.unwrap();
    }

    fn view(&self) -> GovernorView {
        self.governor
            .snapshot(self.now())
            .remove(&self.name)
            .expect("a view")
    }

    async fn decisions(&self) -> Vec<Decision> {
        self.journal.recent(Some("reindex"), 1000).await.unwrap()
    }
}

/// A path through every change of mode, once each.
const WAYS: [&str; 13] = [
    "auto", "manual", "auto", "shadow", "auto", "off", "manual", "shadow", "manual", "off",
    "shadow", "off", "auto",
];

/// The factor by which one tick may raise the rate (4 per minute, ticks of 2 s); at the setpoint a
/// tick hardly lowers it.
const STEP: f64 = 1.06;

#[track_caller]
fn near(what: &str, before: f64, after: f64) {
    assert!(
        after <= before * STEP && after >= before / STEP,
        "{what}: {before} became {after}"
    );
}

/// Makes every change of mode, by edits through an interface or with redis-cli.
async fn every_way(by_the_program: bool) {
    let ways: BTreeSet<_> = WAYS.windows(2).map(|way| (way[0], way[1])).collect();
    assert!(
        ways.len() == 12 && ways.iter().all(|(from, to)| from != to),
        "all of them: {ways:?}"
    );
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    for way in WAYS.windows(2) {
        let (what, mode) = (way.join(" to "), way[1]);
        let before = rig.rps().await;
        if by_the_program {
            rig.turns(&[("mode", json!(mode))], "ann", "a try").await;
        } else {
            rig.store.write_raw(&rig.name, "mode", mode);
        }
        // Long enough for the governor's lease to expire.
        for second in 0..20 {
            rig.second().await;
            let status = rig.status().await;
            if second < 3 {
                near(&what, before, status.knobs.rps.number());
            }
            near(
                &format!("{what}, in force"),
                status.knobs.rps.number(),
                status.effective_rps.number(),
            );
            assert!(
                mode == "auto" || status.knobs.rps.number() == before,
                "{what}: it is a person's"
            );
        }
        assert_eq!(rig.status().await.knobs.mode.as_str(), mode);
    }
    assert!((rig.load() - 1.0).abs() < 0.15, "load {}", rig.load());
    let decisions: BTreeSet<&str> = rig
        .decisions()
        .await
        .iter()
        .map(|one| one.mode.as_str())
        .collect();
    assert_eq!(
        decisions,
        WAYS.into_iter().collect(),
        "the journal tells of each"
    );
}

#[tokio::test]
async fn every_change_of_mode_through_the_program_is_without_a_jump() {
    every_way(true).await;
}

#[tokio::test]
async fn every_change_of_mode_with_redis_cli_is_without_a_jump() {
    every_way(false).await;
}

#[tokio::test]
async fn a_trip_does_not_become_a_manual_stop_by_a_pause_or_another_mode() {
    for (field, away, back) in [
        ("paused", "1", "0"),
        ("mode", "shadow", "auto"),
        ("mode", "manual", "auto"),
    ] {
        let mut rig = Rig::new("auto").await;
        rig.run(200).await;
        rig.trip().await;

        rig.store.write_raw(&rig.name, field, away);
        rig.run(10).await;
        assert_eq!(rig.status().await.raw["rps"], "0.000", "{field} {away}");
        rig.store.write_raw(&rig.name, field, back);
        rig.cost /= 10.0;
        rig.run(120).await;

        let reason = rig.newest().await.reason;
        assert!(rig.rps().await > 0.0, "{field} {away}: {reason}");
    }
}

#[tokio::test]
async fn a_manual_mode_with_an_end_goes_back_by_itself_without_a_jump_and_says_so() {
    for before in ["auto", "shadow", "off"] {
        let mut rig = Rig::new(before).await;
        rig.run(60).await;
        let until_ms = ((rig.now() + 60.0) * 1e3) as i64;
        rig.turns(
            &[
                ("mode", json!("manual")),
                ("rps", json!(40)),
                ("manual_until_ms", json!(until_ms)),
            ],
            "ann",
            "a test",
        )
        .await;
        for _ in 0..59 {
            rig.second().await;
            let knobs = rig.status().await.knobs;
            assert_eq!((knobs.mode, knobs.rps.number()), (Mode::Manual, 40.0));
        }
        let hand = rig.view().manual_override.expect("an override");
        assert_eq!(
            (hand.what.as_str(), hand.by.as_deref(), hand.why.as_str()),
            ("mode manual, rps 40", Some("ann"), "a test")
        );

        rig.run(4).await;
        let status = rig.status().await;
        assert_eq!(
            (status.knobs.mode.as_str(), status.knobs.manual_until_ms),
            (before, None)
        );
        assert_eq!(
            (status.knobs.by.as_str(), status.lease_expired),
            ("governor", false)
        );
        near(before, 40.0, status.effective_rps.number());
        let decisions = rig.decisions().await;
        let output = decisions
            .iter()
            .find(|one| one.reason.starts_with("manual mode is over since "))
            .expect("it says so");
        assert!(
            output
                .reason
                .contains(&format!("; back to {before}, continuing from 40 rps")),
            "{}",
            output.reason
        );
        assert!(
            decisions.iter().any(|one| one
                .reason
                .contains("ann (\"a test\") set mode manual, rps 40")),
            "{decisions:?}"
        );

        rig.run(100).await;
        let rps = rig.rps().await;
        assert!(
            if before == "auto" {
                rps > 60.0
            } else {
                rps == 40.0
            },
            "{before}: {rps}"
        );
    }
}

#[tokio::test]
async fn an_end_may_be_put_off_taken_away_and_made_void_by_another_mode() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    let until = |rig: &Rig, seconds: f64| json!(((rig.now() + seconds) * 1e3) as i64);
    rig.turns(
        &[
            ("mode", json!("manual")),
            ("manual_until_ms", until(&rig, 30.0)),
        ],
        "ann",
        "",
    )
    .await;
    rig.run(20).await;
    rig.turns(&[("manual_until_ms", until(&rig, 60.0))], "ann", "")
        .await;
    rig.run(40).await;
    assert_eq!(rig.status().await.knobs.mode, Mode::Manual, "put off");
    rig.turns(&[("manual_until_ms", json!(null))], "ann", "")
        .await;
    rig.run(60).await;
    assert_eq!(rig.status().await.knobs.mode, Mode::Manual, "taken away");

    rig.turns(&[("manual_until_ms", until(&rig, 10.0))], "ann", "")
        .await;
    rig.turns(&[("mode", json!("off"))], "ann", "").await;
    assert_eq!(rig.status().await.knobs.manual_until_ms, None);
    rig.run(30).await;
    assert_eq!(rig.status().await.knobs.mode, Mode::Off, "void");

    // With redis-cli, in milliseconds; seconds given by mistake are reported and end nothing.
    rig.store.write_raw(&rig.name, "mode", "manual");
    rig.store
        .write_raw(&rig.name, "manual_until_ms", &format!("{:.0}", rig.now()));
    rig.run(10).await;
    let status = rig.status().await;
    assert_eq!(
        (status.knobs.mode, status.problems[0].field.as_str()),
        (Mode::Manual, "manual_until_ms")
    );
    rig.store.write_raw(
        &rig.name,
        "manual_until_ms",
        &format!("{:.0}", (rig.now() + 5.0) * 1e3),
    );
    rig.run(10).await;
    assert_eq!(rig.status().await.knobs.mode, Mode::Off);
}

/// With `redis-cli` the mode goes and its end stays.
#[tokio::test]
async fn an_end_that_an_earlier_manual_mode_left_behind_does_not_end_the_next_one() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    let end_ms = (rig.now() + 30.0) * 1e3;
    rig.store.write_raw(&rig.name, "mode", "manual");
    rig.store
        .write_raw(&rig.name, "manual_until_ms", &format!("{end_ms:.0}"));
    rig.run(10).await;
    rig.store.write_raw(&rig.name, "mode", "auto");
    rig.run(10).await;
    let until_ms = rig.status().await.knobs.manual_until_ms;
    assert_eq!(until_ms, Some(end_ms.round() as i64), "it may still come");
    rig.run(30).await;
    assert_eq!(rig.status().await.knobs.manual_until_ms, None, "it is over");

    rig.store.write_raw(&rig.name, "mode", "manual");
    rig.store.write_raw(&rig.name, "rps", "7");
    rig.run(60).await;

    let knobs = rig.status().await.knobs;
    assert_eq!((knobs.mode, knobs.rps.number()), (Mode::Manual, 7.0));
}

#[tokio::test]
async fn the_rate_from_before_that_corrects_an_unreadable_one_is_where_it_continues() {
    let mut rig = Rig::new("auto").await;
    rig.run(120).await;
    let before = rig.status().await.raw["rps"].clone();
    rig.store.write_raw(&rig.name, "rps", "4O");
    rig.run(6).await;
    let status = rig.status().await;
    assert_eq!(
        (status.effective_rps.number(), status.raw["rps"].as_str()),
        (5.0, "4O")
    );

    rig.store.write_raw(&rig.name, "rps", &before);
    rig.run(6).await;
    let (rps, before) = (rig.rps().await, before.parse::<f64>().unwrap());
    assert!((rps / before - 1.0).abs() < 0.1, "{rps}, not {before}");
}

#[tokio::test]
async fn a_rate_that_somebody_writes_has_their_name_in_the_reason() {
    let mut rig = Rig::new("auto").await;
    rig.run(120).await;
    rig.turns(&[("rps", json!(30))], "bob", "the store is ill")
        .await;
    rig.run(10).await;
    let newest = rig.newest().await;
    assert!(
        newest
            .reason
            .contains("; bob (\"the store is ill\") set 30 rps"),
        "{}",
        newest.reason
    );

    rig.store.write_raw(&rig.name, "rps", "25");
    rig.run(10).await;
    let newest = rig.newest().await;
    assert!(
        newest.reason.contains("; somebody set 25 rps"),
        "{}",
        newest.reason
    );
}

#[tokio::test]
async fn a_stop_that_somebody_writes_needs_no_lease_and_has_their_name() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    rig.turns(&[("rps", json!(0))], "ann", "the store is ill")
        .await;
    rig.run(90).await;

    let status = rig.status().await;
    assert!(status.knobs.rps.is_stopped() && !status.lease_expired);
    let view = rig.view();
    let sentence = why::sentence(WhyInput {
        name: "reindex",
        status: Some(&status),
        view: Some(&view),
        decisions: &[],
        pattern: None,
        ready: None,
        now: rig.now(),
    });
    assert!(
        sentence.contains("by ann ") && sentence.contains("(\"the store is ill\")"),
        "{sentence}"
    );
}

#[tokio::test]
async fn shadow_mode_keeps_a_score_that_begins_anew_with_it() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    // A person sets a rate 1.5 times too high.
    rig.turns(&[("mode", json!("shadow")), ("rps", json!(120))], "ann", "")
        .await;
    rig.run(300).await;
    let view = rig.view();
    let score = view.shadow.clone().expect("a score");
    println!("{}", score.sentence);
    assert!(
        rig.load() > 1.3 && rig.rps().await == 120.0,
        "load {}",
        rig.load()
    );
    assert!(
        (70.0..=95.0).contains(&view.rps),
        "it would hold what there is room for: {}",
        view.rps
    );
    assert!(
        score.own_overload_s < 0.5 * score.overload_s && score.own_jobs < score.jobs,
        "{score:?}"
    );
    assert!(
        score.braked_share.unwrap() > 0.8 && score.lower_s > 200.0,
        "{score:?}"
    );
    assert!((score.own_load.unwrap() - 1.0).abs() < 0.2, "{score:?}");

    // A tenfold cost: shadow mode would stop the throttle, and writes nothing.
    rig.cost *= 10.0;
    rig.run(5).await;
    assert!(
        rig.decisions()
            .await
            .iter()
            .any(|one| one.mode == Mode::Shadow && one.breaker == Phase::Open && one.rps == 0.0)
    );
    assert_eq!(rig.status().await.raw["rps"], "120");

    rig.cost /= 10.0;
    rig.turns(&[("mode", json!("auto"))], "ann", "").await;
    rig.run(60).await;
    assert_eq!(rig.view().shadow, None);
    rig.turns(&[("mode", json!("shadow"))], "ann", "").await;
    rig.run(20).await;
    let anew = rig.view().shadow.expect("a score");
    assert!(anew.seconds < 21.0 && anew.since > score.since, "{anew:?}");
}

#[tokio::test]
async fn a_successor_goes_on_with_the_same_score_and_the_same_hand() {
    let mut rig = Rig::new("shadow").await;
    rig.run(100).await;
    rig.turns(&[("rps", json!(50))], "ann", "").await;
    rig.run(20).await;
    let before = rig.view();
    rig.succeed();
    rig.run(3).await;
    let after = rig.view();
    assert!(after.shadow.as_ref().unwrap().seconds >= before.shadow.as_ref().unwrap().seconds);
    assert_eq!(after.shadow.unwrap().since, before.shadow.unwrap().since);
    assert_eq!(after.manual_override, before.manual_override);
}
