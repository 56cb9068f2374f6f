//! Starting a supervisor as a child process, for the demo and for tests.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::Error;
use super::layout::Urls;

/// Options of a supervisor. The URLs of the environment (`DATABASE_URL` …) are ignored, so they
/// must be given here.
#[derive(Clone, Debug)]
pub struct SpawnOptions {
    /// The program `flyball`; `None` stands for the running executable.
    pub program: Option<PathBuf>,
    /// An existing database; the supervisor then starts none.
    pub database_url: Option<String>,
    /// An existing Redis; the supervisor then starts none.
    pub redis_url: Option<String>,
    /// An existing Prometheus; the supervisor then starts none.
    pub prometheus_url: Option<String>,
    /// Scrape interval of Prometheus, in milliseconds.
    pub scrape_interval_ms: u64,
    /// True if data must survive a crash of the machine.
    pub fsync: bool,
    /// True if all files created in the directory are removed after stopping.
    pub ephemeral: bool,
    /// File for the supervisor's standard error; `None` stands for this process' own.
    pub stderr: Option<PathBuf>,
}

impl Default for SpawnOptions {
    fn default() -> Self {
        Self {
            program: None,
            database_url: None,
            redis_url: None,
            prometheus_url: None,
            scrape_interval_ms: 5_000,
            fsync: true,
            ephemeral: false,
            stderr: None,
        }
    }
}

/// A server of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    Postgres,
    Redis,
    Prometheus,
}

impl ServerKind {
    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Prometheus => "prometheus",
        }
    }
}

/// A running supervisor. Dropping it stops the servers; so does any death of this process.
#[derive(Debug)]
pub struct RunningStack {
    /// URLs of the servers.
    pub urls: Urls,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// Starts `flyball services --dir DIR` and waits until all servers are ready. Blocks; the first
/// start takes some seconds.
pub fn spawn(dir: &Path, options: &SpawnOptions) -> Result<RunningStack, Error> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            std::env::current_exe().map_err(Error::io("finding the running executable for", dir))?
        }
    };
    let mut command = Command::new(&program);
    command.arg("services").arg("--dir").arg(dir);
    command
        .arg("--scrape-interval")
        .arg(format!("{}ms", options.scrape_interval_ms));
    command.args(["--fsync", if options.fsync { "on" } else { "off" }]);
    if options.ephemeral {
        command.arg("--ephemeral");
    }
    // URLs go by the environment and not by arguments: a URL may hold a password, and every user of
    // the machine can read arguments.
    for (name, url) in [
        ("DATABASE_URL", &options.database_url),
        ("REDIS_URL", &options.redis_url),
        ("PROMETHEUS_URL", &options.prometheus_url),
    ] {
        match url {
            Some(url) => command.env(name, url),
            None => command.env_remove(name),
        };
    }
    // A group of its own: a Ctrl-C at the terminal goes to this process, which stops the servers
    // when it is done with them.
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    if let Some(stderr) = &options.stderr {
        command.stderr(File::create(stderr).map_err(Error::io("creating", stderr))?);
    }
    let mut child = command.spawn().map_err(Error::io("starting", &program))?;
    let stdin = child.stdin.take();
    let Some(stdout) = child.stdout.take() else {
        unreachable!("standard output was asked for above")
    };
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    let urls = stdout
        .read_line(&mut line)
        .ok()
        .and_then(|_| serde_json::from_str(&line).ok());
    match urls {
        Some(urls) => Ok(RunningStack {
            urls,
            child,
            stdin,
            stdout,
        }),
        None => {
            drop(stdin);
            let status = child
                .wait()
                .map_or_else(|error| error.to_string(), |status| status.to_string());
            let output = options
                .stderr
                .as_ref()
                .and_then(|path| std::fs::read_to_string(path).ok())
                .unwrap_or_default();
            Err(Error::Supervisor {
                status,
                output: output.trim().to_owned(),
            })
        }
    }
}

// === impl Running ===

impl RunningStack {
    /// Returns the supervisor's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops one server in order and waits until it has stopped. It stays down until
    /// [`Running::start`].
    pub fn stop(&mut self, part: ServerKind) -> Result<(), Error> {
        self.send_command("stop", part)
    }

    /// Starts a stopped server, with its data and under its old URL, and waits until it is ready.
    pub fn start(&mut self, part: ServerKind) -> Result<(), Error> {
        self.send_command("start", part)
    }

    fn send_command(&mut self, verb: &str, part: ServerKind) -> Result<(), Error> {
        let mut answer = String::new();
        let reported = match &mut self.stdin {
            Some(stdin) => writeln!(stdin, "{verb} {}", part.name())
                .and_then(|()| self.stdout.read_line(&mut answer)),
            None => Ok(0),
        };
        match reported {
            Ok(_) if answer.starts_with("{\"st") => Ok(()),
            _ => Err(Error::Supervisor {
                status: format!("{verb} {} failed", part.name()),
                output: answer.trim().to_owned(),
            }),
        }
    }
}

impl Drop for RunningStack {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // Three servers with 15 s each at worst; usually all is over in a tenth of a second.
        for _ in 0..5_000 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
