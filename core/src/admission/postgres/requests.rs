//! Acceptance of messages in Postgres: one statement decides and writes.

use std::collections::HashMap;

use jiff_sqlx::ToSqlx;
use sqlx::Row;
use sqlx::types::Json;

use crate::jobs::{Backlog, Error, NewJob, Queue};

const FIND_REQUEST: &str = "
select answer, job_id, batch_id from flyball.find_request($1, $2, $3, false)";

const ACCEPT_MESSAGE: &str = "
select answer, job_id, batch_id, duplicate, held, backlog
from flyball.accept_message($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";

const ACCEPT_EXCESS: &str = "
select answer, job_id, batch_id, false as duplicate, held, null::jsonb as backlog
from flyball.accept_excess($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

const PLACES: &str = "
select job_id, place, tenant_place, tenant, module, priority, lane, front
from flyball.admission_places($1)";

const WAITING_BESIDE: &str = "select flyball.waiting_beside($1, $2, $3)";

const PLACES_BEHIND: &str = "select * from flyball.places_behind($1, $2, $3, $4)";

const HAS_WAITING: &str = "select flyball.has_waiting($1, $2)";

/// The place at which counting stops, as in `flyball.admission_place`.
const MAX_PLACE: i64 = 10_000;

/// The statements of this file.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("find request", FIND_REQUEST),
    ("accept message", ACCEPT_MESSAGE),
    ("accept excess", ACCEPT_EXCESS),
    ("admission places", PLACES),
    ("waiting beside", WAITING_BESIDE),
    ("admission places behind", PLACES_BEHIND),
    ("has waiting", HAS_WAITING),
];

/// The digests by which a repeated request is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// The digest of the sender and the idempotency key, or of the sender and the body if there is
    /// no key; `None` if repeats are not detected.
    pub request: Option<Vec<u8>>,
    /// The digest of the body.
    pub body: Vec<u8>,
    /// True if the client gave a key.
    pub has_key: bool,
}

/// A message to accept.
#[derive(Clone, Debug)]
pub struct AcceptRequest<'a> {
    /// The tenant; empty for a sender without one.
    pub tenant: &'a str,
    /// The sender's module.
    pub module: &'a str,
    /// The owner of the unique key; `None` for the tenant.
    pub owner: Option<&'a str>,
    /// The digests of the request.
    pub digests: &'a Digests,
    /// True if a slot was taken for the message.
    pub admitted: bool,
    /// The job of the message.
    pub job: &'a NewJob,
}

/// A message for which no slot was free.
#[derive(Clone, Debug)]
pub struct ExcessMessage {
    /// The module that sends it.
    pub module: String,
    /// The digests of the request.
    pub digests: Digests,
    /// The job of the message.
    pub job: NewJob,
}

/// The result of a request to accept a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Acceptance {
    /// The message was accepted.
    Accepted {
        /// Its job, or the one that holds its unique key.
        job_id: i64,
        /// True if the unique key was taken.
        duplicate: bool,
        /// True if it waits for its admission.
        held: bool,
        /// The backlog of the pool's lane, if that is above its limit.
        backlog: Option<Backlog>,
    },
    /// The request repeats an earlier one, which made this message.
    Message(i64),
    /// The request repeats an earlier one, which made this batch.
    Batch(i64),
    /// The same request is being handled elsewhere.
    Running,
    /// The key was used with another body.
    Conflict,
}

/// The place of a waiting message.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::admission) struct Place {
    pub(in crate::admission) place: i64,
    pub(in crate::admission) tenant_place: i64,
    pub(in crate::admission) tenant: String,
    pub(in crate::admission) module: String,
    pub(in crate::admission) priority: i16,
    pub(in crate::admission) lane: i64,
    /// The first message of the lane; `None` if that one has another priority.
    pub(in crate::admission) front: Option<i64>,
    /// The numbers of messages that wait in the tenant's other lanes, each counted up to the last
    /// place that was asked for, until they are 10,000; empty if none wait there.
    pub(in crate::admission) beside: Vec<i64>,
}

/// A message whose place was counted. The places of those behind it follow from its own.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::admission) struct CountedPlace {
    pub(in crate::admission) job_id: i64,
    pub(in crate::admission) front: i64,
    pub(in crate::admission) place: Place,
}

impl CountedPlace {
    /// Returns the last of messages of one module from whose place those behind it follow: nothing
    /// more urgent waits, and no message of another module.
    pub(in crate::admission) fn last(places: &HashMap<i64, Place>) -> Option<Self> {
        let alone = places.iter().filter_map(|(job_id, place)| {
            let front = place.front.filter(|_| place.place == place.tenant_place)?;
            Some((*job_id, front, place))
        });
        let (job_id, front, place) = alone.max_by_key(|(job_id, ..)| *job_id)?;
        Some(Self {
            job_id,
            front,
            place: place.clone(),
        })
    }

    /// Returns the places of these messages among those behind this one, which are in order; `None`
    /// if not all are there.
    pub(in crate::admission) fn places(
        &self,
        job_ids: &[i64],
        behind: &[i64],
    ) -> Option<HashMap<i64, Place>> {
        let place = |job_id: &i64| {
            let further = behind.binary_search(job_id).ok()? as i64 + 1;
            let place = (self.place.place + further).min(MAX_PLACE);
            let place = Place {
                place,
                tenant_place: place,
                ..self.place.clone()
            };
            Some((*job_id, place))
        };
        job_ids.iter().map(place).collect()
    }
}

/// Returns the earlier request that this one repeats; `None` if it is new.
pub(in crate::admission) async fn find_request(
    queue: &Queue,
    digests: &Digests,
) -> Result<Option<Acceptance>, Error> {
    let row = sqlx::query(FIND_REQUEST)
        .bind(&digests.request)
        .bind(&digests.body)
        .bind(digests.has_key)
        .fetch_one(&queue.pool)
        .await?;
    repeated(&row)
}

/// Accepts a message, or finds the earlier request that it repeats.
pub(in crate::admission) async fn accept(
    queue: &Queue,
    request: &AcceptRequest<'_>,
) -> Result<Acceptance, Error> {
    let job = request.job;
    let _place = queue.tenant_place(request.tenant).await;
    let row = sqlx::query(ACCEPT_MESSAGE)
        .bind(request.tenant)
        .bind(request.module)
        .bind(&request.digests.request)
        .bind(&request.digests.body)
        .bind(request.digests.has_key)
        .bind(request.admitted)
        .bind(Json(&job.args))
        .bind(&job.throttle)
        .bind(&job.key)
        .bind(job.priority)
        .bind(job.run_at.map(|at| at.to_sqlx()))
        .bind(&job.unique_key)
        .bind(&job.traceparent)
        .bind(request.owner)
        .fetch_one(&queue.pool)
        .await?;
    accepted(&row)
}

/// Accepts messages of one module for which no slot was free, in one transaction; all or none. The
/// results are in the order of the messages.
pub(in crate::admission) async fn accept_excess(
    queue: &Queue,
    (tenant, module): (&str, &str),
    messages: &[&ExcessMessage],
) -> Result<Vec<Acceptance>, Error> {
    let rows = sqlx::query(ACCEPT_EXCESS)
        .bind(tenant)
        .bind(module)
        .bind(column(messages, |of| of.digests.request.as_deref()))
        .bind(column(messages, |of| of.digests.body.as_slice()))
        .bind(column(messages, |of| of.digests.has_key))
        .bind(column(messages, |of| Json(&of.job.args)))
        .bind(column(messages, |of| of.job.throttle.as_str()))
        .bind(column(messages, |of| of.job.key.as_str()))
        .bind(column(messages, |of| of.job.priority))
        .bind(column(messages, |of| of.job.traceparent.as_deref()))
        .fetch_all(&queue.pool)
        .await?;
    rows.iter().map(accepted).collect()
}

/// Returns one field of all messages.
fn column<'a, T>(messages: &[&'a ExcessMessage], of: fn(&'a ExcessMessage) -> T) -> Vec<T> {
    messages.iter().map(|message| of(message)).collect()
}

fn accepted(row: &sqlx::postgres::PgRow) -> Result<Acceptance, Error> {
    if let Some(repeated) = repeated(row)? {
        return Ok(repeated);
    }
    Ok(Acceptance::Accepted {
        job_id: row.try_get("job_id")?,
        duplicate: row.try_get("duplicate")?,
        held: row.try_get("held")?,
        backlog: row
            .try_get::<Option<Json<Backlog>>, _>("backlog")?
            .map(|Json(backlog)| backlog),
    })
}

pub(super) fn repeated(row: &sqlx::postgres::PgRow) -> Result<Option<Acceptance>, Error> {
    let answer: String = row.try_get("answer")?;
    Ok(match answer.as_str() {
        "running" => Some(Acceptance::Running),
        "conflict" => Some(Acceptance::Conflict),
        "replayed" => match row.try_get::<Option<i64>, _>("job_id")? {
            Some(job_id) => Some(Acceptance::Message(job_id)),
            None => Some(Acceptance::Batch(row.try_get("batch_id")?)),
        },
        _ => None,
    })
}

/// Returns the places of those of the messages that wait for their admission, by their ids.
pub(in crate::admission) async fn places(
    queue: &Queue,
    job_ids: &[i64],
) -> Result<HashMap<i64, Place>, Error> {
    let rows = sqlx::query(PLACES)
        .bind(job_ids)
        .fetch_all(&queue.pool)
        .await?;
    let place = |row: &sqlx::postgres::PgRow| {
        let place = Place {
            place: row.try_get("place")?,
            tenant_place: row.try_get("tenant_place")?,
            tenant: row.try_get("tenant")?,
            module: row.try_get("module")?,
            priority: row.try_get("priority")?,
            lane: row.try_get("lane")?,
            front: row.try_get("front")?,
            beside: Vec::new(),
        };
        Ok((row.try_get("job_id")?, place))
    };
    let places: Result<HashMap<i64, Place>, Error> = rows.iter().map(place).collect();
    let mut places = places?;
    let mut last_places: HashMap<i64, (String, i64)> = HashMap::new();
    for place in places.values().filter(|of| of.tenant_place > of.place) {
        let tenant = || (place.tenant.clone(), 0);
        let last = last_places.entry(place.lane).or_insert_with(tenant);
        last.1 = last.1.max(place.place);
    }
    for (lane, (tenant, most)) in last_places {
        let beside = beside(queue, &tenant, lane, most).await?;
        for place in places.values_mut().filter(|of| of.lane == lane) {
            place.beside.clone_from(&beside);
        }
    }
    Ok(places)
}

/// Returns the numbers of messages that wait in a tenant's lanes other than this one, each counted
/// up to `most`, until they are 10,000.
async fn beside(queue: &Queue, tenant: &str, lane: i64, most: i64) -> Result<Vec<i64>, Error> {
    let row = sqlx::query_scalar(WAITING_BESIDE)
        .bind(tenant)
        .bind(lane)
        .bind(most);
    Ok(row.fetch_one(&queue.pool).await?)
}

/// Returns the messages of the lane behind one whose place was counted, in order; none if the lane
/// has another front by now.
pub(in crate::admission) async fn behind(
    queue: &Queue,
    counted: &CountedPlace,
) -> Result<Vec<i64>, Error> {
    let row = sqlx::query_scalar(PLACES_BEHIND)
        .bind(counted.place.lane)
        .bind(counted.place.priority)
        .bind(counted.front)
        .bind(counted.job_id);
    Ok(row.fetch_all(&queue.pool).await?)
}

/// Returns true if messages of a module wait for their admission.
pub(in crate::admission) async fn has_waiting(
    queue: &Queue,
    tenant: &str,
    module: &str,
) -> Result<bool, Error> {
    let row = sqlx::query_scalar(HAS_WAITING).bind(tenant).bind(module);
    Ok(row.fetch_one(&queue.pool).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(place: i64, tenant_place: i64, front: Option<i64>) -> Place {
        Place {
            place,
            tenant_place,
            tenant: "acme".to_owned(),
            module: "web".to_owned(),
            priority: 2,
            lane: 7,
            front,
            beside: Vec::new(),
        }
    }

    #[test]
    fn places_follow_from_a_counted_one_in_the_order_of_those_behind_it() {
        let places = HashMap::from([
            (31, place(8, 8, Some(10))),
            (33, place(9, 9, Some(10))),
            (35, place(2, 2, None)),
        ]);
        let counted = CountedPlace::last(&places).unwrap();
        assert_eq!((counted.job_id, counted.front), (33, 10));

        let found = counted.places(&[41, 37], &[35, 37, 39, 41]).unwrap();

        assert_eq!(found[&37], place(11, 11, Some(10)));
        assert_eq!(found[&41], place(13, 13, Some(10)));
        assert_eq!(
            counted.places(&[37, 43], &[35, 37, 39, 41]),
            None,
            "one has another priority or went"
        );
        assert_eq!(counted.places(&[37], &[]), None, "the lane moved on");
    }

    #[test]
    fn no_place_follows_beside_other_modules_or_behind_more_urgent_messages() {
        let behind_urgent = HashMap::from([(31, place(8, 8, None))]);
        let beside_others = HashMap::from([(31, place(8, 12, Some(10)))]);

        assert_eq!(CountedPlace::last(&behind_urgent), None);
        assert_eq!(CountedPlace::last(&beside_others), None);
        assert_eq!(CountedPlace::last(&HashMap::new()), None);
    }

    #[test]
    fn counting_stops_at_the_same_place() {
        let counted = CountedPlace {
            job_id: 1,
            front: 1,
            place: place(MAX_PLACE - 1, MAX_PLACE - 1, Some(1)),
        };
        let found = counted.places(&[3, 5], &[3, 5]).unwrap();
        assert_eq!((found[&3].place, found[&5].place), (MAX_PLACE, MAX_PLACE));
    }
}
