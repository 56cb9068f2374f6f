//! Explanations, checks, open digests and new plans.

use std::time::Duration;

use flyball::jobs::postgres::NewMessage;
use flyball::jobs::{Attribution, State};
use flyball::providers::Channel;
use flyball::recipient::explain::{GateFinding, GateStep, MessageExplanation};
use flyball::recipient::gates::MessagePlan;
use flyball::recipient::postgres::{CheckedMessage, DigestFilter};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::Executor;

use super::fixture::GatesFixture;
use crate::support::eventually;

const NEWS: &str =
    "[categories.news]\nvalid_for_s = 2592000\ncaps.sms = { per_day = \"1 per 24h\" }\n";

async fn explained(gates: &GatesFixture, id: i64) -> MessageExplanation {
    gates.gates.explain(id, None).await.unwrap().unwrap()
}

fn step<'a>(gates: &'a [GateStep], name: &str) -> &'a GateStep {
    gates.iter().find(|step| step.gate == name).unwrap()
}

fn asked(category: &str) -> CheckedMessage {
    CheckedMessage {
        tenant: String::new(),
        channel: Channel::Sms,
        to: Some("+15550100".to_owned()),
        recipient: None,
        category: Some(category.to_owned()),
        actor: None,
        template: None,
    }
}

fn comment(n: u8) -> Value {
    json!({
        "category": "product", "template_id": "comment", "digest": "new-comment", "template": "{{ n }}", "data": {"n": n},
        "body": null,
    })
}

fn by_ann() -> Attribution {
    Attribution {
        by: "ann".to_owned(),
        ..Attribution::default()
    }
}

/// Law L12: the forecast is what the planner then does with the same rows.
#[tokio::test]
async fn the_forecast_of_a_message_is_its_plan() {
    let gates = GatesFixture::new(NEWS).await;
    for n in 1..=3 {
        let message = json!({"category": "news", "dedup_key": n.to_string()});
        let id = gates.send(message).await;
        let before = explained(&gates, id).await;
        assert!(!before.gates.is_empty());
        assert!(
            before
                .gates
                .iter()
                .all(|step| step.finding == GateFinding::NotReached)
        );
        let foreseen = before.forecast.unwrap();
        let plan = gates.plan(id).await;
        let after = explained(&gates, id).await;
        match plan {
            MessagePlan::Send => {
                assert_eq!(n, 1);
                assert_eq!(foreseen.goes_at, Some(foreseen.at));
                assert_eq!(step(&after.gates, "caps").finding, GateFinding::Passed);
                assert_eq!(step(&after.gates, "pool").finding, GateFinding::Waits);
            }
            MessagePlan::Held { holds, .. } => {
                let until = holds.last().unwrap().until;
                assert_eq!(foreseen.goes_at, Some(until));
                assert_eq!(before.planned_at, Some(until));
                assert_eq!(
                    (after.first_planned_at, after.planned_at),
                    (Some(until), Some(until))
                );
                let caps = step(&after.gates, "caps");
                assert_eq!(
                    (caps.finding, caps.rule.as_str(), caps.until),
                    (GateFinding::Waits, "per_day 1 per 1d", Some(until))
                );
                assert!(caps.since.is_some());
                assert_eq!(step(&after.gates, "pool").finding, GateFinding::NotReached);
                let next = after.forecast.unwrap();
                assert_eq!((next.at, next.goes_at), (until, Some(until)));
                assert!(
                    after
                        .sentence
                        .contains("waits for a cap (per_day 1 per 1d)"),
                    "{}",
                    after.sentence
                );
                let standing = gates.gates.standing(id).await.unwrap();
                let held_by = standing.held_by.unwrap();
                assert_eq!((held_by.gate.as_str(), held_by.until), ("caps", until));
                assert_eq!(standing.planned_at, Some(until));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_duplicate_names_the_other_message() {
    let gates = GatesFixture::new("").await;
    let message = || json!({"category": "billing", "dedup_key": "same"});
    let (first, _) = gates.planned(message()).await;
    let (second, _) = gates.planned(message()).await;
    let found = explained(&gates, second).await;
    let dedup = step(&found.gates, "dedup");
    assert_eq!(
        (dedup.finding, dedup.duplicate_of),
        (GateFinding::Ended, Some(first))
    );
    assert_eq!(
        (found.state.as_str(), found.planned_at),
        ("duplicate", None)
    );
    assert!(found.forecast.is_none());
    assert!(
        gates
            .gates
            .explain(second, Some("acme"))
            .await
            .unwrap()
            .is_none(),
        "it belongs to another tenant"
    );
}

#[tokio::test]
async fn an_item_shows_its_digest_and_can_be_withdrawn_until_that_closes() {
    let gates = GatesFixture::new("").await;
    let (first, _) = gates.planned(comment(1)).await;
    let (second, _) = gates.planned(comment(2)).await;
    let found = explained(&gates, first).await;
    let digest = found.digest.unwrap();
    assert_eq!((digest.kind.as_str(), digest.items), ("new-comment", 2));
    assert!(!digest.to.contains("+15550100"), "{}", digest.to);
    let collected = step(&found.gates, "digest");
    assert_eq!(
        (collected.finding, collected.digest_id),
        (GateFinding::Collected, Some(digest.id))
    );
    let forecast = found.forecast.unwrap();
    assert!(forecast.is_of_digest);
    assert_eq!(forecast.at, digest.closes_at);

    let by = by_ann();
    let withdrawn = gates.gates.withdraw(first, &by).await.unwrap();
    assert_eq!(withdrawn.as_deref(), Some("new-comment"));
    assert_eq!(gates.gates.withdraw(first, &by).await.unwrap(), None);
    let found = explained(&gates, first).await;
    assert_eq!(found.state, "failed");
    assert_eq!(step(&found.gates, "digest").finding, GateFinding::Ended);
    let items = "select items::bigint from flyball.digest";
    assert_eq!(gates.count(items).await, 1);
    let audited = "select count(*) from flyball.audit where action = 'digest.withdraw'";
    assert_eq!(gates.count(audited).await, 1);

    let filter = DigestFilter {
        tenant: None,
        after: None,
        limit: 10,
    };
    let open = gates.gates.open_digests(&filter).await.unwrap();
    assert_eq!(open.len(), 1);
    let behind = DigestFilter {
        after: Some((open[0].closes_at, open[0].id)),
        ..filter.clone()
    };
    assert!(gates.gates.open_digests(&behind).await.unwrap().is_empty());
    let of_acme = DigestFilter {
        tenant: Some("acme".to_owned()),
        ..filter
    };
    assert!(gates.gates.open_digests(&of_acme).await.unwrap().is_empty());
    gates.gates.withdraw(second, &by).await.unwrap();
    assert_eq!(
        gates.count("select count(*) from flyball.digest").await,
        0,
        "an empty digest closes without a message"
    );
}

#[tokio::test]
async fn an_item_says_what_keeps_its_digest_open_and_what_becomes_of_it() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let mut id = 0;
    for n in 1..=3 {
        let mut item = comment(n);
        item["recipient"] = json!("ada");
        (id, _) = gates.planned(item).await;
    }
    let due = sqlx::query("update flyball.digest set closes_at = now()");
    due.execute(gates.fixture.database.pool()).await.unwrap();
    let told = explained(&gates, id).await.sentence;
    let then = "the digest then waits for quiet hours (whole days UTC) until";
    assert!(told.contains(then), "{told}");

    gates.gates.close_due().await.unwrap();
    let told = explained(&gates, id).await.sentence;
    let kept = "the gate quiet_hours keeps it open (whole days UTC)";
    assert!(told.contains(kept) && !told.contains(then), "{told}");
}

/// Law L12, of a digest: it names no actor unless there is one digest for each.
#[tokio::test]
async fn the_forecast_of_a_digest_of_many_actors_asks_for_the_caps_of_none() {
    let rules = "[categories.product]\nactor_caps = { per_day = \"1 per 1d\" }\n";
    let gates = GatesFixture::new(rules).await;
    let post = json!({"category": "product", "template_id": "post", "actor": "bob"});
    let (first, _) = gates.planned(post).await;
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    let mut by_bob = comment(1);
    by_bob["actor"] = json!("bob");
    let (item, _) = gates.planned(by_bob).await;
    let foreseen = explained(&gates, item).await.forecast.unwrap();
    assert!(foreseen.is_of_digest);
    assert_eq!(foreseen.goes_at, Some(foreseen.at), "{}", foreseen.sentence);
}

/// The planner looks at such a message again when it wakes; until then quiet hours hold it.
#[tokio::test]
async fn a_message_that_may_become_one_with_others_on_waking_says_what_holds_it() {
    let rules = "[categories.product]\nquiet = \"digest_on_wake\"\n";
    let gates = GatesFixture::new(rules).await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, plan) = gates
        .planned(json!({"recipient": "ada", "category": "product"}))
        .await;
    let MessagePlan::Held { holds, .. } = plan else {
        panic!("{plan:?}")
    };
    let until = holds[0].until;
    let found = explained(&gates, id).await;
    assert!(
        found
            .sentence
            .contains("waits for quiet hours (whole days UTC) until"),
        "{}",
        found.sentence
    );
    assert_eq!(
        found.planned_at.map(|at| at.as_second()),
        Some(until.as_second())
    );
    let held_by = gates.gates.standing(id).await.unwrap().held_by.unwrap();
    assert_eq!(
        (held_by.gate.as_str(), held_by.rule.as_str()),
        ("quiet_hours", "whole days UTC")
    );

    // A new profile lets it be planned again at once.
    let awake = json!({"addresses": {"sms": "+15550111"}});
    gates.profile("ada", awake).await;
    let found = explained(&gates, id).await;
    assert!(
        found.sentence.contains("is planned next"),
        "{}",
        found.sentence
    );
    assert_eq!(gates.gates.standing(id).await.unwrap().held_by, None);
}

#[tokio::test]
async fn a_message_that_was_cancelled_while_a_gate_held_it_waits_no_more() {
    let gates = GatesFixture::new(NEWS).await;
    let news = |n: u8| json!({"category": "news", "dedup_key": n.to_string()});
    gates.planned(news(1)).await;
    let (id, plan) = gates.planned(news(2)).await;
    assert!(matches!(plan, MessagePlan::Held { .. }), "{plan:?}");
    let cancelled = sqlx::query("select flyball.cancel($1)").bind(id);
    cancelled
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let found = explained(&gates, id).await;
    assert_eq!(found.sentence, format!("message {id} is failed: cancelled"));
    let decided = found.gates.iter().filter(|step| step.decided());
    let decided: Vec<_> = decided.map(|step| (step.gate, step.finding)).collect();
    assert_eq!(decided, [("deadline", GateFinding::Ended)]);
    assert_eq!((found.planned_at, found.forecast), (None, None));
    let history = gates.gates.check(&asked("news")).await.unwrap().history;
    assert_eq!((history[0].id, history[0].until), (id, None));
}

#[tokio::test]
async fn a_message_that_expired_and_was_requeued_has_not_ended() {
    let gates = GatesFixture::new("").await;
    let (id, plan) = gates.planned(json!({"category": "billing"})).await;
    assert_eq!(plan, MessagePlan::Send);
    let record = "insert into flyball.message_plan (job_id, recipient, state, gate, reason)
        values ($1, flyball.recipient_key('address', '', 'sms', '+15550100'), 'ended', 'deadline', $2)
        on conflict (job_id) do update set state = 'ended', gate = 'deadline', reason = excluded.reason";
    let ended = sqlx::query(record).bind(id).bind("expired");
    ended.execute(gates.fixture.database.pool()).await.unwrap();
    let found = explained(&gates, id).await;
    assert!(
        found.sentence.contains("has passed its gates"),
        "{}",
        found.sentence
    );
    let ended = found
        .gates
        .iter()
        .any(|step| step.finding == GateFinding::Ended);
    assert!(!ended, "{:?}", found.gates);
    let history = gates.gates.check(&asked("billing")).await.unwrap().history;
    assert_eq!((history[0].id, history[0].gate.as_str()), (id, ""));
}

#[tokio::test]
async fn a_message_for_later_says_when_its_gates_look() {
    let gates = GatesFixture::new("").await;
    let hour = jiff::SignedDuration::from_hours(1);
    let at = Timestamp::from_second((gates.now().await + hour).as_second()).unwrap();
    let args = json!({"channel": "sms", "to": "+15550100", "body": "Hello", "category": "billing"});
    let message = NewMessage {
        run_at: Some(at),
        ..NewMessage::new("own", args)
    };
    let sent = gates
        .fixture
        .queue
        .notify_as("", "", &message)
        .await
        .unwrap();
    let found = explained(&gates, sent.id).await;
    assert_eq!(
        found.sentence,
        format!(
            "message {} is planned at {at:.0}; by what is known now it then passes all gates",
            sent.id
        )
    );
    assert_eq!(found.planned_at, Some(at));
}

/// The profile has the address, so a digest has none, and a recipient without one has none either.
#[tokio::test]
async fn where_there_is_no_address_none_is_shown() {
    let gates = GatesFixture::new("").await;
    let profile = json!({"addresses": {"sms": "+15550117"}});
    gates.profile("ada", profile).await;
    let mut item = comment(1);
    item["recipient"] = json!("ada");
    let (id, _) = gates.planned(item).await;
    let digest = explained(&gates, id).await.digest.unwrap();
    assert_eq!((digest.recipient.as_str(), digest.to.as_str()), ("ada", ""));
    let of = |id: &str| CheckedMessage {
        to: None,
        recipient: Some(id.to_owned()),
        ..asked("billing")
    };
    let known = gates.gates.check(&of("ada")).await.unwrap();
    assert_eq!(known.to, "***17");
    let unknown = gates.gates.check(&of("nobody")).await.unwrap();
    assert_eq!(unknown.to, "");
}

/// Two withdrawals and an item that comes at once: the count stays that of the items.
#[tokio::test]
async fn withdrawals_at_once_leave_the_count_right() {
    let gates = GatesFixture::new("").await;
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(gates.planned(comment(n)).await.0);
    }
    let more = gates.send(comment(99)).await;
    let by = by_ann();
    let withdrawals = ids
        .iter()
        .chain(&ids)
        .map(|id| gates.gates.withdraw(*id, &by));
    let (withdrawn, planned) = tokio::join!(
        futures_util::future::join_all(withdrawals),
        gates.gates.plan_jobs(std::slice::from_ref(&more))
    );
    planned.unwrap();
    let went = withdrawn
        .into_iter()
        .filter(|one| one.as_ref().unwrap().is_some());
    assert_eq!(went.count(), 12);
    assert_eq!(
        gates
            .count("select coalesce(sum(items), 0)::bigint from flyball.digest")
            .await,
        1
    );
    assert_eq!(
        gates
            .count("select count(*) from flyball.digest_item")
            .await,
        1
    );
}

/// Claims are locked before digests, as everywhere, so that no two wait for each other.
#[tokio::test]
async fn a_withdrawal_waits_for_the_claim_before_it_keeps_the_digest() {
    let rules = "[digests.events]\ntemplate = \"events\"\ncategory = \"product\"\nwindow_s = 600\ndedup_items = true\n";
    let gates = GatesFixture::new(rules).await;
    let mut item = comment(1);
    item["digest"] = json!("events");
    let (id, _) = gates.planned(item).await;
    let mut planner = gates.fixture.database.pool().begin().await.unwrap();
    let claim = "select from flyball.dedup for no key update";
    assert_eq!(planner.execute(claim).await.unwrap().rows_affected(), 1);
    let own = gates.gates.clone();
    let withdrawing = tokio::spawn(async move { own.withdraw(id, &by_ann()).await });
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
        and query like '%flyball.digest_item%'";
    eventually(
        "it waits for the planner",
        Duration::from_secs(20),
        || async { (gates.count(waits).await > 0).then_some(()) },
    )
    .await;
    let locked = planner.execute("select from flyball.digest for no key update nowait");
    assert_eq!(locked.await.unwrap().rows_affected(), 1);
    planner.rollback().await.unwrap();
    let withdrawn = withdrawing.await.unwrap().unwrap();
    assert_eq!(withdrawn.as_deref(), Some("events"));
}

#[tokio::test]
async fn a_check_tells_the_state_of_a_recipient_and_uses_nothing() {
    let gates = GatesFixture::new(NEWS).await;
    let message = |n: u8| json!({"category": "news", "dedup_key": n.to_string()});
    for _ in 0..3 {
        let free = gates.gates.check(&asked("news")).await.unwrap();
        assert_eq!(
            (free.all.allowed, free.all.remaining, free.all.rule.as_str()),
            (true, Some(1), "per_day")
        );
        assert!(!free.suppressed && free.preference.wanted && free.quiet_until.is_none());
        assert!(!free.to.contains("555010"), "{}", free.to);
    }
    let kept = "select count(*) from flyball.cap";
    assert_eq!(gates.count(kept).await, 0);
    let (first, _) = gates.planned(message(1)).await;
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    let (held, plan) = gates.planned(message(2)).await;
    let MessagePlan::Held { holds, .. } = plan else {
        panic!("{plan:?}")
    };
    let full = gates.gates.check(&asked("news")).await.unwrap();
    assert_eq!((full.all.allowed, full.all.remaining), (false, Some(0)));
    assert!(full.all.reset_at > holds[0].until, "behind what waits");
    assert_eq!(full.rules[0].reserved, 1);
    assert_eq!(full.rules[0].sent_at.len(), 1);
    assert_eq!(full.held.len(), 1);
    assert_eq!(
        (full.held[0].id, full.held[0].held_by.until),
        (held, holds[0].until)
    );
    assert_eq!(full.forecast.goes_at, Some(full.all.reset_at));
    let counts = gates.gates.held_counts().await.unwrap();
    assert_eq!(
        (counts.held[0].name.as_str(), counts.held[0].messages),
        ("caps", 1)
    );
}

#[tokio::test]
async fn a_recipient_who_moves_gets_held_messages_sooner() {
    let gates = GatesFixture::new("").await;
    let now = gates.gates.check(&asked("billing")).await.unwrap();
    let today = now.forecast.at.to_zoned(jiff::tz::TimeZone::UTC).date();
    let quiet = json!({
        "addresses": {"sms": "+15550117"}, "time_zone": "UTC",
        "quiet_hours": {"sms": {"dates": [today.to_string(), today.tomorrow().unwrap().to_string()]}},
    });
    gates.profile("ada", quiet).await;
    let (id, plan) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    assert!(matches!(plan, MessagePlan::Held { .. }), "{plan:?}");
    let found = explained(&gates, id).await;
    assert_eq!(
        step(&found.gates, "quiet_hours").finding,
        GateFinding::Waits
    );
    let recipient = CheckedMessage {
        to: None,
        recipient: Some("ada".to_owned()),
        ..asked("billing")
    };
    let checked = gates.gates.check(&recipient).await.unwrap();
    assert!(checked.quiet_until.is_some());
    assert_eq!(checked.quiet_rule, "whole days UTC");

    gates
        .profile("ada", json!({"addresses": {"sms": "+15550117"}}))
        .await;
    let by = by_ann();
    // The change of the profile has done so already.
    for tenant in ["acme", ""] {
        assert_eq!(gates.gates.replan(tenant, "ada", &by).await.unwrap(), 0);
    }
    let found = explained(&gates, id).await;
    let foreseen = found.forecast.unwrap();
    assert_eq!(foreseen.goes_at, Some(foreseen.at), "{}", found.sentence);
    gates.gates.plan_due().await.unwrap();
    assert_eq!(gates.fixture.state(id).await, State::Ready);
    assert!(explained(&gates, id).await.first_planned_at.is_some());
}

#[tokio::test]
async fn a_message_that_was_held_tells_where_and_until_when() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, _) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    let before = gates.now().await;
    gates
        .profile("ada", json!({"addresses": {"sms": "+15550111"}}))
        .await;
    // A second attempt changes nothing.
    for _ in 0..2 {
        assert_eq!(gates.verify(id).await, MessagePlan::Send);
        let found = explained(&gates, id).await;
        let quiet = step(&found.gates, "quiet_hours");
        assert_eq!(quiet.finding, GateFinding::Passed);
        assert!(quiet.rule.starts_with("whole days"), "{}", quiet.rule);
        let until = quiet.until.unwrap();
        assert!(before <= until && until <= gates.now().await, "{until}");
        assert_eq!(step(&found.gates, "caps").until, None);
    }
}

#[tokio::test]
async fn a_hold_that_is_over_is_told_as_no_time() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, _) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    gates
        .profile("ada", json!({"addresses": {"sms": "+15550111"}}))
        .await;
    assert_eq!(gates.verify(id).await, MessagePlan::Send);
    // The pool has no account, so it waits there.
    let waits = "update flyball.scheduled set turn = flyball.turn_of('own', priority, true), run_at = now() + interval '1 hour'";
    sqlx::query(waits)
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();

    let found = explained(&gates, id).await;
    assert!(found.first_planned_at.is_some());
    assert_eq!(found.planned_at, None);
    let asked = CheckedMessage {
        to: None,
        recipient: Some("ada".to_owned()),
        ..asked("billing")
    };
    let history = gates.gates.check(&asked).await.unwrap().history;
    assert_eq!((history[0].id, history[0].until), (id, None));
}

#[tokio::test]
async fn an_attempt_that_finds_its_recipient_suppressed_ends_at_that_gate() {
    let gates = GatesFixture::new("").await;
    let (id, plan) = gates.planned(json!({"category": "billing"})).await;
    assert_eq!(plan, MessagePlan::Send);
    let record = "insert into flyball.delivery (job_id, channel, pool, state) values ($1, 'sms', 'own', 'suppressed')
        on conflict (job_id) do update set state = excluded.state";
    let written = sqlx::query(record).bind(id);
    let pool = gates.fixture.database.pool();
    written.execute(pool).await.unwrap();

    let found = explained(&gates, id).await.gates;
    let finding = |name: &str| step(&found, name).finding;
    assert_eq!(finding("deadline"), GateFinding::Passed);
    assert_eq!(finding("suppression"), GateFinding::Ended);
    assert_eq!(finding("pool"), GateFinding::NotReached);
}
