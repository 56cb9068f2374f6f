//! No import cycles inside a room.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Modules;
use super::sources::sources;

/// The import cycles: groups of files that all reach each other.
fn circles(graph: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let reach = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = graph[from].iter().copied().collect();
        while let Some(file) = open.pop() {
            if reached.insert(file) {
                open.extend(graph[file].iter().copied());
            }
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|file| (*file, reach(file))).collect();
    let mut found = BTreeSet::new();
    for (file, to) in &reached {
        let circle: BTreeSet<&str> = to
            .iter()
            .copied()
            .filter(|other| reached[other].contains(file))
            .collect();
        if !circle.is_empty() {
            found.insert(circle);
        }
    }
    let say = |circle: BTreeSet<&str>| {
        let arrows: Vec<String> = circle
            .iter()
            .flat_map(|from| {
                let inside = graph[from].intersection(&circle);
                inside.map(move |to| format!("{from} -> {to}"))
            })
            .collect();
        arrows.join(", ")
    };
    found.into_iter().map(say).collect()
}

#[test]
fn a_circle_is_found() {
    let graph = BTreeMap::from([
        ("a", BTreeSet::from(["b"])),
        ("b", BTreeSet::from(["c"])),
        ("c", BTreeSet::from(["b"])),
    ]);
    assert_eq!(circles(&graph), ["b -> c, c -> b"]);
}

#[test]
fn no_circle_of_imports_inside_a_room() {
    let sources = sources();
    let graph = Modules::of(&sources).inside_rooms();
    let arrows: usize = graph.values().map(BTreeSet::len).sum();
    assert!(arrows > 500, "{arrows} arrows between files of one room");
    let circles = circles(&graph);
    assert!(circles.is_empty(), "{circles:#?}");
}
