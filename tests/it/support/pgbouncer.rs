//! A PgBouncer in front of this test run's Postgres.
//!
//! It runs in transaction mode with fewer server connections than clients, so that clients share
//! connections.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use flyball::postgres::{Access, Pooler};
use flyball::stack::find;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::eventually;

/// The number of server connections per database.
pub const SERVER_CONNECTIONS: u32 = 3;

/// A running PgBouncer, which ends when dropped and with this process.
pub struct PgBouncer {
    /// The URL of the database through the pooler.
    pub url: String,
    child: Child,
    _dir: TempDir,
}

impl PgBouncer {
    /// Starts a PgBouncer in front of the database at this URL.
    pub async fn start(database_url: &str) -> Self {
        Self::with_connections(database_url, SERVER_CONNECTIONS).await
    }

    /// Starts a PgBouncer with this number of server connections.
    pub async fn with_connections(database_url: &str, connections: u32) -> Self {
        let places = find::places(&[]);
        let program = find::pgbouncer(&places)
            .expect("pgbouncer is not installed; install what is missing with scripts/setup.sh");
        let options = PgConnectOptions::from_str(database_url).expect("the database's URL");
        let dir = tempfile::Builder::new()
            .prefix("flyball-pgbouncer-")
            .tempdir()
            .expect("a directory");
        let port = free_port();
        let config = dir.path().join("pgbouncer.ini");
        std::fs::write(&config, ini(&options, database_url, port, connections))
            .expect("the configuration");
        let mut command = Command::new("/bin/sh");
        // The shell kills it when our end of its standard input closes, however this process ends.
        command
            .args([
                "-c",
                "\"$@\" & pid=$!; read -r _; kill -9 $pid; wait $pid",
                "sh",
            ])
            .arg(&program.path)
            .arg(&config);
        if let Some(library_path) = &program.library_path {
            command.env("LD_LIBRARY_PATH", library_path);
        }
        let output = std::fs::File::create(dir.path().join("log")).expect("the log");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(output)
            .process_group(0)
            .current_dir("/");
        if rustix::process::geteuid().is_root() {
            // PgBouncer refuses to run as root, and needs access to Postgres' socket directory.
            let owner = options.get_socket().map_or(65_534, |socket| owner(socket));
            command.uid(owner).gid(owner);
            for (path, mode) in [(dir.path(), 0o755), (config.as_path(), 0o644)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                    .expect("the mode");
            }
        }
        let child = command.spawn().expect("pgbouncer");
        let database = options.get_database().expect("the URL names a database");
        let url = format!(
            "postgres://{}@127.0.0.1:{port}/{database}",
            options.get_username()
        );
        let started = Self {
            url,
            child,
            _dir: dir,
        };
        let through = PgConnectOptions::from_str(&started.url)
            .unwrap()
            .extra_float_digits(None)
            .disable_statement_logging();
        eventually("pgbouncer answers", Duration::from_secs(20), || async {
            match through.connect().await {
                Ok(connection) => connection.close().await.ok(),
                Err(_) => None,
            }
        })
        .await;
        started
    }

    /// Returns the process id of the shell whose child the pooler is.
    pub fn shell(&self) -> u32 {
        self.child.id()
    }

    /// Returns the pooler's address as settings.
    pub fn access(&self) -> Access {
        Access {
            url: self.url.clone(),
            pooler: Pooler::Transaction,
            direct_url: None,
        }
    }

    /// Returns the pooler's address as environment variables.
    pub fn settings(&self) -> [(&str, &str); 2] {
        [
            ("DATABASE_URL", &self.url),
            ("DATABASE_POOLER", "transaction"),
        ]
    }

    pub fn log(&self) -> String {
        let mut output = String::new();
        let _ = std::fs::File::open(self._dir.path().join("log"))
            .and_then(|mut log| log.read_to_string(&mut output));
        output
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b"\n");
        }
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(2_000);
            eprintln!("--- log of pgbouncer:\n{}", log.get(from..).unwrap_or(&log));
        }
    }
}

/// Starts a pooler whose server is away, and returns its URL. It tells its clients at their login,
/// or lets them in and tells their first statement.
pub async fn without_server(is_told_at_login: bool) -> String {
    refusing(is_told_at_login, "server login has been failing").await
}

/// Starts a pooler that refuses its clients for a reason, and returns its URL.
pub async fn refusing(is_told_at_login: bool, reason: &str) -> String {
    const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
    let reason = format!("SFATAL\0C08P01\0M{reason}\0\0");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut refusal = vec![b'E'];
            refusal.extend((reason.len() as u32 + 4).to_be_bytes());
            refusal.extend(reason.as_bytes());
            let mut asked = [0; 1024];
            let _ = client.read(&mut asked).await;
            if !is_told_at_login {
                let _ = client.write_all(WELCOME).await;
                let _ = client.read(&mut asked).await;
            }
            let _ = client.write_all(&refusal).await;
        }
    });
    format!("postgres://ann@127.0.0.1:{port}/shop?sslmode=disable")
}

/// Returns the configuration file.
///
/// Only the two pool settings matter to the tests.
fn ini(options: &PgConnectOptions, url: &str, port: u16, connections: u32) -> String {
    let host = options.get_socket().map_or_else(
        || options.get_host().to_owned(),
        |socket| socket.display().to_string(),
    );
    let password =
        password(url).map_or_else(String::new, |password| format!(" password={password}"));
    format!(
        "[databases]
* = host={host} port={} user={}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 500
log_connections = 0
log_disconnections = 0
",
        options.get_port(),
        options.get_username(),
    )
}

/// Returns the password in a URL; external servers require one.
fn password(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
    authority
        .rsplit_once('@')?
        .0
        .split_once(':')
        .map(|(_, password)| password)
}

fn owner(path: &Path) -> u32 {
    std::fs::metadata(path)
        .expect("the socket's directory")
        .uid()
}

pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
