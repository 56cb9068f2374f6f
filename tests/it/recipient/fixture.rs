//! A queue with the gates of its recipients.

use std::collections::HashMap;
use std::sync::Mutex;

use flyball::jobs::postgres::NewMessage;
use flyball::jobs::{Error, Queue};
use flyball::recipient::gate::AttemptEnd;
use flyball::recipient::gates::MessagePlan;
use flyball::recipient::live_rules::LiveRules;
use flyball::recipient::postgres::{ClaimKey, publish_rules};
use flyball::recipient::rules::RecipientRules;
use flyball::recipient::service::Gates;
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::support::fixture::Fixture;

/// Returns the gates of a queue, by the rules that ship.
pub fn gates(queue: &Queue) -> Gates {
    gates_by(queue, "")
}

/// Returns the gates of a queue, by rules over those that ship.
pub fn gates_by(queue: &Queue, rules: &str) -> Gates {
    let rules = RecipientRules::parse("test.toml", rules).unwrap();
    Gates::new(queue.clone(), LiveRules::new(rules))
}

/// A queue with gates. No worker runs, so messages stay where the gates put them.
pub struct GatesFixture {
    pub fixture: Fixture,
    pub gates: Gates,
    /// The claims of messages whose attempts have begun.
    claims: Mutex<HashMap<i64, ClaimKey>>,
}

impl GatesFixture {
    pub async fn new(rules: &str) -> Self {
        let fixture = Fixture::new().await;
        fixture.register("notification").await;
        let gates = gates_by(&fixture.queue, rules);
        Self {
            fixture,
            gates,
            claims: Mutex::default(),
        }
    }

    /// Writes the rules in force for SQL, as a process does that has them.
    pub async fn publish(&self) {
        let pool = &self.fixture.queue.pool;
        publish_rules(pool, &self.gates.rules.load()).await.unwrap();
    }

    /// Enqueues a text message by SQL, with further fields.
    pub async fn send(&self, more: Value) -> i64 {
        self.send_as("", more).await
    }

    /// Enqueues a text message of a tenant.
    pub async fn send_as(&self, tenant: &str, more: Value) -> i64 {
        self.try_send_as(tenant, more).await.unwrap()
    }

    /// Enqueues a text message of a tenant, or returns its refusal.
    pub async fn try_send_as(&self, tenant: &str, more: Value) -> Result<i64, Error> {
        let mut message = json!({"channel": "sms", "body": "Hello"});
        let fields = message.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        if !fields.contains_key("recipient") {
            fields.entry("to").or_insert(json!("+15550100"));
        }
        let message = NewMessage::new("own", message);
        let sent = self.fixture.queue.notify_as(tenant, "", &message).await;
        Ok(sent?.id)
    }

    /// Plans a message and returns its plan.
    pub async fn plan(&self, job_id: i64) -> MessagePlan {
        let planned = self.gates.plan_jobs(&[job_id]).await.unwrap();
        assert_eq!(planned.len(), 1, "one plan");
        planned.into_iter().next().unwrap().plan
    }

    /// Enqueues a message and plans it.
    pub async fn planned(&self, more: Value) -> (i64, MessagePlan) {
        let id = self.send(more).await;
        (id, self.plan(id).await)
    }

    /// Begins the attempt of a message and returns the gates' verdict.
    pub async fn verify(&self, job_id: i64) -> MessagePlan {
        let verdict = self.gates.verify(job_id).await.unwrap().unwrap();
        self.claims.lock().unwrap().insert(job_id, verdict.claim);
        verdict.plan
    }

    /// Ends the attempt of a message.
    pub async fn end(&self, job_id: i64, end: AttemptEnd) {
        let claim = self.claims.lock().unwrap()[&job_id];
        self.gates.end(claim, end).await.unwrap();
    }

    /// Writes the profile of a recipient of the operators.
    pub async fn profile(&self, id: &str, profile: Value) {
        sqlx::query(
            "insert into flyball.recipient (tenant, id, profile) values ('', $1, $2)
             on conflict (tenant, id) do update set profile = excluded.profile",
        )
        .bind(id)
        .bind(profile)
        .execute(self.fixture.database.pool())
        .await
        .unwrap();
    }

    /// Returns the time by the clock of Postgres.
    pub async fn now(&self) -> Timestamp {
        let now: jiff_sqlx::Timestamp = sqlx::query_scalar("select clock_timestamp()")
            .fetch_one(self.fixture.database.pool())
            .await
            .unwrap();
        now.to_jiff()
    }

    /// Returns the profile of a recipient for whom today is quiet as a whole.
    pub async fn quiet_today(&self) -> Value {
        let today = self.now().await.to_zoned(jiff::tz::TimeZone::UTC).weekday();
        let words = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        let word = words[today.to_monday_zero_offset() as usize];
        json!({
            "addresses": {"sms": "+15550111"},
            "quiet_hours": {"sms": {"all_day": true, "weekdays": [word]}},
        })
    }

    /// Makes Postgres refuse a change of a table's rows that meet a condition.
    pub async fn forbid(&self, change: &str, when: &str) {
        let sql = format!(
            "create or replace function public.forbid() returns trigger language plpgsql as $$ begin raise exception 'a bad row'; end $$;
             create trigger forbid before {change} for each row when ({when}) execute function public.forbid();"
        );
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(self.fixture.database.pool())
            .await
            .unwrap();
    }

    /// Returns one number.
    pub async fn count(&self, sql: &'static str) -> i64 {
        let counted = sqlx::query_scalar(sql).fetch_one(self.fixture.database.pool());
        counted.await.unwrap()
    }
}
