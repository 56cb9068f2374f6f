//! Tests of the record of knobs and of their restoring.

use super::*;
use crate::throttle::MemoryStore;
use crate::throttle::on_demand::{CALLER, make};

#[test]
fn an_older_copy_of_the_knobs_is_told_from_a_throttle_that_was_made_anew() {
    let fields = |seq: &str, at: &str| {
        BTreeMap::from([("seq", seq), ("at", at)].map(|(f, t)| (f.to_owned(), t.to_owned())))
    };
    let recorded = fields("50", "9000");
    for (seq, at, expected) in [
        ("49", "8000", true),
        ("49", "9000", true),
        ("50", "9000", false),
        ("51", "9500", false),
        ("1", "9500", false),
        ("many", "8000", false),
    ] {
        assert_eq!(
            is_behind(&fields(seq, at), &recorded),
            expected,
            "{seq} {at}"
        );
    }
    assert!(!is_behind(&BTreeMap::new(), &recorded), "written by hand");
    assert!(!is_behind(&recorded, &BTreeMap::new()), "an older record");
}

#[test]
fn a_throttle_that_was_made_by_itself_after_the_record_is_told_from_one_that_was_set() {
    let fields = |texts: &[(&str, &str)]| -> BTreeMap<String, String> {
        let texts = texts.iter();
        texts
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect()
    };
    let recorded = fields(&[("seq", "2"), ("at", "9000")]);
    let by_hand = fields(&[("rps", "5")]);
    let made = |seq: &str, at: &str, more: &[(&str, &str)]| {
        let mut all = fields(&[("seq", seq), ("at", at)]);
        all.extend(fields(more));
        all
    };
    let (own, caller) = ([("by", "flyball")], [(MADE_FROM, "caller")]);
    assert!(is_made_again(&made("1", "9500", &own), &recorded));
    assert!(is_made_again(&made("1", "9500", &caller), &recorded));
    assert!(is_made_again(&made("1", "9500", &caller), &by_hand));
    let brought_twice = [(MADE_FROM, "caller"), ("by", "flyball")];
    assert!(is_made_again(&made("2", "9500", &brought_twice), &recorded));
    for stands in [
        made("1", "9000", &caller),
        made("2", "9500", &caller),
        made("2", "9500", &own),
        made("1", "9500", &[("by", "ann")]),
        made(
            "1",
            "9500",
            &[(MADE_FROM, "caller"), ("why", "restored: x")],
        ),
        by_hand.clone(),
    ] {
        assert!(!is_made_again(&stands, &recorded), "{stands:?}");
    }
}

#[tokio::test]
async fn the_knobs_of_a_caller_that_was_faster_do_not_stay_beside_the_restored_ones() {
    let store = MemoryStore::new(Arc::new(|| 1_700_000_000_000_000));
    let fields = |texts: &[(&str, &str)]| -> BTreeMap<String, String> {
        let texts = texts.iter();
        texts
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect()
    };
    let recorded = fields(&[("rps", "4"), ("paused", "1"), ("seq", "1"), ("at", "9000")]);
    let (made, missing) = (Name::new("made").unwrap(), Name::new("missing").unwrap());
    let brought = make(CALLER, &fields(&[("rps", "1000")]));
    store.set(&made, &brought).await.unwrap();

    let faster = restore(&store, &made, &recorded).await;
    assert!(matches!(faster, Err(throttle::Error::Conflict { .. })));
    let stands = store.status(&made).await.unwrap().unwrap().raw;
    assert!(!stands.contains_key("paused"), "{stands:?}");
    assert!(is_made_again(&stands, &recorded), "the next round restores");

    restore(&store, &missing, &recorded).await.unwrap();
    let stands = store.status(&missing).await.unwrap().unwrap().raw;
    assert_eq!(
        (stands["rps"].as_str(), stands["paused"].as_str()),
        ("4", "1")
    );
}

#[test]
fn what_the_record_has_lost_is_recorded_again() {
    let name = |text: &str| Name::new(text).unwrap();
    let fields = |rps: &str| BTreeMap::from([("rps".to_owned(), rps.to_owned())]);
    let mut known = RecordedKnobs::default();
    for lost in ["kept", "older", "gone"] {
        let saved = SavedKnobs {
            hash: 1,
            recorded: hash_of(&fields("5")),
            left_out: None,
        };
        known.saved.insert(name(lost), saved);
    }
    let mut passing = fields("5");
    passing.insert("seq".to_owned(), "7".to_owned());
    known.forget_lost(&BTreeMap::from([
        (name("kept"), passing),
        (name("older"), fields("4")),
    ]));
    assert_eq!(known.saved.keys().collect::<Vec<_>>(), [&name("kept")]);
}
