//! What was run, and how it ended. Pure.

use std::fmt;

use serde_json::Value;

use crate::jobs::{Job, Outcome, State};

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The job.
    pub job_id: i64,
    /// What ran it.
    pub kind: String,
    /// Its arguments.
    pub args: Value,
    /// Its rate-limit key.
    pub key: String,
    /// 1 for the first attempt.
    pub attempt: i32,
    /// What the handler said.
    pub outcome: Outcome,
    /// Where the job stands because of it.
    pub state: State,
}

impl Run {
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

    /// What went wrong, where something did.
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

/// What was run, in order. Printed with `{}` it is a table for a test's message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Every attempt.
    pub runs: Vec<Run>,
}

impl Report {
    /// The attempts at jobs of one kind.
    pub fn of(&self, kind: &str) -> Vec<&Run> {
        self.runs.iter().filter(|run| run.kind == kind).collect()
    }

    /// How many attempts completed their jobs.
    pub fn completed(&self) -> usize {
        self.count(State::Completed)
    }

    /// How many attempts failed and will be followed by another.
    pub fn failed(&self) -> usize {
        self.count(State::Retryable)
    }

    /// How many attempts left a dead letter.
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
            writeln!(f, "{} {} attempt {}: {:?}, {:?}", run.kind, run.args, run.attempt, run.state, run.outcome)?;
        }
        Ok(())
    }
}
