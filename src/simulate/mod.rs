//! The governor on simulated plants: the same `State::tick` that `flyball serve` runs, closed over a model of what it governs,
//! in virtual time, beside controllers that people would write instead.
//!
//! A [`scenario`] is a knobs file with tables about its plant. What a run cannot influence (background work, the cost of a job,
//! noise, delays) is drawn once from the seed ([`weather`]), so that every controller meets the same day. [`plant`] answers what
//! a rate does to the load, [`exporter`] what is seen of it and when, [`controller`] what is done about it, [`run`] closes the
//! loop, [`score`] judges it, [`compare`] adds up many days, [`plot`] draws one.

pub mod bare_pid;
pub mod compare;
pub mod controller;
pub mod curve;

pub mod exporter;
pub mod library;
pub mod plant;
pub mod plot;
pub mod run;
pub mod scenario;
pub mod score;
pub mod weather;

#[cfg(test)]
mod goals_tests;

pub use controller::Contender;
pub use run::{Record, Second, run};
pub use scenario::Scenario;
pub use score::Score;
