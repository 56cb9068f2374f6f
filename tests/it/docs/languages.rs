//! `docs/throttles-from-any-language.md` is correct: its commands and programs run unchanged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::Kinds;
use flyball::stack::find;
use serde_json::Value;
use tokio::net::{TcpListener, UnixStream};

use crate::docs::{blocks, read};
use crate::support::redis_server::Server;
use crate::support::{PROGRAM, database};

/// A folder in which the page's commands reach this test's servers.
struct Terminal {
    folder: tempfile::TempDir,
    environment: BTreeMap<&'static str, String>,
}

impl Terminal {
    /// Wrappers for tools, so that they reach this test's servers at the usual addresses.
    fn new(api_port: u16, redis_port: u16, database_url: &str, redis_url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let client = redis_client().display().to_string();
        executable(
            &bin.join("redis-cli"),
            &format!("#!/bin/sh\nexec '{client}' -p {redis_port} \"$@\"\n"),
        );
        std::os::unix::fs::symlink(PROGRAM.as_path(), bin.join("flyball")).unwrap();
        let moved =
            format!("connect-to = \"127.0.0.1:8080:127.0.0.1:{api_port}\"\nnoproxy = \"*\"\n");
        std::fs::write(folder.path().join(".curlrc"), moved).unwrap();
        let environment = BTreeMap::from([
            (
                "PATH",
                format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()),
            ),
            ("HOME", folder.path().display().to_string()),
            ("REDIS_PORT", redis_port.to_string()),
            ("REDIS_URL", redis_url.to_owned()),
            ("DATABASE_URL", database_url.to_owned()),
        ]);
        Self {
            folder,
            environment,
        }
    }

    fn run(&self, commands: &str) -> String {
        let mut shell = Command::new("sh");
        shell
            .args(["-euc", commands])
            .env_clear()
            .envs(&self.environment)
            .current_dir(self.folder.path());
        let Output {
            status,
            stdout,
            stderr,
        } = shell.output().unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&stdout).into_owned(),
            String::from_utf8_lossy(&stderr).into_owned(),
        );
        assert!(status.success(), "{commands}\n{out}\n{err}");
        out
    }
}

fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The command-line client that belongs to the server.
fn redis_client() -> PathBuf {
    let server = find::redis(&find::places(&[])).expect("redis-server or valkey-server");
    let beside = ["redis-cli", "valkey-cli"].map(|name| server.sibling(name).path);
    beside
        .into_iter()
        .find(|path| path.exists())
        .expect("redis-cli beside the server")
}

/// Forwards a TCP port to a server that listens only on a socket, until the test's runtime ends.
async fn port_to(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut server = UnixStream::connect(socket).await.unwrap();
                // A client that disconnects ends the forwarding.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn the_page_for_other_languages_works_as_it_stands() {
    let (server, database) = (Server::start(), database().await);
    let redis_url = server.url();
    let environment = BTreeMap::from([
        ("DATABASE_URL".to_owned(), database.url().to_owned()),
        ("REDIS_URL".to_owned(), redis_url.clone()),
        ("FLYBALL_LISTEN".to_owned(), "127.0.0.1:0".to_owned()),
        ("FLYBALL_KNOBS_DIR".to_owned(), String::new()),
        ("FLYBALL_DATABASE_CONNECTIONS".to_owned(), "6".to_owned()),
    ]);
    let roles = Roles {
        api: true,
        runner: false,
        governor: false,
    };
    let app = App::start(
        &Settings::load(None, &environment).unwrap(),
        roles,
        Kinds::default(),
    )
    .await
    .unwrap();
    let redis_port = port_to(redis_url.trim_start_matches("redis+unix://").into()).await;
    let (api_port, database_url) = (app.address.unwrap().port(), database.url().to_owned());

    let ran = tokio::task::spawn_blocking(move || {
        run_page(api_port, redis_port, &database_url, &redis_url)
    });
    let answers = ran.await.unwrap();
    app.stop().await;

    // The page's promise for each program.
    let json = |text: &str| {
        serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let of = |part: &str| {
        let (_, out) = answers
            .iter()
            .find(|(commands, _)| commands.contains(part))
            .unwrap_or_else(|| panic!("no {part}"));
        out.as_str()
    };
    let acquired = json(of("mail/acquire"));
    assert_eq!(
        (
            &acquired["allowed"],
            &acquired["granted"],
            &acquired["retry_after_ms"]
        ),
        (&true.into(), &1.into(), &0.into())
    );
    let promised = blocks(&read("docs/throttles-from-any-language.md"));
    let promised = json(
        &promised
            .iter()
            .find(|(language, _)| language == "json")
            .unwrap()
            .1,
    );
    let fields = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(&acquired), fields(&promised));
    assert_eq!(fields(&json(of("mail/peek"))), fields(&promised));
    assert_eq!(json(of("mail/return"))["returned"], 1.0);
    assert!(
        of("keys/acme/pause").contains("\"resumed\":true"),
        "{}",
        of("keys/acme/pause")
    );
    let by_hand: Vec<&str> = of("EVALSHA")
        .lines()
        .skip_while(|line| *line != "ok")
        .collect();
    assert_eq!(by_hand[11..14], ["1", "1", "0"], "{by_hand:?}");
    let taken = of("take.py mail");
    assert!(
        taken.contains("12 tokens for acme, limited by key"),
        "{taken}"
    );
    let made = json(of("gcal:42/acquire"));
    assert_eq!(
        (&made["allowed"], &made["effective_rps"]),
        (&true.into(), &0.5.into())
    );
    assert!(of("take.py gcal:7").starts_with("4 tokens for nobody, limited by level"));
    assert!(of("take.py newsletters").ends_with("12 tokens for nobody, limited by level\n"));
    assert!(
        of("import-limitlion").contains("already belongs to Flyball"),
        "{}",
        of("import-limitlion")
    );
}

/// Runs the page from top to bottom; returns each block of commands with its output.
fn run_page(
    api_port: u16,
    redis_port: u16,
    database_url: &str,
    redis_url: &str,
) -> Vec<(String, String)> {
    let terminal = Terminal::new(api_port, redis_port, database_url, redis_url);
    let mut answers = Vec::new();
    for (language, text) in blocks(&read("docs/throttles-from-any-language.md")) {
        match language.as_str() {
            "sh" => {
                let out = terminal.run(&text);
                answers.push((text, out));
            }
            "python" => {
                let name = text
                    .lines()
                    .next()
                    .and_then(|line| line.strip_prefix("# "))
                    .expect("the name of the file")
                    .to_owned();
                std::fs::write(terminal.folder.path().join(name), text).unwrap();
            }
            _ => {}
        }
    }
    answers
}
