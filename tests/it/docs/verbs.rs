//! The table of verbs is true: each name in it exists, and no route, command or function is
//! missing.

use std::any::type_name;
use std::collections::BTreeSet;

use super::command_line::commands;
use super::page::{read, root};
use crate::support::database;

const PAGE: &str = "docs/reference/interfaces.md";

/// Returns the types of the Rust column, which must be in the façade to compile here, with the
/// folders that hold its methods.
fn facade() -> Vec<(&'static str, &'static [&'static str])> {
    const JOBS: &[&str] = &["core/src/jobs"];
    const NOTIFY: &[&str] = &["core/src/notify"];
    let types: [(&str, &[&str]); 9] = [
        (type_name::<flyball::jobs::Queue>(), JOBS),
        (type_name::<flyball::jobs::Client>(), JOBS),
        (type_name::<flyball::jobs::Context>(), JOBS),
        (type_name::<flyball::jobs::HandlerError>(), JOBS),
        (type_name::<flyball::cron::Schedules>(), &["core/src/cron"]),
        (type_name::<flyball::cron::Timing>(), &["core/src/cron"]),
        (type_name::<flyball::messages::Deliveries>(), NOTIFY),
        (type_name::<flyball::Runner>(), &["src/app"]),
        (
            type_name::<dyn flyball::throttle::Store>(),
            &["core/src/throttle"],
        ),
    ];
    let short = |name: &'static str| name.rsplit("::").next().unwrap();
    types.map(|(name, folders)| (short(name), folders)).to_vec()
}

/// One cell of the table: its interface, the names in it, and its text.
struct Cell {
    interface: usize,
    names: Vec<String>,
    text: String,
}

const INTERFACES: [&str; 5] = ["SQL", "HTTP", "CLI", "Rust", "page"];

fn cells() -> Vec<Cell> {
    let page = read(PAGE);
    let rows = page.lines().filter(|line| {
        line.starts_with("| ") && !line.starts_with("| verb |") && !line.starts_with("|---")
    });
    rows.flat_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" |").map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{line}");
        let cell = |(interface, text): (usize, &&str)| Cell {
            interface,
            names: match text.starts_with('–') {
                true => Vec::new(),
                false => text
                    .split('`')
                    .skip(1)
                    .step_by(2)
                    .map(str::to_owned)
                    .collect(),
            },
            text: format!("{}: {} {text}", cells[0], INTERFACES[interface]),
        };
        cells[1..].iter().enumerate().map(cell).collect::<Vec<_>>()
    })
    .collect()
}

fn named(interface: &str) -> BTreeSet<String> {
    let of_interface = cells()
        .into_iter()
        .filter(|cell| INTERFACES[cell.interface] == interface);
    of_interface.flat_map(|cell| cell.names).collect()
}

#[test]
fn every_cell_names_something_or_has_a_dash() {
    let cells = cells();
    assert!(cells.len() > 500, "{}", cells.len());
    for cell in cells {
        assert!(
            cell.text.contains(" –") || !cell.names.is_empty(),
            "{}",
            cell.text
        );
    }
}

#[tokio::test]
async fn the_functions_of_the_table_are_those_of_the_schema_and_of_its_page() {
    let database = database().await;
    let made: Vec<String> = sqlx::query_scalar(
        "select distinct 'flyball.' || p.proname from pg_proc p where p.pronamespace = 'flyball'::regnamespace",
    )
    .fetch_all(database.pool())
    .await
    .unwrap();
    let made: BTreeSet<String> = made.into_iter().collect();
    let named = named("SQL");
    let unknown: Vec<_> = named.difference(&made).collect();
    assert!(unknown.is_empty(), "no such function: {unknown:?}");

    let page = read("docs/reference/sql.md");
    let documented: BTreeSet<String> = page
        .lines()
        .filter_map(|line| {
            let name = line.trim_start_matches('#').strip_prefix(" `flyball.")?;
            Some(format!("flyball.{}", name.strip_suffix('`')?))
        })
        .collect();
    assert_eq!(named, documented);
}

#[test]
fn the_routes_of_the_table_are_those_of_the_api() {
    let (_, document) = flyball::api::router::api().split_for_parts();
    let document = serde_json::to_value(&document).unwrap();
    let mut routes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys();
        let methods =
            methods.filter(|key| ["get", "post", "patch", "put", "delete"].contains(&key.as_str()));
        routes.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    assert_eq!(named("HTTP"), routes);
}

#[test]
fn the_commands_of_the_table_are_those_of_the_program() {
    let commands: Vec<&Vec<String>> = commands().iter().map(|(words, _)| words).collect();
    // A command with commands of its own that also runs by itself is named by its row.
    let is_group = |words: &[String]| {
        commands
            .iter()
            .any(|other| other.len() > words.len() && other.starts_with(words))
    };
    let all: BTreeSet<String> = commands
        .iter()
        .filter(|words| !words.is_empty())
        .filter(|words| !is_group(words) || words[0] == "notify")
        .map(|words| format!("flyball {}", words.join(" ")))
        .collect();
    assert_eq!(named("CLI"), all);
}

#[test]
fn the_methods_of_the_table_are_in_the_facade() {
    let facade = facade();
    let mut missing = Vec::new();
    for name in named("Rust") {
        let (of, method) = name.split_once("::").unwrap();
        let Some((_, folders)) = facade.iter().find(|(known, _)| *known == of) else {
            missing.push(format!("{name}: {of} is not in the list of this test"));
            continue;
        };
        let mut sources = Vec::new();
        for folder in *folders {
            collect(&root().join(folder), &mut sources);
        }
        let is_there = sources.iter().any(|text| defines(text, of, method));
        if !is_there {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Returns true if a source has the method in a block of the type, or in its trait.
fn defines(text: &str, of: &str, method: &str) -> bool {
    let heads = [format!("impl {of} {{"), format!("trait {of}:")];
    heads.iter().any(|head| {
        text.split(head.as_str()).skip(1).any(|block| {
            let block = block.split("\n}").next().unwrap();
            let is_trait = head.starts_with("trait");
            block.lines().any(|line| {
                let line = line.trim_start();
                let line = match line.strip_prefix("pub ") {
                    Some(rest) => rest,
                    None if is_trait => line,
                    None => return false,
                };
                let line = line
                    .trim_start_matches("async ")
                    .trim_start_matches("const ");
                line.strip_prefix("fn ").is_some_and(|rest| {
                    rest.strip_prefix(method)
                        .is_some_and(|rest| rest.starts_with(['(', '<']))
                })
            })
        })
    })
}

fn collect(folder: &std::path::Path, sources: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn the_views_of_the_table_are_those_of_the_page() {
    let views = read("src/api/dashboard/views.js");
    let named = named("page");
    assert!(named.len() > 3, "{named:?}");
    for view in named {
        let name = view.strip_prefix('#').unwrap();
        let is_view = views.contains(&format!("name: '{name}'"))
            || views.contains(&format!(" {name}: '"))
            || views.contains(&format!("`#{name}/"));
        assert!(is_view, "{view} is not an address of the page");
    }
}
