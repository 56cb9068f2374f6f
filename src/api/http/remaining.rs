//! The tokens that are left in a throttle.

use crate::throttle::{AcquireRequest, LaneRequest, Name, Store};

/// The units asked for in order to learn the level of a bucket. A bucket that holds as many counts
/// as unlimited.
const PEEK_TOKENS: u32 = 1_000_000_000;

/// Returns the whole tokens of a key that are left after `taken`, which is asked for and not taken;
/// `None` where nothing limits or the store does not answer.
pub async fn remaining(store: &dyn Store, throttle: &Name, taken: LaneRequest) -> Option<u32> {
    let probe = LaneRequest {
        key: taken.key.clone(),
        want: PEEK_TOKENS,
        ..LaneRequest::default()
    };
    let answer = store
        .peek(&AcquireRequest {
            throttle: throttle.clone(),
            lanes: vec![taken, probe],
            holder: None,
        })
        .await;
    let left = answer.lanes.last().filter(|_| answer.at_us > 0)?.granted;
    (left < PEEK_TOKENS).then_some(left)
}
