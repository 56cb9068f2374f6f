//! Maintenance: deletes messages whose time is over, and forgets channels that nobody uses.

use sqlx::{Row, query};

use super::lock::lock;
use crate::jobs::Error;
use crate::postgres::Db;

pub(super) const PRUNE: &str = "select p.messages from flyball.prune_channel_messages($1) p";

pub(super) const FORGET: &str =
    "select f.next_tenant, f.next_name, f.forgotten from flyball.forget_channels($1, $2, $3) f";

pub(super) const NEEDS_MAINTENANCE: &str = "
select exists (select from flyball.channel_message) or exists (select from flyball.channel) or exists (select from flyball.connection_ticket)
    or exists (select from flyball.gateway_report where reported_at < now() - interval '1 hour') as needs_maintenance,
    (select extract(epoch from now() - p.created_at)::float8 from flyball.publication p order by p.id limit 1) as oldest_s";

/// The work that waits for gateways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatewayBacklog {
    /// True if there is a channel or a message of one, a ticket, or an old report.
    pub needs_maintenance: bool,
    /// The age of the oldest message that no collector has moved yet, in seconds; 0 if there is none.
    pub oldest_s: f64,
}

/// Reads the work that waits for gateways.
pub async fn gateway_backlog(db: &Db) -> Result<GatewayBacklog, Error> {
    let row = query(NEEDS_MAINTENANCE).fetch_one(db).await?;
    let oldest_s: Option<f64> = row.try_get("oldest_s")?;
    Ok(GatewayBacklog {
        needs_maintenance: row.try_get("needs_maintenance")?,
        oldest_s: oldest_s.unwrap_or(0.0).max(0.0),
    })
}

/// A place in the order of all channels: after this tenant and name.
pub type ChannelPlace = (String, String);

/// Deletes up to `most` messages whose time is over; returns their number, 0 while a collector is
/// at work.
pub async fn prune(db: &Db, most: i32) -> Result<i64, Error> {
    let mut transaction = db.begin().await?;
    if !lock(&mut transaction).await? {
        transaction.rollback().await?;
        return Ok(0);
    }
    let row = query(PRUNE).bind(most).fetch_one(&mut transaction).await?;
    let messages = row.try_get("messages")?;
    transaction.commit().await?;
    Ok(messages)
}

/// Checks up to `most` channels after a place, and forgets those that are empty and unused;
/// returns the next place, the first again after the last.
pub async fn forget(db: &Db, place: &ChannelPlace, most: i32) -> Result<ChannelPlace, Error> {
    let mut transaction = db.begin().await?;
    if !lock(&mut transaction).await? {
        transaction.rollback().await?;
        return Ok(place.clone());
    }
    let row = query(FORGET)
        .bind(&place.0)
        .bind(&place.1)
        .bind(most)
        .fetch_one(&mut transaction)
        .await?;
    let (tenant, name): (Option<String>, Option<String>) =
        (row.try_get("next_tenant")?, row.try_get("next_name")?);
    transaction.commit().await?;
    Ok((tenant.unwrap_or_default(), name.unwrap_or_default()))
}
