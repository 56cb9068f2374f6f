//! Notifications over HTTP, on a real Postgres, with the signatures of a real provider.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use flyball::api::{self, AuthToken, Deps, Live, NoDecisions, TokenSecret};
use flyball::jobs::{Handler, Issue, Kinds, Outcome, PreparedJob, Queue};
use flyball::notify::{Attempt, Deliveries, DeliveryState, DeliveryUpdate};
use flyball::providers::{
    Account, AccountSecret as Credential, Channel, Limited, Pool, Pools, Provider, Recipient,
};
use flyball::throttle::{Knobs, Store};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Database, database, patient_store, redis_prefix, tools};

const TOKEN: &str = "a-token-of-sixteen-or-more";
const SIGNING_KEY: &str = "key-of-mailgun";

/// Stands for the handler: it wants a recipient and a body.
struct Wants;

impl Handler for Wants {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let missing = |name: &&str| !args[*name].is_string();
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

struct Api {
    base: String,
    client: reqwest::Client,
    queue: Queue,
    deliveries: Deliveries,
    cancel: CancellationToken,
    database: Database,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn pool(name: &str, provider: Provider, accounts: &[&str]) -> (String, Pool) {
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
        rps: -1.0,
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

async fn spawn() -> Api {
    let (database, prefix) = (database().await, redis_prefix());
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(30))
        .await
        .unwrap();
    let store: Arc<dyn Store> = Arc::new(patient_store(&prefix).await);
    let deliveries = Deliveries::new(queue.pool.clone());
    let mut kinds = Kinds::default();
    kinds.register("notification", Wants);
    let pools = Pools(BTreeMap::from([
        pool("mail", Provider::Mailgun, &["a1", "a2"]),
        pool("texts", Provider::Twilio, &["t1"]),
    ]));
    let cancel = CancellationToken::new();
    let deps = Deps {
        desks: Vec::new(),
        queue: queue.clone(),
        throttles: store,
        check_knobs: Knobs::check,
        kinds,
        pools: Arc::new(pools),
        deliveries: deliveries.clone(),
        tools: tools(),
        public_url: "https://jobs.example.com".into(),
        decisions: Arc::new(NoDecisions),
        live: Live::default(),
        tokens: [AuthToken::new("default", TokenSecret::new(TOKEN))]
            .into_iter()
            .collect(),
        registry: Arc::default(),
        cancel: cancel.clone(),
    };
    let listener = api::bind("127.0.0.1:0", true).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(api::serve(deps, listener));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    Api {
        base,
        client,
        queue,
        deliveries,
        cancel,
        database,
    }
}

impl Api {
    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Response {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(TOKEN);
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await.unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let response = self.ask(Method::GET, path, None).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.json().await.unwrap()
    }

    async fn notify(&self, more: Value) -> Response {
        let mut body =
            json!({"channel": "email", "to": "Ada@Example.com", "body": "the secret text"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.ask(Method::POST, "/api/v1/notifications", Some(body))
            .await
    }

    /// Sends a message and answers its id.
    async fn notified(&self, more: Value) -> i64 {
        let response = self.notify(more).await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        response.json::<Value>().await.unwrap()["id"]
            .as_i64()
            .unwrap()
    }

    async fn sent(&self, id: i64, account: &str) {
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
            recipient: Recipient::parse(Channel::Email, "Ada@Example.com").unwrap(),
            category: "billing".into(),
            attempts: vec![
                attempt("a0", "transient", "503 busy"),
                attempt(account, "accepted", ""),
            ],
            suppress: None,
            met: None,
        };
        self.deliveries.record(written).await.unwrap();
    }

    /// Posts an event as Mailgun would, signed with a key.
    async fn tell(&self, account: &str, key: &str, event: Value) -> Response {
        static TOKENS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let token = format!(
            "t0ken-{}",
            TOKENS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        );
        self.tell_with(
            account,
            key,
            (flyball::api::clock::now().as_second(), &token),
            event,
        )
        .await
    }

    /// The same with a token that may have been used.
    async fn tell_with(
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

fn event(event_id: &str, id: i64, word: &str) -> Value {
    json!({
        "id": event_id, "event": word, "timestamp": flyball::api::clock::now().as_second(), "recipient": "ada@example.com",
        "severity": "permanent", "message": {"headers": {"message-id": format!("m{id}@mg.example.com")}},
    })
}

#[tokio::test]
async fn a_message_is_accepted_shown_and_found_with_its_recipient_masked() {
    let api = spawn().await;

    let response = api
        .notify(json!({"priority": "critical", "key": "acme", "category": "billing"}))
        .await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let accepted: Value = response.json().await.unwrap();
    let id = accepted["id"].as_i64().unwrap();
    assert_eq!(
        (location.as_str(), &accepted["pool"]),
        (
            format!("/api/v1/notifications/{id}").as_str(),
            &json!("mail")
        )
    );
    let job = api.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (
            job.summary.priority,
            job.summary.throttle.as_str(),
            job.summary.key.as_str()
        ),
        (0, "mail", "acme")
    );

    let queued = api.get(&location).await;
    assert_eq!(
        (&queued["state"], &queued["to"], &queued["attempts"]),
        (&json!("queued"), &json!("a***@e***.com"), &json!([]))
    );

    api.sent(id, "a1").await;
    let response = api.ask(Method::GET, &location, None).await;
    let text = response.text().await.unwrap();
    assert!(
        !text.to_lowercase().contains("ada@") && !text.contains("secret text"),
        "{text}"
    );
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["state"], "sent");
    assert_eq!(
        (&shown["account"], &shown["provider"], &shown["tries"]),
        (&json!("a1"), &json!("mailgun"), &json!(2))
    );
    assert_eq!(shown["provider_id"], format!("m{id}@mg.example.com"));
    let first = &shown["attempts"][0];
    assert_eq!(
        (
            &first["account"],
            &first["outcome"],
            &first["reason"],
            &first["ms"]
        ),
        (
            &json!("a0"),
            &json!("transient"),
            &json!("503 busy"),
            &json!(7)
        )
    );

    let missing = api.ask(Method::GET, "/api/v1/notifications/1", None).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(
        missing.json::<Value>().await.unwrap()["code"],
        "notification_not_found"
    );
}

#[tokio::test]
async fn a_message_by_the_door_of_jobs_has_its_priority_and_shows_no_recipient() {
    let api = spawn().await;
    let job = |word: &str| json!({"kind": "notification", "args": {"channel": "email", "to": "ada@example.com", "body": "x", "priority": word}});

    let one = api
        .ask(Method::POST, "/api/v1/jobs", Some(job("low")))
        .await
        .json::<Value>()
        .await
        .unwrap();
    let many = api
        .ask(
            Method::POST,
            "/api/v1/jobs/batch",
            Some(json!([job("critical"), job("high")])),
        )
        .await;
    let many = many.json::<Value>().await.unwrap();

    assert_eq!(
        (&one["priority"], &one["args"]["to"]),
        (&json!(3), &json!("a***@e***.com"))
    );
    assert_eq!(
        one["args"]["body"], "***",
        "what it says is the recipient's business"
    );
    for (place, priority) in [(0, 0), (1, 1)] {
        let shown = api
            .get(&format!("/api/v1/jobs/{}", many["jobs"][place]["id"]))
            .await;
        assert_eq!(
            (&shown["priority"], &shown["args"]["to"]),
            (&json!(priority), &json!("a***@e***.com"))
        );
    }
}

#[tokio::test]
async fn every_wrong_field_of_a_message_is_listed_at_once() {
    let api = spawn().await;

    let body = json!({"channel": "email", "boddy": 1, "key": 7, "run_at": "soon", "provider": "twilio", "unique_key": ""});
    let response = api
        .ask(Method::POST, "/api/v1/notifications", Some(body))
        .await;

    assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let problem: Value = response.json().await.unwrap();
    let pointers: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(
        pointers,
        [
            "/boddy",
            "/key",
            "/run_at",
            "/unique_key",
            "/to",
            "/body",
            "/provider"
        ]
    );
    assert!(
        problem["errors"][6]["message"]
            .as_str()
            .unwrap()
            .contains("allowed: mail"),
        "{problem}"
    );
    let jobs: i64 = sqlx::query_scalar("select count(*) from flyball.job")
        .fetch_one(api.database.pool())
        .await
        .unwrap();
    assert_eq!(jobs, 0);
}

#[tokio::test]
async fn a_message_with_a_unique_key_is_made_once() {
    let api = spawn().await;
    let id = api.notified(json!({"unique_key": "order-7"})).await;

    let again = api.notify(json!({"unique_key": "order-7"})).await;

    assert_eq!(again.status(), StatusCode::OK);
    let again: Value = again.json().await.unwrap();
    assert_eq!(
        (&again["id"], &again["duplicate"]),
        (&json!(id), &json!(true))
    );
}

#[tokio::test]
async fn messages_are_searched_by_state_channel_and_account_page_by_page() {
    let api = spawn().await;
    let mut ids = Vec::new();
    for n in 0..7 {
        let id = api.notified(json!({})).await;
        if n < 5 {
            api.sent(id, if n % 2 == 0 { "a1" } else { "a2" }).await;
        }
        ids.push(id);
    }
    api.notified(json!({"channel": "sms", "to": "+15550100000"}))
        .await;
    // Jobs of other kinds lie between.
    sqlx::query("select flyball.enqueue('http') from generate_series(1, 3000)")
        .execute(api.database.pool())
        .await
        .unwrap();

    let found = async |query: &str| -> Vec<i64> {
        let (mut found, mut next) = (
            Vec::new(),
            Some(format!("/api/v1/notifications?limit=2{query}")),
        );
        while let Some(path) = next {
            let page = api.get(&path).await;
            found.extend(
                page["notifications"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|one| one["id"].as_i64().unwrap()),
            );
            next = page["next"].as_str().map(str::to_owned);
        }
        found
    };
    assert_eq!(
        found("&state=sent&account=a1").await,
        [ids[4], ids[2], ids[0]]
    );
    assert_eq!(found("&state=queued&channel=email").await, [ids[6], ids[5]]);
    assert_eq!(found("&channel=sms").await.len(), 1);
    assert_eq!(found("&pool=mail").await.len(), 7);
    assert_eq!(found("").await.len(), 8);

    let wrong = api
        .ask(
            Method::GET,
            "/api/v1/notifications?state=lost&chanel=sms&limit=0",
            None,
        )
        .await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    assert_eq!(
        wrong.json::<Value>().await.unwrap()["errors"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn events_need_the_providers_signature_and_no_token_and_count_once() {
    let api = spawn().await;
    let id = api.notified(json!({})).await;
    api.sent(id, "a1").await;
    let path = format!("/api/v1/notifications/{id}");

    let forged = api
        .tell("mail/a1", "another key", event("e1", id, "delivered"))
        .await;
    assert_eq!(forged.status(), StatusCode::UNAUTHORIZED);
    let forged = forged.text().await.unwrap();
    assert!(
        !forged.contains("HMAC") && !forged.contains("match"),
        "no detail: {forged}"
    );
    for unknown in ["mail/a9", "male/a1"] {
        let response = api
            .tell(unknown, SIGNING_KEY, event("e1", id, "delivered"))
            .await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{unknown}");
        assert_eq!(
            response.json::<Value>().await.unwrap()["code"],
            "account_not_found"
        );
    }
    assert_eq!(api.get(&path).await["state"], "sent");

    for _ in 0..2 {
        assert_eq!(
            api.tell("mail/a1", SIGNING_KEY, event("e1", id, "delivered"))
                .await
                .status(),
            StatusCode::NO_CONTENT
        );
    }
    assert_eq!(api.get(&path).await["state"], "delivered");
    let delivered: i64 =
        sqlx::query_scalar("select delivered from flyball.account_tally where account = 'a1'")
            .fetch_one(api.database.pool())
            .await
            .unwrap();
    assert_eq!(delivered, 1);

    assert_eq!(
        api.tell("mail/a1", SIGNING_KEY, event("e2", id, "complained"))
            .await
            .status(),
        StatusCode::NO_CONTENT
    );
    let shown = api.get(&path).await;
    assert_eq!(
        (&shown["state"], &shown["complained"]),
        (&json!("delivered"), &json!(true))
    );
    let listed = api
        .get("/api/v1/suppressions?channel=email&recipient=ADA@example.com")
        .await;
    let suppression = &listed["suppressions"][0];
    assert_eq!(
        (&suppression["reason"], &suppression["account"]),
        (&json!("complained"), &json!("a1"))
    );

    // Everything else needs the token still.
    let open = api
        .client
        .get(format!("{}{path}", api.base))
        .send()
        .await
        .unwrap();
    assert_eq!(open.status(), StatusCode::UNAUTHORIZED);
    let large = api
        .client
        .post(format!("{}/api/v1/provider-events/mail/a1", api.base))
        .body(vec![b'x'; 1_100_000]);
    assert_eq!(
        large.send().await.unwrap().status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
}

#[tokio::test]
async fn a_signature_of_mailgun_is_good_for_one_body_however_often_that_comes() {
    let api = spawn().await;
    let id = api.notified(json!({})).await;
    api.sent(id, "a1").await;
    let (at_s, delivered) = (
        flyball::api::clock::now().as_second(),
        event("e1", id, "delivered"),
    );
    for _ in 0..2 {
        let again = api
            .tell_with("mail/a1", SIGNING_KEY, (at_s, "once"), delivered.clone())
            .await;
        assert_eq!(again.status(), StatusCode::NO_CONTENT);
    }
    let mut forged = event("e2", id, "complained");
    forged["recipient"] = json!("ceo@bigcustomer.example");

    let refused = api
        .tell_with("mail/a1", SIGNING_KEY, (at_s, "once"), forged.clone())
        .await;

    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let listed = api
        .get("/api/v1/suppressions?channel=email&recipient=ceo@bigcustomer.example")
        .await;
    assert_eq!(listed["suppressions"], json!([]));
    // Eight at once, as two processes would have it: one of them is believed.
    let each = (0..8).map(|n| {
        api.tell_with(
            "mail/a1",
            SIGNING_KEY,
            (at_s, "race"),
            event(&format!("r{n}"), id, "delivered"),
        )
    });
    let believed = futures_util::future::join_all(each)
        .await
        .iter()
        .filter(|answer| answer.status() == 204)
        .count();
    assert_eq!(believed, 1);
}

#[tokio::test]
async fn an_event_of_twilio_is_checked_against_the_address_that_the_outside_knows() {
    let api = spawn().await;
    let id = api
        .notified(json!({"channel": "sms", "to": "+15550100000"}))
        .await;
    let written = DeliveryUpdate {
        job_id: id,
        channel: Channel::Sms,
        pool: "texts".into(),
        provider: "twilio",
        account: Some("t1".into()),
        state: DeliveryState::Sent,
        provider_id: Some("SM1".into()),
        recipient: Recipient::parse(Channel::Sms, "+15550100000").unwrap(),
        category: String::new(),
        attempts: Vec::new(),
        suppress: None,
        met: None,
    };
    api.deliveries.record(written).await.unwrap();
    let path = "/api/v1/provider-events/texts/t1";
    let post = async |public: &str| {
        let signed = format!("{public}{path}MessageSidSM1MessageStatusdeliveredTo+15550100000");
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SIGNING_KEY.as_bytes());
        let signature = base64(hmac::sign(&key, signed.as_bytes()).as_ref());
        let body = "MessageSid=SM1&MessageStatus=delivered&To=%2B15550100000";
        let request = api
            .client
            .post(format!("{}{path}", api.base))
            .header("x-twilio-signature", signature);
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body)
            .send()
            .await
            .unwrap()
            .status()
    };

    assert_eq!(post(&api.base).await, StatusCode::UNAUTHORIZED);
    assert_eq!(
        post("https://jobs.example.com").await,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        api.get(&format!("/api/v1/notifications/{id}")).await["state"],
        "delivered"
    );
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test]
async fn recipients_are_suppressed_looked_up_listed_and_let_go_without_being_shown() {
    let api = spawn().await;
    let add = async |body: Value| {
        api.ask(Method::POST, "/api/v1/suppressions", Some(body))
            .await
    };

    let first = add(json!({"channel": "email", "recipient": " Ada@Example.com", "reason": "asked by post", "by": "kim"})).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let again = add(json!({"channel": "email", "recipient": "ada@example.com"})).await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(
        again.json::<Value>().await.unwrap(),
        json!({"suppressed": true, "changed": false})
    );
    for n in 0..4 {
        assert_eq!(
            add(json!({"channel": "sms", "recipient": format!("+1555010000{n}")}))
                .await
                .status(),
            StatusCode::CREATED
        );
    }

    let one = api
        .get("/api/v1/suppressions?channel=email&recipient=ADA%40example.com")
        .await;
    assert_eq!(one["suppressions"][0]["reason"], "asked by post");
    assert_eq!(
        api.get("/api/v1/suppressions?channel=chat&recipient=ada%40example.com")
            .await["suppressions"],
        json!([])
    );
    let (mut listed, mut next) = (Vec::new(), Some("/api/v1/suppressions?limit=2".to_owned()));
    while let Some(path) = next {
        let page = api.get(&path).await;
        assert!(
            !page.to_string().contains("example.com") && !page.to_string().contains("+1555"),
            "{page}"
        );
        listed.extend(page["suppressions"].as_array().unwrap().clone());
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(listed.len(), 5);
    assert_eq!(
        api.get("/api/v1/suppressions?channel=sms").await["suppressions"]
            .as_array()
            .unwrap()
            .len(),
        4
    );

    let path = "/api/v1/suppressions?channel=email&recipient=ada%40example.com&by=kim";
    for changed in [true, false] {
        let response = api.ask(Method::DELETE, path, None).await;
        assert_eq!(
            response.json::<Value>().await.unwrap(),
            json!({"suppressed": false, "changed": changed})
        );
    }
    let audit: Vec<(String, String, String)> = sqlx::query_as(
        "select actor, action, subject from flyball.audit where actor = 'kim' order by id",
    )
    .fetch_all(api.database.pool())
    .await
    .unwrap();
    let line = |action: &str| {
        (
            "kim".to_owned(),
            action.to_owned(),
            "email/a***@e***.com".to_owned(),
        )
    };
    assert_eq!(
        audit,
        [line("recipient.suppress"), line("recipient.unsuppress")]
    );

    let wrong = add(json!({"channel": "fax", "recipent": "1"})).await;
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let wrong: Value = wrong.json().await.unwrap();
    let pointers: Vec<&str> = wrong["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(pointers, ["/recipent", "/channel", "/recipient"]);
    for path in [
        "/api/v1/suppressions?recipient=x",
        "/api/v1/suppressions?cursor=x",
    ] {
        assert_eq!(
            api.ask(Method::GET, path, None).await.status(),
            StatusCode::BAD_REQUEST,
            "{path}"
        );
    }
    assert_eq!(
        api.ask(Method::DELETE, "/api/v1/suppressions?channel=sms", None)
            .await
            .status(),
        StatusCode::BAD_REQUEST
    );
}
