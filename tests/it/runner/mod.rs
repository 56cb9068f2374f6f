//! Workers: in this process, and as separate processes that die.

mod admission;
mod after;
mod broken_store;
mod chaos;
mod claims_fail;
mod conservation;
mod fairness;
mod fixture;
mod groups;
mod handlers;
mod heartbeat;
mod housekeeping;
mod idle;
mod late_commits;
mod over_limit;
mod process;
mod process_kill;
mod process_stop;
mod promote;
mod push_back;
mod remote;
mod retry;
mod secrets;
mod serving;
mod slots;
mod stores_away;
mod traces;
mod upgrade;
mod webhooks;
mod worker;

pub use conservation::soak;
