//! The part of a tenant's usage that acceptance hands to the headers of the answer.

use crate::admission::AdmissionUsage;

/// The part of the usage that acceptance knows already.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnownUsage {
    /// All of it.
    Whole(AdmissionUsage),
    /// No message of the module waits.
    NoneWaits,
}
