//! An identity provider: it signs tokens, and serves its public keys over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine as _;
use flyball::api::{ClaimRules, JwtRules, SigningAlgorithm, TokenSecret};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use serde_json::{Value, json};

pub const ISSUER: &str = "https://id.example";
pub const SECRET: &str = "0123456789-0123456789-0123456789";

/// A key with its id.
pub struct Signer {
    pub id: String,
    pub algorithm: Algorithm,
    key: EncodingKey,
}

impl Signer {
    pub fn new(id: &str, algorithm: Algorithm) -> Self {
        let random = SystemRandom::new();
        let key = match algorithm {
            Algorithm::RS256 => {
                let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
                let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).unwrap();
                let text = base64::engine::general_purpose::STANDARD.encode(der.as_ref());
                let lines: Vec<&str> = text
                    .as_bytes()
                    .chunks(64)
                    .map(|line| std::str::from_utf8(line).unwrap())
                    .collect();
                let pem = format!(
                    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
                    lines.join("\n")
                );
                EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap()
            }
            Algorithm::ES256 => {
                let signing = &ECDSA_P256_SHA256_FIXED_SIGNING;
                let der = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
                EncodingKey::from_ec_der(der.as_ref())
            }
            Algorithm::EdDSA => {
                let der = Ed25519KeyPair::generate_pkcs8v1(&random).unwrap();
                EncodingKey::from_ed_der(der.as_ref())
            }
            _ => EncodingKey::from_secret(SECRET.as_bytes()),
        };
        Self {
            id: id.to_owned(),
            algorithm,
            key,
        }
    }

    /// The public key as an entry of a JWK Set; of a secret, the secret itself.
    pub fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.id.clone());
        serde_json::to_value(jwk).unwrap()
    }

    pub fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.clone());
        self.sign_with(&header, claims)
    }

    pub fn sign_with(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.key).unwrap()
    }
}

/// Returns the JWK Set of some keys.
pub fn key_set(signers: &[&Signer]) -> Value {
    json!({"keys": signers.iter().map(|signer| signer.jwk()).collect::<Vec<_>>()})
}

/// Returns the claims of a token that is valid for an hour.
pub fn claims(tenant: &str, scope: &str) -> Value {
    #[expect(
        clippy::disallowed_methods,
        reason = "a token's time is that of the clock by which it is checked"
    )]
    let now_s = jiff::Timestamp::now().as_second();
    json!({
        "iss": ISSUER, "aud": "flyball", "sub": "ada", "exp": now_s + 3600, "nbf": now_s,
        "tenant": tenant, "module": {"id": "orders"}, "scope": scope,
    })
}

/// Returns rules that accept the tokens of this issuer.
pub fn rules(algorithms: &[SigningAlgorithm]) -> JwtRules {
    JwtRules {
        issuer: ISSUER.to_owned(),
        audience: vec!["flyball".to_owned()],
        algorithms: algorithms.to_vec(),
        secret: algorithms
            .contains(&SigningAlgorithm::Hs256)
            .then(|| TokenSecret::new(SECRET)),
        leeway_s: 60.0,
        claims: ClaimRules {
            tenant: "tenant".to_owned(),
            module: "module.id".to_owned(),
            scope: "scope".to_owned(),
            kinds: "kinds".to_owned(),
            throttles: "throttles".to_owned(),
            default_kinds: None,
            default_throttles: None,
            all_tenants: false,
        },
    }
}

/// The server of a key set.
pub struct KeyServer {
    pub url: String,
    served: Arc<Served>,
}

struct Served {
    /// Answers wait while a test holds this.
    gate: tokio::sync::RwLock<()>,
    keys: Mutex<Value>,
    status: AtomicU16,
    asked: AtomicUsize,
}

impl KeyServer {
    pub async fn start(keys: Value) -> Self {
        let served = Arc::new(Served {
            gate: tokio::sync::RwLock::new(()),
            keys: Mutex::new(keys),
            status: AtomicU16::new(200),
            asked: AtomicUsize::new(0),
        });
        let answer = async |State(served): State<Arc<Served>>| {
            served.asked.fetch_add(1, Ordering::SeqCst);
            let _gate = served.gate.read().await;
            let status = served.status.load(Ordering::SeqCst);
            let keys = served.keys.lock().to_string();
            (StatusCode::from_u16(status).unwrap(), keys)
        };
        let router = Router::new()
            .route("/keys", get(answer))
            .with_state(served.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, served }
    }

    /// The number of requests so far.
    pub fn asked(&self) -> usize {
        self.served.asked.load(Ordering::SeqCst)
    }

    /// Lets answers wait until the guard is dropped.
    pub async fn hold(&self) -> tokio::sync::RwLockWriteGuard<'_, ()> {
        self.served.gate.write().await
    }

    pub fn serve(&self, keys: Value) {
        *self.served.keys.lock() = keys;
    }

    pub fn fail(&self, status: u16) {
        self.served.status.store(status, Ordering::SeqCst);
    }
}
