//! The rows that decide about messages: profiles, suppressions, sends, digests, crowds.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde_json::Value;
use sqlx::{Row, query};

use super::living::lives;
use super::messages::GatedMessage;
use super::statement::query_unprepared;
use super::unknown_zones::note_unknown_zone;
use crate::jobs::Error;
use crate::postgres::{Transaction, json_or_text};
use crate::providers::Recipient;
use crate::recipient::address::{RecipientKey, suppression_digest};
use crate::recipient::candidate::{Candidate, CapList};
use crate::recipient::digest::OpenDigest;
use crate::recipient::fields::GatedArgs;
use crate::recipient::gates::{CapTimes, GatePolicy};
use crate::recipient::profile::{Profile, ZONE_FIELDS};
use crate::recipient::rules::RecipientRules;

/// The second from which stored seconds count: the begin of 2020.
const EPOCH_S: i64 = 1_577_836_800;

pub(super) const PROFILES: &str = "
select r.tenant, r.id, r.profile
from (select distinct * from unnest($1::text[], $2::text[]) as k(tenant, id)) a
cross join lateral (select * from flyball.recipient h where h.tenant = a.tenant and h.id = a.id limit 1) r";

pub(super) const DEFAULTS: &str = "
select d.tenant, d.profile from flyball.recipient_defaults d where d.tenant = any($1)";

/// A text that is keyed to get the secret of claims. It is no digest, so no address has it.
const CLAIM_SECRET: &[u8] = b"claims on contents";

/// The keyed digests of addresses, and whether each is suppressed.
// Without the offset a plan for few suppressions reads all of them.
pub(super) const SUPPRESSED: &str = "
select a.digest, exists (
    select from flyball.suppression s where s.channel = a.channel and s.recipient_digest = a.digest offset 0
) as is_suppressed
from unnest($1::text[], flyball.keyed_digests($2::bytea[])) with ordinality as a(channel, digest, n)
order by a.n";

pub(super) const SENT: &str = "
select uuid_send(c.recipient) as recipient, c.list, c.sent
from unnest($1::text[]::uuid[], $2::int[]) as a(recipient, list)
cross join lateral (
    select * from flyball.cap h where h.recipient = a.recipient and h.list = a.list limit 1
) c";

// Locked in the order of their keys, as everywhere.
pub(super) const SENT_LOCKED: &str = "
select uuid_send(c.recipient) as recipient, c.list, c.sent
from (select * from unnest($1::text[]::uuid[], $2::int[]) as k(recipient, list) order by recipient, list) a
cross join lateral (
    select * from flyball.cap h where h.recipient = a.recipient and h.list = a.list for no key update
) c";

// A reservation counts while its message waits.
pub(super) const RESERVED: &str = concat!(
    "
select uuid_send(r.recipient) as recipient, r.list, array_agg(r.at_s order by r.at_s) as reserved
from unnest($1::text[]::uuid[], $2::int[]) as a(recipient, list)
join flyball.cap_reservation r on r.recipient = a.recipient and r.list = a.list
where r.job_id <> all ($3) and ",
    lives!("r.job_id"),
    "
group by r.recipient, r.list"
);

// Locked in the order of their keys: an item is put into a digest that cannot close meanwhile.
pub(super) const DIGESTS: &str = "
select d.type, uuid_send(d.recipient) as recipient, d.key, d.opened_at, d.closes_at, d.items
from (select distinct * from unnest($1::text[], $2::text[]::uuid[], $3::text[]) as k(type, recipient, key) order by 1, 2, 3) a
cross join lateral (
    select * from flyball.digest h where h.type = a.type and h.recipient = a.recipient and h.key = a.key for no key update
) d";

pub(super) const DIGESTS_SEEN: &str = "
select d.type, uuid_send(d.recipient) as recipient, d.key, d.opened_at, d.closes_at, d.items
from (select distinct * from unnest($1::text[], $2::text[]::uuid[], $3::text[]) as k(type, recipient, key)) a
cross join lateral (
    select * from flyball.digest h where h.type = a.type and h.recipient = a.recipient and h.key = a.key limit 1
) d";

pub(super) const CROWD: &str = "
select c.throttle, c.quarter, c.messages
from unnest($1::text[], $2::bigint[]) as a(throttle, quarter)
join flyball.held_crowd c on c.throttle = a.throttle and c.quarter = a.quarter";

/// The key of a list of sends, as it is stored.
pub(super) type StoredList = (RecipientKey, i32);

/// The claim of a message on its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimKey {
    pub(super) job_id: i64,
    pub(super) recipient: RecipientKey,
    pub(super) claim: i64,
}

/// The times of one list.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredTimes {
    pub sent: Vec<i64>,
    pub reserved: Vec<i64>,
}

/// A message with everything that gates know of its recipient but the times.
#[derive(Clone, Debug)]
pub(super) struct GateInput {
    pub message: GatedMessage,
    pub args: GatedArgs,
    pub profile: Profile,
    pub defaults: Profile,
    pub to: Option<Recipient>,
    pub recipient: RecipientKey,
    /// The number of the claim on its content.
    pub claim: i64,
    pub is_suppressed: bool,
    /// The keyed digest of its address.
    pub digest: Option<Vec<u8>>,
}

impl GateInput {
    /// Returns the message in the form of the gates.
    pub(super) fn candidate(&self) -> Candidate<'_> {
        let fields = &self.args.fields;
        let (first_at, accepted_at) = (self.message.first_at, self.message.accepted_at);
        let times = self
            .args
            .times(&self.profile, &self.defaults, first_at, accepted_at);
        Candidate {
            origin: self.message.origin,
            job: Some(self.message.job_id),
            priority: self.message.priority,
            channel: self.args.channel,
            category: &self.args.category,
            template: fields.template_id.as_deref(),
            to: self.to.as_ref(),
            recipient: self.recipient,
            actor: fields.actor.as_deref(),
            digest: fields.digest.as_deref(),
            at_most: fields.at_most.as_ref(),
            local: times.local,
            accepted_at: times.accepted_at,
            deadline: times.deadline,
            is_cancelled: self.message.is_cancelled,
        }
    }

    /// Returns what the gates go by for this message.
    pub(super) fn policy<'a>(&'a self, rules: &'a RecipientRules) -> GatePolicy<'a> {
        GatePolicy {
            profile: &self.profile,
            defaults: &self.defaults,
            rules,
        }
    }

    /// Returns the key under which the message claims its content.
    pub(super) fn claim_key(&self) -> ClaimKey {
        ClaimKey {
            job_id: self.message.job_id,
            recipient: self.recipient,
            claim: self.claim,
        }
    }

    /// Returns the key under which a list of this recipient is stored.
    pub(super) fn stored(&self, list: &CapList) -> StoredList {
        let mut start = [0; 4];
        start.copy_from_slice(&list.key.as_bytes()[..4]);
        (self.recipient, i32::from_be_bytes(start))
    }
}

/// Reads profiles and suppressions of messages.
pub(super) async fn inputs(
    connection: &mut Transaction,
    messages: Vec<GatedMessage>,
) -> Result<Vec<GateInput>, Error> {
    let profiles = profiles(connection, &messages).await?;
    let defaults = defaults(connection, &messages).await?;
    let mut inputs: Vec<GateInput> = messages
        .into_iter()
        .filter_map(|mut message| {
            let args = message.args.take()?;
            let id = args.fields.recipient.as_deref().unwrap_or_default();
            let profile = profiles.get(&(message.tenant.clone(), id.to_owned()));
            let profile = profile.cloned().unwrap_or_default();
            let defaults = defaults.get(&message.tenant).cloned().unwrap_or_default();
            Some(input(message, args, profile, defaults))
        })
        .collect();
    let secret = read_suppressions(connection, &mut inputs).await?;
    for input in &mut inputs {
        let content = input.args.dedup_key(&input.recipient);
        input.claim = content.claim(&input.recipient, &secret);
    }
    Ok(inputs)
}

fn input(message: GatedMessage, args: GatedArgs, profile: Profile, defaults: Profile) -> GateInput {
    let to = match args.to {
        Some(_) => args.address(),
        None => profile.addresses.get(&args.channel).cloned(),
    };
    let recipient = args.recipient_key(&message.tenant, to.as_ref());
    GateInput {
        message,
        args,
        profile,
        defaults,
        to,
        recipient,
        claim: 0,
        is_suppressed: false,
        digest: None,
    }
}

async fn profiles(
    connection: &mut Transaction,
    messages: &[GatedMessage],
) -> Result<HashMap<(String, String), Profile>, Error> {
    let named = messages.iter().filter_map(|message| {
        let id = message.args.as_ref()?.fields.recipient.clone()?;
        Some((message.tenant.clone(), id))
    });
    let (tenants, ids): (Vec<String>, Vec<String>) = named.unzip();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = query(PROFILES)
        .bind(tenants)
        .bind(ids)
        .fetch_all(connection)
        .await?;
    let read = |row: &sqlx::postgres::PgRow| {
        let key = (row.try_get("tenant")?, row.try_get("id")?);
        Ok((key, profile(&json_or_text(row, "profile"))))
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

async fn defaults(
    connection: &mut Transaction,
    messages: &[GatedMessage],
) -> Result<HashMap<String, Profile>, Error> {
    let mut tenants: Vec<&str> = messages.iter().map(|one| one.tenant.as_str()).collect();
    tenants.sort_unstable();
    tenants.dedup();
    let rows = query(DEFAULTS).bind(tenants).fetch_all(connection).await?;
    let read = |row: &sqlx::postgres::PgRow| {
        Ok((
            row.try_get("tenant")?,
            profile(&json_or_text(row, "profile")),
        ))
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

/// Reads a stored profile. A field that cannot be read is left out, such as an address that SQL
/// took or a zone that has left the time zone database.
fn profile(stored: &Value) -> Profile {
    let (profile, issues) = Profile::readable(stored);
    for issue in issues {
        let name = issue.pointer.trim_start_matches('/');
        if ZONE_FIELDS.contains(&name)
            && let Some(zone) = stored.get(name)
        {
            note_unknown_zone(zone);
        }
    }
    profile
}

/// Reads which addresses are suppressed, and the digest under which each is known. Returns the secret
/// of claims, which Postgres keys in the same call.
async fn read_suppressions(
    connection: &mut Transaction,
    inputs: &mut [GateInput],
) -> Result<Vec<u8>, Error> {
    let mut known: Vec<&mut GateInput> = inputs
        .iter_mut()
        .filter(|input| input.to.is_some())
        .collect();
    let to = known.iter().filter_map(|input| input.to.as_ref());
    let known_digests = to.map(|to| {
        let digest = suppression_digest(to.channel(), to.identity());
        (to.channel().as_str(), digest)
    });
    let secret = std::iter::once(("", CLAIM_SECRET.to_vec()));
    let (channels, digests): (Vec<&str>, Vec<Vec<u8>>) = secret.chain(known_digests).unzip();
    let found: Vec<(Vec<u8>, bool)> = sqlx::query_as(SUPPRESSED)
        .bind(channels)
        .bind(digests)
        .fetch_all(connection)
        .await?;
    let mut found = found.into_iter();
    let (secret, _) = found.next().ok_or(sqlx::Error::RowNotFound)?;
    for (input, (digest, is_suppressed)) in known.iter_mut().zip(found) {
        input.digest = Some(digest);
        input.is_suppressed = is_suppressed;
    }
    Ok(secret)
}

/// Reads the sends of lists; with `locks` nobody else takes or reserves a slot meanwhile.
pub(super) async fn sent(
    connection: &mut Transaction,
    lists: &[StoredList],
    locks: bool,
) -> Result<HashMap<StoredList, Vec<i64>>, Error> {
    if lists.is_empty() {
        return Ok(HashMap::new());
    }
    let (recipients, ids) = columns(lists);
    let rows = query(if locks { SENT_LOCKED } else { SENT })
        .bind(recipients)
        .bind(ids)
        .fetch_all(connection)
        .await?;
    let read = |row: &sqlx::postgres::PgRow| {
        let seconds: Vec<i32> = row.try_get("sent")?;
        let seconds = seconds.into_iter().map(unstored).collect();
        Ok(((stored_key(row)?, row.try_get("list")?), seconds))
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

/// Reads the reservations of lists, but for those of these jobs.
pub(super) async fn reserved(
    connection: &mut Transaction,
    lists: &[StoredList],
    but_for: &[i64],
) -> Result<HashMap<StoredList, Vec<i64>>, Error> {
    if lists.is_empty() {
        return Ok(HashMap::new());
    }
    let (recipients, ids) = columns(lists);
    let rows = query_unprepared(RESERVED)
        .bind(recipients)
        .bind(ids)
        .bind(but_for)
        .fetch_all(connection)
        .await?;
    let read = |row: &sqlx::postgres::PgRow| {
        let seconds: Vec<i32> = row.try_get("reserved")?;
        let seconds = seconds.into_iter().map(unstored).collect();
        Ok(((stored_key(row)?, row.try_get("list")?), seconds))
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

/// The key of an open digest: type, recipient, and actor if it has one for each.
pub(super) type DigestKey = (String, RecipientKey, String);

/// Reads open digests; with `locks` none of them closes meanwhile.
pub(super) async fn digests(
    connection: &mut Transaction,
    keys: &[DigestKey],
    locks: bool,
) -> Result<HashMap<DigestKey, OpenDigest>, Error> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let types: Vec<&str> = keys.iter().map(|key| key.0.as_str()).collect();
    let recipients: Vec<String> = keys.iter().map(|key| key.1.to_hex()).collect();
    let actors: Vec<&str> = keys.iter().map(|key| key.2.as_str()).collect();
    let rows = query(if locks { DIGESTS } else { DIGESTS_SEEN })
        .bind(types)
        .bind(recipients)
        .bind(actors)
        .fetch_all(connection)
        .await?;
    let read = |row: &sqlx::postgres::PgRow| {
        let time = |column| {
            row.try_get::<SqlTimestamp, _>(column)
                .map(SqlTimestamp::to_jiff)
        };
        let open = OpenDigest {
            opened_at: time("opened_at")?,
            closes_at: time("closes_at")?,
            items: usize::try_from(row.try_get::<i32, _>("items")?).unwrap_or(0),
        };
        let key = (row.try_get("type")?, stored_key(row)?, row.try_get("key")?);
        Ok((key, open))
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

/// Reads the numbers of messages that were held until a quarter of an hour, by throttle.
pub(super) async fn crowd(
    connection: &mut Transaction,
    quarters: &[(String, i64)],
) -> Result<HashMap<(String, i64), u64>, Error> {
    if quarters.is_empty() {
        return Ok(HashMap::new());
    }
    let throttles: Vec<&str> = quarters.iter().map(|one| one.0.as_str()).collect();
    let times: Vec<i64> = quarters.iter().map(|one| one.1).collect();
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(CROWD)
        .bind(throttles)
        .bind(times)
        .fetch_all(connection)
        .await?;
    let read = |(throttle, quarter, messages): (String, i64, i64)| {
        ((throttle, quarter), messages.unsigned_abs())
    };
    Ok(rows.into_iter().map(read).collect())
}

/// Returns the times of lists in the form of the gates.
pub(super) fn cap_times<'a>(
    lists: &[StoredList],
    times: &'a HashMap<StoredList, StoredTimes>,
) -> Vec<CapTimes<'a>> {
    let of = |list| match times.get(list) {
        Some(times) => CapTimes {
            sent: &times.sent,
            reserved: &times.reserved,
        },
        None => CapTimes::default(),
    };
    lists.iter().map(of).collect()
}

/// Returns lists as two columns.
pub(super) fn columns(lists: &[StoredList]) -> (Vec<String>, Vec<i32>) {
    lists
        .iter()
        .map(|(recipient, list)| (recipient.to_hex(), *list))
        .unzip()
}

/// Returns a unix second as it is stored.
pub(super) fn stored(second: i64) -> i32 {
    i32::try_from(second - EPOCH_S).unwrap_or(i32::MAX)
}

/// Returns a stored second as a unix second.
pub(super) fn unstored(second: i32) -> i64 {
    i64::from(second) + EPOCH_S
}

pub(super) fn stored_key(row: &sqlx::postgres::PgRow) -> Result<RecipientKey, sqlx::Error> {
    let bytes: Vec<u8> = row.try_get("recipient")?;
    let bytes = bytes
        .try_into()
        .map_err(|_| sqlx::Error::Decode("a key has 16 bytes".into()))?;
    Ok(RecipientKey::from_bytes(bytes))
}

/// Returns a time for a statement.
pub(super) fn sql_time(at: Timestamp) -> SqlTimestamp {
    jiff_sqlx::ToSqlx::to_sqlx(at)
}
