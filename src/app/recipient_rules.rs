//! The rules for recipients: read at the start, and again when their file changes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::config::{Error, FileError, FileProblem};
use crate::postgres::Db;
use crate::recipient::live_rules::LiveRules;
use crate::recipient::postgres::{open_types, publish_rules};
use crate::recipient::rules::RecipientRules;
use crate::service::{LoopOptions, periodic};

/// Time between two checks of the file.
const REREAD_INTERVAL: Duration = Duration::from_secs(2);

/// The file of the rules, and the rules in force.
pub(super) struct RulesFile {
    /// The path; empty for the defaults.
    path: String,
    live: LiveRules,
    /// The text of the rules in force.
    text: String,
    /// The text that the last check found, or the error of the file.
    seen: String,
    /// The problems that were logged.
    reported: Vec<String>,
    valid: Gauge,
}

/// The outcome of one check of the file.
#[derive(Debug, PartialEq)]
enum Look {
    /// The rules in force are those of the file.
    Unchanged,
    /// The text differs from that of the check before, so that it may be half written.
    Unsettled,
    /// The file has rules that can be used as far as the file tells.
    Changed(Box<RecipientRules>),
    /// The file cannot be used.
    Broken(Vec<String>),
}

impl RulesFile {
    /// Reads the file at the start. Everything that is wrong with it stops the process.
    pub(super) fn read(path: &str) -> Result<Self, Error> {
        let text = read(path).map_err(|source| Error::Unreadable {
            file: format!("{path} (setting recipients_file)"),
            source,
        })?;
        let mut rules = RecipientRules::parse(path, &text)?;
        rules.origin.changed_at = changed_at(path);
        Ok(Self {
            path: path.to_owned(),
            live: LiveRules::new(rules),
            seen: text.clone(),
            text,
            reported: Vec::new(),
            valid: Gauge::default(),
        })
    }

    /// Returns the rules in force, which change with the file.
    pub(super) fn live(&self) -> LiveRules {
        self.live.clone()
    }

    /// Refuses rules without a type of which digests are open, and registers the metric.
    pub(super) async fn open(&mut self, db: &Db, registry: &mut Registry) -> anyhow::Result<()> {
        let problems = self.absent_types(&self.live.load(), &open_types(db).await?);
        if !problems.is_empty() {
            return Err(FileError(problems).into());
        }
        publish_rules(db.clone(), &self.live.load()).await?;
        self.valid.set(1);
        registry.register(
            "flyball_recipient_rules_valid",
            "1 if the rules for recipients are those of their file, 0 while older ones hold",
            self.valid.clone(),
        );
        Ok(())
    }

    /// Looks at the file, and puts its rules into force if they can be used. A Postgres that does
    /// not answer leaves the rules as they are until the next check.
    async fn tick(&mut self, db: &Db) -> anyhow::Result<()> {
        let path = self.path.clone();
        let found = tokio::task::spawn_blocking(move || read(&path)).await?;
        let problems = match self.look(found) {
            Look::Unsettled => return Ok(()),
            Look::Unchanged => Vec::new(),
            Look::Broken(problems) => problems,
            Look::Changed(mut rules) => {
                rules.origin.changed_at = changed_at(&self.path);
                let problems = self.absent_types(&rules, &open_types(db).await?);
                if problems.is_empty() {
                    publish_rules(db.clone(), &rules).await?;
                    self.live.store(*rules);
                    self.text.clone_from(&self.seen);
                    tracing::info!(file = self.path, "the rules for recipients have changed");
                }
                problems.iter().map(ToString::to_string).collect()
            }
        };
        self.report(problems);
        Ok(())
    }

    fn look(&mut self, found: std::io::Result<String>) -> Look {
        let shown = match &found {
            Ok(text) => text.clone(),
            Err(error) => format!("{}: cannot be read: {error}", self.path),
        };
        if found.is_ok() && shown == self.text {
            self.seen = shown;
            return Look::Unchanged;
        }
        // A file that is just being written is cut or empty, and an empty one means the defaults.
        if shown != self.seen {
            self.seen = shown;
            return Look::Unsettled;
        }
        match found.map(|text| RecipientRules::parse(&self.path, &text)) {
            Ok(Ok(rules)) => Look::Changed(Box::new(rules)),
            Ok(Err(error)) => Look::Broken(error.0.iter().map(ToString::to_string).collect()),
            Err(_) => Look::Broken(vec![shown]),
        }
    }

    /// Returns a problem for each open type that the rules do not have: nothing could close its
    /// digests.
    fn absent_types(&self, rules: &RecipientRules, open: &[String]) -> Vec<FileProblem> {
        let absent = open.iter().filter(|name| rules.digest(name).is_none());
        let problem = |name: &String| FileProblem {
            file: match self.path.as_str() {
                "" => "recipients_file".to_owned(),
                path => path.to_owned(),
            },
            line: 0,
            key: format!("digests.{name}"),
            reason: "must stay while digests of this type are open".to_owned(),
        };
        absent.map(problem).collect()
    }

    /// Logs each problem once, for as long as it stays the same.
    fn report(&mut self, problems: Vec<String>) {
        let before: BTreeSet<&String> = self.reported.iter().collect();
        for problem in problems.iter().filter(|problem| !before.contains(problem)) {
            tracing::error!(%problem, "the rules for recipients cannot be used; the older ones hold");
        }
        self.valid.set(i64::from(problems.is_empty()));
        self.reported = problems;
    }
}

fn read(path: &str) -> std::io::Result<String> {
    if path.is_empty() {
        return Ok(String::new());
    }
    std::fs::read_to_string(path)
}

/// Returns the time of the last change of a file; `None` if it cannot be read.
pub(crate) fn changed_at(path: impl AsRef<Path>) -> Option<Timestamp> {
    let time = std::fs::metadata(path).and_then(|file| file.modified());
    time.ok().and_then(|time| Timestamp::try_from(time).ok())
}

/// Looks at the file again and again. Its text is compared and not its time alone: two changes can
/// have the same time, and a file that is put in place of another an older one.
pub(super) async fn run(file: RulesFile, db: Db, cancel: CancellationToken) {
    if file.path.is_empty() {
        return cancel.cancelled().await;
    }
    let file = Arc::new(tokio::sync::Mutex::new(file));
    let options = LoopOptions {
        name: "recipient rules",
        every: REREAD_INTERVAL,
        wake: None,
    };
    periodic(options, cancel, || {
        let (file, db) = (file.clone(), db.clone());
        async move { file.lock().await.tick(&db).await }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_force(text: &str) -> RulesFile {
        RulesFile {
            path: "recipients.toml".to_owned(),
            live: LiveRules::new(RecipientRules::parse("recipients.toml", text).unwrap()),
            text: text.to_owned(),
            seen: text.to_owned(),
            reported: Vec::new(),
            valid: Gauge::default(),
        }
    }

    #[test]
    fn a_text_counts_once_it_was_found_twice() {
        let mut file = in_force("");
        let text = || Ok("release_share = 0.25".to_owned());
        assert_eq!(file.look(text()), Look::Unsettled);
        assert!(matches!(file.look(text()), Look::Changed(_)));
        assert_eq!(file.look(Ok(String::new())), Look::Unchanged);
        assert_eq!(file.look(text()), Look::Unsettled, "it went away meanwhile");
    }

    #[test]
    fn a_broken_file_names_every_problem_with_its_line() {
        let mut file = in_force("");
        let text = || Ok("release_share = 2\n[categories.news]\nquiet = \"never\"\n".to_owned());
        file.look(text());
        let Look::Broken(problems) = file.look(text()) else {
            panic!("the file is broken");
        };
        assert_eq!(
            problems,
            [
                "recipients.toml:1: release_share: must be a number above 0 and at most 1, not 2",
                "recipients.toml:3: categories.news.quiet: must be hold, digest_on_wake, drop or \
                 always, not \"never\"",
            ]
        );
        file.report(problems.clone());
        assert_eq!((file.valid.get(), &file.reported), (0, &problems));
        file.report(Vec::new());
        assert_eq!((file.valid.get(), file.reported.len()), (1, 0));
    }

    #[test]
    fn a_file_that_is_gone_keeps_the_rules() {
        let mut file = in_force("");
        let gone = || Err(std::io::Error::from(std::io::ErrorKind::NotFound));
        file.look(gone());
        let problem = "recipients.toml: cannot be read: entity not found".to_owned();
        assert_eq!(file.look(gone()), Look::Broken(vec![problem]));
    }

    #[test]
    fn a_type_with_open_digests_must_stay() {
        let file = in_force("");
        let open = ["new-comment".to_owned(), "old-type".to_owned()];
        let problems = file.absent_types(&file.live.load(), &open);
        assert_eq!(
            FileError(problems).to_string(),
            "recipients.toml: digests.old-type: must stay while digests of this type are open"
        );
    }
}
