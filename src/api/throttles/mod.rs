//! Throttles: their state, their knobs and their tokens.

pub mod acquire;
pub mod caller_knobs;
pub mod check;
pub mod delete;
pub mod held;
pub mod history;
pub mod knobs;
pub mod measured;
pub mod obstacles;
pub mod pace;
pub mod pause;
pub mod report;
pub mod served;
pub mod state;
pub mod view;
pub mod wait_queue;
