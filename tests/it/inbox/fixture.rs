//! A running program with the API, tokens of two tenants, and devices of recipients.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flyball::app::Roles;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _, Row};

use crate::gateway::client::WsClient;
use crate::support::app::RunningApp;
use crate::support::{Database, database, eventually};

pub const SOON: Duration = Duration::from_secs(60);

/// Tokens with their tenants and scopes.
const TOKENS: [(&str, &str, &str); 4] = [
    (
        "acme",
        "acme",
        r#"["notify:send", "notify:read", "channels:subscribe"]"#,
    ),
    ("acme-reader", "acme", r#"["notify:read"]"#),
    (
        "zeta",
        "zeta",
        r#"["notify:send", "notify:read", "channels:subscribe"]"#,
    ),
    ("zeta-jobs", "zeta", r#"["jobs:enqueue"]"#),
];

pub struct InboxFixture {
    pub program: RunningApp,
    client: reqwest::Client,
    sent: AtomicUsize,
}

fn settings(folder: &Path, rules: &str) -> String {
    let mut text = String::new();
    if !rules.is_empty() {
        let file = folder.join("rules.toml");
        std::fs::write(&file, rules).unwrap();
        text.push_str(&format!(
            "recipients_file = {:?}\n",
            file.display().to_string()
        ));
    }
    for (name, tenant, scopes) in TOKENS {
        let file = folder.join(name);
        std::fs::write(&file, token(name)).unwrap();
        text.push_str(&format!(
            "[api_tokens.{name}]\ntenant = {tenant:?}\nscopes = {scopes}\nsecret_file = {:?}\n",
            file.display().to_string()
        ));
    }
    text
}

fn token(name: &str) -> String {
    format!("0123456789-{name}-token")
}

impl InboxFixture {
    pub async fn start() -> Self {
        Self::by("").await
    }

    /// Starts with rules for recipients over those that ship.
    pub async fn by(rules: &str) -> Self {
        let roles = Roles {
            api: true,
            runner: true,
            governor: false,
        };
        let program = RunningApp::start(roles, |folder| settings(folder, rules)).await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let sent = AtomicUsize::default();
        Self {
            program,
            client,
            sent,
        }
    }

    pub fn base(&self) -> String {
        format!("http://{}", self.program.app.address.unwrap())
    }

    /// Sends a request; returns the status and the answer.
    pub async fn ask(
        &self,
        name: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let request = self
            .client
            .request(method, format!("{}{path}", self.base()))
            .bearer_auth(token(name));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    pub async fn get(&self, name: &str, path: &str) -> Value {
        let (status, answer) = self.ask(name, Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Sends a message with further fields to the inbox of a recipient over HTTP.
    pub async fn send(&self, name: &str, recipient: &str, more: Value) -> i64 {
        // No two are duplicates.
        let nth = self.sent.fetch_add(1, Ordering::Relaxed);
        let body = format!("Hello {nth}");
        let mut message = json!({"channel": "inapp", "recipient": recipient, "body": body});
        let fields = message.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        let sent = self.ask(name, Method::POST, "/api/v1/notifications", Some(&message));
        let (status, answer) = sent.await;
        // On a busy machine the store of throttles answers too late, and the message waits a moment.
        if status == 429 {
            let id = answer["notificationId"].as_str();
            return id.expect("a message that was accepted").parse().unwrap();
        }
        assert!(status == 201 || status == 202, "{status}: {answer}");
        answer["id"].as_i64().unwrap()
    }

    /// Waits until a message of acme is in this state.
    pub async fn until(&self, id: i64, state: &str) {
        let path = format!("/api/v1/notifications/{id}");
        eventually(&format!("{id} is {state}"), SOON, || async {
            (self.get("acme", &path).await["state"] == state).then_some(())
        })
        .await;
    }

    /// Waits until everything that was published has its offset.
    pub async fn is_told(&self) {
        eventually("no publication waits", SOON, || async {
            let waiting = self.count("select count(*) from flyball.publication");
            (waiting.await == 0).then_some(())
        })
        .await;
    }

    /// Waits until the inbox of a recipient has so many messages that are not archived; returns
    /// them, newest first.
    pub async fn inbox(&self, name: &str, recipient: &str, many: usize) -> Vec<Value> {
        let path = format!("/api/v1/recipients/{recipient}/inbox?limit=100");
        eventually(&format!("{many} messages"), SOON, || async {
            let answer = self.get(name, &path).await;
            let messages = answer["messages"].as_array().unwrap().clone();
            (messages.len() == many).then_some(messages)
        })
        .await
    }

    /// Connects a device of a recipient with a ticket, and subscribes it to the inbox.
    pub async fn device(&self, name: &str, recipient: &str) -> WsClient {
        let asked = json!({ "recipient": recipient });
        let (status, ticket) = self
            .ask(name, Method::POST, "/api/v1/ws/tickets", Some(&asked))
            .await;
        assert_eq!(status, 201, "{ticket}");
        let path = format!("/api/v1/ws?ticket={}", ticket["ticket"].as_str().unwrap());
        let mut device = WsClient::with(&self.base(), &path, &[]).await;
        let answer = device.subscribe("$inbox").await;
        assert_eq!(answer["type"], "subscribed", "{answer}");
        device
    }

    /// Runs a statement as a tenant, in one transaction; returns the first value as JSON.
    pub async fn sql(&self, tenant: &str, statement: &str) -> Result<Value, sqlx::Error> {
        let mut transaction = self.program.app.queue.pool.begin().await?;
        sqlx::query("select flyball.as_tenant($1)")
            .bind(tenant)
            .execute(&mut *transaction)
            .await?;
        let wrapped = format!("select to_jsonb(r) from ({statement}) r");
        let row = sqlx::query(AssertSqlSafe(wrapped))
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        row.try_get(0)
    }

    pub async fn count(&self, sql: &'static str) -> i64 {
        let counted = sqlx::query_scalar(sql).fetch_one(self.program.database.pool());
        counted.await.unwrap()
    }
}

/// Returns a database with jobs of messages for inboxes, which nobody runs.
pub async fn with_jobs(many: i64) -> (Database, Vec<i64>) {
    let database = database().await;
    let jobs = format!(
        "insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
         select flyball.day_of(now()) << 38 | n, flyball.lane_of('inapp', ''), 2, 10, 1, 'notification', 'inapp', '', '{{}}'
         from generate_series(1, {many}) n"
    );
    database.pool().execute(AssertSqlSafe(jobs)).await.unwrap();
    let ids = sqlx::query_scalar("select id from flyball.job order by id")
        .fetch_all(database.pool())
        .await
        .unwrap();
    (database, ids)
}

/// Returns the values of a field of messages.
pub fn field<'a>(messages: &'a [Value], name: &str) -> Vec<&'a Value> {
    messages.iter().map(|message| &message[name]).collect()
}

/// Returns the unseen and unread messages of an answer.
pub fn counts(answer: &Value) -> (i64, i64) {
    (
        answer["unseen"].as_i64().unwrap(),
        answer["unread"].as_i64().unwrap(),
    )
}
