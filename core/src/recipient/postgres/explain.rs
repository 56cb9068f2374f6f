//! The way of a message through the gates, read without taking anything: what the gates found when
//! they looked last, and by the same functions what they would find next.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use super::carriers::{carriers, describe_carriers};
use super::claims::claims;
use super::messages::load;
use super::open_digests;
use super::plan_rows::{holds, recorded_plan};
use super::plans::{Capacity, digest_key};
use super::rows::{
    DigestKey, GateInput, StoredList, StoredTimes, crowd, digests, inputs, reserved, sent, unstored,
};
use super::rule_sources::add_sources;
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};
use crate::recipient::candidate::{Candidate, CapList, Origin};
use crate::recipient::caps::give_back;
use crate::recipient::collectors::collectors;
use crate::recipient::crowd::crowd_quarter;
use crate::recipient::dedup::DedupClaim;
use crate::recipient::digest::{COALESCED, OpenDigest};
use crate::recipient::explain::{
    DigestView, GateFinding, GateForecast, GateStep, HoldingGate, MessageExplanation,
    add_past_holds, forecast, sentence, steps, unplanned,
};
use crate::recipient::gate::{MessageGate, UnsentReason};
use crate::recipient::gates::{CapTimes, GateHold, GateRows, MessagePlan, cap_lists, plan, verify};
use crate::recipient::rules::RecipientRules;

pub(super) const RECORDED: &str = "
select n.tenant, n.state as delivery, n.reason as why, p.state, p.gate, p.rule, p.reason, p.holds, p.until, p.since, p.planned_at,
    p.other_job, p.digest_id, s.turn, s.run_at, coalesce(s.run_at > now(), false) as is_later, l.job_id is not null as is_running
from flyball.notification n
left join lateral (select * from flyball.message_plan h where h.job_id = n.job_id limit 1) p on true
left join lateral (select * from flyball.scheduled h where h.job_id = n.job_id limit 1) s on true
left join lateral (select h.job_id from flyball.lease h where h.job_id = n.job_id limit 1) l on true
where n.job_id = $1 and ($2::text is null or n.tenant = $2)";

/// The time behind the end of a hold within which its message goes as it was told: an attempt that
/// holds a message puts it back a moment after it has looked.
const PUT_BACK: SignedDuration = SignedDuration::from_mins(1);

/// The place of a message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The planner has not looked at it yet, or is to look again.
    Unplanned,
    /// A gate holds it.
    Held,
    /// It is with its pool.
    AtPool,
    /// An attempt runs.
    Running,
    /// It has ended.
    Over,
}

/// The record of a message.
struct Recorded {
    tenant: String,
    delivery: String,
    /// The reason of its delivery's state; empty for none.
    why: String,
    place: Place,
    /// The findings of the last check of the gates; `None` if there was none.
    plan: Option<MessagePlan>,
    /// The waits of the last hold, whether or not it is over.
    holds: Vec<GateHold>,
    /// The time at which that hold ended, of a message that has passed since.
    hold_ended_at: Option<Timestamp>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    planned_at: Option<Timestamp>,
    run_at: Option<Timestamp>,
    /// True if the planner does not look at it yet.
    is_later: bool,
    /// True if the planner looks again when its hold ends, because it may become one with others.
    sleeps: bool,
    duplicate_of: Option<i64>,
    digest: Option<DigestView>,
    digest_id: Option<i64>,
    /// The messages in which the closed digest of an item went.
    carriers: Vec<i64>,
}

impl Recorded {
    /// Returns the time to which somebody has rescheduled a held message, behind the end of its
    /// hold.
    fn rescheduled_for(&self) -> Option<Timestamp> {
        let is_held =
            self.place == Place::Held && matches!(self.plan, Some(MessagePlan::Held { .. }));
        let (until, run_at) = (self.until?, self.run_at?);
        (is_held && run_at.duration_since(until) > PUT_BACK).then_some(run_at)
    }

    /// Returns the time at which a held message goes, as far as is known.
    fn held_until(&self) -> Option<Timestamp> {
        self.rescheduled_for().or(self.until)
    }
}

/// The gate that holds a message, or the digest that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct MessageStanding {
    /// The gate that holds it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<HoldingGate>,
    /// The time at which it goes, as far as is known now; absent if no gate holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_at: Option<Timestamp>,
    /// The open digest that has it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<DigestView>,
}

/// Returns the gate that holds a message, or the digest that has it.
pub async fn standing(db: &Db, job_id: i64) -> Result<MessageStanding, Error> {
    let mut transaction = db.begin().await?;
    let found = recorded(&mut transaction, job_id, None).await?;
    transaction.commit().await?;
    Ok(found.map(standing_of).unwrap_or_default())
}

fn standing_of(found: Recorded) -> MessageStanding {
    let last = match &found.plan {
        Some(MessagePlan::Held { holds, .. }) if found.place == Place::Held => holds.last(),
        _ => None,
    };
    MessageStanding {
        held_by: last.map(|hold| HoldingGate {
            gate: hold.gate.as_str().to_owned(),
            rule: hold.rule.clone(),
            until: hold.until,
        }),
        planned_at: last.and(found.held_until()),
        digest: found.digest,
    }
}

/// Explains a message; with a tenant, only one of its own. `None` for an unknown one.
pub async fn explain(
    db: &Db,
    job_id: i64,
    tenant: Option<&str>,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Option<MessageExplanation>, Error> {
    let mut transaction = db.begin().await?;
    let Some(mut found) = recorded(&mut transaction, job_id, tenant).await? else {
        transaction.commit().await?;
        return Ok(None);
    };
    if found.delivery == "collected" && found.digest.is_none() {
        found.carriers = carriers(&mut transaction, job_id).await?;
    }
    let mut forecast = match found.place {
        Place::Running => None,
        Place::Over if found.digest.is_none() => None,
        _ => foresee(&mut transaction, job_id, &found, rules, capacity).await?,
    };
    let (messages, _) = load(&mut transaction, &[job_id]).await?;
    let input = inputs(&mut transaction, messages).await?.pop();
    let mut gates = gates(&found);
    if let Some(input) = &input {
        add_sources(&mut transaction, input, rules, &mut gates).await?;
        if let Some(next) = &mut forecast {
            add_sources(&mut transaction, input, rules, &mut next.gates).await?;
        }
    }
    transaction.commit().await?;
    Ok(Some(explained(job_id, found, gates, forecast)))
}

fn explained(
    id: i64,
    found: Recorded,
    gates: Vec<GateStep>,
    forecast: Option<GateForecast>,
) -> MessageExplanation {
    let planned_at = match found.place {
        Place::Held => found.held_until(),
        Place::Over | Place::Running => None,
        Place::Unplanned | Place::AtPool => forecast.as_ref().and_then(|next| next.goes_at),
    };
    MessageExplanation {
        id,
        sentence: format!(
            "{}{}",
            state_sentence(id, &found, forecast.as_ref()),
            set_by(&found, &gates)
        ),
        gates,
        tenant: found.tenant,
        state: found.delivery,
        first_planned_at: found.planned_at,
        planned_at,
        carried_by: match found.carriers[..] {
            [one] => Some(one),
            _ => None,
        },
        digest: found.digest,
        forecast,
    }
}

/// Returns who set the rules that decided, as the end of a sentence.
fn set_by(found: &Recorded, gates: &[GateStep]) -> String {
    if !matches!(found.place, Place::Held | Place::Over) {
        return String::new();
    }
    let each = gates.iter().filter_map(|step| step.set_by.as_ref());
    each.map(|source| format!("; {}", source.sentence()))
        .collect()
}

/// Returns true for a message that passed its gates and whose attempt found its recipient suppressed:
/// it looks once more, and changes no plan.
fn is_suppressed_since(found: &Recorded) -> bool {
    let is_decided = matches!(
        found.plan,
        Some(MessagePlan::Ended { .. } | MessagePlan::Collected { .. })
    );
    !is_decided
        && found.place == Place::Over
        && found.delivery == state_of(UnsentReason::Suppressed)
}

/// Returns each gate with what it found when it looked last.
fn gates(found: &Recorded) -> Vec<GateStep> {
    let is_suppressed_since = is_suppressed_since(found);
    let mut gates = match (&found.plan, found.place) {
        (None, Place::Unplanned) => return unplanned(),
        _ if is_suppressed_since => steps(&MessagePlan::Ended {
            gate: MessageGate::Suppression,
            reason: UnsentReason::Suppressed,
            rule: String::new(),
        }),
        // Somebody ended it while it waited, and not the gate that held it.
        (Some(MessagePlan::Held { .. }), Place::Over) => {
            return steps(&MessagePlan::Ended {
                gate: MessageGate::Deadline,
                reason: UnsentReason::Cancelled,
                rule: String::new(),
            });
        }
        // A message that was held and is with its pool now has passed.
        (None, _) | (Some(MessagePlan::Held { .. }), Place::AtPool | Place::Running) => {
            steps(&MessagePlan::Send)
        }
        (Some(plan), _) => steps(plan),
    };
    add_past_holds(&mut gates, &found.holds, found.hold_ended_at);
    for step in &mut gates {
        if step.decided() && !is_suppressed_since {
            step.since = found.since;
        }
        // The time at which there is room, of one that was refused.
        if step.finding == GateFinding::Ended && step.gate == MessageGate::Caps.as_str() {
            step.until = found.until;
        }
        if step.finding == GateFinding::Collected {
            step.digest_id = found.digest_id;
        }
        if step.finding == GateFinding::Ended && step.gate == MessageGate::Dedup.as_str() {
            step.duplicate_of = found.duplicate_of;
        }
        if step.gate == MessageGate::Pool.as_str() && found.place == Place::AtPool {
            step.finding = GateFinding::Waits;
        }
    }
    gates
}

fn state_sentence(id: i64, found: &Recorded, forecast: Option<&GateForecast>) -> String {
    let foreseen = forecast.map_or("", |next| next.sentence.as_str());
    let delivery = &found.delivery;
    match (&found.plan, found.place) {
        (_, Place::Unplanned) => match found.run_at.filter(|_| found.is_later) {
            Some(at) => {
                format!(
                    "message {id} is planned at {at:.0}; by what is known now it then {foreseen}"
                )
            }
            None => format!("message {id} is planned next; by what is known now it {foreseen}"),
        },
        (Some(plan @ MessagePlan::Held { .. }), Place::Held) => {
            let then = match forecast {
                Some(next) if next.sentence != sentence(&MessagePlan::Send) => {
                    format!("; then, by what is known now, it {foreseen}")
                }
                _ => String::new(),
            };
            let put_off = found.rescheduled_for();
            let put_off = put_off.map(|at| format!("; it was rescheduled for {at:.0}"));
            let put_off = put_off.unwrap_or_default();
            format!("message {id} {}{put_off}{then}", sentence(plan))
        }
        (_, Place::Held | Place::AtPool) => {
            format!("message {id} has passed its gates and waits for its throttle and an account")
        }
        (_, Place::Running) => format!("message {id} is being sent"),
        (Some(plan @ MessagePlan::Collected { .. }), Place::Over) if delivery == "collected" => {
            match &found.digest {
                Some(digest) => {
                    let then = end_of_digest(digest, forecast);
                    format!("message {id} {}{then}", sentence(plan))
                }
                None => {
                    let went = describe_carriers(&found.carriers);
                    format!("message {id} was an item of a digest that has closed{went}")
                }
            }
        }
        (Some(plan @ MessagePlan::Ended { .. }), Place::Over) => {
            format!("message {id} {}", sentence(plan))
        }
        (_, Place::Over) if found.why.is_empty() => format!("message {id} is {delivery}"),
        (_, Place::Over) => format!("message {id} is {delivery}: {}", found.why),
    }
}

/// Returns what keeps a digest open, and what becomes of it then, as the end of a sentence.
fn end_of_digest(digest: &DigestView, forecast: Option<&GateForecast>) -> String {
    let mut words = String::new();
    if !digest.gate.is_empty() {
        words += &format!("; the gate {} keeps it open", digest.gate);
    }
    if !digest.rule.is_empty() {
        words += &format!(" ({})", digest.rule);
    }
    let foreseen = forecast.map(|next| next.sentence.as_str());
    if let Some(then) = foreseen.filter(|then| *then != sentence(&MessagePlan::Send)) {
        words += &format!("; by what is known now, the digest then {then}");
    }
    words
}

/// Returns what the gates would find at their next check.
async fn foresee(
    connection: &mut Transaction,
    job_id: i64,
    found: &Recorded,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Option<GateForecast>, Error> {
    let (messages, now) = load(connection, &[job_id]).await?;
    let Some(input) = inputs(connection, messages).await?.pop() else {
        return Ok(None);
    };
    let policy = input.policy(rules);
    if let Some(digest) = &found.digest {
        let Some(kind) = rules.digest(&digest.kind) else {
            return Ok(None);
        };
        let item = input.candidate();
        let candidate = Candidate {
            origin: Origin::Digest,
            job: None,
            category: match digest.kind.as_str() {
                COALESCED => item.category,
                _ => &kind.category,
            },
            template: Some(&kind.template),
            // A digest of many actors is counted for none of them.
            actor: item.actor.filter(|_| kind.per_actor),
            digest: None,
            at_most: None,
            deadline: None,
            ..item
        };
        let at = digest.closes_at.max(now);
        let mut reading = Reading::of(connection, &input, &candidate, rules).await?;
        reading.claim = None;
        let next = reading.look((0, 0.0), |rows| plan(&candidate, policy, rows, at));
        return Ok(Some(forecast(&next, at, true)));
    }
    let candidate = input.candidate();
    let mut reading = Reading::of(connection, &input, &candidate, rules).await?;
    if found.place != Place::Unplanned && !found.sleeps {
        reading.lift(&input);
        let at = found.held_until().filter(|_| found.place == Place::Held);
        let at = at.map_or(now, |until| until.max(now));
        let next = reading.look((0, 0.0), |rows| verify(&candidate, policy, rows, at));
        return Ok(Some(forecast(&next, at, false)));
    }
    let at = found.run_at.map_or(now, |run_at| run_at.max(now));
    let first = reading.look((0, 0.0), |rows| plan(&candidate, policy, rows, at));
    let next = match crowd_quarter(&first) {
        Some(quarter) => {
            let place = (input.message.throttle.clone(), quarter);
            let held = crowd(connection, std::slice::from_ref(&place)).await?;
            let is_new = input.message.crowd_quarter != Some(quarter);
            let held = held.get(&place).copied().unwrap_or(0) + u64::from(is_new);
            let crowd = (held, capacity(&input.message.throttle));
            reading.look(crowd, |rows| plan(&candidate, policy, rows, at))
        }
        None => first,
    };
    Ok(Some(forecast(&next, at, false)))
}

/// The rows that decide about one message, read without a lock.
pub(super) struct Reading<'a> {
    pub lists: Vec<CapList>,
    pub claim: Option<DedupClaim>,
    is_suppressed: bool,
    has_slots: bool,
    times: Vec<StoredTimes>,
    digests: Vec<(&'a str, OpenDigest)>,
}

impl<'a> Reading<'a> {
    /// Reads what decides about a message, or about the digest that has it.
    pub(super) async fn of(
        connection: &mut Transaction,
        input: &GateInput,
        candidate: &Candidate<'_>,
        rules: &'a RecipientRules,
    ) -> Result<Self, Error> {
        let lists = cap_lists(candidate, rules);
        let stored: Vec<StoredList> = lists.iter().map(|list| input.stored(list)).collect();
        let mut of_sent = sent(connection, &stored, false).await?;
        let mut of_reserved = reserved(connection, &stored, &[input.message.job_id]).await?;
        let times = stored.iter().map(|list| StoredTimes {
            sent: of_sent.remove(list).unwrap_or_default(),
            reserved: of_reserved.remove(list).unwrap_or_default(),
        });
        let mut claimed = match candidate.origin {
            Origin::Sender => claims(connection, &[input]).await?,
            _ => HashMap::new(),
        };
        let kinds = match candidate.origin {
            Origin::Sender => collectors(candidate, &lists, rules),
            _ => Vec::new(),
        };
        let keys: Vec<DigestKey> = kinds
            .iter()
            .map(|kind| digest_key(input, &kind.name, rules))
            .collect();
        let open = digests(connection, &keys, false).await?;
        let named = kinds.iter().zip(&keys);
        Ok(Self {
            claim: claimed.remove(&input.claim),
            is_suppressed: input.is_suppressed,
            has_slots: input.message.has_slots(),
            times: times.collect(),
            digests: named
                .filter_map(|(kind, key)| Some((kind.name.as_str(), *open.get(key)?)))
                .collect(),
            lists,
        })
    }

    /// Takes out what the last attempt took, as the next one does: it counts at its own time.
    fn lift(&mut self, input: &GateInput) {
        self.has_slots = false;
        for (list, times) in self.lists.iter().zip(&mut self.times) {
            let number = input.stored(list).1;
            let own = input.message.slots.iter().filter(|slot| slot.0 == number);
            own.for_each(|slot| give_back(&mut times.sent, unstored(slot.1)));
        }
    }

    /// Returns the times of the lists in the form of the gates.
    pub(super) fn times(&self) -> Vec<CapTimes<'_>> {
        self.times.iter().map(lend).collect()
    }

    /// Looks at the gates with what was read; `crowd` is the number of messages that are held with
    /// it, and the capacity of their pool.
    pub(super) fn look(
        &self,
        crowd: (u64, f64),
        look: impl FnOnce(&GateRows<'_>) -> MessagePlan,
    ) -> MessagePlan {
        look(&GateRows {
            is_suppressed: self.is_suppressed,
            claim: self.claim,
            digests: &self.digests,
            times: &self.times(),
            lists: None,
            has_slots: self.has_slots,
            held_with_it: crowd.0,
            capacity_per_s: crowd.1,
        })
    }
}

fn lend(times: &StoredTimes) -> CapTimes<'_> {
    CapTimes {
        sent: &times.sent,
        reserved: &times.reserved,
    }
}

async fn recorded(
    connection: &mut Transaction,
    job_id: i64,
    tenant: Option<&str>,
) -> Result<Option<Recorded>, Error> {
    let row = query(RECORDED)
        .bind(job_id)
        .bind(tenant)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let digest = match row.try_get::<Option<i64>, _>("digest_id")? {
        Some(id) if row.try_get::<&str, _>("delivery")? == "collected" => {
            open_digests::one(connection, id).await?
        }
        _ => None,
    };
    Ok(Some(record(&row, digest)?))
}

fn record(row: &PgRow, digest: Option<DigestView>) -> Result<Recorded, sqlx::Error> {
    let time = |column| -> Result<Option<Timestamp>, sqlx::Error> {
        let at: Option<SqlTimestamp> = row.try_get(column)?;
        Ok(at.map(SqlTimestamp::to_jiff))
    };
    let delivery: String = row.try_get("delivery")?;
    let (until, run_at) = (time("until")?, time("run_at")?);
    let plan = recorded_plan(row, until, digest.as_ref())?;
    // One that ended, and was requeued, goes without a new record.
    let plan = plan.filter(|plan| match plan {
        MessagePlan::Ended { reason, .. } => delivery == state_of(*reason),
        _ => true,
    });
    let is_later: bool = row.try_get("is_later")?;
    let turn: Option<i16> = row.try_get("turn")?;
    let is_to_be_planned = turn.is_some_and(|turn| turn < 0);
    // One that is planned again before its hold ends waits for the planner alone.
    let is_held = is_later && run_at <= until && matches!(plan, Some(MessagePlan::Held { .. }));
    let sleeps = is_to_be_planned && is_held;
    let place = match turn {
        _ if delivery != "queued" => Place::Over,
        Some(_) if is_to_be_planned && !sleeps => Place::Unplanned,
        Some(_) => Place::Held,
        None if row.try_get("is_running")? => Place::Running,
        None => Place::AtPool,
    };
    Ok(Recorded {
        tenant: row.try_get("tenant")?,
        holds: match plan {
            Some(_) => holds(row),
            None => Vec::new(),
        },
        hold_ended_at: until.filter(|_| plan == Some(MessagePlan::Send)),
        why: row.try_get("why")?,
        place,
        since: time("since")?,
        // Of a message that may go it is the end of a hold that is over.
        until: until.filter(|_| plan != Some(MessagePlan::Send)),
        plan,
        planned_at: time("planned_at")?,
        run_at,
        is_later,
        sleeps,
        duplicate_of: row.try_get("other_job")?,
        digest_id: row.try_get("digest_id")?,
        carriers: Vec::new(),
        digest,
        delivery,
    })
}

/// Returns the state of the delivery of a message that ended for a reason.
fn state_of(reason: UnsentReason) -> &'static str {
    match reason {
        UnsentReason::Cancelled | UnsentReason::Expired => "failed",
        reason => reason.as_str(),
    }
}
