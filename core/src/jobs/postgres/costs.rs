//! Mean costs of attempts, by kind.

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

/// The mean cost of the attempts of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KindCost {
    /// The name of the kind.
    pub kind: String,
    /// Attempts that have ended.
    pub attempts: i64,
    /// The mean cost of about the last thousand attempts, in tokens.
    pub mean: f64,
}

/// Attempts of one kind that have ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedAttempts {
    /// The name of the kind.
    pub kind: String,
    /// Their number.
    pub attempts: u64,
    /// Their total cost, in tokens.
    pub tokens: f64,
}

// The rows are locked in the order of their names; otherwise two workers could deadlock.
pub(super) const LEARN: &str = "
with samples as (
    select * from unnest($1::text[], $2::bigint[], $3::double precision[]) as s (name, attempts, tokens)
),
own as (
    select k.name from flyball.kind k where k.name in (select name from samples) order by k.name for no key update
)
update flyball.kind k
set attempts = k.attempts + s.attempts,
    mean_cost = coalesce(
        k.mean_cost + (s.tokens / s.attempts - k.mean_cost)
            * least(1, s.attempts / least(k.attempts + s.attempts, 1000)::double precision),
        s.tokens / s.attempts)
from samples s
join own m using (name)
where k.name = s.name";

pub(super) const MEANS: &str = "
select name, attempts, mean_cost from flyball.kind where mean_cost is not null order by name limit 1000";

impl Queue {
    /// Records attempts that have ended. No kind may occur twice.
    pub async fn learn_costs(&self, seen: &[EndedAttempts]) -> Result<(), Error> {
        let kinds: Vec<&str> = seen.iter().map(|one| one.kind.as_str()).collect();
        let attempts: Vec<i64> = seen.iter().map(|one| one.attempts as i64).collect();
        let tokens: Vec<f64> = seen.iter().map(|one| one.tokens).collect();
        sqlx::query(LEARN)
            .bind(kinds)
            .bind(attempts)
            .bind(tokens)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Returns the mean cost of each kind that has attempts that ended.
    pub async fn kind_costs(&self) -> Result<Vec<KindCost>, Error> {
        let rows = sqlx::query(MEANS).fetch_all(&self.pool).await?;
        let cost = |row: &sqlx::postgres::PgRow| {
            Ok(KindCost {
                kind: row.try_get("name")?,
                attempts: row.try_get("attempts")?,
                mean: row.try_get("mean_cost")?,
            })
        };
        Ok(rows.iter().map(cost).collect::<Result<_, sqlx::Error>>()?)
    }
}
