//! The task that serves requests for accounts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::shared::{
    AccountLease, AccountPoolInner, Checkout, CheckoutRequest, MAX_SERVE_BATCH, UNKNOWN_TURN_WAIT,
    locked,
};
use crate::providers::pool::Choice;
use crate::throttle::{
    AcquireRequest, Grant, Holder, LaneRequest, Limit, MAX_LANES_PER_ASK, Refund,
};

/// The minimum pause before exhausted accounts are asked again. One call then serves all waiting
/// messages whose turn it is; the buckets keep the tokens meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(4);

/// The minimum rest of an account that granted less than was requested, so that it is not asked
/// without a pause.
const SHORTEST_REST: Duration = Duration::from_millis(1);

/// The time after which the store forgets a process that asked for accounts.
const HOLDER_TTL: Duration = Duration::from_secs(10);

/// Serves requests until all handles of the pool are dropped.
pub(super) async fn serve(
    shared: Arc<AccountPoolInner>,
    mut requested: mpsc::Receiver<CheckoutRequest>,
) {
    let mut waiting: Vec<CheckoutRequest> = Vec::new();
    let mut next = NextServe::default();
    loop {
        let more = async {
            match next.at {
                Some(at) => tokio::time::sleep_until(at).await,
                None if waiting.is_empty() => std::future::pending().await,
                None => {}
            }
        };
        let room = MAX_SERVE_BATCH.saturating_sub(waiting.len());
        let mut came = Vec::new();
        tokio::select! {
            got = requested.recv_many(&mut came, room.max(1)), if room > 0 => {
                if got == 0 {
                    return;
                }
            }
            () = more => {}
        }
        waiting.append(&mut came);
        if let Some(until) = next.dry_until
            && tokio::time::Instant::now() < until
        {
            // The accounts were exhausted for the requests before these.
            next.at = Some(until);
            continue;
        }
        // A request whose caller has gone must not take a turn.
        waiting.retain(|request| !request.reply.is_closed());
        next = round(&shared, &mut waiting).await;
    }
}

/// The time at which the remaining requests are served.
#[derive(Default)]
struct NextServe {
    at: Option<tokio::time::Instant>,
    /// The end of a pause in which no request is served, not even a new one.
    dry_until: Option<tokio::time::Instant>,
}

/// The requests that one account is asked for in a round.
struct AccountTurn {
    at: usize,
    requests: Vec<CheckoutRequest>,
}

/// The accounts that a round asks, and what is known of the requests that must wait.
struct RoundTurns {
    accounts: Vec<AccountTurn>,
    /// The time at which the first of the waiting requests has its turn, in microseconds.
    soonest_us: Option<i64>,
    /// The result for all requests without exclusions, once no account is left for them.
    dry: Option<Choice>,
}

impl RoundTurns {
    /// Gives a request to the account that the round asks for it. Gives it back if the round asks
    /// as many accounts as it may.
    fn add(&mut self, at: usize, request: CheckoutRequest) -> Option<CheckoutRequest> {
        match self.accounts.iter().position(|turn| turn.at == at) {
            Some(place) => self.accounts[place].requests.push(request),
            None if self.accounts.len() < MAX_LANES_PER_ASK => self.accounts.push(AccountTurn {
                at,
                requests: vec![request],
            }),
            None => return Some(request),
        }
        None
    }

    /// Returns the time of the next round if this one asks no account.
    fn next(&self, shared: &AccountPoolInner) -> NextServe {
        let soonest = self.soonest_us.map(|at| {
            tokio::time::Instant::from_std(shared.begun + Duration::from_micros(at.max(0) as u64))
        });
        let dry_until = self.dry.map(|_| tokio::time::Instant::now() + ASK_EVERY);
        NextServe {
            at: soonest.map(|at| dry_until.map_or(at, |until| at.max(until))),
            dry_until,
        }
    }
}

/// Serves as many requests as possible; returns the time at which to serve the remaining ones.
async fn round(shared: &AccountPoolInner, waiting: &mut Vec<CheckoutRequest>) -> NextServe {
    let turns = choose(shared, waiting);
    if turns.accounts.is_empty() {
        return turns.next(shared);
    }
    ask(shared, turns.accounts, waiting).await;
    NextServe {
        at: (!waiting.is_empty()).then(tokio::time::Instant::now),
        dry_until: None,
    }
}

/// Chooses the next account for each waiting request. Requests for which no account is free wait
/// on, or are answered if their callers do not wait that long.
fn choose(shared: &AccountPoolInner, waiting: &mut Vec<CheckoutRequest>) -> RoundTurns {
    let now_us = shared.now_us();
    let mut turns = RoundTurns {
        accounts: Vec::new(),
        soonest_us: None,
        dry: None,
    };
    // The time per message of the whole pool, and the requests that wait ahead of the next one.
    let interval_us = shared.interval_us();
    let mut before = 0.0;
    for request in std::mem::take(waiting) {
        let choice = match turns.dry.filter(|_| request.excluded.is_empty()) {
            Some(dry) => dry,
            None => locked(&shared.ring).next(now_us, &request.excluded),
        };
        if request.excluded.is_empty() && matches!(choice, Choice::Wait { .. }) {
            turns.dry = Some(choice);
        }
        match choice {
            Choice::Account(at) => {
                if let Some(request) = turns.add(at, request) {
                    turns.soonest_us = Some(now_us);
                    waiting.push(request);
                }
            }
            Choice::NoAccount => drop(request.reply.send(Checkout::NoAccount)),
            Choice::Wait { until_us } => {
                let line_us = (before * interval_us) as i64;
                let wait_us = (until_us - now_us).max(0).saturating_add(line_us);
                let wait = Duration::from_micros(wait_us as u64);
                before += 1.0;
                if request.since.elapsed() + wait > request.timeout {
                    drop(request.reply.send(Checkout::Wait {
                        wait,
                        why: shared.why_rests(until_us, &request.excluded),
                    }));
                } else {
                    let soonest_us = turns.soonest_us.map_or(until_us, |at| at.min(until_us));
                    turns.soonest_us = Some(soonest_us);
                    waiting.push(request);
                }
            }
        }
    }
    turns
}

/// Asks the store for a token of each account, for as many requests as have its turn, and answers
/// those that got one. The others wait on.
async fn ask(
    shared: &AccountPoolInner,
    turns: Vec<AccountTurn>,
    waiting: &mut Vec<CheckoutRequest>,
) {
    let lanes = turns.iter().map(|turn| LaneRequest {
        key: shared.name(turn.at),
        want: turn.requests.len() as u32,
        cost: shared.cost(turn.at),
        held: 0,
    });
    // The request counts as new work, so that after a refusal one message goes first. Messages in
    // progress are counted nowhere else.
    let holder = Holder {
        id: shared.id.clone(),
        ttl: HOLDER_TTL,
        held: 0,
    };
    let ask = AcquireRequest {
        throttle: shared.accounts.clone(),
        lanes: lanes.collect(),
        holder: Some(holder),
    };
    let answer = shared.store.acquire(&ask).await;
    let max_cost = answer.max_cost;
    let grants = answer
        .lanes
        .into_iter()
        .chain(std::iter::repeat_with(Grant::default));
    for ((turn, lane), grant) in turns.into_iter().zip(&ask.lanes).zip(grants) {
        if grant.granted < turn.requests.len() as u32 {
            let (wait, why) = rest_of(&grant);
            shared.rest(turn.at, wait.max(SHORTEST_REST), &why);
        }
        let mut left = grant.granted;
        for request in turn.requests {
            if left == 0 {
                waiting.push(request);
                continue;
            }
            left -= 1;
            let held = AccountLease {
                at: turn.at,
                message: request.message,
                grant: Grant {
                    granted: 1,
                    ..grant.clone()
                },
                cost: lane.cost.min(max_cost),
            };
            if request.reply.send(Checkout::Held(held)).is_err() {
                let refund = Refund {
                    key: &lane.key,
                    grant: &grant,
                    units: 1,
                    cost: lane.cost.min(max_cost),
                };
                let _ = shared.store.refund_many(&shared.accounts, &[refund]).await;
            }
        }
    }
}

/// Returns the rest of an account that granted fewer tokens than requested, and the reason.
fn rest_of(grant: &Grant) -> (Duration, String) {
    match &grant.limit {
        Some(Limit::Paused { why, .. }) => (grant.wait, why.clone()),
        Some(Limit::Probing { .. }) => {
            (grant.wait, "one message is testing the account".to_owned())
        }
        Some(Limit::StoreLost) | None => (
            UNKNOWN_TURN_WAIT,
            "the throttle store did not answer".to_owned(),
        ),
        Some(Limit::Unknown { name } | Limit::Stopped { name, .. }) => (
            UNKNOWN_TURN_WAIT,
            format!("the throttle {name} grants no tokens"),
        ),
        Some(_) => (grant.wait, "the account is at its rate limit".to_owned()),
    }
}
