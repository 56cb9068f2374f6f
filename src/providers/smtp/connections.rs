//! Connections to a server: opened when one is needed, kept for the next mail, and one mail said over one of them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use lettre::transport::smtp::{Error, response};
use tokio::time::Instant;

use super::mail::Ready;
use super::words::Stage;

/// Longest that connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection is kept without a mail. Servers close theirs after a minute or more.
const KEPT: Duration = Duration::from_secs(30);

/// How long a server may take to forget a mail that it has refused.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// How a connection is encrypted.
pub(super) enum Tls {
    /// Not at all.
    None,
    /// From the first byte.
    Whole(TlsParameters),
    /// After `STARTTLS`, without which nothing is sent.
    Upgraded(TlsParameters),
}

/// Where the server is and who we are.
pub(super) struct Server {
    pub host: String,
    pub port: u16,
    pub tls: Tls,
    pub hello: ClientId,
    pub login: Option<Credentials>,
}

/// Why a mail was not taken.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server said so.
    Said { stage: Stage, digits: u16, text: String },
    /// The connection broke, or what came was no answer.
    Lost(String),
    /// The server cannot do what the account's settings ask for.
    Unable(String),
}

/// Connections to one server.
pub(super) struct Connections {
    server: Server,
    idle: Mutex<Vec<(AsyncSmtpConnection, Instant)>>,
    most: AtomicUsize,
}

impl Connections {
    pub(super) fn new(server: Server) -> Self {
        Self { server, idle: Mutex::default(), most: AtomicUsize::new(8) }
    }

    /// Sets how many idle connections are kept at most.
    pub(super) fn keep(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let surplus = idle.len().saturating_sub(most);
        idle.drain(..surplus);
    }

    /// Says one mail and tells the digits with which it was taken. `is_written` is set before the first byte of its contents:
    /// from then on it may have been sent, whatever happens.
    pub(super) async fn say(&self, mail: &Ready, is_written: &AtomicBool) -> Result<u16, Trouble> {
        if let Some(mut kept) = self.kept() {
            match self.over(&mut kept, mail, is_written).await {
                // The server had closed it in the meantime, or closes it now: nothing was said yet.
                Err(Trouble::Lost(_) | Trouble::Said { stage: Stage::Mail, digits: 421, .. })
                    if !is_written.load(Ordering::Relaxed) => {}
                done => return self.after(kept, done).await,
            }
        }
        let mut fresh = self.open().await?;
        let done = self.over(&mut fresh, mail, is_written).await;
        self.after(fresh, done).await
    }

    fn kept(&self) -> Option<AsyncSmtpConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, since)| since.elapsed() < KEPT);
        idle.pop().map(|(connection, _)| connection)
    }

    async fn open(&self) -> Result<AsyncSmtpConnection, Trouble> {
        let Server { host, port, tls, hello, login } = &self.server;
        let whole = match tls {
            Tls::Whole(parameters) => Some(parameters.clone()),
            Tls::None | Tls::Upgraded(_) => None,
        };
        let connecting = AsyncSmtpConnection::connect_tokio1((host.as_str(), *port), Some(CONNECT_TIMEOUT), hello, whole, None);
        let mut connection = connecting.await.map_err(|error| trouble(Stage::Connect, &error))?;
        if let Tls::Upgraded(parameters) = tls {
            let starting = connection.starttls(parameters.clone(), hello);
            starting.await.map_err(|error| trouble(Stage::Connect, &error))?;
        }
        if let Some(login) = login {
            let answered = connection.auth(DEFAULT_MECHANISMS, login).await;
            answered.map_err(|error| trouble(Stage::Login, &error))?;
        }
        Ok(connection)
    }

    async fn over(&self, to: &mut AsyncSmtpConnection, mail: &Ready, is_written: &AtomicBool) -> Result<u16, Trouble> {
        let from = Mail::new(Some(mail.from.clone()), parameters(to, mail)?);
        to.command(from).await.map_err(|error| trouble(Stage::Mail, &error))?;
        let recipient = Rcpt::new(mail.to.clone(), Vec::new());
        to.command(recipient).await.map_err(|error| trouble(Stage::Rcpt, &error))?;
        to.command(Data).await.map_err(|error| trouble(Stage::Data, &error))?;
        is_written.store(true, Ordering::Relaxed);
        let answer: response::Response = to.message(&mail.bytes).await.map_err(|error| trouble(Stage::Dot, &error))?;
        Ok(answer.code().into())
    }

    /// Keeps a connection that can be used again.
    async fn after(&self, mut used: AsyncSmtpConnection, done: Result<u16, Trouble>) -> Result<u16, Trouble> {
        let is_good = match &done {
            Ok(_) => true,
            Err(Trouble::Said { digits: 421, .. } | Trouble::Lost(_)) => false,
            Err(_) => tokio::time::timeout(RESET_TIMEOUT, used.command(Rset)).await.is_ok_and(|answer| answer.is_ok()),
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if is_good && idle.len() < self.most.load(Ordering::Relaxed) {
            idle.push((used, Instant::now()));
        }
        done
    }
}

/// What the server has to be told of a mail that is not plain ASCII.
fn parameters(connection: &AsyncSmtpConnection, mail: &Ready) -> Result<Vec<MailParameter>, Trouble> {
    let can = |what: Extension| connection.server_info().supports_feature(what);
    let mut parameters = Vec::new();
    let addresses: [&str; 2] = [mail.from.as_ref(), mail.to.as_ref()];
    if !addresses.iter().all(|address| address.is_ascii()) {
        if !can(Extension::SmtpUtfEight) {
            let text = "5.6.7 the server knows no SMTPUTF8, and an address is not plain ASCII".to_owned();
            return Err(Trouble::Said { stage: Stage::Mail, digits: 553, text });
        }
        parameters.push(MailParameter::SmtpUtfEight);
    }
    if !mail.bytes.is_ascii() && can(Extension::EightBitMime) {
        parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
    }
    Ok(parameters)
}

fn trouble(stage: Stage, error: &Error) -> Trouble {
    let source = std::error::Error::source(error).map(ToString::to_string);
    match error.status() {
        Some(code) => Trouble::Said { stage, digits: code.into(), text: source.unwrap_or_default() },
        None if error.is_client() => Trouble::Unable(source.unwrap_or_else(|| error.to_string())),
        None => Trouble::Lost(error.to_string()),
    }
}
