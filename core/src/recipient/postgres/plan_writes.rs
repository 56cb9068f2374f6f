//! Writes what the gates found: messages become ready, scheduled, items, or end.

use std::collections::{BTreeSet, HashMap};

use jiff::SignedDuration;

use super::claims::{give_claims_back, mark_claims};
use super::crowds::count_crowd;
use super::ended_slots::return_unsent;
use super::ends::{EndedMessage, end_messages};
use super::plan_rows::{PlanRow, write_rows};
use super::plans::{PlanBatch, reserved_second};
use super::reservations::{NewReservation, reserve};
use super::rows::{ClaimKey, GateInput, sql_time};
use super::sends::send;
use super::statement::query_unprepared;
use super::taken::{TakenMessage, TakenMessages};
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::address::RecipientKey;
use crate::recipient::digest::Arrival;
use crate::recipient::gates::MessagePlan;
use crate::recipient::rules::OverCap;

// A message of a tenant is counted by the limits of its tenant when it is released, so it waits for
// them then, whatever it took when it was accepted.
pub(super) const HOLD: &str = "
with held as materialized (
    select a.*, case when a.coalesces then a.priority - 4 else flyball.turn_of(j.throttle, a.priority, false) end as turn,
        case when j.tenant <> '' then flyball.lane_of(flyball.admission_throttle(j.tenant), j.module) end as admission_lane,
        j.admission_lane is null as was_admitted
    from unnest($1::bigint[], $2::timestamptz[], $3::boolean[], $4::bigint[], $5::smallint[], $6::smallint[], $7::float8[], $8::boolean[],
        $9::boolean[]) as a(job_id, until, coalesces, lane_id, priority, attempt, cost, retry, holds_unique)
    cross join lateral (select * from flyball.job where id = a.job_id limit 1) j
),
changed as (
    update flyball.job j set admission_lane = h.admission_lane
    from held h
    where j.id = h.job_id and h.admission_lane is not null and h.was_admitted
)
insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique, turn)
select h.job_id, h.until, coalesce(h.admission_lane, h.lane_id), h.priority, h.attempt, h.cost, h.retry, h.holds_unique, h.turn from held h";

/// The time for which every delivery is kept at least.
const DELIVERIES_KEPT: SignedDuration = SignedDuration::from_hours(24);

impl PlanBatch<'_> {
    pub(super) async fn write(
        &self,
        connection: &mut Transaction,
        taken: &TakenMessages,
        mut sending: Vec<i64>,
    ) -> Result<(), Error> {
        let mut held = Vec::new();
        let mut ended = Vec::new();
        let mut collected = Vec::new();
        for (at, one) in self.planned.iter().enumerate() {
            match &one.plan {
                MessagePlan::Send => sending.push(one.job_id),
                MessagePlan::Held { .. } => held.push(at),
                MessagePlan::Collected { arrival, .. } => {
                    collected.push(at);
                    if matches!(arrival, Arrival::Leads(_)) {
                        sending.push(one.job_id);
                    } else {
                        ended.push((at, "collected", String::new()));
                    }
                }
                MessagePlan::Ended { reason, rule, .. } => {
                    ended.push((at, reason.as_str(), rule.clone()));
                }
                MessagePlan::Refused { rule, .. } => ended.push((at, "capped", rule.clone())),
            }
        }
        self.reserve(connection).await?;
        self.end(connection, taken, &ended).await?;
        self.mark_collected(connection, &ended).await?;
        send(connection, taken.of(sending)).await?;
        // As late as the order of the locks allows: another planner that has an item of the same
        // digest waits from here to the commit.
        let digest_ids = self.collect(connection, &collected).await?;
        self.hold(connection, taken, &held).await?;
        self.record(connection, &digest_ids).await
    }

    async fn reserve(&self, connection: &mut Transaction) -> Result<(), Error> {
        let mut rows: Vec<NewReservation> = Vec::new();
        for (at, one) in self.planned.iter().enumerate() {
            let Some(second) = reserved_second(&one.plan, self.now) else {
                continue;
            };
            rows.extend(self.lists[at].iter().map(|list| NewReservation {
                list: self.inputs[at].stored(list),
                second,
                job_id: one.job_id,
                is_held: matches!(one.plan, MessagePlan::Held { .. }),
            }));
        }
        // One that SQL accepted under a cap that refuses has a reservation from then.
        let refuses = |at: usize| {
            let mut lists = self.lists[at].iter();
            lists.any(|list| list.over == OverCap::Refuse)
        };
        let had: Vec<(RecipientKey, i64)> = (self.inputs.iter().enumerate())
            .filter(|(at, input)| input.message.planned_at.is_some() || refuses(*at))
            .map(|(_, input)| (input.recipient, input.message.job_id))
            .collect();
        reserve(connection, &rows, &had).await
    }

    async fn hold(
        &self,
        connection: &mut Transaction,
        taken: &TakenMessages,
        held: &[usize],
    ) -> Result<(), Error> {
        if held.is_empty() {
            return Ok(());
        }
        let until = |at: usize| {
            let until = self.planned[at].plan.planned_at(self.now);
            sql_time(until.unwrap_or(self.now))
        };
        // Messages that may become one are planned again when they wake.
        let coalesces = |at: usize| {
            let plan = &self.planned[at].plan;
            matches!(
                plan,
                MessagePlan::Held {
                    coalesces: true,
                    ..
                }
            )
        };
        let held: Vec<(usize, &TakenMessage)> = held
            .iter()
            .filter_map(|at| Some((*at, taken.get(self.planned[*at].job_id)?)))
            .collect();
        query_unprepared(HOLD)
            .bind(held.iter().map(|one| one.1.job_id).collect::<Vec<_>>())
            .bind(held.iter().map(|one| until(one.0)).collect::<Vec<_>>())
            .bind(held.iter().map(|one| coalesces(one.0)).collect::<Vec<_>>())
            .bind(held.iter().map(|one| one.1.lane_id).collect::<Vec<_>>())
            .bind(held.iter().map(|one| one.1.priority).collect::<Vec<_>>())
            .bind(held.iter().map(|one| one.1.attempt).collect::<Vec<_>>())
            .bind(held.iter().map(|one| one.1.cost).collect::<Vec<_>>())
            .bind(held.iter().map(|one| one.1.retry).collect::<Vec<_>>())
            .bind(
                held.iter()
                    .map(|one| one.1.holds_unique)
                    .collect::<Vec<_>>(),
            )
            .execute(&mut *connection)
            .await?;
        let mut more: HashMap<(String, i64), i64> = HashMap::new();
        for (at, _) in held {
            let message = &self.inputs[at].message;
            // One that is planned again is counted already.
            let quarter = self.quarters[at].filter(|now| message.crowd_quarter != Some(*now));
            if let Some(quarter) = quarter {
                *more.entry((message.throttle.clone(), quarter)).or_default() += 1;
            }
        }
        count_crowd(connection, &more).await
    }

    async fn end(
        &self,
        connection: &mut Transaction,
        taken: &TakenMessages,
        ended: &[(usize, &'static str, String)],
    ) -> Result<(), Error> {
        let each = ended.iter().filter_map(|(at, reason, rule)| {
            let input = &self.inputs[*at];
            Some(EndedMessage {
                taken: taken.get(input.message.job_id)?,
                input,
                reason,
                rule,
            })
        });
        end_messages(connection, each.collect(), self.now).await?;
        // A retry that goes no further still has the slots of its last attempt.
        let has_slots = |at: usize| self.inputs[at].message.has_slots();
        let with_slots = ended.iter().filter(|one| has_slots(one.0));
        let with_slots: Vec<i64> = with_slots.map(|one| self.planned[one.0].job_id).collect();
        return_unsent(connection, &with_slots).await?;
        // A message that ended unsent gives its claim back.
        let unsent = self.claims_of(ended, |reason| reason != "collected");
        give_claims_back(connection, &unsent).await
    }

    /// Marks the claims of items, because an equal event soon after is a duplicate of them. As long
    /// as every delivery is kept, that of the item says so by itself.
    async fn mark_collected(
        &self,
        connection: &mut Transaction,
        ended: &[(usize, &'static str, String)],
    ) -> Result<(), Error> {
        let mut collected = self.claims_of(ended, |reason| reason == "collected");
        let outlives = |input: &GateInput| {
            let window = self.rules.category(&input.args.category).dedup_window;
            window > DELIVERIES_KEPT
        };
        let marked = self.inputs.iter().filter(|input| outlives(input));
        let marked: BTreeSet<i64> = marked.map(|input| input.message.job_id).collect();
        collected.retain(|key| marked.contains(&key.job_id));
        mark_claims(connection, &collected).await
    }

    /// Returns the claims of messages that ended for such a reason.
    fn claims_of(
        &self,
        ended: &[(usize, &'static str, String)],
        counts: impl Fn(&str) -> bool,
    ) -> Vec<ClaimKey> {
        let ended = ended
            .iter()
            .filter(|one| counts(one.1) && self.has_claim[one.0]);
        ended.map(|one| self.inputs[one.0].claim_key()).collect()
    }

    /// Records the plans of messages that do not go at once, or did not before.
    async fn record(
        &self,
        connection: &mut Transaction,
        digest_ids: &HashMap<usize, i64>,
    ) -> Result<(), Error> {
        let rows: Vec<PlanRow<'_>> = self
            .planned
            .iter()
            .enumerate()
            .filter(|(at, one)| {
                let was_recorded = self.inputs[*at].message.planned_at.is_some();
                one.plan != MessagePlan::Send || was_recorded
            })
            .map(|(at, one)| PlanRow {
                job_id: one.job_id,
                recipient: self.inputs[at].recipient,
                planned: one,
                planned_at: one.plan.planned_at(self.now),
                digest_id: digest_ids.get(&at).copied(),
                crowd_quarter: match one.plan {
                    MessagePlan::Held { .. } => self.quarters[at],
                    _ => None,
                },
                now: self.now,
                is_new: !self.inputs[at].message.is_recorded,
            })
            .collect();
        write_rows(connection, &rows).await
    }
}
