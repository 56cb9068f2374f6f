//! Tickets: each opens one connection within half a minute.

use std::collections::HashMap;

use serde_json::Value;
use sqlx::{Row, query};

use crate::jobs::Error;
use crate::postgres::Db;

pub(super) const ISSUE: &str = r#"
insert into flyball.connection_ticket (digest, "grant", expires_at)
values ($1, $2, now() + make_interval(secs => $3))"#;

/// One that is being taken by another process is used.
pub(super) const TAKE: &str = r#"
delete from flyball.connection_ticket t
where t.digest = any(array(
    select w.digest from flyball.connection_ticket w where w.digest = any($1) order by w.digest for update skip locked
))
returning t.digest, t."grant", t.expires_at > now() as is_valid"#;

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

/// Takes tickets, which cannot be used again; `None` for each that is not there, or whose time is
/// over.
pub async fn take_tickets(db: &Db, digests: &[Vec<u8>]) -> Result<Vec<Option<Value>>, Error> {
    let rows = query(TAKE).bind(digests).fetch_all(db).await?;
    let mut grants: HashMap<Vec<u8>, Option<Value>> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let (grant, is_valid): (Value, bool) = (row.try_get("grant")?, row.try_get("is_valid")?);
        grants.insert(row.try_get("digest")?, is_valid.then_some(grant));
    }
    // The first of equal ones has it.
    let taken = digests.iter().map(|digest| grants.remove(digest).flatten());
    Ok(taken.collect())
}
