//! Messages as the gates see them, from the rows of their jobs.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::{Row, query};

use crate::jobs::Error;
use crate::postgres::{Transaction, json_or_text, json_text};
use crate::recipient::candidate::{NORMAL, Origin};
use crate::recipient::fields::GatedArgs;

pub(super) const LOAD: &str = "
select j.id, j.tenant, j.module, j.priority, j.throttle, j.key, j.args, j.created_at,
    greatest(j.created_at, j.run_at, d.requeued_at) as accepted_at, greatest(least(j.created_at, b.created_at), j.run_at) as first_at, p.origin, p.job_id is not null as is_recorded, p.planned_at, p.crowd_quarter, p.coalesces and p.state = 'held' as coalesces,
    coalesce(p.slot_lists, '{}') as slot_lists, coalesce(p.slot_s, '{}') as slot_s, d.attempt_count is not null as is_delivery, coalesce(d.attempt_count, 0) > 0 as is_tried, b.state = 'cancelled' as is_cancelled, b.state = 'paused' as is_paused,
    clock_timestamp() as now
from unnest($1::bigint[]) with ordinality as a(job_id, n)
cross join lateral (select * from flyball.job where id = a.job_id limit 1) j
left join lateral (select h.requeued_at, h.attempt_count from flyball.delivery h where h.job_id = a.job_id limit 1) d on true
left join lateral (select * from flyball.message_plan h where h.job_id = a.job_id limit 1) p on true
left join lateral (
    select c.state, c.created_at from flyball.batch c
    where c.id = (select m.batch_id from flyball.batch_message m where m.job_id = a.job_id limit 1)
    limit 1
) b on true
order by a.n";

/// The longest arguments of which the text is kept, in bytes.
const ITEM_TEXT_MAX: usize = 4096;

/// A message with what the gates must know of its job.
#[derive(Clone, Debug)]
pub(super) struct GatedMessage {
    pub job_id: i64,
    pub tenant: String,
    pub module: String,
    pub priority: i32,
    pub throttle: String,
    pub throttle_key: String,
    /// The fields that gates look at; `None` if the arguments are wrong, which the attempt reports,
    /// or once the gates have them.
    pub args: Option<GatedArgs>,
    /// The text of all its arguments if it names a digest, whose item they become; `None` if they are
    /// long.
    pub item: Option<String>,
    pub accepted_at: Timestamp,
    /// The time of its acceptance, or of its batch, or its own time to run. No retry changes it, so
    /// that the time of the recipient's clock stays the same that follows from it.
    pub first_at: Timestamp,
    pub origin: Origin,
    /// The slots that its last attempt took: each list with its second, as they are stored.
    pub slots: Vec<(i32, i32)>,
    pub is_cancelled: bool,
    /// True if its batch is paused.
    pub is_paused: bool,
    /// True if it was held in quiet hours and may become one with others.
    pub coalesces: bool,
    /// The time of its first plan; `None` if that is not recorded.
    pub planned_at: Option<Timestamp>,
    /// The quarter of an hour in whose crowd it is counted; `None` if it is in none.
    pub crowd_quarter: Option<i64>,
    /// True if its plan has a row.
    pub is_recorded: bool,
    /// True if it has a delivery record.
    pub is_delivery: bool,
    /// True if a provider was asked before.
    pub is_tried: bool,
}

impl GatedMessage {
    /// Returns a message that has no job, as if it was accepted at `now`.
    pub(super) fn without_job(tenant: &str, args: GatedArgs, now: Timestamp) -> Self {
        Self {
            job_id: 0,
            tenant: tenant.to_owned(),
            module: String::new(),
            priority: NORMAL,
            throttle: String::new(),
            throttle_key: String::new(),
            args: Some(args),
            item: None,
            accepted_at: now,
            first_at: now,
            origin: Origin::Sender,
            slots: Vec::new(),
            is_cancelled: false,
            is_paused: false,
            coalesces: false,
            planned_at: None,
            crowd_quarter: None,
            is_recorded: false,
            is_delivery: false,
            is_tried: false,
        }
    }

    /// Returns true if its last attempt took slots of caps.
    pub(super) fn has_slots(&self) -> bool {
        !self.slots.is_empty()
    }
}

/// Reads messages, in the order of `jobs`, and the time by the clock of Postgres. A job that is
/// gone is left out.
pub(super) async fn load(
    connection: &mut Transaction,
    jobs: &[i64],
) -> Result<(Vec<GatedMessage>, Timestamp), Error> {
    let rows = query(LOAD).bind(jobs).fetch_all(connection).await?;
    let mut now = Timestamp::UNIX_EPOCH;
    let mut messages = Vec::with_capacity(rows.len());
    for row in &rows {
        let time = |column| {
            row.try_get::<SqlTimestamp, _>(column)
                .map(SqlTimestamp::to_jiff)
        };
        // Null for a message without a batch or a plan.
        let flag = |column| {
            row.try_get::<Option<bool>, _>(column)
                .map(Option::unwrap_or_default)
        };
        let args = GatedArgs::parse(&json_or_text(row, "args")).ok();
        let names_digest = (args.as_ref()).is_some_and(|args| args.fields.digest.is_some());
        let item = names_digest.then(|| json_text(row, "args")).flatten();
        let planned_at: Option<SqlTimestamp> = row.try_get("planned_at")?;
        now = time("now")?;
        messages.push(GatedMessage {
            job_id: row.try_get("id")?,
            tenant: row.try_get("tenant")?,
            module: row.try_get("module")?,
            priority: i32::from(row.try_get::<i16, _>("priority")?),
            throttle: row.try_get("throttle")?,
            throttle_key: row.try_get("key")?,
            args,
            item: item.filter(|text| text.len() <= ITEM_TEXT_MAX),
            accepted_at: time("accepted_at")?,
            first_at: time("first_at")?,
            origin: match row.try_get::<Option<&str>, _>("origin")? {
                Some("digest") => Origin::Digest,
                Some("item") => Origin::Item,
                _ => Origin::Sender,
            },
            slots: {
                let (lists, seconds): (Vec<i32>, Vec<i32>) =
                    (row.try_get("slot_lists")?, row.try_get("slot_s")?);
                lists.into_iter().zip(seconds).collect()
            },
            is_cancelled: flag("is_cancelled")?,
            is_paused: flag("is_paused")?,
            coalesces: flag("coalesces")?,
            planned_at: planned_at.map(SqlTimestamp::to_jiff),
            crowd_quarter: row.try_get("crowd_quarter")?,
            is_recorded: row.try_get("is_recorded")?,
            is_delivery: row.try_get("is_delivery")?,
            is_tried: row.try_get("is_tried")?,
        });
    }
    Ok((messages, now))
}
