//! Everything of a recipient goes in one call, from every table.

use std::time::Duration;

use flyball::jobs::{Attribution, Error, NewJob, State};
use flyball::recipient::gates::MessagePlan;
use flyball::recipient::new_recipient::NewRecipient;
use flyball::recipient::postgres::{ErasedRecipient, RecipientProfiles};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor};
use tokio::task::JoinHandle;

use super::fixture::GatesFixture;
use crate::support::eventually;

const ID: &str = "user-4711";
const MAIL: &str = "grace.hopper@navy.example";
const PHONE: &str = "+15550190";

const RULES: &str =
    "[categories.news]\nvalid_for_s = 2592000\ncaps.sms = { per_day = \"1 per 24h\" }\n";

/// Begins to erase the recipient; returns when that waits for a lock of a planner.
async fn erasing_that_waits(gates: &GatesFixture) -> JoinHandle<Result<ErasedRecipient, Error>> {
    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    let erasing = tokio::spawn(async move {
        let signed = Attribution::default();
        profiles.erase("", ID, &signed).await
    });
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
        and query like '%erase_recipient%'";
    eventually(
        "it waits for the planner",
        Duration::from_secs(20),
        || async { (gates.count(waits).await > 0).then_some(()) },
    )
    .await;
    erasing
}

/// Returns each table that has a text, with the rows in which it stands.
async fn found(gates: &GatesFixture, text: &str) -> Vec<String> {
    let pool = gates.fixture.database.pool();
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c where c.relnamespace = 'flyball'::regnamespace and c.relkind = 'r' order by 1",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    assert!(tables.len() > 40, "{tables:?}");
    let mut places = Vec::new();
    for table in tables {
        let search =
            format!("select t::text from {table} t where strpos(lower(t::text), lower($1)) > 0");
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(search))
            .bind(text)
            .fetch_all(pool)
            .await
            .unwrap();
        places.extend(rows.into_iter().map(|row| format!("{table}: {row}")));
    }
    places
}

async fn run(gates: &GatesFixture, sql: &str) {
    let pool = gates.fixture.database.pool();
    let ran = pool.execute(AssertSqlSafe(sql.to_owned())).await;
    ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn text(gates: &GatesFixture, sql: String) -> String {
    let pool = gates.fixture.database.pool();
    let found = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool);
    found.await.unwrap()
}

#[tokio::test]
async fn no_table_has_the_id_an_address_a_key_or_a_digest_afterwards() {
    let gates = GatesFixture::new(RULES).await;
    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    let profile = json!({"addresses": {"email": MAIL, "sms": PHONE}, "time_zone": "UTC"});
    let id = ID.to_owned();
    let signed = Attribution {
        by: "ann".to_owned(),
        ..Attribution::default()
    };
    let new = [NewRecipient { id, profile }];
    profiles.put("", &new, &signed).await.unwrap();
    gates
        .profile("bob", json!({"addresses": {"sms": "+15550191"}}))
        .await;

    // One sent, one held by a cap, one collected, one unplanned, one ready, one dead, one running.
    let to_her = |more: Value| {
        let mut message = json!({"recipient": ID, "body": "Dear Grace"});
        let fields = message.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        message
    };
    let news = |n: u8| to_her(json!({"category": "news", "dedup_key": n.to_string()}));
    let (sent, plan) = gates.planned(news(1)).await;
    assert_eq!(plan, MessagePlan::Send);
    assert_eq!(gates.verify(sent).await, MessagePlan::Send);
    let (held, plan) = gates.planned(news(2)).await;
    assert!(matches!(plan, MessagePlan::Held { .. }), "{plan:?}");
    let comment =
        to_her(json!({"category": "product", "template_id": "c", "digest": "new-comment"}));
    let (_, plan) = gates.planned(comment).await;
    assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
    let unplanned = gates.send(to_her(json!({"category": "billing"}))).await;
    let plain = json!({"channel": "email", "to": format!("Grace <{}>", MAIL.to_uppercase()), "subject": "s", "body": "x"});
    let job = NewJob::new("notification", plain).throttle("own");
    let all = [job.clone(), job.clone(), job];
    let made = gates.fixture.queue.enqueue(&all).await.unwrap();
    let (ready, dead, running) = (made[0].id, made[1].id, made[2].id);
    run(
        &gates,
        &format!(
            "with gone as (delete from flyball.ready where job_id in ({dead}, {sent}, {running}) returning *)
             insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
             select job_id, lane_id, priority, 1, cost, 'refused: {MAIL}' from gone where job_id = {dead};
             insert into flyball.failure (job_id, attempt, outcome, error) values ({dead}, 1, 'dead', 'refused: {MAIL}');
             insert into flyball.attempt (job_id, attempt, outcome, error) values ({dead}, 1, 'dead', 'refused: {MAIL}'),
                ({sent}, 1, 'completed', null);
             insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost)
             select id, 1, 77, lane_id, priority, 1, 1 from flyball.job where id = {running}"
        ),
    )
    .await;
    // The record of the sent one, its event, and a rest of the address.
    run(
        &gates,
        &format!(
            "insert into flyball.delivery (job_id, channel, pool, state, recipient_digest, recipient, reason, attempts)
             values ({sent}, 'sms', 'own', 'sent', flyball.recipient_digest('sms', '{PHONE}'), '{PHONE}', 'to {PHONE}',
                jsonb_build_array(jsonb_build_object('reason', 'to {PHONE}')));
             insert into flyball.delivery_event (pool, event_id, account, channel, provider_id, event_type, recipient_digest, reason, at, job_id)
             values ('own', 'e1', 'a', 'sms', 'p1', 'delivered', flyball.recipient_digest('sms', '{PHONE}'), 'for {PHONE}', now(), {sent}),
                ('own', 'e2', 'a', 'sms', 'p2', 'bounced', flyball.recipient_digest('sms', '{PHONE}'), 'for {PHONE}', now(), null);
             insert into flyball.recipient_backoff (channel, recipient_digest, failures, backoff_until)
             values ('sms', flyball.recipient_digest('sms', '{PHONE}'), 1, now())"
        ),
    )
    .await;
    // A batch that is still being enqueued, with her and with another.
    run(
        &gates,
        &format!(
            "insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages)
             values ('', '', 'expanding', 'own', 2, 3, jsonb_build_array(
                jsonb_build_object('args', jsonb_build_object('channel', 'sms', 'recipient', '{ID}')),
                jsonb_build_object('args', jsonb_build_object('channel', 'sms', 'to', '{PHONE}')),
                jsonb_build_object('args', jsonb_build_object('channel', 'sms', 'to', '+15550191'))))"
        ),
    )
    .await;
    let other = gates
        .send(json!({"recipient": "bob", "category": "billing"}))
        .await;
    let digest = text(
        &gates,
        format!("select encode(flyball.recipient_digest('sms', '{PHONE}'), 'hex')"),
    )
    .await;
    let keys: Vec<String> = sqlx::query_scalar(
        "select unnest(flyball.recipient_keys('', r.id, r.profile))::text from flyball.recipient r where r.id = $1",
    )
    .bind(ID)
    .fetch_all(gates.fixture.database.pool())
    .await
    .unwrap();
    let needles = [
        &[
            ID.to_owned(),
            MAIL.to_owned(),
            PHONE.to_owned(),
            "Dear Grace".to_owned(),
            digest,
        ][..],
        &keys[..],
    ]
    .concat();
    for needle in &needles[..5] {
        assert_ne!(
            found(&gates, needle).await,
            Vec::<String>::new(),
            "{needle}"
        );
    }

    let erased = profiles.erase("", ID, &signed).await.unwrap();
    assert!(erased.profile);
    assert_eq!((erased.digests, erased.items), (1, 1));
    // Held, unplanned, ready, dead, and two of the batch.
    assert_eq!(erased.cancelled, 6, "{erased:?}");
    for needle in &needles {
        assert_eq!(
            found(&gates, needle).await,
            Vec::<String>::new(),
            "{needle}"
        );
    }
    let collected = "select count(*) from flyball.delivery where state = 'collected'";
    assert_eq!(gates.count(collected).await, 0, "an item is not sent");
    let asked = format!("select count(*)::text from flyball.cancel where job_id = {running}");
    assert_eq!(text(&gates, asked).await, "1", "it is asked to stop");
    for id in [held, unplanned, ready, dead] {
        assert_eq!(gates.fixture.state(id).await, State::Cancelled, "{id}");
        let record = text(
            &gates,
            format!("select state || ' ' || reason from flyball.notification where job_id = {id}"),
        )
        .await;
        assert_eq!(record, "failed its recipient was erased", "{id}");
    }
    let state = text(
        &gates,
        format!("select state from flyball.notification where job_id = {sent}"),
    )
    .await;
    assert_eq!(state, "sent", "the past stays as it was");
    // Nobody else is concerned.
    assert!(gates.gates.plan_jobs(&[other]).await.unwrap().len() == 1);
    let left = text(
        &gates,
        "select messages::text from flyball.batch".to_owned(),
    )
    .await;
    assert!(left.contains("+15550191"), "{left}");
    // The log has one line for it, under a name that who knows the id can compute.
    let named = text(
        &gates,
        format!("select string_agg(action, ' ' order by id) from flyball.audit where subject = flyball.erased_name('', '{ID}')"),
    )
    .await;
    assert_eq!(named, "recipient.set recipient.delete");
    let again: Result<_, Error> = profiles.erase("", ID, &signed).await;
    assert_eq!(again.unwrap(), Default::default());
}

#[tokio::test]
async fn the_log_keeps_what_was_done_for_the_same_id_of_another_tenant() {
    let gates = GatesFixture::new("").await;
    let signed = Attribution {
        by: "ann".to_owned(),
        ..Attribution::default()
    };
    for tenant in ["acme", "zeta"] {
        gates.gates.replan(tenant, ID, &signed).await.unwrap();
    }
    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    profiles.erase("acme", ID, &signed).await.unwrap();
    let shown = format!(
        "select string_agg((after ->> 'tenant') || ' ' || (subject = '{ID}')::text, ', ' order by id)
         from flyball.audit where action = 'recipient.replan'"
    );
    assert_eq!(text(&gates, shown).await, "acme false, zeta true");
}

/// A planner took the message before, and commits what it found while the message is erased.
#[tokio::test]
async fn what_a_planner_writes_while_a_recipient_is_erased_goes_too() {
    let gates = GatesFixture::new(RULES).await;
    let profile = json!({"addresses": {"sms": PHONE}});
    gates.profile(ID, profile).await;
    let id = gates
        .send(json!({"recipient": ID, "category": "news"}))
        .await;
    let pool = gates.fixture.database.pool();
    let mut planner = pool.begin().await.unwrap();
    let person = "flyball.recipient_key('subscriber', '', 'sms', 'user-4711')";
    for statement in [
        format!(
            "with taken as (delete from flyball.scheduled where job_id = {id} returning *)
             insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique, turn)
             select job_id, now() + interval '1 day', lane_id, priority, attempt, cost, retry, holds_unique, priority from taken"
        ),
        format!("insert into flyball.cap_reservation values ({person}, 1, 9, {id}, true)"),
        format!("insert into flyball.dedup values (flyball.first_claim({person}) + 7, {id}, 9)"),
        format!("insert into flyball.message_plan (job_id, recipient, state) values ({id}, {person}, 'held')"),
    ] {
        planner.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    let erasing = erasing_that_waits(&gates).await;
    planner.commit().await.unwrap();

    let erased = erasing.await.unwrap().unwrap();
    assert_eq!((erased.reservations, erased.claims), (1, 1), "{erased:?}");
    assert_eq!(gates.fixture.state(id).await, State::Cancelled);
    let left = "select (select count(*) from flyball.cap_reservation) + (select count(*) from flyball.dedup)
        + (select count(*) from flyball.message_plan where recipient <> '00000000-0000-0000-0000-000000000000')";
    assert_eq!(gates.count(left).await, 0);
}

/// A batch has enqueued its messages, and commits them while the recipient is erased.
#[tokio::test]
async fn the_messages_of_a_batch_that_is_being_enqueued_go_too() {
    let gates = GatesFixture::new("").await;
    let batch = text(
        &gates,
        format!(
            "insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages)
             values ('', '', 'expanding', 'own', 2, 1, jsonb_build_array(jsonb_build_object('key', '', 'args',
                jsonb_build_object('channel', 'sms', 'to', '{PHONE}', 'recipient', '{ID}', 'body', 'Dear Grace'))))
             returning id::text"
        ),
    )
    .await;
    let mut expansion = gates.fixture.database.pool().begin().await.unwrap();
    let expand = format!("select flyball.expand_batch({batch})");
    expansion.execute(AssertSqlSafe(expand)).await.unwrap();
    let erasing = erasing_that_waits(&gates).await;
    expansion.commit().await.unwrap();

    let erased = erasing.await.unwrap().unwrap();
    assert_eq!(erased.cancelled, 1, "{erased:?}");
    let id = gates
        .count("select job_id from flyball.batch_message")
        .await;
    assert_eq!(gates.fixture.state(id).await, State::Cancelled);
    assert_eq!(found(&gates, "Dear Grace").await, Vec::<String>::new());
}

/// A planner that has the list of a recipient takes its digest next, and writes records: had erasing
/// these, each would wait for the other.
#[tokio::test]
async fn erasing_waits_for_lists_before_it_takes_digests() {
    let gates = GatesFixture::new("").await;
    let profile = json!({"addresses": {"sms": PHONE}});
    gates.profile(ID, profile).await;
    let item = json!({"recipient": ID, "category": "product", "template_id": "c", "digest": "new-comment"});
    gates.planned(item).await;
    let list = "insert into flyball.cap values (flyball.recipient_key('subscriber', '', 'sms', 'user-4711'), 1, '{}')";
    run(&gates, list).await;
    let mut planner = gates.fixture.database.pool().begin().await.unwrap();
    planner
        .execute("select from flyball.cap for no key update")
        .await
        .unwrap();
    let erasing = erasing_that_waits(&gates).await;
    let locked = planner.execute("select from flyball.digest for no key update nowait");
    assert_eq!(locked.await.unwrap().rows_affected(), 1);
    let records = planner.execute("select from flyball.delivery for no key update nowait");
    assert_eq!(records.await.unwrap().rows_affected(), 1);
    planner.rollback().await.unwrap();

    let erased = erasing.await.unwrap().unwrap();
    assert_eq!(
        (erased.caps, erased.digests, erased.items),
        (1, 1, 1),
        "{erased:?}"
    );
}

#[tokio::test]
async fn an_item_ends_with_its_recipient_in_whatever_digest_it_is() {
    let gates = GatesFixture::new("").await;
    let profile = json!({"addresses": {"sms": PHONE}});
    gates.profile(ID, profile).await;
    for to in [PHONE, "+15550191"] {
        let item =
            json!({"to": to, "category": "product", "template_id": "c", "digest": "new-comment"});
        gates.planned(item).await;
    }
    // Both are in one digest, which has the key of neither.
    run(
        &gates,
        "update flyball.digest_item set digest_id = (select min(id) from flyball.digest);
         delete from flyball.digest where id > (select min(id) from flyball.digest);
         update flyball.digest set items = 2, recipient = '00000000-0000-0000-0000-000000000001'",
    )
    .await;
    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    let erased = profiles
        .erase("", ID, &Attribution::default())
        .await
        .unwrap();
    assert_eq!((erased.digests, erased.items), (0, 1), "{erased:?}");
    let left = "select items::bigint from flyball.digest where items = (select count(*) from flyball.digest_item)";
    assert_eq!(gates.count(left).await, 1);
    let collected = "select count(*) from flyball.delivery where state = 'collected'";
    assert_eq!(gates.count(collected).await, 1);
}
