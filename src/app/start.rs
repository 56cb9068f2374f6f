//! Assembles the rooms into a process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use prometheus_client::registry::Registry;

use super::faults::Faults;
use super::http_api::RunningApi;
use super::kinds::{built_in_kinds, kinds_served, tune};
use super::loops::Loops;
use super::otel::{self, Traces};
use super::prepare::prepare;
use super::roles::Roles;
use super::seeding::{STARTUP_TIMEOUT, Seeding};
use super::{descriptors, replica};
use crate::config::{self, Settings};
use crate::cron::{self, Schedules};
use crate::jobs::postgres::{KindRetention, Retention, Schema};
use crate::jobs::serving::Serves;
use crate::jobs::{self, Kinds, Queue, SecretKeys};
use crate::postgres::{Replica, UnusablePostgres, connect_options, reach};
#[cfg(feature = "notifications")]
use crate::providers::pool::AccountPool;
use crate::runner::{self, Worker, WorkerMetrics};
use crate::service::DueWork;
use crate::throttle::postgres::KnobRecord;
use crate::throttle::{
    self, Change, KnobsFile, LeasedStore, Name, PatternStore, RedisStore, Store,
};
use crate::trace::Tracer;

/// The error for a Postgres that cannot be used.
pub(crate) const NO_POSTGRES: &str = "cannot reach Postgres";

/// Longest name of a kind, in bytes.
const KIND_BYTES_MAX: usize = 128;

/// Longest wait for the loops of a process that stops. The running requests have ten seconds.
const LOOPS_END: Duration = Duration::from_secs(11);

/// The knobs of the throttle for jobs that name none. The program brings them, because without that
/// throttle such jobs would wait for ever.
const DEFAULT_KNOBS: &str = include_str!("../../knobs/default.toml");

/// A running process.
pub struct App {
    /// The queue of jobs in Postgres.
    pub queue: Queue,
    /// The throttles, with tokens leased from Redis.
    pub throttles: Arc<dyn Store>,
    leased: Arc<LeasedStore>,
    /// The address on which the API listens; `None` without that role.
    pub address: Option<SocketAddr>,
    #[cfg(feature = "notifications")]
    pub(super) account_pools: Vec<AccountPool>,
    api: RunningApi,
    worker: Option<Worker>,
    loops: Loops,
    traces: Traces,
}

impl App {
    /// Connects, migrates the schema, seeds knobs, and starts the roles. `more` are kinds besides
    /// the built-in ones.
    pub async fn start(settings: &Settings, roles: Roles, more: Kinds) -> anyhow::Result<Self> {
        Self::start_with(settings, roles, more, Vec::new()).await
    }

    /// Starts like [`App::start`]. `own` are throttles of the program, which are created if they do
    /// not exist.
    pub(super) async fn start_with(
        settings: &Settings,
        roles: Roles,
        more: Kinds,
        own: Vec<(Name, Change)>,
    ) -> anyhow::Result<Self> {
        roles.check()?;
        check_names(&more)?;
        // Wrong settings are refused at once, not when a server is reached.
        let prepared = prepare(settings, roles, &more).await;
        let prepared = prepared.map_err(Faults::into_error)?;
        let redis = Arc::new(redis_store(settings)?);
        let lists = match roles.api {
            true => replica::open(settings, settings.database_connections)?,
            false => None,
        };
        descriptors::raise_limit();
        let api = prepared.api.bind(settings, roles).await?;
        let queue = open_queue(settings, prepared.secret_keys, lists).await?;
        let leased = Arc::new(leased_store(settings, redis.clone()));
        let throttles: Arc<dyn Store> = leased.clone();

        let mut registry = Registry::default();
        let metrics = WorkerMetrics::register(&mut registry);
        let (tracer, traces) = otel::start(&mut registry)?;
        let messages = prepared.messages;
        let messages = messages.open(&queue, &throttles, redis, &mut registry);
        let messages = messages.await?;
        let mut kinds = built_in_kinds(settings, Some(&queue))?;
        messages.add_kinds(&mut kinds, &queue, settings);
        kinds.extend(more);
        tune(&mut kinds, settings);
        leased.register(&mut registry);
        let due = DueWork::default();
        let (stores, parts) = ((&queue, &throttles), (&messages, &prepared.governor));
        let api = api.open(settings, stores, &due, parts, &mut registry);
        let mut loops = Loops::default();
        // A start that fails, or is given up, leaves no loop behind in the program that tried it.
        let until_started = loops.cancel.clone().drop_guard();
        let looks = replica::start(&queue, &loops.vital, &loops.cancel, &mut registry).await;
        #[cfg(feature = "notifications")]
        let account_pools = messages.account_pools();
        let record = KnobRecord::new(queue.pool.clone());
        let seeding = Seeding {
            store: throttles.clone(),
            record,
            files: with_default(prepared.files, &own, settings)?,
            own,
            tenant_limits: settings.tenant_limits(),
            api: api.seeds(settings, roles),
            messages: messages.seeds(),
        };
        let seeds = seeding.start(loops.stop()).await?;
        loops.keep_knobs(&queue, &throttles, settings.tenant_limits());
        loops.tasks.extend(seeds);
        loops.tasks.extend(looks);
        messages.start(settings, roles, &queue, &due, &mut loops);
        let config = worker_config(settings, &tracer);
        let api = api.start(settings, roles, config, &metrics, &kinds, &mut loops);
        let worker = match roles.runner {
            true => {
                let served = kinds_served(settings, &kinds)?;
                let config = runner::Config {
                    due,
                    ..worker_config(settings, &tracer)
                };
                let started = start_worker(config, &queue, &throttles, served, metrics, &mut loops);
                Some(started.await?)
            }
            false => {
                loops.replace_worker(&queue, &throttles);
                None
            }
        };
        let governs = prepared.governor.start(&queue, &throttles, &mut loops);
        let served = match governs {
            Ok(()) => {
                let served = api.serve(settings, kinds, registry, tracer, &mut loops);
                served.await
            }
            Err(error) => Err(error),
        };
        let (address, api) = match served {
            Ok(served) => served,
            Err(error) => {
                if let Some(worker) = worker {
                    worker.stop().await;
                }
                return Err(error);
            }
        };
        drop(until_started.disarm());
        Ok(Self {
            queue,
            throttles,
            leased,
            #[cfg(feature = "notifications")]
            account_pools,
            api,
            address,
            worker,
            loops,
            traces,
        })
    }

    /// Waits until an essential loop has died of a defect, and returns its name.
    pub async fn lost(&self) -> &'static str {
        let of_the_worker = async {
            match &self.worker {
                Some(worker) => worker.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            name = self.loops.vital.lost() => name,
            name = of_the_worker => name,
        }
    }

    /// Stops in order: the worker drains while the API still answers, then everything else ends.
    pub async fn stop(self) {
        self.api.drain();
        let drained = async {
            if let Some(worker) = self.worker {
                worker.stop().await;
            }
        };
        tokio::join!(drained, self.api.send_away());
        self.loops.cancel.cancel();
        // A task that hangs must not keep the process alive; the runtime drops it.
        let _ = tokio::time::timeout(LOOPS_END, join_all(self.loops.tasks)).await;
        let _ = tokio::time::timeout(Duration::from_secs(1), self.leased.give_back_all()).await;
        self.traces.stop().await;
        // Closing waits for all connections in use, and one may be held for long.
        let _ = tokio::time::timeout(Duration::from_secs(2), self.queue.pool.close()).await;
    }
}

/// Refuses kinds with names that cannot be registered.
fn check_names(kinds: &Kinds) -> anyhow::Result<()> {
    for name in kinds.names() {
        let is_fine = (1..=KIND_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
        anyhow::ensure!(
            is_fine,
            "the name of a kind must have 1 to {KIND_BYTES_MAX} bytes without U+0000, not {name:?}"
        );
    }
    Ok(())
}

/// Reaches Postgres, opens the queue in it, and migrates the schema.
async fn open_queue(
    settings: &Settings,
    keys: SecretKeys,
    lists: Option<Replica>,
) -> anyhow::Result<Queue> {
    check_database_url(settings)?;
    reach(&settings.database(), STARTUP_TIMEOUT, true)
        .await
        .map_err(|why| unreachable(why, settings))?;
    let queue = Queue::connect(
        settings.database(),
        settings.database_connections,
        STARTUP_TIMEOUT,
    )
    .await
    .context(NO_POSTGRES)?;
    let queue = queue.with_secret_keys(keys).with_replica(lists);
    queue.refuse_hidden_pooler().await?;
    migrate(&queue).await?;
    queue
        .set_tenant_queue_max(settings.tenant_queue_max)
        .await
        .context("writing the limit of the tenants' queues")?;
    Ok(queue)
}

/// Returns the store that makes throttles from patterns and leases tokens from Redis.
fn leased_store(settings: &Settings, redis: Arc<RedisStore>) -> LeasedStore {
    let patterns = PatternStore::new(redis, settings.throttles_created_max);
    LeasedStore::new(
        Arc::new(patterns),
        Duration::from_millis(settings.token_lease_ms.into()),
    )
}

/// Starts the worker, and the loop of the schedules.
async fn start_worker(
    config: runner::Config,
    queue: &Queue,
    throttles: &Arc<dyn Store>,
    kinds: Kinds,
    metrics: WorkerMetrics,
    loops: &mut Loops,
) -> anyhow::Result<Worker> {
    let schedules = cron::run_schedules(Schedules::of(queue), config.due.clone(), loops.stop());
    loops.spawn("cron", schedules);
    Worker::start(config, queue.clone(), throttles.clone(), kinds, metrics)
        .await
        .map_err(refused_settings)
}

/// Refuses a URL of the database that cannot be parsed. The error of the driver does not show the
/// URL.
pub(crate) fn check_database_url(settings: &Settings) -> Result<(), config::Error> {
    connect_options(&settings.database_url)
        .map(drop)
        .map_err(|error| {
            config::Error::at(
                "DATABASE_URL (setting database_url)",
                format!("must be a URL like postgres://user@host/database ({error})"),
            )
        })
}

/// Builds the error for a Postgres that cannot be used, with a note if `DATABASE_URL` is not set.
pub(crate) fn unreachable(why: UnusablePostgres, settings: &Settings) -> anyhow::Error {
    let message = match settings.database_url == Settings::defaults().database_url {
        true => format!("{NO_POSTGRES}: {why}; set DATABASE_URL or database_url: neither is set"),
        false => NO_POSTGRES.to_owned(),
    };
    anyhow::Error::new(why).context(message)
}

/// Returns the store of throttles in the Redis of the settings.
pub(crate) fn redis_store(settings: &Settings) -> Result<RedisStore, throttle::Error> {
    let store = RedisStore::connect(&settings.redis_url, &settings.redis_prefix)?;
    Ok(store.with_bound(Duration::from_millis(settings.redis_timeout_ms.into())))
}

/// Returns the text of the error for a schema whose migration `version` has another text in this
/// program.
pub(crate) fn unreleased_schema(version: i64) -> String {
    format!(
        "the schema was made by a version of Flyball that was not released (its migration {version} \
         is not that of this program) and cannot be brought up to date: set DATABASE_URL to a new \
         database, or run `drop schema flyball cascade` in this one, which deletes every job, and \
         then flyball migrate"
    )
}

/// Migrates the schema and returns the number of migrations run. Fails if a newer program has taken
/// away what this one needs, and if no released program made the schema.
pub(crate) async fn migrate(queue: &Queue) -> anyhow::Result<usize> {
    match queue.schema().await {
        Ok(Some(Schema::TooNew(version))) => anyhow::bail!(UnusablePostgres::Never(format!(
            "the schema is too new for this program (unknown migration {version}): upgrade the \
             program"
        ))),
        Ok(Some(Schema::Unreleased(version))) => {
            anyhow::bail!(UnusablePostgres::Never(unreleased_schema(version)))
        }
        Ok(Some(Schema::Newer(version))) => tracing::warn!(
            migration = version,
            "the schema is that of a newer program, which this one can run beside: upgrade it soon"
        ),
        _ => {}
    }
    queue.migrate().await.context("migrating the schema failed")
}

pub(super) fn died(name: &str) -> anyhow::Error {
    anyhow::anyhow!("the loop {name:?} died, which is a defect of this program; see the log above")
}

fn worker_config(settings: &Settings, tracer: &Tracer) -> runner::Config {
    runner::Config {
        concurrency: settings.concurrency,
        ttl: Duration::from_secs_f64(settings.worker_ttl_s),
        grace: Duration::from_secs_f64(settings.grace_s),
        retention: Retention {
            days: settings.retention_days,
            dead_days: settings.dead_retention_days,
        },
        kind_retentions: kind_retentions(settings),
        serves: Serves {
            throttles: settings.serve_throttles.clone(),
            kinds: settings.serve_kinds.clone(),
            pools: settings.serve_pools.clone(),
        },
        may_differ: settings.settings_may_differ,
        tracer: tracer.clone(),
        ..runner::Config::default()
    }
}

/// Returns the kinds to which the settings give a retention of their own.
fn kind_retentions(settings: &Settings) -> Vec<KindRetention> {
    // The settings have been validated, so every number of seconds is in range.
    let span = |seconds: Option<f64>| seconds.map(Duration::from_secs_f64);
    let kinds = settings.kinds.iter();
    let kept = kinds.map(|(kind, set)| KindRetention {
        kind: kind.clone(),
        finished: span(set.retention_s),
        dead: span(set.dead_retention_s),
    });
    kept.filter(|kept| kept.finished.is_some() || kept.dead.is_some())
        .collect()
}

/// Returns the throttle for jobs that name none.
pub(super) fn default_throttle() -> anyhow::Result<KnobsFile> {
    let file = KnobsFile::parse(Path::new("default.toml"), DEFAULT_KNOBS.to_owned())?;
    Ok(file)
}

/// Adds the knobs of the throttle for jobs that name none, unless a file of the settings or the
/// program has them, or the settings want none at all.
fn with_default(
    mut files: Vec<KnobsFile>,
    own: &[(Name, Change)],
    settings: &Settings,
) -> anyhow::Result<Vec<KnobsFile>> {
    let usual = default_throttle()?;
    let mut names = files
        .iter()
        .map(|file| &file.name)
        .chain(own.iter().map(|(name, _)| name));
    if !settings.knobs_dir.is_empty() && names.all(|name| *name != usual.name) {
        files.push(usual);
    }
    Ok(files)
}

/// Names the settings as the place of a refusal because of them.
fn refused_settings(error: jobs::Error) -> anyhow::Error {
    match error {
        jobs::Error::Refused { field, message, .. } if field == "settings" => {
            config::Error::at("settings", message).into()
        }
        error => error.into(),
    }
}
