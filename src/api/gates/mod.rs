//! The gates of recipients: why a message waits, what a recipient may still get, open digests.

pub mod accounts;
pub mod check;
pub mod counts;
pub mod digests;
pub mod explain;
pub mod replan;
