//! Arguments, tables and figures that the benchmarks have in common.

pub mod machine;
pub mod report;
