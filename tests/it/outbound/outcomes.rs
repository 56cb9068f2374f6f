//! The outcome of a request, by the server's answer or its absence.

use std::time::{Duration, Instant};

use flyball::jobs::{Handler, Job, OnAmbiguous, Outcome, Quota, Scope};
use flyball::outbound::{Guard, HttpConfig, HttpHandler, Secrets};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::server::{Server, handler, job, run, run_job, run_until};
use crate::support::eventually;

#[tokio::test]
async fn a_request_arrives_as_it_was_written() {
    let server = Server::start().await;

    let outcome = run(json!({
        "method": "post", "url": format!("{}/ok", server.url), "headers": {"X-Token": "abc"}, "body": {"a": [1, "ü"]},
    }))
    .await;
    run(json!({"method": "PUT", "url": format!("{}/ok", server.url), "body": "plain"})).await;

    assert_eq!(outcome, Outcome::Done);
    let received = server.received();
    assert_eq!(
        (received[0].method.as_str(), received[0].path.as_str()),
        ("POST", "ok")
    );
    assert_eq!(received[0].body, r#"{"a":[1,"ü"]}"#);
    assert_eq!(received[0].headers["x-token"], "abc");
    assert_eq!(received[0].headers["content-type"], "application/json");
    assert!(
        received[0].headers["user-agent"]
            .to_str()
            .unwrap()
            .starts_with("flyball/")
    );
    assert_eq!(
        (received[1].method.as_str(), received[1].body.as_str()),
        ("PUT", "plain")
    );
    assert_eq!(received[1].headers.get("content-type"), None);
}

#[tokio::test]
async fn being_asked_to_slow_down_uses_no_attempt() {
    let server = Server::start().await;
    let seconds = |n| Some(Duration::from_secs(n));
    for (path, expected) in [
        ("limit", seconds(17)),
        ("limit-without-word", None),
        ("busy", seconds(3)),
        ("trickle", seconds(5)),
    ] {
        match run(json!({"url": format!("{}/{path}", server.url)})).await {
            Outcome::Throttled { delay, error, .. } | Outcome::Overloaded { delay, error, .. } => {
                assert_eq!(delay, expected, "{path}");
                assert!(error.starts_with("answered "), "{error}");
            }
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn trouble_on_the_other_side_is_tried_again() {
    let server = Server::start().await;
    for status in ["500", "502", "503", "504", "408"] {
        let outcome = run(json!({"url": format!("{}/{status}", server.url)})).await;
        assert_eq!(
            outcome,
            Outcome::Retry {
                after: None,
                error: format!("answered {status}: the body")
            }
        );
    }
}

#[tokio::test]
async fn what_would_be_answered_the_same_again_is_dead() {
    let server = Server::start().await;
    for status in ["400", "401", "404", "410", "422"] {
        let outcome = run(json!({"url": format!("{}/{status}", server.url)})).await;
        assert_eq!(
            outcome,
            Outcome::Dead {
                error: format!("answered {status}: the body")
            }
        );
    }
    let moved = run(json!({"url": format!("{}/moved", server.url)})).await;
    assert_eq!(
        moved,
        Outcome::Dead {
            error: "answered 302 (location: /ok); redirects are not followed".to_owned()
        }
    );
    assert_eq!(server.received().len(), 6, "nobody followed the redirect");

    let listed = run(json!({"url": format!("{}/moved", server.url), "success": [302]})).await;
    assert_eq!(listed, Outcome::Done);
}

#[tokio::test]
async fn a_request_that_is_not_answered_in_time_is_ambiguous() {
    let server = Server::start().await;
    let begin = Instant::now();
    let args = json!({"url": format!("{}/slow", server.url), "timeout_ms": 3000});
    let unanswered = |policy| Outcome::Ambiguous {
        policy,
        error: "no answer within 3000 ms".to_owned(),
    };

    assert_eq!(run(args.clone()).await, unanswered(OnAmbiguous::Retry));
    let mut dead = args;
    dead["on_ambiguous"] = json!("dead");
    assert_eq!(run(dead).await, unanswered(OnAmbiguous::Dead));

    assert_eq!(server.received().len(), 2, "one request for each attempt");
    assert!(
        begin.elapsed() < Duration::from_secs(25),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn the_jobs_own_time_ends_in_the_handler_that_knows_what_was_sent() {
    let server = Server::start().await;
    let job = Job {
        timeout: Some(Duration::from_secs(4)),
        ..job(json!({"url": format!("{}/slow", server.url)}))
    };

    let (outcome, _) = run_job(&handler(true), job, CancellationToken::new()).await;

    let Outcome::Ambiguous {
        policy: OnAmbiguous::Retry,
        error,
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    let ms = error
        .strip_prefix("no answer within ")
        .and_then(|rest| rest.strip_suffix(" ms"));
    // The attempt had used a little of the 3800 ms before.
    let ms: u64 = ms.expect(&error).parse().unwrap();
    assert!((2000..=3800).contains(&ms), "{error}");
}

#[tokio::test]
async fn a_connection_that_is_cut_is_ambiguous_and_one_that_was_refused_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "http://{}/?token=very-secret",
        listener.local_addr().unwrap()
    );
    let cutting = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 1024]).await;
    });

    let cut = run(json!({"url": url})).await;
    cutting.await.unwrap();
    let refused = run(json!({"url": url})).await;

    let Outcome::Ambiguous {
        policy: OnAmbiguous::Retry,
        error,
    } = cut
    else {
        panic!("{cut:?}")
    };
    assert!(
        error.starts_with("the connection broke: ") && !error.contains("very-secret"),
        "{error}"
    );
    let Outcome::Retry { after: None, error } = refused else {
        panic!("{refused:?}")
    };
    assert!(
        error.starts_with("could not connect: ") && !error.contains("very-secret"),
        "{error}"
    );
}

#[tokio::test]
async fn a_request_that_was_carried_out_is_ambiguous_if_its_redirect_leads_nowhere() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let post = |path: &str| {
        let url = format!("{}/{path}/{nobody}/", server.url);
        json!({"url": url, "method": "POST", "redirects": 1, "on_ambiguous": "dead"})
    };

    let carried_out = run(post("see")).await;
    let elsewhere = run(post("to")).await;

    let Outcome::Ambiguous {
        policy: OnAmbiguous::Dead,
        error,
    } = carried_out
    else {
        panic!("{carried_out:?}")
    };
    assert!(
        error.starts_with("a redirect could not be followed: could not connect: "),
        "{error}"
    );
    // A 307 asks for the same request elsewhere, where none arrived.
    assert!(matches!(elsewhere, Outcome::Retry { .. }), "{elsewhere:?}");
}

#[tokio::test]
async fn a_server_that_does_not_let_us_connect_in_time_makes_nothing_ambiguous() {
    // The TLS handshake with this server never ends, so no request can be sent.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());

    let connecting = run(json!({"url": url, "connect_timeout_ms": 200})).await;
    let whole = run(json!({"url": url, "timeout_ms": 300})).await;

    assert_eq!(
        connecting,
        Outcome::Retry {
            after: None,
            error: "no connection within 200 ms".to_owned()
        }
    );
    assert_eq!(
        whole,
        Outcome::Retry {
            after: None,
            error: "no connection within 300 ms".to_owned()
        }
    );
}

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn a_body_from_a_template_is_signed_and_the_id_is_the_same_for_every_attempt() {
    let server = Server::start().await;
    let variables = [("FLYBALL_WEBHOOK_SECRET_ACME".to_owned(), SECRET.to_owned())];
    let secrets = Secrets::from_variables(variables, |_| unreachable!()).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard: Guard::open(),
        secrets: secrets.clone(),
        lookup: None,
    })
    .unwrap();
    let args = json!({
        "url": format!("{}/ok", server.url), "method": "POST", "secret": "acme",
        "template": "{\"hello\": {{ name|tojson }}}", "data": {"name": "Ada \"A\""},
    });

    for attempt in 1..=2 {
        let job = Job {
            id: 4711,
            attempt,
            ..job(args.clone())
        };
        assert_eq!(
            run_job(&handler, job, CancellationToken::new()).await.0,
            Outcome::Done
        );
    }

    let received = server.received();
    assert_eq!(received.len(), 2);
    for one in received {
        let header = |name: &str| one.headers[name].to_str().unwrap().to_owned();
        assert_eq!(
            (one.body.as_str(), header("webhook-id").as_str()),
            (r#"{"hello": "Ada \"A\""}"#, "job_4711")
        );
        let at = header("webhook-timestamp").parse().unwrap();
        let expected = secrets
            .sign("acme", "job_4711", at, one.body.as_bytes())
            .unwrap();
        assert_eq!(header("webhook-signature"), expected[2].1);
    }
}

#[tokio::test]
async fn a_template_that_fails_and_a_secret_that_is_not_there_send_nothing() {
    let server = Server::start().await;
    let url = format!("{}/ok", server.url);
    let cases = [
        (
            json!({"url": url, "template": "{{ nam }}", "data": {"name": 1}}),
            "/template line 1: undefined value",
        ),
        (
            json!({"url": url, "secret": "acme"}),
            "/secret names \"acme\", but this worker has no FLYBALL_WEBHOOK_SECRET_ACME",
        ),
    ];
    for (args, expected) in cases {
        assert_eq!(
            run(args).await,
            Outcome::Dead {
                error: expected.to_owned()
            }
        );
    }
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn answers_report_whom_they_slow_down_and_what_is_left() {
    let server = Server::start().await;
    // Two jobs, because the host is remembered for a while as having rejected a job without a key.
    let (refused, requested) = (handler(true), handler(true));
    let (limited, _) = run_job(
        &refused,
        job(json!({"url": format!("{}/limit-all", server.url)})),
        CancellationToken::new(),
    )
    .await;
    let (fine, about) = run_job(
        &requested,
        job(json!({"url": format!("{}/quota", server.url)})),
        CancellationToken::new(),
    )
    .await;

    assert!(
        matches!(
            limited,
            Outcome::Throttled {
                scope: Scope::Throttle,
                ..
            }
        ),
        "{limited:?}"
    );
    assert_eq!(fine, Outcome::Done);
    assert_eq!(
        about.attempt_report().quota,
        Some(Quota {
            remaining: 43.0,
            reset: Duration::from_secs(18)
        })
    );
}

#[tokio::test]
async fn a_job_that_must_not_run_twice_is_not_handed_back_once_it_was_sent() {
    let server = Server::start().await;
    let cancelled = CancellationToken::new();
    let handler = handler(true);
    let args = json!({"url": format!("{}/slow", server.url), "on_ambiguous": "dead"});
    let running = run_until(&handler, args, cancelled.clone());
    let cancelling = async {
        until(|| !server.received().is_empty()).await;
        cancelled.cancel();
    };

    let error = "stopped before a response arrived".to_owned();
    assert_eq!(
        tokio::join!(running, cancelling).0,
        Outcome::Ambiguous {
            policy: OnAmbiguous::Dead,
            error
        }
    );
}

async fn until(is_so: impl Fn() -> bool) {
    eventually("it comes to pass", Duration::from_secs(30), || async {
        is_so().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let server = Server::start().await;

    let Outcome::Dead { error } = run(json!({"url": format!("{}/endless", server.url)})).await
    else {
        panic!("dead")
    };

    assert_eq!(error.len(), "answered 400: ".len() + 1024);
}

#[tokio::test]
async fn errors_never_hold_our_headers() {
    let server = Server::start().await;
    let args = json!({
        "method": "POST", "url": format!("{}/echo", server.url),
        "headers": {"Authorization": "Bearer very-secret-token"}, "body": "hello",
    });

    let Outcome::Dead { error } = run(args).await else {
        panic!("dead")
    };

    assert!(error.contains("you sent"), "{error}");
    assert!(!error.contains("very-secret"), "{error}");
}

#[tokio::test]
async fn a_job_that_is_told_to_stop_stops() {
    let server = Server::start().await;
    let cancelled = CancellationToken::new();
    let (handler, log) = (handler(true), server.log.clone());
    let running = run_until(
        &handler,
        json!({"url": format!("{}/slow", server.url)}),
        cancelled.clone(),
    );
    let cancelling = async {
        until(|| !log.lock().unwrap().is_empty()).await;
        cancelled.cancel();
    };

    assert_eq!(tokio::join!(running, cancelling).0, Outcome::HandedBack);
}

#[test]
fn a_refusal_lists_every_issue() {
    let handler = handler(true);

    let issues = |args: Value| handler.prepare(&args).err().unwrap_or_default();
    let many = issues(json!({"url": "http://exa mple", "method": 1, "colour": "red"}));
    let pointers: Vec<&str> = many.iter().map(|issue| issue.pointer.as_str()).collect();

    assert_eq!(pointers, ["/colour", "/method", "/url"]);
    for url in ["http://[::1", "http://a:99999", "http://a..%00/"] {
        assert_eq!(issues(json!({"url": url})).len(), 1, "{url}");
    }
    assert_eq!(issues(json!({"url": "https://example.com/hook?x=1#y"})), []);
}
