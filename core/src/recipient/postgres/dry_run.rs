//! The log of accepted messages, for a dry run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::postgres::{Db, json_or_text};
use crate::recipient::fields::{GatedArgs, is_gated};
use crate::recipient::logged::{LogRow, LoggedMessage};
use crate::recipient::profile::Profile;

/// The profiles that are kept parsed. A recipient with several messages is read and parsed once.
const PROFILES_MAX: usize = 200_000;

/// The key below the first message of the range. Jobs have ascending ids, so those before it are
/// looked at once, and not for each page; those of earlier days are not looked at.
pub(super) const FIRST: &str = "
    select coalesce(min(id) - 1, 0) from flyball.job where id >= flyball.day_of($1) << 38 and created_at >= $1";

/// A page of messages after a key: enough that a round trip does not count, and few enough to keep.
/// Nothing is joined, which would take longer than all else.
pub(super) const MESSAGES: &str = "
    select j.id, j.tenant, j.priority::int, j.created_at, j.run_at, j.args from flyball.job j
    where j.id > $1 and j.kind = 'notification' and j.created_at >= $2 and j.created_at < $3
    order by j.id limit 5000";

/// The messages of a page that the gates made: a digest, or an item of one that went alone.
pub(super) const OF_GATES: &str = "
    select p.job_id from flyball.message_plan p where p.job_id > $1 and p.job_id <= $2 and p.origin <> 'sender'";

pub(super) const PROFILES: &str = "
    select a.n, r.profile
    from unnest($1::text[], $2::text[]) with ordinality as a(tenant, id, n)
    cross join lateral (select h.profile from flyball.recipient h where h.tenant = a.tenant and h.id = a.id limit 1) r";

pub(super) const DEFAULTS: &str = "select tenant, profile from flyball.recipient_defaults";

/// An error while the log is read.
#[derive(Debug, thiserror::Error)]
#[error("the log of messages cannot be read: {0}")]
pub struct UnreadableLog(#[from] sqlx::Error);

/// The place of a reader in the log.
pub struct LogCursor {
    db: Db,
    after: i64,
    since: Timestamp,
    until: Timestamp,
}

/// A page as Postgres sent it.
pub struct LogPage {
    rows: Vec<PgRow>,
    of_gates: HashSet<i64>,
}

impl LogCursor {
    /// Opens the log from `since` and before `until`.
    pub async fn open(db: Db, since: Timestamp, until: Timestamp) -> Result<Self, UnreadableLog> {
        let after = sqlx::query_scalar(FIRST)
            .bind(since.to_sqlx())
            .fetch_one(&db)
            .await?;
        Ok(Self {
            db,
            after,
            since,
            until,
        })
    }

    /// Reads the next page, oldest messages first; `None` after the last one.
    pub async fn page(&mut self) -> Result<Option<LogPage>, UnreadableLog> {
        let rows = sqlx::query(MESSAGES)
            .bind(self.after)
            .bind(self.since.to_sqlx())
            .bind(self.until.to_sqlx())
            .fetch_all(&self.db)
            .await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let last: i64 = last.try_get(0)?;
        let of_gates: Vec<i64> = sqlx::query_scalar(OF_GATES)
            .bind(self.after)
            .bind(last)
            .fetch_all(&self.db)
            .await?;
        self.after = last;
        let of_gates = of_gates.into_iter().collect();
        Ok(Some(LogPage { rows, of_gates }))
    }
}

/// A message of a page, without its profile.
struct BareRow {
    job: i64,
    tenant: Arc<str>,
    priority: i32,
    accepted_at: Timestamp,
    run_at: Option<Timestamp>,
    is_gated: bool,
    args: GatedArgs,
}

/// The messages of a page whose profiles may be missing.
pub struct ParsedPage {
    messages: Vec<BareRow>,
    /// The recipients without a known profile, by tenant and id.
    unknown: Vec<(Arc<str>, String)>,
}

impl ParsedPage {
    /// Reads the profiles that are missing, each with its place among them.
    pub async fn missing(&self, db: &Db) -> Result<Vec<(i64, Value)>, UnreadableLog> {
        if self.unknown.is_empty() {
            return Ok(Vec::new());
        }
        let (tenants, ids): (Vec<&str>, Vec<&str>) = self
            .unknown
            .iter()
            .map(|(tenant, id)| (&**tenant, id.as_str()))
            .unzip();
        let rows = sqlx::query(PROFILES)
            .bind(tenants)
            .bind(ids)
            .fetch_all(db)
            .await?;
        let read = |row: &PgRow| Ok((row.try_get(0)?, json_or_text(row, "profile")));
        Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
    }
}

/// Makes messages of pages, and keeps the profiles of those that it saw.
pub struct LogParser {
    defaults: HashMap<String, Arc<Profile>>,
    nobody: Arc<Profile>,
    profiles: HashMap<Arc<str>, HashMap<String, Arc<Profile>>>,
    kept: usize,
    tenants: HashSet<Arc<str>>,
    /// Messages whose arguments or profile cannot be read.
    pub unreadable: u64,
}

impl LogParser {
    pub async fn open(db: &Db) -> Result<Self, UnreadableLog> {
        let mut defaults = HashMap::new();
        for row in sqlx::query(DEFAULTS).fetch_all(db).await? {
            let (profile, _) = Profile::readable(&json_or_text(&row, "profile"));
            defaults.insert(row.try_get(0)?, Arc::new(profile));
        }
        Ok(Self {
            defaults,
            nobody: Arc::default(),
            profiles: HashMap::new(),
            kept: 0,
            tenants: HashSet::new(),
            unreadable: 0,
        })
    }

    /// Parses the arguments of a page.
    pub fn parse(&mut self, page: &LogPage) -> Result<ParsedPage, UnreadableLog> {
        if self.kept >= PROFILES_MAX {
            self.profiles.clear();
            self.kept = 0;
        }
        let mut messages = Vec::with_capacity(page.rows.len());
        let mut unknown: HashSet<(Arc<str>, String)> = HashSet::new();
        for row in &page.rows {
            let job: i64 = row.try_get(0)?;
            if page.of_gates.contains(&job) {
                continue;
            }
            let stored = json_or_text(row, "args");
            let Ok(args) = GatedArgs::parse(&stored) else {
                self.unreadable += 1;
                continue;
            };
            let tenant = self.tenant(row.try_get(1)?);
            if let Some(id) = &args.fields.recipient
                && self.known(&tenant, id).is_none()
            {
                unknown.insert((tenant.clone(), id.clone()));
            }
            let at: jiff_sqlx::Timestamp = row.try_get(3)?;
            let run_at: Option<jiff_sqlx::Timestamp> = row.try_get(4)?;
            messages.push(BareRow {
                job,
                tenant,
                priority: row.try_get(2)?,
                accepted_at: at.to_jiff(),
                run_at: run_at.map(jiff_sqlx::Timestamp::to_jiff),
                is_gated: is_gated(&stored),
                args,
            });
        }
        let unknown = unknown.into_iter().collect();
        Ok(ParsedPage { messages, unknown })
    }

    /// Returns the messages of a page, whose missing profiles were read.
    pub fn complete(
        &mut self,
        page: ParsedPage,
        missing: Vec<(i64, Value)>,
    ) -> impl Iterator<Item = LoggedMessage> {
        let mut read: HashMap<i64, Value> = missing.into_iter().collect();
        for ((tenant, id), n) in page.unknown.into_iter().zip(1_i64..) {
            let profile = match read.remove(&n) {
                Some(stored) => {
                    let (profile, issues) = Profile::readable(&stored);
                    self.unreadable += u64::from(!issues.is_empty());
                    Arc::new(profile)
                }
                None => self.nobody.clone(),
            };
            self.kept += 1;
            self.profiles.entry(tenant).or_default().insert(id, profile);
        }
        let known = &*self;
        page.messages.into_iter().map(move |row| {
            let id = row.args.fields.recipient.as_deref();
            let profile = id.and_then(|id| known.known(&row.tenant, id));
            let defaults = known.defaults.get(&*row.tenant);
            LoggedMessage::from(LogRow {
                job: row.job,
                profile: profile.unwrap_or(&known.nobody).clone(),
                defaults: defaults.unwrap_or(&known.nobody).clone(),
                tenant: row.tenant,
                priority: row.priority,
                accepted_at: row.accepted_at,
                run_at: row.run_at,
                is_gated: row.is_gated,
                args: row.args,
            })
        })
    }

    fn known(&self, tenant: &str, id: &str) -> Option<&Arc<Profile>> {
        self.profiles.get(tenant)?.get(id)
    }

    fn tenant(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.tenants.get(name) {
            return known.clone();
        }
        let shared: Arc<str> = name.into();
        self.tenants.insert(shared.clone());
        shared
    }
}
