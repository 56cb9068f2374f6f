//! Claims: one number for a recipient and a content, and one for the time and the mark.

use std::collections::HashMap;
use std::time::Duration;

use flyball::jobs::Attribution;
use flyball::providers::{Channel, Recipient};
use flyball::recipient::address::RecipientKey;
use flyball::recipient::dedup::DedupKey;
use flyball::recipient::gate::{AttemptEnd, UnsentReason};
use flyball::recipient::gates::MessagePlan;
use flyball::recipient::postgres::RecipientProfiles;
use serde_json::json;

use super::fixture::GatesFixture;
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(60);

/// The unix second from which stored seconds count.
const BEGIN_OF_2020_S: i64 = 1_577_836_800;

/// Returns the ids of two persons whose keys begin alike, so that their claims lie together.
fn alike() -> (String, String) {
    let mut seen: HashMap<[u8; 3], String> = HashMap::new();
    let found = (0..).find_map(|n: u32| {
        let id = format!("user-{n}");
        let key = RecipientKey::of_subscriber("", Channel::Sms, &id);
        let begin = <[u8; 3]>::try_from(&key.as_bytes()[..3]).unwrap();
        let other = seen.insert(begin, id.clone())?;
        Some((other, id))
    });
    found.unwrap()
}

#[tokio::test]
async fn persons_whose_keys_begin_alike_lose_no_claim_when_one_of_them_is_erased() {
    let gates = GatesFixture::new("").await;
    let (ada, bob) = alike();
    let message = |id: &str| json!({"recipient": id, "category": "billing", "dedup_key": "same"});
    for (id, phone) in [(&ada, "+15550113"), (&bob, "+15550114")] {
        let profile = json!({"addresses": {"sms": phone}});
        gates.profile(id, profile).await;
        assert_eq!(gates.planned(message(id)).await.1, MessagePlan::Send);
    }
    let begins = "select count(distinct claim >> 40) from flyball.dedup";
    assert_eq!(gates.count(begins).await, 1, "{ada} and {bob}");
    assert_eq!(gates.count("select count(*) from flyball.dedup").await, 2);

    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    let erased = profiles.erase("", &ada, &Attribution::default()).await;

    assert_eq!(erased.unwrap().claims, 1);
    let again = gates.planned(message(&bob)).await.1;
    assert!(matches!(again, MessagePlan::Ended { .. }), "{again:?}");
}

/// A window may be longer than jobs are kept. In a small database nobody else's key begins alike.
#[tokio::test]
async fn a_claim_whose_job_is_not_kept_any_more_goes_with_its_recipient() {
    let gates = GatesFixture::new("").await;
    let (ada, bob) = alike();
    let profile = json!({"addresses": {"sms": "+15550114"}});
    gates.profile(&bob, profile).await;
    let message = json!({"recipient": &bob, "category": "billing", "dedup_key": "same"});
    assert_eq!(gates.planned(message).await.1, MessagePlan::Send);
    let old = "insert into flyball.dedup (claim, job_id, at_s) values (flyball.first_claim($1::text::uuid), 7, -9)";
    let key = RecipientKey::of_subscriber("", Channel::Sms, &ada);
    let written = sqlx::query(old).bind(key.to_hex());
    let pool = gates.fixture.database.pool();
    written.execute(pool).await.unwrap();

    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    let erased = profiles.erase("", &ada, &Attribution::default()).await;

    assert_eq!(erased.unwrap().claims, 1);
    let left = "select count(*) from flyball.dedup where job_id <> 7";
    assert_eq!(gates.count(left).await, 1, "that of {bob}");
}

#[tokio::test]
async fn the_same_content_for_two_recipients_is_two_claims() {
    let gates = GatesFixture::new("").await;
    for to in ["+15550113", "+15550114"] {
        let message = json!({"to": to, "category": "billing", "dedup_key": "same"});
        assert_eq!(gates.planned(message).await.1, MessagePlan::Send);
    }
    let claims = "select count(distinct claim) from flyball.dedup";
    assert_eq!(gates.count(claims).await, 2);
}

/// Five bytes of a hash can be tried, so what a tenant can compute must not be the claim of another.
#[tokio::test]
async fn a_claim_cannot_be_computed_without_the_secret_of_its_database() {
    let gates = GatesFixture::new("").await;
    let message = json!({"to": "+15550113", "category": "billing", "dedup_key": "same"});
    assert_eq!(gates.planned(message).await.1, MessagePlan::Send);

    let to = Recipient::parse(Channel::Sms, "+15550113").unwrap();
    let recipient = RecipientKey::of_address("", &to);
    let computed = DedupKey::of_name(&recipient, "same").claim(&recipient, b"");
    let stored = gates.count("select claim from flyball.dedup").await;
    assert_eq!(stored >> 40, computed >> 40, "the recipient");
    assert_ne!(stored, computed);
}

#[tokio::test]
async fn sql_finds_the_claims_of_a_recipient_wherever_its_key_begins() {
    let gates = GatesFixture::new("").await;
    let pool = gates.fixture.database.pool();
    let firsts: [[u8; 3]; 4] = [[0, 0, 0], [0x7f, 255, 255], [0x80, 0, 0], [255, 255, 255]];
    for (first, job) in firsts.into_iter().zip(1_i64..) {
        let mut bytes = [7_u8; 16];
        bytes[..3].copy_from_slice(&first);
        let recipient = RecipientKey::from_bytes(bytes);
        let claim = |n: u8| {
            let content = DedupKey::of_name(&recipient, &n.to_string());
            content.claim(&recipient, b"secret")
        };
        let mut claims: Vec<i64> = (0..20).map(claim).collect();
        claims.sort_unstable();
        let write =
            "insert into flyball.dedup (claim, job_id, at_s) select c, $2, 9 from unnest($1) as c";
        let written = sqlx::query(write).bind(&claims).bind(job).execute(pool);
        written.await.unwrap();

        let find = "select c from flyball.claims_of($1::text::uuid, array[$2]) as c order by c";
        let found: Vec<i64> = sqlx::query_scalar(find)
            .bind(recipient.to_hex())
            .bind(job)
            .fetch_all(pool)
            .await
            .unwrap();
        assert_eq!(found, claims, "{first:?}");
    }
    let parts = "select count(distinct tableoid) from flyball.dedup";
    assert_eq!(gates.count(parts).await, 4, "a part for each recipient");
}

#[tokio::test]
async fn a_window_counts_from_no_second_before_the_provider_accepted() {
    let gates = GatesFixture::new("").await;
    let message = json!({"category": "billing", "dedup_key": "same"});
    let before_claim = gates.now().await;
    let (id, plan) = gates.planned(message).await;
    assert_eq!(plan, MessagePlan::Send);
    let seconds = |since: jiff::Timestamp| {
        since
            .duration_since(jiff::Timestamp::UNIX_EPOCH)
            .as_secs_f64()
            - BEGIN_OF_2020_S as f64
    };
    let claimed_s = gates.count("select at_s::bigint from flyball.dedup").await;
    assert!(claimed_s as f64 >= seconds(before_claim), "{claimed_s}");

    assert_eq!(gates.verify(id).await, MessagePlan::Send);
    let before_mark = gates.now().await;
    gates.end(id, AttemptEnd::Accepted).await;

    let marked_s = gates.count("select -at_s::bigint from flyball.dedup").await;
    assert!(marked_s as f64 >= seconds(before_mark), "{marked_s}");
}

/// One that went without its claim would be sent, and the next equal one as well.
#[tokio::test]
async fn a_message_claims_its_content_although_one_that_was_faster_has_ended_unsent_since() {
    let gates = GatesFixture::new("").await;
    let pool = gates.fixture.database.pool();
    let message = json!({"category": "billing", "dedup_key": "same"});
    gates.planned(message.clone()).await;
    let claim = gates.count("select claim from flyball.dedup").await;
    sqlx::query("delete from flyball.dedup")
        .execute(pool)
        .await
        .unwrap();
    // The other planner: its message has ended by the time at which its claim is seen.
    let mut other = pool.begin().await.unwrap();
    sqlx::query("insert into flyball.dedup (claim, job_id, at_s) values ($1, 1, 9)")
        .bind(claim)
        .execute(&mut *other)
        .await
        .unwrap();
    let id = gates.send(message.clone()).await;
    let planner = gates.gates.clone();
    let planning = tokio::spawn(async move { planner.plan_jobs(&[id]).await });
    let waits = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'";
    eventually("the planner waits for the claim", SOON, async || {
        (gates.count(waits).await > 0).then_some(())
    })
    .await;
    other.commit().await.unwrap();

    let planned = planning.await.unwrap().unwrap();

    assert_eq!(planned[0].plan, MessagePlan::Send);
    assert_eq!(gates.count("select job_id from flyball.dedup").await, id);
    let next = gates.planned(message).await.1;
    assert!(matches!(next, MessagePlan::Ended { .. }), "{next:?}");
}

/// Chance puts messages into one batch, so the batch must not decide whether one goes.
#[tokio::test]
async fn of_equal_messages_in_one_batch_the_next_goes_if_the_first_ends_unsent() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let message = json!({"recipient": "ada", "category": "product", "dedup_key": "same"});
    // Too short a time to wait for the end of the quiet hours.
    let mut short = message.clone();
    short["valid_for_s"] = json!(30);
    let ids = [
        gates.send(short.clone()).await,
        gates.send(short).await,
        gates.send(message.clone()).await,
        gates.send(message).await,
    ];

    let planned = gates.gates.plan_jobs(&ids).await.unwrap();

    let plans: Vec<(i64, &MessagePlan, Option<i64>)> = planned
        .iter()
        .map(|one| (one.job_id, &one.plan, one.duplicate_of))
        .collect();
    let reason = |n: usize| match plans[n].1 {
        MessagePlan::Ended { reason, .. } => Some(*reason),
        _ => None,
    };
    let reasons: Vec<Option<UnsentReason>> = (0..4).map(reason).collect();
    let expired = Some(UnsentReason::Expired);
    assert_eq!(
        reasons,
        [expired, expired, None, Some(UnsentReason::Duplicate)],
        "{plans:?}"
    );
    assert!(matches!(plans[2].1, MessagePlan::Held { .. }), "{plans:?}");
    assert_eq!(plans[3].2, Some(ids[2]));
    assert_eq!(
        gates.count("select job_id from flyball.dedup").await,
        ids[2]
    );
}
