//! `flyball status`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::output::say;
use super::{connect, output, pause};
use crate::api::served;
use crate::app;
use crate::config::Settings;
use crate::jobs::Depth;
use crate::jobs::postgres::KindCost;
use crate::jobs::serving::{UnservedJobs, differences};
use crate::postgres::ReplicaState;
use crate::throttle::{self, Status};

/// The age from which a group that nobody sealed counts as forgotten.
const OPEN_GROUP_AGE: Duration = Duration::from_secs(86_400);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    let paused = queue.paused().await?;
    let workers = queue.live_workers().await?;
    let differences = differences(&queue.serving().await?);
    let unserved = queue.unserved().await?;
    let replica = app::open_replica(&settings, 2)?;
    let replica = match &replica {
        Some(replica) => Some(replica.measure().await),
        None => None,
    };
    let depths = queue.depths().await?;
    let costs = queue.kind_costs().await?;
    let open_groups = queue.count_open_groups(OPEN_GROUP_AGE).await?;
    // Jobs are in Postgres: without Redis only the rates of their throttles are missing.
    let mut rates: BTreeMap<String, Status> = BTreeMap::new();
    let mut store_lost = None;
    match connect::throttles(&settings).await {
        Ok(store) => {
            for name in store.names().await? {
                match store.status(&name).await {
                    Ok(status) => rates.extend(status.map(|status| (name.to_string(), status))),
                    // One server of a cluster is lost; the others still answer.
                    Err(error @ throttle::Error::Lost(_)) => store_lost = Some(error.to_string()),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Err(error) => store_lost = Some(super::exit::message(&error)),
    }
    let jobs: BTreeMap<&str, &Depth> = depths
        .throttles
        .iter()
        .map(|depth| (depth.throttle.as_str(), depth))
        .collect();
    let mut names: Vec<&str> = jobs
        .keys()
        .copied()
        .chain(rates.keys().map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();

    // The output is as complete as possible, but a script must learn that a service is away.
    let code = if store_lost.is_some() {
        ExitCode::from(69)
    } else {
        ExitCode::SUCCESS
    };
    if args.json {
        let throttles: Vec<_> = names
            .iter()
            .map(|name| {
                let rate = rates.get(*name);
                json!({
                    "name": name,
                    "effective_rps": rate.map(|status| status.effective_rps),
                    "paused": rate.map(|status| status.knobs.paused),
                    "depth": jobs.get(name),
                })
            })
            .collect();
        output::json(&json!({
            "paused": paused,
            "workers": workers,
            "differences": differences,
            "unserved": unserved,
            "open_groups": open_groups,
            "store_lost": store_lost,
            "replica": replica.as_ref().map(|replica| json!({
                "used": replica.unused.is_none(),
                "lag_s": replica.lag.map(|lag| lag.as_secs_f64()),
                "unused": replica.unused,
            })),
            "counted_at": depths.at,
            "counts_age_s": depths.age.map(|age| age.as_secs_f64()),
            "counts_kept": depths.is_kept,
            "throttles": throttles,
            "costs": costs
                .iter()
                .map(|one| json!({"kind": one.kind, "attempts": one.attempts, "mean_cost": one.mean}))
                .collect::<Vec<_>>(),
        }))?;
        return Ok(code);
    }
    match &paused {
        Some(paused) => say!("everything is {}", pause::sentence(paused)),
        None => say!("running: no pause of everything"),
    }
    match workers {
        0 => say!("0 live workers: no job runs; {}", served::START_ONE),
        1 => say!("1 live worker"),
        _ => say!("{workers} live workers"),
    }
    for difference in &differences {
        say!("difference: {difference}");
    }
    for one in &unserved {
        say!("{}", self::unserved(one));
    }
    if let Some(oldest) = open_groups.oldest_at {
        say!(
            "{} groups are open for more than a day, the oldest since {oldest:.0}: nobody sealed \
             them, so they never end; see flyball group list --state open",
            open_groups.groups
        );
    }
    if let Some(reason) = &store_lost {
        say!("{reason}");
    }
    if let Some(replica) = &replica {
        say!("{}", lists_are_read(replica));
    }
    match (served::age_of(&depths), depths.at) {
        (Some(age), _) => say!("jobs {age}"),
        (None, Some(at)) => say!("jobs counted at {at:.0}"),
        (None, None) => {}
    }
    let header = ["THROTTLE", "RPS", "READY", "SCHEDULED", "RUNNING", "DEAD"];
    // The API's own throttles have no waiting jobs.
    let shown = names.iter().filter(|name| !name.starts_with("api:"));
    output::table(
        &header,
        shown.map(|name| {
            let rate = rates.get(*name).map_or_else(String::new, |status| {
                if status.knobs.paused {
                    "paused".to_owned()
                } else {
                    output::rate(status.effective_rps)
                }
            });
            let count =
                |read: fn(&Depth) -> i64| jobs.get(name).map_or(0, |depth| read(depth)).to_string();
            vec![
                (*name).to_owned(),
                rate,
                count(|d| d.ready),
                count(|d| d.scheduled),
                count(|d| d.running),
                count(|d| d.dead),
            ]
        }),
    )?;
    if !costs.is_empty() {
        let header = ["KIND", "ATTEMPTS", "MEAN COST"];
        let row = |one: &KindCost| {
            vec![
                one.kind.clone(),
                one.attempts.to_string(),
                output::number(one.mean),
            ]
        };
        output::table(&header, costs.iter().map(row))?;
    }
    Ok(code)
}

/// Describes the server from which lists are read, in one sentence.
fn lists_are_read(replica: &ReplicaState) -> String {
    match (&replica.unused, replica.lag) {
        (Some(reason), _) => {
            format!("lists are read from the primary and not from the replica: {reason}")
        }
        (None, lag) => format!(
            "lists are read from the replica, which lags by {:.1} s",
            lag.unwrap_or_default().as_secs_f64()
        ),
    }
}

/// Describes jobs that no live worker serves, in one sentence.
pub(super) fn unserved(one: &UnservedJobs) -> String {
    let what = match &one.kind {
        Some(kind) => format!("kind {kind}, throttle {}", one.throttle),
        None => format!("throttle {}", one.throttle),
    };
    let since = one.since.map_or_else(String::new, |since| {
        format!(", the oldest since {since:.0}")
    });
    let jobs = if one.jobs == 1 { "job" } else { "jobs" };
    format!(
        "not served: {} {jobs} of {what}{since}: {}",
        one.jobs, one.remedy
    )
}
