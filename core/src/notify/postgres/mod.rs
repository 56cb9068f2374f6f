//! The record of messages in Postgres: one statement for many messages, every statement a constant.

mod begin;
mod deadline;
mod deliveries;
mod events;
mod forget;
mod once;
mod read;
mod record;
mod suppression;
mod sweep_events;
mod tallies;
mod text;

pub use deliveries::Deliveries;

/// Every statement of this folder, for the test that prepares each on the migrated schema.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("begin deliveries", begin::BEGIN),
    ("record deliveries", record::RECORD),
    ("leave recipients alone", record::UPSERT_RECIPIENT_REST),
    ("recipients are there again", record::REST_NO_MORE),
    ("record events", events::RECORD_EVENTS),
    ("apply events", events::APPLY),
    ("unmatched events", sweep_events::UNMATCHED),
    ("remember signature", once::REMEMBER),
    ("expire messages", deadline::EXPIRE),
    (
        "expire messages that wait for limits",
        deadline::EXPIRE_WAITING,
    ),
    ("requeue unsent messages", deadline::REQUEUE_UNSENT),
    ("find message", read::FIND),
    ("list messages", read::LIST),
    ("list messages of tenant", read::LIST_OF_TENANT),
    ("find suppression", suppression::FIND),
    ("list suppressions", suppression::LIST),
    ("suppress", suppression::SUPPRESS),
    ("unsuppress", suppression::UNSUPPRESS),
    ("forget deliveries", forget::FORGET_DELIVERIES),
    ("forget dead messages", forget::FORGET_DEAD_MESSAGES),
    ("forget events", forget::FORGET_EVENTS),
    ("forget tallies", forget::FORGET_TALLIES),
    ("forget tallies of tenants", forget::FORGET_TENANT_TALLIES),
    ("feedback on tenants", tallies::TENANTS),
    ("forget account events", forget::FORGET_ACCOUNT_EVENTS),
    ("forget rests", forget::FORGET_RESTS),
];
