//! A server checked against its OpenAPI document: requests are generated from the document, and
//! responses are validated against it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::api::{AuthToken, Permissions, TokenSecret};
use flyball::jobs::{Handler, Issue, Outcome, PreparedJob};
use flyball::notify::NotificationHandler;
use flyball::providers::pool::{self, AccountPool};
use flyball::providers::{Account, Limited, Pool, Pools, Provider};
use flyball::throttle::{Notes, RateLimit, Store};
use jsonschema::{Draft, Validator};
use reqwest::{Method, Response};
use serde_json::{Map, Value, json};

use super::api_server::ApiServer;
use super::fixture::Fixture;
use super::{patient_store, redis_prefix};

/// The token with all permissions, on a server with tokens.
pub const ADMIN: &str = "0123456789-admin";
/// The token without any permission.
pub const NOBODY: &str = "0123456789-nobody";

/// A handler that accepts any arguments.
struct Anything;

impl Handler for Anything {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
    }
}

/// A server and its document.
pub struct Contract {
    pub document: Value,
    has_tokens: bool,
    server: ApiServer,
    seen: Mutex<BTreeSet<(String, u16)>>,
    validators: Mutex<BTreeMap<String, Arc<Validator>>>,
}

impl Deref for Contract {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}

fn pool() -> Pool {
    let account = |name: &str| Limited {
        account: Account {
            name: name.to_owned(),
            ..Account::default()
        },
        rps: RateLimit::PerSecond(5.0),
    };
    Pool {
        name: "mail".to_owned(),
        provider: Provider::Mailgun,
        accounts: vec![account("a1"), account("a2")],
        shedding: true,
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
    }
}

/// Starts a server on its own stores, with or without tokens.
pub async fn contract(has_tokens: bool) -> Contract {
    let prefix = redis_prefix();
    let store = Arc::new(patient_store(&prefix).await);
    let pools = Arc::new(Pools(BTreeMap::from([("mail".to_owned(), pool())])));
    let (sender, _changes) = tokio::sync::mpsc::unbounded_channel();
    let (as_store, notes): (Arc<dyn Store>, Arc<dyn Notes>) = (store.clone(), store.clone());
    let accounts = AccountPool::open(pool(), as_store, notes, sender).unwrap();
    pool::seed(&accounts).await.unwrap();
    let fixture = Fixture::on(store).await;
    for kind in ["anything", "notification"] {
        fixture.register(kind).await;
    }
    let tokens = [
        AuthToken::new(TokenSecret::new(ADMIN)),
        AuthToken::of(
            "nobody",
            None,
            Permissions::default(),
            TokenSecret::new(NOBODY),
        ),
    ];
    let server = ApiServer::start(fixture, |deps| {
        deps.kinds.register("anything", Anything);
        deps.kinds.register(
            "notification",
            NotificationHandler::new(pools.clone(), None),
        );
        deps.account_pools = vec![accounts];
        deps.pools = pools;
        deps.tokens = tokens.into_iter().filter(|_| has_tokens).collect();
    })
    .await;
    let token = if has_tokens { ADMIN } else { "none" };
    let document = server
        .request(Method::GET, "/openapi.json")
        .bearer_auth(token)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    Contract {
        document,
        has_tokens,
        server,
        seen: Mutex::default(),
        validators: Mutex::default(),
    }
}

/// A request to an operation of the document.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub parts: Vec<(String, String)>,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Body>,
    pub token: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub enum Body {
    Json(Value),
    /// A body of this media type.
    Text(&'static str, String),
}

impl Ask {
    pub fn part(mut self, name: &str, value: impl ToString) -> Self {
        self.parts.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn query(self, query: &str) -> Self {
        Self {
            query: query.to_owned(),
            ..self
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn json(self, body: Value) -> Self {
        Self {
            body: Some(Body::Json(body)),
            ..self
        }
    }

    pub fn text(self, media: &'static str, body: impl Into<String>) -> Self {
        Self {
            body: Some(Body::Text(media, body.into())),
            ..self
        }
    }

    pub fn token(self, token: &'static str) -> Self {
        Self {
            token: Some(token),
            ..self
        }
    }
}

/// An operation: method, template and declaration.
#[derive(Clone, Debug)]
pub struct Operation {
    pub id: String,
    pub method: Method,
    pub path: String,
    pub declared: Value,
}

impl Operation {
    /// Returns the schema of its JSON body, if it has one.
    pub fn body(&self) -> Option<&Value> {
        self.declared
            .pointer("/requestBody/content/application~1json/schema")
    }

    /// Returns its parameters in one place, such as `path` or `query`.
    pub fn parameters(&self, place: &str) -> Vec<&Value> {
        let all = self.declared["parameters"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        all.iter()
            .filter(|parameter| parameter["in"] == place)
            .collect()
    }

    /// Returns the declared statuses, without the default.
    pub fn statuses(&self) -> Vec<u16> {
        self.declared["responses"]
            .as_object()
            .unwrap()
            .keys()
            .filter_map(|status| status.parse().ok())
            .collect()
    }
}

/// Forbids undeclared fields in a schema.
///
/// Schemas of responses allow unknown fields for the sake of future versions, but the current
/// server must not send any.
fn strict(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(strict).collect(),
        Value::Object(map) => {
            let mut strict: Map<String, Value> = map
                .iter()
                .map(|(name, below)| (name.clone(), self::strict(below)))
                .collect();
            if map.get("type") == Some(&json!("object"))
                && map.contains_key("properties")
                && !map.contains_key("additionalProperties")
            {
                strict.insert("additionalProperties".to_owned(), json!(false));
            }
            Value::Object(strict)
        }
        other => other.clone(),
    }
}

impl Contract {
    pub fn operations(&self) -> Vec<Operation> {
        let paths = self.document["paths"].as_object().unwrap();
        let of_item = |(path, item): (&String, &Value)| {
            let methods = item.as_object().unwrap().clone();
            let path = path.clone();
            methods
                .into_iter()
                .filter(|(_, one)| one["operationId"].is_string())
                .map(move |(method, declared)| Operation {
                    id: declared["operationId"].as_str().unwrap().to_owned(),
                    method: method.to_uppercase().parse().unwrap(),
                    path: path.clone(),
                    declared,
                })
        };
        paths.iter().flat_map(of_item).collect()
    }

    pub fn operation(&self, id: &str) -> Operation {
        self.operations()
            .into_iter()
            .find(|one| one.id == id)
            .unwrap_or_else(|| panic!("no operation {id}"))
    }

    /// Returns the validator of a schema of the document.
    pub fn judge(&self, schema: &Value) -> Arc<Validator> {
        let mut validators = self.validators.lock().unwrap();
        let built = validators.entry(schema.to_string()).or_insert_with(|| {
            let mut whole = strict(schema);
            whole["components"] = strict(&self.document["components"]);
            let options = jsonschema::options()
                .with_draft(Draft::Draft202012)
                .should_validate_formats(true);
            Arc::new(options.build(&whole).unwrap())
        });
        built.clone()
    }

    /// Returns all violations of a schema by a value.
    pub fn faults(&self, schema: &Value, value: &Value) -> Vec<String> {
        self.judge(schema)
            .iter_errors(value)
            .map(|fault| format!("{}: {fault}", fault.instance_path()))
            .collect()
    }

    /// Sends a request and checks that the document declares the response.
    pub async fn ask(&self, operation: &Operation, ask: &Ask) -> (u16, Value) {
        let response = self.send(operation, ask).await;
        let status = response.status().as_u16();
        let media = response
            .headers()
            .get("content-type")
            .map(|media| media.to_str().unwrap().to_owned())
            .unwrap_or_default();
        if media.starts_with("text/event-stream") {
            assert!(
                operation.declared["responses"]["200"]["content"]
                    .get("text/event-stream")
                    .is_some()
            );
            self.seen
                .lock()
                .unwrap()
                .insert((operation.id.clone(), status));
            return (status, Value::Null);
        }
        let text = response.text().await.unwrap();
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        self.hold(operation, status, &media, &value, ask);
        (status, value)
    }

    /// Sends a request, and checks that it is refused with status 400 and this code; `what` names
    /// what is wrong with it.
    pub async fn refuses(&self, operation: &Operation, ask: &Ask, code: &str, what: &str) {
        let (status, value) = self.ask(operation, ask).await;
        assert_eq!(
            (status, &value["code"]),
            (400, &json!(code)),
            "{} {what}: {value}",
            operation.id
        );
    }

    pub async fn send(&self, operation: &Operation, ask: &Ask) -> Response {
        let mut path = operation.path.clone();
        for (name, value) in &ask.parts {
            let part: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
            path = path.replace(&format!("{{{name}}}"), &part);
        }
        assert!(!path.contains('{'), "{path}");
        let query = if ask.query.is_empty() {
            String::new()
        } else {
            format!("?{}", ask.query)
        };
        let mut request = self.client.request(
            operation.method.clone(),
            format!("{}{path}{query}", self.base),
        );
        let token = ask
            .token
            .or(self.has_tokens.then_some(ADMIN))
            .filter(|token| !token.is_empty());
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        for (name, value) in &ask.headers {
            request = request.header(name, value);
        }
        request = match &ask.body {
            Some(Body::Json(body)) => request.json(body),
            Some(Body::Text(media, text)) => {
                request.header("content-type", *media).body(text.clone())
            }
            None => request,
        };
        request.send().await.unwrap()
    }

    fn hold(&self, operation: &Operation, status: u16, media: &str, value: &Value, ask: &Ask) {
        let id = &operation.id;
        let shown = format!("{id} {ask:?} answered {status}: {value}");
        let declared = operation.declared["responses"].get(status.to_string());
        let declared = declared
            .unwrap_or_else(|| panic!("a status that the document does not declare: {shown}"));
        self.seen.lock().unwrap().insert((id.clone(), status));
        match declared["content"].as_object() {
            None => assert_eq!(value, &json!(""), "{shown}"),
            Some(contents) => {
                let essence = media.split(';').next().unwrap();
                let content = contents
                    .get(essence)
                    .unwrap_or_else(|| panic!("of another media type, {media}: {shown}"));
                if essence.ends_with("json") {
                    let faults = self.faults(&content["schema"], value);
                    assert!(faults.is_empty(), "{faults:#?}\n{shown}");
                }
            }
        }
        if status >= 400 {
            let codes = declared["description"].as_str().unwrap();
            assert!(
                codes.contains(&format!("`{}`", value["code"].as_str().unwrap())),
                "a code of another status, {codes}: {shown}"
            );
            assert_eq!(value["status"], status, "{shown}");
        }
    }

    /// Returns the operations, each with the statuses seen so far.
    pub fn seen(&self) -> BTreeSet<(String, u16)> {
        self.seen.lock().unwrap().clone()
    }
}
