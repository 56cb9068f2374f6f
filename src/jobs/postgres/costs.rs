//! What attempts of a kind cost in the mean.

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

/// What attempts of one kind cost.
#[derive(Clone, Debug, PartialEq)]
pub struct KindCost {
    /// The kind.
    pub kind: String,
    /// Attempts that have ended.
    pub attempts: i64,
    /// Tokens that one of the last thousand or so cost in the mean.
    pub mean: f64,
}

// The rows are locked in the order of their names, or two workers could wait for each other.
pub(super) const LEARN: &str = "
with seen as (
    select * from unnest($1::text[], $2::bigint[], $3::double precision[]) as s (name, attempts, tokens)
),
mine as (
    select k.name from flyball.kind k where k.name in (select name from seen) order by k.name for no key update
)
update flyball.kind k
set attempts = k.attempts + s.attempts,
    mean_cost = coalesce(
        k.mean_cost + (s.tokens / s.attempts - k.mean_cost)
            * least(1, s.attempts / least(k.attempts + s.attempts, 1000)::double precision),
        s.tokens / s.attempts)
from seen s
join mine m using (name)
where k.name = s.name";

pub(super) const MEANS: &str = "
select name, attempts, mean_cost from flyball.kind where mean_cost is not null order by name limit 1000";

impl Queue {
    /// Takes note of attempts that have ended: their kind, how many, and what they cost together. No kind may be named twice.
    pub async fn learn_costs(&self, seen: &[(String, u64, f64)]) -> Result<(), Error> {
        let kinds: Vec<&str> = seen.iter().map(|(kind, ..)| kind.as_str()).collect();
        let attempts: Vec<i64> = seen.iter().map(|(_, attempts, _)| *attempts as i64).collect();
        let tokens: Vec<f64> = seen.iter().map(|(.., tokens)| *tokens).collect();
        sqlx::query(LEARN).bind(kinds).bind(attempts).bind(tokens).execute(&self.pool).await?;
        Ok(())
    }

    /// What attempts of each kind cost, as far as any have ended.
    pub async fn kind_costs(&self) -> Result<Vec<KindCost>, Error> {
        let rows = sqlx::query(MEANS).fetch_all(&self.pool).await?;
        let cost = |row: &sqlx::postgres::PgRow| {
            Ok(KindCost { kind: row.try_get("name")?, attempts: row.try_get("attempts")?, mean: row.try_get("mean_cost")? })
        };
        Ok(rows.iter().map(cost).collect::<Result<_, sqlx::Error>>()?)
    }
}
