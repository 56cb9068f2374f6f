//! Explanations of items whose digest is gone.

use flyball::recipient::explain::{GateFinding, MessageExplanation};
use serde_json::{Value, json};

use super::fixture::GatesFixture;

async fn explained(gates: &GatesFixture, id: i64) -> MessageExplanation {
    gates.gates.explain(id, None).await.unwrap().unwrap()
}

fn comment(n: u8) -> Value {
    json!({
        "category": "product", "template_id": "comment", "digest": "new-comment", "template": "{{ n }}", "data": {"n": n},
        "body": null,
    })
}

#[tokio::test]
async fn an_item_of_a_closed_digest_names_the_message_that_has_it() {
    let gates = GatesFixture::new("").await;
    let send = async |n: u8, to: &str| {
        let mut item = comment(n);
        item["to"] = json!(to);
        gates.planned(item).await.0
    };
    let (many, few) = ("+15550100", "+15550101");
    let together = [
        send(1, many).await,
        send(2, many).await,
        send(3, many).await,
    ];
    let alone = [send(4, few).await, send(5, few).await];
    let due = sqlx::query("update flyball.digest set closes_at = now()");
    due.execute(gates.fixture.database.pool()).await.unwrap();
    gates.gates.close_due().await.unwrap();

    let digest = "select job_id from flyball.message_plan where origin = 'digest'";
    let digest = gates.count(digest).await;
    for id in together {
        let found = explained(&gates, id).await;
        assert_eq!(found.carried_by, Some(digest));
        let told = format!("has closed; it is in message {digest}");
        assert!(found.sentence.contains(&told), "{}", found.sentence);
    }
    let first = "select min(job_id) from flyball.message_plan where origin = 'item'";
    let last = "select max(job_id) from flyball.message_plan where origin = 'item'";
    let messages = [gates.count(first).await, gates.count(last).await];
    assert_ne!(messages[0], messages[1]);
    for (id, message) in alone.into_iter().zip(messages) {
        let found = explained(&gates, id).await;
        assert_eq!(found.carried_by, Some(message), "{}", found.sentence);
    }
}

#[tokio::test]
async fn what_ended_because_its_recipient_was_erased_says_so_at_its_gates() {
    let gates = GatesFixture::new("").await;
    let mut item = comment(1);
    item["recipient"] = json!("ada");
    item["to"] = json!("+15550100");
    let (item, _) = gates.planned(item).await;
    let erase = sqlx::query("select flyball.delete_recipient('ada')");
    erase.execute(gates.fixture.database.pool()).await.unwrap();

    let found = explained(&gates, item).await;
    let deadline = &found.gates[0];
    assert_eq!(deadline.gate, "deadline");
    assert_eq!(
        (deadline.finding, deadline.rule.as_str()),
        (GateFinding::Ended, "its recipient was erased")
    );
    let told = "ended as cancelled at the gate deadline (its recipient was erased)";
    assert!(found.sentence.contains(told), "{}", found.sentence);
}
