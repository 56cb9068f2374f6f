//! The fakes themselves: the examples of the providers' documentation work against them.

mod events;
mod faults;
mod fixture;
mod messages;

pub use fixture::{Posted, mailbox};
