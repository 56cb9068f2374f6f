//! Tests of the driver against a line-based server on a real socket.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::driver::Smtp;
use crate::providers::examples::account;
use crate::providers::wire_tests::{class_of, message, send_context};
use crate::providers::{Account, Channel, Class, Driver, ProviderResponse, Scope};

/// The server's answers to `MAIL`, `RCPT`, `DATA` and the dot; an empty text closes the connection.
#[derive(Clone, Copy)]
struct Script {
    greeting: &'static str,
    login: &'static str,
    mail: &'static str,
    rcpt: &'static str,
    data: &'static str,
    dot: &'static str,
    /// The number of mails after which a connection is closed.
    mails: usize,
}

const GOOD: Script = Script {
    greeting: "220 hello",
    login: "235 2.7.0 welcome",
    mail: "250 2.1.0 ok",
    rcpt: "250 2.1.5 ok",
    data: "354 go on",
    dot: "250 2.0.0 queued",
    mails: 1000,
};

/// A server and its log: a line for each connection, and each mail.
struct SmtpTestServer {
    port: u16,
    connections: Arc<Mutex<usize>>,
    mails: Arc<Mutex<Vec<String>>>,
}

impl SmtpTestServer {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, mails) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
        let server = Self {
            port,
            connections: connections.clone(),
            mails: mails.clone(),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *connections.lock() += 1;
                tokio::spawn(speak(stream, script, mails.clone()));
            }
        });
        server
    }

    fn account(&self, more: &[(&str, &str)]) -> Account {
        let port = self.port.to_string();
        let mut options = vec![
            ("host", "127.0.0.1"),
            ("port", port.as_str()),
            ("tls", "none"),
            ("from", "shop@example.com"),
        ];
        options.extend(more);
        account(&options, &[])
    }
}

/// Runs the dialogue until the script or the client ends it.
async fn speak(stream: TcpStream, script: Script, mails: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    write_line(&mut stream, script.greeting).await?;
    let mut left = script.mails;
    loop {
        let line = hear(&mut stream).await?;
        let answer = match line.split_whitespace().next().unwrap_or_default() {
            "EHLO" => "250-hello\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN",
            "AUTH" => script.login,
            "MAIL" => script.mail,
            "RCPT" => script.rcpt,
            "DATA" => script.data,
            "RSET" => "250 2.0.0 forgotten",
            _ => "500 5.5.1 what?",
        };
        write_line(&mut stream, answer).await?;
        if answer.starts_with("354") {
            let mut mail = String::new();
            loop {
                let line = hear(&mut stream).await?;
                if line == ".\r\n" {
                    break;
                }
                mail.push_str(&line);
            }
            mails.lock().push(mail);
            write_line(&mut stream, script.dot).await?;
            left -= 1;
            if left == 0 {
                return None;
            }
        }
    }
}

async fn hear(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line).await.ok()?;
    (read > 0).then_some(line)
}

async fn write_line(stream: &mut BufReader<TcpStream>, text: &str) -> Option<()> {
    if text.is_empty() {
        return None;
    }
    stream
        .get_mut()
        .write_all(format!("{text}\r\n").as_bytes())
        .await
        .ok()
}

async fn answered(script: Script) -> ProviderResponse {
    let server = SmtpTestServer::start(script).await;
    let driver = Smtp::new(&server.account(&[("throttle_phrases", "too many messages")])).unwrap();
    driver
        .send(
            &message(Channel::Email, "ann@example.org"),
            &send_context(0),
        )
        .await
}

#[tokio::test]
async fn a_mail_is_taken_and_the_connection_is_kept() {
    let server = SmtpTestServer::start(GOOD).await;
    let driver = Smtp::new(&server.account(&[])).unwrap();
    for _ in 0..3 {
        let mut sent = message(Channel::Email, "ann@example.org");
        sent.body = "one\r\n.two\r\n.\r\nthree".to_owned();
        let answer = driver.send(&sent, &send_context(0)).await;
        assert_eq!(class_of(&answer.sent), Class::Accepted, "{answer:?}");
        let crate::providers::Sent::Accepted { provider_id } = answer.sent else {
            unreachable!()
        };
        assert_eq!(provider_id.as_deref(), Some("<job_7@example.com>"));
    }
    assert_eq!(*server.connections.lock(), 1);
    let mails = server.mails.lock();
    assert_eq!(mails.len(), 3);
    assert!(mails[0].contains("Message-ID: <job_7@example.com>"));
    assert!(
        mails[0].contains("\r\n..two\r\n..\r\nthree"),
        "dots are doubled: {}",
        mails[0]
    );
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_is_replaced() {
    let server = SmtpTestServer::start(Script { mails: 1, ..GOOD }).await;
    let driver = Smtp::new(&server.account(&[])).unwrap();
    for _ in 0..3 {
        let answer = driver
            .send(
                &message(Channel::Email, "ann@example.org"),
                &send_context(0),
            )
            .await;
        assert_eq!(class_of(&answer.sent), Class::Accepted, "{answer:?}");
    }
    assert_eq!(server.mails.lock().len(), 3, "each mail arrives once");
}

#[tokio::test]
async fn refusals_are_classified_by_what_they_concern() {
    let throttled = answered(Script {
        mail: "421 4.7.28 slow down",
        ..GOOD
    })
    .await;
    assert_eq!(
        (class_of(&throttled.sent), throttled.status.as_str()),
        (Class::Throttled(Scope::Account), "4.7.28")
    );
    let greeted = answered(Script {
        greeting: "421 4.3.2 too many connections",
        ..GOOD
    })
    .await;
    assert_eq!(
        class_of(&greeted.sent),
        Class::Throttled(Scope::Account),
        "{greeted:?}"
    );
    let full = answered(Script {
        rcpt: "452 4.2.2 <ann@example.org> is full",
        ..GOOD
    })
    .await;
    assert_eq!(class_of(&full.sent), Class::Throttled(Scope::Recipient));
    let gone = answered(Script {
        rcpt: "550-5.1.1 <ann@example.org>\r\n550 5.1.1 no such user",
        ..GOOD
    })
    .await;
    assert_eq!(
        (class_of(&gone.sent), gone.status.as_str()),
        (Class::Suppress, "5.1.1")
    );
    assert!(!format!("{:?}", gone.sent).contains("ann@"), "{gone:?}");
    let phrase = answered(Script {
        dot: "550 Too many messages. Try again in 92 seconds",
        ..GOOD
    })
    .await;
    assert_eq!(class_of(&phrase.sent), Class::Throttled(Scope::Account));
}

#[tokio::test]
async fn after_a_refusal_the_connection_takes_the_next_mail() {
    let server = SmtpTestServer::start(Script {
        rcpt: "550 5.1.1 no such user",
        ..GOOD
    })
    .await;
    let driver = Smtp::new(&server.account(&[])).unwrap();
    for _ in 0..2 {
        let answer = driver
            .send(
                &message(Channel::Email, "ann@example.org"),
                &send_context(0),
            )
            .await;
        assert_eq!(class_of(&answer.sent), Class::Suppress);
    }
    assert_eq!(*server.connections.lock(), 1);
}

#[tokio::test]
async fn a_lost_connection_is_ambiguous_only_after_the_contents() {
    for script in [
        Script { mail: "", ..GOOD },
        Script { rcpt: "", ..GOOD },
        Script { data: "", ..GOOD },
    ] {
        let answer = answered(script).await;
        assert_eq!(class_of(&answer.sent), Class::Transient, "{answer:?}");
    }
    let server = SmtpTestServer::start(Script { dot: "", ..GOOD }).await;
    let driver = Smtp::new(&server.account(&[])).unwrap();
    let answer = driver
        .send(
            &message(Channel::Email, "ann@example.org"),
            &send_context(0),
        )
        .await;
    assert_eq!(class_of(&answer.sent), Class::Ambiguous, "{answer:?}");
    assert_eq!(server.mails.lock().len(), 1, "it is not said twice");
}

#[tokio::test]
async fn contents_go_only_to_a_server_that_asks_for_them() {
    let server = SmtpTestServer::start(Script {
        data: "250 2.1.5 ok",
        ..GOOD
    })
    .await;
    let driver = Smtp::new(&server.account(&[])).unwrap();
    let sent = message(Channel::Email, "ann@example.org");
    let answer = driver.send(&sent, &send_context(0)).await;
    assert_eq!(class_of(&answer.sent), Class::Transient, "{answer:?}");
    assert_eq!(
        answer.sent.reason(),
        "the server answered 250 to DATA",
        "no line of the mail is a command"
    );
    let unsure = answered(Script {
        dot: "354 go on",
        ..GOOD
    })
    .await;
    assert_eq!(class_of(&unsure.sent), Class::Ambiguous, "{unsure:?}");
}

#[tokio::test]
async fn a_login_that_is_not_valid_is_the_accounts_fault() {
    let server = SmtpTestServer::start(Script {
        login: "535 5.7.8 no",
        ..GOOD
    })
    .await;
    let mut account = server.account(&[("username", "shop")]);
    account.secrets.insert(
        "password".to_owned(),
        crate::providers::AccountSecret::new("hunter2"),
    );
    let answer = Smtp::new(&account)
        .unwrap()
        .send(
            &message(Channel::Email, "ann@example.org"),
            &send_context(0),
        )
        .await;
    assert_eq!(class_of(&answer.sent), Class::Account, "{answer:?}");
    let plain = Smtp::new(&server.account(&[("tls", "starttls")])).unwrap();
    let answer = plain
        .send(
            &message(Channel::Email, "ann@example.org"),
            &send_context(0),
        )
        .await;
    assert_eq!(
        class_of(&answer.sent),
        Class::Account,
        "a server without STARTTLS gets nothing: {answer:?}"
    );
}

#[tokio::test]
async fn nobody_there_is_transient() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut account = account(
        &[
            ("host", "mail.example.com"),
            ("tls", "none"),
            ("from", "shop@example.com"),
        ],
        &[],
    );
    account.base_url = Some(format!("smtp://127.0.0.1:{port}"));
    let answer = Smtp::new(&account)
        .unwrap()
        .send(
            &message(Channel::Email, "ann@example.org"),
            &send_context(0),
        )
        .await;
    assert_eq!(class_of(&answer.sent), Class::Transient, "{answer:?}");
}

#[test]
fn wrong_settings_are_reported() {
    let field = |options: &[(&str, &str)], secrets: &[(&str, &str)]| {
        Smtp::new(&account(options, secrets)).err().unwrap().field
    };
    assert_eq!(field(&[], &[]), "host");
    assert_eq!(field(&[("host", "a"), ("tls", "ssl")], &[]), "tls");
    assert_eq!(field(&[("host", "a"), ("port", "70000")], &[]), "port");
    assert_eq!(field(&[("host", "a"), ("username", "b")], &[]), "password");
    assert_eq!(field(&[("host", "a")], &[("password", "b")]), "username");
    assert_eq!(field(&[("host", "a"), ("from", "b")], &[]), "from");
    let mut based = account(&[("host", "a")], &[]);
    based.base_url = Some("http://x".to_owned());
    assert_eq!(Smtp::new(&based).err().unwrap().field, "base_url");
}
