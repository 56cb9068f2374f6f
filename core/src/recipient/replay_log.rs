//! Replays the log of accepted messages: Postgres reads the next page while this one is parsed, and
//! the recipients are divided among threads, because no recipient's messages matter to another's.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use jiff::Timestamp;

use super::dry_run::{DryRun, DryRunReport};
use super::logged::LoggedMessage;
use super::postgres::{LogCursor, LogPage, LogParser, UnreadableLog};
use super::rules::RecipientRules;
use crate::postgres::Db;

/// The most threads; more of them would wait for Postgres.
const THREADS_MAX: usize = 8;

/// The pages that wait for a thread.
const WAITING_MAX: usize = 4;

/// Messages of one part, each with the newest time of the log until then.
type PartPage = Vec<(Timestamp, LoggedMessage)>;

/// The threads that replay, each with its part of the recipients.
struct Replays {
    pages: Vec<SyncSender<PartPage>>,
    threads: Vec<JoinHandle<DryRun>>,
}

impl Replays {
    fn begin(old: &Arc<RecipientRules>, new: &Arc<RecipientRules>) -> Self {
        let cores = std::thread::available_parallelism();
        let parts = cores.map_or(1, usize::from).min(THREADS_MAX);
        let one = |_| {
            let (sender, receiver) = sync_channel::<PartPage>(WAITING_MAX);
            let mut dry = DryRun::new(old.clone(), new.clone());
            let thread = std::thread::spawn(move || {
                for (now, message) in receiver.into_iter().flatten() {
                    dry.message_at(message, now);
                }
                dry
            });
            (sender, thread)
        };
        let (pages, threads) = (0..parts).map(one).unzip();
        Self { pages, threads }
    }

    /// Hands the messages of a page to their threads. Waits for them if they are behind.
    fn take(&self, newest: &mut Timestamp, messages: impl Iterator<Item = LoggedMessage>) {
        let mut parts: Vec<PartPage> = self.pages.iter().map(|_| Vec::new()).collect();
        for message in messages {
            // A message that is older than those before it counts at their time.
            *newest = (*newest).max(message.accepted_at);
            let part = message.part(parts.len());
            parts[part].push((*newest, message));
        }
        for (sender, part) in self.pages.iter().zip(parts) {
            // A thread that is gone has panicked, which is told when it is joined.
            let _ = sender.send(part);
        }
    }

    fn finish(self, until: Timestamp) -> DryRunReport {
        drop(self.pages);
        let ended = |thread: JoinHandle<DryRun>| match thread.join() {
            Ok(dry) => dry,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        DryRun::finish_all(self.threads.into_iter().map(ended).collect(), until)
    }
}

/// The state that a page leaves to the next one.
struct Replayed {
    parser: LogParser,
    replays: Replays,
    newest: Timestamp,
}

/// Replays the messages from `since` and before `until` under two sets of rules. Returns the report
/// and the number of messages and profiles that cannot be read.
pub async fn replay_log(
    db: &Db,
    since: Timestamp,
    until: Timestamp,
    old: Arc<RecipientRules>,
    new: Arc<RecipientRules>,
) -> Result<(DryRunReport, u64), UnreadableLog> {
    let mut cursor = LogCursor::open(db.clone(), since, until).await?;
    let mut replayed = Replayed {
        parser: LogParser::open(db).await?,
        replays: Replays::begin(&old, &new),
        newest: Timestamp::MIN,
    };
    let mut page = cursor.page().await?;
    while let Some(read) = page {
        let (next, done) = tokio::join!(cursor.page(), replay_page(db, replayed, read));
        (page, replayed) = (next?, done?);
    }
    let unreadable = replayed.parser.unreadable;
    let finish = move || replayed.replays.finish(until);
    Ok((in_thread(finish).await, unreadable))
}

async fn replay_page(
    db: &Db,
    mut replayed: Replayed,
    page: LogPage,
) -> Result<Replayed, UnreadableLog> {
    let (mut replayed, parsed) = in_thread(move || {
        let parsed = replayed.parser.parse(&page);
        (replayed, parsed)
    })
    .await;
    let parsed = parsed?;
    let missing = parsed.missing(db).await?;
    Ok(in_thread(move || {
        let messages = replayed.parser.complete(parsed, missing);
        replayed.replays.take(&mut replayed.newest, messages);
        replayed
    })
    .await)
}

/// Runs work that takes long, beside what waits for Postgres.
async fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // Nobody aborts it.
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}
