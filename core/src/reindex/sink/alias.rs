//! The move of an alias to another index. Pure.

use serde_json::{Map, Value, json};

/// Returns the actions that give an alias to `index` alone, by the answer to `GET /_alias/{alias}`.
///
/// The alias keeps its filter, its routing and its visibility: a search that a filter limits must
/// not find everything afterwards. One of a single index needs no mark of where to write.
///
/// # Errors
///
/// Fails if the alias differs between the indexes that have it, because then none is the one to
/// keep.
pub(super) fn actions(index: &str, alias: &str, found: &Value) -> Result<Vec<Value>, String> {
    let holders: Vec<(&String, Map<String, Value>)> = found
        .as_object()
        .into_iter()
        .flatten()
        .map(|(holder, held)| (holder, properties(&held["aliases"][alias])))
        .collect();
    let own = holders.iter().find(|(holder, _)| *holder == index);
    let kept = own.or(holders.first()).map(|(_, kept)| kept.clone());
    let mut add = kept.unwrap_or_default();
    if own.is_none()
        && let Some((other, _)) = holders.iter().find(|(_, held)| *held != add)
    {
        return Err(format!(
            "the alias {alias} has another filter, routing or visibility in {other} than in {}: move it by hand",
            holders[0].0
        ));
    }
    add.insert("index".to_owned(), json!(index));
    add.insert("alias".to_owned(), json!(alias));
    let mut actions = vec![json!({"add": add})];
    for (holder, _) in holders.iter().filter(|(holder, _)| *holder != index) {
        actions.push(json!({"remove": {"index": holder, "alias": alias}}));
    }
    Ok(actions)
}

/// Returns the other indexes that have the alias, by the same answer.
pub(super) fn others<'f>(index: &str, found: &'f Value) -> Vec<&'f str> {
    let holders = found.as_object().into_iter().flatten();
    holders
        .map(|(holder, _)| holder.as_str())
        .filter(|holder| *holder != index)
        .collect()
}

/// Returns what the alias keeps.
fn properties(held: &Value) -> Map<String, Value> {
    let mut properties = held.as_object().cloned().unwrap_or_default();
    properties.remove("is_write_index");
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_moves_to_the_index_from_all_others() {
        for (found, removed) in [
            (json!({}), vec![]),
            (json!({"b": {"aliases": {"a": {}}}}), vec![]),
            (
                json!({"x": {"aliases": {"a": {"is_write_index": true}}}, "y": {"aliases": {"a": {}}}}),
                vec!["x", "y"],
            ),
        ] {
            let mut expected = vec![json!({"add": {"index": "b", "alias": "a"}})];
            let remove = |holder: &str| json!({"remove": {"index": holder, "alias": "a"}});
            expected.extend(removed.into_iter().map(remove));
            assert_eq!(actions("b", "a", &found).unwrap(), expected);
        }
    }

    #[test]
    fn an_alias_keeps_its_filter_and_its_routing() {
        let held = json!({"filter": {"term": {"hidden": false}}, "search_routing": "1"});
        let add = json!({"add": {"index": "b", "alias": "a", "filter": {"term": {"hidden": false}}, "search_routing": "1"}});

        // The index itself has it already if an earlier move was not answered.
        for holders in [vec!["x"], vec!["x", "y"], vec!["b"]] {
            let found: Map<String, Value> = holders
                .iter()
                .map(|holder| ((*holder).to_owned(), json!({"aliases": {"a": held}})))
                .collect();
            let moved = actions("b", "a", &Value::Object(found)).unwrap();
            assert_eq!(moved[0], add, "{holders:?}");
        }
    }

    #[test]
    fn an_alias_that_differs_between_its_indexes_is_not_moved() {
        let found = json!({"x": {"aliases": {"a": {}}}, "y": {"aliases": {"a": {"filter": {"term": {"t": 1}}}}}});

        let refused = actions("b", "a", &found).unwrap_err();

        assert!(refused.contains("in y than in x"), "{refused}");
    }
}
