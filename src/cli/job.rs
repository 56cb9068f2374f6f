//! `flyball job list|show|cancel|retry|reschedule|update|discard`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::bulk::Bulk;
use super::choice::choice;
use super::exit::CliError;
use super::given_text::filled;
use super::job_answer::{answer, refused, unknown};
use super::output::{say, tell};
use super::search_args::{SEARCH, SearchArgs, options};
use super::signed::AuditArgs;
use super::{connect, job_update, output, when};
use crate::config::Settings;
use crate::jobs::{
    AfterFailure, CancelAnswer, CancelFilter, JobDetail, JobFilter, MoveAnswer, Queue, RetryAnswer,
    State, Summary,
};
use crate::notify::recipient::KIND;
use crate::recipient::fields;
use crate::throttle::Name;

/// Longest time for which a search walks back before it returns its results.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List jobs, newest first
    List(ListArgs),
    /// Show one job: its state, its attempts, its errors
    Show(One),
    /// Cancel one job, or all jobs that match the filters; waiting jobs end at once, running ones
    /// are asked to stop
    Cancel(Cancel),
    /// Run a dead, retryable or scheduled job now
    Retry {
        /// The job's number
        id: i64,
        /// Keep the count of a dead job's used attempts; it gets the remaining ones, at least one
        #[arg(long)]
        keep_attempts: bool,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Postpone a waiting job to a time
    Reschedule {
        /// The job's number
        id: i64,
        /// Earliest start: a time such as 2026-11-20T14:00:00Z, or a span from now such as 2h
        #[arg(long, value_name = "TIME", value_parser = when::ahead)]
        run_at: Timestamp,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Change fields of a waiting job; it keeps its number, its time, its attempts and its unique key
    Update(job_update::Args),
    /// Discard a dead job permanently
    Discard {
        /// The job's number
        id: i64,
        #[command(flatten)]
        signed: AuditArgs,
    },
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only jobs in this state: scheduled, ready, running, retryable, completed, cancelled, dead,
    /// or ended
    #[arg(long, value_parser = parse_search)]
    state: Option<Search>,
    /// Only jobs of this kind
    #[arg(long, value_parser = filled)]
    kind: Option<String>,
    /// Only jobs of this throttle
    #[arg(long, value_parser = filled)]
    throttle: Option<String>,
    /// Only jobs with this key
    #[arg(long)]
    key: Option<String>,
    /// Only dead jobs, and others that failed before, whose last error matches this pattern:
    /// 'timeout%' begins with, '%timeout%' contains
    #[arg(long, value_name = "PATTERN", value_parser = filled)]
    error_like: Option<String>,
    #[command(flatten)]
    search: SearchArgs,
    /// Only jobs that were enqueued at or after a time, or within a span before now such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    created_after: Option<Timestamp>,
    /// Only jobs that were enqueued before a time, or before a span ago such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    created_before: Option<Timestamp>,
    /// Only jobs enqueued before this job
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// Maximum number of results
    #[arg(long, default_value_t = 20, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=1000))]
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

#[derive(clap::Args)]
pub(super) struct Cancel {
    /// The job's number
    #[arg(conflicts_with_all = FILTERS, conflicts_with_all = SEARCH, conflicts_with_all = FOR_MANY)]
    id: Option<i64>,
    /// Only jobs of this kind
    #[arg(long, value_parser = filled)]
    kind: Option<String>,
    /// Only jobs of this throttle
    #[arg(long, value_parser = filled)]
    throttle: Option<String>,
    /// Only jobs with this key
    #[arg(long)]
    key: Option<String>,
    /// Only ready, scheduled, retryable or running jobs
    #[arg(long, value_parser = parse_state)]
    state: Option<State>,
    /// Only jobs that were enqueued at or after a time, or within a span before now such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    created_after: Option<Timestamp>,
    /// Only jobs that were enqueued before a time, or before a span ago such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    created_before: Option<Timestamp>,
    /// Only jobs that failed before, with a last error that matches this pattern: 'timeout%' begins
    /// with, '%timeout%' contains
    #[arg(long, value_name = "PATTERN", value_parser = filled)]
    error_like: Option<String>,
    #[command(flatten)]
    search: SearchArgs,
    #[command(flatten)]
    bulk: Bulk,
}

/// The filters by which many jobs are cancelled.
const FILTERS: [&str; 7] = [
    "kind",
    "throttle",
    "key",
    "state",
    "created_after",
    "created_before",
    "error_like",
];

/// Options that only make sense for many jobs.
const FOR_MANY: [&str; 3] = ["yes", "dry_run", "limit"];

/// The states that a search can ask for.
#[derive(Clone, Copy)]
pub(super) enum Search {
    In(State),
    Ended,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = &match command {
        Command::List(_) => connect::lists(&settings).await?,
        _ => connect::queue(&settings).await?,
    };
    match command {
        Command::List(list) => search(queue, list, &settings).await?,
        Command::Show(one) => show(queue, &one).await?,
        Command::Cancel(Cancel {
            id: Some(id), bulk, ..
        }) => cancel_one(queue, id, &bulk.signed).await?,
        Command::Cancel(many) => cancel_many(queue, many, &settings).await?,
        Command::Retry {
            id,
            keep_attempts,
            signed,
        } => retry(queue, id, keep_attempts, &signed).await?,
        Command::Reschedule { id, run_at, signed } => {
            reschedule(queue, id, run_at, &signed).await?;
        }
        Command::Update(args) => job_update::run(queue, args, &settings).await?,
        Command::Discard { id, signed } => discard(queue, id, &signed).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(queue: &Queue, one: &One) -> anyhow::Result<()> {
    let Some(mut job) = queue.get(one.id).await? else {
        bail!(unknown(one.id))
    };
    crate::api::jobs::redact::mask_args(&job.summary.kind, &mut job.args);
    if one.json {
        return output::json(&job);
    }
    print_job(&job)
}

async fn retry(
    queue: &Queue,
    id: i64,
    keep_attempts: bool,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    let allowed = "only dead, retryable and scheduled jobs can be run again";
    let signature = signed.signature();
    let retried = queue.retry_signed(id, keep_attempts, &signature);
    match retried.await? {
        RetryAnswer::Ready if !signed.json && is_gated(queue, id).await? => {
            let gates = format!(
                "ready; the gates of its recipient are asked again before it is sent, and may hold \
                 it once more: flyball why --message {id}"
            );
            answer(id, false, &gates)
        }
        RetryAnswer::Ready => answer(id, signed.json, "ready"),
        RetryAnswer::Refused(state) => refused(id, state, allowed),
        RetryAnswer::NotFound => bail!(unknown(id)),
    }
}

/// Returns true for a message that passes the gates of its recipient.
async fn is_gated(queue: &Queue, id: i64) -> anyhow::Result<bool> {
    let job = queue.get(id).await?;
    Ok(job.is_some_and(|job| job.summary.kind == KIND && fields::is_gated(&job.args)))
}

async fn reschedule(
    queue: &Queue,
    id: i64,
    run_at: Timestamp,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    let allowed = "only scheduled, ready and retryable jobs can be rescheduled";
    match queue.reschedule(id, run_at, &signed.signature()).await? {
        MoveAnswer::Moved => answer(id, signed.json, &format!("scheduled for {run_at:.0}")),
        MoveAnswer::Refused(state) => refused(id, state, allowed),
        MoveAnswer::NotFound => bail!(unknown(id)),
    }
}

async fn discard(queue: &Queue, id: i64, signed: &AuditArgs) -> anyhow::Result<()> {
    match queue.discard(id, &signed.signature()).await? {
        MoveAnswer::Moved => answer(id, signed.json, "cancelled"),
        MoveAnswer::Refused(state) => refused(id, state, "only dead jobs can be discarded"),
        MoveAnswer::NotFound => bail!(unknown(id)),
    }
}

async fn cancel_one(queue: &Queue, id: i64, signed: &AuditArgs) -> anyhow::Result<()> {
    let result = match queue.cancel_signed(id, &signed.signature()).await? {
        // A second cancellation of the same job has the wanted result.
        CancelAnswer::Cancelled | CancelAnswer::Ended(State::Cancelled) => "cancelled",
        CancelAnswer::Requested => "asked to stop",
        CancelAnswer::Ended(state) => bail!(CliError::Refused(format!(
            "job {id} is already {}",
            state.as_str()
        ))),
        CancelAnswer::NotFound => bail!(unknown(id)),
    };
    answer(id, signed.json, result)
}

async fn cancel_many(queue: &Queue, args: Cancel, settings: &Settings) -> anyhow::Result<()> {
    let (search, bulk) = (args.search, args.bulk);
    let filter = &CancelFilter {
        tenant: search.tenant.clone(),
        group: search.group,
        error_like: args.error_like,
        search: search.search(settings),
        kind: args.kind,
        throttle: args.throttle,
        key: args.key,
        state: args.state,
        created_after: args.created_after,
        created_before: args.created_before,
    };
    let tenant_alone = CancelFilter {
        tenant: filter.tenant.clone(),
        ..CancelFilter::default()
    };
    if *filter == tenant_alone {
        let wanted = match filter.tenant {
            Some(_) => "--tenant alone is not enough; add one or more of",
            None => "give the number of a job, or one or more of",
        };
        bail!(CliError::Refused(format!(
            "{wanted} {}; nothing was cancelled",
            options(&FILTERS)
        )));
    }
    let signed = &bulk.signed.signature();
    let step = |walk| -> BoxFuture<'_, _> {
        Box::pin(async move { queue.cancel_jobs(filter, &walk, signed).await })
    };
    bulk.run("cancelled", queue.count_cancel_jobs(filter, signed), step)
        .await
}

/// Walks back page by page until there are enough jobs, there are no more, or the time is over.
async fn search(queue: &Queue, list: ListArgs, settings: &Settings) -> anyhow::Result<()> {
    if let Some(throttle) = &list.throttle {
        Name::new(throttle.as_str())?;
    }
    let mut filter = JobFilter {
        state: list.state.and_then(|search| match search {
            Search::In(state) => Some(state),
            Search::Ended => None,
        }),
        ended: matches!(list.state, Some(Search::Ended)),
        kind: list.kind,
        throttle: list.throttle,
        key: list.key,
        tenant: list.search.tenant.clone(),
        group: list.search.group,
        error_like: list.error_like,
        search: list.search.search(settings),
        created_after: list.created_after,
        created_before: list.created_before,
        before: list.before,
        limit: list.limit,
    };
    let begun = Instant::now();
    let mut jobs = Vec::new();
    let next = loop {
        let page = queue.page(&filter).await?;
        jobs.extend(page.jobs);
        filter.limit = list.limit - jobs.len() as i64;
        filter.before = page.next;
        if page.next.is_none() || filter.limit <= 0 || begun.elapsed() > SEARCH_TIMEOUT {
            break page.next;
        }
    };
    if list.json {
        return output::json(&serde_json::json!({ "jobs": jobs, "next": next }));
    }
    let header = [
        "ID", "STATE", "KIND", "THROTTLE", "KEY", "ATTEMPT", "CREATED", "ERROR",
    ];
    output::table(&header, jobs.iter().map(row))?;
    if let Some(next) = next.filter(|_| filter.limit > 0) {
        tell!("flyball: older jobs were not searched; continue with --before {next}");
    }
    Ok(())
}

fn row(job: &Summary) -> Vec<String> {
    vec![
        job.id.to_string(),
        job.state.as_str().to_owned(),
        job.kind.clone(),
        job.throttle.clone(),
        job.key.clone(),
        format!("{}/{}", job.attempt, job.max_attempts),
        format!("{:.0}", job.created_at),
        job.last_error
            .clone()
            .unwrap_or_default()
            .chars()
            .take(80)
            .collect(),
    ]
}

fn listed(ids: &[i64]) -> String {
    let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
    ids.join(", ")
}

fn print_job(job: &JobDetail) -> anyhow::Result<()> {
    let head = &job.summary;
    say!("job        {}", head.id);
    say!(
        "state      {}{}",
        head.state.as_str(),
        if job.cancelling {
            ", asked to stop"
        } else {
            ""
        }
    );
    say!("kind       {}", head.kind);
    say!("throttle   {}", head.throttle);
    if !head.key.is_empty() {
        say!("key        {}", head.key);
    }
    if let Some(group) = head.group {
        say!("group      {group}");
    }
    if !head.tags.is_empty() {
        say!("tags       {}", head.tags.join(", "));
    }
    if !job.after.is_empty() {
        let fate = job.after_failure.map_or("", |fate| match fate {
            AfterFailure::Cancel => "",
            AfterFailure::Run => ", whatever their ends",
        });
        say!("after      {}{fate}", listed(&job.after));
    }
    if !job.waits_for.is_empty() {
        let each = job.waits_for.iter();
        let each: Vec<String> = each
            .map(|one| format!("{} ({})", one.id, one.state.as_str()))
            .collect();
        say!("waits for  {}", each.join(", "));
    }
    if let Some(retry) = job.retry {
        let most = retry.longest_s();
        let (delay, factor) = (retry.delay_s, retry.factor);
        say!("retry      after {delay} s, {factor} times as long each time, at most {most} s");
    }
    let signed = job.webhook_secret.as_deref().unwrap_or_default();
    let signed = match signed {
        "" => String::new(),
        name => format!(", signed with {name}"),
    };
    for (end, url) in [("completes", &job.on_complete), ("dies", &job.on_dead)] {
        if let Some(url) = url {
            say!("calls      {url} when it {end}{signed}");
        }
    }
    say!("priority   {}", head.priority);
    say!("attempt    {} of {}", head.attempt, head.max_attempts);
    say!("cost       {}", head.cost);
    say!("created    {:.0}", head.created_at);
    if let Some(due) = head.due_at {
        say!("due        {due:.0}");
    }
    if let Some(ended) = head.ended_at {
        say!("ended      {ended:.0}");
    }
    if let Some(timeout_s) = job.timeout_s {
        say!("timeout    {timeout_s} s");
    }
    if let Some(worker) = &job.worker {
        let beat = job
            .heartbeat_age_s
            .map(|age_s| format!(", last heartbeat {age_s:.1} s ago"))
            .unwrap_or_default();
        say!("worker     {worker}{beat}");
    }
    if let Some(traceparent) = &job.traceparent {
        say!("trace      {traceparent}");
    }
    if let Some(progress) = &job.progress {
        let percent = progress.percent.map(|percent| format!("{percent:.1} %"));
        let note = Some(progress.note.clone()).filter(|note| !note.is_empty());
        let parts: Vec<String> = percent.into_iter().chain(note).collect();
        say!("progress   {}", parts.join(", "));
    }
    say!("args       {}", job.args);
    if let Some(result) = &job.result {
        say!("result     {result}");
    }
    for attempt in &job.attempts {
        let error = attempt
            .error
            .as_ref()
            .map(|error| format!(": {error}"))
            .unwrap_or_default();
        say!(
            "attempt {}  {} at {:.0}{error}",
            attempt.attempt,
            attempt.outcome,
            attempt.finished_at
        );
    }
    Ok(())
}

fn parse_state(text: &str) -> Result<State, String> {
    choice(text, &State::ALL.map(|state| (state.as_str(), state)))
}

fn parse_search(text: &str) -> Result<Search, String> {
    if text == "ended" {
        return Ok(Search::Ended);
    }
    parse_state(text)
        .map(Search::In)
        .map_err(|allowed| format!("{allowed}, ended"))
}
