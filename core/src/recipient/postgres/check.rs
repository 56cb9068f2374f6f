//! The state of a recipient for a kind of message, read without taking anything.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde_json::json;
use sqlx::{Row, query};

use super::explain::Reading;
use super::messages::GatedMessage;
use super::open_digests;
use super::rows::{GateInput, inputs};
use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};
use crate::providers::Channel;
use crate::recipient::address::RecipientKey;
use crate::recipient::candidate::CapList;
use crate::recipient::check::{CheckedPreference, HeldView, PastMessage, RecipientCheck, caps};
use crate::recipient::explain::{HoldingGate, forecast};
use crate::recipient::fields::{GatedArgs, USUAL_CATEGORY};
use crate::recipient::gates::{plan, quiet_of, zone_of};
use crate::recipient::rules::RecipientRules;

pub(super) const CLOCK: &str = "
select clock_timestamp() as now, case when $2::text is null then '' else flyball.mask_recipient($1, $2) end as address";

pub(super) const HELD_OF: &str = "
select p.job_id, p.gate, p.rule, p.until
from flyball.message_plan p
where p.recipient = $1::text::uuid and p.state = 'held' and p.until is not null
    and exists (select from flyball.scheduled s where s.job_id = p.job_id)
order by p.until, p.job_id
limit 100";

pub(super) const HISTORY_OF: &str = "
select p.job_id, n.state, n.category, n.created_at, n.updated_at, case when p.state <> 'sending' and not o.is_over then p.until end as until,
    case when o.is_over then '' else p.gate end as gate, case when o.is_over then '' else p.rule end as rule
from (select * from flyball.message_plan h where h.recipient = $1::text::uuid order by h.recipient desc, h.job_id desc limit 20) p
cross join lateral (select * from flyball.notification v where v.job_id = p.job_id limit 1) n
cross join lateral (
    select p.state = 'held' and n.state <> 'queued' or p.state = 'ended' and n.state in ('queued', 'sent', 'delivered', 'bounced') as is_over
) o
order by p.job_id desc";

/// A message about which somebody asks before sending it.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedMessage {
    pub tenant: String,
    pub channel: Channel,
    /// The address, if the recipient's id does not say it.
    pub to: Option<String>,
    /// The id of the recipient.
    pub recipient: Option<String>,
    pub category: Option<String>,
    pub actor: Option<String>,
    pub template: Option<String>,
}

/// Returns the state of the recipient of a message, and uses nothing.
pub async fn check(
    db: &Db,
    asked: &CheckedMessage,
    rules: &RecipientRules,
) -> Result<RecipientCheck, Error> {
    let mut transaction = db.begin().await?;
    let mut read = inputs(&mut transaction, vec![message(asked)?]).await?;
    let Some(mut input) = read.pop() else {
        return Err(Error::Lost("a message without arguments".to_owned()));
    };
    let (now, to) = clock(&mut transaction, &input).await?;
    input.message.accepted_at = now;
    let candidate = input.candidate();
    let policy = input.policy(rules);
    let mut reading = Reading::of(&mut transaction, &input, &candidate, rules).await?;
    // Nothing is known of the content, so nothing can be a duplicate of it.
    reading.claim = None;
    let digests = open_digests::of_recipient(&mut transaction, input.recipient, rules).await?;
    let held = held_of(&mut transaction, input.recipient).await?;
    let history = history_of(&mut transaction, input.recipient).await?;
    transaction.commit().await?;
    let zone = zone_of(&candidate, policy)
        .cloned()
        .unwrap_or(TimeZone::UTC);
    let is_of_category = input.recipient.list("category", &input.args.category);
    let is_of_actor = |list: &CapList| list.key != is_of_category;
    let (all, caps) = caps(&reading.lists, &reading.times(), now, &zone, is_of_actor);
    let quiet = quiet_of(&candidate, policy);
    let awake = quiet.next_allowed(now);
    let found = reading.look((0, 0.0), |rows| plan(&candidate, policy, rows, now));
    Ok(RecipientCheck {
        all,
        rules: caps,
        quiet_until: awake.at.filter(|_| awake.rule.is_some()),
        quiet_rule: awake
            .rule
            .map_or_else(String::new, |rule| rule.name.clone()),
        suppressed: input.is_suppressed,
        preference: preference(&input, rules),
        to,
        digests,
        held,
        history,
        forecast: forecast(&found, now, false),
    })
}

fn message(asked: &CheckedMessage) -> Result<GatedMessage, Error> {
    let args = json!({
        "channel": asked.channel.as_str(), "to": asked.to, "recipient": asked.recipient,
        "category": asked.category.as_deref().unwrap_or(USUAL_CATEGORY), "actor": asked.actor,
        "template_id": asked.template,
    });
    let args = GatedArgs::parse(&args).map_err(|issues| {
        let issue = issues.into_iter().next();
        let (field, message) = issue.map_or_else(Default::default, |issue| {
            let field = issue.pointer.trim_start_matches('/').to_owned();
            (field, issue.message)
        });
        Error::Refused {
            index: None,
            field,
            message,
        }
    })?;
    Ok(GatedMessage::without_job(
        &asked.tenant,
        args,
        Timestamp::UNIX_EPOCH,
    ))
}

/// Reads the clock of Postgres, and the address as people see it.
async fn clock(
    connection: &mut Transaction,
    input: &GateInput,
) -> Result<(Timestamp, String), Error> {
    let address = input.to.as_ref().map(|to| to.address().to_owned());
    let row = query(CLOCK)
        .bind(input.args.channel.as_str())
        .bind(address)
        .fetch_one(connection)
        .await?;
    let now: SqlTimestamp = row.try_get("now")?;
    Ok((now.to_jiff(), row.try_get("address")?))
}

async fn held_of(
    connection: &mut Transaction,
    recipient: RecipientKey,
) -> Result<Vec<HeldView>, Error> {
    let rows = query_unprepared(HELD_OF)
        .bind(recipient.to_hex())
        .fetch_all(connection)
        .await?;
    let read = |row: &sqlx::postgres::PgRow| {
        let until: SqlTimestamp = row.try_get("until")?;
        Ok(HeldView {
            id: row.try_get("job_id")?,
            held_by: HoldingGate {
                gate: row.try_get("gate")?,
                rule: row.try_get("rule")?,
                until: until.to_jiff(),
            },
        })
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

async fn history_of(
    connection: &mut Transaction,
    recipient: RecipientKey,
) -> Result<Vec<PastMessage>, Error> {
    let rows = query_unprepared(HISTORY_OF)
        .bind(recipient.to_hex())
        .fetch_all(connection)
        .await?;
    let read = |row: &sqlx::postgres::PgRow| {
        let time = |column| {
            row.try_get::<Option<SqlTimestamp>, _>(column)
                .map(|at| at.map(SqlTimestamp::to_jiff))
        };
        let accepted_at = time("created_at")?.unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(PastMessage {
            id: row.try_get("job_id")?,
            state: row.try_get("state")?,
            category: row.try_get("category")?,
            gate: row.try_get("gate")?,
            rule: row.try_get("rule")?,
            accepted_at,
            changed_at: time("updated_at")?.unwrap_or(accepted_at),
            until: time("until")?,
        })
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

fn preference(input: &GateInput, rules: &RecipientRules) -> CheckedPreference {
    let (channel, category) = (input.args.channel, input.args.category.as_str());
    let template = input.args.fields.template_id.as_deref();
    let own = input
        .profile
        .preferences
        .choice(channel, category, template);
    let choice = own.or_else(|| {
        input
            .defaults
            .preferences
            .choice(channel, category, template)
    });
    CheckedPreference {
        wanted: choice.is_none_or(|choice| choice.wanted) || rules.category(category).mandatory,
        rule: choice.map_or_else(String::new, ToString::to_string),
    }
}
