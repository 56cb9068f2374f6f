//! The wrong fields of a request, all of them listed at once.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;

use crate::input::issue::IssueSink;
pub use crate::input::pointer;
pub use crate::input::reader::{TIME, time_of};
pub use crate::input::wording::{clipped, describe, missing, must_be, unknown};
use crate::input::{Issue, Reader};

/// The most wrong fields that one answer lists, because a batch of 10,000 bad jobs must not cause
/// an answer of megabytes.
pub const MAX_LISTED: usize = 100;

/// Returns the place of a field of a job that the queue refused: `kind`, or `args` and a pointer
/// into the arguments.
pub fn place_of(field: &str) -> String {
    match field.split_once('/') {
        Some((name, rest)) => format!("{}/{rest}", pointer("", name)),
        None => pointer("", field),
    }
}

/// An error in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct FieldError {
    /// The part of the request that holds the field: body, query, path or header.
    #[serde(rename = "in")]
    pub place: FieldLocation,
    /// The JSON pointer to the field; empty for the whole.
    #[schema(example = "/3/priority")]
    pub pointer: String,
    /// The error and the allowed values.
    #[schema(example = "must be a whole number from 0 to 3 (0 runs first), not 7")]
    pub message: String,
}

/// The part of a request that holds a wrong field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FieldLocation {
    /// The JSON body.
    Body,
    /// The query string; the pointer is `/` and the parameter's name.
    Query,
    /// The path; the pointer is `/` and the name in the route.
    Path,
    /// A header; the pointer is `/` and the header's name.
    Header,
}

/// The wrong fields of one request, at most [`MAX_LISTED`] of them kept and all of them counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// The first errors, in the order in which they were found.
    pub listed: Vec<FieldError>,
    /// The number of all errors.
    pub total: usize,
}

impl Errors {
    /// Adds a wrong field of the body.
    pub fn body(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.push(FieldLocation::Body, pointer.into(), message.into());
    }

    /// Adds a wrong field anywhere.
    pub fn push(&mut self, place: FieldLocation, pointer: String, message: String) {
        self.total += 1;
        if self.listed.len() < MAX_LISTED {
            self.listed.push(FieldError {
                place,
                pointer,
                message,
            });
        }
    }

    /// Returns true while there is no error.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

impl IssueSink for Errors {
    fn add(&mut self, issue: Issue) {
        self.body(issue.pointer, issue.message);
    }
}

/// A reader of an object of a request's body.
pub type ObjectReader<'e> = Reader<'e>;

/// Takes a span of seconds in `range`; `None` if it is absent or wrong.
pub fn seconds(
    fields: &mut ObjectReader<'_>,
    name: &str,
    range: RangeInclusive<f64>,
) -> Option<Duration> {
    let seconds = fields.number(name, range, " seconds")?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_errors_than_are_listed_are_still_counted() {
        let mut errors = Errors::default();
        for i in 0..250 {
            errors.body(format!("/{i}"), "bad");
        }
        assert_eq!((errors.listed.len(), errors.total), (MAX_LISTED, 250));
    }
}
