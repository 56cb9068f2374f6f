//! The answers about a message that was accepted.

use jiff::Timestamp;
use serde::Serialize;

use super::planned::PlannedNotification;
use crate::admission::{AdmissionLevel, WaitingMessage};
use crate::api::clock;
use crate::jobs::NewJob;
use crate::notify::Notification;
use crate::notify::args::PRIORITIES;

/// A message that was accepted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AcceptedNotification {
    /// The number of the message's job.
    pub id: i64,
    /// The pool that sends the message.
    pool: String,
    /// True if the unique key is taken; then this is the message that holds it.
    duplicate: bool,
    /// The priority with which it is sent: `critical`, `high`, `normal` or `low`.
    pub priority: &'static str,
    /// The time until which it waits for the limits of its tenant, and the reason; absent if it
    /// does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldMessage>,
    /// The plan of the gates of its recipient; absent for a message that goes now.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlannedNotification>,
    /// Warnings for the sender, for example that the pool's throttle does not exist yet.
    pub warnings: Vec<String>,
}

impl AcceptedNotification {
    /// Returns the answer for a job that was accepted, or for the one that holds its unique key.
    pub fn new(id: i64, job: &NewJob, duplicate: bool, warnings: Vec<String>) -> Self {
        Self {
            id,
            pool: job.throttle.clone(),
            duplicate,
            priority: priority_word(job.priority),
            held: None,
            plan: None,
            warnings,
        }
    }

    /// Returns the answer for a message that was accepted before.
    pub fn of(found: &Notification, priority: i32) -> Self {
        Self {
            id: found.id,
            pool: found.pool.clone(),
            duplicate: false,
            priority: priority_word(priority),
            held: None,
            plan: None,
            warnings: Vec::new(),
        }
    }
}

/// Returns the word of a priority.
pub fn priority_word(priority: i32) -> &'static str {
    let found = PRIORITIES.iter().find(|(_, number)| *number == priority);
    found.map_or("normal", |(word, _)| word)
}

/// The time until which a message waits, and the reason.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct HeldMessage {
    /// The estimated time at which it goes to its pool; `null` while its tenant or everything is
    /// paused.
    pub until: Option<Timestamp>,
    /// The level whose limit it waits for; `null` while Redis is away, or its tenant or everything
    /// is paused.
    pub by: Option<AdmissionLevel>,
    /// Its place among the waiting messages of its module, from 1.
    pub place: i64,
    /// The reason as a sentence.
    pub why: String,
}

impl HeldMessage {
    pub fn of(waiting: &WaitingMessage) -> Self {
        Self {
            until: until(waiting),
            by: waiting.level,
            place: waiting.place,
            why: waiting.sentence(),
        }
    }
}

/// Returns the estimated time at which a waiting message goes to its pool; `None` if nobody knows.
pub fn until(waiting: &WaitingMessage) -> Option<Timestamp> {
    let wait = std::time::Duration::from_secs(waiting.until_s()?);
    Some(clock::now().checked_add(wait).unwrap_or(Timestamp::MAX))
}
