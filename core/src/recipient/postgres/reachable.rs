//! Messages without an address whose recipients have none either.

use sqlx::{Row, query};

use crate::jobs::{Error, NewJob};
use crate::postgres::Db;
use crate::providers::Channel;

pub(super) const ADDRESSLESS: &str = "
select a.n, exists (select from flyball.recipient r where r.tenant = $1 and r.id = a.id) as has_profile
from unnest($2::text[], $3::text[]) with ordinality as a(id, channel, n)
where not exists (
    select from flyball.recipient r
    where r.tenant = $1 and r.id = a.id and r.profile -> 'addresses' ->> a.channel is not null
)
order by a.n";

/// A message that reaches nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressless {
    /// The index among the messages that were asked about.
    pub index: usize,
    /// True if its recipient has a profile, which has no address for the channel.
    pub has_profile: bool,
}

impl Addressless {
    /// Returns what is wrong with the field `to` of the message.
    pub fn problem(self) -> &'static str {
        match self.has_profile {
            true => {
                "must be given, because the profile of the recipient has no address for this channel"
            }
            false => "must be given, because the recipient has no profile",
        }
    }
}

/// Returns the messages that name no address, and a recipient without one.
pub async fn addressless(
    db: &Db,
    tenant: &str,
    jobs: &[NewJob],
) -> Result<Vec<Addressless>, Error> {
    let text = |job: &NewJob, name: &str| Some(job.args.get(name)?.as_str()?.to_owned());
    let mut places = Vec::new();
    let (mut ids, mut channels) = (Vec::new(), Vec::new());
    for (index, job) in jobs.iter().enumerate() {
        // In the inbox the id is the address.
        let is_inapp = text(job, "channel").as_deref() == Some(Channel::InApp.as_str());
        if text(job, "to").is_some() || is_inapp {
            continue;
        }
        if let (Some(id), Some(channel)) = (text(job, "recipient"), text(job, "channel")) {
            places.push(index);
            ids.push(id);
            channels.push(channel);
        }
    }
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut transaction = db.begin().await?;
    let rows = query(ADDRESSLESS)
        .bind(tenant)
        .bind(ids)
        .bind(channels)
        .fetch_all(&mut transaction)
        .await?;
    transaction.commit().await?;
    let found = |row: &sqlx::postgres::PgRow| {
        let nth = usize::try_from(row.try_get::<i64, _>("n")? - 1).unwrap_or(usize::MAX);
        Ok(Addressless {
            index: places.get(nth).copied().unwrap_or_default(),
            has_profile: row.try_get("has_profile")?,
        })
    };
    Ok(rows.iter().map(found).collect::<Result<_, sqlx::Error>>()?)
}
