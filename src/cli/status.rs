//! `flyball status`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::output::say;
use super::{connect, exit, output, pause};
use crate::api::served;
use crate::app;
use crate::config::Settings;
use crate::jobs::postgres::{Depths, KindCost, READ_ONLY};
use crate::jobs::serving::{UnservedJobs, differences};
use crate::jobs::{Depth, OpenGroups, Pause};
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
    let status = SystemStatus::read(&settings).await?;
    match args.json {
        true => status.print_json()?,
        false => status.print()?,
    }
    // The output is as complete as possible, but a script must learn that a service is away.
    match status.store_lost {
        Some(_) => Ok(ExitCode::from(exit::UNAVAILABLE)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The status of everything, as far as the stores answer.
struct SystemStatus {
    paused: Option<Pause>,
    /// True if Postgres accepts no writes.
    is_read_only: bool,
    /// The number of live processes with the role `runner`.
    workers: usize,
    /// True if some process hands jobs to workers in other programs.
    has_brokers: bool,
    differences: Vec<String>,
    unserved: Vec<UnservedJobs>,
    replica: Option<ReplicaState>,
    depths: Depths,
    costs: Vec<KindCost>,
    open_groups: OpenGroups,
    /// The throttles that the store knows.
    rates: BTreeMap<String, Status>,
    /// The reason for which the store, or a part of it, does not answer.
    store_lost: Option<String>,
}

impl SystemStatus {
    async fn read(settings: &Settings) -> anyhow::Result<Self> {
        let queue = connect::queue(settings).await?;
        let replica = app::open_replica(settings, 2)?;
        let (rates, store_lost) = read_rates(settings).await?;
        let serving = queue.serving().await?;
        let workers = serving.iter().filter(|worker| !worker.is_broker).count();
        Ok(Self {
            paused: queue.paused().await?,
            is_read_only: queue.status().await?.is_read_only,
            workers,
            has_brokers: workers < serving.len(),
            differences: differences(&serving),
            unserved: queue.unserved().await?,
            replica: match &replica {
                Some(replica) => Some(replica.measure().await),
                None => None,
            },
            depths: queue.depths().await?,
            costs: queue.kind_costs().await?,
            open_groups: queue.count_open_groups(OPEN_GROUP_AGE).await?,
            rates,
            store_lost,
        })
    }

    /// Returns the counted jobs of each throttle.
    fn jobs(&self) -> BTreeMap<&str, &Depth> {
        let depths = self.depths.throttles.iter();
        depths
            .map(|depth| (depth.throttle.as_str(), depth))
            .collect()
    }

    /// Returns the names of all throttles that the store knows or that jobs name.
    fn names(&self) -> BTreeSet<&str> {
        let counted = self.depths.throttles.iter();
        let counted = counted.map(|depth| depth.throttle.as_str());
        counted
            .chain(self.rates.keys().map(String::as_str))
            .collect()
    }

    fn print_json(&self) -> anyhow::Result<()> {
        let jobs = self.jobs();
        let throttles: Vec<_> = self
            .names()
            .into_iter()
            .map(|name| {
                let rate = self.rates.get(name);
                json!({
                    "name": name,
                    "effective_rps": rate.map(|status| status.effective_rps),
                    "paused": rate.map(|status| status.knobs.paused),
                    "depth": jobs.get(name),
                })
            })
            .collect();
        output::json(&json!({
            "paused": self.paused,
            "read_only": self.is_read_only,
            "workers": self.workers,
            "differences": self.differences,
            "unserved": self.unserved,
            "open_groups": self.open_groups,
            "store_lost": self.store_lost,
            "replica": self.replica.as_ref().map(|replica| json!({
                "used": replica.unused.is_none(),
                "lag_s": replica.lag.map(|lag| lag.as_secs_f64()),
                "unused": replica.unused,
            })),
            "counted_at": self.depths.at,
            "counts_age_s": self.depths.age.map(|age| age.as_secs_f64()),
            "counts_kept": self.depths.is_kept,
            "throttles": throttles,
            "costs": self
                .costs
                .iter()
                .map(|one| json!({"kind": one.kind, "attempts": one.attempts, "mean_cost": one.mean}))
                .collect::<Vec<_>>(),
        }))
    }

    fn print(&self) -> anyhow::Result<()> {
        if self.is_read_only {
            say!("no job starts: {READ_ONLY}");
        }
        match &self.paused {
            Some(paused) => say!("everything is {}", pause::sentence(paused)),
            None => say!("running: no pause of everything"),
        }
        // Workers report by a write, so without writes none looks alive, and none is missed.
        let are_workers_unknown = self.is_read_only && self.workers == 0;
        match self.workers {
            0 if are_workers_unknown => {
                say!("live workers are unknown: none can report to this database");
            }
            0 if self.has_brokers => {
                say!(
                    "0 live workers: {}; {}",
                    served::NO_RUNNER,
                    served::START_ONE
                );
            }
            0 => say!("0 live workers: no job runs; {}", served::START_ONE),
            1 => say!("1 live worker"),
            workers => say!("{workers} live workers"),
        }
        for difference in &self.differences {
            say!("difference: {difference}");
        }
        for one in self.unserved.iter().filter(|_| !are_workers_unknown) {
            say!("{}", unserved(one));
        }
        if let Some(oldest) = self.open_groups.oldest_at {
            say!("{}", forgotten(self.open_groups.groups, oldest));
        }
        if let Some(reason) = &self.store_lost {
            say!("{reason}");
        }
        if let Some(replica) = &self.replica {
            say!("{}", lists_are_read(replica));
        }
        match (served::age_of(&self.depths), self.depths.at) {
            (Some(age), _) => say!("jobs {age}"),
            (None, Some(at)) => say!("jobs counted at {at:.0}"),
            (None, None) => {}
        }
        self.print_throttles()?;
        self.print_costs()
    }

    fn print_throttles(&self) -> anyhow::Result<()> {
        let jobs = self.jobs();
        let header = ["THROTTLE", "RPS", "READY", "SCHEDULED", "RUNNING", "DEAD"];
        // The API's own throttles have no waiting jobs.
        let names = self.names().into_iter();
        let shown = names.filter(|name| !name.starts_with("api:"));
        let row = |name: &str| {
            let rate = match self.rates.get(name) {
                Some(status) if status.knobs.paused => "paused".to_owned(),
                Some(status) => output::rate(status.effective_rps),
                None => String::new(),
            };
            let count =
                |read: fn(&Depth) -> i64| jobs.get(name).map_or(0, |depth| read(depth)).to_string();
            vec![
                name.to_owned(),
                rate,
                count(|d| d.ready),
                count(|d| d.scheduled),
                count(|d| d.running),
                count(|d| d.dead),
            ]
        };
        output::table(&header, shown.map(row))
    }

    fn print_costs(&self) -> anyhow::Result<()> {
        if self.costs.is_empty() {
            return Ok(());
        }
        let header = ["KIND", "ATTEMPTS", "MEAN COST"];
        let row = |one: &KindCost| {
            vec![
                one.kind.clone(),
                one.attempts.to_string(),
                output::number(one.mean),
            ]
        };
        output::table(&header, self.costs.iter().map(row))
    }
}

/// Describes the groups that nobody sealed.
fn forgotten(groups: i64, oldest: Timestamp) -> String {
    let told = match groups {
        1 => format!(
            "1 group is open for more than a day, since {oldest:.0}: nobody sealed it, so it never \
             ends"
        ),
        _ => format!(
            "{groups} groups are open for more than a day, the oldest since {oldest:.0}: nobody \
             sealed them, so they never end"
        ),
    };
    format!("{told}; see flyball group list --state open")
}

/// Reads the throttles, and the reason for which some are missing: jobs are in Postgres, and
/// without Redis only the rates of their throttles are missing.
async fn read_rates(
    settings: &Settings,
) -> anyhow::Result<(BTreeMap<String, Status>, Option<String>)> {
    let mut rates = BTreeMap::new();
    let store = match connect::throttles(settings).await {
        Ok(store) => store,
        Err(error) => return Ok((rates, Some(exit::message(&error)))),
    };
    let mut lost = None;
    for name in store.names().await? {
        match store.status(&name).await {
            Ok(status) => rates.extend(status.map(|status| (name.to_string(), status))),
            // One server of a cluster is lost; the others still answer.
            Err(error @ throttle::Error::Lost(_)) => lost = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((rates, lost))
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
