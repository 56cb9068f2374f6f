use serde_json::json;

use super::*;

fn keys(bytes: &[u8]) -> SecretKeys {
    let texts: Vec<String> = bytes
        .iter()
        .map(|byte| SecretKeys::text_of(&[*byte; KEY_BYTES]))
        .collect();
    SecretKeys::parse(&texts.join(" ")).unwrap()
}

fn encrypted(keys: &SecretKeys, kind: &str, tenant: &str, args: &Value) -> Value {
    let mut args = args.clone();
    let mut next = 0_u8;
    let nonce = || {
        next += 1;
        [next; NONCE_BYTES]
    };
    keys.encrypt(kind, tenant, &mut args, nonce).unwrap();
    args
}

fn args() -> Value {
    json!({"url": "https://a.example", "headers": {"authorization": {"$secret": "Bearer 5up3r-53cret"}},
        "list": [1, {"deep": {"$secret": {"pin": 1234567, "of": ["x", true, null]}}}], "plain": "p"})
}

#[test]
fn what_is_encrypted_is_decrypted_again_and_shows_nothing_at_rest() {
    let keys = keys(&[1]);

    let at_rest = encrypted(&keys, "http", "acme", &args());

    let text = at_rest.to_string();
    for secret in ["5up3r", "1234567", PLAIN] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let mut decrypted = at_rest;
    let texts = keys.decrypt("http", "acme", &mut decrypted).unwrap();
    assert_eq!(
        decrypted,
        json!({"url": "https://a.example", "headers": {"authorization": "Bearer 5up3r-53cret"},
            "list": [1, {"deep": {"pin": 1234567, "of": ["x", true, null]}}], "plain": "p"})
    );
    assert!(!format!("{texts:?}").contains("5up3r"));
}

#[test]
fn an_encrypted_value_is_of_no_use_in_another_kind_or_tenant_or_when_it_was_changed() {
    let keys = keys(&[1]);
    let at_rest = encrypted(&keys, "http", "acme", &json!({"t": {"$secret": "x"}}));
    for (kind, tenant) in [
        ("http", ""),
        ("http", "acm"),
        ("httpa", "cme"),
        ("mail", "acme"),
    ] {
        let issue = keys
            .decrypt(kind, tenant, &mut at_rest.clone())
            .unwrap_err();
        assert_eq!(issue.pointer, "/t");
        assert!(
            issue.message.contains("another kind or tenant"),
            "{issue:?}"
        );
    }
    let text = at_rest["t"][ENCRYPTED].as_str().unwrap();
    let last = if text.ends_with('A') { "Q" } else { "A" };
    let changed = format!("{}{last}", &text[..text.len() - 1]);
    let mut changed = json!({"t": {ENCRYPTED: changed}});
    assert!(keys.decrypt("http", "acme", &mut changed).is_err());
}

#[test]
fn the_first_key_encrypts_and_every_key_decrypts() {
    let (old, both, new) = (keys(&[1]), keys(&[2, 1]), keys(&[2]));
    let by_old = encrypted(&old, "k", "", &json!({"$secret": "x"}));
    let by_both = encrypted(&both, "k", "", &json!({"$secret": "x"}));

    assert!(both.decrypt("k", "", &mut by_old.clone()).is_ok());
    assert!(new.decrypt("k", "", &mut by_both.clone()).is_ok());
    let issue = new.decrypt("k", "", &mut by_old.clone()).unwrap_err();
    assert_eq!(
        issue.message,
        format!(
            "cannot be decrypted: this process has no key {} in FLYBALL_SECRET_KEYS",
            old.ids().next().unwrap()
        )
    );

    let id = new.ids().next().unwrap();
    assert_eq!(needs(&by_both), [format!("secret-key {id}")]);
    assert!(new.capabilities().any(|one| one == needs(&by_both)[0]));
    assert!(!old.capabilities().any(|one| one == needs(&by_both)[0]));
}

#[test]
fn a_job_with_plain_marks_needs_any_key_and_one_without_secrets_needs_none() {
    assert_eq!(needs(&args()), ["secret-key any"]);
    assert!(keys(&[7]).capabilities().any(|one| one == "secret-key any"));
    assert_eq!(SecretKeys::default().capabilities().count(), 0);
    assert!(needs(&json!({"a": [1, {"secret": "x"}], "$other": 1})).is_empty());
    assert!(!has_secrets(
        &json!({"$secrets": 1, "b": [{"c": "$secret"}]})
    ));
}

#[test]
fn marks_that_would_leave_something_plain_are_refused_with_their_place() {
    let keys = keys(&[1]);
    let nonce = || [0; NONCE_BYTES];
    let refused = |keys: &SecretKeys, kind: &str, mut args: Value| {
        keys.encrypt(kind, "", &mut args, nonce).unwrap_err()
    };
    let two = refused(&keys, "k", json!({"a/b": [{"$secret": "x", "and": "y"}]}));
    assert_eq!(two.pointer, "/a~1b/0");
    assert!(two.message.contains("only field"), "{two:?}");
    for wrong in [
        json!(7),
        json!("x"),
        json!("v1.0000.AAAA"),
        json!("v1.0000000g.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        json!("v2.00000000.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ] {
        let issue = refused(&keys, "k", json!({"t": {ENCRYPTED: wrong}}));
        assert_eq!(
            (issue.pointer.as_str(), issue.message.as_str()),
            ("/t", NOT_ENCRYPTED)
        );
    }
    let message = refused(&keys, "notification", json!({"body": {"$secret": "x"}}));
    assert!(
        message.message.contains("the kind notification"),
        "{message:?}"
    );
    let none = refused(&SecretKeys::default(), "k", json!({"t": {"$secret": "x"}}));
    assert!(none.message.contains(VARIABLE), "{none:?}");
    assert_eq!(
        first_plain(&args()).as_deref(),
        Some("/headers/authorization")
    );
    assert_eq!(first_plain(&encrypted(&keys, "k", "", &args())), None);
}

#[test]
fn whatever_is_marked_is_masked_where_arguments_are_shown() {
    let masked = json!({"url": "https://a.example", "headers": {"authorization": MASK}, "list": [1, {"deep": MASK}], "plain": "p"});
    let mut plain = args();
    mask(&mut plain);
    assert_eq!(plain, masked);
    let mut at_rest = encrypted(&keys(&[1]), "k", "", &args());
    mask(&mut at_rest);
    assert_eq!(at_rest, masked);
    let mut mixed = json!([{"$secret": "x", "and": "y"}]);
    mask(&mut mixed);
    assert_eq!(mixed, json!([MASK]));
}

#[test]
fn a_handler_checks_the_arguments_that_it_will_get_unless_they_are_encrypted() {
    let (checked, _) = as_checked(&args()).unwrap();
    assert_eq!(checked["headers"]["authorization"], "Bearer 5up3r-53cret");
    assert!(as_checked(&encrypted(&keys(&[1]), "k", "", &args())).is_none());
}

#[test]
fn secret_texts_are_removed_from_what_an_attempt_reports() {
    let keys = keys(&[1]);
    let mut args = json!([{"$secret": "Bearer 5up3r-53cret"}, {"$secret": "line\n\"two\""}, {"$secret": 1234567}, {"$secret": "abc"}]);
    let texts = keys.decrypt("k", "", &mut args).unwrap();
    let mut error =
        "401: 5up3r-53cret is no token; \"line\\n\\\"two\\\"\" of 1234567, abc, Bearer".to_owned();

    texts.remove_from(&mut error);

    assert_eq!(
        error,
        "401: [secret] is no token; \"[secret]\" of [secret], abc, Bearer"
    );
}

#[test]
fn keys_are_read_from_one_variable_or_a_file_and_never_shown() {
    let key = SecretKeys::text_of(&[3; KEY_BYTES]);
    let read = |path: &str| match path {
        "/run/keys" => Ok(format!("{key}\n{key}\n")),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let of = |keys, file| SecretKeys::from_variables(keys, file, read);

    assert!(of(None, Some(" ")).unwrap().is_empty());
    assert_eq!(of(None, Some("/run/keys")).unwrap().ids().count(), 1);
    assert_eq!(of(Some(&key), None).unwrap().ids().count(), 1);
    let short = STANDARD.encode([3; 31]);
    for (keys, file, expected) in [
        (Some(key.as_str()), Some("/run/keys"), "set one of them"),
        (Some(short.as_str()), None, "cannot be used"),
        (Some("hunter2"), None, "cannot be used"),
        (Some(","), None, "holds no key"),
        (None, Some("/nowhere"), "cannot be read"),
    ] {
        let error = of(keys, file).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with("FLYBALL_SECRET_KEYS"), "{error}");
        assert!(
            keys.is_none_or(|keys| keys == "," || !error.contains(keys)),
            "{error}"
        );
    }
}
