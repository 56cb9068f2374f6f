//! The control law: each part has its own state and sees nothing of the others' but what it is
//! given.
//!
//! A [`Signal`] asks for a rate through its [`Controller`], the [`Breaker`] stops the work,
//! [`limits`] bound the rate, and [`Week`] remembers what an hour has sustained. The parts are put
//! together in [`super::state`].

pub mod breaker;
pub mod controller;
pub mod duration_evidence;
pub mod limits;
pub(in crate::governor) mod part;
pub mod pid_controller;
pub mod quota_controller;
pub mod signal;
pub(in crate::governor) mod signals;
pub mod tick_context;
pub mod week;
pub mod work;

pub use breaker::{Breaker, Phase, TripRecord};
pub use controller::Controller;
pub use duration_evidence::{DurationEvidence, Verdict};
pub use limits::{Clamp, Hold};
pub use pid_controller::PidController;
pub use quota_controller::{LearnedQuota, QuotaController};
pub use signal::Signal;
pub use week::Week;
pub use work::WorkEstimate;
