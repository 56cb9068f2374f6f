//! `flyball enqueue`.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr as _;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::exit::CliError;
use super::given_text::{given_text, json_of, lost, unreadable, without_mark};
use super::output::{say, tell};
use super::retry_args::RetryArgs;
use super::{connect, exit, missing_throttles, output, when};
use crate::api::http::fields::Errors;
use crate::api::jobs::input::{self, KnownKinds};
use crate::app;
use crate::config::Settings;
use crate::jobs::{AfterFailure, Enqueued, Error, Kinds, NewJob};

/// Most jobs in one statement.
const BATCH: usize = 1000;

/// Most wrong fields that are listed; the rest is counted.
const WRONG_SHOWN: usize = 20;

/// The fate of jobs that were sent and not answered.
const UNSURE: &str = "it is not known whether anything was enqueued; look before you repeat it \
                      (a job with a unique key is enqueued once)";

/// The arguments about one job, which the lines of a file say themselves.
const OF_ONE_JOB: [&str; 26] = [
    "kind",
    "args",
    "throttle",
    "key",
    "priority",
    "run_at",
    "max_attempts",
    "unique_key",
    "unique_for",
    "cost",
    "traceparent",
    "timeout",
    "debounce",
    "debounce_max",
    "replace",
    "group",
    "tags",
    "after",
    "after_failure",
    "on_complete",
    "on_dead",
    "webhook_secret",
    "retry_delay",
    "retry_factor",
    "retry_max_delay",
    "count",
];

#[derive(clap::Args)]
#[command(after_help = "Examples:
  flyball enqueue http --args '{\"url\":\"https://example.com/hook\",\"method\":\"POST\"}' --throttle hooks --key customer-7
  flyball enqueue reindex --args @reindex.json --throttle reindex --unique-key docs
  flyball enqueue notification --args @message.json --throttle mail        the throttle is the pool's name
  flyball enqueue --file jobs.ndjson        one job per line, with the fields of POST /api/v1/jobs")]
pub(super) struct Args {
    /// Kind of the job, e.g. http, notification or reindex
    #[arg(required_unless_present = "file")]
    kind: Option<String>,
    /// Arguments as JSON, @FILE, or - for standard input
    #[arg(long, default_value = "{}")]
    args: String,
    /// The throttle of the job
    #[arg(long, default_value = "default")]
    throttle: String,
    /// The rate-limit key, e.g. a customer
    #[arg(long, default_value = "")]
    key: String,
    /// 0 runs first, 3 last
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    priority: i32,
    /// Earliest start: a time such as 2026-11-20T14:00:00Z, or a span from now such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ahead)]
    run_at: Option<jiff::Timestamp>,
    /// Attempts before the job is dead, 1 to 1000
    #[arg(long, default_value_t = 10, allow_negative_numbers = true)]
    max_attempts: i32,
    /// Unique key: no second job is created while an unfinished job of this kind has it
    #[arg(long)]
    unique_key: Option<String>,
    /// Time for which the unique key stays taken, even after the job has finished: a span such as
    /// 1h, or seconds
    #[arg(long, value_name = "SPAN", requires = "unique_key", allow_negative_numbers = true, value_parser = when::seconds)]
    unique_for: Option<f64>,
    /// Tokens that the job takes from its throttle
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    cost: f64,
    /// The caller's trace, as a W3C traceparent
    #[arg(long)]
    traceparent: Option<String>,
    /// Longest time of one attempt, instead of the kind's own timeout: a span such as 10m, or
    /// seconds
    #[arg(long, value_name = "SPAN", allow_negative_numbers = true, value_parser = when::seconds)]
    timeout: Option<f64>,
    /// Time to wait for a further job with this unique key, which replaces the waiting one
    #[arg(long, value_name = "SPAN", requires = "unique_key", allow_negative_numbers = true, value_parser = when::seconds)]
    debounce: Option<f64>,
    /// Longest time from the first of such jobs to the run of the last; ten times --debounce if
    /// absent
    #[arg(long, value_name = "SPAN", requires = "debounce", allow_negative_numbers = true, value_parser = when::seconds)]
    debounce_max: Option<f64>,
    /// Replace the waiting job with this unique key
    #[arg(long, requires = "unique_key")]
    replace: bool,
    /// The number of the group that the job joins
    #[arg(long, value_name = "ID", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    group: Option<i64>,
    /// A short text by which people find the job; repeat it for several
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// The number of a job after whose end this one runs; repeat it for several
    #[arg(long, value_name = "ID", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    after: Vec<i64>,
    /// If one of those does not complete: cancel this job, or run it anyway
    #[arg(long, value_name = "ACTION", requires = "after", value_parser = AfterFailure::from_str)]
    after_failure: Option<AfterFailure>,
    /// The URL that is called when the job has completed
    #[arg(long, value_name = "URL")]
    on_complete: Option<String>,
    /// The URL that is called when the job is dead
    #[arg(long, value_name = "URL")]
    on_dead: Option<String>,
    /// The name of the secret that signs these calls
    #[arg(long, value_name = "NAME")]
    webhook_secret: Option<String>,
    #[command(flatten)]
    retry: RetryArgs,
    /// Enqueue this many copies
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Read jobs from FILE, one JSON object per line; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_ONE_JOB)]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let as_json = args.json;
    // The lines of a file; without one all jobs are alike.
    let (jobs, lines) = match &args.file {
        Some(file) => read_file(file, &app::built_in_kinds(&settings, None)?)?,
        None => {
            let one = one_job(&args)?;
            let here = |_: usize| String::new();
            check_args(std::slice::from_ref(&one), &settings, here, "enqueued")?;
            (vec![one; args.count as usize], Vec::new())
        }
    };
    let queue = connect::queue(&settings).await?;
    let bar = progress(jobs.len());
    let mut enqueued: Vec<Enqueued> = Vec::with_capacity(jobs.len());
    for (nth, batch) in jobs.chunks(BATCH).enumerate() {
        let done = queue.enqueue(batch).await.map_err(|error| {
            placed(error, batch.len() == 1, |at| {
                let line = lines.get(nth * BATCH + at)?;
                Some(format!("{}, line {line}: ", name_of(args.file.as_ref()?)))
            })
        });
        let done: Vec<Enqueued> = match done {
            Err(error) if nth > 0 => {
                let rest = match error.is_unsure() {
                    true => format!("it is not known whether the next {} were", batch.len()),
                    false => "the rest was not".to_owned(),
                };
                let (first, why) = (nth * BATCH, exit::message(&error.into()));
                bail!(CliError::Partly(format!(
                    "the first {first} jobs were enqueued, {rest}: {why}"
                )))
            }
            Err(error) if error.is_unsure() => {
                return Err(anyhow::Error::new(error).context(UNSURE));
            }
            done => done.context("nothing was enqueued")?,
        };
        enqueued.extend(done);
        bar.inc(batch.len() as u64);
    }
    bar.finish_and_clear();
    report(&enqueued, as_json)?;
    let throttles = jobs.iter().map(|job| job.throttle.as_str());
    missing_throttles::tell(&settings, throttles).await;
    Ok(ExitCode::SUCCESS)
}

fn one_job(args: &Args) -> anyhow::Result<NewJob> {
    let numbers = [
        ("cost", Some(args.cost)),
        ("unique_for", args.unique_for),
        ("timeout", args.timeout),
        ("debounce", args.debounce),
        ("debounce_max", args.debounce_max),
    ];
    for (name, number) in numbers {
        if let Some(number) = number.filter(|number| !number.is_finite()) {
            bail!(CliError::Refused(format!(
                "{name}: is {number}; allowed is a number above 0; nothing was enqueued"
            )));
        }
    }
    let text = given_text(&args.args)?;
    let value = json_of("args", &text)
        .map_err(|wrong| CliError::Refused(format!("{wrong}; nothing was enqueued")))?;
    Ok(NewJob {
        throttle: args.throttle.clone(),
        key: args.key.clone(),
        priority: args.priority,
        run_at: args.run_at,
        max_attempts: args.max_attempts,
        unique_key: args.unique_key.clone(),
        unique_for: args.unique_for,
        cost: args.cost,
        traceparent: args.traceparent.clone(),
        timeout_s: args.timeout,
        debounce_s: args.debounce,
        debounce_max_s: args.debounce_max,
        replace: args.replace,
        group: args.group,
        tags: args.tags.clone(),
        after: args.after.clone(),
        after_failure: args.after_failure,
        on_complete: args.on_complete.clone(),
        on_dead: args.on_dead.clone(),
        webhook_secret: args.webhook_secret.clone(),
        retry: args.retry.waits(),
        ..NewJob::new(args.kind.clone().unwrap_or_default(), value)
    })
}

/// Returns the refusal of one job among several with the job's place; a job that is `alone` has no
/// index.
pub(super) fn placed(
    error: Error,
    alone: bool,
    place: impl FnOnce(usize) -> Option<String>,
) -> Error {
    match error {
        Error::Refused {
            index,
            field,
            message,
        } => {
            let place = index.or(alone.then_some(0)).and_then(place);
            let field = format!("{}{field}", place.unwrap_or_default());
            Error::Refused {
                index,
                field: field.trim_end_matches([':', '/', ' ']).to_owned(),
                message,
            }
        }
        other => other,
    }
}

fn name_of(file: &Path) -> String {
    if file.as_os_str() == "-" {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    }
}

/// Reads the jobs of a file with the numbers of their lines, or refuses its first line that is
/// wrong.
fn read_file(file: &Path, kinds: &Kinds) -> anyhow::Result<(Vec<NewJob>, Vec<usize>)> {
    let reader: Box<dyn BufRead> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let open = std::fs::File::open(file).map_err(|error| unreadable(file, error))?;
        Box::new(std::io::BufReader::new(open))
    };
    let (mut jobs, mut lines) = (Vec::new(), Vec::new());
    let name = name_of(file);
    for (at, line) in reader.lines().enumerate() {
        let refused = |reason: &str| {
            CliError::Refused(format!(
                "{name}, line {}: {reason}; nothing was enqueued",
                at + 1
            ))
        };
        let line = match line {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                bail!(refused("is not UTF-8 text"))
            }
            line => line.with_context(|| format!("cannot read {name}"))?,
        };
        let line = match at {
            0 => without_mark(&line),
            _ => line.as_str(),
        };
        if line.trim().is_empty() {
            continue;
        }
        // The parser has its own wording for broken syntax.
        let value = serde_json::from_str::<Value>(line).map_err(|error| {
            refused(&format!(
                "is not JSON from column {} on; allowed is one job per line",
                error.column()
            ))
        })?;
        if let Some(wrong) = lost("", line) {
            bail!(refused(&wrong));
        }
        let job = job_of(value, kinds).map_err(|wrong| refused(&wrong))?;
        jobs.push(job);
        lines.push(at + 1);
    }
    if jobs.is_empty() {
        bail!(CliError::Refused(format!("{name} holds no jobs")));
    }
    Ok((jobs, lines))
}

/// Reads a job as `POST /api/v1/jobs` does, or returns everything that is wrong with it. A kind may
/// be one that only other processes run: the queue knows them.
fn job_of(value: Value, kinds: &Kinds) -> Result<NewJob, String> {
    if value.is_array() {
        return Err("is a list; allowed is one job per line, as an object".to_owned());
    }
    let elsewhere: Vec<String> = input::kinds_named(&value).map(str::to_owned).collect();
    let known = KnownKinds {
        here: kinds,
        elsewhere: &elsewhere,
    };
    input::one(value, &known).map_err(|errors| wrong_fields(&errors, ""))
}

/// Returns everything that is wrong with the fields below `place`, in one line.
pub(super) fn wrong_fields(errors: &Errors, place: &str) -> String {
    let shown = errors.listed.iter().take(WRONG_SHOWN);
    let mut wrong: Vec<String> = shown
        .map(|error| {
            let at = format!("{place}{}", error.pointer);
            match at.trim_start_matches('/') {
                "" => error.message.clone(),
                field => format!("{field}: {}", error.message),
            }
        })
        .collect();
    let more = errors.total.saturating_sub(wrong.len());
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    wrong.join("; ")
}

/// Checks the arguments of built-in kinds before anything is enqueued; those of other kinds are
/// checked by their workers. A wrong argument is named behind the place of its job.
pub(super) fn check_args(
    jobs: &[NewJob],
    settings: &Settings,
    place: impl Fn(usize) -> String,
    done: &str,
) -> anyhow::Result<()> {
    let kinds = app::built_in_kinds(settings, None)?;
    let mut wrong = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        let place = place(at);
        let issues = kinds.check(&job.kind, &job.args);
        wrong.extend(
            issues
                .iter()
                .map(|issue| format!("{place}args{}: {}", issue.pointer, issue.message)),
        );
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let more = wrong.len().saturating_sub(WRONG_SHOWN);
    wrong.truncate(WRONG_SHOWN);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    bail!(CliError::Refused(format!(
        "{}; nothing was {done}",
        wrong.join("; ")
    )))
}

fn progress(jobs: usize) -> ProgressBar {
    if jobs <= BATCH || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} jobs, {eta} left")
        .unwrap_or(ProgressStyle::default_bar());
    ProgressBar::new(jobs as u64).with_style(style)
}

fn report(enqueued: &[Enqueued], as_json: bool) -> anyhow::Result<()> {
    let duplicates = enqueued.iter().filter(|one| one.duplicate).count();
    match (enqueued, as_json) {
        (all, true) => output::json(&json!({ "jobs": all }))?,
        ([one], false) if one.replaced => say!(
            "job {} was waiting and has been replaced by this \
                                                job",
            one.id
        ),
        ([one], false) if one.duplicate => say!(
            "job {} holds the unique key already; nothing was enqueued",
            one.id
        ),
        ([one], false) => say!("enqueued job {}", one.id),
        (all, false) if duplicates > 0 => say!(
            "enqueued {}; {duplicates} {}",
            output::jobs(all.len() - duplicates),
            if duplicates == 1 {
                "was a duplicate"
            } else {
                "were duplicates"
            }
        ),
        (all, false) => say!("enqueued {}", output::jobs(all.len())),
    }
    if let Some(over) = enqueued
        .iter()
        .filter_map(|one| one.backlog)
        .max_by_key(|backlog| backlog.depth)
    {
        tell!(
            "a lane has {} ready jobs; its throttle's max_backlog is {}: send less",
            over.depth,
            over.max
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_about_one_job_excludes_a_file_of_jobs() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("enqueue"));
        let all = command.get_arguments().map(|one| one.get_id().as_str());
        let mut about_one: Vec<&str> = all.filter(|id| !["file", "json"].contains(id)).collect();
        let mut excluded = OF_ONE_JOB.to_vec();
        about_one.sort_unstable();
        excluded.sort_unstable();
        assert_eq!(about_one, excluded);
    }
}
