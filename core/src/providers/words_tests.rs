use super::super::AccountSecret;
use super::super::outcome::base_url;
use super::*;

#[test]
fn reasons_are_one_short_line_without_what_is_nobodys_business() {
    let mut account = Account::default();
    account
        .secrets
        .insert("auth_token".into(), AccountSecret::new("s3cr3t-t0ken"));
    account
        .headers
        .push(("x-gate".into(), AccountSecret::new("open sesame")));
    let cases = [
        (
            "The 'To' number +15550100123 is not valid.",
            "The 'To' number *** is not valid.",
        ),
        ("call (555) 010-0123 now", "call (555) *** now"),
        ("to +1 (555) 010-0123.", "to ***."),
        (
            "550 5.1.1 from 192.168.100.100 in 10 s",
            "550 5.1.1 from 192.168.100.100 in 10 s",
        ),
        ("to <ann@example.com>: no such box", "to <***>: no such box"),
        ("to=ann%40example.com", "to=***"),
        ("line\none\r\n\ttwo", "line one two"),
        ("s3cr3t-t0ken and open sesame", "*** and ***"),
        ("code 21211, 5.7.1 of 2026", "code 21211, 5.7.1 of 2026"),
    ];
    for (text, expected) in cases {
        assert_eq!(tidy(&account, text), expected, "{text}");
    }
    assert_eq!(tidy(&account, &"word ".repeat(100)).chars().count(), 200);
    assert_eq!(
        reason(&account, 429, "20429", "Too many"),
        "answered 429 (20429): Too many"
    );
    assert_eq!(reason(&account, 503, "", " "), "answered 503");
}

#[test]
fn numbers_are_distinguished_from_other_texts() {
    for good in ["+15550100", "+4915112345678", "+123456789012345"] {
        assert!(is_e164(good), "{good}");
    }
    for bad in [
        "15550100",
        "+0123456",
        "+1555010a",
        "+1234567890123456",
        "",
        "+",
    ] {
        assert!(!is_e164(bad), "{bad}");
    }
}

#[test]
fn forms_are_encoded() {
    let fields = [
        ("To".to_owned(), "+1555".to_owned()),
        ("Body".to_owned(), "ä & b=c\n".to_owned()),
    ];
    assert_eq!(form(&fields), "To=%2B1555&Body=%C3%A4+%26+b%3Dc%0A");
    assert_eq!(basic("user", "pass"), "Basic dXNlcjpwYXNz");
}

#[test]
fn base_urls_are_checked_and_lose_their_slash() {
    let account = |base: &str| Account {
        base_url: Some(base.to_owned()),
        ..Account::default()
    };
    assert_eq!(
        base_url(&Account::default(), "https://own").unwrap(),
        "https://own"
    );
    assert_eq!(
        base_url(&account("http://127.0.0.1:99/a/"), "").unwrap(),
        "http://127.0.0.1:99/a"
    );
    for bad in [
        "example.com",
        "ftp://example.com",
        "https://example.com?x=1",
        "",
    ] {
        assert_eq!(
            base_url(&account(bad), "").unwrap_err().field,
            "base_url",
            "{bad}"
        );
    }
}
