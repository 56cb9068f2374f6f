//! The profiles of recipients: written, shown and erased by the functions of
//! `0012_recipients.sql`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde::Serialize;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use super::repeats::repeated;
use crate::jobs::{Attribution, Error};
use crate::postgres::Db;
use crate::providers::mask::MASK;
use crate::providers::{Channel, Recipient};
use crate::recipient::address::{RecipientKey, suppression_digest};
use crate::recipient::new_recipient::NewRecipient;

const PUT: &str =
    "select p.created, p.changed from flyball.put_recipients($1, $2, $3::jsonb[], $4, $5) p";

const FIND: &str =
    "select id, profile, updated_at from flyball.recipient where tenant = $1 and id = $2";

const LIST: &str = "
select id, profile, updated_at from flyball.recipient
where tenant = $1 and id > $2
order by id
limit $3";

/// Locks the row, so that the keys are those of the profile that is erased.
const LOCK: &str = "
select id, profile, updated_at from flyball.recipient where tenant = $1 and id = $2 for update";

const ERASE: &str = "
select e.had_profile, e.caps, e.reservations, e.claims, e.digests_closed, e.items, e.messages, e.cancelled, e.arguments, e.inbox
from flyball.erase_recipient($1, $2, $3::uuid[], $4, $5, $6) e";

const DEFAULTS: &str =
    "select profile, updated_at from flyball.recipient_defaults where tenant = $1";

const SET_DEFAULTS: &str = "select flyball.put_recipient_defaults($1, $2, $3, $4)";

/// The statements of this file.
pub const PROFILE_STATEMENTS: &[(&str, &str)] = &[
    ("put recipients", PUT),
    ("find recipient", FIND),
    ("list recipients", LIST),
    ("lock recipient", LOCK),
    ("erase recipient", ERASE),
    ("recipient defaults", DEFAULTS),
    ("set recipient defaults", SET_DEFAULTS),
];

/// The store of profiles.
#[derive(Clone, Debug)]
pub struct RecipientProfiles {
    db: Db,
}

/// The profile of a recipient as it is stored, with its addresses.
///
/// Its debug text shows nothing of the profile, because it has addresses.
#[derive(Clone, PartialEq, Serialize)]
pub struct StoredRecipient {
    pub id: String,
    /// The fields of the profile.
    #[serde(flatten)]
    pub profile: Value,
    /// The time of the last change.
    pub updated_at: Timestamp,
}

/// The defaults of a tenant, which hold unless the profile of a recipient says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredDefaults {
    /// The fields of the defaults.
    #[serde(flatten)]
    pub profile: Value,
    /// The time of the last change; `None` if they were never set.
    pub updated_at: Option<Timestamp>,
}

/// The result of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct PutRecipients {
    /// Recipients that are new.
    pub created: i64,
    /// Recipients that were known and whose profiles changed.
    pub changed: i64,
}

/// The things that were erased with a recipient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct ErasedRecipient {
    /// True if there was a profile.
    pub profile: bool,
    /// Lists of sent messages that caps counted.
    pub caps: i64,
    /// Times that caps had reserved.
    pub reservations: i64,
    /// Claims of messages by their content.
    pub claims: i64,
    /// Open digests.
    pub digests: i64,
    /// Their items, which are not sent.
    pub items: i64,
    /// Records of messages that no longer have the address.
    pub messages: i64,
    /// Messages that waited, or were dead letters, and are cancelled.
    pub cancelled: i64,
    /// Messages whose arguments no longer have anything that a person wrote or reads.
    pub arguments: i64,
    /// Messages in its inbox.
    pub inbox: i64,
}

impl RecipientProfiles {
    /// Creates a store on a database.
    pub fn new(db: impl Into<Db>) -> Self {
        Self { db: db.into() }
    }

    /// Writes the profiles of recipients with different ids, all or none.
    pub async fn put(
        &self,
        tenant: &str,
        recipients: &[NewRecipient],
        signed: &Attribution,
    ) -> Result<PutRecipients, Error> {
        let ids: Vec<&str> = recipients.iter().map(|one| one.id.as_str()).collect();
        let profiles: Vec<Json<&Value>> = recipients.iter().map(|one| Json(&one.profile)).collect();
        let row = sqlx::query(PUT)
            .bind(tenant)
            .bind(ids)
            .bind(profiles)
            .bind(signed.line())
            .bind(&signed.why)
            .fetch_one(&self.db)
            .await?;
        Ok(PutRecipients {
            created: row.try_get("created")?,
            changed: row.try_get("changed")?,
        })
    }

    /// Returns the profile of a recipient; `None` if there is none.
    pub async fn find(&self, tenant: &str, id: &str) -> Result<Option<StoredRecipient>, Error> {
        let row = sqlx::query(FIND)
            .bind(tenant)
            .bind(id)
            .fetch_optional(&self.db)
            .await?;
        Ok(row.as_ref().map(stored).transpose()?)
    }

    /// Returns the recipients of a tenant after an id, in the order of their ids.
    pub async fn list(
        &self,
        tenant: &str,
        after: &str,
        limit: i64,
    ) -> Result<Vec<StoredRecipient>, Error> {
        let rows = sqlx::query(LIST)
            .bind(tenant)
            .bind(after)
            .bind(limit.clamp(1, 1000))
            .fetch_all(&self.db)
            .await?;
        Ok(rows.iter().map(stored).collect::<Result<_, _>>()?)
    }

    /// Erases a recipient with everything that is kept about it.
    ///
    /// It takes what it deletes in another order than planners and attempts do, so it is repeated
    /// after a deadlock.
    pub async fn erase(
        &self,
        tenant: &str,
        id: &str,
        signed: &Attribution,
    ) -> Result<ErasedRecipient, Error> {
        repeated(|| self.erase_once(tenant, id, signed)).await
    }

    /// Erases a recipient in one transaction. The addresses are read here, because SQL cannot
    /// normalise all of them.
    async fn erase_once(
        &self,
        tenant: &str,
        id: &str,
        signed: &Attribution,
    ) -> Result<ErasedRecipient, Error> {
        let mut transaction = self.db.begin().await?;
        let row = sqlx::query(LOCK)
            .persistent(false)
            .bind(tenant)
            .bind(id)
            .fetch_optional(&mut transaction)
            .await?;
        let addresses = match row.as_ref().map(stored).transpose()? {
            Some(recipient) => recipient.addresses(),
            None => Vec::new(),
        };
        let of_addresses = addresses
            .iter()
            .map(|to| RecipientKey::of_address(tenant, to));
        let of_person = Channel::WORDS
            .iter()
            .map(|(_, channel)| RecipientKey::of_subscriber(tenant, *channel, id));
        let keys: Vec<String> = of_addresses.chain(of_person).map(|key| hex(&key)).collect();
        let digests: Vec<Vec<u8>> = addresses
            .iter()
            .map(|to| suppression_digest(to.channel(), to.identity()))
            .collect();
        let row = sqlx::query(ERASE)
            .persistent(false)
            .bind(tenant)
            .bind(id)
            .bind(keys)
            .bind(digests)
            .bind(signed.line())
            .bind(&signed.why)
            .fetch_one(&mut transaction)
            .await?;
        let erased = ErasedRecipient {
            profile: row.try_get("had_profile")?,
            caps: row.try_get("caps")?,
            reservations: row.try_get("reservations")?,
            claims: row.try_get("claims")?,
            digests: row.try_get("digests_closed")?,
            items: row.try_get("items")?,
            messages: row.try_get("messages")?,
            cancelled: row.try_get("cancelled")?,
            arguments: row.try_get("arguments")?,
            inbox: row.try_get("inbox")?,
        };
        transaction.commit().await?;
        Ok(erased)
    }

    /// Returns the defaults of a tenant.
    pub async fn defaults(&self, tenant: &str) -> Result<StoredDefaults, Error> {
        let row = sqlx::query(DEFAULTS)
            .bind(tenant)
            .fetch_optional(&self.db)
            .await?;
        let Some(row) = row else {
            return Ok(StoredDefaults {
                profile: Value::Object(serde_json::Map::new()),
                updated_at: None,
            });
        };
        Ok(StoredDefaults {
            profile: row.try_get::<Json<Value>, _>("profile")?.0,
            updated_at: Some(row.try_get::<SqlTimestamp, _>("updated_at")?.to_jiff()),
        })
    }

    /// Sets the defaults of a tenant. Returns false if they were the same.
    pub async fn set_defaults(
        &self,
        tenant: &str,
        profile: &Value,
        signed: &Attribution,
    ) -> Result<bool, Error> {
        let statement = sqlx::query_scalar(SET_DEFAULTS)
            .bind(tenant)
            .bind(Json(profile))
            .bind(signed.line())
            .bind(&signed.why);
        Ok(statement.fetch_one(&self.db).await?)
    }
}

impl StoredRecipient {
    /// Returns the addresses that can be read.
    pub fn addresses(&self) -> Vec<Recipient> {
        let given = self.profile.get("addresses").and_then(Value::as_object);
        let read = |(name, text): (&String, &Value)| {
            let (_, channel) = Channel::WORDS.iter().find(|(word, _)| word == name)?;
            Recipient::parse(*channel, text.as_str()?).ok()
        };
        given.into_iter().flatten().filter_map(read).collect()
    }

    /// Returns the address on each channel, in full or masked.
    pub fn shown_addresses(&self, masked: bool) -> BTreeMap<String, String> {
        let read = self.addresses();
        let shown = |(channel, address): (&String, &Value)| {
            let known = read.iter().find(|to| to.channel().as_str() == channel);
            let text = match (masked, known) {
                (false, _) => address.as_str().unwrap_or_default().to_owned(),
                (true, Some(to)) => to.masked(),
                // One that cannot be read any more.
                (true, None) => MASK.to_owned(),
            };
            (channel.clone(), text)
        };
        let given = self.profile.get("addresses").and_then(Value::as_object);
        given.into_iter().flatten().map(shown).collect()
    }
}

impl std::fmt::Debug for StoredRecipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredRecipient").finish_non_exhaustive()
    }
}

fn stored(row: &PgRow) -> Result<StoredRecipient, sqlx::Error> {
    Ok(StoredRecipient {
        id: row.try_get("id")?,
        profile: row.try_get::<Json<Value>, _>("profile")?.0,
        updated_at: row.try_get::<SqlTimestamp, _>("updated_at")?.to_jiff(),
    })
}

/// Returns a key in the form in which Postgres reads it.
fn hex(key: &RecipientKey) -> String {
    key.as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
