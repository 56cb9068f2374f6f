//! `/openapi.json`: the document, the limits of values, the problems and the examples.

mod bodies;
mod bounds;
pub mod document;
mod examples;
mod job_bodies;
mod operation_id;
mod problems;
mod report_bodies;
mod values;
mod work_bodies;
