//! A running fake.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::crypt::Keys;
use super::event_forms::{Post, sns_headers, stamp};
use super::ledger::Ledger;
use super::plan::Plan;
use super::poster::{Counts, Poster, send};
use super::server::{Pace, Server};
use super::wire::{Came, House, Wire};
use super::{Fault, Latency, Options, Quota, Received, Rule, Second, Speaks, Totals, connection, sns};
use super::{apns, fcm, mailgun, sendgrid, ses, slack, smtp, telegram, twilio, webhook};

/// A provider's server on the loopback address. It stops when this is dropped.
pub struct Fake {
    server: Arc<Server>,
    port: u16,
    keys: Arc<Keys>,
    client: reqwest::Client,
    counts: Arc<Counts>,
    serving: Vec<JoinHandle<()>>,
}

/// The format of a provider; `None` where it is not HTTP.
fn wire(speaks: Speaks) -> Option<Arc<dyn Wire>> {
    Some(match speaks {
        Speaks::Twilio => Arc::new(twilio::Twilio),
        Speaks::Sendgrid => Arc::new(sendgrid::Sendgrid),
        Speaks::Ses => Arc::new(ses::Ses),
        Speaks::Mailgun => Arc::new(mailgun::Mailgun),
        Speaks::Telegram => Arc::new(telegram::Telegram),
        Speaks::Slack => Arc::new(slack::Slack),
        Speaks::Webhook => Arc::new(webhook::Webhook),
        Speaks::Fcm => Arc::new(fcm::Fcm),
        Speaks::Apns => Arc::new(apns::Apns),
        Speaks::Smtp => return None,
    })
}

impl Fake {
    /// Listens and serves, in tasks of the current runtime.
    pub async fn start(speaks: Speaks, options: Options) -> std::io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, options.port))).await?;
        let port = listener.local_addr()?.port();
        let house = Arc::new(House { secrets: options.secrets, url: format!("http://127.0.0.1:{port}"), ..House::default() });
        let plan = Plan { seed: options.seed, rules: options.plan };
        let (stop, clock, keys) = (CancellationToken::new(), Clock::start(), Arc::new(Keys::new(sns::KEY)?));
        let client = reqwest::Client::builder().no_proxy().build().map_err(std::io::Error::other)?;
        let counts = Arc::new(Counts::default());
        let mut serving = Vec::new();
        let events = options.events.map(|events| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let poster = Poster {
                speaks,
                house: house.clone(),
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
        let server = Arc::new(Server {
            speaks,
            house,
            ledger: Mutex::new(Ledger::new(plan, options.per_recipient, options.per_sender)),
            clock,
            seed: options.seed,
            tells_delay: options.tells_delay,
            tells_quota: options.tells_quota,
            pace: Mutex::new(options.latency.map(|latency| Arc::new(Pace::new(latency)))),
            stop,
            goodbye: Notify::new(),
            is_closed: false.into(),
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
        Ok(Self { server, port, keys, client, counts, serving })
    }

    /// Stops, and comes back when the port is free.
    pub async fn stop(mut self) {
        self.server.stop.cancel();
        for task in std::mem::take(&mut self.serving) {
            let _ = task.await;
        }
    }

    /// Where it listens, without a slash at the end.
    pub fn url(&self) -> String {
        let scheme = if self.server.speaks == Speaks::Smtp { "smtp" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Its port on the loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets an account's quota from now on, and tells nobody. `None` lifts it.
    pub fn set_quota(&self, account: &str, quota: Option<Quota>) {
        self.server.ledger().set_quota(account, quota);
    }

    /// Suspends an account, or ends that.
    pub fn suspend(&self, account: &str, is_suspended: bool) {
        self.server.ledger().suspend(account, is_suspended);
    }

    /// Every request of an account goes wrong in this way from now on.
    pub fn fail(&self, account: &str, fault: Fault) {
        self.server.ledger().set_fault(account, Some(fault));
    }

    /// An account's requests go wrong by the plan alone from now on.
    pub fn heal(&self, account: &str) {
        self.server.ledger().set_fault(account, None);
    }

    /// Replaces the plan.
    pub fn set_plan(&self, rules: Vec<Rule>) {
        self.server.ledger().set_plan(Plan { seed: self.server.seed, rules });
    }

    /// A recipient is gone from now on, or wants nothing.
    pub fn bury(&self, to: &str) {
        self.server.ledger().bury(to);
    }

    /// Sets how long answers take from now on.
    pub fn set_latency(&self, latency: Option<Latency>) {
        let pace = latency.map(|latency| Arc::new(Pace::new(latency)));
        *self.server.pace.lock().unwrap_or_else(PoisonError::into_inner) = pace;
    }

    /// After a rejected request, its connection serves one at a time for so long, as APNs does. Zero ends that.
    pub fn set_narrow_after_rejection(&self, time: Duration) {
        self.server.narrow_ms.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Every HTTP/2 connection says goodbye (GOAWAY): what is under way is answered, and nothing more is taken.
    pub fn say_goodbye(&self) {
        self.server.goodbye.notify_waiters();
    }

    /// New connections are closed as soon as they come, or taken again.
    pub fn close_door(&self, is_closed: bool) {
        self.server.is_closed.store(is_closed, Ordering::Relaxed);
    }

    /// Access tokens that were given out count no more.
    pub fn revoke_tokens(&self) {
        self.server.house.tokens.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Accounts that have sent anything, by name.
    pub fn accounts(&self) -> Vec<String> {
        self.server.ledger().accounts()
    }

    /// The accepted messages of an account in their order; the first 200,000.
    pub fn received(&self, account: &str) -> Vec<Received> {
        self.server.ledger().received(account)
    }

    /// What an account brought in each second, by the time of arrival; seconds without anything are left out.
    pub fn per_second(&self, account: &str) -> Vec<Second> {
        self.server.ledger().seconds(account)
    }

    /// What an account brought in all.
    pub fn totals(&self, account: &str) -> Totals {
        self.server.ledger().totals(account)
    }

    /// What all accounts brought in all.
    pub fn totals_of_all(&self) -> Totals {
        let ledger = self.server.ledger();
        ledger.accounts().iter().map(|account| ledger.totals(account)).fold(Totals::default(), |sum, one| Totals {
            requests: sum.requests + one.requests,
            accepted: sum.accepted + one.accepted,
            refused: sum.refused + one.refused,
            failed: sum.failed + one.failed,
            duplicates: sum.duplicates + one.duplicates,
        })
    }

    /// The last request that came over HTTP: its path, its headers, its body.
    pub fn last(&self) -> Option<(String, HeaderMap, String)> {
        let last = self.server.last.lock().unwrap_or_else(PoisonError::into_inner);
        let text = |came: &Came| String::from_utf8_lossy(&came.body).into_owned();
        last.as_ref().map(|came| (came.uri.to_string(), came.headers.clone(), text(came)))
    }

    /// Connections that are open, and that were ever opened.
    pub fn connections(&self) -> (u64, u64) {
        (self.server.open.load(Ordering::Relaxed), self.server.opened.load(Ordering::Relaxed))
    }

    /// Requests that came and are not answered yet: over HTTP/2, streams that are open.
    pub fn under_way(&self) -> u64 {
        self.server.under_way.load(Ordering::Relaxed)
    }

    /// The public key that SendGrid's events are signed with, base64 of its DER form.
    pub fn event_key(&self) -> String {
        self.keys.ecdsa_public()
    }

    /// Events that were taken, and requests to take them that were not.
    pub fn events(&self) -> (u64, u64) {
        (self.counts.posted.load(Ordering::Relaxed), self.counts.refused.load(Ordering::Relaxed))
    }

    /// Asks an address whether it wants the events of an account, as SNS asks. The answer's status; `None` where there is none.
    pub async fn subscribe(&self, account: &str, callback: &str) -> Option<u16> {
        let now_ms = self.server.clock.now_ms();
        let (topic, id) = (sns::topic(account), format!("subscription-{now_ms}"));
        let body = sns::confirmation(&self.keys, &self.server.house.url, &topic, &id, &stamp(now_ms)).to_string();
        let post = Post { url: callback.to_owned(), headers: sns_headers("SubscriptionConfirmation"), body };
        send(&self.client, post).await
    }

    /// Whether the subscription of an account's events was confirmed.
    pub fn is_subscribed(&self, account: &str) -> bool {
        let confirmed = self.server.house.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.contains(&sns::topic(account))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.stop.cancel();
    }
}
