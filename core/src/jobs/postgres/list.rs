//! Search for jobs: a walk from the newest to the oldest that reads a bounded number of rows at a
//! time, in `flyball.find_jobs`.

use serde_json::{Map, Value};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres, Row};

use super::Queue;
use super::read::summary;
use crate::jobs::{Error, JobFilter, JobPage, JobSearch, Summary};

pub(super) const LIST: &str = "
select j.*, f.next
from flyball.find_jobs(flyball.read_filter('list_jobs', $1, $2), $3, $4) f
left join lateral unnest(f.jobs) j on true";

impl Queue {
    /// Returns jobs by filter, newest first, walking on until there are `limit` or no more.
    ///
    /// It is for programs; people want [`Queue::page`].
    pub async fn list(&self, filter: &JobFilter) -> Result<Vec<Summary>, Error> {
        let mut jobs = Vec::new();
        let mut rest = JobFilter {
            limit: filter.limit.clamp(1, 1000),
            ..filter.clone()
        };
        loop {
            let page = self.page(&rest).await?;
            rest.limit -= page.jobs.len() as i64;
            jobs.extend(page.jobs);
            match page.next {
                Some(next) if rest.limit > 0 => rest.before = Some(next),
                _ => return Ok(jobs),
            }
        }
    }

    /// Returns a page of jobs by filter, newest first.
    ///
    /// Any filter takes a few tens of milliseconds at most, so the page may be short, or empty,
    /// although more follow: go on from [`JobPage::next`] until there is none.
    pub async fn page(&self, filter: &JobFilter) -> Result<JobPage, Error> {
        let found = sqlx::query(LIST)
            .bind(given(filter))
            .bind(&filter.tenant)
            .bind(filter.before)
            .bind(filter.limit.clamp(1, 1000) as i32)
            .fetch_all(&self.pool)
            .await?;
        let mut page = JobPage::default();
        for row in &found {
            page.next = row.try_get("next")?;
            if row.try_get::<Option<i64>, _>("id")?.is_some() {
                page.jobs.push(summary(row)?);
            }
        }
        Ok(page)
    }
}

/// Binds the parameters of a search, which come last in the functions of bulk changes.
pub(super) fn bind_search<'q>(
    query: Query<'q, Postgres, PgArguments>,
    search: &'q JobSearch,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(&search.trace)
        .bind(&search.unique_key)
        .bind(&search.key_owners)
        .bind(&search.args)
        .bind(&search.args_path)
        .bind(search.given_tags())
}

/// Returns the filter as the function reads it.
fn given(filter: &JobFilter) -> Value {
    let state = match filter.state {
        Some(state) => Some(state.as_str()),
        None => filter.ended.then_some("ended"),
    };
    let search = &filter.search;
    let time = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string().into());
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    let fields: [(&str, Option<Value>); 14] = [
        ("state", state.map(Value::from)),
        ("kind", text(&filter.kind)),
        ("throttle", text(&filter.throttle)),
        ("key", text(&filter.key)),
        ("group", filter.group.map(Value::from)),
        ("error_like", text(&filter.error_like)),
        ("trace", text(&search.trace)),
        ("unique_key", text(&search.unique_key)),
        ("key_owners", Some(search.key_owners.clone().into())),
        ("args", search.args.clone()),
        ("args_path", text(&search.args_path)),
        ("tags", search.given_tags().map(Value::from)),
        ("created_after", time(filter.created_after)),
        ("created_before", time(filter.created_before)),
    ];
    let given = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(given.collect::<Map<_, _>>())
}
