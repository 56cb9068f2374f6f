//! The basis of the integration tests: one private stack per run, a database and a Redis prefix per
//! test.
//!
//! The servers run under `flyball services` and end with this process, however it ends.
//! `FLYBALL_TEST_DATABASE_URL`, `FLYBALL_TEST_REDIS_URL` and `FLYBALL_TEST_PROMETHEUS_URL` replace
//! parts of the stack; the database user in the URL must be allowed to create databases, and to
//! create roles and become them. The role of the private stack may only create databases.
#![allow(dead_code, reason = "each test file uses the part it needs")]

pub mod api_server;
pub mod app;
pub mod contract;
pub mod counterparts;
pub mod exporter;
pub mod fixture;
pub mod ledger;
pub mod observed_store;
pub mod pgbouncer;
pub mod plans;
pub mod process;
pub mod proxy;
pub mod redis_cluster;
pub mod redis_connection;
pub mod redis_server;
pub mod replica;
pub mod sms_pool;
pub mod timeline;
pub mod waiting;

pub use redis_connection::connect_redis;
pub use waiting::{eventually, poll};

use flyball::throttle::{Name, RedisStore, Store};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock, mpsc};
use std::time::Duration;

use flyball::jobs::postgres::MIGRATOR;
use flyball::stack::{RunningStack, SpawnOptions, as_superuser, spawn};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};

/// The directory of the project.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The lock on the template's creation, shared by all test processes on one server.
const LOCK_TEMPLATE: &str = "select pg_advisory_lock(hashtext('flyball tests: template'))";
const TEMPLATE_IS_COMPLETE: &str = "select exists (select from pg_database d join pg_shdescription s on s.objoid = d.oid where d.datname = $1 and s.description = 'complete')";

/// The servers of this test run.
pub struct Stack {
    pub database_url: String,
    pub redis_url: String,
    pub prometheus_url: String,
    /// The directory of Prometheus' scrape targets; `None` for an external Prometheus.
    pub targets_dir: Option<PathBuf>,
    /// The template of the tests' databases.
    template: String,
    /// True if the database server outlives this run, so that databases must be dropped.
    outside: bool,
    /// True if the databases are in memory, so that they are dropped as soon as nobody needs them.
    in_memory: bool,
    _running: RunningStack,
}

static STACK: OnceLock<Stack> = OnceLock::new();

/// Returns the servers, started by the first caller.
pub async fn stack() -> &'static Stack {
    if let Some(stack) = STACK.get() {
        return stack;
    }
    // A thread, because starting blocks. The supervisor is a separate process, so it outlives the
    // thread.
    let started = tokio::task::spawn_blocking(|| STACK.get_or_init(start));
    started.await.expect("starting the stack")
}

fn start() -> Stack {
    let given = |name: &str| std::env::var(name).ok().filter(|url| !url.is_empty());
    let dir = tempfile::Builder::new()
        .prefix("flyball-it-")
        .tempdir()
        .expect("a temporary directory")
        .keep();
    let options = SpawnOptions {
        program: Some(PROGRAM.clone()),
        database_url: given("FLYBALL_TEST_DATABASE_URL"),
        redis_url: given("FLYBALL_TEST_REDIS_URL"),
        prometheus_url: given("FLYBALL_TEST_PROMETHEUS_URL"),
        scrape_interval_ms: 1_000,
        fsync: false,
        ephemeral: true,
        stderr: Some(dir.with_extension("log")),
    };
    let running = spawn(&dir, &options).unwrap_or_else(|error| panic!("{error}"));
    // The log is written only during startup.
    let _ = std::fs::remove_file(dir.with_extension("log"));
    let urls = running.urls.clone();
    let outside = options.database_url.is_some();
    if !outside {
        block_on_a_thread(keep_autovacuum_away(as_superuser(&urls.database_url)));
    }
    let template = block_on_a_thread(make_template(urls.database_url.clone()));
    Stack {
        database_url: urls.database_url,
        redis_url: urls.redis_url,
        prometheus_url: urls.prometheus_url,
        targets_dir: urls.targets_dir,
        template,
        outside,
        in_memory: !outside && dir.starts_with("/dev/shm"),
        _running: running,
    }
}

/// Starts a Postgres of one test, which ends when dropped, beside the other servers of the run.
pub async fn own_server() -> RunningStack {
    let shared = stack().await;
    let options = SpawnOptions {
        program: Some(PROGRAM.clone()),
        redis_url: Some(shared.redis_url.clone()),
        prometheus_url: Some(shared.prometheus_url.clone()),
        fsync: false,
        ephemeral: true,
        ..SpawnOptions::default()
    };
    let dir = tempfile::tempdir().expect("a directory").keep();
    let running = tokio::task::spawn_blocking(move || spawn(&dir, &options));
    running.await.expect("starting").expect("the server")
}

/// The program under test, by the name under which it is installed: it shows that in its help.
pub static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let built = Path::new(env!("CARGO_BIN_EXE_flyball-it"));
    let folder = built.with_file_name("it-program");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (link, program) = (folder.join(unique()), folder.join("flyball"));
    std::fs::hard_link(built, &link).expect("a link");
    std::fs::rename(&link, &program).expect("the program");
    // It is left if another process has just made the same link.
    let _ = std::fs::remove_file(&link);
    program
});

/// Slows autovacuum down. With one database per test it would otherwise start a process every tenth
/// of a second.
async fn keep_autovacuum_away(url: String) {
    let mut connection = connect(&url, None).await;
    run(
        &mut connection,
        "alter system set autovacuum_naptime = '1h'",
    )
    .await;
    run(&mut connection, "select pg_reload_conf()").await;
    connection.close().await.expect("closing the connection");
}

/// Creates the migrated template, unless another run has already created it on this server.
async fn make_template(url: String) -> String {
    let mut checksums = String::new();
    for migration in MIGRATOR.iter() {
        for byte in migration.checksum.iter().take(8) {
            let _ = write!(checksums, "{byte:02x}");
        }
    }
    let name = format!("flyball_template_{:016x}", fnv(&checksums));
    let mut connection = connect(&url, None).await;
    run(&mut connection, LOCK_TEMPLATE).await;
    let complete: bool = sqlx::query_scalar(TEMPLATE_IS_COMPLETE)
        .bind(&name)
        .fetch_one(&mut connection)
        .await
        .expect("looking for the template");
    if !complete {
        run(
            &mut connection,
            &format!("drop database if exists {name} with (force)"),
        )
        .await;
        run(&mut connection, &format!("create database {name}")).await;
        let mut template = connect(&url, Some(&name)).await;
        MIGRATOR
            .run_direct(None, &mut template, false)
            .await
            .expect("migrating the template");
        // Postgres cannot copy a database that has open sessions.
        template.close().await.expect("closing the template");
        run(
            &mut connection,
            &format!("comment on database {name} is 'complete'"),
        )
        .await;
    }
    connection.close().await.expect("closing the connection");
    name
}

/// A migrated database for one test.
pub struct Database {
    url: String,
    name: String,
    pool: PgPool,
    stack: &'static Stack,
}

/// Creates a database with all migrations applied.
pub async fn database() -> Database {
    let stack = stack().await;
    let name = format!("t_{}", unique());
    let template = &stack.template;
    let create = format!("create database {name} template {template} strategy file_copy");
    let creating = CREATORS.runtime.spawn(async move {
        let create = sqlx::raw_sql(sqlx::AssertSqlSafe(create));
        create.execute(&CREATORS.pool).await
    });
    let created = creating.await.expect("creating a database");
    created.unwrap_or_else(|error| panic!("creating {name}: {error}"));
    let url = with_database(&stack.database_url, &name);
    let options: PgConnectOptions = url.parse().expect("the database's URL");
    // Few connections, because all tests share the server's limit of 200.
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(20))
        .connect_lazy_with(options);
    Database {
        url,
        name,
        pool,
        stack,
    }
}

// === impl Database ===

impl Database {
    /// Returns the database's URL, for psql, a child process or another pool.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the superuser's URL, for statements that the normal role may not run, such as
    /// creating roles.
    pub fn superuser_url(&self) -> String {
        as_superuser(&self.url)
    }

    /// Returns a pool of two connections of the superuser.
    pub fn superuser(&self) -> PgPool {
        let options: PgConnectOptions = self.superuser_url().parse().expect("the database's URL");
        PgPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_secs(20))
            .connect_lazy_with(options)
    }

    /// Returns the pool of up to 8 connections.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // A private server is discarded as a whole, and with it the databases that are left.
        if self.stack.in_memory {
            // Nobody waits for it.
            let _ = DROPPED.send(self.name.clone());
        } else if self.stack.outside {
            let (url, name) = (self.stack.database_url.clone(), self.name.clone());
            block_on_a_thread(async move {
                let mut connection = connect(&url, None).await;
                run(
                    &mut connection,
                    &format!("drop database if exists {name} with (force)"),
                )
                .await;
            });
        }
    }
}

/// Connections that create databases. They outlive each test, and so does what serves them.
struct Creators {
    runtime: tokio::runtime::Runtime,
    pool: PgPool,
}

static CREATORS: LazyLock<Creators> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let entered = runtime.enter();
    let options = STACK.get().expect("the servers").database_url.parse();
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options.expect("the database's URL"));
    drop(entered);
    Creators { runtime, pool }
});

/// Drops databases, one after the other.
static DROPPED: LazyLock<mpsc::Sender<String>> = LazyLock::new(|| {
    let (sender, names) = mpsc::channel::<String>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            let mut connection = connect(&stack().await.database_url, None).await;
            while let Ok(name) = names.recv() {
                let drop = format!("drop database if exists {name} with (force)");
                run(&mut connection, &drop).await;
            }
        });
    });
    sender
});

/// Returns the settings of one test's app: its database, its own key prefix, a free port, and knobs
/// from `folder`.
pub async fn app_environment(database: &Database, folder: &Path) -> BTreeMap<String, String> {
    [
        ("DATABASE_URL", database.url().to_owned()),
        ("REDIS_URL", stack().await.redis_url.clone()),
        ("FLYBALL_REDIS_PREFIX", redis_prefix()),
        ("FLYBALL_LISTEN", "127.0.0.1:0".to_owned()),
        ("FLYBALL_KNOBS_DIR", folder.display().to_string()),
        ("FLYBALL_DATABASE_CONNECTIONS", "6".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Returns the tools for reading providers' events, without a guard.
pub fn tools() -> flyball::providers::DriverClients {
    let http = std::sync::Arc::new(
        flyball::providers::Http::new(flyball::outbound::Guard::open()).expect("a client"),
    );
    flyball::providers::DriverClients {
        http: http.clone(),
        guarded: http,
    }
}

/// Returns a new key prefix for this test, for example `t3f9c1a2b:`.
pub fn redis_prefix() -> String {
    format!("t{}:", &unique()[..8])
}

/// Connects to the tests' Redis with a timeout of 10 s, long enough for a busy machine.
///
/// Tokens in a late answer are lost, so tests of the granted rate wait longer than a worker would.
/// Tests of a lost Redis make their own connection.
pub async fn patient_store(prefix: &str) -> RedisStore {
    let store = RedisStore::connect(&stack().await.redis_url, prefix)
        .expect("a URL")
        .with_bound(Duration::from_secs(10));
    let nobody = Name::new("nobody").expect("a name");
    // The first call has a shorter timeout than later ones if connecting fails at once.
    eventually("Redis answers", Duration::from_secs(60), || async {
        store.status(&nobody).await.ok()
    })
    .await;
    store
}

/// Reports that the calling test is skipped on this machine. The line bypasses output capture so
/// that `scripts/test.sh` can count it.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

async fn connect(url: &str, database: Option<&str>) -> PgConnection {
    let mut options: PgConnectOptions = url.parse().expect("the database's URL");
    if let Some(database) = database {
        options = options.database(database);
    }
    PgConnection::connect_with(&options)
        .await
        .expect("connecting to the test database server")
}

async fn run(connection: &mut PgConnection, sql: &str) {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Returns the URL with another database name.
fn with_database(url: &str, database: &str) -> String {
    let (base, query) = url
        .split_once('?')
        .map_or((url, String::new()), |(base, query)| {
            (base, format!("?{query}"))
        });
    let authority_at = base.find("://").expect("a URL") + 3;
    let authority_end = base[authority_at..]
        .find('/')
        .map_or(base.len(), |slash| authority_at + slash);
    format!("{}/{database}{query}", &base[..authority_end])
}

/// Returns 16 hexadecimal digits, different on each call and in each process.
pub fn unique() -> String {
    format!("{:016x}", rand::random::<u64>())
}

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Runs a future on its own thread, for callers that cannot await: a destructor, or a blocking
/// thread.
fn block_on_a_thread<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(future)
    });
    thread.join().expect("the thread's work")
}
