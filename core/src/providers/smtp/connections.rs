//! Connections to one server: opened on demand, pooled for later mails, and used for one mail at a
//! time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use lettre::transport::smtp::{Error, response};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::mail::Ready;
use super::words::Stage;

/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that a connection is kept idle. Servers close theirs after a minute or more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a server may take to answer `RSET` after it rejected a mail.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to `DATA` that asks for the contents (RFC 5321, section 4.3.2).
const CONTENTS_EXPECTED: u16 = 354;

/// The encryption of a connection.
pub(super) enum Tls {
    /// No encryption.
    None,
    /// TLS from the first byte.
    Whole(TlsParameters),
    /// TLS after `STARTTLS`; nothing is sent without it.
    Upgraded(TlsParameters),
}

/// The server's address, our name and our credentials.
pub(super) struct SmtpEndpoint {
    pub host: String,
    pub port: u16,
    pub tls: Tls,
    pub hello: ClientId,
    pub login: Option<Credentials>,
}

/// The reason for a failure.
#[derive(Debug)]
pub(super) enum SmtpError {
    /// The server rejected the command.
    Said {
        stage: Stage,
        digits: u16,
        text: String,
    },
    /// The connection broke, or the answer was not SMTP.
    Lost(String),
    /// The server cannot do what the account's settings require.
    Unable(String),
}

/// The pool of connections to one server.
pub(super) struct SmtpConnections {
    server: SmtpEndpoint,
    idle: Mutex<Vec<(AsyncSmtpConnection, Instant)>>,
    most: AtomicUsize,
}

impl SmtpConnections {
    pub(super) fn new(server: SmtpEndpoint) -> Self {
        Self {
            server,
            idle: Mutex::default(),
            most: AtomicUsize::new(8),
        }
    }

    /// Sets the maximum number of idle connections.
    pub(super) fn set_max_idle(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
        let mut idle = self.idle.lock();
        let surplus = idle.len().saturating_sub(most);
        idle.drain(..surplus);
    }

    /// Transmits one mail and returns the status digits of its acceptance. Sets `is_written` before
    /// the first byte of the contents: from then on the mail may have been sent.
    pub(super) async fn send_mail(
        &self,
        mail: &Ready,
        is_written: &AtomicBool,
    ) -> Result<u16, SmtpError> {
        if let Some(mut kept) = self.kept() {
            match self.over(&mut kept, mail, is_written).await {
                // The server closed the idle connection, or closes it now: nothing was transmitted
                // yet.
                Err(
                    SmtpError::Lost(_)
                    | SmtpError::Said {
                        stage: Stage::Mail,
                        digits: 421,
                        ..
                    },
                ) if !is_written.load(Ordering::Relaxed) => {}
                done => return self.after(kept, done).await,
            }
        }
        let mut fresh = self.open().await?;
        let done = self.over(&mut fresh, mail, is_written).await;
        self.after(fresh, done).await
    }

    fn kept(&self) -> Option<AsyncSmtpConnection> {
        let mut idle = self.idle.lock();
        idle.retain(|(_, since)| since.elapsed() < IDLE_TIMEOUT);
        idle.pop().map(|(connection, _)| connection)
    }

    async fn open(&self) -> Result<AsyncSmtpConnection, SmtpError> {
        let SmtpEndpoint {
            host,
            port,
            tls,
            hello,
            login,
        } = &self.server;
        let whole = match tls {
            Tls::Whole(parameters) => Some(parameters.clone()),
            Tls::None | Tls::Upgraded(_) => None,
        };
        let connecting = AsyncSmtpConnection::connect_tokio1(
            (host.as_str(), *port),
            Some(CONNECT_TIMEOUT),
            hello,
            whole,
            None,
        );
        let mut connection = connecting
            .await
            .map_err(|error| trouble(Stage::Connect, &error))?;
        if let Tls::Upgraded(parameters) = tls {
            let starting = connection.starttls(parameters.clone(), hello);
            starting
                .await
                .map_err(|error| trouble(Stage::Connect, &error))?;
        }
        if let Some(login) = login {
            let answered = connection.auth(DEFAULT_MECHANISMS, login).await;
            answered.map_err(|error| trouble(Stage::Login, &error))?;
        }
        Ok(connection)
    }

    async fn over(
        &self,
        to: &mut AsyncSmtpConnection,
        mail: &Ready,
        is_written: &AtomicBool,
    ) -> Result<u16, SmtpError> {
        let from = Mail::new(Some(mail.from.clone()), parameters(to, mail)?);
        to.command(from)
            .await
            .map_err(|error| trouble(Stage::Mail, &error))?;
        let recipient = Rcpt::new(mail.to.clone(), Vec::new());
        to.command(recipient)
            .await
            .map_err(|error| trouble(Stage::Rcpt, &error))?;
        let invited = to
            .command(Data)
            .await
            .map_err(|error| trouble(Stage::Data, &error))?;
        // Any other answer belongs to an earlier command, or the server takes the next line for a
        // command: the text of the mail would give it some.
        if !invited.has_code(CONTENTS_EXPECTED) {
            let digits = u16::from(invited.code());
            return Err(SmtpError::Lost(format!(
                "the server answered {digits} to DATA"
            )));
        }
        is_written.store(true, Ordering::Relaxed);
        let answer: response::Response = to
            .message(&mail.bytes)
            .await
            .map_err(|error| trouble(Stage::Dot, &error))?;
        match u16::from(answer.code()) {
            digits @ 200..=299 => Ok(digits),
            digits => Err(SmtpError::Lost(format!(
                "the server answered {digits} to the contents"
            ))),
        }
    }

    /// Returns a usable connection to the pool.
    async fn after(
        &self,
        mut used: AsyncSmtpConnection,
        done: Result<u16, SmtpError>,
    ) -> Result<u16, SmtpError> {
        let is_good = match &done {
            Ok(_) => true,
            Err(SmtpError::Said { digits: 421, .. } | SmtpError::Lost(_)) => false,
            Err(_) => tokio::time::timeout(RESET_TIMEOUT, used.command(Rset))
                .await
                .is_ok_and(|answer| answer.is_ok()),
        };
        let mut idle = self.idle.lock();
        if is_good && idle.len() < self.most.load(Ordering::Relaxed) {
            idle.push((used, Instant::now()));
        }
        done
    }
}

/// Returns the parameters of `MAIL FROM` for a mail that is not plain ASCII.
fn parameters(
    connection: &AsyncSmtpConnection,
    mail: &Ready,
) -> Result<Vec<MailParameter>, SmtpError> {
    let can = |what: Extension| connection.server_info().supports_feature(what);
    let mut parameters = Vec::new();
    let addresses: [&str; 2] = [mail.from.as_ref(), mail.to.as_ref()];
    if !addresses.iter().all(|address| address.is_ascii()) {
        if !can(Extension::SmtpUtfEight) {
            let text = "5.6.7 the server does not support SMTPUTF8, and an address is not \
                 ASCII"
                .to_owned();
            return Err(SmtpError::Said {
                stage: Stage::Mail,
                digits: 553,
                text,
            });
        }
        parameters.push(MailParameter::SmtpUtfEight);
    }
    if !mail.bytes.is_ascii() && can(Extension::EightBitMime) {
        parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
    }
    Ok(parameters)
}

fn trouble(stage: Stage, error: &Error) -> SmtpError {
    let source = std::error::Error::source(error).map(ToString::to_string);
    match error.status() {
        Some(code) => SmtpError::Said {
            stage,
            digits: code.into(),
            text: source.unwrap_or_default(),
        },
        None if error.is_client() => SmtpError::Unable(source.unwrap_or_else(|| error.to_string())),
        None => SmtpError::Lost(error.to_string()),
    }
}
