//! Workers: in this process, and as whole processes that die.

mod chaos;
mod conservation;
mod fairness;
mod housekeeping;
mod over_limit;
mod process;
mod promote;
mod push_back;
mod stores_away;
mod worker;
