//! Redirects, and the guard against private addresses.

use std::sync::{Arc, Mutex};

use flyball::jobs::{Handler, Outcome};
use flyball::outbound::{Guard, HttpConfig, HttpHandler, Lookup, Secrets};
use futures_util::future::{FutureExt, ready};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::outcomes::SECRET;
use super::server::{Server, handler, run, run_until};

#[tokio::test]
async fn redirects_are_followed_where_asked_for_and_no_further() {
    let server = Server::start().await;
    let url = |path: &str| format!("{}/{path}", server.url);
    let post = |path: &str, redirects: u32| json!({"url": url(path), "method": "POST", "body": {"a": 1}, "redirects": redirects, "headers": {"X-Api-Key": "very-secret"}});

    assert_eq!(run(post("see-other", 1)).await, Outcome::Done);
    assert_eq!(run(post("temporary", 1)).await, Outcome::Done);
    let too_far = run(post("round", 3)).await;

    let received = server.received();
    let paths: Vec<String> = received
        .iter()
        .map(|one| format!("{} {}", one.method, one.path))
        .collect();
    assert_eq!(
        paths[..4],
        ["POST see-other", "GET ok", "POST temporary", "POST ok"]
    );
    assert_eq!(
        (
            received[1].body.as_str(),
            received[1].headers.get("content-type")
        ),
        ("", None)
    );
    assert_eq!(
        (
            received[3].body.as_str(),
            received[3].headers["x-api-key"].to_str().unwrap()
        ),
        (r#"{"a":1}"#, "very-secret")
    );
    assert_eq!(
        paths[4..],
        ["POST round", "POST round", "POST round", "POST round"]
    );
    let Outcome::Dead { error } = too_far else {
        panic!("{too_far:?}")
    };
    assert!(
        error.contains("at most 3 redirects are followed"),
        "{error}"
    );
}

#[tokio::test]
async fn a_redirect_to_another_origin_takes_no_credentials_along() {
    let (home, away) = (Server::start().await, Server::start().await);
    let secrets = [("FLYBALL_WEBHOOK_SECRET_ACME".to_owned(), SECRET.to_owned())];
    let secrets = Secrets::from_variables(secrets, |_| unreachable!()).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard: Guard::open(),
        secrets,
        lookup: None,
    })
    .unwrap();
    let args = json!({
        "url": format!("{}/to/{}/ok", home.url.replace("http://", "http://ann:pass-word@"), away.url.replace("http://", "")),
        "method": "POST", "body": {"a": 1}, "redirects": 2, "secret": "acme",
        "headers": {"Authorization": "Bearer very-secret", "Cookie": "id=1", "X-Api-Key": "abc", "Accept": "text/html"},
    });

    assert_eq!(
        run_until(&handler, args, CancellationToken::new()).await,
        Outcome::Done
    );

    assert_eq!(
        home.received()[0].headers["authorization"],
        "Bearer very-secret"
    );
    let away = away.received();
    assert_eq!(
        (away[0].method.as_str(), away[0].body.as_str()),
        ("POST", r#"{"a":1}"#)
    );
    let names: std::collections::BTreeSet<&str> = away[0]
        .headers
        .keys()
        .map(axum::http::HeaderName::as_str)
        .collect();
    assert_eq!(
        names,
        [
            "accept",
            "content-length",
            "content-type",
            "host",
            "user-agent"
        ]
        .into()
    );
}

#[tokio::test]
async fn the_guard_judges_every_hop() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap();
    let guard = Guard::allowing(["127.0.0.1"]).unwrap();
    // The names resolve to the allowed address, to a forbidden one, and to both.
    let lookup: Lookup = Arc::new(|name| {
        let addresses: &[&str] = match name.as_str() {
            "allowed.test" => &["127.0.0.1"],
            "refused.test" => &["127.0.0.2", "::1"],
            _ => &["::1", "127.0.0.1"],
        };
        let addresses = addresses.iter().map(|address| address.parse().unwrap());
        ready(Ok(addresses.collect())).boxed()
    });
    let handler = HttpHandler::new(HttpConfig {
        guard,
        lookup: Some(lookup),
        ..HttpConfig::default()
    })
    .unwrap();
    for (host, is_reached) in [
        ("[::1]", false),
        ("127.0.0.2", false),
        ("refused.test", false),
        ("127.0.0.1", true),
        ("allowed.test", true),
        ("both.test", true),
    ] {
        let args = json!({"url": format!("{}/to/{host}:{port}/ok", server.url), "redirects": 5});
        let outcome = run_until(&handler, args, CancellationToken::new()).await;
        let is_refused = matches!(&outcome, Outcome::Dead { error } if error.contains("is not an address of the public internet"));
        assert_eq!(
            (outcome == Outcome::Done, is_refused),
            (is_reached, !is_reached),
            "{host}: {outcome:?}"
        );
    }
    let scheme = json!({"url": format!("{}/to-file", server.url), "redirects": 5});
    let Outcome::Dead { error } = run_until(&handler, scheme, CancellationToken::new()).await
    else {
        panic!("dead")
    };
    assert_eq!(
        error,
        "the request cannot be sent: a redirect leads to neither http nor https"
    );
}

#[tokio::test]
async fn a_name_that_answers_differently_the_second_time_gets_no_further() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    let requested = Arc::new(Mutex::new(0));
    let counting = requested.clone();
    // First the allowed address, then both, then only the forbidden one.
    let lookup: Lookup = Arc::new(move |name| {
        assert_eq!(name, "rebinding.example");
        let mut requested = counting.lock().unwrap();
        *requested += 1;
        let addresses: &[&str] = match *requested {
            1 => &["127.0.0.1"],
            2 => &["127.0.0.2", "127.0.0.1"],
            _ => &["127.0.0.2"],
        };
        let addresses = addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect();
        ready(Ok(addresses)).boxed()
    });
    let guard = Guard::allowing(["127.0.0.1/32"]).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard,
        lookup: Some(lookup),
        ..HttpConfig::default()
    })
    .unwrap();
    // The server closes after each answer, so each attempt resolves the name again.
    let args = json!({"url": format!("http://rebinding.example:{port}/close")});

    let mut outcomes = Vec::new();
    for _ in 0..3 {
        assert!(handler.prepare(&args).is_ok());
        outcomes.push(run_until(&handler, args.clone(), CancellationToken::new()).await);
    }

    assert_eq!(outcomes[..2], [Outcome::Done, Outcome::Done]);
    let Outcome::Dead { error } = &outcomes[2] else {
        panic!("{outcomes:?}")
    };
    assert!(
        error.starts_with("rebinding.example is not an address of the public internet"),
        "{error}"
    );
    assert_eq!(
        (*requested.lock().unwrap(), server.received().len()),
        (3, 2)
    );
}

#[tokio::test]
async fn a_name_may_be_allowed_whatever_it_resolves_to() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap();
    let lookup: Lookup = Arc::new(|_| ready(Ok(vec!["127.0.0.1".parse().unwrap()])).boxed());
    let guard = Guard::allowing(["intranet.example"]).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard,
        lookup: Some(lookup),
        ..HttpConfig::default()
    })
    .unwrap();
    let to = |host: &str| json!({"url": format!("http://{host}:{port}/ok")});

    assert_eq!(
        run_until(&handler, to("intranet.example"), CancellationToken::new()).await,
        Outcome::Done
    );
    for host in ["other.example", "sub.intranet.example", "127.0.0.1"] {
        assert!(
            matches!(
                run_until(&handler, to(host), CancellationToken::new()).await,
                Outcome::Dead { .. }
            ),
            "{host}"
        );
    }
}

#[tokio::test]
async fn the_guard_keeps_jobs_away_from_addresses_inside() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap();
    let guarded = handler(false);
    for host in [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "0",
    ] {
        let args = json!({"url": format!("http://{host}:{port}/ok")});
        let outcome = run_until(&guarded, args.clone(), CancellationToken::new()).await;
        let Outcome::Dead { error } = outcome else {
            panic!("{host}: {outcome:?}")
        };
        assert!(
            error.contains(
                "is not an address of the public internet; set FLYBALL_ALLOW_PRIVATE_URLS=true"
            ),
            "{error}"
        );
        // Names are checked when connecting, addresses when enqueueing.
        assert_eq!(
            guarded.prepare(&args).is_ok(),
            host == "localhost",
            "{host}"
        );
    }
    assert!(server.received().is_empty());

    let allowed = json!({"url": format!("http://localhost:{port}/ok")});
    assert_eq!(run(allowed).await, Outcome::Done);
}
