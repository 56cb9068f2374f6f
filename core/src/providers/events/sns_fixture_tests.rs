//! A minimal Amazon: a topic whose notices are signed, and the server of its certificate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::providers::DriverClients;
use crate::providers::examples::{self, NOW_S};

/// The topic of all notices.
pub(super) const TOPIC: &str = "arn:aws:sns:eu-central-1:123456789012:mail";

/// Builds a certificate for a key, without a valid signature.
fn certificate(key: &KeyPair) -> String {
    fn part(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        let head: &[u8] = if body.len() < 128 {
            &[length[1]]
        } else {
            &[0x82, length[0], length[1]]
        };
        [&[tag], head, &body].concat()
    }
    let algorithm = part(
        0x30,
        &[
            &part(0x06, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0b]]),
            &[5, 0],
        ],
    );
    let name = part(0x30, &[]);
    let validity = part(
        0x30,
        &[
            &part(0x17, &[b"200101000000Z"]),
            &part(0x17, &[b"400101000000Z"]),
        ],
    );
    let public: PublicKeyX509Der<'_> = key.public_key().as_der().unwrap();
    let version = part(0xa0, &[&part(2, &[&[2]])]);
    let inner = part(
        0x30,
        &[
            &version,
            &part(2, &[&[1]]),
            &algorithm,
            &name,
            &validity,
            &name,
            public.as_ref(),
        ],
    );
    let der = part(0x30, &[&inner, &algorithm, &part(3, &[&[0, 0]])]);
    let lines: Vec<String> = STANDARD
        .encode(der)
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

/// A minimal Amazon: a topic's key, and a server for its certificate and confirmations.
pub(super) struct Amazon {
    key: KeyPair,
    pub(super) pem: String,
    pub(super) base: String,
    pub(super) account: Account,
    pub(super) tools: DriverClients,
    pub(super) certs_fetched: Arc<AtomicUsize>,
    pub(super) confirmed: Arc<AtomicUsize>,
    /// Makes the server answer 503.
    pub(super) is_away: Arc<AtomicBool>,
}

impl Amazon {
    pub(super) async fn start() -> Self {
        let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let pem = certificate(&key);
        let served = pem.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (certs_fetched, confirmed) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&certs_fetched), Arc::clone(&confirmed));
        let is_away = Arc::new(AtomicBool::new(false));
        let away = Arc::clone(&is_away);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n")
                    && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0)
                {}
                let (status, body) = match head {
                    _ if away.load(Ordering::SeqCst) => ("503 Service Unavailable", ""),
                    head if head.starts_with(
                        b"GET /SimpleNotificationService-0123456789abcdef0123456789abcdef.pem ",
                    ) =>
                    {
                        counts.0.fetch_add(1, Ordering::SeqCst);
                        ("200 OK", served.as_str())
                    }
                    head if head.starts_with(b"GET /?Action=ConfirmSubscription ") => {
                        counts.1.fetch_add(1, Ordering::SeqCst);
                        ("200 OK", "<ConfirmSubscriptionResponse/>")
                    }
                    _ => ("404 Not Found", ""),
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let account = examples::account(&[("sns_topic_arn", TOPIC), ("sns_cert_host", &base)], &[]);
        Self {
            key,
            pem,
            base,
            account,
            tools: examples::tools(),
            certs_fetched,
            confirmed,
            is_away,
        }
    }

    /// Builds a signed envelope with these fields, in the order of their names.
    pub(super) fn signed(&self, fields: &[(&str, &str)]) -> Value {
        let mut fields: Vec<_> = [
            ("MessageId", "id-2"),
            ("Timestamp", "2023-11-14T22:13:20.000Z"),
            ("TopicArn", TOPIC),
        ]
        .into_iter()
        .chain(fields.iter().copied())
        .collect();
        fields.sort_unstable();
        let text: String = fields
            .iter()
            .map(|(name, value)| format!("{name}\n{value}\n"))
            .collect();
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                text.as_bytes(),
                &mut signature,
            )
            .unwrap();
        let mut envelope: Value = fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .collect();
        envelope["SignatureVersion"] = "2".into();
        envelope["Signature"] = STANDARD.encode(signature).into();
        envelope["SigningCertURL"] = format!(
            "{}/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem",
            self.base
        )
        .into();
        envelope
    }

    /// Builds the signed notice of a delivery.
    pub(super) fn notice(&self) -> Value {
        let message = json!({
            "eventType": "Delivery", "mail": { "messageId": "m1", "destination": ["ann@example.com"] }, "delivery": {}
        });
        self.signed(&[("Type", "Notification"), ("Message", &message.to_string())])
    }

    /// Reads an envelope as if it had been posted.
    pub(super) async fn read(
        &self,
        envelope: &Value,
        certs: &Certs,
    ) -> Result<SnsRead, RejectedWebhook> {
        let (body, headers) = (envelope.to_string(), BTreeMap::new());
        let posted = WebhookRequest {
            url: "",
            headers: &headers,
            body: body.as_bytes(),
            now_s: NOW_S,
        };
        read(&self.account, &posted, &self.tools.http, certs).await
    }
}
