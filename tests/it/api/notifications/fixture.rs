//! A server with a pool of accounts, and signed provider events.

use flyball::throttle::RateLimit;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use flyball::api::{AuthToken, TokenSecret};
use flyball::jobs::{Handler, Issue, Outcome, PreparedJob};
use flyball::notify::{Attempt, Deliveries, DeliveryState, DeliveryUpdate};
use flyball::providers::{
    Account, AccountSecret as Credential, Channel, Limited, Pool, Pools, Provider, Recipient,
};

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;

const TOKEN: &str = "a-token-of-sixteen-or-more";

pub const SIGNING_KEY: &str = "key-of-mailgun";

/// A stand-in for the handler: it requires a recipient and a body.
pub struct Wants;

impl Handler for Wants {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let is_named = args["recipient"].is_string();
        let missing = |name: &&str| !(args[*name].is_string() || is_named && *name == "to");
        let issue = |name| Issue {
            pointer: format!("/{name}"),
            message: "the field is missing".into(),
        };
        let issues: Vec<Issue> = ["to", "body"]
            .into_iter()
            .filter(missing)
            .map(issue)
            .collect();
        if issues.is_empty() {
            Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
        } else {
            Err(issues)
        }
    }
}

/// An API with two pools of accounts.
pub struct Api(ApiServer);

impl Deref for Api {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.0
    }
}

pub fn pool(name: &str, provider: Provider, accounts: &[&str]) -> (String, Pool) {
    let account = |name: &&str| Limited {
        account: Account {
            name: (*name).to_owned(),
            secrets: BTreeMap::from([
                (
                    "webhook_signing_key".to_owned(),
                    Credential::new(SIGNING_KEY),
                ),
                ("auth_token".to_owned(), Credential::new(SIGNING_KEY)),
            ]),
            ..Account::default()
        },
        rps: RateLimit::Unlimited,
    };
    let pool = Pool {
        name: name.to_owned(),
        provider,
        accounts: accounts.iter().map(account).collect(),
        shedding: false,
        headroom: 1.0,
        breaker_failures: 5,
        breaker_window: Duration::from_secs(60),
        breaker_cooldown: Duration::from_secs(30),
        alert_url: None,
        alert_secret: None,
        retry_ambiguous: true,
        valid_for: Duration::from_secs(3600),
        requeue_on_recovery: true,
        timeout: Duration::from_secs(10),
    };
    (name.to_owned(), pool)
}

pub async fn spawn() -> Api {
    spawn_with(&[TOKEN]).await
}

/// Returns one that serves loopback without any token.
pub async fn spawn_without_token() -> Api {
    spawn_with(&[]).await
}

async fn spawn_with(tokens: &[&str]) -> Api {
    let server = ApiServer::start(Fixture::new().await, |deps| {
        deps.kinds.register("notification", Wants);
        deps.pools = Arc::new(Pools(BTreeMap::from([
            pool("mail", Provider::Mailgun, &["a1", "a2"]),
            pool("texts", Provider::Twilio, &["t1"]),
        ])));
        deps.public_url = "https://jobs.example.com".into();
        let tokens = tokens.iter();
        deps.tokens = tokens
            .map(|token| AuthToken::new(TokenSecret::new(*token)))
            .collect();
    });
    Api(server.await)
}

impl Api {
    pub fn deliveries(&self) -> Deliveries {
        Deliveries::new(self.queue.pool.clone())
    }

    pub async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Response {
        let mut request = self.request(method, path).bearer_auth(TOKEN);
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Value {
        let response = self.ask(Method::GET, path, None).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.json().await.unwrap()
    }

    pub async fn notify(&self, more: Value) -> Response {
        let mut body =
            json!({"channel": "email", "to": "Ada@Example.com", "body": "the secret text"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.ask(Method::POST, "/api/v1/notifications", Some(body))
            .await
    }

    /// Sends a message with an idempotency key; returns the status, whether it is a repeat, and the
    /// body of the answer.
    pub async fn notify_once(&self, key: &str, more: Value) -> (u16, bool, Value) {
        let mut body = json!({"channel": "email", "to": "ada@example.com", "body": "x"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let request = self
            .request(Method::POST, "/api/v1/notifications")
            .bearer_auth(TOKEN)
            .header("idempotency-key", key);
        let answer = request.json(&body).send().await.unwrap();
        let is_repeat = answer.headers().contains_key("idempotent-replayed");
        (
            answer.status().as_u16(),
            is_repeat,
            answer.json().await.unwrap(),
        )
    }

    /// Sends a message and returns its id.
    pub async fn notified(&self, more: Value) -> i64 {
        let response = self.notify(more).await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        response.json::<Value>().await.unwrap()["id"]
            .as_i64()
            .unwrap()
    }

    pub async fn sent(&self, id: i64, account: &str) {
        let attempt = |account: &str, outcome, reason: &str| Attempt {
            at: flyball::api::clock::now(),
            account: account.into(),
            outcome,
            status: "200".into(),
            reason: reason.into(),
            took: Duration::from_millis(7),
        };
        let written = DeliveryUpdate {
            job_id: id,
            channel: Channel::Email,
            pool: "mail".into(),
            provider: "mailgun",
            account: Some(account.into()),
            state: DeliveryState::Sent,
            provider_id: Some(format!("m{id}@mg.example.com")),
            recipient: Some(Recipient::parse(Channel::Email, "Ada@Example.com").unwrap()),
            category: "billing".into(),
            attempts: vec![
                attempt("a0", "transient", "503 busy"),
                attempt(account, "accepted", ""),
            ],
            suppress: None,
            met: None,
        };
        self.deliveries().record(written).await.unwrap();
    }

    /// Posts an event in Mailgun's format, signed with a key.
    pub async fn post_event(&self, account: &str, key: &str, event: Value) -> Response {
        static TOKENS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let token = format!(
            "t0ken-{}",
            TOKENS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        );
        self.post_event_with(
            account,
            key,
            (flyball::api::clock::now().as_second(), &token),
            event,
        )
        .await
    }

    /// Posts an event with a token that may have been used before.
    pub async fn post_event_with(
        &self,
        account: &str,
        key: &str,
        (at_s, token): (i64, &str),
        event: Value,
    ) -> Response {
        let timestamp = at_s.to_string();
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
        let tag = hmac::sign(&key, format!("{timestamp}{token}").as_bytes());
        let signature: String = tag
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let body = json!({
            "signature": {"timestamp": timestamp, "token": token, "signature": signature},
            "event-data": event,
        });
        let url = format!("{}/api/v1/provider-events/{account}", self.base);
        self.client.post(url).json(&body).send().await.unwrap()
    }
}

pub fn event(event_id: &str, id: i64, word: &str) -> Value {
    json!({
        "id": event_id, "event": word, "timestamp": flyball::api::clock::now().as_second(), "recipient": "ada@example.com",
        "severity": "permanent", "message": {"headers": {"message-id": format!("m{id}@mg.example.com")}},
    })
}
