//! The highest cost of one job, for entry points that can refuse, and the costs that programs of
//! tenants report.

use super::tenant::is_made_by;
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

/// Returns the first throttle, among `leaf` and those above it, that is not of a tenant's own
/// making; `None` if all are.
pub async fn first_shared(
    store: &dyn Store,
    leaf: &Name,
    tenant: &str,
) -> Result<Option<Name>, Error> {
    let (mut seen, mut next) = (Vec::new(), Some(leaf.clone()));
    while let Some(name) =
        next.filter(|name| !seen.contains(name) && seen.len() < super::tree::MAX_LEVELS)
    {
        if !is_made_by(name.as_str(), tenant) {
            return Ok(Some(name));
        }
        let status = store.status(&name).await?;
        seen.push(name);
        next = status.and_then(|status| status.knobs.parent);
    }
    Ok(None)
}

/// Returns the real cost of a job that counts if a program of a tenant reports it: no more than one
/// job of the throttle may cost, and no less than was charged where others share a throttle.
pub async fn believed_cost(
    store: &dyn Store,
    throttle: &Name,
    tenant: &str,
    charged: f64,
    reported: f64,
) -> Result<f64, Error> {
    let lowest = lowest_max_cost(store, throttle).await?;
    let most = lowest.map_or(charged, |(_, most)| most.max(charged));
    let least = match first_shared(store, throttle, tenant).await? {
        Some(_) => charged,
        None => 0.0,
    };
    Ok(reported.min(most).max(least))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::throttle::MemoryStore;

    #[tokio::test]
    async fn a_program_of_a_tenant_lifts_no_shared_limit_and_charges_what_one_job_may_cost() {
        let store = MemoryStore::new(Arc::new(|| 0));
        let name = |text: &str| Name::new(text).unwrap();
        for (throttle, knob, text) in [
            ("mail", "rps", "10"),
            ("mail", "max_cost", "5"),
            ("tenant:acme/own", "rps", "10"),
            ("tenant:acme/below", "rps", "10"),
            ("tenant:acme/below", "parent", "mail"),
        ] {
            store.write_raw(&name(throttle), knob, text);
        }
        for (throttle, reported, counted) in [
            ("mail", 0.0, 2.0),
            ("mail", 4.0, 4.0),
            ("mail", 1e9, 5.0),
            ("tenant:acme/below", 0.0, 2.0),
            ("tenant:acme/below", 1e9, 5.0),
            ("tenant:acme/own", 0.0, 0.0),
            ("tenant:acme/own", 1e9, 1000.0),
            ("gone", 1e9, 2.0),
        ] {
            let believed = believed_cost(&store, &name(throttle), "acme", 2.0, reported).await;
            assert_eq!(believed.unwrap(), counted, "{throttle}: {reported}");
        }
    }
}
