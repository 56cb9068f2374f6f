//! `flyball job list|show|cancel|retry`.

use std::process::ExitCode;

use anyhow::bail;

use super::exit::Failure;
use super::output::say;
use super::{connect, output};
use crate::config::Settings;
use crate::jobs::{CancelAnswer, Detail, Filter, RetryAnswer, State, Summary};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List jobs, newest first
    List(List),
    /// Show one job: its state, its attempts, its errors
    Show(One),
    /// Cancel a job: at once if it waits; a running one is asked to stop
    Cancel(One),
    /// Run a dead, retryable or scheduled job now
    Retry(One),
}

#[derive(clap::Args)]
pub(super) struct List {
    /// Only jobs in this state: scheduled, ready, running, retryable, completed, cancelled, dead
    #[arg(long, value_parser = parse_state)]
    state: Option<State>,
    /// Only jobs of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only jobs of this throttle
    #[arg(long)]
    throttle: Option<String>,
    /// Only jobs with this key
    #[arg(long)]
    key: Option<String>,
    /// Only jobs older than this one
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// At most so many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..=1000))]
    limit: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct One {
    /// The job's number
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    match command {
        Command::List(list) => {
            let jobs = queue
                .list(&Filter {
                    state: list.state,
                    kind: list.kind,
                    throttle: list.throttle,
                    key: list.key,
                    before: list.before,
                    limit: list.limit,
                })
                .await?;
            if list.json {
                output::json(&serde_json::json!({ "jobs": jobs }))?;
            } else {
                let header = ["ID", "STATE", "KIND", "THROTTLE", "KEY", "ATTEMPT", "CREATED", "ERROR"];
                output::table(&header, jobs.iter().map(row))?;
            }
        }
        Command::Show(one) => {
            let Some(job) = queue.get(one.id).await? else { bail!(unknown(one.id)) };
            if one.json { output::json(&job)? } else { show(&job)? }
        }
        Command::Cancel(one) => {
            let said = match queue.cancel(one.id).await? {
                CancelAnswer::Cancelled => "cancelled",
                CancelAnswer::Requested => "asked to stop",
                CancelAnswer::Ended(state) => {
                    bail!(Failure::Refused(format!("job {} is {} already", one.id, word(state))))
                }
                CancelAnswer::NotFound => bail!(unknown(one.id)),
            };
            answer(one, said)?;
        }
        Command::Retry(one) => match queue.retry(one.id).await? {
            RetryAnswer::Ready => answer(one, "ready")?,
            RetryAnswer::Refused(state) => bail!(Failure::Refused(format!(
                "job {} is {}; only dead, retryable and scheduled jobs can be run again",
                one.id,
                word(state)
            ))),
            RetryAnswer::NotFound => bail!(unknown(one.id)),
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(one: One, said: &str) -> anyhow::Result<()> {
    if one.json {
        return output::json(&serde_json::json!({ "id": one.id, "result": said }));
    }
    say!("job {} is {said}", one.id);
    Ok(())
}

fn unknown(id: i64) -> Failure {
    Failure::NotFound(format!("there is no job {id}"))
}

fn row(job: &Summary) -> Vec<String> {
    vec![
        job.id.to_string(),
        word(job.state),
        job.kind.clone(),
        job.throttle.clone(),
        job.key.clone(),
        format!("{}/{}", job.attempt, job.max_attempts),
        format!("{:.0}", job.created_at),
        job.last_error.clone().unwrap_or_default().chars().take(80).collect(),
    ]
}

fn show(job: &Detail) -> anyhow::Result<()> {
    let head = &job.summary;
    say!("job        {}", head.id);
    say!("state      {}{}", word(head.state), if job.cancelling { ", asked to stop" } else { "" });
    say!("kind       {}", head.kind);
    say!("throttle   {}", head.throttle);
    if !head.key.is_empty() {
        say!("key        {}", head.key);
    }
    say!("priority   {}", head.priority);
    say!("attempt    {} of {}", head.attempt, head.max_attempts);
    say!("cost       {}", head.cost);
    say!("created    {:.0}", head.created_at);
    if let Some(due) = head.due_at {
        say!("due        {due:.0}");
    }
    if let Some(worker) = &job.worker {
        say!("worker     {worker}");
    }
    if let Some(progress) = &job.progress {
        let percent = progress.percent.map(|percent| format!("{percent:.1} %, ")).unwrap_or_default();
        say!("progress   {percent}{}", progress.note);
    }
    say!("args       {}", job.args);
    for attempt in &job.attempts {
        let error = attempt.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        say!("attempt {}  {} at {:.0}{error}", attempt.attempt, attempt.outcome, attempt.finished_at);
    }
    Ok(())
}

fn parse_state(text: &str) -> Result<State, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| "allowed are scheduled, ready, running, retryable, completed, cancelled, dead".to_owned())
}

pub(super) fn word(state: State) -> String {
    serde_json::to_value(state).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
