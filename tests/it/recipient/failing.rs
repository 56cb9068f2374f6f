//! One row that Postgres refuses keeps no other message from going.

use flyball::jobs::State;
use flyball::providers::{Channel, Recipient};
use flyball::recipient::address::RecipientKey;
use flyball::recipient::gates::MessagePlan;
use futures_util::future::join_all;
use serde_json::json;

use super::digests::comment;
use super::fixture::GatesFixture;

const NEWS: &str = "[digests.new-comment]\ntemplate = \"activity-digest\"\ncategory = \"news\"\nwindow_s = 3600\n\
                    [categories.news]\nvalid_for_s = 2592000\ncaps.sms = { per_day = \"1 per 24h\" }\n";

const NUMBERS: [&str; 3] = ["+15550100", "+15550101", "+15550102"];

impl GatesFixture {
    /// Sends one message to each number, and returns them.
    async fn news(&self) -> Vec<i64> {
        let mut ids = Vec::new();
        for to in NUMBERS {
            ids.push(self.send(json!({"category": "news", "to": to})).await);
        }
        ids
    }
}

/// Returns the condition that a row of a trigger belongs to a number.
fn is_of(row: &str, number: &str) -> String {
    let to = Recipient::parse(Channel::Sms, number).unwrap();
    let recipient = RecipientKey::of_address("", &to).to_hex();
    format!("{row}.recipient = '{recipient}'")
}

#[tokio::test]
async fn a_message_that_cannot_be_planned_waits_alone() {
    let gates = GatesFixture::new(NEWS).await;
    gates
        .forbid(
            "insert on flyball.cap_reservation",
            &is_of("new", NUMBERS[1]),
        )
        .await;
    let mut ids = gates.news().await;
    let bad = ids.remove(1);

    gates.gates.plan_due().await.unwrap();

    for id in ids {
        assert_eq!(gates.fixture.state(id).await, State::Ready);
    }
    assert_eq!(gates.fixture.state(bad).await, State::Scheduled);
    let waits = "select count(*) from flyball.scheduled where turn < 0 and run_at > now() + interval '30 s'";
    assert_eq!(gates.count(waits).await, 1, "it takes no place from others");
}

#[tokio::test]
async fn of_attempts_that_begin_together_that_of_a_refused_row_fails_alone() {
    let gates = GatesFixture::new(NEWS).await;
    gates
        .forbid("insert on flyball.cap", &is_of("new", NUMBERS[1]))
        .await;
    let ids = gates.news().await;

    let verdicts = join_all(ids.iter().map(|id| gates.gates.verify(*id))).await;

    let plans = verdicts
        .into_iter()
        .map(|verdict| Some(verdict.ok()??.plan));
    let sent = Some(MessagePlan::Send);
    assert_eq!(plans.collect::<Vec<_>>(), [sent.clone(), None, sent]);
}

/// The message of one digest cannot be planned, and another digest cannot be closed.
#[tokio::test]
async fn a_digest_that_cannot_be_closed_puts_off_no_other() {
    let gates = GatesFixture::new(NEWS).await;
    let mut items = Vec::new();
    for (n, to) in NUMBERS.into_iter().enumerate() {
        let mut item = comment(n);
        item["to"] = to.into();
        items.push(gates.planned(item).await.0);
    }
    sqlx::query(
        "update flyball.digest d set closes_at = now() - make_interval(secs => 10 - n)
         from unnest($1::bigint[]) with ordinality as a(job_id, n) join flyball.digest_item i using (job_id)
         where d.id = i.digest_id",
    )
    .bind(&items)
    .execute(gates.fixture.database.pool())
    .await
    .unwrap();
    gates
        .forbid(
            "insert on flyball.cap_reservation",
            &is_of("new", NUMBERS[0]),
        )
        .await;
    gates
        .forbid("delete on flyball.digest", &is_of("old", NUMBERS[2]))
        .await;

    assert!(!gates.gates.close_due().await.unwrap());

    assert_eq!(gates.closed().await.len(), 2);
    let open =
        "select count(*) from flyball.digest d join flyball.digest_item i on i.digest_id = d.id
         where d.rule = 'its close failed' and d.closes_at > now() and d.items = 1";
    assert_eq!(gates.count(open).await, 1);
    let ready = "select count(*) from flyball.ready";
    assert_eq!(gates.count(ready).await, 1);
}
