//! A server whose tokens have different permissions.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use flyball::api::{self, AuthToken, DEFAULT_TENANT, Permissions, TokenScope, TokenSecret};
use flyball::jobs::{Handler, Issue, Job, Outcome, PreparedJob};
use reqwest::{Method, Response};
use serde_json::Value;

use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;

pub const SOON: Duration = Duration::from_secs(60);

pub const ADMIN: &str = "0123456789-admin";

/// A kind whose handler declares its jobs private.
pub struct Private;

impl Handler for Private {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
    }

    fn public(&self) -> bool {
        false
    }
}

/// A token's name, tenant and permissions; its secret is derived from its name.
pub type Given<'a> = (&'a str, Option<&'a str>, Permissions);

pub fn secret(name: &str) -> String {
    format!("0123456789-{name}")
}

pub fn leave(scopes: &[TokenScope]) -> Permissions {
    Permissions {
        scopes: scopes.iter().copied().collect(),
        ..Permissions::default()
    }
}

/// An API with tokens.
pub struct TokenServer(ApiServer);

impl Deref for TokenServer {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.0
    }
}

pub async fn token_server(given: Vec<Given<'_>>, public_url: &str) -> TokenServer {
    let fixture = Fixture::new().await;
    let tenants: BTreeSet<&str> = given
        .iter()
        .filter_map(|(_, tenant, _)| *tenant)
        .chain([DEFAULT_TENANT])
        .collect();
    api::seed_limits(&*fixture.store, &tenants.into_iter().collect::<Vec<_>>())
        .await
        .unwrap();
    for name in ["mail", "shop:eu"] {
        fixture.turn(name, &[("rps", "100")]).await;
    }
    // Many requests without a token would otherwise be limited before they are judged.
    let unlimited = [("rps", "-1"), ("key_rps", "-1")];
    fixture.turn("api:denied", &unlimited).await;

    let server = ApiServer::start(fixture, |deps| {
        deps.kinds
            .register_fn("http", |_: Job, _| async { Outcome::Done });
        deps.kinds.register("reindex", Private);
        let admin = AuthToken::new(TokenSecret::new(ADMIN));
        let others = given.into_iter().map(|(name, tenant, leave)| {
            AuthToken::of(name, tenant, leave, TokenSecret::new(secret(name)))
        });
        deps.tokens = std::iter::once(admin).chain(others).collect();
        deps.public_url = public_url.to_owned();
    });
    TokenServer(server.await)
}

impl TokenServer {
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        secret: Option<&str>,
        body: &Value,
    ) -> Response {
        let mut request = self.request(method.clone(), path);
        if method != Method::GET {
            request = request.json(body);
        }
        if let Some(secret) = secret {
            request = request.bearer_auth(secret);
        }
        request.send().await.unwrap()
    }

    /// Status and body.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        secret: &str,
        body: Value,
    ) -> (u16, Value) {
        let response = self.ask(method, path, Some(secret), &body).await;
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    pub async fn refused(
        &self,
        method: Method,
        path: &str,
        secret: &str,
        body: Value,
        code: &str,
    ) -> String {
        let (status, problem) = self.call(method, path, secret, body).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (403, Some(code)),
            "{path}: {problem}"
        );
        problem["detail"].as_str().unwrap().to_owned()
    }
}
