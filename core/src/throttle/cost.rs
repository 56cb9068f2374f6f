//! The highest cost of one job, for entry points that can refuse.

use super::{AcquireRequest, Error, KnobProblem, LaneRequest, Name, Store};

/// Returns the throttle with the lowest `max_cost`, among `leaf` and those above it, and that cost
/// in tokens; `None` if the throttle does not exist.
pub async fn lowest_max_cost(store: &dyn Store, leaf: &Name) -> Result<Option<(Name, f64)>, Error> {
    let (mut lowest, mut seen, mut next) = (None, Vec::new(), Some(leaf.clone()));
    while let Some(name) =
        next.filter(|name| !seen.contains(name) && seen.len() < super::tree::MAX_LEVELS)
    {
        let Some(status) = store.status(&name).await? else {
            break;
        };
        let most = status.knobs.max_cost();
        if lowest.as_ref().is_none_or(|(_, lowest)| most < *lowest) {
            lowest = Some((name.clone(), most));
        }
        seen.push(name);
        next = status.knobs.parent;
    }
    Ok(lowest)
}

/// Refuses a cost above the limit of a throttle; `field` is the caller's name for the cost.
pub async fn check_cost(
    store: &dyn Store,
    throttle: &Name,
    field: &str,
    cost: f64,
) -> Result<(), Error> {
    check_against(lowest_max_cost(store, throttle).await?, field, cost)
}

/// Refuses a cost like [`check_cost`], also where the request for tokens makes its throttle.
pub async fn check_wanted(
    store: &dyn Store,
    throttle: &Name,
    field: &str,
    cost: f64,
) -> Result<(), Error> {
    let mut lowest = lowest_max_cost(store, throttle).await?;
    if lowest.is_none() {
        // A pattern makes the throttle for the first request, whatever it asks for.
        let one = AcquireRequest {
            throttle: throttle.clone(),
            lanes: vec![LaneRequest::default()],
            holder: None,
        };
        store.peek(&one).await;
        lowest = lowest_max_cost(store, throttle).await?;
    }
    check_against(lowest, field, cost)
}

fn check_against(lowest: Option<(Name, f64)>, field: &str, cost: f64) -> Result<(), Error> {
    match lowest {
        Some((name, most)) if cost > most => {
            let message = format!(
                "{cost} is above what one job of throttle {name} may cost; allowed: at most {most} tokens, the knob max_cost of {name}"
            );
            Err(Error::Invalid(vec![KnobProblem {
                field: field.to_owned(),
                message,
            }]))
        }
        _ => Ok(()),
    }
}

/// Refuses a settlement whose charge or real cost is above the limit of a throttle.
pub async fn check_settled(
    store: &dyn Store,
    throttle: &Name,
    charged: f64,
    cost: f64,
) -> Result<(), Error> {
    let (field, larger) = if cost > charged {
        ("cost", cost)
    } else {
        ("charged", charged)
    };
    check_cost(store, throttle, field, larger).await
}
