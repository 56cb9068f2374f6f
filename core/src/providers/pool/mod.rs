//! The pool of a provider's accounts: the rotation, the blocked accounts, and the capacity of all.
//!
//! Each account's bucket, pauses and learned quota are a key of the throttle `<pool>:accounts`, so
//! that all workers share them. [`choice`] picks the next account, [`breaker`] takes an account out
//! of rotation, [`shedding`] computes the pool's capacity; all three are pure. [`account_pool`]
//! assigns accounts to messages, [`maintenance`] maintains the pool once a second. Out of scope:
//! the contents of messages.

pub mod account_pool;
pub mod breaker;
pub mod breakers;
pub mod choice;
pub mod maintenance;
mod outcomes;
mod serve;
mod shared;
pub mod shedding;
pub mod view;

pub use account_pool::AccountPool;
pub use breaker::{Breaker, BreakerState, Change};
pub use breakers::Breakers;
pub use choice::{Choice, Ring};
pub use maintenance::{maintain, observe, seed};
pub use shared::{AccountLease, Checkout};
pub use shedding::Capacity;
pub use view::{AccountView, Flow, PoolView};
