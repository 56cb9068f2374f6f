//! A store of throttles in a map.

use super::*;
use crate::throttle::rolling_window::WindowUsage;
use crate::throttle::{RateLimit, WrittenKnobs};

#[derive(Default)]
pub(super) struct MapStore {
    pub(super) throttles: Mutex<BTreeMap<Name, Status>>,
    pub(super) is_lost: AtomicBool,
    pub(super) panics: AtomicBool,
    /// The number of checks whether the store takes writes.
    pub(super) write_checks: AtomicU32,
    /// The number of times that the status of each throttle will come too late.
    pub(super) late: Mutex<BTreeMap<Name, u32>>,
    /// The last report of each throttle.
    pub(super) holds: Mutex<BTreeMap<Name, u32>>,
}

pub(super) fn status_of(name: &Name, rps: f64, seq: u64) -> Status {
    Status {
        name: name.clone(),
        knobs: Knobs {
            rps: RateLimit::new(rps),
            max: 100.0,
            seq,
            by: "alice".into(),
            why: "a test".into(),
            ..Knobs::default()
        },
        raw: BTreeMap::from([("rps".into(), rps.to_string())]),
        problems: Vec::new(),
        effective_rps: RateLimit::new(rps),
        lease_expired: false,
        used: 0.0,
        limited_us: 0.0,
        at_us: 1,
        expires_in_s: None,
        refusal: None,
        debt_until_ms: None,
        has_bucket: false,
    }
}

impl MapStore {
    pub(super) fn answers(&self) -> Result<(), throttle::Error> {
        assert!(
            !self.panics.load(Ordering::SeqCst),
            "the store has a defect"
        );
        if self.is_lost.load(Ordering::SeqCst) {
            Err(throttle::Error::Lost("connection refused".into()))
        } else {
            Ok(())
        }
    }

    pub(super) fn find(&self, name: &Name) -> Option<Status> {
        self.throttles.lock().get(name).cloned()
    }

    pub(super) fn grant(&self, ask: &AcquireRequest) -> AcquireResponse {
        let unknown = self.find(&ask.throttle).is_none().then(|| Limit::Unknown {
            name: ask.throttle.clone(),
        });
        let lanes = ask.lanes.iter().map(|lane| Grant {
            granted: if unknown.is_some() {
                0
            } else {
                lane.want.min(2)
            },
            wait: Duration::from_millis(if lane.want > 2 { 500 } else { 0 }),
            limit: unknown
                .clone()
                .or((lane.want > 2).then_some(Limit::Throttle)),
            ..Grant::default()
        });
        AcquireResponse {
            lanes: lanes.collect(),
            effective_rps: RateLimit::PerSecond(5.0),
            at_us: 1_000_000,
            seq: 1,
            ..AcquireResponse::default()
        }
    }
}

impl Store for MapStore {
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        Box::pin(async { self.grant(ask) })
    }

    fn hold<'a>(
        &'a self,
        name: &'a Name,
        holder: &'a Holder,
        _: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        Box::pin(async move {
            if self.find(name).is_none() {
                return Err(throttle::Error::Unknown(name.clone()));
            }
            self.holds.lock().insert(name.clone(), holder.held);
            Ok(())
        })
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), throttle::Error>> {
        self.write_checks.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { self.answers() })
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, throttle::Error>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn persist<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<(), throttle::Error>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn is_kept<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, throttle::Error>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn set_workers(&self, _: u32) {}

    fn refund_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        Box::pin(async { Ok(()) })
    }

    fn settle_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        Box::pin(async { Ok(()) })
    }

    fn pause_key<'a>(
        &'a self,
        _: &'a Name,
        _: &'a str,
        delay: Duration,
        _: &'a str,
    ) -> BoxFuture<'a, Result<i64, throttle::Error>> {
        Box::pin(async move { Ok(i64::try_from(delay.as_millis()).unwrap()) })
    }

    fn resume_key<'a>(
        &'a self,
        _: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, throttle::Error>> {
        Box::pin(async move { Ok(key.is_empty()) })
    }

    fn refused<'a>(
        &'a self,
        _: &'a Name,
        _: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, throttle::Error>> {
        unreachable!("no test runs jobs here")
    }

    fn ended<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        unreachable!("no test runs jobs here")
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.acquire(ask)
    }

    fn acquire_and_peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.acquire(ask)
    }

    fn written_knobs<'a>(
        &'a self,
        _: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<WrittenKnobs>, throttle::Error>>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn statuses<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<Status>, throttle::Error>>> {
        Box::pin(futures_util::future::join_all(
            names.iter().map(|name| self.status(name)),
        ))
    }

    fn status<'a>(
        &'a self,
        name: &'a Name,
    ) -> BoxFuture<'a, Result<Option<Status>, throttle::Error>> {
        Box::pin(async {
            self.answers()?;
            match self.late.lock().get_mut(name) {
                Some(times @ 1..) => {
                    *times -= 1;
                    Err(throttle::Error::Lost("no answer within 250 ms".into()))
                }
                _ => Ok(self.find(name)),
            }
        })
    }

    fn set_capacity<'a>(
        &'a self,
        _: &'a Name,
        _: throttle::RateLimit,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        unreachable!("no test here has accounts")
    }

    fn look<'a>(
        &'a self,
        _: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<throttle::KeyState>, throttle::Error>> {
        Box::pin(async move {
            let free = keys.iter().map(|_| throttle::KeyState::default());
            self.answers().map(|()| free.collect())
        })
    }

    fn window_usage<'a>(
        &'a self,
        _: &'a Name,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<WindowUsage>, throttle::Error>> {
        Box::pin(async { self.answers().map(|()| None) })
    }

    fn delete<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, throttle::Error>> {
        unreachable!("no test deletes a throttle here")
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, throttle::Error>> {
        Box::pin(async {
            self.answers()
                .map(|()| self.throttles.lock().keys().cloned().collect())
        })
    }

    fn set<'a>(
        &'a self,
        name: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), throttle::Error>> {
        Box::pin(async {
            self.answers()?;
            let before = self.find(name);
            if before.is_none() && !change.create {
                return Err(throttle::Error::Unknown(name.clone()));
            }
            let seq = before.as_ref().map_or(0, |before| before.knobs.seq);
            if change.if_seq.is_some_and(|wanted| wanted != seq) {
                return Err(throttle::Error::Conflict {
                    name: name.clone(),
                    what: format!("seq is {seq}"),
                });
            }
            let rps = change
                .fields
                .get("rps")
                .and_then(|text| text.as_ref()?.parse().ok())
                .unwrap_or(1.0);
            let after = status_of(name, rps, seq + 1);
            self.throttles.lock().insert(name.clone(), after.clone());
            Ok((before, after))
        })
    }
}

/// Checks `rps` only; the rules of all knobs have their own tests.
pub(super) fn check_knobs(
    knobs: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Option<String>>, Vec<KnobProblem>> {
    let mut fields = BTreeMap::new();
    for (field, value) in knobs {
        if field == "rps" && value.as_f64().is_none_or(|rps| rps < -1.0) {
            return Err(vec![KnobProblem {
                field: "rps".into(),
                message: format!("{value} is not allowed"),
            }]);
        }
        fields.insert(field.clone(), Some(value.to_string()));
    }
    Ok(fields)
}

pub(super) struct Noop;

impl Handler for Noop {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
    }
}
