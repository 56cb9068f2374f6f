//! A running fake.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::crypt::Keys;
use super::event_forms::{EventPost, sns_headers, stamp};
use super::ledger::Ledger;
use super::plan::Plan;
use super::poster::{Counts, EventPoster, send};
use super::server::{FakeServer, LatencyModel};
use super::wire::{FormatState, IncomingRequest, WireFormat};
use super::{
    FakeOptions, FakeProvider, Fault, Latency, Received, Rule, SecondTotals, Totals, WindowQuota,
    connection, sns,
};
use super::{apns, fcm, mailgun, sendgrid, ses, slack, smtp, telegram, twilio, webhook};

/// A provider's server on the loopback address, which stops when dropped.
pub struct Fake {
    server: Arc<FakeServer>,
    port: u16,
    keys: Arc<Keys>,
    client: reqwest::Client,
    counts: Arc<Counts>,
    serving: Vec<JoinHandle<()>>,
}

/// Returns the HTTP format of a provider; `None` for SMTP.
fn wire(speaks: FakeProvider) -> Option<Arc<dyn WireFormat>> {
    Some(match speaks {
        FakeProvider::Twilio => Arc::new(twilio::Twilio),
        FakeProvider::Sendgrid => Arc::new(sendgrid::Sendgrid),
        FakeProvider::Ses => Arc::new(ses::Ses),
        FakeProvider::Mailgun => Arc::new(mailgun::Mailgun),
        FakeProvider::Telegram => Arc::new(telegram::Telegram),
        FakeProvider::Slack => Arc::new(slack::Slack),
        FakeProvider::Webhook => Arc::new(webhook::Webhook),
        FakeProvider::Fcm => Arc::new(fcm::Fcm),
        FakeProvider::Apns => Arc::new(apns::Apns),
        FakeProvider::Smtp => return None,
    })
}

impl Fake {
    /// Starts a fake that serves in tasks of the current runtime.
    pub async fn start(speaks: FakeProvider, options: FakeOptions) -> std::io::Result<Self> {
        let listener =
            TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, options.port))).await?;
        let port = listener.local_addr()?.port();
        let format_state = Arc::new(FormatState {
            secrets: options.secrets,
            url: format!("http://127.0.0.1:{port}"),
            ..FormatState::default()
        });
        let plan = Plan {
            seed: options.seed,
            rules: options.plan,
        };
        let (stop, clock, keys) = (
            CancellationToken::new(),
            Clock::start(),
            Arc::new(Keys::new(sns::KEY)?),
        );
        let client = reqwest::Client::builder()
            .no_proxy()
            .build()
            .map_err(std::io::Error::other)?;
        let counts = Arc::new(Counts::default());
        let mut serving = Vec::new();
        let events = options.events.map(|events| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let poster = EventPoster {
                speaks,
                format_state: format_state.clone(),
                keys: keys.clone(),
                secret: events.secret.clone(),
                clock,
                client: client.clone(),
                counts: counts.clone(),
                stop: stop.clone(),
            };
            serving.push(tokio::spawn(poster.run(receiver)));
            (events, sender)
        });
        let server = Arc::new(FakeServer {
            speaks,
            format_state,
            ledger: Mutex::new(Ledger::new(plan, options.per_recipient, options.per_sender)),
            clock,
            seed: options.seed,
            tells_delay: options.tells_delay,
            tells_quota: options.tells_quota,
            pace: Mutex::new(
                options
                    .latency
                    .map(|latency| Arc::new(LatencyModel::new(latency))),
            ),
            stop,
            goodbye: Notify::new(),
            opened: 0.into(),
            open: 0.into(),
            under_way: 0.into(),
            narrow_ms: 0.into(),
            last: Mutex::new(None),
            events,
        });
        serving.push(match wire(speaks) {
            Some(wire) => tokio::spawn(connection::serve(server.clone(), wire, listener)),
            None => tokio::spawn(smtp::serve(server.clone(), listener)),
        });
        Ok(Self {
            server,
            port,
            keys,
            client,
            counts,
            serving,
        })
    }

    /// Stops the fake and waits until its port is free.
    pub async fn stop(mut self) {
        self.server.stop.cancel();
        for task in std::mem::take(&mut self.serving) {
            let _ = task.await;
        }
    }

    /// Returns the base URL, without a trailing slash.
    pub fn url(&self) -> String {
        let scheme = if self.server.speaks == FakeProvider::Smtp {
            "smtp"
        } else {
            "http"
        };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Returns the port on the loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets an account's quota from now on, without notice to the sender; `None` removes it.
    pub fn set_quota(&self, account: &str, quota: Option<WindowQuota>) {
        self.server.ledger().set_quota(account, quota);
    }

    /// Suspends an account, or ends its suspension.
    pub fn suspend(&self, account: &str, is_suspended: bool) {
        self.server.ledger().suspend(account, is_suspended);
    }

    /// Makes every request of an account fail in this way from now on.
    pub fn fail(&self, account: &str, fault: Fault) {
        self.server.ledger().set_fault(account, Some(fault));
    }

    /// Removes an account's own fault, so that its requests fail only by the plan.
    pub fn heal(&self, account: &str) {
        self.server.ledger().set_fault(account, None);
    }

    /// Replaces the rules of the plan.
    pub fn set_plan(&self, rules: Vec<Rule>) {
        self.server.ledger().set_plan(Plan {
            seed: self.server.seed,
            rules,
        });
    }

    /// Marks a recipient as gone: messages to it are refused from now on.
    pub fn bury(&self, to: &str) {
        self.server.ledger().bury(to);
    }

    /// Sets the latency of answers from now on; `None` means none.
    pub fn set_latency(&self, latency: Option<Latency>) {
        let pace = latency.map(|latency| Arc::new(LatencyModel::new(latency)));
        *self.server.pace.lock() = pace;
    }

    /// Limits a connection to one request at a time for this time after a rejected request, as APNs
    /// does.
    ///
    /// Zero removes the limit.
    pub fn set_narrow_after_rejection(&self, time: Duration) {
        self.server.narrow_ms.store(
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Sends GOAWAY on every HTTP/2 connection: running requests are answered, and no further ones
    /// are accepted.
    pub fn say_goodbye(&self) {
        self.server.goodbye.notify_waiters();
    }

    /// Invalidates all issued access tokens.
    pub fn revoke_tokens(&self) {
        self.server.format_state.tokens.lock().clear();
    }

    /// Returns the names of all accounts in the ledger, sorted.
    pub fn accounts(&self) -> Vec<String> {
        self.server.ledger().accounts()
    }

    /// Returns the first 200,000 accepted messages of an account, in order.
    pub fn received(&self, account: &str) -> Vec<Received> {
        self.server.ledger().received(account)
    }

    /// Returns the counts of an account by second of arrival, without the seconds in which nothing
    /// came.
    pub fn per_second(&self, account: &str) -> Vec<SecondTotals> {
        self.server.ledger().seconds(account)
    }

    /// Returns the totals of an account.
    pub fn totals(&self, account: &str) -> Totals {
        self.server.ledger().totals(account)
    }

    /// Returns the sum of the totals of all accounts.
    pub fn totals_of_all(&self) -> Totals {
        let ledger = self.server.ledger();
        ledger
            .accounts()
            .iter()
            .map(|account| ledger.totals(account))
            .fold(Totals::default(), |sum, one| Totals {
                requests: sum.requests + one.requests,
                accepted: sum.accepted + one.accepted,
                refused: sum.refused + one.refused,
                failed: sum.failed + one.failed,
                duplicates: sum.duplicates + one.duplicates,
            })
    }

    /// Returns path, headers and body of the last HTTP request.
    pub fn last(&self) -> Option<(String, HeaderMap, String)> {
        let last = self.server.last.lock();
        let text = |came: &IncomingRequest| String::from_utf8_lossy(&came.body).into_owned();
        last.as_ref()
            .map(|came| (came.uri.to_string(), came.headers.clone(), text(came)))
    }

    /// Returns the number of open connections and of connections ever opened.
    pub fn connections(&self) -> (u64, u64) {
        (
            self.server.open.load(Ordering::Relaxed),
            self.server.opened.load(Ordering::Relaxed),
        )
    }

    /// Returns the number of requests not answered yet: over HTTP/2, of open streams.
    pub fn under_way(&self) -> u64 {
        self.server.under_way.load(Ordering::Relaxed)
    }

    /// Returns the public key for SendGrid's events: base64 of its DER encoding.
    pub fn event_key(&self) -> String {
        self.keys.ecdsa_public()
    }

    /// Returns the number of events that receivers accepted, and of those in requests that they did
    /// not.
    pub fn events(&self) -> (u64, u64) {
        (
            self.counts.posted.load(Ordering::Relaxed),
            self.counts.refused.load(Ordering::Relaxed),
        )
    }

    /// Posts SNS's confirmation request for the events of an account to a URL and returns the
    /// status of the answer; `None` without an answer.
    pub async fn subscribe(&self, account: &str, callback: &str) -> Option<u16> {
        let now_ms = self.server.clock.now_ms();
        let (topic, id) = (sns::topic(account), format!("subscription-{now_ms}"));
        let body = sns::confirmation(
            &self.keys,
            &self.server.format_state.url,
            &topic,
            &id,
            &stamp(now_ms),
        )
        .to_string();
        let post = EventPost {
            url: callback.to_owned(),
            headers: sns_headers("SubscriptionConfirmation"),
            body,
        };
        send(&self.client, post).await
    }

    /// Returns true if the subscription to an account's events was confirmed.
    pub fn is_subscribed(&self, account: &str) -> bool {
        let confirmed = self.server.format_state.confirmed.lock();
        confirmed.contains(&sns::topic(account))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.stop.cancel();
    }
}
