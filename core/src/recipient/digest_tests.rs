use super::*;
use crate::recipient::rules::RecipientRules;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + minute * 60).unwrap()
}

/// The seed's `new-comment`.
fn comments() -> DigestType {
    DigestType {
        name: "new-comment".to_owned(),
        template: "activity-digest".to_owned(),
        category: "product".to_owned(),
        window: DigestWindow::Fixed(MINUTE * 60),
        min_items: 3,
        max_items: 50,
        overflow: DigestOverflow::Count,
        below: BelowMinimum::Individual,
        leading: false,
        quiet_for: None,
        dedup_items: false,
        close_at_items: None,
        templates: Vec::new(),
        collects: Collects::All,
        per_actor: false,
        texts: DigestTexts::default(),
    }
}

/// Closes a digest whose items all fit into one message.
fn close(kind: &DigestType, items: Vec<i64>) -> Vec<DigestMessage<i64>> {
    let total = items.len();
    kind.close(items, total, usize::MAX, |_| 0)
}

/// Collects items at some minutes, closes digests when they are due, and returns the messages with
/// their minutes; an item that goes at once is a single of its minute.
fn run(kind: &DigestType, minutes: &[i64]) -> Vec<(i64, DigestMessage<i64>)> {
    let (mut open, mut items, mut messages) = (None::<OpenDigest>, Vec::new(), Vec::new());
    let last = minutes.iter().max().copied().unwrap_or(0);
    for minute in 0..last + 10_000 {
        if let Some(digest) = open.filter(|open| open.closes_at <= at(minute)) {
            assert_eq!(digest.items, items.len());
            let closed = close(kind, std::mem::take(&mut items));
            open = kind.after_close(at(minute)).filter(|_| !closed.is_empty());
            messages.extend(closed.into_iter().map(|message| (minute, message)));
        }
        for item in minutes.iter().filter(|item| **item == minute) {
            match kind.arrival(open.as_ref(), at(minute), &TimeZone::UTC) {
                Arrival::Leads(digest) => {
                    open = Some(digest);
                    messages.push((minute, DigestMessage::Single(*item)));
                }
                Arrival::Joins(digest) => {
                    open = Some(digest);
                    items.push(*item);
                }
            }
        }
    }
    messages
}

fn digest(items: &[i64]) -> DigestMessage<i64> {
    DigestMessage::Digest {
        items: items.to_vec(),
        total_count: items.len(),
        has_more: false,
    }
}

#[test]
fn the_next_item_begins_a_window_in_a_digest_that_all_others_have_left() {
    let left = OpenDigest {
        opened_at: at(0),
        closes_at: at(60),
        items: 0,
    };
    let joined = |kind: &DigestType| match kind.arrival(Some(&left), at(50), &TimeZone::UTC) {
        Arrival::Joins(joined) => joined,
        Arrival::Leads(_) => panic!("nothing goes at once beside an open digest"),
    };
    let next = joined(&comments());
    assert_eq!(
        (next.opened_at, next.closes_at, next.items),
        (at(50), at(110), 1)
    );
    // An empty one of this type begins with the item that went at once.
    let leading = DigestType {
        leading: true,
        ..comments()
    };
    let next = joined(&leading);
    assert_eq!(
        (next.opened_at, next.closes_at, next.items),
        (at(0), at(60), 1)
    );
}

#[test]
fn two_items_go_alone_and_three_as_one() {
    assert_eq!(
        run(&comments(), &[0, 7]),
        [
            (60, DigestMessage::Single(0)),
            (60, DigestMessage::Single(7))
        ]
    );
    assert_eq!(
        run(&comments(), &[0, 30, 59]),
        [(60, digest(&[0, 30, 59]))],
        "none is lost by its age"
    );
    let together = DigestType {
        below: BelowMinimum::One,
        ..comments()
    };
    assert_eq!(run(&together, &[4]), [(64, digest(&[4]))]);
}

#[test]
fn an_item_after_the_close_is_in_the_next_digest_and_equal_items_all_count() {
    assert_eq!(
        run(&comments(), &[0, 0, 0, 60, 61, 62]),
        [(60, digest(&[0, 0, 0])), (120, digest(&[60, 61, 62]))]
    );
}

#[test]
fn of_sixty_items_fifty_are_shown_and_all_are_counted() {
    let all: Vec<i64> = (0..60).collect();
    assert_eq!(
        close(&comments(), all.clone()),
        [DigestMessage::Digest {
            items: (0..50).collect(),
            total_count: 60,
            has_more: true
        }]
    );
    let split = DigestType {
        overflow: DigestOverflow::Split,
        ..comments()
    };
    let part = |items: std::ops::Range<i64>, has_more| DigestMessage::Digest {
        items: items.collect(),
        total_count: 60,
        has_more,
    };
    assert_eq!(close(&split, all), [part(0..50, true), part(50..60, false)]);
    assert_eq!(close(&split, Vec::new()), []);
}

#[test]
fn a_message_has_as_many_items_as_fit_and_an_item_that_fits_in_none_goes_alone() {
    // The number of an item is its size.
    let size = |item: &i64| *item as usize;
    let part = |items: &[i64], total_count, has_more| DigestMessage::Digest {
        items: items.to_vec(),
        total_count,
        has_more,
    };
    let items = vec![40, 60, 101, 50, 51];
    assert_eq!(
        comments().close(items.clone(), 5, 100, size),
        [DigestMessage::Single(101), part(&[40, 60], 4, true)]
    );
    let split = DigestType {
        overflow: DigestOverflow::Split,
        ..comments()
    };
    assert_eq!(
        split.close(items, 5, 100, size),
        [
            DigestMessage::Single(101),
            part(&[40, 60], 4, true),
            part(&[50], 4, true),
            part(&[51], 4, false)
        ]
    );
    // Of many items only some were read.
    assert_eq!(
        comments().close(vec![40, 60], 1000, 100, size),
        [part(&[40, 60], 1000, true)]
    );
    assert_eq!(
        comments().close(vec![101], 1000, 100, size),
        [DigestMessage::Single(101), part(&[], 999, true)]
    );
    assert_eq!(
        split.close(vec![101; 3], 3, 100, size),
        vec![DigestMessage::Single(101); 3]
    );
    let shown = [&comments(), &split].map(|kind| [2, 49, 51].map(|total| kind.shown_max(total)));
    assert_eq!(shown, [[2, 49, 50], [2, 49, 51]]);
}

#[test]
fn a_sliding_window_moves_with_each_item_and_ends() {
    let sliding = DigestType {
        window: DigestWindow::Sliding {
            window: MINUTE * 10,
            max_open: MINUTE * 25,
        },
        ..comments()
    };
    assert_eq!(run(&sliding, &[0, 8, 15]), [(25, digest(&[0, 8, 15]))]);
    let often: Vec<i64> = (0..30).step_by(5).collect();
    assert_eq!(
        run(&sliding, &often),
        [
            (25, digest(&[0, 5, 10, 15, 20])),
            (35, DigestMessage::Single(25))
        ]
    );
}

#[test]
fn a_timed_window_ends_by_the_clock_of_the_recipient() {
    let daily = DigestType {
        window: DigestWindow::Timed(Expression::parse("0 9 * * *").unwrap()),
        ..comments()
    };
    let now: Timestamp = "2026-06-10T05:00:00Z".parse().unwrap();
    for (zone, closes) in [
        ("Europe/Berlin", "2026-06-10T07:00:00Z"),
        ("Asia/Tokyo", "2026-06-11T00:00:00Z"),
    ] {
        let zone = TimeZone::get(zone).unwrap();
        assert_eq!(daily.closes_at(now, &zone).to_string(), closes);
    }
}

#[test]
fn a_leading_item_goes_at_once_and_is_in_no_digest() {
    let leading = DigestType {
        leading: true,
        min_items: 1,
        ..comments()
    };
    assert_eq!(run(&leading, &[0]), [(0, DigestMessage::Single(0))]);
    assert_eq!(
        run(&leading, &[0, 5, 59, 60]),
        [
            (0, DigestMessage::Single(0)),
            (60, digest(&[5, 59])),
            (60, DigestMessage::Single(60))
        ]
    );
}

#[test]
fn with_quiet_for_an_item_goes_at_once_only_if_no_message_went_for_so_long() {
    let backing_off = DigestType {
        leading: true,
        quiet_for: Some(MINUTE * 30),
        min_items: 1,
        window: DigestWindow::Fixed(MINUTE * 10),
        ..comments()
    };
    assert_eq!(
        run(&backing_off, &[0, 25, 40, 100]),
        [
            (0, DigestMessage::Single(0)),
            // Within 30 minutes of the first: a window of its own.
            (35, digest(&[25])),
            // Within 30 minutes of that digest.
            (50, digest(&[40])),
            (100, DigestMessage::Single(100)),
        ]
    );
}

#[test]
fn a_digest_with_enough_items_closes_early() {
    let early = DigestType {
        close_at_items: Some(3),
        ..comments()
    };
    assert_eq!(
        run(&early, &[0, 10, 20, 30]),
        [(21, digest(&[0, 10, 20])), (90, DigestMessage::Single(30))]
    );
}

#[test]
fn a_digest_that_may_not_go_out_stays_open_and_collects() {
    let sliding = DigestType {
        window: DigestWindow::Sliding {
            window: MINUTE * 10,
            max_open: MINUTE * 25,
        },
        ..comments()
    };
    let Arrival::Joins(mut open) = sliding.arrival(None, at(0), &TimeZone::UTC) else {
        panic!("it leads");
    };
    open.put_off(at(600));
    let Arrival::Joins(open) = sliding.arrival(Some(&open), at(20), &TimeZone::UTC) else {
        panic!("it leads");
    };
    assert_eq!((open.items, open.closes_at), (2, at(600)));
}

#[test]
fn items_go_alone_at_nine_in_the_morning_of_their_recipient() {
    let text = "[digests.morning]\ntemplate = \"morning\"\ncategory = \"product\"\nat = \"0 9 * * *\"\n\
                min_items = 1000\nmax_items = 1000\n";
    let rules = RecipientRules::parse("r.toml", text).unwrap();
    let morning = rules.digest("morning").unwrap();
    let zone = TimeZone::get("America/New_York").unwrap();
    let now: Timestamp = "2026-06-10T14:00:00Z".parse().unwrap();
    let nine: Timestamp = "2026-06-11T13:00:00Z".parse().unwrap();
    assert_eq!(morning.closes_at(now, &zone), nine);
    assert_eq!(
        close(morning, vec![1, 2]),
        [DigestMessage::Single(1), DigestMessage::Single(2)]
    );
}

#[test]
fn the_rest_behind_a_part_is_treated_as_all_items_would_have_been() {
    let kind = comments();
    for (total, part) in [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1), (10_001, 9998)] {
        assert_eq!(kind.part_max(total), part, "{total}");
        let rest = total - part;
        assert_eq!(kind.goes_alone(rest), kind.goes_alone(total), "{total}");
    }
}

fn filled(channel: &str, data: &Value) -> String {
    let template = DigestTexts::default().template(channel);
    let body = template["body"].as_str().unwrap();
    crate::outbound::template::render(body, data, || false).unwrap()
}

#[test]
fn a_digest_to_a_webhook_is_json() {
    let data = json!({"items": [{"text": "a \"b\""}, {"n": 1}], "totalCount": 3, "hasMore": true});
    let sent: Value = serde_json::from_str(&filled("webhook", &data)).unwrap();
    assert_eq!(sent, data);
}

#[test]
fn usual_texts_show_ten_items_because_a_text_message_is_short() {
    let data = |count: usize, more: bool| {
        let items: Vec<Value> = (1..=count)
            .map(|n| json!({"text": format!("item {n}")}))
            .collect();
        json!({"items": items, "totalCount": 60, "hasMore": more})
    };
    let lines = |count, more| {
        let text = filled("sms", &data(count, more));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(2, false), ["60 updates", "- item 1", "- item 2"]);
    assert_eq!(lines(1, true), ["60 updates", "- item 1", "..."]);
    let most = lines(10, false);
    assert_eq!((most.len(), most[10].as_str()), (11, "- item 10"));
    let beyond = lines(50, false);
    assert_eq!((beyond.len(), beyond[11].as_str()), (12, "..."));
}
