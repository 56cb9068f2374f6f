//! `flyball cron list|show|set|delete|pause|resume|run|next`.

use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::choice::choice;
use super::exit::CliError;
use super::given_text::{given_text, json_of};
use super::output::say;
use super::retry_args::RetryArgs;
use super::signed::AuditArgs;
use super::{connect, missing_throttles, output, when};
use crate::api::jobs::redact::mask_schedule;
use crate::config::Settings;
use crate::cron::schedule::{CATCH_UPS, OVERLAPS};
use crate::cron::{
    self, CatchUp, NewSchedule, Overlap, RunNowOutcome, Schedule, Schedules, Timing,
};
use crate::input;
use crate::jobs::{NewJob, Queue};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List all schedules with their next and last occurrences
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one schedule: its times, its job with the arguments, and the outcome of the last run
    Show {
        /// The name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a schedule, or replace the one with this name
    Set(Box<Set>),
    /// Delete a schedule; its jobs stay
    Delete(One),
    /// Pause a schedule; occurrences missed while it is paused are not caught up
    Pause(One),
    /// Resume a paused schedule from its next occurrence
    Resume(One),
    /// Enqueue the job of a schedule now, in addition to its occurrences
    Run(One),
    /// Show the next occurrences of a schedule, or of a cron expression
    Next(NextArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  flyball cron set nightly-report '30 2 * * *' report --time-zone Europe/Berlin --throttle reports
  flyball cron set heartbeat '*/5 * * * *' http --args '{\"url\":\"https://example.com/beat\"}' --overlap allow")]
pub(super) struct Set {
    /// The name
    name: String,
    /// Cron expression: minute hour day-of-month month day-of-week, optionally with a leading
    /// second, or a macro such as @daily
    expression: String,
    /// Kind of its jobs, e.g. http
    kind: String,
    /// Arguments of its jobs as JSON, @FILE, or - for standard input
    #[arg(long, default_value = "{}")]
    args: String,
    /// The time zone of the expression, e.g. Europe/Berlin
    #[arg(long, default_value = "UTC")]
    time_zone: String,
    /// The throttle of its jobs
    #[arg(long, default_value = "default")]
    throttle: String,
    /// The rate-limit key of its jobs
    #[arg(long, default_value = "")]
    key: String,
    /// 0 runs first, 3 last
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    priority: i32,
    /// Attempts before a job is dead, 1 to 1000
    #[arg(long, default_value_t = 10, allow_negative_numbers = true)]
    max_attempts: i32,
    /// Tokens that a job takes from its throttle
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    cost: f64,
    /// Longest time of one attempt: a span such as 10m, or seconds
    #[arg(long, value_name = "SPAN", allow_negative_numbers = true, value_parser = when::seconds)]
    timeout: Option<f64>,
    /// A short text by which people find its jobs; repeat it for several
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    #[command(flatten)]
    retry: RetryArgs,
    /// After a downtime: one run for all missed occurrences, all of them (at most 100), or none
    #[arg(long, default_value = "one", value_parser = catch_up)]
    catch_up: CatchUp,
    /// While the last job is unfinished: skip the occurrence, or allow a second job
    #[arg(long, default_value = "skip", value_parser = overlap)]
    overlap: Overlap,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
pub(super) struct One {
    /// The name
    name: String,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
pub(super) struct NextArgs {
    /// The name
    #[arg(required_unless_present = "expression")]
    name: Option<String>,
    /// Use this expression instead of a schedule
    #[arg(long, conflicts_with = "name")]
    expression: Option<String>,
    /// The time zone of the expression
    #[arg(long, default_value = "UTC", conflicts_with = "name")]
    time_zone: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    if let Command::Next(next) = &command {
        check_expression(next)?;
    }
    let queue = match command {
        Command::List { .. } => connect::lists(&settings).await?,
        _ => connect::queue(&settings).await?,
    };
    let schedules = Schedules::of(&queue);
    match command {
        Command::List { json } => list(&schedules, json).await?,
        Command::Show { name, json } => show(&schedules, &name, json).await?,
        Command::Set(set) => make(&queue, &schedules, &settings, *set).await?,
        Command::Delete(one) => delete(&queue, &schedules, &one).await?,
        Command::Pause(one) => turn(&queue, &schedules, one, true).await?,
        Command::Resume(one) => turn(&queue, &schedules, one, false).await?,
        Command::Run(one) => run_now(&queue, &schedules, &one).await?,
        Command::Next(next) => preview(&schedules, next).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a wrong expression without a database.
fn check_expression(next: &NextArgs) -> Result<(), cron::Error> {
    match &next.expression {
        Some(expression) => Timing::checked(expression, &next.time_zone)
            .map(drop)
            .map_err(cron::Error::Invalid),
        None => Ok(()),
    }
}

async fn show(schedules: &Schedules, name: &str, json: bool) -> anyhow::Result<()> {
    let stands = found(schedules, name).await?;
    if json {
        return output::json(&stands);
    }
    print_schedule(&stands)
}

async fn delete(queue: &Queue, schedules: &Schedules, one: &One) -> anyhow::Result<()> {
    if !schedules.delete(&one.name).await? {
        bail!(unknown(&one.name));
    }
    one.signed.note(queue, "cron.delete", &one.name, None).await;
    answer(one, "deleted")
}

async fn run_now(queue: &Queue, schedules: &Schedules, one: &One) -> anyhow::Result<()> {
    let job = match schedules.run_now(&one.name).await? {
        RunNowOutcome::NotFound => bail!(unknown(&one.name)),
        RunNowOutcome::Job(job) => job,
    };
    let after = json!({ "job_id": job.id, "duplicate": job.duplicate });
    one.signed
        .note(queue, "cron.run", &one.name, Some(after))
        .await;
    match (one.signed.json, job.duplicate) {
        (true, _) => output::json(&job)?,
        (false, true) => say!(
            "job {} of {} is unfinished; no other job was created",
            job.id,
            one.name
        ),
        (false, false) => say!("enqueued job {}", job.id),
    }
    Ok(())
}

/// Returns a schedule as people see it.
async fn found(schedules: &Schedules, name: &str) -> anyhow::Result<Schedule> {
    let Some(stands) = schedules.get(name).await? else {
        bail!(unknown(name))
    };
    Ok(mask_schedule(stands))
}

async fn list(schedules: &Schedules, json: bool) -> anyhow::Result<()> {
    let all = schedules.list().await?;
    let all: Vec<Schedule> = all.into_iter().map(mask_schedule).collect();
    if json {
        return output::json(&json!({ "crons": all }));
    }
    let header = [
        "NAME",
        "EXPRESSION",
        "TIME ZONE",
        "KIND",
        "THROTTLE",
        "NEXT",
        "LAST",
        "JOB",
        "NOTE",
    ];
    output::table(&header, all.iter().map(row))
}

fn print_schedule(one: &Schedule) -> anyhow::Result<()> {
    let timing = Timing::new(&one.expression, &one.time_zone).ok();
    say!("schedule   {}", one.name);
    say!("expression {}", one.expression);
    say!("time zone  {}", one.time_zone);
    say!("kind       {}", one.kind);
    say!("args       {}", one.args);
    say!("throttle   {}", one.throttle);
    if !one.key.is_empty() {
        say!("key        {}", one.key);
    }
    if one.paused {
        say!("paused     no occurrences until it is resumed");
    }
    if let Some(problem) = &one.problem {
        say!("problem    {problem}");
    }
    let last_job = one
        .last_job_id
        .map_or(String::new(), |id| format!(", job {id}"));
    say!(
        "last       {}{last_job}",
        one.last_at
            .map_or("never".to_owned(), |at| local(timing.as_ref(), at))
    );
    if !one.paused {
        say!("next");
        print_times(&one.expression, &one.time_zone, &one.upcoming)?;
    }
    Ok(())
}

fn row(one: &Schedule) -> Vec<String> {
    let timing = Timing::new(&one.expression, &one.time_zone).ok();
    let shown = |at: Option<Timestamp>| at.map_or("-".to_owned(), |at| local(timing.as_ref(), at));
    let next = one
        .next_at
        .or(one.upcoming.first().copied())
        .filter(|_| !one.paused);
    let mut notes = Vec::new();
    if one.paused {
        notes.push("paused".to_owned());
    }
    notes.extend(one.problem.clone());
    vec![
        one.name.clone(),
        one.expression.clone(),
        one.time_zone.clone(),
        one.kind.clone(),
        one.throttle.clone(),
        shown(next),
        shown(one.last_at),
        one.last_job_id.map_or("-".to_owned(), |id| id.to_string()),
        notes.join("; "),
    ]
}

/// Returns true if two states of a schedule differ at most in what its occurrences change.
fn is_equal(before: &Schedule, after: &Schedule) -> bool {
    let set = |one: &Schedule| Schedule {
        next_at: None,
        upcoming: Vec::new(),
        last_at: None,
        last_job_id: None,
        skipped_at: None,
        updated_at: Timestamp::UNIX_EPOCH,
        ..one.clone()
    };
    set(before) == set(after)
}

async fn make(
    queue: &Queue,
    schedules: &Schedules,
    settings: &Settings,
    set: Set,
) -> anyhow::Result<()> {
    let signed = set.signed;
    for (name, number) in [("cost", Some(set.cost)), ("timeout", set.timeout)] {
        if let Some(number) = number.filter(|number| !(*number > 0.0 && *number <= 1e9)) {
            bail!(CliError::Refused(format!(
                "{name}: is {number}; allowed is a number above 0; no schedule was changed"
            )));
        }
    }
    let job = NewJob {
        throttle: set.throttle,
        key: set.key,
        priority: set.priority,
        max_attempts: set.max_attempts,
        cost: set.cost,
        timeout_s: set.timeout,
        tags: set.tags,
        retry: set.retry.waits(),
        ..NewJob::new(set.kind, args_of(&set.args)?)
    };
    // Built-in kinds check their arguments now; those of other kinds are checked by their workers.
    let issues = crate::app::built_in_kinds(settings, None)?.check(&job.kind, &job.args);
    if !issues.is_empty() {
        bail!(CliError::Refused(format!(
            "{}; no schedule was changed",
            input::listed("args", &issues)
        )));
    }
    let schedule = NewSchedule::new(set.name, set.expression, job)
        .time_zone(set.time_zone)
        .catch_up(set.catch_up)
        .overlap(set.overlap);
    let before = schedules.get(&schedule.name).await?;
    let is_new = schedules.set(&schedule).await?;
    let Some(after) = schedules.get(&schedule.name).await? else {
        bail!(unknown(&schedule.name))
    };
    let done = match before {
        _ if is_new => "created",
        Some(before) if is_equal(&before, &after) => "unchanged",
        _ => "changed",
    };
    let stands = mask_schedule(after);
    let after = json!({ "expression": stands.expression, "time_zone": stands.time_zone, "kind": stands.kind, "args": stands.args });
    signed
        .note(queue, "cron.set", &schedule.name, Some(after))
        .await;
    missing_throttles::tell(settings, std::iter::once(stands.throttle.as_str())).await;
    if signed.json {
        return output::json(&stands);
    }
    let paused = if stands.paused {
        ", and stays paused"
    } else {
        ""
    };
    say!(
        "schedule {} is {done}{paused}; next occurrences:",
        stands.name
    );
    print_times(&stands.expression, &stands.time_zone, &stands.upcoming)
}

async fn turn(queue: &Queue, schedules: &Schedules, one: One, paused: bool) -> anyhow::Result<()> {
    let changed = schedules.pause(&one.name, paused).await?;
    let stands = found(schedules, &one.name).await?;
    if changed {
        let action = if paused { "cron.pause" } else { "cron.resume" };
        one.signed.note(queue, action, &one.name, None).await;
    }
    if one.signed.json {
        return output::json(&stands);
    }
    answer(&one, if paused { "paused" } else { "running" })
}

async fn preview(schedules: &Schedules, next: NextArgs) -> anyhow::Result<()> {
    let (expression, time_zone, upcoming, problem) = match (next.expression, next.name) {
        (Some(expression), _) => {
            let timing =
                Timing::checked(&expression, &next.time_zone).map_err(cron::Error::Invalid)?;
            let upcoming = timing.preview(schedules.now().await?);
            (expression, next.time_zone, upcoming, None)
        }
        (None, name) => {
            let name = name.unwrap_or_default();
            let stands = found(schedules, &name).await?;
            let problem = if stands.paused {
                Some("it is paused".to_owned())
            } else {
                stands.problem
            };
            (
                stands.expression,
                stands.time_zone,
                stands.upcoming,
                problem,
            )
        }
    };
    if next.json {
        return output::json(
            &json!({ "expression": expression, "time_zone": time_zone, "upcoming": upcoming, "problem": problem }),
        );
    }
    if let Some(problem) = problem {
        say!("note: {problem}");
    }
    print_times(&expression, &time_zone, &upcoming)
}

fn print_times(expression: &str, time_zone: &str, upcoming: &[Timestamp]) -> anyhow::Result<()> {
    let timing = Timing::new(expression, time_zone).ok();
    for at in upcoming {
        say!("  {}  {at}", local(timing.as_ref(), *at));
    }
    Ok(())
}

/// Returns a time as the clocks of the schedule's zone show it.
fn local(timing: Option<&Timing>, at: Timestamp) -> String {
    match timing {
        Some(timing) => timing
            .local(at)
            .strftime("%a %Y-%m-%d %H:%M:%S %:z")
            .to_string(),
        None => at.to_string(),
    }
}

fn answer(one: &One, result: &str) -> anyhow::Result<()> {
    if one.signed.json {
        return output::json(&json!({ "name": one.name, "result": result }));
    }
    say!("schedule {} is {result}", one.name);
    Ok(())
}

fn unknown(name: &str) -> CliError {
    CliError::NotFound(format!("there is no schedule {name}"))
}

fn args_of(text: &str) -> anyhow::Result<Value> {
    let text = given_text(text)?;
    let refused = |wrong| CliError::Refused(format!("{wrong}; no schedule was changed"));
    Ok(json_of("args", &text).map_err(refused)?)
}

fn catch_up(text: &str) -> Result<CatchUp, String> {
    choice(text, &CATCH_UPS)
}

fn overlap(text: &str) -> Result<Overlap, String> {
    choice(text, &OVERLAPS)
}
