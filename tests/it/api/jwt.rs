//! JSON Web Tokens: what is accepted, and how the keys of the issuer follow.

use std::collections::BTreeMap;
use std::sync::Arc;

use flyball::api::http::jwt::error::JwtError;
use flyball::api::http::jwt::keys::KeySet;
use flyball::api::http::jwt::verify::{JwtRules, verify};
use flyball::api::{JwksSource, JwtAuth, SigningAlgorithm};
use flyball::outbound::Guard;
use flyball::providers::Http;
use jsonwebtoken::{Algorithm, Header};
use reqwest::Method;
use serde_json::{Value, json};

use super::issuer::{KeyServer, SECRET, Signer, claims, key_set, rules};
use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;

const NOW_S: f64 = 1_800_000_000.0;

/// Claims that are valid at [`NOW_S`], with changes; `null` removes a claim.
fn with(change: Value) -> Value {
    let mut all = claims("acme", "jobs:read");
    all["exp"] = json!(NOW_S + 10.0);
    all["nbf"] = json!(NOW_S - 10.0);
    for (name, value) in change.as_object().unwrap() {
        all[name] = value.clone();
    }
    all.as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    all
}

fn judged(token: &str, rules: &JwtRules, keys: &Value) -> Result<Value, JwtError> {
    let keys = KeySet::parse(keys.to_string().as_bytes()).unwrap();
    verify(token, rules, &keys, NOW_S)
}

#[test]
fn each_algorithm_is_accepted_where_the_settings_list_it_and_by_its_own_key_alone() {
    use SigningAlgorithm::{EdDsa, Es256, Hs256, Rs256};
    let all = [Rs256, Es256, EdDsa, Hs256];
    let signers = [
        Signer::new("rsa", Algorithm::RS256),
        Signer::new("ec", Algorithm::ES256),
        Signer::new("ed", Algorithm::EdDSA),
        Signer::new("secret", Algorithm::HS256),
    ];
    // The set tells the secret as well, which must make nothing valid.
    let keys = key_set(&signers.each_ref());
    let claims = with(json!({}));
    for (signer, algorithm) in signers.iter().zip(all) {
        let token = signer.sign(&claims);
        assert_eq!(
            judged(&token, &rules(&all), &keys),
            Ok(claims.clone()),
            "{algorithm:?}"
        );
        assert_eq!(
            judged(&token, &rules(&[algorithm]), &keys),
            Ok(claims.clone())
        );
        let others: Vec<_> = all
            .into_iter()
            .filter(|other| *other != algorithm)
            .collect();
        let refused = judged(&token, &rules(&others), &keys).unwrap_err();
        assert!(
            matches!(refused, JwtError::Algorithm(_)),
            "{algorithm:?}: {refused}"
        );
        // Somebody else's key with the same id.
        if algorithm != Hs256 {
            let forged = Signer::new(&signer.id, signer.algorithm).sign(&claims);
            assert_eq!(
                judged(&forged, &rules(&all), &keys),
                Err(JwtError::Signature)
            );
        }
        // The claims of another token under this signature.
        let other = signer.sign(&with(json!({"tenant": "zeta"})));
        let parts: Vec<&str> = token.split('.').collect();
        let foreign: Vec<&str> = other.split('.').collect();
        let spliced = format!("{}.{}.{}", parts[0], foreign[1], parts[2]);
        assert_eq!(
            judged(&spliced, &rules(&all), &keys),
            Err(JwtError::Signature)
        );
    }
    // Without a secret in the settings, the one in the set signs nothing.
    let mut without = rules(&all);
    without.secret = None;
    assert_eq!(
        judged(&signers[3].sign(&claims), &without, &keys),
        Err(JwtError::UnknownKey)
    );
    // The public key is no secret: a token signed with its text under HS256.
    let public = signers[0].jwk()["n"].as_str().unwrap().to_owned();
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("rsa".to_owned());
    let key = jsonwebtoken::EncodingKey::from_secret(public.as_bytes());
    let confused = jsonwebtoken::encode(&header, &claims, &key).unwrap();
    assert_eq!(
        judged(&confused, &rules(&all), &keys),
        Err(JwtError::Signature)
    );
    assert!(matches!(
        judged(&confused, &rules(&[Rs256]), &keys),
        Err(JwtError::Algorithm(_))
    ));
}

#[test]
fn a_token_without_a_signature_or_with_demands_is_refused() {
    let signer = Signer::new("ec", Algorithm::ES256);
    let keys = key_set(&[&signer]);
    let rules = rules(&[SigningAlgorithm::Es256]);
    let token = signer.sign(&with(json!({})));
    let parts: Vec<&str> = token.split('.').collect();
    // {"alg":"none"} and {"alg":"None","typ":"JWT"}
    for none in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJOb25lIiwidHlwIjoiSldUIn0"] {
        for signature in ["", parts[2]] {
            let unsigned = format!("{none}.{}.{signature}", parts[1]);
            assert_eq!(judged(&unsigned, &rules, &keys), Err(JwtError::Malformed));
        }
    }
    assert_eq!(
        judged(&format!("{}.{}.", parts[0], parts[1]), &rules, &keys),
        Err(JwtError::Signature)
    );
    for text in ["", "ey", "a.b.c", "ey..", &"x".repeat(20_000)] {
        assert_eq!(
            judged(text, &rules, &keys),
            Err(JwtError::Malformed),
            "{text:.20}"
        );
    }
    let mut header = Header::new(Algorithm::ES256);
    header.crit = Some(vec!["b64".to_owned()]);
    let demanding = signer.sign_with(&header, &with(json!({})));
    assert_eq!(judged(&demanding, &rules, &keys), Err(JwtError::Critical));
    // Without a key id every key of the algorithm is tried.
    let nameless = signer.sign_with(&Header::new(Algorithm::ES256), &with(json!({})));
    assert!(judged(&nameless, &rules, &keys).is_ok());
    let other = Signer::new("new", Algorithm::ES256).sign(&with(json!({})));
    assert_eq!(judged(&other, &rules, &keys), Err(JwtError::UnknownKey));
}

#[test]
fn issuer_audience_and_time_are_checked_with_the_leeway_of_the_settings() {
    let signer = Signer::new("ec", Algorithm::ES256);
    let keys = key_set(&[&signer]);
    let rules = rules(&[SigningAlgorithm::Es256]);
    for (change, wrong) in [
        (json!({}), None),
        (json!({"aud": ["other", "flyball"]}), None),
        (json!({"exp": NOW_S - 59.0}), None),
        (json!({"exp": NOW_S - 60.0}), Some("exp")),
        (json!({"exp": null}), Some("exp")),
        (json!({"exp": "tomorrow"}), Some("exp")),
        (json!({"nbf": NOW_S + 60.0}), None),
        (json!({"nbf": NOW_S + 61.0}), Some("nbf")),
        (json!({"nbf": "now"}), Some("nbf")),
        (json!({"nbf": null}), None),
        (json!({"iss": "https://id.example/"}), Some("iss")),
        (json!({"iss": ["https://id.example"]}), Some("iss")),
        (json!({"iss": null}), Some("iss")),
        (json!({"aud": "other"}), Some("aud")),
        (json!({"aud": []}), Some("aud")),
        (json!({"aud": null}), Some("aud")),
    ] {
        let refused = judged(&signer.sign(&with(change.clone())), &rules, &keys).err();
        match (refused, wrong) {
            (None, None) => {}
            (Some(JwtError::Claim(claim, _)), Some(wrong)) if claim == wrong => {}
            (refused, _) => panic!("{change}: {refused:?}"),
        }
    }
}

#[test]
fn a_set_of_keys_without_one_for_signatures_is_refused() {
    for (text, error) in [
        ("[]", "must be a JWK Set"),
        ("{", "must be a JWK Set"),
        (r#"{"keys": []}"#, "must hold at least one key"),
        (
            r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}"#,
            "must hold at least one key",
        ),
        (
            r#"{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "a"}]}"#,
            "must hold at least one key",
        ),
    ] {
        let refused = KeySet::parse(text.as_bytes()).err().unwrap().to_string();
        assert!(refused.starts_with(error), "{text}: {refused}");
    }
    let mut encryption = Signer::new("a", Algorithm::ES256).jwk();
    encryption["use"] = json!("enc");
    let set = json!({"keys": [encryption]});
    assert!(KeySet::parse(set.to_string().as_bytes()).is_err());
}

async fn server(source: JwksSource) -> ApiServer {
    ApiServer::start(Fixture::new().await, |deps| {
        let rules = rules(&[SigningAlgorithm::Es256, SigningAlgorithm::Hs256]);
        deps.jwt = Some(Arc::new(JwtAuth::new(rules, source)));
    })
    .await
}

async fn asked(server: &ApiServer, token: &str) -> (u16, Value) {
    let request = server
        .request(Method::GET, "/api/v1/jobs")
        .bearer_auth(token);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

fn source(url: &str) -> JwksSource {
    JwksSource::Url(url.to_owned(), Arc::new(Http::new(Guard::open()).unwrap()))
}

#[tokio::test]
async fn keys_are_read_when_they_are_needed_and_invented_ids_cost_the_issuer_nothing() {
    let (old, new) = (
        Signer::new("old", Algorithm::ES256),
        Signer::new("new", Algorithm::ES256),
    );
    let keys = KeyServer::start(key_set(&[&old])).await;
    let server = server(source(&keys.url)).await;
    let claims = claims("acme", "jobs:read");

    let (status, said) = asked(&server, &old.sign(&claims)).await;
    assert_eq!((status, keys.asked()), (200, 1), "{said}");
    for _ in 0..5 {
        assert_eq!(asked(&server, &old.sign(&claims)).await.0, 200);
    }
    // The issuer fails and takes a new key: within half a minute it is not asked again.
    keys.serve(key_set(&[&new]));
    keys.fail(500);
    for signer in [
        &new,
        &Signer::new("x", Algorithm::ES256),
        &Signer::new("y", Algorithm::ES256),
    ] {
        let (status, said) = asked(&server, &signer.sign(&claims)).await;
        assert_eq!(
            (status, said["code"].as_str()),
            (401, Some("unauthorized")),
            "{said}"
        );
        assert!(
            said["detail"]
                .as_str()
                .unwrap()
                .ends_with("the key of the token is not known"),
            "{said}"
        );
    }
    assert_eq!(
        asked(&server, &old.sign(&claims)).await.0,
        200,
        "the old keys stay"
    );
    assert_eq!(keys.asked(), 1);
    // Nobody is let in without a token because none is set.
    let nobody = server
        .request(Method::GET, "/api/v1/jobs")
        .send()
        .await
        .unwrap();
    assert_eq!(nobody.status(), 401);
    // A secret needs no keys.
    let shared = Signer::new("any", Algorithm::HS256);
    assert_eq!(asked(&server, &shared.sign(&claims)).await.0, 200);
    assert_eq!(SECRET.len(), 32);
}

#[tokio::test]
async fn while_the_keys_have_never_been_read_the_answer_is_not_that_the_token_is_wrong() {
    let signer = Signer::new("a", Algorithm::ES256);
    let keys = KeyServer::start(key_set(&[&signer])).await;
    keys.fail(503);
    let server = server(source(&keys.url)).await;
    let (status, said) = asked(&server, &signer.sign(&claims("acme", "jobs:read"))).await;
    assert_eq!(
        (status, said["code"].as_str()),
        (503, Some("overloaded")),
        "{said}"
    );
    assert_eq!(keys.asked(), 1);
}

#[tokio::test]
async fn a_file_of_keys_may_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let (first, second) = (
        Signer::new("a", Algorithm::ES256),
        Signer::new("b", Algorithm::ES256),
    );
    let claims = claims("acme", "jobs:read");
    std::fs::write(&path, key_set(&[&first]).to_string()).unwrap();
    let auth = JwtAuth::new(
        rules(&[SigningAlgorithm::Es256]),
        JwksSource::File(path.clone()),
    );
    #[expect(
        clippy::disallowed_methods,
        reason = "a token's time is that of the clock by which it is checked"
    )]
    let now = jiff::Timestamp::now();
    let caller = auth.caller(&first.sign(&claims), now).await.unwrap();
    assert_eq!(
        (
            caller.tenant.as_deref(),
            &*caller.module,
            caller.token_name()
        ),
        (Some("acme"), "orders", "ada of https://id.example")
    );
    assert_eq!(
        auth.caller(&second.sign(&claims), now).await,
        Err(JwtError::UnknownKey)
    );

    std::fs::write(&path, key_set(&[&first, &second]).to_string()).unwrap();
    let fresh = JwtAuth::new(
        rules(&[SigningAlgorithm::Es256]),
        JwksSource::File(path.clone()),
    );
    assert!(fresh.caller(&second.sign(&claims), now).await.is_ok());
    // A file that cannot be read leaves the keys in force.
    std::fs::write(&path, "{").unwrap();
    assert!(fresh.caller(&first.sign(&claims), now).await.is_ok());
}

#[tokio::test]
async fn the_bearer_of_a_token_has_its_scopes_and_is_limited_by_its_tenant() {
    let signer = Signer::new("any", Algorithm::HS256);
    let server = server(JwksSource::None).await;
    let token = signer.sign(&claims("acme", "openid jobs:enqueue"));
    let (status, said) = asked(&server, &token).await;
    assert_eq!(
        (status, said["code"].as_str()),
        (403, Some("scope_missing")),
        "{said}"
    );
    assert!(
        said["detail"]
            .as_str()
            .unwrap()
            .contains("token ada of https://id.example has jobs:enqueue"),
        "{said}"
    );
    // The throttles of the tenant are made with its first request that is admitted.
    let admitted = server
        .request(Method::GET, "/openapi.json")
        .bearer_auth(&token);
    assert_eq!(admitted.send().await.unwrap().status(), 200);
    let names: Vec<String> = server
        .store
        .names()
        .await
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(names.contains(&"api:read:acme".to_owned()), "{names:?}");
    let mut no_tenant = claims("acme", "jobs:read");
    no_tenant["tenant"] = Value::Null;
    for (claims, claim) in [
        (no_tenant, "tenant"),
        (claims("*", "admin"), "tenant"),
        (claims("a b", "admin"), "tenant"),
    ] {
        let (status, said) = asked(&server, &signer.sign(&claims)).await;
        let detail = said["detail"].as_str().unwrap();
        assert!(
            status == 401 && detail.contains(&format!("the claim {claim} of the token")),
            "{said}"
        );
    }
}

#[test]
fn the_settings_of_tokens_are_checked_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flyball.toml");
    let load = |text: &str| {
        std::fs::write(&path, format!("[jwt]\n{text}\n")).unwrap();
        let loaded = flyball::config::Settings::load(Some(&path), &BTreeMap::new());
        loaded.map(|settings| settings.jwt.unwrap())
    };
    let keys = "issuer = \"https://id.example\"\naudience = [\"flyball\"]\n";
    let good = load(&format!(
        "{keys}algorithms = [\"RS256\"]\njwks_url = \"https://id.example/keys\"\nkinds = [\"http\"]"
    ));
    let good = good.unwrap();
    assert_eq!((good.leeway_s, good.all_tenants), (None, false));
    for (text, wrong) in [
        ("", "jwt.issuer"),
        ("", "jwt.audience"),
        ("", "jwt.algorithms"),
        (
            "algorithms = [\"none\"]",
            "must be RS256, ES256, EdDSA or HS256, not \"none\"",
        ),
        ("algorithms = []", "must be one algorithm or more"),
        ("algorithms = \"RS256\"", "must be a list of texts"),
        (
            "algorithms = [\"RS256\"]",
            "jwt.jwks_url: must be set, or jwks_file, for RS256",
        ),
        (
            "algorithms = [\"HS256\"]",
            "jwt.secret_env: must be set for HS256",
        ),
        (
            "algorithms = [\"HS256\"]\nsecret_env = \"S\"\njwks_file = \"f\"",
            "jwt.jwks_file: must not be set without",
        ),
        (
            "algorithms = [\"RS256\"]\njwks_file = \"f\"\nsecret_env = \"S\"",
            "jwt.secret_env: must not be set without HS256",
        ),
        (
            "algorithms = [\"RS256\"]\njwks_file = \"f\"\njwks_url = \"https://x\"",
            "jwt.jwks_url: must not be set beside jwks_file",
        ),
        (
            "algorithms = [\"RS256\"]\njwks_url = \"http://id.example/keys\"",
            "jwt.jwks_url: must be a URL that begins with https://",
        ),
        (
            "algorithms = [\"RS256\"]\njwks_file = \"f\"\nleeway_s = 301",
            "must be a number from 0 to 300",
        ),
        (
            "algorithms = [\"RS256\"]\njwks_file = \"f\"\ntenant_claim = \"\"",
            "jwt.tenant_claim: must be the name of a claim",
        ),
        (
            "algorithms = [\"RS256\"]\njwks_file = \"f\"\nthrottles = [\"a b\"]",
            "jwt.throttles: must be names of throttles",
        ),
        (
            "algorithms = [\"RS256\"]\njwks_file = \"f\"\ntenant = \"x\"",
            "jwt.tenant: is not a known field",
        ),
    ] {
        let text = if text.is_empty() {
            String::new()
        } else {
            format!("{keys}{text}")
        };
        let refused = load(&text).unwrap_err().to_string();
        assert!(refused.contains(wrong), "{text}: {refused}");
    }
}
