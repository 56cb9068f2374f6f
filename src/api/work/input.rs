//! The parts that the bodies of workers have in common.

use std::sync::Arc;

use axum::extract::Request;
use serde_json::Value;

use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, ObjectReader};
use crate::api::http::problem::{Code, Problem};
use crate::api::jobs::input::{COST_MAX, find_nul};
use crate::api::jobs::show::id_of;
use crate::jobs::remote::{PresentedLease, RemoteError, RemoteWorkers};

/// The service behind the routes.
pub type Workers = Arc<dyn RemoteWorkers>;

/// The length of a lease, in hexadecimal digits.
pub(in crate::api) const LEASE_DIGITS: usize = 16;

/// The largest checkpoint or result, in bytes of JSON.
pub(in crate::api) const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Reads the body of a call for one job: its lease and `cost`, and the fields that `read` takes.
pub(super) async fn read<T>(
    id: &str,
    caller: &Caller,
    request: Request,
    allowed: &[&str],
    read: impl FnOnce(&mut ObjectReader<'_>) -> T,
) -> Result<(PresentedLease, Option<f64>, T), Problem> {
    let job_id = id_of(id)?;
    let value = body::json_rounded(request, body::ONE_BYTES_MAX).await?;
    let mut errors = Errors::default();
    let fields: Vec<&str> = ["lease", "cost"]
        .into_iter()
        .chain(allowed.iter().copied())
        .collect();
    let Some(mut reader) = ObjectReader::open(value, "", &fields, &mut errors) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    let fence = lease_of(&mut reader);
    let cost = reader.number("cost", 0.0..=COST_MAX, " tokens");
    let own = read(&mut reader);
    drop(reader);
    let Some(fence) = fence.filter(|_| errors.is_empty()) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    let lease = PresentedLease {
        job_id,
        fence,
        tenant: caller.tenant.as_deref().map(str::to_owned),
    };
    Ok((lease, cost, own))
}

fn lease_of(reader: &mut ObjectReader<'_>) -> Option<i64> {
    let allowed = format!("the lease of the job: {LEASE_DIGITS} hexadecimal digits");
    let Some(value) = reader.take("lease") else {
        reader.missing("lease", &allowed);
        return None;
    };
    let fence = value
        .as_str()
        .filter(|text| text.len() == LEASE_DIGITS)
        .and_then(|text| i64::from_str_radix(text, 16).ok())
        .filter(|fence| *fence >= 0);
    if fence.is_none() {
        reader.refuse("lease", &allowed, &value);
    }
    fence
}

/// Writes a fence as a lease.
pub(super) fn lease(fence: i64) -> String {
    format!("{fence:0LEASE_DIGITS$x}")
}

/// Takes a text that must be given; `meaning` says what it is.
pub(super) fn required(
    reader: &mut ObjectReader<'_>,
    name: &str,
    bytes: std::ops::RangeInclusive<usize>,
    meaning: &str,
) -> Option<String> {
    if !reader.contains(name) {
        reader.missing(name, meaning);
    }
    reader.text(name, bytes)
}

/// Takes a JSON value of any form, if it can be stored.
pub(super) fn stored_value(reader: &mut ObjectReader<'_>, name: &str) -> Option<Value> {
    let value = reader.take_nullable(name)?;
    let mut nul = Vec::new();
    find_nul(&value, "", &mut nul);
    for place in nul {
        reader.wrong_below(name, &place, "must not contain the character U+0000");
    }
    let bytes = value.to_string().len();
    if bytes > VALUE_BYTES_MAX {
        let message = format!("must be at most {VALUE_BYTES_MAX} bytes of JSON, not {bytes}");
        reader.wrong(name, message);
    }
    Some(value)
}

/// Converts the refusal of a call; `job_id` is that of its job, if it has one.
pub(super) fn problem(error: RemoteError, job_id: Option<i64>) -> Problem {
    match error {
        RemoteError::LeaseLost => {
            let job = job_id.map_or_else(String::new, |id| format!("job {id}: "));
            Problem::new(
                Code::LeaseLost,
                format!(
                    "{job}this lease does not hold it (any more): it expired, and the job goes on \
                     without this worker, or the job was ended under it before. Nothing was \
                     changed; stop working on it"
                ),
            )
        }
        RemoteError::Unavailable(reason) => Problem::new(Code::NotReady, reason).retry_after(1),
        RemoteError::Queue(error) => Problem::from_queue(error, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_written_as_it_is_read() {
        for fence in [0, 17, i64::MAX] {
            let text = lease(fence);
            assert_eq!(text.len(), LEASE_DIGITS);
            assert_eq!(i64::from_str_radix(&text, 16), Ok(fence));
        }
    }
}
