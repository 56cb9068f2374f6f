//! The rows of the gates in Postgres: messages, what gates know of their recipients, plans, and what
//! attempts use up.

mod attempts;
mod check;
mod explain;
mod held;
mod messages;
mod open_digests;
mod plans;
mod rows;

pub use attempts::{GateVerdict, end_attempts, verify};
pub use check::{CheckedMessage, check};
pub use explain::{MessageStanding, explain, standing};
pub use held::{HeldCounts, held_counts, replan};
pub use open_digests::{DigestFilter, open_digests, withdraw};
pub use plans::{PlannedMessage, plan_due, plan_jobs};

/// Returns a statement that leaves no name behind on a connection that is lent for a transaction.
fn query(
    sql: &'static str,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(sql).persistent(false)
}

/// The statements of this folder, for the test that prepares each.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("gates: due messages", messages::TAKE_DUE),
    ("gates: messages of jobs", messages::TAKE_JOBS),
    ("gates: messages", messages::LOAD),
    ("gates: profiles", rows::PROFILES),
    ("gates: defaults", rows::DEFAULTS),
    ("gates: suppressions", rows::SUPPRESSED),
    ("gates: claims", rows::CLAIMS),
    ("gates: sends", rows::SENT),
    ("gates: sends to change", rows::SENT_LOCKED),
    ("gates: reservations", rows::RESERVED),
    ("gates: digests", rows::DIGESTS),
    ("gates: digests seen", rows::DIGESTS_SEEN),
    ("gates: crowd", rows::CROWD),
    ("gates: claim", plans::CLAIM),
    ("gates: send", plans::SEND),
    ("gates: hold", plans::HOLD),
    ("gates: reserve", plans::RESERVE),
    ("gates: open digests", plans::OPEN_DIGESTS),
    ("gates: items", plans::ADD_ITEMS),
    ("gates: end", plans::END),
    ("gates: record", plans::RECORD_PLANS),
    ("gates: count crowd", plans::COUNT_CROWD),
    ("gates: new lists", attempts::NEW_LISTS),
    ("gates: take", attempts::TAKE),
    ("gates: slots", attempts::NOTE_SLOTS),
    ("gates: mark", attempts::MARK),
    ("gates: taken", attempts::TAKEN),
    ("gates: give back", attempts::GIVE_BACK),
    ("gates: recorded", explain::RECORDED),
    ("gates: clock", check::CLOCK),
    ("gates: held of a recipient", check::HELD_OF),
    ("gates: digests of a recipient", open_digests::OF_RECIPIENT),
    ("gates: digests of all", open_digests::LIST),
    ("gates: digests of a tenant", open_digests::LIST_OF_TENANT),
    ("gates: one digest", open_digests::ONE),
    ("gates: keep a digest open", open_digests::KEEP_OPEN),
    ("gates: withdraw", open_digests::WITHDRAW),
    ("gates: held", held::HELD),
    ("gates: collected", held::COLLECTED),
    ("gates: replan", held::REPLAN),
];
