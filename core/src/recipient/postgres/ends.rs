//! Ends messages that go no further: items of digests, and those that a gate ended.
//!
//! Such a message is no job any more; its record says what became of it.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::json;
use sqlx::query;

use super::copy::{COPIED_MIN, CopiedRows};
use super::rows::GateInput;
use super::taken::TakenMessage;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::providers::Recipient;

pub(super) const END: &str = "
with ended as materialized (
    select a.* from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[],
        $8::text[], $9::text[], $10::text[], $11::smallint[]) as a(job_id, state, reason, rule, masked, digest, tenant, pool, channel, category,
        attempt)
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome)
    select e.job_id, e.attempt, case when e.state = 'cancelled' then 'cancelled' else 'completed' end::flyball.outcome from ended e
)
insert into flyball.delivery as d
    (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, attempts, attempt_count, last_outcome, reason)
select e.job_id, e.channel, e.pool, e.tenant, e.state, e.digest, e.masked, e.category,
    jsonb_build_array(jsonb_build_object('at', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
        'account', null, 'outcome', e.reason, 'status', '', 'reason', e.rule, 'ms', 0)),
    1, e.reason, e.rule
from ended e
where e.state <> 'cancelled'
order by e.job_id
on conflict (job_id) do update
set state = excluded.state, attempts = flyball.append_attempts(d.attempts, excluded.attempts), attempt_count = d.attempt_count + 1,
    last_outcome = excluded.last_outcome, reason = excluded.reason, updated_at = clock_timestamp()";

pub(super) const RELEASE_KEYS: &str = "
delete from flyball.unique_holder
where digest = any(array(
    select u.digest from flyball.unique_holder u where u.expires_at is null and u.job_id = any($1) for update skip locked
))";

const COPY_ATTEMPTS: &str =
    "copy flyball.attempt (job_id, attempt, outcome, finished_at) from stdin (format binary)";

const COPY_DELIVERIES: &str = "copy flyball.delivery
    (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, attempts, attempt_count, last_outcome, reason,
    created_at, updated_at) from stdin (format binary)";

/// A message that goes no further.
pub(super) struct EndedMessage<'a> {
    pub taken: &'a TakenMessage,
    pub input: &'a GateInput,
    pub reason: &'static str,
    pub rule: &'a str,
}

impl EndedMessage<'_> {
    fn job_id(&self) -> i64 {
        self.taken.job_id
    }

    /// Returns the state of its delivery.
    fn state(&self) -> &'static str {
        match self.reason {
            "expired" => "failed",
            other => other,
        }
    }

    fn masked(&self) -> String {
        let to = self.input.to.as_ref();
        to.map_or_else(String::new, Recipient::masked)
    }
}

/// Ends messages at `now`.
pub(super) async fn end_messages(
    connection: &mut Transaction,
    ended: Vec<EndedMessage<'_>>,
    now: Timestamp,
) -> Result<(), Error> {
    let holders = ended.iter().filter(|one| one.taken.holds_unique);
    let holders: Vec<i64> = holders.map(EndedMessage::job_id).collect();
    if !holders.is_empty() {
        query(RELEASE_KEYS)
            .bind(holders)
            .execute(&mut *connection)
            .await?;
    }
    let (known, mut new): (Vec<EndedMessage<'_>>, Vec<EndedMessage<'_>>) = ended
        .into_iter()
        .partition(|one| one.input.message.is_delivery);
    if new.len() < COPIED_MIN {
        new.extend(known);
        return merge(connection, &new).await;
    }
    copy_new(connection, &new, now).await?;
    merge(connection, &known).await
}

async fn copy_new(
    connection: &mut Transaction,
    ended: &[EndedMessage<'_>],
    now: Timestamp,
) -> Result<(), Error> {
    let at = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let tried = |reason: &str, rule: &str| {
        json!([{
            "at": at, "account": null, "outcome": reason, "status": "", "reason": rule, "ms": 0,
        }])
        .to_string()
    };
    // Messages of one batch mostly end for the same reason.
    let mut texts: HashMap<(&str, &str), String> = HashMap::new();
    let (mut attempts, mut deliveries) = (CopiedRows::default(), CopiedRows::default());
    for one in ended {
        let is_cancelled = one.state() == "cancelled";
        let outcome = if is_cancelled {
            "cancelled"
        } else {
            "completed"
        };
        attempts
            .row()
            .bigint(one.job_id())
            .smallint(one.taken.attempt)
            .text(outcome)
            .time(now);
        if is_cancelled {
            continue;
        }
        let (message, args) = (&one.input.message, &one.input.args);
        let text = texts
            .entry((one.reason, one.rule))
            .or_insert_with(|| tried(one.reason, one.rule));
        deliveries
            .row()
            .bigint(one.job_id())
            .text(args.channel.as_str())
            .text(&message.throttle)
            .text(&message.tenant)
            .text(one.state())
            .or_null(one.input.digest.as_deref(), CopiedRows::bytes)
            .text(&one.masked())
            .text(&args.category)
            .json(text)
            .int(1)
            .text(one.reason)
            .text(one.rule)
            .time(now)
            .time(now);
    }
    attempts.write(connection, COPY_ATTEMPTS).await?;
    Ok(deliveries.write(connection, COPY_DELIVERIES).await?)
}

async fn merge(connection: &mut Transaction, ended: &[EndedMessage<'_>]) -> Result<(), Error> {
    if ended.is_empty() {
        return Ok(());
    }
    let texts = |of: &dyn Fn(&GateInput) -> &str| -> Vec<String> {
        ended.iter().map(|one| of(one.input).to_owned()).collect()
    };
    query(END)
        .bind(ended.iter().map(EndedMessage::job_id).collect::<Vec<_>>())
        .bind(ended.iter().map(EndedMessage::state).collect::<Vec<_>>())
        .bind(ended.iter().map(|one| one.reason).collect::<Vec<_>>())
        .bind(ended.iter().map(|one| one.rule).collect::<Vec<_>>())
        .bind(ended.iter().map(EndedMessage::masked).collect::<Vec<_>>())
        .bind(
            ended
                .iter()
                .map(|one| one.input.digest.clone())
                .collect::<Vec<_>>(),
        )
        .bind(texts(&|input| &input.message.tenant))
        .bind(texts(&|input| &input.message.throttle))
        .bind(texts(&|input| input.args.channel.as_str()))
        .bind(texts(&|input| &input.args.category))
        .bind(
            ended
                .iter()
                .map(|one| one.taken.attempt)
                .collect::<Vec<_>>(),
        )
        .execute(connection)
        .await?;
    Ok(())
}
