//! One suite for all drivers, each against a fake that speaks its provider's format. [`subjects`]
//! lists the differences between providers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flyball::outbound::Guard;
use flyball::providers::{
    AccountSecret, Channel, Driver, DriverClients, Http, InvalidAccount, Message, ProviderResponse,
    Recipient, Scope, SendContext, Sent,
};
use flyball_fakes::{Fake, FakeOptions, Fault, WindowQuota};
use serde_json::Map;
use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

mod events;
mod recipients;
mod schemas;
mod subjects;

use crate::support::eventually;
use subjects::{Id, Subject, subjects};

/// The time limit for each step on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A secret that must appear nowhere but at the provider.
const BODY: &str = "\"the-body-is-nobodys-business\"";
const OWN_HEADER: (&str, &str) = ("x-conformance", "the-own-header-is-a-secret");

/// A driver with its fake.
struct Pair {
    subject: Subject,
    fake: Fake,
    driver: Box<dyn Driver>,
}

fn tools() -> DriverClients {
    let http = Arc::new(Http::new(Guard::open()).unwrap());
    DriverClients {
        http: http.clone(),
        guarded: http,
    }
}

impl Subject {
    async fn start(self, options: FakeOptions) -> Pair {
        let secrets = BTreeMap::from([(self.account.to_owned(), self.secret.to_owned())]);
        let fake = Fake::start(self.speaks, FakeOptions { secrets, ..options })
            .await
            .unwrap();
        let driver = self.driver(&fake, false);
        Pair {
            fake,
            driver,
            subject: self,
        }
    }

    /// Creates a driver with valid or invalid credentials.
    fn driver(&self, fake: &Fake, is_wrong: bool) -> Box<dyn Driver> {
        let mut account = (self.settings)(fake, is_wrong);
        account.name = "main".to_owned();
        account.headers = vec![(OWN_HEADER.0.to_owned(), AccountSecret::new(OWN_HEADER.1))];
        let built: Result<Box<dyn Driver>, InvalidAccount> = (self.build)(&account, &tools());
        built.unwrap_or_else(|refused| panic!("{}: {refused}", self.name))
    }

    fn message(&self, fake: &Fake) -> Message {
        Message {
            id: "job_1".to_owned(),
            channel: self.channel,
            to: Recipient::parse(self.channel, &(self.to)(fake)).unwrap(),
            from: None,
            subject: (self.channel == Channel::Email).then(|| "A subject".to_owned()),
            body: BODY.to_owned(),
            html: None,
            extra: Map::new(),
            expires_at_s: None,
        }
    }
}

fn context(timeout: Duration) -> SendContext {
    let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    SendContext {
        now_s: i64::try_from(now_s).unwrap(),
        timeout,
        stop: CancellationToken::new(),
    }
}

impl Pair {
    fn requests(&self) -> u64 {
        self.fake.totals_of_all().requests
    }

    /// Sends once; checks that the driver sends at most one request and that its answer leaks no
    /// secret.
    async fn send_with(&self, driver: &dyn Driver, context: &SendContext) -> ProviderResponse {
        let (before, message) = (self.requests(), self.subject.message(&self.fake));
        assert_eq!(driver.check(&message), [], "{}", self.subject.name);
        let sending = driver.send(&message, context);
        let answer = tokio::time::timeout(LONG, sending).await;
        let answer =
            answer.unwrap_or_else(|_| panic!("{}: no end within {LONG:?}", self.subject.name));
        let asked_again =
            u64::from(self.subject.asks_again_when_unauthorized && answer.status == "401");
        assert_eq!(
            self.requests() - before - asked_again,
            1,
            "{}: one request and no more: {answer:?}",
            self.subject.name
        );
        self.is_discreet(&answer, &message);
        answer
    }

    async fn send(&self) -> ProviderResponse {
        self.send_with(&*self.driver, &context(Duration::from_secs(30)))
            .await
    }

    /// Sends with a new driver, which has no open connection.
    async fn send_fresh(&self) -> ProviderResponse {
        let driver = self.subject.driver(&self.fake, false);
        self.send_with(&*driver, &context(Duration::from_secs(30)))
            .await
    }

    fn is_discreet(&self, answer: &ProviderResponse, message: &Message) {
        let texts = [
            format!("{answer:?}"),
            answer.sent.reason().to_owned(),
            format!("{message:?}"),
        ];
        let secret = self.subject.secret;
        let address = message.to.address().trim_start_matches('+');
        for text in texts {
            for hidden in [address, secret, BODY.trim_matches('"'), OWN_HEADER.1]
                .into_iter()
                .filter(|hidden| hidden.len() > 3)
            {
                assert!(
                    !text.contains(hidden),
                    "{}: {hidden:?} is seen: {text}",
                    self.subject.name
                );
            }
            assert!(
                !text.contains('\n') && text.len() < 1_000,
                "{}: {text}",
                self.subject.name
            );
        }
    }

    /// Makes every request of the account fail in this way.
    fn fail(&self, fault: Fault) {
        self.fake.fail(self.subject.account, fault);
    }

    fn is(&self, answer: &ProviderResponse, expected: &str) {
        assert_eq!(
            answer.sent.as_str(),
            expected,
            "{}: {answer:?}",
            self.subject.name
        );
    }
}

async fn pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for subject in subjects() {
        pairs.push(
            subject
                .start(FakeOptions {
                    tells_delay: true,
                    ..FakeOptions::default()
                })
                .await,
        );
    }
    pairs
}

#[tokio::test]
async fn a_success_is_reported_with_the_providers_id_and_the_accounts_own_headers_arrive() {
    for pair in pairs().await {
        for nth in 0..2 {
            let answer = pair.send().await;
            pair.is(&answer, pair.subject.success);
            let received = pair.fake.received(pair.subject.account);
            let id = match &answer.sent {
                Sent::Delivered { provider_id } | Sent::Accepted { provider_id } => {
                    provider_id.clone()
                }
                _ => None,
            };
            let theirs = received[nth].id.trim_matches(['<', '>']);
            match (id, pair.subject.gives_id) {
                (None, Id::None) => {}
                (Some(id), Id::Theirs) => {
                    assert_eq!(id.trim_matches(['<', '>']), theirs, "{}", pair.subject.name)
                }
                (Some(id), Id::Own) => assert!(!id.is_empty(), "{}", pair.subject.name),
                (id, _) => panic!("{}: {id:?}", pair.subject.name),
            }
            assert!(!answer.status.is_empty(), "{}", pair.subject.name);
        }
        let Some((_, headers, _)) = pair.fake.last() else {
            assert_eq!(pair.subject.name, "smtp", "it has no request of HTTP");
            continue;
        };
        let own = headers
            .get(OWN_HEADER.0)
            .and_then(|value| value.to_str().ok());
        assert_eq!(own, Some(OWN_HEADER.1), "{}", pair.subject.name);
    }
}

#[tokio::test]
async fn a_throttle_says_whom_it_concerns_and_how_long_where_the_provider_says_so() {
    for pair in pairs().await {
        for (whom, scope) in pair.subject.scopes {
            pair.fail(Fault::Throttle {
                whom: *whom,
                delay: Some(Duration::from_secs(7)),
            });
            let answer = pair.send_fresh().await;
            let Sent::Throttled {
                scope: found,
                key,
                delay,
                ..
            } = &answer.sent
            else {
                panic!("{}: {whom:?}: {answer:?}", pair.subject.name)
            };
            assert_eq!(found, scope, "{}: {whom:?}", pair.subject.name);
            assert_eq!(
                key.is_some(),
                matches!(scope, Scope::Sender | Scope::Recipient),
                "{}: {whom:?}",
                pair.subject.name
            );
            if pair.subject.tells_delay {
                let seconds = delay.map(|delay| delay.as_secs());
                assert!(
                    seconds.is_some_and(|seconds| (5..=9).contains(&seconds)),
                    "{}: {whom:?}: {answer:?}",
                    pair.subject.name
                );
            }
            pair.fail(Fault::Throttle {
                whom: *whom,
                delay: None,
            });
            let answer = pair.send_fresh().await;
            assert!(
                matches!(&answer.sent, Sent::Throttled { scope: found, .. } if found == scope),
                "{answer:?}"
            );
        }
        pair.fake.heal(pair.subject.account);
        assert!(pair.send().await.sent.is_success(), "{}", pair.subject.name);
    }
}

#[tokio::test]
async fn past_a_quota_nothing_is_taken_for_a_success() {
    for pair in pairs().await {
        pair.fake.set_quota(
            pair.subject.account,
            Some(WindowQuota {
                limit: 2.0,
                window: Duration::from_secs(360_000_000),
            }),
        );
        let mut words = Vec::new();
        for _ in 0..4 {
            words.push(pair.send().await.sent.as_str());
        }
        let success = pair.subject.success;
        assert_eq!(
            words,
            [success, success, "throttled", "throttled"],
            "{}",
            pair.subject.name
        );
        assert_eq!(pair.fake.totals(pair.subject.account).accepted, 2);
    }
}

#[tokio::test]
async fn errors_of_the_server_are_no_fault_of_the_account() {
    for pair in pairs().await {
        let unavailable = pair.subject.unavailable;
        for (status, word) in [
            (500, pair.subject.broken.unwrap_or(unavailable)),
            (503, unavailable),
        ] {
            pair.fail(Fault::Status(status));
            let answer = pair.send().await;
            pair.is(&answer, word);
        }
    }
}

#[tokio::test]
async fn an_error_of_the_server_that_says_how_long_to_stay_away_is_heard_by_every_driver() {
    for pair in pairs().await {
        pair.fail(Fault::Unavailable(Duration::from_secs(40)));
        let answer = pair.send().await;
        let delay = match &answer.sent {
            Sent::Throttled { delay, .. } => *delay,
            _ => answer.delay,
        };
        assert_eq!(
            delay,
            Some(Duration::from_secs(40)),
            "{}: {answer:?}",
            pair.subject.name
        );
    }
}

#[tokio::test]
async fn what_is_never_answered_is_ambiguous_when_the_time_is_over() {
    let pairs = pairs().await;
    let never_answered = pairs.iter().map(|pair| async move {
        assert!(pair.send().await.sent.is_success(), "{}", pair.subject.name);
        pair.fail(Fault::Hang);
        let answer = pair
            .send_with(&*pair.driver, &context(Duration::from_secs(1)))
            .await;
        pair.is(&answer, "ambiguous");
    });
    futures_util::future::join_all(never_answered).await;
}

#[tokio::test]
async fn a_reset_after_everything_was_written_is_ambiguous_and_the_message_is_there() {
    for pair in pairs().await {
        pair.fail(Fault::ResetAfterWrite);
        let answer = pair.send().await;
        pair.is(&answer, "ambiguous");
        assert_eq!(
            pair.fake.totals(pair.subject.account).accepted,
            1,
            "{}",
            pair.subject.name
        );
        // The same again, over a connection that has worked before.
        pair.fake.heal(pair.subject.account);
        assert!(pair.send().await.sent.is_success(), "{}", pair.subject.name);
        pair.fail(Fault::ResetAfterWrite);
        let answer = pair.send().await;
        pair.is(&answer, "ambiguous");
        assert_eq!(
            pair.fake.totals(pair.subject.account).accepted,
            3,
            "{}",
            pair.subject.name
        );
    }
}

/// Keeps the port of a server that was stopped from going to another test; connections to it are
/// refused, because nobody listens. Returns `None` if another test was faster.
fn hold_port(url: &str) -> Option<TcpSocket> {
    let authority = url.split_once("//").expect("a URL").1;
    let socket = TcpSocket::new_v4().unwrap();
    // Connections of the server that was there may linger.
    socket.set_reuseaddr(true).unwrap();
    let bound = socket.bind(authority.parse().expect("an address"));
    bound.is_ok().then_some(socket)
}

#[tokio::test]
async fn a_refused_connection_is_safe_to_send_again() {
    let mut waiting: Vec<Pair> = pairs().await.into_iter().collect();
    while let Some(pair) = waiting.pop() {
        let Pair {
            subject,
            fake,
            driver,
        } = pair;
        let message = subject.message(&fake);
        let url = fake.url();
        fake.stop().await;
        let Some(_port) = hold_port(&url) else {
            let again = pairs().await.into_iter();
            waiting.extend(again.filter(|pair| pair.subject.name == subject.name));
            continue;
        };
        let answer = tokio::time::timeout(
            LONG,
            driver.send(&message, &context(Duration::from_secs(30))),
        )
        .await
        .unwrap();
        assert_eq!(
            answer.sent.as_str(),
            subject.unreachable,
            "{}: {answer:?}",
            subject.name
        );
        assert!(
            !format!("{answer:?}").contains(message.to.address().trim_start_matches('+')),
            "{}: {answer:?}",
            subject.name
        );
        assert!(
            subject.secret.is_empty() || !format!("{answer:?}").contains(subject.secret),
            "{}: {answer:?}",
            subject.name
        );
    }
}

#[tokio::test]
async fn credentials_that_are_not_valid_are_the_accounts_failure() {
    for pair in pairs().await {
        let wrong = pair.subject.driver(&pair.fake, true);
        let answer = pair
            .send_with(&*wrong, &context(Duration::from_secs(30)))
            .await;
        pair.is(&answer, pair.subject.unauthorized);
        pair.fail(Fault::BadCredentials);
        let answer = pair.send_fresh().await;
        pair.is(&answer, pair.subject.unauthorized);
        pair.fail(Fault::Suspend);
        let answer = pair.send_fresh().await;
        pair.is(&answer, pair.subject.unauthorized);
    }
}

#[tokio::test]
async fn a_recipient_that_is_gone_is_no_fault_of_the_account() {
    for pair in pairs().await {
        pair.fail(Fault::PermanentRecipient);
        let answer = pair.send().await;
        pair.is(&answer, pair.subject.gone);
        if let Sent::PermanentRecipient { suppress, .. } = answer.sent {
            assert_eq!(suppress, pair.subject.suppresses, "{}", pair.subject.name);
        }
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_no_success() {
    for pair in pairs().await {
        pair.fail(Fault::Garbage);
        let answer = pair.send().await;
        assert!(
            !answer.sent.is_success(),
            "{}: {answer:?}",
            pair.subject.name
        );
        assert_ne!(
            answer.sent.as_str(),
            "permanent_request",
            "{}: a proxy's page says nothing about the request",
            pair.subject.name
        );
        assert!(
            !format!("{answer:?}").contains("<html"),
            "{}: {answer:?}",
            pair.subject.name
        );
        if !pair.subject.any_2xx_is_success {
            pair.fail(Fault::Nonsense);
            let answer = pair.send().await;
            assert!(
                !answer.sent.is_success(),
                "{}: {answer:?}",
                pair.subject.name
            );
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_closed_without_an_answer_is_never_a_success() {
    for pair in pairs().await {
        pair.fail(Fault::CloseBeforeRead);
        let answer = pair.send().await;
        let word = answer.sent.as_str();
        assert!(
            ["ambiguous", "transient"].contains(&word),
            "{}: {answer:?}",
            pair.subject.name
        );
    }
}

#[tokio::test]
async fn a_stopped_worker_does_not_wait_for_the_provider() {
    for pair in pairs().await {
        pair.fail(Fault::Hang);
        let (context, before) = (context(Duration::from_secs(3_600)), pair.requests());
        let stop = async {
            eventually("the request", Duration::from_secs(60), || async {
                (pair.requests() > before).then_some(())
            })
            .await;
            context.stop.cancel();
        };
        let (answer, ()) = tokio::join!(pair.send_with(&*pair.driver, &context), stop);
        pair.is(&answer, "ambiguous");
    }
}
