//! A shell with the program in its PATH, and a running `flyball serve`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Database, PROGRAM, connect_redis, database, redis_prefix, stack};

pub const SOON: Duration = Duration::from_secs(60);

/// The output of a command.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {:?} {}", self.out, self.err))
    }
}

/// A terminal with its own folder and services.
pub struct Shell {
    pub folder: tempfile::TempDir,
    pub variables: BTreeMap<&'static str, String>,
    pub database: Database,
}

pub async fn shell() -> Shell {
    let (database, stack) = (database().await, stack().await);
    let folder = tempfile::tempdir().unwrap();
    let variables = BTreeMap::from([
        ("DATABASE_URL", database.url().to_owned()),
        ("REDIS_URL", stack.redis_url.clone()),
        ("PROMETHEUS_URL", stack.prometheus_url.clone()),
        ("FLYBALL_REDIS_PREFIX", redis_prefix()),
        ("USER", "tester".to_owned()),
    ]);
    Shell {
        folder,
        variables,
        database,
    }
}

impl Shell {
    pub fn with(mut self, variable: &'static str, value: &str) -> Self {
        self.variables.insert(variable, value.to_owned());
        self
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM.as_path());
        // With the certificates that the test run trusts, which are fewer than those of the machine.
        let kept = ["PATH", "HOME", "TMPDIR", "LANG", "SSL_CERT_FILE"]
            .iter()
            .filter_map(|name| Some((*name, std::env::var(name).ok()?)));
        command
            .args(args)
            .env_clear()
            .envs(kept)
            .envs(&self.variables)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Said {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said {
            code: status.code().unwrap_or(-1),
            out: text(stdout),
            err: text(stderr),
        }
    }

    /// Runs a command that must succeed.
    pub fn ok(&self, args: &[&str]) -> Said {
        let printed = self.run(args);
        assert_eq!(printed.code, 0, "{args:?}: {}{}", printed.out, printed.err);
        printed
    }

    /// Runs a command that must fail with this exit code and this text, on one line and without a
    /// panic.
    pub fn refused(&self, args: &[&str], code: i32, words: &str) {
        let printed = self.run(args);
        assert!(
            printed.code == code && printed.err.contains(words),
            "{args:?}: {code} {words:?} was wanted, not {} {}",
            printed.code,
            printed.err
        );
        assert!(
            !printed.err.contains("panicked") && printed.out.is_empty(),
            "{args:?}: {}{}",
            printed.out,
            printed.err
        );
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub async fn redis(&self, words: &[&str]) {
        let mut connection = connect_redis(&self.variables["REDIS_URL"]).await.unwrap();
        let key = format!("{}{}", self.variables["FLYBALL_REDIS_PREFIX"], words[1]);
        redis::cmd(words[0])
            .arg(key)
            .arg(&words[2..])
            .exec_async(&mut connection)
            .await
            .unwrap();
    }
}

/// `flyball serve`, stopped with the test.
pub struct Serve {
    pub url: String,
    pub child: Child,
}

impl Serve {
    pub fn start(shell: &Shell) -> Self {
        let mut child = shell
            .command(&["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut printed = String::new();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                printed += &line;
                Some(format!(
                    "http://{}",
                    line.split_once("dashboard and API at http://")?
                        .1
                        .trim_end_matches('/')
                ))
            })
            .unwrap_or_else(|| panic!("the server did not start: {printed}"));
        std::thread::spawn(move || lines.for_each(drop));
        Self { url, child }
    }

    pub async fn text(&self, path: &str) -> String {
        reqwest::get(format!("{}{path}", self.url))
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    }

    pub async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).unwrap()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
