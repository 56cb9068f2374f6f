//! Clients of the fakes, and a mailbox for their events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flyball_fakes::{Fake, FakeOptions, FakeProvider};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;

pub const LONG: Duration = Duration::from_secs(30);

pub const SID: &str = "AC00000000000000000000000000000001";

pub fn client() -> Client {
    Client::builder().no_proxy().timeout(LONG).build().unwrap()
}

pub fn http2() -> Client {
    Client::builder()
        .no_proxy()
        .timeout(LONG)
        .http2_prior_knowledge()
        .build()
        .unwrap()
}

pub fn secrets(account: &str, secret: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(account.to_owned(), secret.to_owned())])
}

pub async fn fake(speaks: FakeProvider, account: &str, secret: &str) -> Fake {
    let options = FakeOptions {
        secrets: secrets(account, secret),
        tells_delay: true,
        ..FakeOptions::default()
    };
    Fake::start(speaks, options).await.unwrap()
}

pub fn token(head: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!(
        "{}.{}.{}",
        part(head),
        part(claims),
        URL_SAFE_NO_PAD.encode("signature")
    )
}

pub fn now_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

pub fn twilio(client: &Client, fake: &Fake, password: &str) -> RequestBuilder {
    let form = [
        ("To", "+15005550006"),
        ("From", "+15005550001"),
        ("Body", "hello"),
    ];
    let url = format!("{}/2010-04-01/Accounts/{SID}/Messages.json", fake.url());
    client.post(url).basic_auth(SID, Some(password)).form(&form)
}

pub async fn json_of(response: Response) -> Value {
    response.json().await.unwrap()
}

/// A request as received: headers and bytes.
pub type Posted = (axum::http::HeaderMap, Vec<u8>);

/// Starts a server that records its requests, and returns its URL.
pub async fn mailbox() -> (String, Arc<Mutex<Vec<Posted>>>) {
    let kept: Arc<Mutex<Vec<Posted>>> = Arc::default();
    let keep = kept.clone();
    let router = axum::Router::new().fallback(
        move |headers: axum::http::HeaderMap, body: axum::body::Bytes| async move {
            keep.lock().unwrap().push((headers, body.to_vec()));
        },
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events?a=b", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, kept)
}
