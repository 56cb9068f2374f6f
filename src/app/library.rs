//! A runner inside a program of your own.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::roles::Roles;
use super::start::{self, App};
use crate::config::Settings;
use crate::cron::{NewSchedule, Schedules};
use crate::jobs::{Context, Handler, IntoOutcome, Kinds, Queue, TypedHandler};
use crate::throttle::{Change, Error, Knobs, MemoryStore, Name, Store as _};

/// A runner inside a program of your own: it runs your kinds, and keeps schedules, beside the rest
/// of the program.
///
/// It runs from [`Builder::build`] until [`Runner::run_until`] or [`Runner::stop`] has stopped it;
/// if it is dropped instead, it goes on.
///
/// ```no_run
/// use flyball::Runner;
/// use flyball::cron::NewSchedule;
/// use flyball::jobs::{Context, HandlerError, NewJob};
/// use serde_json::json;
///
/// # #[derive(serde::Deserialize)]
/// struct Report { of: String }
///
/// async fn report(report: Report, context: Context) -> Result<(), HandlerError> {
///     context.progress(1, Some(1), format!("report of {}", report.of)).await?;
///     Ok(())
/// }
///
/// # async fn run() -> anyhow::Result<()> {
/// let runner = Runner::builder()
///     .database_url("postgres://localhost/app")
///     .redis_url("redis://127.0.0.1:6379")
///     .kind("report", report)
///     .throttle("reports", [("rps", json!(5))])
///     .cron(NewSchedule::new(
///         "nightly",
///         "30 2 * * *",
///         NewJob::new("report", json!({"of": "yesterday"})).throttle("reports"),
///     ))
///     .concurrency(16)
///     .build()
///     .await?;
/// runner.run_until(tokio::signal::ctrl_c()).await
/// # }
/// ```
pub struct Runner {
    app: App,
}

impl Runner {
    /// Begins with the default settings; reads no file and no environment.
    ///
    /// The throttle `default`, for jobs that name none, is created with a rate of 100 a second,
    /// unless [`Builder::throttle`] gives it other knobs.
    pub fn builder() -> Builder {
        let mut settings = Settings::defaults();
        settings.knobs_dir = String::new();
        Builder {
            brings_default: true,
            ..Self::with(settings)
        }
    }

    /// Begins with these settings, for instance those of `Settings::from_env`.
    pub fn with(settings: Settings) -> Builder {
        let roles = Roles {
            api: false,
            runner: true,
            governor: false,
        };
        Builder {
            settings,
            roles,
            kinds: Kinds::default(),
            throttles: Vec::new(),
            brings_default: false,
            schedules: Vec::new(),
        }
    }

    /// Returns the queue, to enqueue and inspect jobs.
    pub fn queue(&self) -> &Queue {
        &self.app.queue
    }

    /// Returns the schedules in its database.
    pub fn schedules(&self) -> Schedules {
        Schedules::of(&self.app.queue)
    }

    /// Returns the pools of its settings as last observed.
    #[cfg(feature = "notifications")]
    pub fn pools(&self) -> Vec<Arc<crate::providers::pool::PoolView>> {
        let pools = self.app.account_pools.iter();
        pools
            .map(crate::providers::pool::AccountPool::view)
            .collect()
    }

    /// Ends the block of an account of a pool and closes its breaker, and writes no entry of the
    /// audit log; returns true if there was anything to end, and `None` if there is no such account.
    #[cfg(feature = "notifications")]
    pub async fn resume_account(&self, pool: &str, account: &str) -> Result<Option<bool>, Error> {
        let mut pools = self.app.account_pools.iter();
        let found = pools.find(|one| one.pool().name == pool);
        match found.filter(|one| one.pool().account(account).is_some()) {
            Some(pool) => pool.resume(account).await.map(Some),
            None => Ok(None),
        }
    }

    /// Runs until `stop` is done, then stops in order: no more jobs are claimed, running jobs
    /// finish within the grace time, and the rest is given back.
    ///
    /// Let `stop` wait for SIGTERM as well as for Ctrl-C, because systemd and containers send that:
    /// a program that it ends at once loses the attempts that are running.
    ///
    /// It is an error if a part of the runner died of a defect; then too everything is stopped.
    pub async fn run_until<T>(self, stop: impl Future<Output = T>) -> anyhow::Result<()> {
        let lost = tokio::select! {
            _ = stop => None,
            name = self.app.lost() => Some(name),
        };
        self.app.stop().await;
        match lost {
            None => Ok(()),
            Some(name) => Err(start::died(name)),
        }
    }

    /// Stops in order, as [`Self::run_until`] does.
    pub async fn stop(self) {
        self.app.stop().await;
    }
}

/// The settings of a [`Runner`] to build.
#[must_use]
pub struct Builder {
    settings: Settings,
    roles: Roles,
    kinds: Kinds,
    throttles: Vec<(String, BTreeMap<String, Value>)>,
    /// True if no knobs file can have the throttle for jobs that name none.
    brings_default: bool,
    schedules: Vec<NewSchedule>,
}

impl Builder {
    /// Sets the URL of the Postgres that holds the jobs.
    pub fn database_url(mut self, url: impl Into<String>) -> Self {
        self.settings.database_url = url.into();
        self
    }

    /// Sets the URL of the Redis that holds the throttles.
    pub fn redis_url(mut self, url: impl Into<String>) -> Self {
        self.settings.redis_url = url.into();
        self
    }

    /// Sets the prefix of every Redis key.
    pub fn redis_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.redis_prefix = prefix.into();
        self
    }

    /// Sets the number of jobs that run at once, 1 to 10000.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.settings.concurrency = jobs;
        self
    }

    /// Runs only jobs of these throttles; `*` at the end of a name stands for any rest.
    pub fn serve_throttles<T: Into<String>>(
        mut self,
        throttles: impl IntoIterator<Item = T>,
    ) -> Self {
        self.settings.serve_throttles = throttles.into_iter().map(Into::into).collect();
        self
    }

    /// Runs only these of its kinds, by the same rule.
    pub fn serve_kinds<T: Into<String>>(mut self, kinds: impl IntoIterator<Item = T>) -> Self {
        self.settings.serve_kinds = kinds.into_iter().map(Into::into).collect();
        self
    }

    /// Sends only messages of these of its pools, by the same rule.
    pub fn serve_pools<T: Into<String>>(mut self, pools: impl IntoIterator<Item = T>) -> Self {
        self.settings.serve_pools = pools.into_iter().map(Into::into).collect();
        self
    }

    /// Changes any other settings, as `default.toml` describes them.
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Adds an async function of typed arguments as a kind.
    pub fn kind<A, F, R>(mut self, name: impl Into<String>, run: F) -> Self
    where
        A: serde::de::DeserializeOwned + Send + 'static,
        F: Fn(A, Context) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.kinds.register_typed(name, run);
        self
    }

    /// Adds a typed handler under its own kind.
    pub fn typed<H: TypedHandler>(mut self, handler: H) -> Self {
        self.kinds.add(handler);
        self
    }

    /// Adds a handler under this kind.
    pub fn handler(mut self, kind: impl Into<String>, handler: impl Handler) -> Self {
        self.kinds.register(kind, handler);
        self
    }

    /// Adds every handler of `kinds`.
    pub fn kinds(mut self, kinds: Kinds) -> Self {
        self.kinds.extend(kinds);
        self
    }

    /// Creates a throttle with these knobs if it does not exist yet; an existing throttle keeps its
    /// knobs. Without an answer of Redis it is created as soon as there is one.
    pub fn throttle<'a>(
        mut self,
        name: impl Into<String>,
        knobs: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Self {
        let knobs = knobs
            .into_iter()
            .map(|(knob, value)| (knob.to_owned(), value))
            .collect();
        self.throttles.push((name.into(), knobs));
        self
    }

    /// Declares a schedule, which is created, or changed to this if it exists. A schedule that is
    /// no longer declared stays.
    pub fn cron(mut self, schedule: NewSchedule) -> Self {
        self.schedules.push(schedule);
        self
    }

    /// Sets the roles of the process; without this it only runs jobs.
    pub fn roles(mut self, roles: Roles) -> Self {
        self.roles = roles;
        self
    }

    /// Connects, migrates the schema and starts.
    ///
    /// Fails before anything is changed if a setting, a knob, the name of a kind or the form of a
    /// schedule is wrong; and if Postgres does not answer within 30 seconds, or refuses a schedule.
    /// Without Redis it starts, and jobs wait until it is there.
    pub async fn build(self) -> anyhow::Result<Runner> {
        // Invalid settings are reported before anything is changed.
        self.settings.validate()?;
        for schedule in &self.schedules {
            let problems = schedule.problems();
            if !problems.is_empty() {
                let error = crate::cron::Error::Invalid(problems);
                return Err(
                    anyhow::Error::new(error).context(format!("the schedule {:?}", schedule.name))
                );
            }
        }
        let mut own = Vec::new();
        let empty = MemoryStore::new(Arc::new(|| 0));
        for (name, knobs) in &self.throttles {
            let (name, fields) = (
                Name::or_pattern(name.as_str())?,
                Knobs::check(knobs).map_err(Error::Invalid)?,
            );
            let change = seeded(fields);
            // One that an empty store refuses would never be created, and its jobs would wait.
            if let Err(error) = empty.set(&name, &change).await {
                let place = format!("the throttle {:?}", name.as_str());
                return Err(anyhow::Error::new(error).context(place));
            }
            own.push((name, change));
        }
        let has_default = own.iter().any(|(name, _)| name.as_str() == Name::DEFAULT);
        if self.brings_default && self.settings.knobs_dir.is_empty() && !has_default {
            let usual = start::default_throttle()?;
            let fields = usual.fields.into_iter();
            let fields = fields.map(|(field, text)| (field, Some(text))).collect();
            own.push((usual.name, seeded(fields)));
        }
        let app = App::start_with(&self.settings, self.roles, self.kinds, own).await?;
        let declared = async {
            let schedules = Schedules::of(&app.queue);
            for schedule in &self.schedules {
                schedules.set(schedule).await?;
            }
            anyhow::Ok(())
        };
        match declared.await {
            Ok(()) => Ok(Runner { app }),
            Err(error) => {
                app.stop().await;
                Err(error)
            }
        }
    }
}

/// Returns the change that creates a throttle of the program.
fn seeded(fields: BTreeMap<String, Option<String>>) -> Change {
    Change {
        fields,
        by: "program".to_owned(),
        why: "seeded by the program".to_owned(),
        create: true,
        absent_only: true,
        ..Change::default()
    }
}
