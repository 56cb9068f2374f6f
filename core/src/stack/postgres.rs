//! The private Postgres.

use std::fs;
use std::process::Command;
use std::str::FromStr;

use rustix::process::Signal;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::Error;
use super::find::{self, OLDEST_POSTGRES, SearchDir};
use super::launch::{Step, Technology, run_to_end};
use super::layout::{Layout, SUPERUSER, as_superuser, postgres_settings};
use super::unix::{User, pid_was_reused, shm_is_tiny, stop_orphan};

const DATABASE: &str = "flyball";

const DATABASE_EXISTS: &str = "select exists (select from pg_database where datname = 'flyball')";
const CREATE_DATABASE: &str = "create database flyball owner flyball";
const ROLE_EXISTS: &str = "select exists (select from pg_roles where rolname = 'flyball')";
/// Creates the clients' role: it owns its database and may create others, but has no other right on
/// the server, such as access to files of the machine.
const CREATE_ROLE: &str = "create role flyball login createdb";

/// A Postgres that answers on a unix socket only, without a password, to its superuser and to the
/// role that owns the database.
pub(super) struct PostgresServer {
    found: find::PostgresProgram,
    layout: Layout,
    user: User,
    fsync: bool,
}

/// Returns the Postgres that fits the data, or the first one if there are no data yet.
pub(super) fn find(
    places: &[SearchDir],
    layout: &Layout,
) -> Result<Option<find::PostgresProgram>, Error> {
    let data = layout.postgres_data();
    let made_by = fs::read_to_string(data.join("PG_VERSION"))
        .ok()
        .map(|text| text.trim().to_owned());
    let found = find::postgres(
        places,
        made_by.as_ref().and_then(|version| version.parse().ok()),
    );
    match (found, made_by) {
        (Some(found), Some(made_by)) if found.major.to_string() != made_by => {
            Err(Error::WrongMajor {
                data,
                made_by,
                found: found.major,
            })
        }
        (found, _) => Ok(found),
    }
}

// === impl Postgres ===

impl PostgresServer {
    pub fn new(found: find::PostgresProgram, layout: &Layout, user: &User, fsync: bool) -> Self {
        assert!(found.major >= OLDEST_POSTGRES);
        Self {
            found,
            layout: layout.clone(),
            user: user.clone(),
            fsync,
        }
    }

    /// Creates the data directory, under another name until it is complete.
    async fn init(&self) -> Result<(), Error> {
        let data = self.layout.postgres_data();
        if data.join("PG_VERSION").exists() {
            return Ok(());
        }
        let new = data.with_extension("new");
        let _ = fs::remove_dir_all(&new);
        let mut initdb = self.found.program.sibling("initdb").command();
        initdb.arg("-D").arg(&new).args([
            "-U",
            SUPERUSER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
        ]);
        if !self.fsync {
            initdb.arg("--no-sync");
        }
        run_to_end(initdb, "initdb", &self.layout, &self.user).await?;
        fs::rename(&new, &data).map_err(Error::io("renaming to", &data))
    }

    async fn create_database(&self) -> Result<(), sqlx::Error> {
        let url = as_superuser(&self.layout.database_url("postgres"));
        let options = PgConnectOptions::from_str(&url)?.disable_statement_logging();
        let mut connection = options.connect().await?;
        if !sqlx::query_scalar::<_, bool>(ROLE_EXISTS)
            .fetch_one(&mut connection)
            .await?
        {
            sqlx::raw_sql(CREATE_ROLE).execute(&mut connection).await?;
        }
        if !sqlx::query_scalar::<_, bool>(DATABASE_EXISTS)
            .fetch_one(&mut connection)
            .await?
        {
            sqlx::raw_sql(CREATE_DATABASE)
                .execute(&mut connection)
                .await?;
        }
        connection.close().await
    }
}

impl Technology for PostgresServer {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn url(&self) -> String {
        self.layout.database_url(DATABASE)
    }

    fn prepare(&mut self) -> Step<'_, Result<(), Error>> {
        Box::pin(async {
            let home = self.layout.home("postgres");
            self.user.own_private_dir(
                &home,
                "start as that user, or remove it with --wipe as its owner",
            )?;
            self.init().await?;
            let (data, pid_file) = (
                &self.layout.data,
                self.layout.postgres_data().join("postmaster.pid"),
            );
            stop_orphan(&pid_file, data, self.stop_signal()).await;
            // Postgres itself removes a file whose process is gone, but would take another process
            // with that id for its own.
            if pid_was_reused(&pid_file, data) {
                let _ = fs::remove_file(&pid_file);
            }
            // The lock of the socket has the same problem; the directory is private to this stack.
            for name in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"] {
                let _ = fs::remove_file(self.layout.sockets.join(name));
            }
            Ok(())
        })
    }

    fn command(&self) -> Command {
        let mut command = self.found.program.command();
        command.arg("-D").arg(self.layout.postgres_data());
        for setting in postgres_settings(&self.layout, self.fsync, shm_is_tiny()) {
            command.args(["-c", &setting]);
        }
        command
    }

    fn ready(&self) -> Step<'_, Result<(), String>> {
        Box::pin(async {
            self.create_database()
                .await
                .map_err(|error| error.to_string())?;
            let options =
                PgConnectOptions::from_str(&self.url()).map_err(|error| error.to_string())?;
            let connection = options.connect().await.map_err(|error| error.to_string())?;
            connection.close().await.map_err(|error| error.to_string())
        })
    }

    /// Returns SIGINT, Postgres' fast shutdown: it ends all sessions and writes all data.
    fn stop_signal(&self) -> Signal {
        Signal::INT
    }

    /// Returns true if the shared memory is still in use: after a `kill -9` of the postmaster its
    /// sessions need a moment to notice, and hold the memory until then.
    fn worth_another_try(&mut self, log_tail: &str) -> bool {
        log_tail.contains("is still in use")
    }
}
