//! The keys of an issuer on a clock of the test's own: rotation, and an issuer that is slow, large
//! or down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flyball::api::http::jwt::error::JwtError;
use flyball::api::{JwksSource, JwtAuth, SigningAlgorithm};
use flyball::outbound::Guard;
use flyball::providers::Http;
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::issuer::{KeyServer, Signer, claims, key_set, rules};
use crate::support::eventually;

/// The check of tokens whose keys come from a source.
struct Checked {
    auth: JwtAuth,
    passed_s: Arc<AtomicU64>,
    claims: Value,
}

impl Checked {
    fn new(source: JwksSource) -> Self {
        let passed_s = Arc::new(AtomicU64::new(0));
        let (begin, passed) = (Instant::now(), passed_s.clone());
        let clock = move || begin + Duration::from_secs(passed.load(Ordering::SeqCst));
        let rules = rules(&[SigningAlgorithm::Es256]);
        Self {
            auth: JwtAuth::with_clock(rules, source, Arc::new(clock)),
            passed_s,
            claims: claims("acme", "jobs:read"),
        }
    }

    fn of_url(url: &str) -> Self {
        let http = Arc::new(Http::new(Guard::open()).unwrap());
        Self::new(JwksSource::Url(url.to_owned(), http))
    }

    fn pass(&self, seconds: u64) {
        self.passed_s.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Checks a token of this signer.
    async fn ask(&self, signer: &Signer) -> Result<(), JwtError> {
        let now = flyball::api::clock::now();
        let token = signer.sign(&self.claims);
        self.auth.caller(&token, now).await.map(|_| ())
    }
}

fn signers() -> (Signer, Signer) {
    let signer = |id| Signer::new(id, Algorithm::ES256);
    (signer("old"), signer("new"))
}

#[tokio::test]
async fn an_unknown_key_is_looked_up_once_in_half_a_minute() {
    let (old, new) = signers();
    let keys = KeyServer::start(key_set(&[&old])).await;
    let checked = Checked::of_url(&keys.url);
    assert_eq!(checked.ask(&old).await, Ok(()));
    keys.serve(key_set(&[&old, &new]));
    for wait in [0, 29] {
        checked.pass(wait);
        assert_eq!(checked.ask(&new).await, Err(JwtError::UnknownKey), "{wait}");
    }
    assert_eq!(keys.asked(), 1);
    checked.pass(1);
    assert_eq!(checked.ask(&new).await, Ok(()));
    assert_eq!(checked.ask(&old).await, Ok(()));
    assert_eq!(keys.asked(), 2);
}

#[tokio::test]
async fn a_key_that_the_issuer_has_withdrawn_ends_after_ten_minutes() {
    let (old, new) = signers();
    let keys = KeyServer::start(key_set(&[&old])).await;
    let checked = Checked::of_url(&keys.url);
    assert_eq!(checked.ask(&old).await, Ok(()));
    keys.serve(key_set(&[&new]));
    checked.pass(599);
    assert_eq!(checked.ask(&old).await, Ok(()));
    assert_eq!(keys.asked(), 1);
    checked.pass(1);
    assert_eq!(checked.ask(&old).await, Err(JwtError::UnknownKey));
    assert_eq!(checked.ask(&new).await, Ok(()));
    assert_eq!(keys.asked(), 2);
}

#[tokio::test]
async fn the_keys_stay_while_the_issuer_answers_nothing_that_can_be_used() {
    let (old, new) = signers();
    let keys = KeyServer::start(key_set(&[&old])).await;
    let checked = Checked::of_url(&keys.url);
    assert_eq!(checked.ask(&old).await, Ok(()));
    let padded = json!({"keys": [new.jwk()], "padding": "x".repeat(70_000)});
    let unusable = [
        (500, key_set(&[&new])),
        (302, key_set(&[&new])),
        (200, json!({"keys": []})),
        (200, json!("no set")),
        (200, padded),
    ];
    for (asked, (status, served)) in unusable.into_iter().enumerate() {
        keys.fail(status);
        keys.serve(served);
        checked.pass(600);
        assert_eq!(checked.ask(&old).await, Ok(()), "{status}");
        assert_eq!(checked.ask(&new).await, Err(JwtError::UnknownKey));
        assert_eq!(keys.asked(), asked + 2);
    }
    keys.fail(200);
    keys.serve(key_set(&[&new]));
    checked.pass(30);
    assert_eq!(checked.ask(&new).await, Ok(()));
}

#[tokio::test]
async fn a_request_that_is_given_up_does_not_use_up_the_reading() {
    let (old, new) = signers();
    let keys = KeyServer::start(key_set(&[&old])).await;
    let checked = Checked::of_url(&keys.url);
    let held = keys.hold().await;
    {
        let mut asking = std::pin::pin!(checked.ask(&old));
        let asked = eventually("the issuer is asked", Duration::from_secs(20), || async {
            (keys.asked() == 1).then_some(())
        });
        tokio::select! {
            answer = &mut asking => panic!("the issuer has not answered: {answer:?}"),
            () = asked => {}
        }
    }
    drop(held);
    assert_eq!(checked.ask(&new).await, Err(JwtError::UnknownKey));
    assert_eq!(checked.ask(&old).await, Ok(()));
    assert_eq!(keys.asked(), 1);
}

#[tokio::test]
async fn an_answer_without_an_end_is_given_up() {
    let (old, _) = signers();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).await.unwrap();
        let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{";
        stream.write_all(begun).await.unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(
        Checked::of_url(&url).ask(&old).await,
        Err(JwtError::NoKeys),
        "the token may well be right"
    );
}

#[tokio::test]
async fn a_file_that_is_replaced_is_read_again() {
    let (old, new) = signers();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let write = |text: String| std::fs::write(&path, text).unwrap();
    write(key_set(&[&old]).to_string());
    let checked = Checked::new(JwksSource::File(path.clone()));
    assert_eq!(checked.ask(&old).await, Ok(()));
    write("{".to_owned());
    checked.pass(600);
    assert_eq!(checked.ask(&old).await, Ok(()));
    write(key_set(&[&new]).to_string());
    checked.pass(29);
    assert_eq!(checked.ask(&new).await, Err(JwtError::UnknownKey));
    checked.pass(1);
    assert_eq!(checked.ask(&new).await, Ok(()));
    assert_eq!(checked.ask(&old).await, Err(JwtError::UnknownKey));
}
