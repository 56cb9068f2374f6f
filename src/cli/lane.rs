//! `flyball lane list|show|weight|purge`.

use std::process::ExitCode;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::bulk::Bulk;
use super::exit::message;
use super::output::{say, tell};
use super::signed::AuditArgs;
use super::{connect, missing_throttles, output};
use crate::api::lanes::list::LaneHold;
use crate::config::Settings;
use crate::jobs::{Attribution, Count, LaneDepth, LanesAfter, Queue};
use crate::throttle::{Error, KeyState, Name};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the lanes of a throttle that had ready jobs at the last count, the deepest first
    List {
        /// The throttle
        throttle: String,
        /// Sort by key, and include lanes without ready jobs
        #[arg(long)]
        by_key: bool,
        /// Only keys after this one
        #[arg(long, value_name = "KEY", requires = "by_key")]
        after: Option<String>,
        /// Maximum number of results
        #[arg(long, default_value_t = 100, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=1000))]
        limit: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one lane: its weight, its waiting jobs and their age
    Show {
        /// The throttle
        throttle: String,
        /// The key; '' for jobs without one
        key: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set the weight of a lane relative to the other lanes of its throttle
    Weight {
        /// The throttle
        throttle: String,
        /// The key; '' for jobs without one
        key: String,
        /// From 0.001 to 1000; 1 by default
        #[arg(allow_negative_numbers = true)]
        weight: f64,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Empty a lane: cancel its waiting jobs; running jobs continue
    Purge {
        /// The throttle
        throttle: String,
        /// The key; '' for jobs without one
        key: String,
        #[command(flatten)]
        bulk: Bulk,
    },
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = &match command {
        Command::List { .. } => connect::lists(&settings).await?,
        _ => connect::queue(&settings).await?,
    };
    match command {
        Command::List {
            throttle,
            by_key,
            after,
            limit,
            json,
        } => {
            let after = match by_key {
                true => LanesAfter::Key(after),
                false => LanesAfter::DEEPEST,
            };
            list(queue, &settings, throttle, after, limit, json).await?;
        }
        Command::Show {
            throttle,
            key,
            json,
        } => {
            show(queue, &settings, throttle, &key, json).await?;
        }
        Command::Weight {
            throttle,
            key,
            weight,
            signed,
        } => {
            let throttle = Name::new(throttle)?;
            let before = queue
                .set_weight(throttle.as_str(), &key, weight, &signed.signature())
                .await?;
            missing_throttles::tell(&settings, std::iter::once(throttle.as_str())).await;
            if signed.json {
                output::json(
                    &json!({ "throttle": throttle, "key": key, "weight": weight, "before": before }),
                )?;
            } else {
                say!("lane {key:?} of {throttle} has the weight {weight}; before it was {before}");
            }
        }
        Command::Purge {
            throttle,
            key,
            bulk,
        } => {
            let (throttle, key, signed) = (
                &Name::new(throttle)?,
                key.as_str(),
                &bulk.signed.signature(),
            );
            let lane = queue.lane_of(throttle.as_str(), key).await?;
            if lane.is_none()
                && queue.count_lane(throttle.as_str(), key, signed).await? == Count::default()
            {
                check_exists(&settings, throttle).await?;
            }
            let step = |walk| -> BoxFuture<'_, _> {
                Box::pin(async move {
                    queue
                        .purge_lane(throttle.as_str(), key, &walk, signed)
                        .await
                })
            };
            bulk.run(
                "cancelled",
                queue.count_lane(throttle.as_str(), key, signed),
                step,
            )
            .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails if there is no throttle of this name. Jobs may wait for one that does not exist, so only a
/// name without lanes and jobs is checked. Without Redis, which has the throttles, nobody can tell.
async fn check_exists(settings: &Settings, name: &Name) -> anyhow::Result<()> {
    let Ok(throttles) = connect::throttles(settings).await else {
        return Ok(());
    };
    match throttles.status(name).await {
        Ok(None) => {
            let (error, made_max) = (Error::Unknown(name.clone()), settings.throttles_created_max);
            Err(missing_throttles::explained(error.into(), &*throttles, made_max).await)
        }
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// Reads pauses and learned rates, which are in Redis; `None` without it, because the rest is shown
/// all the same. Standard error tells why.
async fn key_states(settings: &Settings, name: &Name, keys: &[String]) -> Option<Vec<KeyState>> {
    let read = async {
        let throttles = connect::throttles(settings).await?;
        let states = throttles.look(name, keys).await?;
        anyhow::Ok(states)
    };
    match read.await {
        Ok(states) => Some(states),
        Err(error) => {
            let why = message(&error);
            tell!("flyball: whether keys are held back is unknown: {why}");
            None
        }
    }
}

/// Lists lanes in the order of `after`.
async fn list(
    queue: &Queue,
    settings: &Settings,
    throttle: String,
    after: LanesAfter,
    limit: i64,
    json: bool,
) -> anyhow::Result<()> {
    let shown = Name::new(throttle)?;
    let lanes = queue.lanes_of(shown.as_str(), &after, limit).await?.lanes;
    // An empty page behind others is the end of the list.
    if lanes.is_empty() && !matches!(after, LanesAfter::Key(Some(_))) {
        check_exists(settings, &shown).await?;
    }
    let keys: Vec<String> = lanes.iter().map(|lane| lane.key.clone()).collect();
    let states = key_states(settings, &shown, &keys).await;
    let state = |at: usize| states.as_ref().map(|states| &states[at]);
    if json {
        let lanes = lanes
            .iter()
            .enumerate()
            .map(|(at, lane)| lane_json(lane, state(at)));
        output::json(&json!({ "lanes": lanes.collect::<Vec<_>>() }))?;
    } else {
        if lanes.is_empty() {
            match after {
                LanesAfter::Key(_) => say!("there is no known lane of throttle {shown}"),
                LanesAfter::Depth { .. } => say!(
                    "no lane of throttle {shown} had ready jobs at the last count, some \
                     seconds ago; --by-key lists all"
                ),
            }
            return Ok(());
        }
        let header = ["KEY", "WEIGHT", "READY", "COUNTED", "OLDEST", "HELD"];
        output::table(
            &header,
            lanes
                .iter()
                .enumerate()
                .map(|(at, lane)| row(lane, state(at))),
        )?;
        if states
            .as_ref()
            .is_some_and(|states| states.iter().any(|state| !held(Some(state)).is_empty()))
        {
            say!(
                "free a key, and reset its learned rate: flyball throttle resume {shown} \
                 --key KEY"
            );
        }
    }
    Ok(())
}

async fn show(
    queue: &Queue,
    settings: &Settings,
    throttle: String,
    key: &str,
    json: bool,
) -> anyhow::Result<()> {
    let throttle = Name::new(throttle)?;
    let lane = queue.lane_of(throttle.as_str(), key).await?;
    let waiting = queue
        .count_lane(throttle.as_str(), key, &Attribution::default())
        .await?;
    if waiting == Count::default() && lane.is_none() {
        check_exists(settings, &throttle).await?;
    }
    let weight = lane.as_ref().map_or(1.0, |lane| lane.weight);
    let oldest_at = lane.as_ref().and_then(|lane| lane.oldest_at);
    let first_seen = lane.as_ref().map(|lane| lane.first_seen);
    let states = key_states(settings, &throttle, &[key.to_owned()]).await;
    let state = states.as_ref().and_then(|states| states.first());
    if json {
        output::json(&json!({
            "throttle": throttle,
            "key": key,
            "weight": weight,
            "waiting": waiting,
            "oldest_at": oldest_at,
            "first_seen": first_seen,
            "paused": hold(state).paused,
            "learned": hold(state).learned,
        }))?;
    } else {
        say!("throttle   {throttle}");
        say!("key        {key}");
        say!("weight     {weight}");
        say!("waiting    {waiting}");
        say!("oldest     {}", moment(oldest_at));
        say!("first seen {}", moment(first_seen));
        say!("held       {}", held(state));
    }
    Ok(())
}

fn row(lane: &LaneDepth, state: Option<&KeyState>) -> Vec<String> {
    let (counted, oldest) = (moment(lane.counted_at), moment(lane.oldest_at));
    vec![
        lane.key.clone(),
        lane.weight.to_string(),
        lane.depth.to_string(),
        counted,
        oldest,
        held(state),
    ]
}

/// Returns the limits that hold a key back, in a few words; `?` if Redis did not answer.
fn held(state: Option<&KeyState>) -> String {
    let Some(state) = state else {
        return "?".to_owned();
    };
    let pause = state.paused_until_ms.map(|ms| {
        let until = moment(Timestamp::from_millisecond(ms).ok());
        if state.why.is_empty() {
            format!("paused until {until}")
        } else {
            format!("paused until {until}: {}", state.why)
        }
    });
    let learned = state.learned_rps.map(|rps| {
        if rps > 0.0 {
            format!("learned {rps:.3}/s")
        } else {
            "waits for its quota".to_owned()
        }
    });
    let probing = state.probing.then(|| "on trial".to_owned());
    pause.or(learned).or(probing).unwrap_or_default()
}

/// Returns the pause and the learned rate of a key, as the API shows them.
fn hold(state: Option<&KeyState>) -> LaneHold {
    state.cloned().map(LaneHold::from).unwrap_or_default()
}

fn lane_json(lane: &LaneDepth, state: Option<&KeyState>) -> Value {
    let hold = hold(state);
    json!({
        "key": lane.key,
        "weight": lane.weight,
        "depth": lane.depth,
        "counted_at": lane.counted_at,
        "oldest_at": lane.oldest_at,
        "first_seen": lane.first_seen,
        "paused": hold.paused,
        "learned": hold.learned,
    })
}

fn moment(at: Option<Timestamp>) -> String {
    at.map(|at| format!("{at:.0}")).unwrap_or_default()
}
