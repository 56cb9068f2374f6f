//! The rows of the gates in Postgres: messages, what gates know of their recipients, plans, and what
//! attempts use up.

mod attempts;
mod carriers;
mod check;
mod claiming;
mod claims;
mod copy;
mod crowds;
mod digest_messages;
mod digests;
mod dry_run;
mod due_digests;
mod ended_slots;
mod ends;
mod explain;
mod held;
mod items;
mod living;
mod messages;
mod new_lists;
mod open_digests;
mod open_types;
mod plan_rows;
mod plan_writes;
mod plans;
mod profiles;
mod prune;
mod queued_digests;
mod reachable;
mod recorded_plans;
mod refusal;
mod repeats;
mod reservations;
mod rows;
mod rule_sources;
mod rules_in_force;
mod sends;
mod statement;
mod taken;
mod taken_items;
mod unknown_zones;
mod unwanted_items;

pub use attempts::{GateVerdict, end_attempts, verify};
pub use check::{CheckedMessage, check};
pub use digests::{ClosedDigests, close_due, close_one};
pub use dry_run::{LogCursor, LogPage, LogParser, UnreadableLog};
pub use due_digests::{due_digests, put_off_failed};
pub use ended_slots::{ReturnedSlots, return_ended};
pub use explain::{MessageStanding, explain, standing};
pub use held::{HeldCounts, held_counts, replan};
pub use open_digests::{DigestFilter, open_digests, withdraw};
pub use open_types::open_types;
pub use plans::{PlannedMessage, Waking, due_jobs, plan_apart, plan_due, plan_jobs, put_plan_off};
pub use profiles::{
    ErasedRecipient, PROFILE_STATEMENTS, PutRecipients, RecipientProfiles, StoredDefaults,
    StoredRecipient,
};
pub use prune::prune;
pub use reachable::{Addressless, addressless};
pub use recorded_plans::{RecordedPlans, recorded_plans};
pub use refusal::refusal;
pub(in crate::recipient) use repeats::repeated;
pub use rows::ClaimKey;
pub use rules_in_force::publish_rules;
pub use taken::Look;

/// The statements of this folder, for the test that prepares each.
pub const GATE_STATEMENTS: &[(&str, &str)] = &[
    ("gates: prune", prune::PRUNE),
    ("digests: put a failed one off", due_digests::PUT_OFF_FAILED),
    ("gates: now", refusal::NOW),
    ("gates: without an address", reachable::ADDRESSLESS),
    ("gates: rules in force", rules_in_force::PUBLISH),
    ("gates: fresh messages", taken::TAKE_FRESH),
    ("gates: due messages", taken::TAKE_DUE),
    ("gates: messages of jobs", taken::TAKE_JOBS),
    ("gates: jobs that are due", taken::DUE_JOBS),
    ("gates: put a plan off", taken::PUT_JOB_OFF),
    ("gates: siblings", taken::TAKE_SIBLINGS),
    ("gates: messages", messages::LOAD),
    ("gates: profiles", rows::PROFILES),
    ("gates: defaults", rows::DEFAULTS),
    ("gates: suppressions", rows::SUPPRESSED),
    ("gates: claims", claims::CLAIMS),
    ("gates: sends", rows::SENT),
    ("gates: sends to change", rows::SENT_LOCKED),
    ("gates: reservations", rows::RESERVED),
    ("gates: digests", rows::DIGESTS),
    ("gates: digests seen", rows::DIGESTS_SEEN),
    ("gates: crowd", rows::CROWD),
    ("gates: claim", claims::CLAIM),
    ("gates: send", sends::SEND),
    ("gates: tell", sends::TELL),
    ("gates: hold", plan_writes::HOLD),
    ("gates: reserve", reservations::RESERVE),
    ("gates: open digests", items::OPEN_DIGESTS),
    ("gates: ids of digests", items::NEW_IDS),
    ("gates: items", items::ADD_ITEMS),
    ("gates: end", ends::END),
    ("gates: release keys", ends::RELEASE_KEYS),
    ("gates: record", plan_rows::RECORD_PLANS),
    ("gates: count crowd", crowds::COUNT_CROWD),
    ("digests: due", due_digests::DUE),
    ("digests: one that is due", due_digests::DUE_ONE),
    ("digests: ids of those that are due", due_digests::DUE_IDS),
    ("digests: queued", queued_digests::QUEUED),
    ("digests: put off", digests::PUT_OFF),
    ("digests: close", digests::CLOSE),
    ("digests: take items", taken_items::TAKE_ITEMS),
    ("digests: bytes of items", taken_items::ITEM_BYTES),
    ("digests: take a part", taken_items::TAKE_PART),
    ("digests: fewer items", unwanted_items::FEWER),
    ("digests: topics of items", unwanted_items::TOPICS),
    (
        "digests: take unwanted items",
        unwanted_items::TAKE_UNWANTED,
    ),
    ("digests: no longer pending", digests::NO_LONGER_PENDING),
    ("digests: enqueue", digests::ENQUEUE),
    ("digests: end items", digests::END_ITEMS),
    ("digests: reopen", digests::REOPEN),
    ("gates: new lists", new_lists::NEW_LISTS),
    ("gates: take", attempts::TAKE),
    ("gates: slots", attempts::NOTE_SLOTS),
    ("gates: mark", claims::MARK),
    ("gates: taken", attempts::TAKEN),
    ("gates: give back", claims::GIVE_BACK),
    ("gates: slots of ended messages", ended_slots::ENDED_SLOTS),
    ("gates: unsent of messages", ended_slots::UNSENT),
    ("gates: forget slots", ended_slots::FORGET_SLOTS),
    ("gates: recorded", explain::RECORDED),
    ("digests: carriers of an item", carriers::CARRIERS),
    ("gates: plans of jobs", recorded_plans::PLANS_OF_JOBS),
    ("gates: clock", check::CLOCK),
    ("gates: profile changed", rule_sources::PROFILE_CHANGED),
    ("gates: defaults changed", rule_sources::DEFAULTS_CHANGED),
    ("gates: suppressed since", rule_sources::SUPPRESSED_SINCE),
    ("gates: held of a recipient", check::HELD_OF),
    ("gates: history of a recipient", check::HISTORY_OF),
    ("gates: digests of a recipient", open_digests::OF_RECIPIENT),
    ("gates: digests of all", open_digests::LIST),
    ("gates: digests of a tenant", open_digests::LIST_OF_TENANT),
    ("gates: one digest", open_digests::ONE),
    ("gates: keep a digest open", open_digests::KEEP_OPEN),
    ("gates: withdraw", open_digests::WITHDRAW),
    ("gates: held", held::HELD),
    ("gates: collected", held::COLLECTED),
    ("gates: replan", held::REPLAN),
    ("dry run: first", dry_run::FIRST),
    ("dry run: messages", dry_run::MESSAGES),
    ("dry run: of gates", dry_run::OF_GATES),
    ("dry run: profiles", dry_run::PROFILES),
    ("dry run: defaults", dry_run::DEFAULTS),
];
