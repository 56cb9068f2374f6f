//! Connections for commands: short timeouts, and errors that name the setting.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::exit::CliError;
use super::output::tell;
use super::rules_file;
use crate::app;
use crate::config::Settings;
use crate::jobs::postgres::Schema;
use crate::jobs::{Error, Queue};
use crate::postgres::reach;
use crate::recipient::live_rules::LiveRules;
use crate::recipient::service::Gates;
use crate::throttle::redis::RedisStore;
use crate::throttle::{self, PatternStore, Store, reason_meaning};

/// Longest wait of a command for a server that is just starting.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(5);

/// The lag of the replica from which a reader of a list must know of it.
const TOLD_LAG: Duration = Duration::from_secs(3);

/// Connects to the queue. A missing or older schema is an error, and so is one that is too new or
/// that no released program made.
pub(super) async fn queue(settings: &Settings) -> anyhow::Result<Queue> {
    let queue = database(settings).await?;
    match queue.schema().await.map_err(Error::from)? {
        Some(Schema::Missing) => {
            Err(CliError::NoSchema("there is no schema yet: run flyball migrate".to_owned()).into())
        }
        Some(Schema::Older(missing)) => {
            let text = format!(
                "the schema is older than this program, which has {missing} more migrations: run flyball migrate"
            );
            Err(CliError::NoSchema(text).into())
        }
        Some(Schema::TooNew(version)) => {
            let text = format!(
                "the schema is too new for this program (unknown migration {version}): upgrade the program"
            );
            Err(CliError::NoSchema(text).into())
        }
        Some(Schema::Unreleased(version)) => {
            Err(CliError::NoSchema(app::unreleased_schema(version)).into())
        }
        Some(Schema::Current | Schema::Newer(_)) | None => Ok(queue),
    }
}

/// Connects to the queue for a list, which may be some seconds old: to the replica if the settings
/// name one that can be used, else to the primary. Standard error tells of a lag that matters, and
/// of a replica that cannot be reached or lags too much.
pub(super) async fn lists(settings: &Settings) -> anyhow::Result<Queue> {
    let Some(replica) = app::open_replica(settings, 2)? else {
        return queue(settings).await;
    };
    let state = replica.measure().await;
    let Some(lag) = replica.usable() else {
        let reason = state.unused.unwrap_or_default();
        tell!("flyball: the replica of DATABASE_READ_URL is not used, because {reason}");
        return queue(settings).await;
    };
    let queue = Queue::new(replica.db()).with_secret_keys(app::secret_keys()?);
    match queue.schema().await.map_err(Error::from)? {
        Some(Schema::Current | Schema::Newer(_)) | None => {}
        // A migration has not arrived there yet.
        Some(Schema::Missing | Schema::Older(_) | Schema::TooNew(_) | Schema::Unreleased(_)) => {
            return self::queue(settings).await;
        }
    }
    if lag >= TOLD_LAG {
        tell!(
            "flyball: read from the replica, which lags by {:.1} s",
            lag.as_secs_f64()
        );
    }
    Ok(queue)
}

/// Connects to the database without checking its content.
pub(super) async fn database(settings: &Settings) -> anyhow::Result<Queue> {
    app::check_database_url(settings)?;
    reach(&settings.database(), SERVER_START_TIMEOUT, false)
        .await
        .map_err(|why| app::unreachable(why, settings))?;
    let queue = Queue::connect(settings.database(), 2, SERVER_START_TIMEOUT)
        .await
        .context(app::NO_POSTGRES)?;
    Ok(queue.with_secret_keys(app::secret_keys()?))
}

/// Connects to the throttles; one that does not exist gets the knobs of the pattern that fits.
pub(super) async fn throttles(settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    let store = redis(settings).await?;
    let made_max = settings.throttles_created_max;
    Ok(Arc::new(PatternStore::new(store, made_max)))
}

/// Connects to Redis, which holds the throttles and the states of the accounts of pools.
pub(super) async fn redis(settings: &Settings) -> anyhow::Result<Arc<RedisStore>> {
    let store = app::redis_store(settings)?;
    if let Err(error) = store.names().await {
        let refuses =
            matches!(&error, throttle::Error::Lost(reason) if reason_meaning(reason).is_some());
        let context = match refuses {
            true => "Redis cannot be used",
            false => "cannot reach Redis; set REDIS_URL or redis_url",
        };
        return Err(error).context(context);
    }
    Ok(Arc::new(store))
}

/// Returns the gates of recipients, by the rules of the settings.
pub(super) fn gates(queue: &Queue, settings: &Settings) -> anyhow::Result<Gates> {
    let rules = rules_file::of_settings(settings)?;
    Ok(Gates::new(queue.clone(), LiveRules::new(rules)))
}
