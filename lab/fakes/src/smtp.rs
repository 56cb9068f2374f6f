//! An SMTP server: greeting, AUTH, MAIL, RCPT, DATA, enhanced codes.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::crypt::unbase64;
use super::ledger::RequestDecision;
use super::open_connection::OpenConnection;
use super::server::{FakeServer, mark};
use super::wire::{FakeRequest, whole_seconds};
use super::{Fault, ThrottleScope};

/// The maximum size of a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// Accepts connections until the fake is stopped.
pub(super) async fn serve(server: Arc<FakeServer>, listener: TcpListener) {
    loop {
        let taken = tokio::select! {
            () = server.stop.cancelled() => return,
            taken = listener.accept() => taken,
        };
        let Ok((stream, _)) = taken else { continue };
        let _ = stream.set_nodelay(true);
        let server = server.clone();
        tokio::spawn(async move {
            let _open = OpenConnection::new(&server);
            let stop = server.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                _ = SmtpSession::new(&server, stream).run() => {}
            }
        });
    }
}

/// The state of one connection.
struct SmtpSession<'a> {
    server: &'a FakeServer,
    stream: BufReader<TcpStream>,
    account: String,
    from: String,
    to: Vec<String>,
}

/// The step after an answered line.
enum AfterLine {
    Line,
    Close,
}

impl<'a> SmtpSession<'a> {
    fn new(server: &'a FakeServer, stream: TcpStream) -> Self {
        Self {
            server,
            stream: BufReader::new(stream),
            account: String::new(),
            from: String::new(),
            to: Vec::new(),
        }
    }

    async fn write_line(&mut self, text: &str) -> std::io::Result<AfterLine> {
        self.stream
            .get_mut()
            .write_all(format!("{text}\r\n").as_bytes())
            .await?;
        Ok(if text.starts_with("421") {
            AfterLine::Close
        } else {
            AfterLine::Line
        })
    }

    async fn line(&mut self) -> std::io::Result<String> {
        let mut line = Vec::new();
        let read = self.stream.read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    async fn run(mut self) -> std::io::Result<()> {
        self.write_line("220 fake.invalid ESMTP").await?;
        loop {
            let line = self.line().await?;
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let next = match verb.to_ascii_uppercase().as_str() {
                "EHLO" => {
                    self.write_line("250-fake.invalid\r\n250-AUTH PLAIN LOGIN\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-ENHANCEDSTATUSCODES\r\n250 SIZE 1048576").await
                }
                "HELO" => self.write_line("250 fake.invalid").await,
                "AUTH" => self.auth(rest).await,
                "MAIL" => self.mail(rest).await,
                "RCPT" => self.rcpt(rest).await,
                "DATA" => self.data().await,
                "RSET" => {
                    self.reset();
                    self.write_line("250 2.0.0 OK").await
                }
                "NOOP" => self.write_line("250 2.0.0 OK").await,
                "QUIT" => {
                    self.write_line("221 2.0.0 Bye").await?;
                    return Ok(());
                }
                _ => self.write_line("502 5.5.1 Command not implemented").await,
            }?;
            if matches!(next, AfterLine::Close) {
                return Ok(());
            }
        }
    }

    fn reset(&mut self) {
        self.from.clear();
        self.to.clear();
    }

    async fn auth(&mut self, rest: &str) -> std::io::Result<AfterLine> {
        let (mechanism, first) = rest.split_once(' ').unwrap_or((rest, ""));
        let decoded = |text: &str| {
            unbase64(text)
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .unwrap_or_default()
        };
        let (user, password) = match mechanism.to_ascii_uppercase().as_str() {
            "PLAIN" => {
                let mut answer = first.to_owned();
                if answer.is_empty() {
                    self.write_line("334 ").await?;
                    answer = self.line().await?;
                }
                let text = decoded(&answer);
                let mut parts = text.split('\0').skip(1);
                (
                    parts.next().unwrap_or_default().to_owned(),
                    parts.next().unwrap_or_default().to_owned(),
                )
            }
            "LOGIN" => {
                let mut user = first.to_owned();
                if user.is_empty() {
                    self.write_line("334 VXNlcm5hbWU6").await?;
                    user = self.line().await?;
                }
                self.write_line("334 UGFzc3dvcmQ6").await?;
                let password = self.line().await?;
                (decoded(&user), decoded(&password))
            }
            _ => {
                return self
                    .write_line("504 5.5.4 Unrecognized authentication type")
                    .await;
            }
        };
        let fault = self.server.ledger().account_fault(&user);
        if user.is_empty()
            || !self.server.format_state.lets_in(&user, &password)
            || fault == Some(Fault::BadCredentials)
        {
            self.server.ledger().refused(&user);
            return self
                .write_line("535 5.7.8 Authentication credentials invalid")
                .await;
        }
        if fault == Some(Fault::Suspend) {
            self.server.ledger().refused(&user);
            return self.write_line("535 5.7.13 User account disabled").await;
        }
        self.account = user;
        self.write_line("235 2.7.0 Authentication successful").await
    }

    async fn mail(&mut self, rest: &str) -> std::io::Result<AfterLine> {
        if self.account.is_empty() && !self.server.format_state.secrets.is_empty() {
            return self.write_line("530 5.7.0 Authentication required").await;
        }
        self.reset();
        self.from = address(rest);
        self.write_line("250 2.1.0 OK").await
    }

    async fn rcpt(&mut self, rest: &str) -> std::io::Result<AfterLine> {
        let to = address(rest);
        if self.from.is_empty() {
            return self.write_line("503 5.5.1 MAIL first").await;
        }
        if !to.contains('@') {
            return self
                .write_line("501 5.1.3 Bad recipient address syntax")
                .await;
        }
        self.to.push(to);
        self.write_line("250 2.1.5 OK").await
    }

    /// Reads the whole message and replies after the dot, even for a recipient that is gone.
    async fn data(&mut self) -> std::io::Result<AfterLine> {
        let Some(to) = self.to.first().cloned() else {
            return self.write_line("503 5.5.1 RCPT first").await;
        };
        self.write_line("354 End data with <CR><LF>.<CR><LF>")
            .await?;
        let mut body = Vec::new();
        loop {
            let begin = body.len();
            if self.stream.read_until(b'\n', &mut body).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if body[begin..] == *b".\r\n" {
                body.truncate(begin);
                break;
            }
            if body.len() > MAX_MESSAGE_BYTES {
                self.write_line("552 5.3.4 Message size exceeds fixed limit")
                    .await?;
                return Ok(AfterLine::Close);
            }
        }
        let (account, sender) = (self.account.clone(), std::mem::take(&mut self.from));
        self.to.clear();
        let requested = FakeRequest {
            account,
            to,
            sender,
            ..FakeRequest::default()
        };
        let (verdict, now_ms) = self
            .server
            .judge(&requested, mark(&[requested.to.as_bytes(), text_of(&body)]));
        self.end(verdict, &requested, now_ms).await
    }

    async fn end(
        &mut self,
        verdict: RequestDecision,
        requested: &FakeRequest,
        now_ms: u64,
    ) -> std::io::Result<AfterLine> {
        match verdict {
            RequestDecision::Accepted { number, fault, .. } => {
                let id = format!("FAKE{number:012X}");
                self.server.remember(requested, &id, number, now_ms);
                match fault {
                    Some(Fault::ResetAfterWrite) => return Ok(AfterLine::Close),
                    Some(Fault::Slow(time)) => sleep(time).await,
                    _ => self.server.work().await,
                }
                self.write_line(&format!("250 2.0.0 OK queued as {id}"))
                    .await
            }
            RequestDecision::Over(whom, wait) => {
                self.server.work().await;
                self.write_line(&throttled(
                    whom,
                    self.server.tells_delay.then(|| whole_seconds(wait)),
                ))
                .await
            }
            RequestDecision::Faulty(Fault::Hang) => {
                self.server.stop.cancelled().await;
                Ok(AfterLine::Close)
            }
            RequestDecision::Faulty(
                Fault::CloseBeforeRead | Fault::ResetAfterWrite | Fault::Slow(_),
            ) => Ok(AfterLine::Close),
            RequestDecision::Faulty(fault) => {
                self.server.work().await;
                self.write_line(&failed(&fault)).await
            }
        }
    }
}

/// Returns the text between the angle brackets; empty without them.
fn address(text: &str) -> String {
    let inner = text
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'))
        .map(|(inner, _)| inner);
    inner.unwrap_or_default().to_owned()
}

/// Returns the message without its headers, which differ from one attempt to the next.
fn text_of(body: &[u8]) -> &[u8] {
    let end = body.windows(4).position(|window| window == b"\r\n\r\n");
    end.map_or(body, |at| &body[at + 4..])
}

fn throttled(whom: ThrottleScope, seconds: Option<u64>) -> String {
    let (code, about) = match whom {
        ThrottleScope::Account => (
            "451 4.7.0",
            "Throttling failure: Maximum sending rate exceeded",
        ),
        ThrottleScope::Connection => ("421 4.7.0", "Too many messages on this connection, closing"),
        ThrottleScope::Sender => ("450 4.7.1", "The sender is sending too quickly"),
        ThrottleScope::Recipient => ("450 4.2.1", "The recipient is receiving mail too quickly"),
    };
    match seconds {
        Some(seconds) => format!("{code} {about}. Try again in {seconds} seconds"),
        None => format!("{code} {about}"),
    }
}

/// Returns the reply to a fault; a [`Fault::Code`] holds the reply's code and its enhanced code.
fn failed(fault: &Fault) -> String {
    match fault {
        Fault::Throttle { whom, delay } => throttled(*whom, delay.map(whole_seconds)),
        Fault::Status(421) => {
            "421 4.3.2 Service not available, closing transmission channel".to_owned()
        }
        Fault::Status(status @ 400..=499) => format!("{status} 4.3.0 Temporary failure"),
        Fault::Status(status @ 550..=599) => format!("{status} 5.0.0 Failed"),
        Fault::Status(_) => "451 4.3.0 Temporary local problem".to_owned(),
        Fault::Unavailable(delay) => format!(
            "450 4.4.2 Not now. Try again in {} seconds",
            whole_seconds(*delay)
        ),
        Fault::Code(status, code) => format!("{status} {code}"),
        Fault::Suspend => "535 5.7.13 User account disabled".to_owned(),
        Fault::BadCredentials => "535 5.7.8 Authentication credentials invalid".to_owned(),
        Fault::PermanentRecipient => {
            "550 5.1.1 The account that you tried to reach does not exist".to_owned()
        }
        Fault::Garbage => "HTTP/1.1 502 Bad Gateway".to_owned(),
        _ => "nonsense".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_between_its_brackets() {
        assert_eq!(address("FROM:<a@example.com> SIZE=10"), "a@example.com");
        assert_eq!(address("TO:<>"), "");
        assert_eq!(address("TO"), "");
    }

    #[test]
    fn a_limit_says_in_its_code_whom_it_concerns() {
        assert!(throttled(ThrottleScope::Recipient, None).starts_with("450 4.2.1 "));
        assert!(throttled(ThrottleScope::Account, Some(92)).ends_with("Try again in 92 seconds"));
    }
}
