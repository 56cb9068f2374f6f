//! Exit codes, and the texts of errors.

use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

use crate::{config, cron, jobs, signals, throttle};

/// The text of `--help` about the databases and about exit codes.
pub(super) const HELP: &str = "\
DATABASE_URL is the database of the jobs. Lists are read from the replica of DATABASE_READ_URL, if that is set and lags by at most
FLYBALL_DATABASE_READ_LAG_MAX_S seconds; what is one job's, and every change, goes to DATABASE_URL.

Exit codes:
  0   done
  1   failed
  2   the command line is wrong
  3   the named thing does not exist, such as a job, a throttle, a pool, a worker or a file
  4   the input was refused and nothing was changed
  69  a required service cannot be reached, is not installed or lacks the schema
  71  the listen port cannot be opened
  75  a lane, or the queue of a tenant, is full, tokens are not granted now, or an open transaction holds what the command needs: try again later
  78  a setting or a knobs file is wrong";

/// A failure of any other sort.
pub(super) const FAILED: u8 = 1;
/// The command line is wrong.
pub(super) const WRONG_USAGE: u8 = 2;
/// The named thing does not exist.
pub(super) const NOT_FOUND: u8 = 3;
/// The input was refused and nothing was changed.
pub(super) const REFUSED: u8 = 4;
/// `EX_UNAVAILABLE` of sysexits.h: a required service is away.
pub(super) const UNAVAILABLE: u8 = 69;
/// `EX_OSERR` of sysexits.h: the listen port cannot be opened.
pub(super) const NO_PORT: u8 = 71;
/// `EX_TEMPFAIL` of sysexits.h: the same command may succeed later.
pub(super) const TRY_LATER: u8 = 75;
/// `EX_CONFIG` of sysexits.h: a setting or a knobs file is wrong.
pub(super) const WRONG_SETTING: u8 = 78;

/// Failures that are not errors of a room.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// The named thing does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The input was refused and nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// A part of the change was made before the rest failed. A repeat of the command would make that
    /// part twice.
    #[error("{0}")]
    Partly(String),
    /// A part of the change was made, and an open transaction holds the rest, which a repeat of the
    /// command makes.
    #[error("{0}")]
    Held(String),
    /// The database lacks the schema that this program works on.
    #[error("{0}")]
    NoSchema(String),
}

/// The text of an error of a lock that was not free in time.
const LOCKED_OUT: &str = "an open transaction holds what the command needs; try again later";

/// Returns the error with its causes, in one line.
pub fn message(error: &anyhow::Error) -> String {
    let mut parts = Vec::<String>::new();
    let mut is_postgres = false;
    for cause in error.chain() {
        if is_locked_out(cause) {
            parts.push(LOCKED_OUT.to_owned());
            break;
        }
        let mut text = cause.to_string();
        // The rest is Postgres' own message.
        is_postgres |= text.contains("error returned from database: ");
        if is_postgres {
            text = without_line(text);
        }
        let lines: Vec<String> = text.lines().map(super::output::clean).collect();
        let text = lines.join("\n");
        if !parts.iter().any(|earlier| earlier.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

fn is_locked_out(cause: &(dyn std::error::Error + 'static)) -> bool {
    let of_schedule = || match cause.downcast_ref::<cron::Error>()? {
        cron::Error::Queue(error) => Some(error),
        cron::Error::Invalid(_) => None,
    };
    let of_queue = cause.downcast_ref::<jobs::Error>().or_else(of_schedule);
    of_queue.is_some_and(jobs::Error::was_locked_out)
}

/// Returns the text of an error of the command line: for a number that cannot be read with what is
/// allowed, for all else as the parser wrote it.
pub(super) fn text_of_usage(error: &clap::Error) -> Option<String> {
    let cause = std::error::Error::source(error)?;
    let allowed = if let Some(whole) = cause.downcast_ref::<ParseIntError>() {
        match whole.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
                "allowed are whole numbers of at most 18 digits"
            }
            _ => "allowed are whole numbers, such as 42",
        }
    } else if cause.is::<ParseFloatError>() {
        "allowed are numbers, such as 2.5"
    } else {
        return None;
    };
    let text = error.to_string();
    let (before, after) = text.rsplit_once(&format!(": {cause}"))?;
    Some(format!("{before}: {allowed}{after}"))
}

/// Returns the message of an error of the command line, without the usage behind it.
pub(super) fn message_of_usage(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let end = ["\n\nUsage:", "\n\nFor more information"]
        .iter()
        .filter_map(|behind| text.find(behind))
        .min();
    text[..end.unwrap_or(text.len())].trim_end().to_owned()
}

/// Cuts off the line of Postgres' own source that reported an error, because it means nothing to
/// the reader.
fn without_line(text: String) -> String {
    match text.rsplit_once(" at line ") {
        Some((before, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            before.to_owned()
        }
        _ => text,
    }
}

/// Returns the exit code for the error.
pub(super) fn code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(number_of(error))
}

/// Returns the exit code for the error, as a number.
pub fn number_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(number).unwrap_or(FAILED)
}

fn number(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = cause.downcast_ref::<CliError>() {
        return Some(match failure {
            CliError::NotFound(_) => NOT_FOUND,
            CliError::Refused(_) => REFUSED,
            CliError::Partly(_) => FAILED,
            CliError::Held(_) => TRY_LATER,
            CliError::NoSchema(_) => UNAVAILABLE,
        });
    }
    if cause.is::<crate::simulate::scenario::InvalidScenario>() {
        return Some(REFUSED);
    }
    if let Some(error) = cause.downcast_ref::<jobs::Error>() {
        return Some(match error {
            jobs::Error::Refused { .. } => REFUSED,
            jobs::Error::Full { .. }
            | jobs::Error::QueueFull { .. }
            | jobs::Error::Capped { .. } => TRY_LATER,
            jobs::Error::Lost(_) => UNAVAILABLE,
            error if error.was_broken_off() => TRY_LATER,
            error if error.is_of_settings() => WRONG_SETTING,
            jobs::Error::Store(_) => FAILED,
        });
    }
    if let Some(error) = cause.downcast_ref::<cron::Error>() {
        return match error {
            cron::Error::Invalid(_) => Some(REFUSED),
            cron::Error::Queue(error) => number(error),
        };
    }
    if let Some(error) = cause.downcast_ref::<throttle::Error>() {
        return Some(match error {
            throttle::Error::Lost(_) => UNAVAILABLE,
            throttle::Error::Unknown(_) => NOT_FOUND,
            throttle::Error::Invalid(problems)
                if problems.iter().any(|problem| problem.field == "REDIS_URL") =>
            {
                WRONG_SETTING
            }
            throttle::Error::Conflict { .. } | throttle::Error::Invalid(_) => REFUSED,
        });
    }
    if cause.is::<throttle::name::InvalidName>() {
        return Some(REFUSED);
    }
    if cause.is::<crate::postgres::UnusablePostgres>() {
        return Some(UNAVAILABLE);
    }
    if let Some(crate::api::ListenError::Taken { .. }) = cause.downcast_ref() {
        return Some(NO_PORT);
    }
    if cause.is::<crate::api::ReadError>() {
        return Some(UNAVAILABLE);
    }
    if let Some(error) = cause.downcast_ref::<signals::Error>() {
        return match error {
            signals::Error::Unreachable { .. } | signals::Error::TimedOut { .. } => {
                Some(UNAVAILABLE)
            }
            signals::Error::BadQuery { .. } => Some(REFUSED),
            _ => None,
        };
    }
    let setting = cause.is::<config::Error>() || cause.is::<throttle::file::FileError>();
    (setting || cause.is::<crate::api::ListenError>()).then_some(WRONG_SETTING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_command_line_is_its_message_alone() {
        let text = "error: invalid value 'x' for '<ID>': invalid digit found in string\n\n\
                    For more information, try '--help'.\n";
        assert_eq!(
            message_of_usage(text),
            "invalid value 'x' for '<ID>': invalid digit found in string"
        );
        let text = "error: the following required arguments were not provided:\n  <KIND>\n\n\
                    Usage: flyball enqueue --json <KIND>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            message_of_usage(text),
            "the following required arguments were not provided:\n  <KIND>"
        );
    }

    #[test]
    fn a_number_that_cannot_be_read_is_told_with_what_is_allowed() {
        let command = clap::Command::new("x")
            .arg(
                clap::Arg::new("job")
                    .long("job")
                    .value_parser(clap::value_parser!(i64)),
            )
            .arg(
                clap::Arg::new("cost")
                    .long("cost")
                    .value_parser(clap::value_parser!(f64)),
            );
        let told = |option: &str, value: &str| {
            let words = ["x", option, value];
            let error = command.clone().try_get_matches_from(words).unwrap_err();
            text_of_usage(&error).map(|text| message_of_usage(&text))
        };

        let cases = [
            ("--job", "x", "allowed are whole numbers, such as 42"),
            ("--job", "1.5", "allowed are whole numbers, such as 42"),
            ("--job", "", "allowed are whole numbers, such as 42"),
            (
                "--job",
                "99999999999999999999",
                "allowed are whole numbers of at most 18 digits",
            ),
            ("--cost", "x", "allowed are numbers, such as 2.5"),
        ];
        for (option, value, allowed) in cases {
            let text = told(option, value).unwrap();
            assert!(text.ends_with(allowed), "{option} {value}: {text}");
        }
        assert_eq!(told("--jobs", "1"), None, "the parser's own words");
    }

    #[test]
    fn an_error_of_postgres_is_told_once_and_without_the_line_of_its_source() {
        let told = "permission denied for schema flyball at line 3655";
        let error = anyhow::anyhow!(told)
            .context(format!("error returned from database: {told}"))
            .context(format!(
                "the queue store failed: error returned from database: {told}"
            ));
        assert_eq!(
            message(&error),
            "the queue store failed: error returned from database: permission denied for schema flyball"
        );
        let other = anyhow::anyhow!("expected a value at line 3");
        assert_eq!(message(&other), "expected a value at line 3");
    }
}
