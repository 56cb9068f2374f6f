//! `flyball job update`.

use anyhow::bail;

use super::enqueue::check_args;
use super::exit::CliError;
use super::given_text::{given_text, json_of};
use super::job_answer::{answer, refused, unknown};
use super::retry_args::RetryArgs;
use super::signed::AuditArgs;
use super::{missing_throttles, when};
use crate::config::Settings;
use crate::jobs::{JobUpdate, MoveAnswer, NewJob, Queue};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The job's number
    id: i64,
    /// Arguments as JSON, @FILE, or - for standard input; they replace all that it has
    #[arg(long)]
    args: Option<String>,
    /// The throttle of the job
    #[arg(long)]
    throttle: Option<String>,
    /// The rate-limit key, e.g. a customer; empty for none
    #[arg(long)]
    key: Option<String>,
    /// 0 runs first, 3 last
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Attempts before the job is dead, 1 to 1000
    #[arg(long, allow_negative_numbers = true)]
    max_attempts: Option<i32>,
    /// Tokens that the job takes from its throttle
    #[arg(long, allow_negative_numbers = true)]
    cost: Option<f64>,
    /// Longest time of one attempt: a span such as 10m, or seconds
    #[arg(long, value_name = "SPAN", allow_negative_numbers = true, value_parser = when::seconds)]
    timeout: Option<f64>,
    /// A short text by which people find the job; repeat it for several: they replace all that it has
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    #[command(flatten)]
    retry: RetryArgs,
    /// A field that goes back to what the job has without it: timeout, tags or retry; repeat it for several
    #[arg(long, value_name = "FIELD", value_parser = ["timeout", "tags", "retry"])]
    clear: Vec<String>,
    #[command(flatten)]
    signed: AuditArgs,
}

pub(super) async fn run(queue: &Queue, args: Args, settings: &Settings) -> anyhow::Result<()> {
    let (id, signed) = (args.id, &args.signed);
    let changes = changes(&args)?;
    if let Some(new) = &changes.args {
        let Some(kind) = queue.kind_of(id, None).await? else {
            bail!(unknown(id))
        };
        let job = NewJob::new(kind, new.clone());
        check_args(&[job], settings, |_: usize| String::new(), "changed")?;
    }
    match queue.update(id, &changes, &signed.signature()).await? {
        MoveAnswer::Moved => {
            let throttle = changes.throttle.as_deref();
            missing_throttles::tell(settings, throttle.into_iter()).await;
            answer(id, signed.json, "updated")
        }
        MoveAnswer::Refused(state) => refused(
            id,
            state,
            "only scheduled, ready and retryable jobs can be updated",
        ),
        MoveAnswer::NotFound => bail!(unknown(id)),
    }
}

fn changes(args: &Args) -> anyhow::Result<JobUpdate> {
    let new = match &args.args {
        None => None,
        Some(given) => {
            let parsed = json_of("args", &given_text(given)?);
            let refused = |wrong| CliError::Refused(format!("{wrong}; nothing was changed"));
            Some(parsed.map_err(refused)?)
        }
    };
    let mut clear = args.clear.clone();
    let has_tags = !args.tags.is_empty();
    let clears_tags = clear.iter().any(|field| field == "tags");
    if has_tags && clears_tags {
        bail!(CliError::Refused(
            "clear: names tags, which is given as well; nothing was changed".to_owned()
        ));
    }
    let tags = (has_tags || clears_tags).then(|| args.tags.clone());
    clear.retain(|field| field != "tags");
    Ok(JobUpdate {
        args: new,
        throttle: args.throttle.clone(),
        key: args.key.clone(),
        priority: args.priority,
        max_attempts: args.max_attempts,
        cost: args.cost,
        timeout_s: args.timeout,
        tags,
        retry: args.retry.waits(),
        clear,
    })
}
