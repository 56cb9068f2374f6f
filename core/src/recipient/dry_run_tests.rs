use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::recipient::fields::{GatedArgs, is_gated};
use crate::recipient::logged::LogRow;
use crate::recipient::profile::Profile;
use crate::recipient::rules::RecipientRules;

/// The second of the first message.
const START_S: i64 = 1_800_000_000;

fn rules(text: &str) -> Arc<RecipientRules> {
    Arc::new(RecipientRules::parse("recipients.toml", text).unwrap())
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START_S + second).unwrap()
}

/// Returns a mail of tenant acme at a second, which is another one than all others.
fn mail(job: i64, second: i64, to: &str, category: &str, more: Value) -> LoggedMessage {
    let mut args = json!({"channel": "email", "to": to, "category": category});
    let more = more.as_object().cloned().unwrap_or_default();
    let fields = args.as_object_mut().unwrap();
    fields.extend(more);
    if !fields.contains_key("template_id") {
        fields
            .entry("dedup_key")
            .or_insert_with(|| job.to_string().into());
    }
    LoggedMessage::from(LogRow {
        job,
        tenant: "acme".into(),
        priority: 2,
        accepted_at: at(second),
        run_at: None,
        is_gated: is_gated(&args),
        args: GatedArgs::parse(&args).unwrap(),
        profile: Arc::default(),
        defaults: Arc::default(),
    })
}

fn run(old: &str, new: &str, log: Vec<LoggedMessage>, end: i64) -> DryRunReport {
    let mut dry = DryRun::new(rules(old), rules(new));
    log.into_iter().for_each(|message| dry.message(message));
    dry.finish(at(end))
}

fn category<'a>(report: &'a DryRunReport, name: &str) -> &'a DryRunRow {
    report
        .categories
        .iter()
        .find(|row| row.name == name)
        .unwrap()
}

#[test]
fn a_lower_cap_drops_what_the_old_one_let_through() {
    let log = (0..4)
        .map(|n| mail(n, n, "ada@example.com", "marketing", json!({})))
        .collect();
    let new = "[categories.marketing]\ncaps.email = { per_day = \"1 per 1d\" }\n";
    let report = run("", new, log, 10);
    let row = category(&report, "marketing");
    assert_eq!((row.old.sent, row.old.capped), (2, 2));
    assert_eq!((row.new.sent, row.new.capped), (1, 3));
    assert_eq!((report.messages, report.changed, row.changed), (4, 1, 1));
    assert_eq!(report.tenants[0].name, "acme");
    assert_eq!(report.tenants[0].new, row.new);
}

#[test]
fn held_messages_go_at_their_time_and_take_the_slots_of_that_time() {
    // Two may go each minute, so five that come at once go at 0, 0, 60, 60 and 120 seconds.
    let rules = "[categories.news]\ncaps.email = { per_minute = \"2 per 1m\" }\n";
    let five = || -> Vec<_> {
        (0..5)
            .map(|n| mail(n, 0, "ada@example.com", "news", json!({})))
            .collect()
    };
    let report = run(rules, rules, five(), 500);
    assert_eq!(category(&report, "news").new.held, 3);
    assert_eq!(report.changed, 0);
    // One that comes after 130 seconds finds room beside the last; a second one does not.
    let mut log = five();
    log.push(mail(5, 130, "ada@example.com", "news", json!({})));
    log.push(mail(6, 131, "ada@example.com", "news", json!({})));
    let report = run(rules, rules, log, 500);
    let news = category(&report, "news").new;
    assert_eq!((news.sent, news.held), (3, 4));
}

#[test]
fn a_held_message_that_expires_counts_as_that() {
    let rules = "[categories.news]\ncaps.email = { per_hour = \"1 per 1h\" }\nvalid_for_s = 60\n";
    let log = (0..2)
        .map(|n| mail(n, n, "ada@example.com", "news", json!({})))
        .collect();
    let news = category(&run(rules, rules, log, 10_000), "news").new;
    assert_eq!((news.sent, news.held, news.capped), (1, 0, 1));
}

#[test]
fn items_become_a_digest_and_too_few_go_alone() {
    let comment = |job, second, to| {
        let more = json!({"template_id": "comment", "digest": "new-comment", "data": {"n": job}});
        mail(job, second, to, "product", more)
    };
    let mut log: Vec<_> = (0..4).map(|n| comment(n, n, "ada@example.com")).collect();
    log.extend((4..6).map(|n| comment(n, n, "bob@example.com")));
    let product = category(&run("", "", log, 10_000), "product").new;
    assert_eq!(
        (product.collected, product.digests, product.sent),
        (6, 1, 0)
    );
}

#[test]
fn a_digest_of_few_items_stays_open_in_quiet_hours() {
    let quiet = json!({"quiet_hours": {"email": {"start": "09:00", "end": "12:00"}}});
    let quiet = Arc::new(Profile::parse(&quiet).unwrap());
    // The first second is at 08:00 UTC, so the window of the first two ends at 09:30.
    let comment = |job, second| {
        let more = json!({"template_id": "comment", "digest": "new-comment", "data": {"n": job}});
        LoggedMessage {
            profile: quiet.clone(),
            ..mail(job, second, "ada@example.com", "product", more)
        }
    };
    let log = vec![comment(1, 1800), comment(2, 1801), comment(3, 7200)];
    let product = category(&run("", "", log, 20_000), "product").new;
    let counts = (product.collected, product.digests, product.held);
    assert_eq!(counts, (3, 1, 0));
}

#[test]
fn the_posts_of_one_actor_are_capped_and_then_collected() {
    let post = |n: i64| {
        let more = json!({"template_id": "post", "actor": "grace", "data": {"n": n}});
        mail(n, 60 * n, "ada@example.com", "product", more)
    };
    // Without the cap of an actor the fourth is still collected by none of the caps of a day.
    let new = "[categories.product]\nactor_caps = { per_day = \"1 per 1d\" }\n";
    let report = run("", new, (0..5).map(post).collect(), 3 * 86_400);
    let product = category(&report, "product");
    assert_eq!((product.old.sent, product.old.collected), (3, 2));
    assert_eq!((product.new.sent, product.new.collected), (1, 4));
    assert_eq!((product.old.digests, product.new.digests), (1, 1));
}

#[test]
fn the_same_again_is_a_duplicate_within_the_window_of_its_category() {
    let again = |job, second| {
        let more = json!({"template_id": "receipt", "data": {"order": 1}});
        mail(job, second, "ada@example.com", "transactional", more)
    };
    let log = vec![again(1, 0), again(2, 3599), again(3, 3600)];
    let new = "[categories.transactional]\ndedup_window_s = 0\n";
    let row = category(&run("", new, log, 4000), "transactional").clone();
    assert_eq!((row.old.sent, row.old.duplicate), (2, 1));
    assert_eq!((row.new.sent, row.new.duplicate), (3, 0));
    // Without a name, what the recipient sees tells which messages are the same.
    let plain = |n, body: &str| {
        let more = json!({"body": body, "dedup_key": null});
        mail(n, n, "ada@example.com", "transactional", more)
    };
    let log = vec![plain(1, "Hello"), plain(2, "Hello"), plain(3, "Bye")];
    let row = category(&run("", "", log, 9), "transactional").clone();
    assert_eq!((row.old.sent, row.old.duplicate), (2, 1));
}

#[test]
fn profiles_decide_about_preferences_and_quiet_hours() {
    let profile = json!({
        "time_zone": "UTC",
        "quiet_hours": {"email": {"start": "00:00", "end": "23:59"}},
        "preferences": {"categories": {"marketing": {"email": false}}},
    });
    let profile = Arc::new(Profile::parse(&profile).unwrap());
    let log = ["marketing", "billing", "product"].into_iter().zip(0..);
    let log = log.map(|(category, n)| LoggedMessage {
        profile: profile.clone(),
        ..mail(n, n, "ada@example.com", category, json!({}))
    });
    let new = "[categories.product]\nquiet = \"drop\"\n";
    let report = run("", new, log.collect(), 10);
    assert_eq!(category(&report, "marketing").new.opted_out, 1);
    assert_eq!(category(&report, "billing").new.held, 1);
    assert_eq!(category(&report, "product").old.held, 1);
    assert_eq!(category(&report, "product").new.quiet, 1);
}

/// The sender of a campaign names the morning, and enqueues it at night.
#[test]
fn a_message_for_later_goes_through_the_gates_at_its_time() {
    let night = json!({"quiet_hours": {"email": {"start": "08:00", "end": "09:00"}}});
    let night = Arc::new(Profile::parse(&night).unwrap());
    // The first second is at 08:00 UTC.
    let mail = |job, goes_from| LoggedMessage {
        profile: night.clone(),
        goes_from,
        ..mail(job, 0, "ada@example.com", "billing", json!({}))
    };
    let log = vec![mail(1, at(0)), mail(2, at(3600)), mail(3, at(7200))];
    let billing = category(&run("", "", log, 4000), "billing").new;
    assert_eq!((billing.sent, billing.held), (1, 2));
}

#[test]
fn a_message_that_passes_no_gates_is_sent_whatever_the_rules_say() {
    let unwanted = json!({"preferences": {"all": false}});
    let defaults = Arc::new(Profile::parse(&unwanted).unwrap());
    let mut message = mail(1, 0, "ada@example.com", "transactional", json!({}));
    message.defaults = defaults;
    let asked = message.clone();
    message.is_gated = false;
    let row = category(&run("", "", vec![message, asked], 10), "transactional").new;
    assert_eq!((row.sent, row.opted_out), (1, 1));
}

#[test]
fn three_messages_that_sleep_become_one_digest_and_two_wake_alone() {
    let morning = json!({"quiet_hours": {"email": {"start": "08:00", "end": "09:00"}}});
    let morning = Arc::new(Profile::parse(&morning).unwrap());
    // The first second is at 08:00 UTC.
    let mail = |job, to| LoggedMessage {
        profile: morning.clone(),
        ..mail(job, job, to, "product", json!({}))
    };
    let mut log: Vec<_> = (0..4).map(|n| mail(n, "ada@example.com")).collect();
    log.extend((4..6).map(|n| mail(n, "bob@example.com")));
    let new = "[categories.product]\nquiet = \"digest_on_wake\"\ncaps.email = { per_day = \"1 per 1d\" }\nover_cap = \"drop\"\n";
    let product = category(&run("", new, log.clone(), 4000), "product").clone();
    assert_eq!((product.old.held, product.old.digests), (6, 0));
    // Of the two that wake alone, one is over the cap.
    let counts = product.new;
    let counts = (counts.held, counts.collected, counts.digests, counts.capped);
    assert_eq!(counts, (1, 4, 1, 1));
    // Before they wake they are held under both rules.
    let product = category(&run("", new, log, 3000), "product").clone();
    assert_eq!((product.old.held, product.new.held), (6, 6));
}

#[test]
fn state_that_no_rule_looks_at_any_more_is_forgotten() {
    let mut dry = DryRun::new(rules(""), rules(""));
    for n in 0..5000 {
        let to = format!("u{n}@example.com");
        let more = json!({"template_id": "code", "data": {"n": n}});
        dry.message(mail(n, n * 60, &to, "security", more));
    }
    // The windows of security end after a day, and the window of duplicates after an hour.
    let (lists, claims) = dry.old.kept();
    assert!((1440..=1500).contains(&lists), "{lists}");
    assert!((60..=120).contains(&claims), "{claims}");
    assert_eq!(dry.finish(at(900_000)).categories[0].new.sent, 5000);
}

proptest! {
    /// The threads of a replay share recipients, and nothing else.
    #[test]
    fn the_recipients_in_any_number_of_parts_have_one_report(
        seeds in vec((0..9_u32, 0..7_i64, 0..6_u32, -40_000..90_000_i64), 1..120),
        parts in 2..5_usize,
    ) {
        let new = "[categories.marketing]\nover_cap = \"hold\"\nvalid_for_s = 604800\ncaps.email = { per_hour = \"1 per 1h\" }
[categories.product]\nactor_caps = { per_day = \"1 per 1d\" }\nover_actor_cap = \"digest:creator-activity\"\n";
        let mut second = 0;
        let log: Vec<LoggedMessage> = seeds.iter().zip(0..).map(|((who, what, kind, step), job)| {
            // Some are older than those before them.
            second = (second + step / 30).max(0);
            let (category, more) = match kind {
                0 => ("security", json!({"template_id": "code", "data": {"n": what}})),
                1 => ("marketing", json!({"template_id": "sale", "data": {"n": what}})),
                2 => ("product", json!({"template_id": "comment", "digest": "new-comment", "data": {"n": what}})),
                3 => ("product", json!({"template_id": "post", "actor": "grace", "data": {"n": job}})),
                4 => ("product", json!({"template_id": "note", "at_most": "1 per 24h", "data": {"n": job}})),
                _ => ("transactional", json!({"body": "Hello"})),
            };
            mail(job, second, &format!("u{who}@example.com"), category, more)
        }).collect();
        let end = at(second + 3 * 86_400);
        let mut divided: Vec<DryRun> = (0..parts).map(|_| DryRun::new(rules(""), rules(new))).collect();
        let mut newest = Timestamp::MIN;
        for message in &log {
            newest = newest.max(message.accepted_at);
            divided[message.part(parts)].message_at(message.clone(), newest);
        }
        let whole = run("", new, log, second + 3 * 86_400);
        prop_assert_eq!(DryRun::finish_all(divided, end), whole);
    }
}
