//! The gates in an attempt: a last check, the slots that it takes, and what it gives back.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sqlx::{Row, query};

use super::claiming::claims_of_attempts;
use super::claims::{give_claims_back, mark_claims};
use super::crowds::spread_out;
use super::messages::load;
use super::new_lists::add_lists;
use super::plan_rows::{PlanRow, write_rows};
use super::plans::{Capacity, PlannedMessage};
use super::reservations::{NewReservation, reserve};
use super::rows::{
    ClaimKey, GateInput, StoredList, StoredTimes, cap_times, columns, inputs, sent, sql_time,
    stored, unstored,
};
use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};
use crate::providers::Recipient;
use crate::recipient::address::RecipientKey;
use crate::recipient::candidate::CapList;
use crate::recipient::caps::give_back;
use crate::recipient::gate::{AttemptEnd, ClaimFate};
use crate::recipient::gates::{GateRows, MessagePlan, cap_lists, verify as verify_one, zone_of};
use crate::recipient::rules::RecipientRules;

pub(super) const TAKE: &str = "
with changed as (
    select a.recipient, a.list, coalesce(array_agg(s.second order by s.n) filter (where s.second is not null), '{}') as sent
    from unnest($1::text[]::uuid[], $2::int[]) with ordinality as a(recipient, list, n)
    left join unnest($3::bigint[], $4::int[]) with ordinality as s(of, second, n) on s.of = a.n
    group by a.recipient, a.list
)
update flyball.cap c set sent = h.sent
from changed h
where c.recipient = h.recipient and c.list = h.list";

// The message waits no longer, so its reservations go with it.
pub(super) const NOTE_SLOTS: &str = "
with waits_no_more as (
    delete from flyball.cap_reservation r
    using unnest($1::bigint[], $2::text[]::uuid[]) as a(job_id, recipient)
    where r.recipient = a.recipient and r.job_id = a.job_id
),
slots as (
    select s.job_id, array_agg(s.list order by s.n) as lists, array_agg(s.second order by s.n) as seconds
    from unnest($3::bigint[], $4::int[], $5::int[]) with ordinality as s(job_id, list, second, n)
    group by s.job_id
)
insert into flyball.message_plan as p (job_id, recipient, slot_lists, slot_s, planned_at)
select a.job_id, a.recipient, s.lists, s.seconds, a.told
from unnest($1::bigint[], $2::text[]::uuid[], $6::timestamptz[]) as a(job_id, recipient, told)
join slots s on s.job_id = a.job_id
on conflict (job_id) do update
set slot_lists = excluded.slot_lists, slot_s = excluded.slot_s, state = 'sending'";

pub(super) const TAKEN: &str = "
select uuid_send(p.recipient) as recipient, p.slot_lists, p.slot_s
from unnest($1::bigint[]) as a(job_id)
cross join lateral (select * from flyball.message_plan where job_id = a.job_id limit 1 for no key update) p";

/// The slots of one message: each list with its second.
struct TakenSlots {
    job_id: i64,
    recipient: RecipientKey,
    /// The planned time, if its plan is not recorded: it was to go at once.
    planned_at: Timestamp,
    slots: Vec<(StoredList, i64)>,
}

/// The result of the gates for an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct GateVerdict {
    /// The address to send to; `None` if the recipient has none.
    pub to: Option<Recipient>,
    /// [`MessagePlan::Send`] if it may go; then its slots are taken, unless its batch is paused.
    pub plan: MessagePlan,
    /// True if its batch is paused, so that it waits, whatever its plan says.
    pub is_paused: bool,
    /// The time by the clock of Postgres.
    pub now: Timestamp,
    /// The time of its first plan, of a message that was held; `None` for a further attempt.
    pub planned_at: Option<Timestamp>,
    /// The time after which the sender does not want it to go.
    pub deadline: Option<Timestamp>,
    /// The key of its claim, for the end of the attempt.
    pub claim: ClaimKey,
}

/// Looks at the gates of messages whose attempts begin, and takes the slots of those that may go.
/// Returns one result for each job, in order; `None` for a job that is gone.
pub async fn verify(
    db: &Db,
    jobs: &[i64],
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Vec<Option<GateVerdict>>, Error> {
    let mut transaction = db.begin().await?;
    let (messages, now) = load(&mut transaction, jobs).await?;
    let inputs = inputs(&mut transaction, messages).await?;
    let claims = claims_of_attempts(&mut transaction, &inputs, rules, now).await?;
    let lists: Vec<Vec<CapList>> = inputs
        .iter()
        .map(|input| cap_lists(&input.candidate(), rules))
        .collect();
    let mut keys: Vec<StoredList> = Vec::new();
    for (input, lists) in inputs.iter().zip(&lists) {
        keys.extend(lists.iter().map(|list| input.stored(list)));
    }
    keys.sort_unstable();
    keys.dedup();
    let mut times = lock_lists(&mut transaction, &keys).await?;
    let mut verdicts: HashMap<i64, GateVerdict> = HashMap::new();
    let mut slots: Vec<TakenSlots> = Vec::new();
    for (input, lists) in inputs.iter().zip(&lists) {
        let stored: Vec<StoredList> = lists.iter().map(|list| input.stored(list)).collect();
        let policy = input.policy(rules);
        let candidate = input.candidate();
        // A retry counts at the time at which it goes, and not at that of the attempt before.
        let before = lift(&mut times, input);
        let rows = GateRows {
            is_suppressed: input.is_suppressed,
            claim: claims.get(&input.claim).copied(),
            times: &cap_times(&stored, &times),
            ..GateRows::default()
        };
        let plan = verify_one(&candidate, policy, &rows, now);
        // One that waits for its batch must not use up what others could have.
        let is_paused = input.message.is_paused;
        if plan == MessagePlan::Send && !lists.is_empty() && !is_paused {
            let zone = zone_of(&candidate, policy)
                .cloned()
                .unwrap_or(TimeZone::UTC);
            let taken = take(lists, &stored, &mut times, now, &zone);
            slots.push(TakenSlots {
                job_id: input.message.job_id,
                recipient: input.recipient,
                planned_at: input.message.accepted_at,
                slots: taken,
            });
        } else {
            keep(&mut times, &before);
        }
        let is_first = !input.message.is_tried && !input.message.has_slots() && !is_paused;
        let verdict = GateVerdict {
            to: input.to.clone(),
            plan,
            is_paused,
            now,
            planned_at: input.message.planned_at.filter(|_| is_first),
            deadline: candidate.deadline,
            claim: input.claim_key(),
        };
        verdicts.insert(input.message.job_id, verdict);
    }
    let of_jobs: HashMap<i64, &GateInput> = inputs
        .iter()
        .map(|input| (input.message.job_id, input))
        .collect();
    let plans = verdicts.iter_mut().filter_map(|(job, verdict)| {
        let input = of_jobs.get(job).filter(|_| !verdict.is_paused)?;
        Some((*input, &mut verdict.plan))
    });
    let quarters = spread_out(&mut transaction, plans.collect(), rules, capacity).await?;
    write_slots(&mut transaction, &slots, &times).await?;
    write_waits(&mut transaction, &inputs, &verdicts, &quarters).await?;
    move_reservations(&mut transaction, &inputs, &lists, &verdicts).await?;
    transaction.commit().await?;
    Ok(jobs.iter().map(|job| verdicts.remove(job)).collect())
}

/// Takes the slots of the attempt before out of their lists, and returns those that were there.
fn lift(times: &mut HashMap<StoredList, StoredTimes>, input: &GateInput) -> Vec<(StoredList, i64)> {
    let mut lifted = Vec::new();
    for (list, second) in &input.message.slots {
        let (key, second) = ((input.recipient, *list), unstored(*second));
        if let Some(times) = times.get_mut(&key).filter(|one| one.sent.contains(&second)) {
            give_back(&mut times.sent, second);
            lifted.push((key, second));
        }
    }
    lifted
}

/// Puts slots back that a message keeps.
fn keep(times: &mut HashMap<StoredList, StoredTimes>, slots: &[(StoredList, i64)]) {
    for (key, second) in slots {
        if let Some(times) = times.get_mut(key) {
            let at = times.sent.partition_point(|other| other <= second);
            times.sent.insert(at, *second);
        }
    }
}

/// Takes a slot of each list. All have room, because the gates let the message pass.
fn take(
    lists: &[CapList],
    stored: &[StoredList],
    times: &mut HashMap<StoredList, StoredTimes>,
    now: Timestamp,
    zone: &TimeZone,
) -> Vec<(StoredList, i64)> {
    let each = lists.iter().zip(stored).filter_map(|(list, key)| {
        let sent = &mut times.entry(*key).or_default().sent;
        let second = list.caps.take(sent, now, zone).ok()?;
        Some((*key, second))
    });
    each.collect()
}

/// Reads lists and keeps others from changing them; lists without sends are created first.
///
/// One that was there and was pruned before it could be locked is created again: what is written to
/// a list without a row is lost.
async fn lock_lists(
    connection: &mut Transaction,
    keys: &[StoredList],
) -> Result<HashMap<StoredList, StoredTimes>, Error> {
    let (mut found, mut missing) = (HashMap::new(), keys.to_vec());
    while !missing.is_empty() {
        add_lists(connection, &missing).await?;
        found.extend(sent(connection, &missing, true).await?);
        missing.retain(|key| !found.contains_key(key));
    }
    let times = |(key, sent)| {
        let reserved = Vec::new();
        (key, StoredTimes { sent, reserved })
    };
    Ok(found.into_iter().map(times).collect())
}

async fn write_slots(
    connection: &mut Transaction,
    slots: &[TakenSlots],
    times: &HashMap<StoredList, StoredTimes>,
) -> Result<(), Error> {
    if slots.is_empty() {
        return Ok(());
    }
    let mut changed: Vec<StoredList> = slots
        .iter()
        .flat_map(|taken| taken.slots.iter().map(|(key, _)| *key))
        .collect();
    changed.sort_unstable();
    changed.dedup();
    write_lists(connection, &changed, times).await?;
    let each = || {
        slots
            .iter()
            .flat_map(|taken| taken.slots.iter().map(move |slot| (taken.job_id, slot)))
    };
    query_unprepared(NOTE_SLOTS)
        .bind(slots.iter().map(|taken| taken.job_id).collect::<Vec<_>>())
        .bind(
            slots
                .iter()
                .map(|taken| taken.recipient.to_hex())
                .collect::<Vec<_>>(),
        )
        .bind(each().map(|(job, _)| job).collect::<Vec<_>>())
        .bind(each().map(|(_, slot)| slot.0.1).collect::<Vec<_>>())
        .bind(each().map(|(_, slot)| stored(slot.1)).collect::<Vec<_>>())
        .bind(
            slots
                .iter()
                .map(|taken| sql_time(taken.planned_at))
                .collect::<Vec<_>>(),
        )
        .execute(connection)
        .await?;
    Ok(())
}

async fn write_lists(
    connection: &mut Transaction,
    changed: &[StoredList],
    times: &HashMap<StoredList, StoredTimes>,
) -> Result<(), Error> {
    let (recipients, ids) = columns(changed);
    let sent = |key: &StoredList| times.get(key).map_or(&[][..], |times| &times.sent);
    let seconds = || {
        changed
            .iter()
            .zip(1_i64..)
            .flat_map(|(key, n)| sent(key).iter().map(move |second| (n, stored(*second))))
    };
    query_unprepared(TAKE)
        .bind(recipients)
        .bind(ids)
        .bind(seconds().map(|one| one.0).collect::<Vec<_>>())
        .bind(seconds().map(|one| one.1).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Gives messages that wait on the second of their new time, in place of the one that has passed.
async fn move_reservations(
    connection: &mut Transaction,
    inputs: &[GateInput],
    lists: &[Vec<CapList>],
    verdicts: &HashMap<i64, GateVerdict>,
) -> Result<(), Error> {
    let (mut rows, mut waiting) = (Vec::new(), Vec::new());
    // One that becomes a digest with others reserves nothing: caps judge the digest.
    for (input, lists) in inputs.iter().zip(lists) {
        let job_id = input.message.job_id;
        let plan = verdicts.get(&job_id).map(|verdict| &verdict.plan);
        if let Some(MessagePlan::Held {
            reserve_s,
            coalesces,
            ..
        }) = plan
        {
            let reserved = lists.iter().filter(|_| !coalesces);
            rows.extend(reserved.map(|list| NewReservation {
                list: input.stored(list),
                second: *reserve_s,
                job_id,
                is_held: true,
            }));
            waiting.push((input.recipient, job_id));
        }
    }
    reserve(connection, &rows, &waiting).await
}

/// Records what the gates found for messages that do not go now, or that were held before.
async fn write_waits(
    connection: &mut Transaction,
    inputs: &[GateInput],
    verdicts: &HashMap<i64, GateVerdict>,
    quarters: &HashMap<i64, i64>,
) -> Result<(), Error> {
    let waiting: Vec<(PlannedMessage, &GateInput)> = inputs
        .iter()
        .filter_map(|input| {
            let job_id = input.message.job_id;
            let plan = verdicts.get(&job_id)?.plan.clone();
            let planned = PlannedMessage {
                job_id,
                plan,
                duplicate_of: None,
            };
            // A message that was held is not any more.
            let was_held = input.message.planned_at.is_some();
            (planned.plan != MessagePlan::Send || was_held).then_some((planned, input))
        })
        .collect();
    let rows: Vec<PlanRow<'_>> = waiting
        .iter()
        .map(|(planned, input)| PlanRow {
            job_id: planned.job_id,
            recipient: input.recipient,
            planned_at: planned.plan.planned_at(input.message.accepted_at),
            planned,
            now: verdicts[&planned.job_id].now,
            digest_id: None,
            crowd_quarter: quarters.get(&planned.job_id).copied(),
            is_new: false,
        })
        .collect();
    write_rows(connection, &rows).await
}

/// Settles what attempts took, by their ends, and returns one result for each.
pub async fn end_attempts(db: &Db, ends: &[(ClaimKey, AttemptEnd)]) -> Result<Vec<()>, Error> {
    let with = |fate: ClaimFate| -> Vec<ClaimKey> {
        let ended = ends.iter().filter(|(_, end)| end.claim() == fate);
        ended.map(|(key, _)| *key).collect()
    };
    let (marked, given_back) = (with(ClaimFate::Marked), with(ClaimFate::GivenBack));
    let mut transaction = db.begin().await?;
    mark_claims(&mut transaction, &marked).await?;
    if !given_back.is_empty() {
        let jobs: Vec<i64> = given_back.iter().map(|key| key.job_id).collect();
        return_slots(&mut transaction, &jobs).await?;
        give_claims_back(&mut transaction, &given_back).await?;
    }
    transaction.commit().await?;
    Ok(vec![(); ends.len()])
}

/// Takes the slots of messages out of their lists. The plans still name them.
pub(super) async fn return_slots(connection: &mut Transaction, jobs: &[i64]) -> Result<(), Error> {
    let rows = query(TAKEN).bind(jobs).fetch_all(&mut *connection).await?;
    let mut returned: Vec<(StoredList, i64)> = Vec::new();
    for row in &rows {
        let recipient = super::rows::stored_key(row)?;
        let lists: Vec<i32> = row.try_get("slot_lists")?;
        let seconds: Vec<i32> = row.try_get("slot_s")?;
        let slots = lists.into_iter().zip(seconds);
        returned.extend(slots.map(|(list, second)| ((recipient, list), unstored(second))));
    }
    let mut keys: Vec<StoredList> = returned.iter().map(|slot| slot.0).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut times = lock_lists(connection, &keys).await?;
    for (key, second) in returned {
        give_back(&mut times.entry(key).or_default().sent, second);
    }
    if keys.is_empty() {
        return Ok(());
    }
    write_lists(connection, &keys, &times).await
}
