//! A scanner of SQL: the accesses of a statement to tables, and whether each names a column.
//!
//! It knows no grammar. A statement is split into its queries, by parentheses and by the words
//! between queries, and a query names the column of a table if it says that the column equals
//! something, or is in something. Ranges, positions of rows (`ctid`) and conditions of other
//! queries do not count, as they do not for a router.

use std::collections::{BTreeMap, BTreeSet};

/// A word, a sign, or what stands in a pair of parentheses.
#[derive(Debug, PartialEq)]
enum Node {
    Word(String),
    Group(Vec<Node>),
}

/// Words that end a query within the same parentheses.
const BETWEEN_QUERIES: [&str; 4] = [";", "union", "except", "intersect"];

/// Words of PL/pgSQL that end a statement, besides those.
const BETWEEN_STATEMENTS: [&str; 4] = ["then", "loop", "begin", "else"];

/// Words before the name of a table that is read or changed.
const BEFORE_A_TABLE: [&str; 6] = ["from", "join", "update", "using", ",", "only"];

/// Words that may follow a table and are not another name for it.
const NO_ALIAS: [&str; 19] = [
    "where",
    "on",
    "cross",
    "left",
    "join",
    "order",
    "limit",
    "set",
    "using",
    "returning",
    "for",
    "group",
    "inner",
    "right",
    "values",
    "union",
    "loop",
    "select",
    "default",
];

/// Words that begin a query.
const BEGINNINGS: [&str; 5] = ["select", "with", "insert", "delete", "update"];

/// Returns the tables to which a statement has an access that does not name the table's column.
/// `columns` are the tables of the schema `flyball` that are looked at; `is_function` tells a body
/// of PL/pgSQL from a single statement.
pub fn unnamed(
    sql: &str,
    columns: &BTreeMap<String, String>,
    is_function: bool,
) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let nodes = nested(&mut words(sql).into_iter());
    check(&nodes, columns, is_function, &mut found);
    found
}

/// Returns the tables of `columns` that a statement mentions.
pub fn mentioned(sql: &str, columns: &BTreeMap<String, String>) -> BTreeSet<String> {
    let words = words(sql);
    let tables = words
        .iter()
        .filter_map(|word| word.strip_prefix("flyball."));
    tables
        .filter(|table| columns.contains_key(*table))
        .map(str::to_owned)
        .collect()
}

fn check(
    nodes: &[Node],
    columns: &BTreeMap<String, String>,
    is_function: bool,
    found: &mut BTreeSet<String>,
) {
    let ends = |node: &Node| match node {
        Node::Word(word) => {
            BETWEEN_QUERIES.contains(&word.as_str())
                || is_function && BETWEEN_STATEMENTS.contains(&word.as_str())
        }
        Node::Group(_) => false,
    };
    for query in nodes.split(ends) {
        for (n, node) in query.iter().enumerate() {
            match node {
                Node::Group(inner) => check(inner, columns, is_function, found),
                Node::Word(word) => {
                    let table = word.strip_prefix("flyball.").unwrap_or_default();
                    let Some(column) = columns.get(table) else {
                        continue;
                    };
                    let before = n.checked_sub(1).and_then(|n| word_of(query.get(n)));
                    let named = match before {
                        Some("into") => inserts(query, n, column),
                        Some(before) if BEFORE_A_TABLE.contains(&before) => {
                            names(query, alias(query, n).unwrap_or(table), column)
                        }
                        // A type, or the row of a table.
                        _ => true,
                    };
                    if !named {
                        found.insert(table.to_owned());
                    }
                }
            }
        }
    }
}

/// Returns true if the columns of an insert contain the column.
fn inserts(query: &[Node], table: usize, column: &str) -> bool {
    let columns = query[table + 1..]
        .iter()
        .take(3)
        .find_map(|node| match node {
            Node::Group(columns) => Some(columns),
            Node::Word(_) => None,
        });
    columns.is_some_and(|columns| columns.contains(&Node::Word(column.to_owned())))
}

/// Returns the other name of a table in this query.
fn alias(query: &[Node], table: usize) -> Option<&str> {
    let next = match word_of(query.get(table + 1))? {
        "as" => word_of(query.get(table + 2))?,
        next => next,
    };
    let is_name = next.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (is_name && !NO_ALIAS.contains(&next)).then_some(next)
}

/// Returns true if a condition of the query sets the column of the table equal to something.
fn names(query: &[Node], table: &str, column: &str) -> bool {
    let mut words = Vec::new();
    conditions(query, &mut words);
    let wanted = [column.to_owned(), format!("{table}.{column}")];
    (0..words.len()).any(|n| {
        let before = n.checked_sub(1).map(|n| words[n]);
        let after = words.get(n + 1).copied();
        wanted.iter().any(|wanted| wanted == words[n])
            && (matches!(after, Some("=" | "in")) || before == Some("="))
    })
}

/// Collects the words of a query without those of the queries inside it.
fn conditions<'a>(nodes: &'a [Node], words: &mut Vec<&'a str>) {
    for node in nodes {
        match node {
            Node::Word(word) => words.push(word),
            Node::Group(inner) => {
                words.push("(");
                let begins = word_of(inner.first()).is_some_and(|word| BEGINNINGS.contains(&word));
                if !begins {
                    conditions(inner, words);
                }
                words.push(")");
            }
        }
    }
}

fn word_of(node: Option<&Node>) -> Option<&str> {
    match node? {
        Node::Word(word) => Some(word),
        Node::Group(_) => None,
    }
}

/// Splits a text into words and signs, in lower case, without comments and literals.
fn words(sql: &str) -> Vec<String> {
    let mut words = Vec::new();
    let lines = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or(""));
    let text = lines.collect::<Vec<_>>().join("\n").to_lowercase();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\'' => {
                // Doubled quotes are two literals beside each other, which does no harm.
                while rest.next().is_some_and(|c| c != '\'') {}
            }
            c if c.is_alphanumeric() || c == '_' || c == '$' => {
                let mut word = c.to_string();
                while let Some(c) = rest.next_if(|c| c.is_alphanumeric() || "_.$".contains(*c)) {
                    word.push(c);
                }
                words.push(word);
            }
            '<' | '>' | '!' | ':' => {
                let mut sign = c.to_string();
                while let Some(c) = rest.next_if(|c| "=<>:".contains(*c)) {
                    sign.push(c);
                }
                words.push(sign);
            }
            c if c.is_whitespace() => {}
            c => words.push(c.to_string()),
        }
    }
    words
}

fn nested(words: &mut impl Iterator<Item = String>) -> Vec<Node> {
    let mut nodes = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "(" => nodes.push(Node::Group(nested(words))),
            ")" => break,
            _ => nodes.push(Node::Word(word)),
        }
    }
    nodes
}
