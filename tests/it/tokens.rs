//! What each token of the API may do, over HTTP: every route of the document by every sort of token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flyball::api::http::scopes::{self, Need};
use flyball::api::{
    self, AuthToken, DEFAULT_TENANT, Deps, Live, NoDecisions, Permissions, TokenScope, TokenSecret,
};
use flyball::jobs::{Context, Handler, Job, Kinds, NewJob, Outcome, Queue};
use flyball::throttle::{Change, Knobs, Name, Store};
use futures_util::future::BoxFuture;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Database, database, patient_store, redis_prefix};

const SOON: Duration = Duration::from_secs(20);
const ADMIN: &str = "0123456789-admin";

/// An API with tokens, on a database and a prefix of its own.
struct House {
    base: String,
    client: reqwest::Client,
    queue: Queue,
    cancel: CancellationToken,
    database: Database,
}

/// A kind whose handler says that it is not public.
struct Private;

impl Handler for Private {
    fn run(&self, _: Job, _: Context) -> BoxFuture<'_, Outcome> {
        Box::pin(async { Outcome::Done })
    }

    fn public(&self) -> bool {
        false
    }
}

/// A token's name, tenant and leave; its secret is made from its name.
type Given<'a> = (&'a str, Option<&'a str>, Permissions);

fn secret(name: &str) -> String {
    format!("0123456789-{name}")
}

fn leave(scopes: &[TokenScope]) -> Permissions {
    Permissions {
        scopes: scopes.iter().copied().collect(),
        ..Permissions::default()
    }
}

async fn house(given: Vec<Given<'_>>, public_url: &str) -> House {
    let database = database().await;
    let store: Arc<dyn Store> = Arc::new(patient_store(&redis_prefix()).await);
    let tenants: BTreeSet<&str> = given
        .iter()
        .filter_map(|(_, tenant, _)| *tenant)
        .chain([DEFAULT_TENANT])
        .collect();
    api::seed_limits(&*store, &tenants.into_iter().collect::<Vec<_>>())
        .await
        .unwrap();
    for name in ["mail", "shop:eu"] {
        let fields = BTreeMap::from([("rps".to_owned(), Some("100".to_owned()))]);
        let change = Change {
            fields,
            by: "test".into(),
            create: true,
            ..Change::default()
        };
        store.set(&Name::new(name).unwrap(), &change).await.unwrap();
    }
    // Many requests without a token are refused faster than they are judged.
    let unlimited = ["rps", "key_rps"].map(|knob| (knob.to_owned(), Some("-1".to_owned())));
    let change = Change {
        fields: BTreeMap::from(unlimited),
        by: "test".into(),
        ..Change::default()
    };
    store
        .set(&Name::new("api:denied").unwrap(), &change)
        .await
        .unwrap();

    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let mut kinds = Kinds::default();
    kinds.register_fn("http", |_: Job, _| async { Outcome::Done });
    kinds.register("reindex", Private);
    let cancel = CancellationToken::new();
    let admin = AuthToken::new(DEFAULT_TENANT, TokenSecret::new(ADMIN));
    let others = given.into_iter().map(|(name, tenant, leave)| {
        AuthToken::of(name, tenant, leave, TokenSecret::new(secret(name)))
    });
    let deps = Deps {
        queue: queue.clone(),
        pools: Arc::default(),
        deliveries: flyball::notify::Deliveries::new(queue.pool.clone()),
        tools: crate::support::tools(),
        public_url: public_url.to_owned(),
        throttles: store,
        check_knobs: Knobs::check,
        kinds,
        desks: Vec::new(),
        decisions: Arc::new(NoDecisions),
        live: Live::default(),
        tokens: std::iter::once(admin).chain(others).collect(),
        registry: Arc::default(),
        cancel: cancel.clone(),
    };
    let listener = api::bind("127.0.0.1:0", true).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(api::serve(deps, listener));
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    House {
        base,
        client,
        queue,
        cancel,
        database,
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl House {
    async fn ask(
        &self,
        method: Method,
        path: &str,
        secret: Option<&str>,
        body: &Value,
    ) -> Response {
        let mut request = self
            .client
            .request(method.clone(), format!("{}{path}", self.base));
        if method != Method::GET {
            request = request.json(body);
        }
        if let Some(secret) = secret {
            request = request.bearer_auth(secret);
        }
        request.send().await.unwrap()
    }

    /// Status and body.
    async fn said(&self, method: Method, path: &str, secret: &str, body: Value) -> (u16, Value) {
        let response = self.ask(method, path, Some(secret), &body).await;
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    async fn refused(
        &self,
        method: Method,
        path: &str,
        secret: &str,
        body: Value,
        code: &str,
    ) -> String {
        let (status, problem) = self.said(method, path, secret, body).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (403, Some(code)),
            "{path}: {problem}"
        );
        problem["detail"].as_str().unwrap().to_owned()
    }
}

/// Every operation of the document: method and template.
async fn operations(house: &House) -> Vec<(Method, String)> {
    let document: Value = house
        .ask(Method::GET, "/openapi.json", Some(ADMIN), &json!({}))
        .await
        .json()
        .await
        .unwrap();
    let methods = ["get", "post", "put", "patch", "delete"];
    let of = |(path, item): (&String, &Value)| {
        let of_path: Vec<(Method, String)> = methods
            .iter()
            .filter(|method| item.get(**method).is_some())
            .map(|method| (method.to_uppercase().parse().unwrap(), path.clone()))
            .collect();
        of_path
    };
    document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(of)
        .collect()
}

fn filled(template: &str) -> String {
    let name = if template.starts_with("/api/v1/throttles") {
        "mail"
    } else {
        "nothing"
    };
    let parts = [
        ("{id}", "999999"),
        ("{name}", name),
        ("{key}", "k"),
        ("{pool}", "none"),
        ("{account}", "none"),
    ];
    let path = parts
        .iter()
        .fold(template.to_owned(), |path, (part, with)| {
            path.replace(part, with)
        });
    assert!(
        !path.contains('{'),
        "{template} has a part that this test does not know"
    );
    path
}

#[tokio::test]
async fn every_route_is_open_to_the_scopes_that_it_needs_and_to_no_other() {
    let all: Vec<TokenScope> = TokenScope::WORDS.iter().map(|(_, scope)| *scope).collect();
    let mut given: Vec<Given<'_>> = TokenScope::WORDS
        .iter()
        .filter(|(word, _)| *word != "admin")
        .map(|(word, scope)| (*word, None, leave(&[*scope])))
        .collect();
    given.push(("nothing", None, leave(&[])));
    let house = house(given, "").await;
    let operations = operations(&house).await;
    assert!(operations.len() > 50, "{}", operations.len());

    for (method, template) in &operations {
        assert!(
            scopes::is_known(method, template),
            "{method} {template} has no row in src/api/http/scopes.rs: say which scope it needs"
        );
        let need = scopes::need(method, template);
        // Nothing that changes something is given away with a right to look, and nothing is open by accident.
        let is_change = *method != Method::GET;
        let ways_in = [
            TokenScope::JobsEnqueue,
            TokenScope::ThrottlesAcquire,
            TokenScope::OpsWrite,
            TokenScope::Admin,
        ];
        match need {
            Need::Open => {
                assert!(
                    [
                        "/healthz",
                        "/readyz",
                        "/api/v1/provider-events/{pool}/{account}"
                    ]
                    .contains(&template.as_str())
                )
            }
            Need::Token => assert_eq!(template, "/openapi.json"),
            Need::Scope(scope) => {
                assert_eq!(ways_in.contains(&scope), is_change, "{method} {template}")
            }
        }
        let path = filled(template);
        let nobody = house
            .ask(method.clone(), &path, None, &json!({}))
            .await
            .status();
        match need {
            Need::Open => assert_ne!(nobody, StatusCode::FORBIDDEN, "{method} {template}"),
            _ => assert_eq!(nobody, StatusCode::UNAUTHORIZED, "{method} {template}"),
        }
        for (word, scope) in TokenScope::WORDS
            .iter()
            .map(|(word, scope)| (*word, Some(*scope)))
            .chain([("nothing", None)])
        {
            let response = house
                .ask(method.clone(), &path, Some(&secret(word)), &json!({}))
                .await;
            let status = response.status();
            let may = match need {
                Need::Open | Need::Token => true,
                Need::Scope(needed) => scope == Some(needed) || scope == Some(TokenScope::Admin),
            };
            assert_ne!(status, StatusCode::TOO_MANY_REQUESTS, "{method} {template}");
            if may {
                assert_ne!(
                    status,
                    StatusCode::FORBIDDEN,
                    "{method} {template} by {word}"
                );
            } else {
                assert_eq!(
                    status,
                    StatusCode::FORBIDDEN,
                    "{method} {template} by {word}"
                );
                let problem: Value = response.json().await.unwrap();
                let Need::Scope(needed) = need else {
                    unreachable!()
                };
                let told = format!(
                    "{method} {template} needs the scope {}; token {word} has",
                    needed.as_str()
                );
                assert_eq!(problem["code"], "scope_missing");
                assert!(
                    problem["detail"].as_str().unwrap().starts_with(&told),
                    "{problem}"
                );
            }
        }
    }
    assert!(
        all.iter()
            .all(|scope| TokenScope::of(scope.as_str()) == Some(*scope))
    );
}

#[tokio::test]
async fn a_token_enqueues_the_kinds_and_throttles_that_its_settings_name() {
    let enqueues = |kinds: Option<&[&str]>, throttles: Option<&[&str]>| Permissions {
        scopes: BTreeSet::from([
            TokenScope::JobsEnqueue,
            TokenScope::OpsWrite,
            TokenScope::ThrottlesAcquire,
        ]),
        kinds: kinds.map(|kinds| kinds.iter().map(|kind| (*kind).to_owned()).collect()),
        throttles: throttles.map(|throttles| {
            throttles
                .iter()
                .map(|throttle| (*throttle).to_owned())
                .collect()
        }),
    };
    let given = vec![
        ("plain", None, enqueues(None, None)),
        ("search", None, enqueues(Some(&["reindex"]), None)),
        (
            "shop",
            Some("shop"),
            enqueues(None, Some(&["mail", "shop:*"])),
        ),
    ];
    let house = house(given, "").await;
    sqlx::query(
        "select flyball.register_kind('elsewhere', false), flyball.register_kind('shared', true)",
    )
    .execute(house.database.pool())
    .await
    .unwrap();
    let args = |kind: &str| match kind {
        "reindex" => json!({}),
        _ => json!({"url": "https://example.org/"}),
    };
    for (token, kinds) in [
        ("plain", &["http", "shared"][..]),
        ("search", &["reindex"]),
        ("admin", &["http", "shared", "reindex", "elsewhere"]),
    ] {
        for kind in ["http", "shared", "reindex", "elsewhere"] {
            let job = json!({"kind": kind, "args": args(kind)});
            let mut schedule = job.clone();
            schedule["expression"] = json!("@daily");
            for (method, path, body) in [
                (Method::POST, "/api/v1/jobs", job.clone()),
                (Method::POST, "/api/v1/jobs/batch", json!([job])),
                (Method::PUT, "/api/v1/crons/s", schedule),
            ] {
                let (status, said) = house.said(method, path, &secret(token), body).await;
                let is_told = |said: &Value| {
                    said["code"] == "not_allowed"
                        && said
                            .to_string()
                            .contains(&format!("may not enqueue kind \\\"{kind}\\\""))
                };
                match kinds.contains(&kind) {
                    true => assert_ne!(status, 403, "{token} {kind} {path}: {said}"),
                    false => assert!(
                        status == 403 && is_told(&said),
                        "{token} {kind} {path}: {said}"
                    ),
                }
            }
        }
    }
    for (throttle, may) in [
        ("mail", true),
        ("shop:eu", true),
        ("default", false),
        ("api:write", false),
        ("shop", false),
    ] {
        let job = json!({"kind": "http", "args": args("http"), "throttle": throttle});
        let (status, said) = house
            .said(Method::POST, "/api/v1/jobs", &secret("shop"), job)
            .await;
        assert_eq!(status, if may { 201 } else { 403 }, "{throttle}: {said}");
        let path = format!("/api/v1/throttles/{}/acquire", throttle.replace(':', "%3A"));
        let (status, said) = house
            .said(Method::POST, &path, &secret("shop"), json!({}))
            .await;
        assert_eq!(status, if may { 200 } else { 403 }, "{throttle}: {said}");
    }
    // Nobody but administrators gives the API's own throttles work.
    let drain = json!({"kind": "http", "args": args("http"), "throttle": "api:write"});
    house
        .refused(
            Method::POST,
            "/api/v1/jobs",
            &secret("plain"),
            drain,
            "not_allowed",
        )
        .await;
}

#[tokio::test]
async fn tokens_do_not_touch_each_others_jobs_by_their_unique_keys() {
    let may = || leave(&[TokenScope::JobsEnqueue]);
    let house = house(
        vec![
            ("a", Some("acme"), may()),
            ("b", Some("acme"), may()),
            ("evil", None, may()),
        ],
        "",
    )
    .await;
    let job = |url: &str| json!({"kind": "http", "args": {"url": url}, "unique_key": "invoice-1", "replace": true, "run_at": "2099-01-01T00:00:00Z"});
    let mut told = Vec::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "a job is scheduled from the clock of who enqueues it"
    )]
    let far = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    for token in ["a", "b", "evil", "admin"] {
        let mut body = job(&format!("https://{token}.example/"));
        body["run_at"] = json!(far.to_string());
        let (status, said) = house
            .said(Method::POST, "/api/v1/jobs", &secret(token), body)
            .await;
        assert!(status == 200 || status == 201, "{said}");
        told.push(said["replaced"].as_bool().unwrap());
    }
    assert_eq!(
        told,
        [false, true, false, false],
        "tokens of one tenant share their keys, and nobody else's"
    );
    let cron = json!({"kind": "http", "args": {"url": "https://evil.example/"}, "unique_key": "cron:nightly", "replace": true});
    for token in ["evil", "admin"] {
        let (status, said) = house
            .said(Method::POST, "/api/v1/jobs", &secret(token), cron.clone())
            .await;
        assert_eq!(
            (status, said["errors"][0]["pointer"].as_str()),
            (422, Some("/unique_key")),
            "{said}"
        );
    }
    // Who may not read jobs does not read one by enqueueing it again.
    let again =
        json!({"kind": "http", "args": {"url": "https://x.example/"}, "unique_key": "invoice-1"});
    let (_, said) = house
        .said(Method::POST, "/api/v1/jobs", &secret("a"), again.clone())
        .await;
    assert_eq!(
        (said["duplicate"].as_bool(), &said["args"]),
        (Some(true), &Value::Null)
    );
    let (_, said) = house.said(Method::POST, "/api/v1/jobs", ADMIN, again).await;
    assert_eq!(said["args"]["url"], "https://admin.example/");
}

#[tokio::test]
async fn the_audit_log_names_the_token_whatever_the_request_calls_itself() {
    let house = house(
        vec![("night-shift", Some("acme"), leave(&[TokenScope::OpsWrite]))],
        "",
    )
    .await;
    let id = house
        .queue
        .enqueue(&[NewJob::new("http", json!({}))])
        .await
        .unwrap()[0]
        .id;
    let signed = json!({"by": "alice from ops\u{1f}admin\u{1f}root", "why": "because"});
    let with = |more: Value| {
        let mut body = signed.clone();
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let job =
        json!({"kind": "http", "args": {"url": "https://example.org/"}, "expression": "@daily"});
    let acts = [
        (
            Method::PATCH,
            "/api/v1/throttles/mail".to_owned(),
            with(json!({"rps": 7})),
        ),
        (
            Method::POST,
            "/api/v1/throttles/mail/pause".to_owned(),
            signed.clone(),
        ),
        (
            Method::POST,
            "/api/v1/throttles/mail/keys/k/pause".to_owned(),
            with(json!({"seconds": 5})),
        ),
        (
            Method::POST,
            "/api/v1/throttles/mail/keys/k/resume".to_owned(),
            signed.clone(),
        ),
        (
            Method::PATCH,
            "/api/v1/throttles/mail/keys/k".to_owned(),
            with(json!({"weight": 2})),
        ),
        (Method::POST, "/api/v1/pause".to_owned(), signed.clone()),
        (Method::POST, "/api/v1/resume".to_owned(), signed.clone()),
        (Method::PUT, "/api/v1/crons/s".to_owned(), with(job)),
        (
            Method::POST,
            "/api/v1/crons/s/run".to_owned(),
            signed.clone(),
        ),
        (
            Method::POST,
            "/api/v1/crons/s/pause".to_owned(),
            signed.clone(),
        ),
        (
            Method::DELETE,
            "/api/v1/crons/s?by=alice".to_owned(),
            json!({}),
        ),
        (
            Method::POST,
            format!("/api/v1/jobs/{id}/reschedule"),
            with(json!({"run_at": "2026-12-31T00:00:00Z"})),
        ),
        (
            Method::POST,
            format!("/api/v1/jobs/{id}/retry"),
            signed.clone(),
        ),
        (
            Method::POST,
            "/api/v1/jobs/cancel".to_owned(),
            with(json!({"kind": "http"})),
        ),
        (
            Method::POST,
            "/api/v1/suppressions".to_owned(),
            with(json!({"channel": "email", "recipient": "a@example.org"})),
        ),
        (
            Method::DELETE,
            "/api/v1/suppressions?channel=email&recipient=a@example.org&by=alice".to_owned(),
            json!({}),
        ),
    ];
    for (method, path, body) in &acts {
        let (status, said) = house
            .said(method.clone(), path, &secret("night-shift"), body.clone())
            .await;
        assert!((200..300).contains(&status), "{path}: {status} {said}");
    }
    let (_, audit) = house
        .said(Method::GET, "/api/v1/audit", ADMIN, json!({}))
        .await;
    let entries = audit["entries"].as_array().unwrap();
    assert!(entries.len() >= acts.len(), "{audit}");
    for entry in entries {
        assert_eq!(
            (entry["token"].as_str(), entry["tenant"].as_str()),
            (Some("night-shift"), Some("acme")),
            "{entry}"
        );
        assert!(
            entry["who"].as_str().unwrap().starts_with("alice"),
            "{entry}"
        );
    }
    let (_, mail) = house
        .said(Method::GET, "/api/v1/throttles/mail", ADMIN, json!({}))
        .await;
    assert!(
        !mail.to_string().contains("night-shift"),
        "the hash of knobs is no place for it: {mail}"
    );
}

#[tokio::test]
async fn the_throttles_of_the_api_are_turned_by_administrators_alone_and_never_lock_them_out() {
    let ops = || {
        leave(&[
            TokenScope::OpsWrite,
            TokenScope::OpsRead,
            TokenScope::ThrottlesAcquire,
        ])
    };
    let house = house(vec![("ops", Some("acme"), ops())], "").await;
    for (method, path, body) in [
        (
            Method::PATCH,
            "/api/v1/throttles/api:write:acme",
            json!({"rps": -1, "key_rps": -1}),
        ),
        (
            Method::PATCH,
            "/api/v1/throttles/%61pi%3Aread",
            json!({"rps": 0}),
        ),
        (Method::POST, "/api/v1/throttles/api:write/pause", json!({})),
        (
            Method::POST,
            "/api/v1/throttles/api:write/acquire",
            json!({"tokens": 1_000_000}),
        ),
        (
            Method::POST,
            "/api/v1/throttles/api:write/return",
            json!({"tokens": 1}),
        ),
        (
            Method::POST,
            "/api/v1/throttles/api:write/keys/x/pause",
            json!({"seconds": 5}),
        ),
        (
            Method::PATCH,
            "/api/v1/throttles/mail",
            json!({"parent": "api:write"}),
        ),
    ] {
        let told = house
            .refused(method, path, &secret("ops"), body, "scope_missing")
            .await;
        assert!(
            told.contains("limits the API itself") && told.contains("admin"),
            "{told}"
        );
    }
    assert_eq!(
        house
            .said(
                Method::GET,
                "/api/v1/throttles/api:write",
                &secret("ops"),
                json!({})
            )
            .await
            .0,
        200
    );

    assert_eq!(
        house
            .said(
                Method::POST,
                "/api/v1/throttles/api:write/pause",
                ADMIN,
                json!({})
            )
            .await
            .0,
        200
    );
    let response = house
        .ask(Method::POST, "/api/v1/pause", Some(ADMIN), &json!({}))
        .await;
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers().get("retry-after")
        ),
        (429, None)
    );
    let problem: Value = response.json().await.unwrap();
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("flyball throttle resume api:write") && !detail.contains("try again in"),
        "{detail}"
    );
    assert_eq!(
        house
            .said(
                Method::POST,
                "/api/v1/throttles/api:write/resume",
                ADMIN,
                json!({})
            )
            .await
            .0,
        200
    );
    assert_eq!(
        house
            .said(Method::POST, "/api/v1/pause", ADMIN, json!({}))
            .await
            .0,
        200
    );
    // Nor does a rate of nothing.
    for turned in ["0", "10"] {
        let knobs = json!({"rps": turned.parse::<f64>().unwrap()});
        assert_eq!(
            house
                .said(Method::PATCH, "/api/v1/throttles/api:write", ADMIN, knobs)
                .await
                .0,
            200
        );
    }
}

#[tokio::test]
async fn a_session_that_was_ended_is_good_nowhere() {
    let house = house(Vec::new(), "https://jobs.example.com").await;
    let login = || async {
        let form = [("token", ADMIN)];
        let response = house
            .client
            .post(format!("{}/login", house.base))
            .form(&form)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        let cookie = response.headers()["set-cookie"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            cookie.ends_with("; Secure") && cookie.contains("HttpOnly"),
            "{cookie}"
        );
        cookie.split(';').next().unwrap().to_owned()
    };
    let (first, second) = (login().await, login().await);
    assert_eq!(
        with(&house, Method::GET, "/api/v1/pause", &first).await,
        200
    );

    assert_eq!(with(&house, Method::POST, "/logout", &first).await, 303);

    assert_eq!(
        with(&house, Method::GET, "/api/v1/pause", &first).await,
        401
    );
    assert_eq!(
        with(&house, Method::GET, "/api/v1/pause", &second).await,
        200,
        "another session of the same token goes on"
    );
    // Other processes read it where this one wrote it.
    let ended: i64 = sqlx::query_scalar("select count(*) from flyball.signed_out")
        .fetch_one(house.database.pool())
        .await
        .unwrap();
    assert_eq!(ended, 1);
    sqlx::query("insert into flyball.signed_out select encode(sha256(convert_to($1, 'UTF8')), 'hex'), 9000000000")
        .bind(second.split_once('=').unwrap().1)
        .execute(house.database.pool())
        .await
        .unwrap();
    crate::support::eventually(
        "the end of a session that another process ended",
        SOON,
        || async {
            (with(&house, Method::GET, "/api/v1/pause", &second).await == 401).then_some(())
        },
    )
    .await;
}

async fn with(house: &House, method: Method, path: &str, cookie: &str) -> u16 {
    let request = house
        .client
        .request(method, format!("{}{path}", house.base))
        .header("cookie", cookie);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_query_that_is_not_utf8_is_refused_by_its_name() {
    let house = house(Vec::new(), "").await;
    for path in [
        "/api/v1/jobs?key=%ff",
        "/api/v1/jobs?limit=1&key=%c3%28",
        "/api/v1/crons/s?by=%ff",
    ] {
        let method = if path.contains("crons") {
            Method::DELETE
        } else {
            Method::GET
        };
        let (status, problem) = house.said(method, path, ADMIN, json!({})).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (400, Some("invalid_query")),
            "{problem}"
        );
    }
    assert_eq!(
        house
            .said(Method::GET, "/api/v1/jobs?key=%c3%bc", ADMIN, json!({}))
            .await
            .0,
        200
    );
}
