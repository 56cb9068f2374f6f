//! `flyball governor step`: the governor as a filter.

use std::io::{BufRead, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::exit::CliError;
use super::given_text::text_of_file;
use super::output;
use crate::governor::filter::{LineGovernor, Mistake};
use crate::governor::{Actuator, Bounds, Policy};
use crate::input::{FileError, FileProblem};
use crate::throttle::file::KnobsFile;
use crate::throttle::{Knobs, RateLimit, rules};

/// Longest line that is read, in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Run the governor on readings from standard input: one JSON object per line in, one out
    #[command(after_help = HELP)]
    Step(Args),
}

const HELP: &str = "\
It is the governor that `flyball serve` runs, in mode auto, without a clock: the lines contain the
time. Every line is answered at once. Blank lines are skipped; it exits at the end of the input.

  {\"now\": 1700000005, \"readings\": [{\"signal\": \"search-load\", \"value\": 0.9, \"at\": 1700000003}], \"achieved_rps\": 19.8,
   \"limiting_share\": 1}

  now              unix seconds, required; later than that of the previous line
  readings         new samples of the policy's signals; value null is no reading; repeated samples are ignored
  achieved_rps     jobs let through per second since the previous line
  limiting_share   share of that time in which jobs waited for tokens, 0 to 1; at 0.5 and below the rate is not raised
  mean_duration_s  mean duration of the jobs that succeeded, for policies with durations = true
  completed        jobs that succeeded, and
  rejected         jobs that were refused, for signals with source = \"feedback\"
  knob_rps         the rate in the knob, only if something other than the governor wrote it

All fields except now may be omitted or null. The answer: rps, breaker (closed, open or half_open),
limiting, reason, terms. The answer to a line that cannot be read is
{\"error\": {\"line\", \"field\", \"message\", \"issues\"}}, where issues lists every wrong field
with its message; the line changes nothing.

FILE is a knobs file: [knobs] with the initial rps, min, max and safe_rps; [[signal]]; [governor].
Other knobs are ignored.

With actuator = \"concurrency\" in [governor] every rps above is slots: [knobs] has the initial
concurrency, achieved_rps is the number of slots in use, and the answer's rps is the whole number of
slots to set.";

#[derive(clap::Args)]
pub(super) struct Args {
    /// The knobs file with the policy
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Initial jobs per second (or slots), instead of the value in the file
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "state",
        allow_negative_numbers = true
    )]
    rps: Option<String>,
    /// Continue from the state in this file, if it exists, and write the state to it at the end of
    /// the input
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

pub(super) fn run(command: Command) -> anyhow::Result<ExitCode> {
    let Command::Step(args) = command;
    let (policy, knobs) = policy(&args.policy)?;
    let actuator = policy.law.actuator;
    let bounds = actuator.bounds(Bounds {
        min: knobs.min,
        max: knobs.max,
        safe_rps: knobs.safe_rps.number(),
    });
    let rps = match (&args.rps, actuator) {
        (None, Actuator::Rps) => knobs.rps,
        (None, Actuator::Concurrency) => knobs
            .concurrency
            .map_or(RateLimit::new(bounds.max), |slots| {
                RateLimit::new(f64::from(slots))
            }),
        (Some(text), _) => match rules::number(actuator.field(), text) {
            Some(rps) => RateLimit::new(rps),
            None => {
                let allowed = rules::allowed(actuator.field());
                bail!(CliError::Refused(format!(
                    "--rps {text:?} is not allowed: it must be {allowed}"
                )))
            }
        },
    };
    let mut filter = match args.state.as_deref().map(kept).transpose()?.flatten() {
        None => LineGovernor::new(policy, bounds, rps),
        Some((path, stored)) => match LineGovernor::resume(policy, bounds, stored) {
            Some(filter) => filter,
            None => bail!(CliError::Refused(format!(
                "{}: is not a governor state of this release",
                path.display()
            ))),
        },
    };
    pass(&mut filter, &mut std::io::stdin().lock())?;
    if let Some((path, state)) = args.state.zip(filter.state()) {
        write_atomically(&path, &state)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers line by line until the input ends.
fn pass(filter: &mut LineGovernor, input: &mut impl BufRead) -> anyhow::Result<()> {
    let mut line = Vec::new();
    while next(input, &mut line).context("cannot read standard input")? {
        let taken = match std::str::from_utf8(&line) {
            _ if line.len() > LINE_BYTES_MAX => Some(Err(filter.refuse(format!(
                "the line is too long; at most {LINE_BYTES_MAX} bytes are allowed"
            )))),
            Err(error) => Some(Err(filter.refuse(format!("is not UTF-8: {error}")))),
            Ok(text) => filter.take(text),
        };
        match taken {
            None => {}
            Some(Ok(plan)) => output::text(&(serde_json::to_string(&plan)? + "\n"))?,
            Some(Err(mistake)) => output::text(&(error_line(&mistake) + "\n"))?,
        }
    }
    Ok(())
}

fn error_line(mistake: &Mistake) -> String {
    serde_json::json!({ "error": mistake }).to_string()
}

/// Reads the next line into `line`, truncated if it is too long; returns false at
/// the end of the input.
fn next(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    input
        .take(LINE_BYTES_MAX as u64 + 1)
        .read_until(b'\n', line)?;
    while line.len() > LINE_BYTES_MAX && line.last() != Some(&b'\n') {
        let buffer = input.fill_buf()?;
        let (used, ends) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        if ends {
            break;
        }
    }
    Ok(!line.is_empty())
}

/// Reads the policy and the knobs of a knobs file; the error lists all its faults.
fn policy(path: &Path) -> anyhow::Result<(Policy, Knobs)> {
    let file = path.display().to_string();
    let whole = |key: &str, reason: String| FileProblem {
        file: file.clone(),
        line: 0,
        key: key.to_owned(),
        reason,
    };
    let text = text_of_file(path)?;
    let mut problems = Vec::new();
    let policy = match Policy::parse(&text, &file) {
        Ok(Some(policy)) => Some(policy),
        Ok(None) => {
            problems.push(whole(
                "signal",
                "is missing: a policy has at least one [[signal]]".to_owned(),
            ));
            None
        }
        Err(refused) => {
            problems.extend(refused.0);
            None
        }
    };
    match (KnobsFile::parse(path, text), policy) {
        (Ok(knobs), Some(policy)) if problems.is_empty() => {
            Ok((policy, Knobs::read(&knobs.fields).0))
        }
        (knobs, _) => {
            // Both readers report a text that is not TOML; one report is enough.
            let found = knobs.err().map_or_else(Vec::new, |error| error.0);
            problems.retain(|problem| !found.contains(problem));
            problems.extend(found);
            problems.sort_by_key(|problem| problem.line);
            bail!(FileError(problems))
        }
    }
}

/// Reads the state in a file; returns `None` if the file does not exist.
fn kept(path: &Path) -> anyhow::Result<Option<(&Path, serde_json::Value)>> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        Ok(text) => match serde_json::from_str(&text) {
            Ok(stored) => Ok(Some((path, stored))),
            Err(error) => bail!(CliError::Refused(format!(
                "{}: is not a governor state: {error}",
                path.display()
            ))),
        },
    }
}

/// Writes the state beside its place and moves it there, so that a partial state is never read.
fn write_atomically(path: &Path, state: &serde_json::Value) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, state.to_string())?;
    std::fs::rename(&beside, path)
}
