//! Tests of the driver against an HTTP/2 server whose behaviour is selected by the tokens in the
//! paths.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use super::driver::Apns;
use super::token::tests::key;
use crate::providers::examples::account;
use crate::providers::wire_tests::{class_of, message, send_context};
use crate::providers::{Account, Channel, Class, Driver, ProviderResponse, Scope, Sent};

/// The server's observations.
#[derive(Default)]
struct ApnsTraffic {
    /// The connections, in their order.
    connections: Vec<Connection>,
    /// The number of open streams over all connections.
    open: usize,
    /// The maximum of `open` so far.
    peak: usize,
    /// A second stream arrived before the connection's first good answer.
    was_hasty: bool,
    /// The token that is reported as expired.
    expired: Option<String>,
    /// The headers of the last push.
    last: Option<http::HeaderMap>,
}

#[derive(Default)]
struct Connection {
    is_alive: bool,
    is_proven: bool,
    open: usize,
    peak: usize,
}

struct ApnsTestServer {
    base: String,
    seen: Arc<Mutex<ApnsTraffic>>,
    /// Lets pushes to `hold` proceed, one per permit.
    gate: Arc<Semaphore>,
    /// While true, the server drops new connections.
    is_silent: Arc<AtomicBool>,
}

impl ApnsTestServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (seen, gate) = (
            Arc::new(Mutex::new(ApnsTraffic::default())),
            Arc::new(Semaphore::new(0)),
        );
        let is_silent = Arc::new(AtomicBool::new(false));
        let server = Self {
            base,
            seen: seen.clone(),
            gate: gate.clone(),
            is_silent: is_silent.clone(),
        };
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                if is_silent.load(Ordering::SeqCst) {
                    continue;
                }
                let mut all = seen.lock();
                let number = all.connections.len();
                all.connections.push(Connection {
                    is_alive: true,
                    ..Connection::default()
                });
                drop(all);
                let (seen, gate) = (seen.clone(), gate.clone());
                tokio::spawn(async move {
                    let _ = speak(tcp, number, &seen, &gate).await;
                    seen.lock().connections[number].is_alive = false;
                });
            }
        });
        server
    }

    fn account(&self, streams: &str) -> Account {
        let options = [
            ("team_id", "ABCDE12345"),
            ("key_id", "KEY1234567"),
            ("topic", "com.example.app"),
            ("streams_per_connection", streams),
        ];
        let mut account = account(&options, &[("private_key", &key())]);
        account.base_url = Some(self.base.clone());
        account
    }

    fn driver(&self, streams: &str) -> Arc<Apns> {
        Arc::new(Apns::new(&self.account(streams)).unwrap())
    }

    fn connections(&self) -> usize {
        self.seen.lock().connections.len()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&ApnsTraffic) -> bool) {
        for _ in 0..6000 {
            if is_so(&self.seen.lock()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("in a minute {what} did not happen");
    }
}

async fn speak(
    tcp: tokio::net::TcpStream,
    number: usize,
    seen: &Arc<Mutex<ApnsTraffic>>,
    gate: &Arc<Semaphore>,
) -> Result<(), h2::Error> {
    let mut wire = h2::server::handshake(tcp).await?;
    let cut = Arc::new(Notify::new());
    loop {
        let (request, respond) = tokio::select! {
            request = wire.accept() => match request {
                Some(request) => request?,
                None => return Ok(()),
            },
            () = cut.notified() => return Ok(()),
        };
        if request.uri().path().ends_with("/goaway") {
            wire.graceful_shutdown();
        }
        {
            let mut all = seen.lock();
            all.last = Some(request.headers().clone());
            all.open += 1;
            all.peak = all.peak.max(all.open);
            let own = &mut all.connections[number];
            own.open += 1;
            own.peak = own.peak.max(own.open);
            let is_hasty = own.open > 1 && !own.is_proven;
            all.was_hasty |= is_hasty;
        }
        tokio::spawn(answer(
            request,
            respond,
            number,
            seen.clone(),
            gate.clone(),
            cut.clone(),
        ));
    }
}

async fn answer(
    request: http::Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    number: usize,
    seen: Arc<Mutex<ApnsTraffic>>,
    gate: Arc<Semaphore>,
    cut: Arc<Notify>,
) {
    let path = request.uri().path().to_owned();
    let authorization = request.headers()["authorization"]
        .to_str()
        .unwrap()
        .to_owned();
    let mut body = request.into_body();
    while let Some(Ok(chunk)) = body.data().await {
        let _ = body.flow_control().release_capacity(chunk.len());
    }
    let kind = path.strip_prefix("/3/device/").unwrap_or_default();
    if kind == "hold" {
        gate.acquire().await.unwrap().forget();
    }
    let (status, reason) = {
        let mut all = seen.lock();
        all.open -= 1;
        let is_expired = all.expired.as_ref() == Some(&authorization);
        let own = &mut all.connections[number];
        own.open -= 1;
        let (status, reason) = match kind {
            _ if is_expired => (403, "ExpiredProviderToken"),
            "bad" => (400, "BadDeviceToken"),
            "gone" => (410, "Unregistered"),
            "often" => (429, "TooManyRequests"),
            "updates" => (429, "TooManyProviderTokenUpdates"),
            _ => (200, ""),
        };
        own.is_proven |= status == 200;
        (status, reason)
    };
    match kind {
        "refuse" => return respond.send_reset(Reason::REFUSED_STREAM),
        "reset" => return respond.send_reset(Reason::INTERNAL_ERROR),
        "cut" => return cut.notify_one(),
        _ => {}
    }
    let head = http::Response::builder()
        .status(status)
        .header("apns-id", "apple-1")
        .body(())
        .unwrap();
    if kind == "stalled" {
        // The stream stays open as long as it is held.
        let _stream = respond.send_response(head, false);
        return gate.acquire().await.unwrap().forget();
    }
    if let Ok(mut stream) = respond.send_response(head, status == 200) {
        let _ = stream.send_data(Bytes::from(json!({ "reason": reason }).to_string()), true);
    }
}

async fn push(driver: &Apns, to: &str, now_s: i64) -> ProviderResponse {
    driver
        .send(&message(Channel::Push, to), &send_context(now_s))
        .await
}

/// Starts the given number of pushes at once and returns their tasks.
fn many(
    driver: &Arc<Apns>,
    to: &'static str,
    pushes: usize,
) -> Vec<tokio::task::JoinHandle<ProviderResponse>> {
    let one = |_| {
        let driver = driver.clone();
        tokio::spawn(async move { push(&driver, to, 0).await })
    };
    (0..pushes).map(one).collect()
}

async fn all_accepted(answers: Vec<tokio::task::JoinHandle<ProviderResponse>>) {
    for answer in futures_util::future::join_all(answers).await {
        let answer = answer.unwrap();
        assert_eq!(class_of(&answer.sent), Class::Accepted, "{answer:?}");
    }
}

#[tokio::test]
async fn a_push_is_accepted_by_the_head_of_the_answer_however_slow_its_body_is() {
    let server = ApnsTestServer::start().await;
    let answer = push(&server.driver("10"), "stalled", 0).await;
    assert_eq!(class_of(&answer.sent), Class::Accepted, "{answer:?}");
}

#[tokio::test]
async fn a_push_has_its_headers_and_one_connection_serves_many() {
    let server = ApnsTestServer::start().await;
    let mut account = server.account("10");
    account.headers = vec![(
        "x-team".to_owned(),
        crate::providers::AccountSecret::new("growth"),
    )];
    let driver = Arc::new(Apns::new(&account).unwrap());
    all_accepted(many(&driver, "ok", 40)).await;
    let sent = push(&driver, "ok", 0).await.sent;
    assert_eq!(
        sent,
        Sent::Accepted {
            provider_id: Some("apple-1".to_owned())
        }
    );
    let seen = server.seen.lock();
    assert!(!seen.was_hasty, "one stream until an answer was good");
    assert!(
        seen.connections
            .iter()
            .all(|connection| connection.peak <= 10)
    );
    let headers = seen.last.as_ref().unwrap();
    assert!(
        headers["authorization"]
            .to_str()
            .unwrap()
            .starts_with("bearer ey")
    );
    assert_eq!(headers["apns-topic"], "com.example.app");
    assert_eq!(headers["x-team"], "growth");
}

#[tokio::test]
async fn a_new_connection_gets_one_push_until_an_answer_was_good() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("10");
    let pushes = many(&driver, "hold", 10);
    server.until("the first push", |seen| seen.open == 1).await;
    server.gate.add_permits(1);
    server
        .until("the other nine at once", |seen| seen.open == 9)
        .await;
    server.gate.add_permits(9);
    all_accepted(pushes).await;
    let seen = server.seen.lock();
    assert!(!seen.was_hasty);
    assert_eq!((seen.connections.len(), seen.connections[0].peak), (1, 9));
}

#[tokio::test]
async fn connections_come_with_the_load_and_go_with_the_limit() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("2");
    driver.set_concurrency(6);
    let pushes = many(&driver, "hold", 8);
    server
        .until("a first push on each of three", |seen| {
            seen.open == 3 && seen.connections.len() == 3
        })
        .await;
    server.gate.add_permits(3);
    server.until("the rest", |seen| seen.open == 5).await;
    server.gate.add_permits(5);
    all_accepted(pushes).await;
    let more = many(&driver, "hold", 9);
    server
        .until("as many as may be", |seen| seen.open == 6)
        .await;
    server.gate.add_permits(9);
    all_accepted(more).await;
    {
        let seen = server.seen.lock();
        assert!(!seen.was_hasty);
        assert_eq!(
            (seen.peak, seen.connections.len()),
            (6, 3),
            "never more than the limit"
        );
        assert!(
            seen.connections
                .iter()
                .all(|connection| connection.peak <= 2)
        );
    }
    driver.set_concurrency(2);
    let alive = |seen: &ApnsTraffic| {
        seen.connections
            .iter()
            .filter(|connection| connection.is_alive)
            .count()
    };
    server
        .until("two of three closed", |seen| alive(seen) == 1)
        .await;
    all_accepted(many(&driver, "ok", 6)).await;
    assert_eq!(server.connections(), 3, "what is left serves them");
}

#[tokio::test]
async fn a_connection_that_says_good_bye_is_replaced() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("10");
    for to in ["ok", "goaway", "ok", "ok", "goaway", "ok"] {
        let answer = push(&driver, to, 0).await;
        assert_eq!(class_of(&answer.sent), Class::Accepted, "{to} {answer:?}");
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn what_was_written_may_have_been_sent_and_what_was_refused_was_not() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("10");
    for (to, class) in [
        ("ok", Class::Accepted),
        ("refuse", Class::Transient),
        ("reset", Class::Ambiguous),
        ("ok", Class::Accepted),
        ("cut", Class::Ambiguous),
        ("ok", Class::Accepted),
        ("often", Class::Throttled(Scope::Recipient)),
        ("gone", Class::Suppress),
    ] {
        let answer = push(&driver, to, 0).await;
        assert_eq!(class_of(&answer.sent), class, "{to} {answer:?}");
    }
    assert_eq!(server.connections(), 2, "only the cut one is replaced");
}

#[tokio::test]
async fn nobody_there_and_nobody_who_speaks() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("1");
    server.is_silent.store(true, Ordering::SeqCst);
    for answer in futures_util::future::join_all(many(&driver, "ok", 3)).await {
        let answer = answer.unwrap();
        assert!(
            matches!(class_of(&answer.sent), Class::Transient | Class::Ambiguous),
            "{answer:?}"
        );
    }
    server.is_silent.store(false, Ordering::SeqCst);
    for _ in 0..600 {
        if push(&driver, "ok", 0).await.sent.is_success() {
            break;
        }
    }
    assert!(
        push(&driver, "ok", 0).await.sent.is_success(),
        "it comes back"
    );

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut account = server.account("1");
    account.base_url = Some(format!("http://{}", listener.local_addr().unwrap()));
    drop(listener);
    let answers = many(&Arc::new(Apns::new(&account).unwrap()), "ok", 3);
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(class_of(&answer.unwrap().sent), Class::Transient);
    }
}

#[tokio::test]
async fn after_a_rejection_times_report_nothing_for_a_moment() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("10");
    assert!(
        push(&driver, "ok", 0).await.is_untimed,
        "it had to wait for its connection"
    );
    assert!(!push(&driver, "ok", 0).await.is_untimed);
    let bad = push(&driver, "bad", 0).await;
    assert_eq!(
        (class_of(&bad.sent), bad.is_untimed),
        (Class::Suppress, true)
    );
    // Only a machine that sleeps for two seconds between the two lines could make this push timed.
    let began = std::time::Instant::now();
    let next = push(&driver, "ok", 0).await;
    assert!(
        next.is_untimed || began.elapsed() > Duration::from_secs(1),
        "the next is slow without load"
    );
    let mut is_timed = false;
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        is_timed = !push(&driver, "ok", 0).await.is_untimed;
        if is_timed {
            break;
        }
    }
    assert!(is_timed, "and then times count again");
}

#[tokio::test]
async fn too_many_new_tokens_set_a_connection_aside() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("10");
    assert!(push(&driver, "ok", 0).await.sent.is_success());
    let answer = push(&driver, "updates", 0).await;
    assert_eq!(class_of(&answer.sent), Class::Throttled(Scope::Connection));
    assert!(push(&driver, "ok", 0).await.sent.is_success());
    assert_eq!(server.connections(), 2);
    for _ in 0..2 {
        assert_eq!(
            class_of(&push(&driver, "updates", 0).await.sent),
            Class::Throttled(Scope::Connection)
        );
    }
    let stuck = push(&driver, "ok", 0).await;
    assert_eq!(
        (class_of(&stuck.sent), server.connections()),
        (Class::Throttled(Scope::Connection), 3),
        "{stuck:?}"
    );
    assert!(
        matches!(stuck.sent, Sent::Throttled { delay: Some(delay), .. } if delay > Duration::ZERO)
    );
}

#[tokio::test]
async fn an_expired_token_is_replaced_once_and_not_too_early() {
    let server = ApnsTestServer::start().await;
    let driver = server.driver("10");
    let expire = || {
        let mut seen = server.seen.lock();
        let last = seen.last.as_ref().unwrap()["authorization"]
            .to_str()
            .unwrap()
            .to_owned();
        seen.expired = Some(last);
    };
    assert!(push(&driver, "ok", 0).await.sent.is_success());
    expire();
    let early = push(&driver, "ok", 600).await;
    assert_eq!(class_of(&early.sent), Class::Account, "{early:?}");
    assert!(
        push(&driver, "ok", 1500).await.sent.is_success(),
        "after twenty minutes another may be made"
    );
    expire();
    assert_eq!(
        class_of(&push(&driver, "ok", 1600).await.sent),
        Class::Account
    );
}

#[test]
fn wrong_settings_are_reported() {
    let good = [
        ("team_id", "ABCDE12345"),
        ("key_id", "KEY1234567"),
        ("topic", "com.example.app"),
    ];
    let key = key();
    let field = |options: &[(&str, &str)], secrets: &[(&str, &str)]| {
        Apns::new(&account(options, secrets)).err().unwrap().field
    };
    for missing in 0..3 {
        let mut options = good.to_vec();
        let (name, _) = options.remove(missing);
        assert_eq!(field(&options, &[("private_key", &key)]), name);
    }
    assert_eq!(field(&good, &[]), "private_key");
    assert_eq!(
        field(
            &good,
            &[(
                "private_key",
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"
            )]
        ),
        "private_key"
    );
    let many = [good[0], good[1], good[2], ("streams_per_connection", "0")];
    assert_eq!(
        field(&many, &[("private_key", &key)]),
        "streams_per_connection"
    );
    let mut based = account(&good, &[("private_key", &key)]);
    based.base_url = Some("api.push.apple.com".to_owned());
    assert_eq!(Apns::new(&based).err().unwrap().field, "base_url");
}
