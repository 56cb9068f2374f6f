//! The pool of a provider's accounts: whose turn it is, what is blocked, and what all of them together can bear.
//!
//! Each account's bucket, pauses and learned quota are a key of the throttle `<pool>:accounts`, so that all workers share them.
//! [`choice`] says whose turn it is, [`breaker`] when an account is no longer asked, [`shedding`] what the pool can bear; all three are pure.
//! [`desk`] hands accounts out to messages, [`keep`] looks after the pool once a second. What is left out: what a message is.

pub mod breaker;
pub mod breakers;
pub mod choice;
pub mod desk;
pub mod keep;
pub mod shedding;
pub mod view;

pub use breaker::{Breaker, Change, State};
pub use breakers::Breakers;
pub use choice::{Choice, Ring};
pub use desk::{Desk, Held, Taken};
pub use keep::{keep, seed};
pub use shedding::Capacity;
pub use view::{AccountView, Flow, PoolView};
