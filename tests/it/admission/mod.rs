//! Admission on real parts: processes, stores and a fake provider, with faults in the middle.

mod cancels;
mod faults;
pub mod fixture;
mod kills;
mod looping_module;
