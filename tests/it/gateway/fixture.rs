//! A server with a gateway at work and tokens of two tenants.

use std::ops::Deref;
use std::sync::Arc;

use flyball::api::{
    AuthToken, DEFAULT_TENANT, JwksSource, JwtAuth, Permissions, SigningAlgorithm, TokenScope,
    TokenSecret,
};
use flyball::gateway::limits::{ChannelHistory, GatewayLimits};
use flyball::gateway::service::Gateway;
use flyball::jobs::Queue;
use flyball::postgres::{Access, Pooler};
use flyball::service::DueWork;
use flyball::throttle::PatternStore;
use flyball::throttle::admission::TenantLimits;
use flyball::throttle::seed::seed_patterns;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::client::WsClient;
use crate::api::issuer::{Signer, claims, rules};
use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;
use crate::support::{eventually, patient_store, redis_prefix};

pub struct GatewayServer {
    server: ApiServer,
}

impl Deref for GatewayServer {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}

/// The tokens, each with its tenant and scopes.
const TOKENS: [(&str, &str, &[TokenScope]); 6] = [
    (
        "acme",
        "acme",
        &[TokenScope::ChannelsSubscribe, TokenScope::ChannelsPublish],
    ),
    ("acme-reader", "acme", &[TokenScope::ChannelsSubscribe]),
    ("acme-jobs", "acme", &[TokenScope::JobsEnqueue]),
    (
        "zeta",
        "zeta",
        &[TokenScope::ChannelsSubscribe, TokenScope::ChannelsPublish],
    ),
    ("operators", "*", &[TokenScope::ChannelsSubscribe]),
    (
        "of-default",
        DEFAULT_TENANT,
        &[TokenScope::ChannelsSubscribe],
    ),
];

pub fn token(name: &str) -> String {
    format!("0123456789-{name}")
}

/// A JSON Web Token of a tenant that subscribes, and is valid for `valid_s` seconds more.
pub fn jwt(tenant: &str, valid_s: i64) -> String {
    jwt_with(tenant, "channels:subscribe", valid_s)
}

/// The same with other scopes.
pub fn jwt_with(tenant: &str, scopes: &str, valid_s: i64) -> String {
    let mut claims = claims(tenant, scopes);
    let now_s = claims["nbf"].as_i64().unwrap();
    claims["exp"] = (now_s + valid_s).into();
    Signer::new("any", jsonwebtoken::Algorithm::HS256).sign(&claims)
}

/// Limits with a channel pattern that has no history, and one that keeps ten messages.
pub fn limits() -> GatewayLimits {
    let history = |kept_max| ChannelHistory {
        kept_s: 300,
        kept_max,
    };
    GatewayLimits {
        histories: vec![
            ("presence.*".to_owned(), history(0)),
            ("short.*".to_owned(), history(10)),
        ],
        ..GatewayLimits::default()
    }
}

/// Returns a gateway that is not at work yet.
pub fn gateway(queue: Queue, fixture: &Fixture, limits: GatewayLimits) -> Gateway {
    let (store, due) = (fixture.store.clone(), DueWork::default());
    Gateway::new(queue, store, limits, DEFAULT_TENANT, due)
}

impl GatewayServer {
    pub async fn start() -> Self {
        Self::with(limits()).await
    }

    pub async fn with(limits: GatewayLimits) -> Self {
        let rules = rules(&[SigningAlgorithm::Hs256]);
        Self::checking(JwtAuth::new(rules, JwksSource::None), limits).await
    }

    /// Starts with another check of JSON Web Tokens.
    pub async fn checking(jwt: JwtAuth, limits: GatewayLimits) -> Self {
        Self::behind(Pooler::None, jwt, limits).await
    }

    /// Starts with a gateway that hears no notifications, as behind a pooler.
    pub async fn deaf() -> Self {
        let rules = rules(&[SigningAlgorithm::Hs256]);
        let jwt = JwtAuth::new(rules, JwksSource::None);
        Self::behind(Pooler::Transaction, jwt, limits()).await
    }

    async fn behind(pooler: Pooler, jwt: JwtAuth, limits: GatewayLimits) -> Self {
        let store = PatternStore::new(Arc::new(patient_store(&redis_prefix()).await), 100);
        let tenant_limits = TenantLimits {
            channels_per_second: limits.per_second,
            connections: limits.connections,
            ..TenantLimits::default()
        };
        eventually("Redis answers", super::client::PATIENCE, || async {
            seed_patterns(&store, &tenant_limits).await.ok()
        })
        .await;
        let fixture = Fixture::on(Arc::new(store)).await;
        let queue = match pooler {
            Pooler::None => fixture.queue.clone(),
            Pooler::Transaction => {
                let access = Access {
                    pooler,
                    ..fixture.database.url().into()
                };
                let queue = Queue::connect(access, 6, super::client::PATIENCE).await;
                queue.expect("the database")
            }
        };
        let gateway = gateway(queue, &fixture, limits);
        let server = ApiServer::start(fixture, |deps| {
            deps.gateway = gateway.clone();
            deps.jwt = Some(Arc::new(jwt));
            deps.tokens = TOKENS
                .iter()
                .map(|(name, tenant, scopes)| {
                    let leave = Permissions {
                        scopes: scopes.iter().copied().collect(),
                        ..Permissions::default()
                    };
                    AuthToken::of(name, Some(tenant), leave, TokenSecret::new(token(name)))
                })
                .collect();
        })
        .await;
        tokio::spawn(gateway.run(server.cancel.child_token()));
        Self { server }
    }

    pub async fn client(&self, name: &str) -> WsClient {
        WsClient::connect(&self.base, &token(name)).await
    }

    /// Returns a ticket with the rights that are asked for.
    pub async fn ticket(&self, name: &str, asked: &Value) -> String {
        let response = self
            .request(reqwest::Method::POST, "/api/v1/ws/tickets")
            .bearer_auth(token(name))
            .json(asked)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 201);
        let issued: Value = response.json().await.unwrap();
        issued["ticket"].as_str().unwrap().to_owned()
    }

    /// Returns the metrics of the gateway as text.
    pub fn metrics(&self) -> String {
        let mut registry = Registry::default();
        self.gateway.metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    /// Connects with a ticket.
    pub async fn browser(&self, name: &str, asked: &Value) -> WsClient {
        let ticket = self.ticket(name, asked).await;
        WsClient::with(&self.base, &format!("/api/v1/ws?ticket={ticket}"), &[]).await
    }

    /// Publishes over HTTP; returns the status and the answer.
    pub async fn publish(&self, name: &str, channel: &str, data: &Value) -> (u16, Value) {
        let path = format!("/api/v1/channels/{channel}/messages");
        let response = self
            .request(reqwest::Method::POST, &path)
            .bearer_auth(token(name))
            .json(&serde_json::json!({"data": data}))
            .send()
            .await
            .unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.unwrap())
    }

    /// Publishes numbers from `from` to `to` in one statement.
    pub async fn publish_numbers(&self, tenant: &str, channel: &str, from: i64, to: i64) {
        let statement = format!(
            "select flyball.as_tenant('{tenant}'), (select count(*) from (select flyball.publish('{channel}', to_jsonb(n)) \
             from generate_series({from}, {to}) n) as p)"
        );
        sqlx::query(AssertSqlSafe(statement))
            .execute(&self.queue.pool)
            .await
            .unwrap();
    }
}
