//! `flyball group`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;

use super::choice::choice;
use super::enqueue::{placed, wrong_fields};
use super::exit::CliError;
use super::given_text::{filled, given_text, json_of};
use super::output::say;
use super::signed::AuditArgs;
use super::{connect, missing_throttles, output, when};
use crate::api::http::fields::Errors;
use crate::api::jobs::input::{self, KnownKinds};
use crate::api::jobs::redact::mask_group;
use crate::app;
use crate::config::Settings;
use crate::jobs::{
    CancelledGroup, Client, GroupFilter, GroupState, JobGroup, Kinds, NewGroup, Queue, SealAnswer,
};

/// Pause after a step that cancelled nothing, because an open transaction holds what is left.
const HELD_PAUSE: Duration = Duration::from_millis(250);

/// Most such steps in a row.
const HELD_STEPS: u32 = 12;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Create a group of jobs, with a callback job for when all of them have ended
    Create(Create),
    /// Seal a group: no more jobs can join it
    Seal(GroupArgs),
    /// Show a group: its state, its jobs by state, its callback
    Show(GroupArgs),
    /// List groups, newest first
    List(List),
    /// Cancel a group: waiting jobs end at once, running ones are asked to stop, and no more can
    /// join
    Cancel(Cancel),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  flyball group create --callback '{\"kind\":\"report\",\"throttle\":\"mail\"}' --name import
  flyball enqueue import --group 17 --args '{\"row\":1}'        a job joins it
  flyball group seal 17        no more jobs come; the callback runs when all have ended
  flyball group create --callback @report.json --jobs @jobs.json        all at once, sealed")]
pub(super) struct Create {
    /// The callback: a job as JSON with the fields of POST /api/v1/jobs, @FILE, or - for standard
    /// input
    #[arg(long, value_name = "JSON")]
    callback: Option<String>,
    /// Name for people
    #[arg(long, default_value = "")]
    name: String,
    /// All jobs of the group: a JSON array of up to 10,000 jobs, @FILE, or - for standard input;
    /// seals the group
    #[arg(long, value_name = "JSON")]
    jobs: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct GroupArgs {
    /// The number of the group
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct List {
    /// Only groups of this tenant
    #[arg(long, value_parser = filled)]
    tenant: Option<String>,
    /// Only groups in this state: open, running or ended
    #[arg(long, value_parser = state)]
    state: Option<GroupState>,
    /// Only groups that were created before a time, or before a span ago such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    created_before: Option<jiff::Timestamp>,
    /// Only groups with a lower number
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
pub(super) struct Cancel {
    /// The number of the group
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
    #[command(flatten)]
    signed: AuditArgs,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(args) => create(&args, &settings).await?,
        Command::Seal(args) => seal(&args, &settings).await?,
        Command::Show(args) => {
            let queue = &connect::queue(&settings).await?;
            let group = found(queue, args.id).await?;
            if args.json {
                output::json(&group)?;
            } else {
                show(&group)?;
            }
        }
        Command::List(args) => list(args, &settings).await?,
        Command::Cancel(args) => cancel(&args, &settings).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(args: &Create, settings: &Settings) -> anyhow::Result<()> {
    let group = read(args, &app::built_in_kinds(settings, None)?)?;
    let named = group.jobs.iter().flatten().chain(&group.callback);
    let throttles: Vec<String> = named.map(|job| job.throttle.clone()).collect();
    let among = |at: usize| format!("jobs/{at}/");
    let queue = connect::queue(settings).await?;
    let created = async {
        let group = group.encrypted(queue.secret_keys())?;
        Client.create_group(&queue.pool, &group).await
    };
    let created = created.await.map_err(|error| {
        let done = match error.is_unsure() {
            true => "it is not known whether the group was created; look before you repeat it",
            false => "no group was created",
        };
        anyhow::Error::new(placed(error, false, |at| Some(among(at)))).context(done)
    })?;
    missing_throttles::tell(settings, throttles.iter().map(String::as_str)).await;
    if args.json {
        return output::json(&created);
    }
    let id = created.id;
    if args.jobs.is_some() {
        let jobs = created.jobs.iter().filter(|job| !job.duplicate).count();
        say!("created group {id} with {}, sealed", output::jobs(jobs));
    } else {
        say!("created group {id}; seal it when all its jobs are enqueued: flyball group seal {id}");
    }
    Ok(())
}

async fn seal(args: &GroupArgs, settings: &Settings) -> anyhow::Result<()> {
    let queue = &connect::queue(settings).await?;
    let what = match queue.seal_group(args.id, None).await? {
        SealAnswer::Sealed => "is sealed",
        SealAnswer::Ended => "is sealed and has ended: all its jobs had",
        SealAnswer::Already => "was sealed before",
        SealAnswer::NotFound => bail!(unknown(args.id)),
    };
    if args.json {
        return output::json(&found(queue, args.id).await?);
    }
    say!("group {} {what}", args.id);
    Ok(())
}

async fn list(args: List, settings: &Settings) -> anyhow::Result<()> {
    let queue = connect::lists(settings).await?;
    let filter = GroupFilter {
        tenant: args.tenant,
        state: args.state,
        created_before: args.created_before,
        before: args.before,
        limit: args.limit,
    };
    let groups = queue.groups(&filter).await?;
    let groups: Vec<JobGroup> = groups.into_iter().map(mask_group).collect();
    if args.json {
        return output::json(&serde_json::json!({ "groups": groups }));
    }
    let header = [
        "ID",
        "STATE",
        "NAME",
        "TENANT",
        "JOBS",
        "PENDING",
        "COMPLETED",
        "DEAD",
        "CANCELLED",
        "CREATED",
    ];
    output::table(&header, groups.iter().map(row))
}

async fn cancel(args: &Cancel, settings: &Settings) -> anyhow::Result<()> {
    let queue = connect::queue(settings).await?;
    let signed = args.signed.signature();
    let mut all = CancelledGroup::default();
    let mut held_steps = 0;
    loop {
        let step = queue.cancel_group(args.id, &signed).await?;
        let Some(step) = step else {
            bail!(unknown(args.id))
        };
        all.cancelled += step.cancelled;
        all.requested += step.requested;
        if !step.more {
            break;
        }
        if step.cancelled + step.requested > 0 {
            held_steps = 0;
            continue;
        }
        held_steps += 1;
        if held_steps == HELD_STEPS {
            bail!(CliError::Held(format!(
                "group {} is sealed, and {}; an open transaction holds others of its jobs; try again later",
                args.id,
                told(&all)
            )));
        }
        tokio::time::sleep(HELD_PAUSE).await;
    }
    if args.signed.json {
        return output::json(&all);
    }
    say!("group {} is cancelled: {}", args.id, told(&all));
    Ok(())
}

/// Returns the numbers of cancelled jobs for people.
fn told(all: &CancelledGroup) -> String {
    let cancelled = output::jobs(usize::try_from(all.cancelled).unwrap_or_default());
    let verb = if all.requested == 1 { "is" } else { "are" };
    format!(
        "{cancelled} will not run, {} {verb} asked to stop",
        all.requested
    )
}

/// Reads the callback and the jobs as `POST /api/v1/groups` does, or refuses all that is wrong with
/// the first of the two that is.
fn read(args: &Create, kinds: &Kinds) -> anyhow::Result<NewGroup> {
    let (callback, jobs) = (
        value_of("callback", args.callback.as_deref())?,
        value_of("jobs", args.jobs.as_deref())?,
    );
    if callback.as_ref().is_some_and(|value| !value.is_object()) {
        bail!(refused("callback: must be one job, as an object"));
    }
    if jobs.as_ref().is_some_and(|value| !value.is_array()) {
        bail!(refused("jobs: must be a list of jobs, each as an object"));
    }
    Ok(NewGroup {
        name: args.name.clone(),
        callback: callback
            .map(|value| checked("callback", value, kinds, input::one))
            .transpose()?,
        jobs: jobs
            .map(|value| checked("jobs", value, kinds, input::batch))
            .transpose()?,
    })
}

fn value_of(name: &str, given: Option<&str>) -> anyhow::Result<Option<Value>> {
    let Some(given) = given else {
        return Ok(None);
    };
    let read = json_of(name, &given_text(given)?);
    Ok(Some(read.map_err(|wrong| refused(&wrong))?))
}

/// Reads jobs field by field. A kind may be one that only other processes run: the queue knows them.
fn checked<T>(
    name: &str,
    value: Value,
    kinds: &Kinds,
    read: impl FnOnce(Value, &KnownKinds<'_>) -> Result<T, Errors>,
) -> anyhow::Result<T> {
    let named: BTreeSet<String> = input::kinds_named(&value).map(str::to_owned).collect();
    let elsewhere: Vec<String> = named.into_iter().collect();
    let known = KnownKinds {
        here: kinds,
        elsewhere: &elsewhere,
    };
    Ok(read(value, &known).map_err(|errors| refused(&wrong_fields(&errors, name)))?)
}

fn refused(problem: &str) -> CliError {
    CliError::Refused(format!("{problem}; no group was created"))
}

fn state(text: &str) -> Result<GroupState, String> {
    choice(text, &GroupState::WORDS)
}

async fn found(queue: &Queue, id: i64) -> anyhow::Result<JobGroup> {
    let group = queue.group(id, None).await?;
    Ok(mask_group(group.ok_or_else(|| unknown(id))?))
}

fn unknown(id: i64) -> CliError {
    CliError::NotFound(format!("there is no group {id}"))
}

fn row(group: &JobGroup) -> Vec<String> {
    vec![
        group.id.to_string(),
        group.state.as_str().to_owned(),
        group.name.clone(),
        group.tenant.clone(),
        group.jobs.to_string(),
        group.pending.to_string(),
        group.completed.to_string(),
        group.dead.to_string(),
        group.cancelled.to_string(),
        format!("{:.0}", group.created_at),
    ]
}

fn show(group: &JobGroup) -> anyhow::Result<()> {
    say!("group      {}", group.id);
    if !group.name.is_empty() {
        say!("name       {}", group.name);
    }
    if !group.tenant.is_empty() {
        say!("tenant     {}", group.tenant);
    }
    let cancelled = group.cancelled_at.map_or("", |_| ", cancelled");
    say!("state      {}{cancelled}", group.state.as_str());
    say!(
        "jobs       {}: {} pending, {} completed, {} dead, {} cancelled",
        group.jobs,
        group.pending,
        group.completed,
        group.dead,
        group.cancelled
    );
    say!("created    {:.0}", group.created_at);
    if let Some(sealed) = group.sealed_at {
        say!("sealed     {sealed:.0}");
    }
    if let Some(ended) = group.ended_at {
        say!("ended      {ended:.0}");
    }
    match (&group.callback, group.callback_job_id) {
        (_, Some(job)) => say!("callback   job {job}"),
        (Some(callback), None) => say!("callback   {callback}"),
        (None, None) => say!("callback   none"),
    }
    if let Some(problem) = &group.callback_problem {
        say!("problem    {problem}; it is tried again every ten seconds");
    }
    Ok(())
}
