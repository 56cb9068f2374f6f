//! Housekeeping: days come and go, hot tables do not grow, and no claim waits for it.

mod days;
mod fixture;
mod kinds;
mod remains;
