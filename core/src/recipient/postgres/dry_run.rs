//! The log of accepted messages, for a dry run.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::Value;
use sqlx::Row as _;

use crate::postgres::Db;
use crate::recipient::fields::GatedArgs;
use crate::recipient::logged::{LogRow, LoggedMessage};
use crate::recipient::profile::Profile;

/// The profiles that are kept parsed. A recipient with several messages is parsed once.
const PROFILES_MAX: usize = 50_000;

/// The key below the first message of the range. Jobs have ascending ids, so those before it are
/// looked at once, and not for each page; those of earlier days are not looked at.
const FIRST: &str = "
    select coalesce(min(id) - 1, 0) from flyball.job where id >= flyball.day_of($1) << 38 and created_at >= $1";

/// A page of messages after a key: enough that a round trip does not count, and few enough to keep.
/// The limit is a literal, and the rest of a row is read after it: else all messages that are left
/// might be sorted for each page.
const MESSAGES: &str = "
    select m.*, r.profile, coalesce(p.origin, 'sender') = 'sender' as is_of_sender
    from (
        select j.id, j.tenant, j.priority::int, j.created_at, j.args from flyball.job j
        where j.id > $1 and j.kind = 'notification' and j.created_at >= $2 and j.created_at < $3
        order by j.id limit 5000
    ) m
    left join lateral (
        select h.profile from flyball.recipient h where h.tenant = m.tenant and h.id = m.args ->> 'recipient' limit 1
    ) r on true
    left join lateral (select h.origin from flyball.message_plan h where h.job_id = m.id limit 1) p on true
    order by m.id";

const DEFAULTS: &str = "select tenant, profile from flyball.recipient_defaults";

/// An error while the log is read.
#[derive(Debug, thiserror::Error)]
#[error("the log of messages cannot be read: {0}")]
pub struct UnreadableLog(#[from] sqlx::Error);

/// The messages of a span, oldest first, page by page.
pub struct MessageLog {
    db: Db,
    after: i64,
    since: Timestamp,
    until: Timestamp,
    defaults: HashMap<String, Arc<Profile>>,
    nobody: Arc<Profile>,
    profiles: HashMap<(Arc<str>, String), Arc<Profile>>,
    tenants: HashMap<String, Arc<str>>,
    /// Messages whose arguments or profile cannot be read, as of older versions.
    pub unreadable: u64,
}

impl MessageLog {
    /// Opens the log from `since` and before `until`.
    pub async fn open(db: Db, since: Timestamp, until: Timestamp) -> Result<Self, UnreadableLog> {
        let after = sqlx::query_scalar(FIRST)
            .bind(since.to_sqlx())
            .fetch_one(&db)
            .await?;
        let mut defaults = HashMap::new();
        for row in sqlx::query(DEFAULTS).fetch_all(&db).await? {
            let profile = Profile::parse(&row.try_get(1)?).unwrap_or_default();
            defaults.insert(row.try_get(0)?, Arc::new(profile));
        }
        Ok(Self {
            db,
            after,
            since,
            until,
            defaults,
            nobody: Arc::default(),
            profiles: HashMap::new(),
            tenants: HashMap::new(),
            unreadable: 0,
        })
    }

    /// Reads the next messages; `None` after the last page.
    pub async fn page(&mut self) -> Result<Option<Vec<LoggedMessage>>, UnreadableLog> {
        let rows = sqlx::query(MESSAGES)
            .bind(self.after)
            .bind(self.since.to_sqlx())
            .bind(self.until.to_sqlx())
            .fetch_all(&self.db)
            .await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        self.after = last.try_get(0)?;
        let mut messages = Vec::with_capacity(rows.len());
        for row in &rows {
            // The gates made it: a digest, or an item of one that went alone.
            if !row.try_get::<bool, _>(6)? {
                continue;
            }
            let args: Value = row.try_get(4)?;
            let Ok(args) = GatedArgs::parse(&args) else {
                self.unreadable += 1;
                continue;
            };
            let tenant = self.tenant(row.try_get(1)?);
            let profile: Option<Value> = row.try_get(5)?;
            let id = args.fields.recipient.as_deref();
            let profile = match profile.zip(id) {
                Some((profile, id)) => self.profile(&tenant, id, &profile),
                None => self.nobody.clone(),
            };
            let at: jiff_sqlx::Timestamp = row.try_get(3)?;
            let defaults = self.defaults.get(&*tenant).unwrap_or(&self.nobody).clone();
            messages.push(LoggedMessage::from(LogRow {
                job: row.try_get(0)?,
                tenant,
                priority: row.try_get(2)?,
                accepted_at: at.to_jiff(),
                args,
                profile,
                defaults,
            }));
        }
        Ok(Some(messages))
    }

    fn tenant(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.tenants.get(name) {
            return known.clone();
        }
        let shared: Arc<str> = name.into();
        self.tenants.insert(name.to_owned(), shared.clone());
        shared
    }

    fn profile(&mut self, tenant: &Arc<str>, id: &str, value: &Value) -> Arc<Profile> {
        let key = (tenant.clone(), id.to_owned());
        if let Some(known) = self.profiles.get(&key) {
            return known.clone();
        }
        let profile = Profile::parse(value).unwrap_or_else(|_| {
            self.unreadable += 1;
            Profile::default()
        });
        if self.profiles.len() >= PROFILES_MAX {
            self.profiles.clear();
        }
        let shared = Arc::new(profile);
        self.profiles.insert(key, shared.clone());
        shared
    }
}
