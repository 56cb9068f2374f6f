//! A scheduler on its own database.

use std::time::Duration;

use flyball::cron::{self, NewSchedule, Schedule, Schedules};
use flyball::jobs::NewJob;
use flyball::service::DueWork;
use serde_json::json;
use sqlx::Executor as _;
use tokio_util::sync::CancellationToken;

use crate::support::{Database, database, eventually};

pub const SOON: Duration = Duration::from_secs(30);

/// A database with a kind, and the scheduler loops of several processes.
pub struct CronFixture {
    pub database: Database,
    pub schedules: Schedules,
    pub cancel: CancellationToken,
}

impl CronFixture {
    pub async fn new() -> Self {
        let database = database().await;
        sqlx::query("select flyball.register_kind('report')")
            .execute(database.pool())
            .await
            .unwrap();
        Self {
            schedules: Schedules::new(database.pool().clone()),
            database,
            cancel: CancellationToken::new(),
        }
    }

    /// Runs the loops of this many processes.
    pub fn keep(&self, processes: usize) {
        for _ in 0..processes {
            let due = due_now_and_then(&self.cancel);
            tokio::spawn(cron::run_schedules(
                self.schedules.clone(),
                due,
                self.cancel.clone(),
            ));
        }
    }

    pub async fn run(&self, sql: &'static str) {
        self.database
            .pool()
            .execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub async fn get(&self, name: &str) -> Schedule {
        self.schedules.get(name).await.unwrap().unwrap()
    }

    /// Returns the occurrences with jobs, in unix seconds and in order.
    pub async fn occurrences(&self) -> Vec<i64> {
        let sql = "select extract(epoch from run_at)::bigint from flyball.job order by run_at";
        sqlx::query_scalar(sql)
            .fetch_all(self.database.pool())
            .await
            .unwrap()
    }

    pub async fn until(
        &self,
        what: &str,
        name: &str,
        is_so: impl Fn(&Schedule) -> bool,
    ) -> Schedule {
        eventually(what, SOON, || async {
            Some(self.get(name).await).filter(&is_so)
        })
        .await
    }

    pub async fn refusal(&self, sql: &'static str) -> (String, String) {
        let error = self.database.pool().execute(sql).await.unwrap_err();
        let error = error
            .as_database_error()
            .unwrap()
            .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
            .unwrap();
        assert_eq!(
            (error.code(), error.hint()),
            ("22023", Some("No schedule was changed.")),
            "{sql}"
        );
        (
            error.column().unwrap().to_owned(),
            error.message().to_owned(),
        )
    }
}

impl Drop for CronFixture {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

pub fn report(name: &str, expression: &str) -> NewSchedule {
    NewSchedule::new(name, expression, NewJob::new("report", json!({"of": name})))
}

/// Returns the wake-ups of a worker that looks for due work all the time.
pub fn due_now_and_then(cancel: &CancellationToken) -> DueWork {
    let due = DueWork::default();
    let (wake, cancel) = (due.schedules.clone(), cancel.clone());
    tokio::spawn(cancel.run_until_cancelled_owned(async move {
        let mut every = tokio::time::interval(Duration::from_millis(100));
        loop {
            every.tick().await;
            wake.notify_one();
        }
    }));
    due
}
