//! The types of digest that have open digests.

use crate::postgres::Db;

/// Reads the types in the order of their names. Millions of digests have a handful of types, so the
/// index is entered once for each type and not read as a whole.
const OPEN_TYPES: &str = "
    with recursive found(type) as (
        select min(type) from flyball.digest
        union all
        select (select min(d.type) from flyball.digest d where d.type > found.type)
        from found where found.type is not null
    )
    select type from found where type is not null";

/// Returns the types of digest that have open digests.
pub async fn open_types(db: &Db) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(OPEN_TYPES).fetch_all(db).await
}
