//! The tokens that are left in a throttle.

use crate::throttle::{AcquireRequest, AcquireResponse, LaneRequest, Name, Store};

/// The units asked for in order to learn the level of a bucket. A bucket that holds as many counts
/// as unlimited.
const PEEK_TOKENS: u32 = 1_000_000_000;

/// Returns the whole tokens of a key that are left after `taken`, which is asked for and not taken;
/// `None` where nothing limits or the store does not answer.
pub async fn remaining(store: &dyn Store, throttle: &Name, taken: LaneRequest) -> Option<u32> {
    left(&store.peek(&with_probe(throttle, taken)).await)
}

/// Asks for tokens of a key; returns the answer and the whole tokens that are left after it, as
/// [`remaining`] does.
pub async fn take_token(
    store: &dyn Store,
    throttle: &Name,
    taken: LaneRequest,
) -> (AcquireResponse, Option<u32>) {
    let mut answer = store.acquire_and_peek(&with_probe(throttle, taken)).await;
    let left = left(&answer);
    answer.lanes.truncate(1);
    (answer, left)
}

fn with_probe(throttle: &Name, taken: LaneRequest) -> AcquireRequest {
    let probe = LaneRequest {
        key: taken.key.clone(),
        want: PEEK_TOKENS,
        ..LaneRequest::default()
    };
    AcquireRequest {
        throttle: throttle.clone(),
        lanes: vec![taken, probe],
        holder: None,
    }
}

fn left(answer: &AcquireResponse) -> Option<u32> {
    let left = answer.lanes.last().filter(|_| answer.at_us > 0)?.granted;
    (left < PEEK_TOKENS).then_some(left)
}
