//! Dry runs over messages that no program can read.

use std::sync::Arc;

use flyball::recipient::replay_log::replay_log;
use flyball::recipient::rules::RecipientRules;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor};

use super::fixture::GatesFixture;

#[tokio::test]
async fn what_only_sql_can_read_is_counted_as_unreadable() {
    let gates = GatesFixture::new("").await;
    gates.send(json!({"category": "billing"})).await;
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for value in ["1e400", &deep] {
        let sql = format!(
            "select flyball.notify('own', '{{\"channel\": \"sms\", \"to\": \"+15550100\", \"body\": \"x\",
                \"category\": \"billing\", \"data\": {{\"n\": {value}}}}}');
             insert into flyball.recipient (tenant, id, profile) values ('', left('{value}', 9), '{{\"n\": {value}}}');
             insert into flyball.recipient_defaults (tenant, profile) values (left('{value}', 9), '{{\"n\": {value}}}')"
        );
        let pool = gates.fixture.database.pool();
        pool.execute(AssertSqlSafe(sql)).await.unwrap();
    }
    gates
        .send(json!({"category": "billing", "recipient": "1e400", "to": "+15550100"}))
        .await;
    let rules = Arc::new(RecipientRules::parse("test.toml", "").unwrap());
    let now = gates.now().await;
    let hour = jiff::SignedDuration::from_hours(1);
    let db = (&gates.fixture.queue.pool).into();
    let (report, unreadable) = replay_log(&db, now - hour, now + hour, rules.clone(), rules)
        .await
        .unwrap();
    assert_eq!(
        (report.messages, unreadable),
        (2, 3),
        "two messages and a profile"
    );
}
