//! The schema that the migrations make is the one that `schema.txt` describes.

use std::collections::BTreeSet;

use sqlx::Executor as _;

use crate::docs::read;
use crate::support::database;

const PINNED: &str = "tests/it/schema.txt";
/// The query that describes the schema; its comments explain each line of the answer.
const DESCRIBE: &str = include_str!("schema.sql");
/// If this variable is `1`, the test writes the file anew instead of comparing.
const BLESS: &str = "FLYBALL_BLESS";

#[tokio::test]
async fn the_schema_is_as_pinned() {
    let database = database().await;
    let mut connection = database.pool().acquire().await.unwrap();
    // Names are written with their schema only where the path does not lead to it.
    connection
        .execute("set search_path to pg_catalog")
        .await
        .unwrap();
    let made: BTreeSet<String> = sqlx::query_scalar(DESCRIBE)
        .fetch_all(&mut *connection)
        .await
        .unwrap()
        .into_iter()
        .collect();
    if std::env::var(BLESS).is_ok_and(|output| output == "1") {
        let lines: String = made.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(format!("{}/{PINNED}", env!("CARGO_MANIFEST_DIR")), lines).unwrap();
        return;
    }

    let pinned: BTreeSet<String> = read(PINNED).lines().map(str::to_owned).collect();
    let versions = |lines: &BTreeSet<String>| -> BTreeSet<String> {
        let words = lines.iter().filter_map(|line| version(line));
        words.map(str::to_owned).collect()
    };
    let (here, there) = (versions(&made), versions(&pinned));
    // Postgres' own words are compared only between servers of one major version.
    let comparable =
        |line: &&String| version(line).is_none_or(|v| here.contains(v) && there.contains(v));
    let lost = pinned.difference(&made).filter(comparable);
    let new = made.difference(&pinned).filter(comparable);
    let differ: Vec<String> = lost
        .map(|line| format!("- {line}"))
        .chain(new.map(|line| format!("+ {line}")))
        .collect();
    assert!(
        differ.is_empty(),
        "the migrations make another schema than {PINNED} describes (- pinned, + made):\n{}\n\
         If that is meant, renew the file: {BLESS}=1 cargo test --test it the_schema_is_as_pinned",
        differ.join("\n")
    );
}

/// Returns the major version of Postgres in whose words a line is, if it is in such words.
fn version(line: &str) -> Option<&str> {
    let (version, _) = line.strip_prefix("text on ")?.split_once(':')?;
    Some(version)
}
