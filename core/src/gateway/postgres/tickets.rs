//! Tickets: each opens one connection within half a minute.

use serde_json::Value;
use sqlx::Row;

use super::statement::query;
use crate::jobs::Error;
use crate::postgres::Db;

pub(super) const ISSUE: &str = r#"
insert into flyball.connection_ticket (digest, "grant", expires_at)
values ($1, $2, now() + make_interval(secs => $3))"#;

pub(super) const TAKE: &str = r#"
delete from flyball.connection_ticket where digest = $1 returning "grant", expires_at > now() as is_valid"#;

/// Stores a ticket under the digest of its secret.
pub async fn issue_ticket(db: &Db, digest: &[u8], grant: &Value, ttl_s: f64) -> Result<(), Error> {
    query(ISSUE)
        .bind(digest)
        .bind(grant)
        .bind(ttl_s)
        .execute(db)
        .await?;
    Ok(())
}

/// Takes a ticket, which cannot be used again; `None` if there is none or its time is over.
pub async fn take_ticket(db: &Db, digest: &[u8]) -> Result<Option<Value>, Error> {
    let Some(row) = query(TAKE).bind(digest).fetch_optional(db).await? else {
        return Ok(None);
    };
    let is_valid: bool = row.try_get("is_valid")?;
    let grant: Value = row.try_get("grant")?;
    Ok(is_valid.then_some(grant))
}
