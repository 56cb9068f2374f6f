//! Replay protection for signatures that do not cover the body: each is stored with its first body,
//! for all processes.

use super::Deliveries;
use crate::jobs::Error;
use crate::providers::events::ReplayGuard;

/// Expired rows that are deleted with each insert.
const MAX_LAPSED_DELETED: i64 = 20;

// On a conflict the row's first body is compared, also if its transaction commits concurrently.
pub(super) const REMEMBER: &str = "
with deleted as (
    delete from flyball.event_token
    where ctid = any(array(
        select ctid from flyball.event_token where expires_at < now() order by expires_at limit $4 for update skip locked
    ))
)
insert into flyball.event_token as t (digest, body_digest, expires_at)
values ($1, $2, to_timestamp($3))
on conflict (digest) do update set expires_at = t.expires_at
returning body_digest = $2";

impl Deliveries {
    /// Stores a signature with its body. Returns false if it was stored with another body.
    pub async fn is_of_this_body(&self, once: &ReplayGuard) -> Result<bool, Error> {
        let statement = sqlx::query_scalar(REMEMBER)
            .bind(&once.signed)
            .bind(&once.body);
        let statement = statement.bind(once.until_s as f64).bind(MAX_LAPSED_DELETED);
        Ok(statement.fetch_one(&self.db).await?)
    }
}
