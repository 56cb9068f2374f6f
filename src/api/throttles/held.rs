//! Search for keys that hold their jobs back, among the deepest lanes of a throttle.

use crate::api::read_error::ReadError;
use crate::jobs::{LanesAfter, Queue};
use crate::throttle::tree::MAX_LEVELS;
use crate::throttle::{
    AcquireRequest, HeldKeys, LaneRequest, MAX_LANES_PER_ASK, Name, Status, Store,
};

/// Counts the keys of a throttle that hold jobs back; `None` where none does.
pub async fn held_keys(
    queue: &Queue,
    throttles: &dyn Store,
    name: &Name,
) -> Result<Option<HeldKeys>, ReadError> {
    // For most throttles one cheap request shows that no key has a limit of its own.
    let ask = AcquireRequest {
        throttle: name.clone(),
        lanes: vec![LaneRequest::default()],
        holder: None,
    };
    if throttles.peek(&ask).await.levels_decide {
        return Ok(None);
    }
    let failed = |error: String| ReadError::Failed(error);
    let page = queue
        .lanes_of(
            name.as_str(),
            &LanesAfter::DEEPEST,
            MAX_LANES_PER_ASK as i64,
        )
        .await;
    let lanes = page.map_err(|error| failed(error.to_string()))?.lanes;
    let keys: Vec<String> = lanes.iter().map(|lane| lane.key.clone()).collect();
    let states = throttles
        .look(name, &keys)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let held = HeldKeys::of(
        lanes
            .iter()
            .zip(&states)
            .map(|(lane, state)| (lane.key.as_str(), lane.depth, state)),
    );
    Ok((held.held() > 0).then_some(held))
}

/// Returns the nearest throttle above `status` that grants nothing; `None` if all of them grant.
pub async fn closed_above(throttles: &dyn Store, status: &Status) -> Option<Status> {
    let mut next = status.knobs.parent.clone();
    for _ in 0..MAX_LEVELS {
        let above = throttles.status(&next?).await.ok()??;
        if above.lets_nothing_through() {
            return Some(above);
        }
        next = above.knobs.parent.clone();
    }
    None
}
