//! Attempts that were run, and their outcomes. Pure.

use std::fmt;

use serde_json::Value;

use crate::jobs::{Job, Outcome, State};

/// One attempt at a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRun {
    /// The id of the job.
    pub job_id: i64,
    /// The kind of the job, which selects its handler.
    pub kind: String,
    /// The arguments of the job.
    pub args: Value,
    /// The rate-limit key; empty for none.
    pub key: String,
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// The outcome that the handler returned.
    pub outcome: Outcome,
    /// The state of the job after the attempt.
    pub state: State,
}

impl JobRun {
    pub(super) fn new(job: &Job, outcome: Outcome, state: State) -> Self {
        Self {
            job_id: job.id,
            kind: job.kind.clone(),
            args: job.args.clone(),
            key: job.key.clone(),
            attempt: job.attempt,
            outcome,
            state,
        }
    }

    /// Returns the error of the attempt, if there was one.
    pub fn error(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Retry { error, .. }
            | Outcome::Throttled { error, .. }
            | Outcome::Overloaded { error, .. }
            | Outcome::Ambiguous { error, .. }
            | Outcome::Dead { error } => Some(error),
            _ => None,
        }
    }
}

/// The attempts that were run, in order.
///
/// Formatted with `{}`, it is a table for the message of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Every attempt, in the order in which they ran.
    pub runs: Vec<JobRun>,
}

impl Report {
    /// Returns the attempts at jobs of one kind.
    pub fn of(&self, kind: &str) -> Vec<&JobRun> {
        self.runs.iter().filter(|run| run.kind == kind).collect()
    }

    /// Returns the number of attempts that completed their jobs.
    pub fn completed(&self) -> usize {
        self.count(State::Completed)
    }

    /// Returns the number of attempts that failed and are followed by another.
    pub fn failed(&self) -> usize {
        self.count(State::Retryable)
    }

    /// Returns the number of attempts that left a dead letter.
    pub fn dead(&self) -> usize {
        self.count(State::Dead)
    }

    fn count(&self, state: State) -> usize {
        self.runs.iter().filter(|run| run.state == state).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            return f.write_str("nothing was run");
        }
        for run in &self.runs {
            writeln!(
                f,
                "{} {} attempt {}: {:?}, {:?}",
                run.kind, run.args, run.attempt, run.state, run.outcome
            )?;
        }
        Ok(())
    }
}
