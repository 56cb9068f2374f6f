//! Answers of the changes of one job.

use anyhow::bail;

use super::exit::CliError;
use super::output;
use super::output::say;
use crate::jobs::State;

/// Refuses a change that the state of the job does not allow.
pub(super) fn refused(id: i64, state: State, allowed: &str) -> anyhow::Result<()> {
    bail!(CliError::Refused(format!(
        "job {id} is {}; {allowed}",
        state.as_str()
    )))
}

/// Prints the result of a change.
pub(super) fn answer(id: i64, json: bool, result: &str) -> anyhow::Result<()> {
    if json {
        return output::json(&serde_json::json!({ "id": id, "result": result }));
    }
    say!("job {id} is {result}");
    Ok(())
}

/// Returns the error of a job that does not exist.
pub(super) fn unknown(id: i64) -> CliError {
    CliError::NotFound(format!("there is no job {id}"))
}
