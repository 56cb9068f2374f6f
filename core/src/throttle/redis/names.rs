//! The set of throttle names, and a search for hashes that other programs wrote.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::RedisResult;
use tokio::time::Instant;

use super::adoption::Adoption;
use super::connection::Connection;
use super::layout::KNOBS;
use super::link::CallBound;
use super::reply::Text;
use super::store::{RedisStore, is_wrong_type, locked};
use crate::throttle::name::state_part;
use crate::throttle::{Error, Name};

/// The shortest time between two searches for hashes that other programs wrote.
const ADOPT_EVERY: Duration = Duration::from_secs(10);

/// The time budget of one search; the next continues at its end.
const ADOPT_BUDGET: Duration = Duration::from_millis(40);

/// The names that one call removes from the set.
const FORGOTTEN_AT_ONCE: usize = 1000;

impl RedisStore {
    /// Adds throttles to the set of names.
    pub(super) async fn note_names(&self, names: &[String]) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let mut add = redis::cmd("SADD");
        add.arg(self.layout.names()).arg(names);
        self.change_names(&add).await
    }

    /// Changes the set of names by `command`.
    pub(super) async fn change_names(&self, command: &redis::Cmd) -> Result<(), Error> {
        let change = |mut redis: Connection| async move { command.exec_async(&mut redis).await };
        self.servers
            .run(self.layout.names_slot(), self.operator_bound, change)
            .await
    }

    /// Returns all throttles that exist, including newly found ones, in the order of their names.
    pub(super) async fn known_names(&self) -> Result<Vec<Name>, Error> {
        let mut found = self.adopt().await?;
        let mut members = redis::cmd("SMEMBERS");
        members.arg(self.layout.names());
        let members = &members;
        let read = |mut redis: Connection| async move {
            members.query_async::<Vec<Text>>(&mut redis).await
        };
        let read = self
            .servers
            .run(self.layout.names_slot(), self.list_bound(), read)
            .await;
        let texts = match read {
            // Only Flyball uses this key: one that is not a set is rebuilt by a new search.
            Err(error) if is_wrong_type(&error.to_string()) => {
                let mut forget = redis::cmd("DEL");
                forget.arg(self.layout.names());
                self.change_names(&forget).await?;
                *locked(&self.adoption) = Adoption::default();
                found = self.adopt().await?;
                Vec::new()
            }
            // Only one server of many is lost: the throttles on the others can still be asked.
            Err(Error::Lost(_)) if !locked(&self.known).is_empty() => locked(&self.known)
                .iter()
                .map(|name| Text(name.to_string()))
                .collect(),
            read => read?,
        };
        let mut names: BTreeSet<Name> = texts
            .into_iter()
            .filter_map(|text| Name::or_pattern(text.0).ok())
            .collect();
        let found = found
            .into_iter()
            .filter_map(|name| Name::or_pattern(name).ok());
        let new: Vec<Name> = found.filter(|name| !names.contains(name)).collect();
        let texts: Vec<String> = new.iter().map(Name::to_string).collect();
        // A server that accepts no writes still tells what it has, and a later search finds these
        // again.
        let _ = self.note_names(&texts).await;
        names.extend(new);
        let all: Vec<Name> = names.into_iter().collect();
        let read = |slot, part| self.exist(slot, part);
        let answers = self.by_slots(&all, read).await;
        let (mut names, mut absent) = (Vec::new(), BTreeSet::new());
        let (mut answered, mut lost) = (false, None);
        for (name, exists) in all.into_iter().zip(answers) {
            match exists {
                Ok(Some(true)) => {
                    answered = true;
                    names.push(name);
                }
                // A throttle whose hash was deleted no longer exists.
                Ok(Some(false)) => {
                    answered = true;
                    absent.insert(name);
                }
                // No throttle of this server can have the name.
                Ok(None) => {}
                // A throttle on a lost server still exists.
                Err(error) => {
                    names.push(name);
                    lost = Some(error);
                }
            }
        }
        if let Some(error) = lost.filter(|_| !answered) {
            return Err(error);
        }
        let gone: Vec<Name> = {
            let mut before = locked(&self.absent);
            let gone = absent.intersection(&before).cloned().collect();
            *before = absent;
            gone
        };
        // The next list removes what could not be removed now.
        let _ = self.forget_names(&gone).await;
        locked(&self.known).clone_from(&names);
        Ok(names)
    }

    /// Removes throttles without knobs from the set of names: each list looks at all of it, and a
    /// program whose throttles expire adds to it without end. A throttle that was made in the
    /// meantime is put back.
    async fn forget_names(&self, gone: &[Name]) -> Result<(), Error> {
        for part in gone.chunks(FORGOTTEN_AT_ONCE) {
            let mut forget = redis::cmd("SREM");
            forget.arg(self.layout.names());
            for name in part {
                forget.arg(name.as_str());
            }
            self.change_names(&forget).await?;
            let read = |slot, part| self.exist(slot, part);
            let exist = self.by_slots(part, read).await;
            let back: Vec<String> = part
                .iter()
                .zip(exist)
                .filter(|(_, exists)| !matches!(exists, Ok(Some(false))))
                .map(|(name, _)| name.to_string())
                .collect();
            if !back.is_empty() {
                self.note_names(&back).await?;
            }
        }
        Ok(())
    }

    /// Returns the time limit of one call for a list of throttles.
    fn list_bound(&self) -> CallBound {
        CallBound::of_list(self.operator_bound)
    }

    /// Returns for each name, all of one slot, true if it has knobs.
    async fn exist(
        &self,
        slot: u16,
        names: Vec<&Name>,
    ) -> Result<Vec<Result<Option<bool>, Error>>, Error> {
        let mut pipe = redis::pipe();
        for name in names {
            match is_of_a_key(name.as_str()) {
                false => pipe.cmd("EXISTS").arg(self.layout.key(name, KNOBS, "")),
                true => pipe
                    .cmd("HEXISTS")
                    .arg(self.layout.key(name, KNOBS, ""))
                    .arg("rps"),
            };
        }
        pipe.ignore_errors();
        let pipe = &pipe;
        let read = |mut redis: Connection| async move {
            pipe.query_async::<Vec<RedisResult<bool>>>(&mut redis).await
        };
        let exist = self.servers.run(slot, self.list_bound(), read).await?;
        Ok(exist
            .into_iter()
            .map(|exists| Ok(Some(exists.unwrap_or(false))))
            .collect())
    }

    /// Searches for hashes that other programs wrote: one bounded stretch of SCAN, server after
    /// server.
    async fn adopt(&self) -> Result<Vec<String>, Error> {
        let begin = Instant::now();
        let mut place = *locked(&self.adoption);
        if place
            .ended
            .is_some_and(|ended| ended.elapsed() < ADOPT_EVERY)
        {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        place.ended = None;
        while place.ended.is_none() && begin.elapsed() <= ADOPT_BUDGET {
            let (next, names) = match self.scan(place.server, place.cursor).await {
                Some(Ok(scanned)) => scanned,
                // Only one server of many is lost: the next round searches it.
                Some(Err(_)) if self.servers.is_cluster() => (0, Vec::new()),
                Some(Err(error)) => return Err(error),
                None => {
                    place = Adoption {
                        ended: Some(Instant::now()),
                        ..Adoption::default()
                    };
                    break;
                }
            };
            found.extend(
                names
                    .into_iter()
                    .filter(|name| Name::or_pattern(name.as_str()).is_ok()),
            );
            place.cursor = next;
            if next == 0 {
                place.server += 1;
            }
        }
        *locked(&self.adoption) = place;
        Ok(found)
    }

    /// Returns the names of all hashes that look like knobs, written by any program.
    pub(super) async fn search_all(&self) -> Result<Vec<String>, Error> {
        let (mut server, mut cursor, mut found) = (0, 0, BTreeSet::new());
        while let Some(scanned) = self.scan(server, cursor).await {
            let (next, names) = scanned?;
            found.extend(names);
            cursor = next;
            if cursor == 0 {
                server += 1;
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Runs one step of SCAN on one server and returns the next cursor and the names found; `None`
    /// after the last server.
    async fn scan(&self, server: usize, cursor: u64) -> Option<Result<(u64, Vec<String>), Error>> {
        let (head, tail) = self.layout.around_names();
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(format!("{}*{tail}", literal(&head)))
            .arg("COUNT")
            .arg(1000);
        let scan = &scan;
        let read = |mut redis: Connection| async move {
            scan.query_async::<(u64, Vec<Text>)>(&mut redis).await
        };
        let scanned = self.servers.run_at(server, self.list_bound(), read).await?;
        let name = |key: &Text| {
            let name = key.0.strip_prefix(&head)?.strip_suffix(tail)?;
            (!is_of_a_key(name)).then(|| name.to_owned())
        };
        Some(scanned.map(|(next, keys)| (next, keys.iter().filter_map(name).collect())))
    }
}

/// Returns true if `name` may be the state of a rate-limit key whose end looks like knobs, because
/// keys are arbitrary texts. A throttle of such a name is known only if it is written through
/// Flyball.
fn is_of_a_key(name: &str) -> bool {
    name.rsplit_once(':')
        .is_some_and(|(above, _)| state_part(above).is_some())
}

/// Escapes the characters of `text` that are special in a glob pattern.
fn literal(text: &str) -> String {
    let escape = |c: char| {
        if "*?[]^\\".contains(c) {
            vec!['\\', c]
        } else {
            vec![c]
        }
    };
    text.chars().flat_map(escape).collect()
}
