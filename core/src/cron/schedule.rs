//! A schedule: an expression in a time zone, its job, and the policies for missed and overlapping
//! occurrences. Pure.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{BadExpression, Expression};
use crate::jobs::{JobRetry, NewJob};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// The most occurrences that `catch_up = all` runs after one downtime: the newest.
pub const CAUGHT_UP_MAX: usize = 100;

/// The number of occurrences in a preview.
pub const PREVIEW: usize = 5;

/// The longest delay of an occurrence that is only a little late; any later one was missed.
const MISSED_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// The policy for occurrences that were missed while nothing ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// One run for all of them.
    #[default]
    One,
    /// One run for each of them, at most the newest 100.
    All,
    /// No run for any of them.
    None,
}

/// The policy for an occurrence while the job of the one before is unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// No job for this occurrence.
    #[default]
    Skip,
    /// A job beside the unfinished one.
    Allow,
}

/// The policies for missed occurrences, by name.
pub const CATCH_UPS: [(&str, CatchUp); 3] = [
    ("one", CatchUp::One),
    ("all", CatchUp::All),
    ("none", CatchUp::None),
];
/// The policies for overlapping occurrences, by name.
pub const OVERLAPS: [(&str, Overlap); 2] = [("skip", Overlap::Skip), ("allow", Overlap::Allow)];

impl CatchUp {
    /// Returns the name of the policy.
    pub fn as_str(self) -> &'static str {
        CATCH_UPS
            .iter()
            .find(|(_, one)| *one == self)
            .map_or("one", |(word, _)| word)
    }
}

impl Overlap {
    /// Returns the name of the policy.
    pub fn as_str(self) -> &'static str {
        OVERLAPS
            .iter()
            .find(|(_, one)| *one == self)
            .map_or("skip", |(word, _)| word)
    }
}

/// A schedule to create, or to replace the one with the same name.
///
/// ```
/// # use flyball_core as flyball;
/// use flyball::cron::NewSchedule;
/// use flyball::jobs::NewJob;
/// use serde_json::json;
///
/// let nightly = NewSchedule::new("nightly-report", "30 2 * * *", NewJob::new("report", json!({})))
///     .time_zone("Europe/Berlin");
/// assert!(nightly.problems().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NewSchedule {
    /// The unique name, 1 to 128 bytes.
    pub name: String,
    /// The cron expression: `minute hour day-of-month month day-of-week`, optionally with the
    /// second in front, or `@daily` and the like.
    pub expression: String,
    /// The time zone, by its IANA name, e.g. `Europe/Berlin`.
    pub time_zone: String,
    /// The job of each occurrence; the schedule itself sets its time, its unique key and its
    /// replacement.
    pub job: NewJob,
    /// The policy for missed occurrences.
    pub catch_up: CatchUp,
    /// The policy for an occurrence while the last job is unfinished.
    pub overlap: Overlap,
    /// True to pause it, false to let it run; `None` keeps the present state, and a new schedule
    /// runs.
    pub paused: Option<bool>,
}

impl NewSchedule {
    /// Returns a schedule in UTC with the default policies.
    pub fn new(name: impl Into<String>, expression: impl Into<String>, job: NewJob) -> Self {
        Self {
            name: name.into(),
            expression: expression.into(),
            time_zone: "UTC".to_owned(),
            job,
            catch_up: CatchUp::default(),
            overlap: Overlap::default(),
            paused: None,
        }
    }

    /// Sets the time zone, by its IANA name.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Sets the policy for missed occurrences.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.catch_up = catch_up;
        self
    }

    /// Sets the policy for an occurrence while the last job is unfinished.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Returns every problem that can be found without the database.
    pub fn problems(&self) -> Vec<ScheduleProblem> {
        let mut problems = Vec::new();
        let mut wrong = |field: &'static str, message: String| {
            problems.push(ScheduleProblem { field, message })
        };
        if let Err(message) = check_name(&self.name) {
            wrong("name", message);
        }
        for bad in Timing::problems(&self.expression, &self.time_zone) {
            wrong(bad.field, bad.message);
        }
        if self.catch_up == CatchUp::All && self.overlap == Overlap::Skip {
            let message = "\"all\" runs missed occurrences beside each other, which overlap \"skip\" forbids; allowed: \
                           catch_up \"one\" or \"none\", or overlap \"allow\"";
            wrong("catch_up", message.to_owned());
        }
        let own = [
            ("run_at", self.job.run_at.is_some()),
            ("unique_key", self.job.unique_key.is_some()),
            ("unique_for", self.job.unique_for.is_some()),
            ("debounce", self.job.debounce_s.is_some()),
            ("debounce_max", self.job.debounce_max_s.is_some()),
            ("replace", self.job.replace),
            ("traceparent", self.job.traceparent.is_some()),
            ("group", self.job.group.is_some()),
            ("after", !self.job.after.is_empty()),
            ("after_failure", self.job.after_failure.is_some()),
            ("on_complete", self.job.on_complete.is_some()),
            ("on_dead", self.job.on_dead.is_some()),
            ("webhook_secret", self.job.webhook_secret.is_some()),
        ];
        for (field, _) in own.into_iter().filter(|(_, is_set)| *is_set) {
            wrong(
                field,
                "not allowed for the job of a schedule, which sets it itself; leave it out"
                    .to_owned(),
            );
        }
        problems
    }
}

/// A problem with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScheduleProblem {
    /// The name of the field.
    pub field: &'static str,
    /// The problem, and the allowed values.
    pub message: String,
}

/// Checks that a text can be the name of a schedule; fails with the problem.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fine) {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    Err(format!(
        "{shown:?} is not a schedule's name; use 1 to {NAME_BYTES_MAX} letters, digits or any of . _ - / :"
    ))
}

/// Names that stand among those of zones and are none, or are another one on each machine.
const NO_ZONES: [&str; 4] = ["localtime", "posixrules", "factory", "etc/unknown"];

/// Returns false for a name that means another zone on each machine, or none, though there may be
/// a file of that name. The SQL function `flyball.is_zone` refuses the same.
pub(crate) fn is_zone_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_other = name.starts_with("posix/") || name.starts_with("right/");
    !is_other && !NO_ZONES.contains(&name.as_str())
}

fn no_zone(time_zone: &str) -> ScheduleProblem {
    ScheduleProblem {
        field: "time_zone",
        message: format!(
            "{time_zone:?} is not a time zone; allowed: names of the IANA list such as UTC, Europe/Berlin or America/New_York"
        ),
    }
}

/// Looks up a time zone by its name.
fn zone_of(time_zone: &str) -> Result<TimeZone, ScheduleProblem> {
    // Names only: a zone must mean the same in Postgres, here and on the next machine.
    TimeZone::get(time_zone).map_err(|_| no_zone(time_zone))
}

/// An expression in a time zone.
#[derive(Clone, Debug)]
pub struct Timing {
    expression: Expression,
    zone: TimeZone,
}

impl Timing {
    /// Parses an expression and looks up a time zone; fails with the first problem.
    pub fn new(expression: &str, time_zone: &str) -> Result<Self, ScheduleProblem> {
        let expression =
            Expression::parse(expression).map_err(|BadExpression { field, message }| {
                ScheduleProblem {
                    field: "expression",
                    message: if field == "expression" {
                        message
                    } else {
                        format!("{field}: {message}")
                    },
                }
            })?;
        let zone = zone_of(time_zone)?;
        let timing = Self { expression, zone };
        // Any day shows that 30 February never comes.
        if timing.next_after(Timestamp::UNIX_EPOCH).is_none() {
            return Err(ScheduleProblem {
                field: "expression",
                message: "never comes: no day matches all fields".to_owned(),
            });
        }
        Ok(timing)
    }

    /// Returns every problem of an expression and a time zone.
    pub fn problems(expression: &str, time_zone: &str) -> Vec<ScheduleProblem> {
        // In any zone an expression is wrong for the same reason.
        let expression = Self::new(expression, "UTC").err();
        // A stored schedule with a name such as `localtime` goes on.
        let zone = match is_zone_name(time_zone) {
            true => zone_of(time_zone).err(),
            false => Some(no_zone(time_zone)),
        };
        expression.into_iter().chain(zone).collect()
    }

    /// Parses a timing that is not stored yet, with the checks of a new schedule; fails with every
    /// problem.
    pub fn checked(expression: &str, time_zone: &str) -> Result<Self, Vec<ScheduleProblem>> {
        let problems = Self::problems(expression, time_zone);
        if !problems.is_empty() {
            return Err(problems);
        }
        Self::new(expression, time_zone).map_err(|problem| vec![problem])
    }

    /// Returns the first occurrence after `after`.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.expression.next_after(&self.zone, after)
    }

    /// Returns the next [`PREVIEW`] occurrences after `after`.
    pub fn preview(&self, after: Timestamp) -> Vec<Timestamp> {
        self.expression.upcoming(&self.zone, after, PREVIEW)
    }

    /// Returns a time as the clocks of its zone show it.
    pub fn local(&self, at: Timestamp) -> jiff::Zoned {
        at.to_zoned(self.zone.clone())
    }

    /// Returns the occurrences to run now, oldest first, given the first one that is due.
    pub fn due(&self, next_at: Timestamp, now: Timestamp, catch_up: CatchUp) -> Vec<Timestamp> {
        let before = next_at
            .saturating_sub(SignedDuration::from_secs(1))
            .unwrap_or(Timestamp::MIN);
        let on_time = now.saturating_sub(MISSED_AFTER).unwrap_or(Timestamp::MIN);
        let mut due = Vec::new();
        // From the newest back, so that a long downtime of a fast rhythm costs no more than a short
        // one.
        let mut until = now;
        while due.len() < CAUGHT_UP_MAX
            && let Some(at) = self.expression.last_between(&self.zone, before, until)
        {
            due.push(at);
            until = at
                .saturating_sub(SignedDuration::from_nanos(1))
                .unwrap_or(Timestamp::MIN);
        }
        due.reverse();
        let is_missed = next_at < on_time;
        match catch_up {
            CatchUp::One if is_missed => due.split_off(due.len().saturating_sub(1)),
            CatchUp::One | CatchUp::All => due,
            CatchUp::None => {
                due.retain(|at| *at >= on_time);
                due
            }
        }
    }
}

/// A schedule with its present state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Schedule {
    /// The unique name, 1 to 128 bytes.
    pub name: String,
    /// The cron expression.
    pub expression: String,
    /// The time zone, by its IANA name.
    pub time_zone: String,
    /// The kind of its jobs.
    pub kind: String,
    /// The arguments of its jobs.
    pub args: serde_json::Value,
    /// The name of the throttle of its jobs.
    pub throttle: String,
    /// The rate-limit key of its jobs; empty for none.
    pub key: String,
    /// The priority of its jobs: 0 runs first, 3 last.
    pub priority: i32,
    /// Attempts before a job is dead.
    pub max_attempts: i32,
    /// Tokens that a job takes from its throttle.
    pub cost: f64,
    /// The timeout of an attempt in seconds, if the schedule sets it.
    #[serde(rename = "timeout")]
    pub timeout_s: Option<f64>,
    /// The tags of its jobs.
    pub tags: Vec<String>,
    /// The waits of its jobs after failed attempts, if the schedule sets them.
    pub retry: Option<JobRetry>,
    /// The policy for missed occurrences.
    pub catch_up: CatchUp,
    /// The policy for an occurrence while the last job is unfinished.
    pub overlap: Overlap,
    /// True while the schedule is paused.
    pub paused: bool,
    /// The next occurrence; absent while the schedule is paused, has a problem that stops it, or
    /// was changed just now.
    pub next_at: Option<Timestamp>,
    /// The next five occurrences, regardless of a pause or a problem.
    pub upcoming: Vec<Timestamp>,
    /// The last occurrence that was processed.
    pub last_at: Option<Timestamp>,
    /// The id of the last job that it created.
    pub last_job_id: Option<i64>,
    /// The time at which an occurrence last created no job because the job before was unfinished.
    pub skipped_at: Option<Timestamp>,
    /// The reason why it creates no jobs, or created none the last time.
    pub problem: Option<String>,
    /// The time of the last change.
    pub updated_at: Timestamp,
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
