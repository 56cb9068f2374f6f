//! `flyball pool list|show|resume|requeue-unsent`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use super::bulk::broken_off;
use super::exit::CliError;
use super::output::{say, tell};
use super::signed::AuditArgs;
use super::{connect, output};
use crate::config::Settings;
use crate::notify::{AccountEvent, Alarms, Deliveries};
use crate::providers::pool::{AccountPool, Change, PoolView, observe};
use crate::providers::{Pool, Pools};
use crate::throttle::redis::RedisStore;

/// The most changes of breakers that are shown with a pool.
const EVENTS_SHOWN: i64 = 10;

/// The most messages that one step requeues.
const REQUEUED_PER_STEP: u32 = 1000;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the pools of the settings with their capacity
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one pool: the state of each account, and the last changes of their breakers
    Show {
        /// The name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End the block of an account and close its breaker, for instance because its owner has paid
    Resume {
        /// The pool
        name: String,
        /// The account
        account: String,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Run messages again that died because no account was available; their deadlines count from
    /// now
    RequeueUnsent {
        /// The pool
        name: String,
        /// Stop after this many messages
        #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
        #[command(flatten)]
        signed: AuditArgs,
    },
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let pools = settings.pools_without_credentials();
    match command {
        Command::List { json } => list(&pools, json, &settings).await?,
        Command::Show { name, json } => show(named(&pools, &name)?, json, &settings).await?,
        Command::Resume {
            name,
            account,
            signed,
        } => {
            let pool = named(&pools, &name)?;
            check_account(pool, &account)?;
            resume(pool, &account, &signed, &settings).await?;
        }
        Command::RequeueUnsent {
            name,
            limit,
            signed,
        } => {
            named(&pools, &name)?;
            requeue_unsent(&name, limit, &signed, &settings).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(pools: &Pools, json: bool, settings: &Settings) -> anyhow::Result<()> {
    let (store, mut views) = (connect::redis(settings).await?, Vec::new());
    for pool in pools.0.values() {
        let (opened, _) = open(pool, &store)?;
        views.push(observe(&opened).await?);
    }
    if json {
        return output::json(&json!({ "pools": views }));
    }
    let header = [
        "NAME",
        "PROVIDER",
        "CHANNEL",
        "AVAILABLE",
        "CAPACITY",
        "CONFIGURED",
    ];
    output::table(&header, views.iter().map(|view| row(view)))
}

async fn show(pool: &Pool, json: bool, settings: &Settings) -> anyhow::Result<()> {
    let (opened, _) = open(pool, &connect::redis(settings).await?)?;
    let view = observe(&opened).await?;
    let alarms = Alarms::new(connect::queue(settings).await?);
    let events = alarms.newest(&pool.name, EVENTS_SHOWN).await?;
    if json {
        let mut shown = serde_json::to_value(&view)?;
        shown["events"] = json!(events);
        return output::json(&shown);
    }
    print_pool(&view, &events)
}

/// Refuses an account that the pool does not have.
fn check_account(pool: &Pool, account: &str) -> Result<(), CliError> {
    if pool.account(account).is_some() {
        return Ok(());
    }
    let all = pool.accounts.iter().map(|one| one.account.name.as_str());
    let all: Vec<&str> = all.collect();
    Err(CliError::NotFound(format!(
        "pool {} has no account {account}; it has {}",
        pool.name,
        all.join(", ")
    )))
}

async fn requeue_unsent(
    name: &str,
    limit: Option<u32>,
    signed: &AuditArgs,
    settings: &Settings,
) -> anyhow::Result<()> {
    let queue = connect::queue(settings).await?;
    let deliveries = Deliveries::new(&queue.pool);
    let mut jobs = 0;
    let held = loop {
        let left = limit.map_or(u64::from(REQUEUED_PER_STEP), |limit| {
            u64::from(limit) - jobs
        });
        let step = u32::try_from(left)
            .unwrap_or(REQUEUED_PER_STEP)
            .min(REQUEUED_PER_STEP);
        let signature = signed.signature();
        let requeued = match deliveries.requeue_unsent(name, step, &signature).await {
            Err(error) if jobs > 0 => {
                return Err(broken_off(error, &again(jobs, name), limit.is_some()));
            }
            requeued => requeued?,
        };
        jobs += requeued.jobs;
        let is_full = limit.is_some_and(|limit| jobs >= u64::from(limit));
        if !requeued.more || requeued.jobs == 0 || is_full {
            // The limit is reached without those that were left.
            break if is_full { 0 } else { requeued.skipped };
        }
    };
    let again = again(jobs, name);
    if held > 0 {
        bail!(CliError::Held(format!(
            "{again}; open transactions hold {held} more; try again later"
        )));
    }
    if signed.json {
        return output::json(&json!({ "pool": name, "jobs": jobs }));
    }
    say!("{again}");
    Ok(())
}

/// Returns the number of requeued messages for people.
fn again(jobs: u64, pool: &str) -> String {
    match jobs {
        1 => format!("1 message of pool {pool} runs again"),
        _ => format!("{jobs} messages of pool {pool} run again"),
    }
}

async fn resume(
    pool: &Pool,
    account: &str,
    signed: &AuditArgs,
    settings: &Settings,
) -> anyhow::Result<()> {
    let (opened, mut changes) = open(pool, &connect::redis(settings).await?)?;
    let changed = opened.resume(account).await?;
    // The account is resumed; a failure to record that is only a warning.
    let recorded = async {
        let queue = connect::queue(settings).await?;
        let alarms = Alarms::new(queue.clone());
        while let Ok((_, change)) = changes.try_recv() {
            alarms.record_change(pool, &change).await?;
        }
        let subject = format!("{}/{account}", pool.name);
        let after = json!({ "changed": changed });
        signed
            .note(&queue, "account.resume", &subject, Some(after))
            .await;
        anyhow::Ok(())
    };
    if let Err(error) = recorded.await {
        let message = super::exit::message(&error);
        tell!("flyball: writing the audit log failed: {message}");
    }
    if signed.json {
        return output::json(&json!({ "pool": pool.name, "account": account, "changed": changed }));
    }
    match changed {
        true => say!("account {account} of pool {} is resumed", pool.name),
        false => say!("account {account} of pool {} was flowing", pool.name),
    }
    Ok(())
}

/// Opens a pool to read or change it; the changes of its breakers come through the receiver.
fn open(
    pool: &Pool,
    store: &Arc<RedisStore>,
) -> anyhow::Result<(AccountPool, mpsc::UnboundedReceiver<(String, Change)>)> {
    let (tell, changes) = mpsc::unbounded_channel();
    let opened = AccountPool::open(pool.clone(), store.clone(), store.clone(), tell)?;
    Ok((opened, changes))
}

/// Observes the pool of this name once; `None` if the settings have none, or Redis does not answer.
pub(super) async fn seen(settings: &Settings, name: &str) -> Option<Arc<PoolView>> {
    let pools = settings.pools_without_credentials();
    let store = connect::redis(settings).await.ok()?;
    let (opened, _changes) = open(pools.get(name)?, &store).ok()?;
    observe(&opened).await.ok()
}

fn named<'a>(pools: &'a Pools, name: &str) -> anyhow::Result<&'a Pool> {
    let missing = || {
        let all: Vec<&str> = pools.0.keys().map(String::as_str).collect();
        let all = all.join(", ");
        CliError::NotFound(format!(
            "there is no pool {name} in the settings; they have {all}"
        ))
    };
    Ok(pools.get(name).ok_or_else(missing)?)
}

fn row(view: &PoolView) -> Vec<String> {
    vec![
        view.name.clone(),
        view.provider.clone(),
        view.channel.clone(),
        format!("{} of {}", view.available, view.accounts.len()),
        rate(view.capacity_rps),
        rate(view.configured_rps),
    ]
}

fn print_pool(view: &PoolView, events: &[AccountEvent]) -> anyhow::Result<()> {
    say!("pool       {}", view.name);
    say!("provider   {}, channel {}", view.provider, view.channel);
    say!(
        "capacity   {} of {} messages a second; {} of {} accounts are available",
        rate(view.capacity_rps),
        rate(view.configured_rps),
        view.available,
        view.accounts.len()
    );
    let header = ["ACCOUNT", "STATE", "UNTIL", "LIMIT", "LEARNED", "WHY"];
    output::table(
        &header,
        view.accounts.iter().map(|one| {
            let until = one
                .until_ms
                .and_then(|ms| Timestamp::from_millisecond(ms).ok());
            vec![
                one.name.clone(),
                one.state.as_str().to_owned(),
                until.map_or_else(String::new, |until| format!("{until:.0}")),
                output::rate(one.limit_rps),
                one.learned_rps.map_or_else(String::new, output::number),
                output::clipped(&one.why, 80),
            ]
        }),
    )?;
    for event in events {
        let (at, account, from, to) = (event.at, &event.account, &event.from, &event.to);
        say!("{at:.0}  {account}: {from} to {to}: {}", event.reason);
    }
    Ok(())
}

fn rate(rps: Option<f64>) -> String {
    rps.map_or_else(|| "unlimited".to_owned(), output::number)
}
