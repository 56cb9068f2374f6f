//! Messages on their way through the gates, before any attempt.

use flyball::jobs::{Attribution, NewJob, State};
use flyball::recipient::gate::{MessageGate, UnsentReason};
use flyball::recipient::gates::MessagePlan;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::fixture::GatesFixture;

/// Returns the gate and the time of a held message.
fn held(plan: &MessagePlan) -> (MessageGate, Timestamp) {
    match plan {
        MessagePlan::Held { holds, .. } => {
            let last = holds.last().unwrap();
            (last.gate, last.until)
        }
        other => panic!("held, not {other:?}"),
    }
}

fn reason(plan: &MessagePlan) -> UnsentReason {
    match plan {
        MessagePlan::Ended { reason, .. } => *reason,
        other => panic!("ended, not {other:?}"),
    }
}

/// Puts a message off beyond all that holds it.
async fn put_off(gates: &GatesFixture, id: i64) {
    let later = sqlx::query("select flyball.reschedule($1, now() + interval '9 days')").bind(id);
    later.execute(gates.fixture.database.pool()).await.unwrap();
}

/// Makes a batch of a message.
async fn batch_of(gates: &GatesFixture, id: i64) -> i64 {
    let made = sqlx::query_scalar(
        "with made as (
            insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages)
            values ('', '', 'running', 'own', 2, 1, '[]') returning id
         )
         insert into flyball.batch_message (job_id, batch_id) select $1, id from made
         returning batch_id",
    );
    let made = made.bind(id).fetch_one(gates.fixture.database.pool());
    made.await.unwrap()
}

const PAUSE: &str = "select flyball.pause_batch(null, $1)";

/// Pauses or resumes a batch, and returns its state.
async fn turned(gates: &GatesFixture, statement: &'static str, batch: i64) -> String {
    let state = sqlx::query_scalar(statement).bind(batch);
    let state = state.fetch_one(gates.fixture.database.pool());
    state.await.unwrap()
}

const NEWS: &str =
    "[categories.news]\nvalid_for_s = 2592000\ncaps.sms = { per_day = \"1 per 24h\" }\n";

#[tokio::test]
async fn a_message_without_a_field_of_the_gates_is_ready_at_once() {
    let gates = GatesFixture::new("").await;
    let plain = gates.send(json!({})).await;
    assert_eq!(gates.fixture.state(plain).await, State::Ready);
    let named = gates.send(json!({"category": "billing"})).await;
    assert_eq!(gates.fixture.state(named).await, State::Scheduled);
    assert_eq!(
        gates.fixture.queue.promote().await.unwrap().jobs,
        0,
        "no promotion moves what is not planned"
    );
    assert!(!gates.gates.plan_due().await.unwrap());
    assert_eq!(gates.fixture.state(named).await, State::Ready);
}

#[tokio::test]
async fn messages_over_a_cap_get_times_of_their_own() {
    let gates = GatesFixture::new(NEWS).await;
    let (_, first) = gates
        .planned(json!({"category": "news", "dedup_key": "1"}))
        .await;
    assert_eq!(first, MessagePlan::Send);
    let mut last = gates.now().await;
    for n in 2..=4 {
        let message = json!({"category": "news", "dedup_key": n.to_string()});
        let (id, plan) = gates.planned(message).await;
        let (gate, until) = held(&plan);
        assert_eq!(gate, MessageGate::Caps);
        let later = until.duration_since(last).as_secs();
        assert!(
            (86_390..=86_402).contains(&later),
            "message {n}: {later} s after the one before"
        );
        last = until;
        assert_eq!(gates.fixture.state(id).await, State::Scheduled);
    }
    assert_eq!(
        gates.fixture.queue.promote().await.unwrap().jobs,
        0,
        "they wait for their times"
    );
}

/// A crash of Postgres empties a table without a log.
#[tokio::test]
async fn a_cap_holds_though_a_crash_lost_the_reservation_of_a_message_that_goes() {
    let gates = GatesFixture::new(NEWS).await;
    let message = |n: u8| json!({"category": "news", "dedup_key": n.to_string()});
    let (first, plan) = gates.planned(message(1)).await;
    assert_eq!(plan, MessagePlan::Send);
    let (_, plan) = gates.planned(message(2)).await;
    let told = held(&plan).1;
    let lost = "select count(*) from pg_class where oid = 'flyball.cap_reservation_ready'::regclass and relpersistence = 'u'";
    assert_eq!(gates.count(lost).await, 1);
    let emptied = sqlx::query("truncate flyball.cap_reservation_ready");
    let pool = gates.fixture.database.pool();
    emptied.execute(pool).await.unwrap();
    let kept = "select count(*) from flyball.cap_reservation where is_held and job_id in (select job_id from flyball.scheduled)";
    assert_eq!(gates.count(kept).await, 1, "the time that was told");

    let (third, plan) = gates.planned(message(3)).await;
    assert_eq!(plan, MessagePlan::Send, "nothing shows that the first goes");
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    let (gate, until) = held(&gates.verify(third).await);
    assert_eq!(gate, MessageGate::Caps);
    assert!(until >= told, "{until} and {told}");
}

#[tokio::test]
async fn a_cancelled_message_leaves_its_time_to_the_next() {
    let gates = GatesFixture::new(NEWS).await;
    let message = |n: u8| json!({"category": "news", "dedup_key": n.to_string()});
    assert_eq!(gates.planned(message(1)).await.1, MessagePlan::Send);
    let (second, plan) = gates.planned(message(2)).await;
    let (_, until) = held(&plan);
    gates.fixture.queue.cancel(second).await.unwrap();
    let (_, again) = gates.planned(message(3)).await;
    assert!(held(&again).1.duration_since(until).as_secs() <= 5);
}

#[tokio::test]
async fn the_policy_of_a_category_decides_over_its_cap() {
    let gates = GatesFixture::new("").await;
    let message = |n: u8| json!({"category": "marketing", "dedup_key": n.to_string()});
    assert_eq!(gates.planned(message(1)).await.1, MessagePlan::Send);
    let (id, plan) = gates.planned(message(2)).await;
    assert_eq!(reason(&plan), UnsentReason::Capped);
    assert_eq!(gates.fixture.state(id).await, State::Completed);
    let state: String = sqlx::query_scalar("select state from flyball.delivery where job_id = $1")
        .bind(id)
        .fetch_one(gates.fixture.database.pool())
        .await
        .unwrap();
    assert_eq!(state, "capped");
}

#[tokio::test]
async fn equal_messages_are_duplicates_until_the_first_ends_unsent() {
    let gates = GatesFixture::new("").await;
    let receipt = |order: u8| json!({"category": "billing", "template_id": "receipt", "template": "{{ n }}", "data": {"n": order}, "body": null});
    let (first, plan) = gates.planned(receipt(1)).await;
    assert_eq!(plan, MessagePlan::Send);
    let (_, second) = gates.planned(receipt(1)).await;
    assert_eq!(reason(&second), UnsentReason::Duplicate);
    let MessagePlan::Ended { rule, .. } = second else {
        unreachable!()
    };
    assert_eq!(rule, format!("of {first}"));
    assert_eq!(
        gates.planned(receipt(2)).await.1,
        MessagePlan::Send,
        "another content"
    );
    gates.fixture.queue.cancel(first).await.unwrap();
    let (third, plan) = gates.planned(receipt(1)).await;
    assert_eq!(plan, MessagePlan::Send);
    let MessagePlan::Ended { rule, .. } = gates.planned(receipt(1)).await.1 else {
        panic!("the claim of the cancelled message is the third's")
    };
    assert_eq!(rule, format!("of {third}"));
}

#[tokio::test]
async fn of_many_pairs_that_two_planners_meet_one_of_each_goes() {
    let gates = GatesFixture::new("").await;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for n in 0..40 {
        let to = format!("+15550100{n:02}");
        let message = json!({"category": "billing", "to": to, "dedup_key": n.to_string()});
        left.push(gates.send(message.clone()).await);
        right.push(gates.send(message).await);
    }
    // The later messages are planned in the opposite order.
    right.reverse();
    let (left, right) = tokio::join!(gates.gates.plan_jobs(&left), gates.gates.plan_jobs(&right));
    let plans: Vec<_> = left.unwrap().into_iter().chain(right.unwrap()).collect();
    let went = plans.iter().filter(|one| one.plan == MessagePlan::Send);
    assert_eq!((plans.len(), went.count()), (80, 40));
    let claims = "select count(distinct job_id) from flyball.dedup";
    assert_eq!(gates.count(claims).await, 40);
    let ready = "select count(*) from flyball.ready r join flyball.dedup d using (job_id)";
    assert_eq!(gates.count(ready).await, 40);
}

#[tokio::test]
async fn many_messages_are_planned_as_each_would_be_alone() {
    let gates = GatesFixture::new(NEWS).await;
    for to in 0..12 {
        for n in 0..2 {
            let to = format!("+1555010{to:02}");
            let message = json!({"category": "news", "to": to, "dedup_key": n.to_string()});
            gates.send(message).await;
        }
    }
    assert!(!gates.gates.plan_due().await.unwrap());
    let pending = "select count(*) from flyball.scheduled where turn < 0";
    assert_eq!(gates.count(pending).await, 0);
    assert_eq!(gates.count("select count(*) from flyball.ready").await, 12);
    assert_eq!(gates.count("select count(*) from flyball.dedup").await, 24);
    let reserved = "select count(distinct job_id) from flyball.cap_reservation";
    assert_eq!(gates.count(reserved).await, 24);
    let held = "select count(*) from flyball.message_plan p join flyball.scheduled s using (job_id)
        where p.state = 'held' and p.gate = 'caps' and p.rule = 'per_day 1 per 1d' and p.origin = 'sender'
            and jsonb_array_length(p.holds) = 1 and p.until = p.planned_at and p.until > now() + interval '23 hours'
            and s.run_at = p.until and p.other_job is null and p.digest_id is null and p.since <= clock_timestamp()";
    assert_eq!(gates.count(held).await, 12);
}

#[tokio::test]
async fn of_equal_messages_that_are_planned_together_one_goes() {
    let gates = GatesFixture::new("").await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(
            gates
                .send(json!({"category": "billing", "dedup_key": "same"}))
                .await,
        );
    }
    let (left, right) = ids.split_at(10);
    let (left, right) = tokio::join!(gates.gates.plan_jobs(left), gates.gates.plan_jobs(right));
    let plans = left.unwrap().into_iter().chain(right.unwrap());
    let (went, ended): (Vec<_>, Vec<_>) = plans.partition(|one| one.plan == MessagePlan::Send);
    assert_eq!((went.len(), ended.len()), (1, 19));
    for one in ended {
        assert_eq!(reason(&one.plan), UnsentReason::Duplicate);
        assert_eq!(one.duplicate_of, Some(went[0].job_id));
    }
}

#[tokio::test]
async fn quiet_hours_hold_all_but_critical_messages() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let now = gates.now().await;
    let (_, plan) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    let (gate, until) = held(&plan);
    assert_eq!(gate, MessageGate::QuietHours);
    let (today, wakes) = (now.to_zoned(TimeZone::UTC), until.to_zoned(TimeZone::UTC));
    assert_eq!(wakes.date(), today.date().tomorrow().unwrap());
    let (_, urgent) = gates
        .planned(json!({"recipient": "ada", "category": "billing", "priority": "critical", "body": "now"}))
        .await;
    assert_eq!(urgent, MessagePlan::Send);
    // A job is not asked for the address of its recipient.
    let args = json!({"channel": "sms", "recipient": "nobody", "body": "x", "category": "billing"});
    let job = NewJob::new("notification", args).throttle("own");
    let made = gates.fixture.queue.enqueue(&[job]).await.unwrap();
    let unknown = gates.plan(made[0].id).await;
    assert_eq!(reason(&unknown), UnsentReason::Unreachable);
}

#[tokio::test]
async fn what_is_held_is_planned_anew_when_its_recipient_moves() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, plan) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    assert_eq!(held(&plan).0, MessageGate::QuietHours);
    gates
        .profile("ada", json!({"addresses": {"sms": "+15550111"}}))
        .await;
    assert!(!gates.gates.plan_due().await.unwrap());
    assert_eq!(gates.fixture.state(id).await, State::Ready);
}

#[tokio::test]
async fn a_message_that_is_planned_anew_keeps_its_time_and_is_counted_once() {
    let gates = GatesFixture::new("").await;
    let mut profile = gates.quiet_today().await;
    gates.profile("ada", profile.clone()).await;
    let (id, first) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    for zone in ["Asia/Tokyo", "Europe/Berlin", "America/New_York"] {
        profile["device_time_zone"] = json!(zone);
        gates.profile("ada", profile.clone()).await;
        assert_eq!(held(&gates.plan(id).await), held(&first));
    }
    let counted = "select sum(messages)::bigint from flyball.held_crowd";
    assert_eq!(gates.count(counted).await, 1);
}

/// A message that takes the place of a waiting one has its number.
#[tokio::test]
async fn a_message_that_was_replaced_makes_no_other_a_duplicate() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let status = |state: &str| {
        json!({
            "channel": "sms", "recipient": "ada", "category": "billing", "template_id": "status",
            "template": "It is {{ state }}.", "data": {"state": state}, "body": null,
        })
    };
    let replaces = async |state: &str| {
        let job = sqlx::query_scalar(
            "select e.job_id from flyball.enqueue('notification', $1, throttle => 'own', unique_key => 'status', replace => true) e",
        );
        let job = job.bind(status(state));
        let id: i64 = job.fetch_one(gates.fixture.database.pool()).await.unwrap();
        id
    };
    let id = replaces("down").await;
    assert_eq!(held(&gates.plan(id).await).0, MessageGate::QuietHours);
    assert_eq!(replaces("up").await, id);
    assert_eq!(held(&gates.plan(id).await).0, MessageGate::QuietHours);

    let (_, down) = gates.planned(status("down")).await;
    assert_eq!(held(&down).0, MessageGate::QuietHours);
    let (_, up) = gates.planned(status("up")).await;
    assert_eq!(reason(&up), UnsentReason::Duplicate);
}

#[tokio::test]
async fn a_message_that_a_schedule_repeats_is_no_duplicate() {
    let gates = GatesFixture::new("").await;
    let pool = gates.fixture.database.pool();
    let plans = async |name: &str, args: Value| {
        let sql = "select flyball.schedule($1, '@daily', 'notification', $2, throttle => 'own', overlap => 'allow')";
        let made = sqlx::query(sql).bind(name).bind(args);
        made.execute(pool).await.unwrap();
        let mut plans = Vec::new();
        for _ in 0..2 {
            let run = sqlx::query_scalar("select r.job_id from flyball.run_schedule($1) r");
            let id: i64 = run.bind(name).fetch_one(pool).await.unwrap();
            plans.push(gates.plan(id).await);
        }
        plans
    };
    let mut message =
        json!({"channel": "sms", "to": "+15550100", "category": "billing", "body": "x"});
    let sent = plans("reminder", message.clone()).await;
    assert_eq!(sent, [MessagePlan::Send, MessagePlan::Send]);
    (message["to"], message["dedup_key"]) = (json!("+15550101"), json!("once"));
    let sent = plans("once", message).await;
    assert_eq!(sent[0], MessagePlan::Send);
    assert_eq!(reason(&sent[1]), UnsentReason::Duplicate);
}

#[tokio::test]
async fn a_message_that_was_put_off_keeps_its_time_when_the_profile_changes() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let message = json!({"recipient": "ada", "category": "billing"});
    let (id, plan) = gates.planned(message).await;
    assert_eq!(held(&plan).0, MessageGate::QuietHours);
    put_off(&gates, id).await;
    let awake = json!({"addresses": {"sms": "+15550111"}});
    gates.profile("ada", awake).await;
    gates.gates.plan_due().await.unwrap();
    assert_eq!(gates.fixture.state(id).await, State::Scheduled);
    let waits = "select count(*) from flyball.scheduled where run_at > now() + interval '1 day'";
    assert_eq!(gates.count(waits).await, 1);
}

#[tokio::test]
async fn a_message_that_was_put_off_does_not_wake_with_the_others() {
    let rules = "[digests.while-you-were-away]\ntemplate = \"away\"\ncategory = \"transactional\"\nwindow_s = 60\n\
                 [categories.product]\nquiet = \"digest_on_wake\"\n";
    let gates = GatesFixture::new(rules).await;
    gates.profile("ada", gates.quiet_today().await).await;
    let mut ids = Vec::new();
    for n in 0..4 {
        let message =
            json!({"recipient": "ada", "category": "product", "dedup_key": n.to_string()});
        let (id, plan) = gates.planned(message).await;
        assert_eq!(held(&plan).0, MessageGate::QuietHours);
        ids.push(id);
    }
    put_off(&gates, ids[3]).await;
    let awake = json!({"addresses": {"sms": "+15550111"}});
    gates.profile("ada", awake).await;
    gates.gates.plan_due().await.unwrap();
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0]["data"]["totalCount"], json!(3));
    assert_eq!(gates.fixture.state(ids[3]).await, State::Scheduled);
}

#[tokio::test]
async fn a_pause_puts_aside_what_a_planner_has() {
    let gates = GatesFixture::new("").await;
    let id = gates.send(json!({"category": "billing"})).await;
    let batch = batch_of(&gates, id).await;
    let mut planner = gates.fixture.database.pool().begin().await.unwrap();
    let takes = "with taken as (delete from flyball.scheduled returning *)
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select lane_id, priority, job_id, attempt, cost, holds_unique from taken";
    sqlx::query(takes).execute(&mut *planner).await.unwrap();
    let plans = async {
        // Real time: the pause looks at the messages meanwhile.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        planner.commit().await.unwrap();
    };
    let (paused, ()) = tokio::join!(turned(&gates, PAUSE, batch), plans);
    assert_eq!(paused, "paused");
    assert_eq!(gates.fixture.state(id).await, State::Scheduled);
    let aside =
        "select count(*) from flyball.scheduled where run_at > now() + interval '3000 days'";
    assert_eq!(gates.count(aside).await, 1);
}

#[tokio::test]
async fn a_message_of_a_paused_batch_is_planned_anew_when_that_is_resumed() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let message = json!({"recipient": "ada", "category": "billing"});
    let (id, plan) = gates.planned(message).await;
    assert_eq!(held(&plan).0, MessageGate::QuietHours);
    let batch = batch_of(&gates, id).await;
    assert_eq!(turned(&gates, PAUSE, batch).await, "paused");

    let awake = json!({"addresses": {"sms": "+15550111"}});
    gates.profile("ada", awake).await;
    gates.gates.plan_due().await.unwrap();
    assert_eq!(gates.fixture.state(id).await, State::Scheduled);

    let resume = "select flyball.resume_batch(null, $1)";
    assert_eq!(turned(&gates, resume, batch).await, "running");
    gates.gates.plan_due().await.unwrap();
    assert_eq!(gates.fixture.state(id).await, State::Ready);
}

#[tokio::test]
async fn messages_that_a_day_holds_are_counted_as_a_crowd() {
    let rules = "[categories.billing]\nvalid_for_s = 2592000\ncaps.sms = { per_day = \"1 per local_day\" }\n";
    let gates = GatesFixture::new(rules).await;
    for n in 0..3 {
        let message = json!({"category": "billing", "dedup_key": n.to_string()});
        gates.planned(message).await;
    }
    // The first goes today; each of the others has a day of its own.
    let counted = "select count(*) from flyball.held_crowd where messages = 1";
    assert_eq!(gates.count(counted).await, 2);
}

#[tokio::test]
async fn the_first_profile_plans_anew_what_the_defaults_of_the_tenant_hold() {
    let gates = GatesFixture::new("").await;
    let quiet = gates.quiet_today().await;
    sqlx::query("insert into flyball.recipient_defaults (tenant, profile) values ('', $1)")
        .bind(json!({"quiet_hours": quiet["quiet_hours"]}))
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let message = json!({"recipient": "newbie", "to": "+15550111", "category": "billing"});
    let (id, plan) = gates.planned(message).await;
    assert_eq!(held(&plan).0, MessageGate::QuietHours);
    let own = json!({"quiet_hours": {"sms": {"dates": ["2001-01-01"]}}});
    gates.profile("newbie", own).await;
    assert!(!gates.gates.plan_due().await.unwrap());
    assert_eq!(gates.fixture.state(id).await, State::Ready);
}

#[tokio::test]
async fn what_an_address_alone_gets_is_planned_anew_by_the_address() {
    let gates = GatesFixture::new("").await;
    let quiet = gates.quiet_today().await;
    sqlx::query("insert into flyball.recipient_defaults (tenant, profile) values ('', $1)")
        .bind(json!({"quiet_hours": quiet["quiet_hours"]}))
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let message = json!({"to": "+15550111", "category": "billing"});
    let (id, plan) = gates.planned(message).await;
    assert_eq!(held(&plan).0, MessageGate::QuietHours);
    sqlx::query("delete from flyball.recipient_defaults")
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let by = Attribution::default();
    let replan = async |address: &str| gates.gates.replan("", address, &by).await.unwrap();
    assert_eq!(replan("+15550112").await, 0);
    assert_eq!(replan("whatsapp:+15550111").await, 1);
    assert!(!gates.gates.plan_due().await.unwrap());
    assert_eq!(gates.fixture.state(id).await, State::Ready);
    let shown = "select count(*) from flyball.audit where subject like '%5550111%'";
    assert_eq!(gates.count(shown).await, 0);
}

#[tokio::test]
async fn an_opted_out_recipient_gets_nothing_but_what_is_mandatory() {
    let gates = GatesFixture::new("").await;
    gates
        .profile(
            "bob",
            json!({"addresses": {"sms": "+15550112"}, "preferences": {"all": {"sms": false}}}),
        )
        .await;
    let message = |category: &str| json!({"recipient": "bob", "category": category});
    let (_, product) = gates.planned(message("product")).await;
    assert_eq!(reason(&product), UnsentReason::OptedOut);
    assert_eq!(
        gates.planned(message("security")).await.1,
        MessagePlan::Send
    );
}

#[tokio::test]
async fn items_are_collected_and_counted() {
    let gates = GatesFixture::new("").await;
    for n in 0..5 {
        let comment = json!({
            "category": "product", "template_id": "comment", "digest": "new-comment", "template": "{{ n }}",
            "data": {"n": n}, "body": null,
        });
        let (id, plan) = gates.planned(comment).await;
        assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
        assert_eq!(gates.fixture.state(id).await, State::Completed);
    }
    assert_eq!(gates.count("select count(*) from flyball.digest").await, 1);
    assert_eq!(
        gates
            .count("select items::bigint from flyball.digest")
            .await,
        5
    );
    assert_eq!(
        gates
            .count("select count(*) from flyball.digest_item")
            .await,
        5
    );
    let pending = "select count(*) from flyball.delivery where state = 'collected'";
    assert_eq!(gates.count(pending).await, 5);
}

#[tokio::test]
async fn a_message_whose_arguments_are_wrong_goes_to_its_attempt() {
    let gates = GatesFixture::new("").await;
    let job = flyball::jobs::NewJob::new(
        "notification",
        json!({"channel": "fax", "category": "news", "to": 7}),
    )
    .throttle("own");
    let id = gates.fixture.queue.enqueue(&[job]).await.unwrap()[0].id;
    gates.gates.plan_due().await.unwrap();
    assert_eq!(gates.fixture.state(id).await, State::Ready);
}

#[tokio::test]
async fn an_address_that_only_sql_takes_leaves_the_rest_of_the_profile() {
    let gates = GatesFixture::new("").await;
    let mut profile = gates.quiet_today().await;
    profile["addresses"]["email"] = json!("grüße");
    sqlx::query("select flyball.set_recipient('ada', $1)")
        .bind(profile)
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let (_, plan) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    assert_eq!(held(&plan).0, MessageGate::QuietHours);
}
