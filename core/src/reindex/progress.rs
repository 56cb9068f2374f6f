//! Progress of a reindex, for its checkpoint and for people.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::jobs::Checkpoint;

/// Most refused documents that are listed by id; more are only counted.
pub const LISTED: usize = 20;
/// The period over which the note's rate is measured.
const RATE_OVER: Duration = Duration::from_secs(30);

/// A document that the index refused for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedDocument {
    /// Its id, or its key if it has none.
    pub id: String,
    /// The index's reason.
    pub reason: String,
}

impl RefusedDocument {
    /// Creates an entry of the list, with texts that people and Postgres can read.
    pub fn new(id: &str, reason: &str) -> Self {
        Self {
            id: legible(id),
            reason: legible(reason),
        }
    }
}

/// The cursor of a reindex as the checkpoint stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReindexCursor {
    /// The key up to which every document is stored or refused; `None` at the beginning.
    pub key: Option<Vec<String>>,
    /// A digest of the rows and the sink to which the key belongs.
    pub route: String,
    /// The identity of the index that has the documents up to the key, if it is known.
    pub index: Option<String>,
    /// Documents refused so far.
    pub refused: u64,
    /// The first refused documents, at most [`LISTED`]; while changes are copied the last ones, the
    /// newest first.
    pub listed: Vec<RefusedDocument>,
    /// True once the end was reached and the job is dead; if it is retried, it starts over.
    pub finished: bool,
    /// True once everything is copied. An attempt after that, because the end was not recorded,
    /// finds nothing left to do.
    pub complete: bool,
    /// The position in the source's log of changes up to which every change is stored; `None` for a
    /// job that does not follow. During the scan it is that of the scan's start.
    pub position: Option<String>,
    /// True if the scan is over and changes are copied.
    pub scanned: bool,
    /// True once the index was made visible, which a job does once: meanwhile a later job may have
    /// moved the alias on.
    pub published: bool,
    /// Scans that the job began by itself, because changes were lost, since it last was up to date
    /// with its source.
    pub rescans: u32,
}

/// Counts documents and estimates the time left.
#[derive(Debug)]
pub struct Progress {
    pub mark: ReindexCursor,
    /// Documents behind the cursor.
    pub done: u64,
    /// Documents in the source, as estimated at the start.
    pub total: Option<u64>,
    /// The current obstacle, for the note.
    pub trouble: Option<String>,
    /// The delay of a job that follows, for the note.
    pub following: Option<String>,
    samples: VecDeque<(Duration, u64)>,
}

impl Progress {
    /// Continues from a checkpoint, or starts again.
    pub fn resume(checkpoint: Option<Checkpoint>) -> Self {
        let read = checkpoint.and_then(|c| {
            Some((
                serde_json::from_value::<ReindexCursor>(c.cursor).ok()?,
                c.done,
                c.total,
            ))
        });
        match read {
            Some((mark, done, total)) if !mark.finished => Self {
                mark: ReindexCursor {
                    complete: false,
                    ..mark
                },
                done: done.max(0) as u64,
                total: total.map(|t| t.max(0) as u64),
                trouble: None,
                following: None,
                samples: VecDeque::new(),
            },
            _ => Self {
                mark: ReindexCursor::default(),
                done: 0,
                total: None,
                trouble: None,
                following: None,
                samples: VecDeque::new(),
            },
        }
    }

    /// Starts over from the beginning of the source.
    pub fn restart(&mut self) {
        self.mark = ReindexCursor {
            route: std::mem::take(&mut self.mark.route),
            published: self.mark.published,
            rescans: self.mark.rescans + 1,
            ..ReindexCursor::default()
        };
        self.done = 0;
        self.total = None;
        self.following = None;
        self.samples.clear();
    }

    /// Moves the cursor over `count` documents to `key`.
    pub fn advance(&mut self, count: u64, key: &[String]) {
        self.done += count;
        self.mark.key = Some(key.to_vec());
    }

    /// Counts a refused document, and lists it if it is among the first. A job that follows runs
    /// for months, so it lists the last ones.
    pub fn refuse(&mut self, document: RefusedDocument) {
        self.mark.refused += 1;
        let place = if self.mark.scanned {
            0
        } else {
            self.mark.listed.len()
        };
        self.mark.listed.insert(place, document);
        self.mark.listed.truncate(LISTED);
    }

    /// Returns the checkpoint, `since` the start of this attempt.
    pub fn checkpoint(&mut self, since: Duration) -> Checkpoint {
        self.samples.push_back((since, self.done));
        while self.samples.len() > 2 && self.samples[1].0 + RATE_OVER <= since {
            self.samples.pop_front();
        }
        Checkpoint {
            cursor: serde_json::to_value(&self.mark).unwrap_or_default(),
            done: i64::try_from(self.done).unwrap_or(i64::MAX),
            total: self.total.and_then(|t| i64::try_from(t).ok()),
            note: self.note(),
        }
    }

    /// Returns one line for people: `12,000 of about 50,000 documents (24 %), 118/s, about 5 min 22
    /// s left; 1 refused: …`.
    fn note(&self) -> String {
        let mut note = match self.total {
            _ if self.is_at_end() => format!("{} documents, all read", thousands(self.done)),
            _ if self.mark.scanned => format!("{} documents and changes", thousands(self.done)),
            Some(total) => format!(
                "{} of about {} documents ({:.0} %)",
                thousands(self.done),
                thousands(total.max(self.done)),
                self.percent(total)
            ),
            None => format!("{} documents", thousands(self.done)),
        };
        if let Some(rate) = self.rate().filter(|_| !self.is_at_end()) {
            note += &format!(", {rate:.*}/s", usize::from(rate < 10.0));
            let left = self
                .total
                .filter(|total| *total > self.done && !self.mark.scanned);
            if let Some(total) = left.filter(|_| rate > 0.0) {
                note += &format!(", about {} left", spell((total - self.done) as f64 / rate));
            }
        }
        for more in self
            .following
            .iter()
            .chain(&self.refusals())
            .chain(&self.trouble)
        {
            note += &format!("; {more}");
        }
        note
    }

    /// Returns a summary of refused documents, if there are any.
    pub fn refusals(&self) -> Option<String> {
        let shown: Vec<_> = self
            .mark
            .listed
            .iter()
            .take(3)
            .map(|r| format!("{}: {}", r.id, r.reason))
            .collect();
        (self.mark.refused > 0).then(|| {
            format!(
                "{} refused ({})",
                thousands(self.mark.refused),
                shown.join("; ")
            )
        })
    }

    fn is_at_end(&self) -> bool {
        self.mark.finished || self.mark.complete
    }

    fn percent(&self, total: u64) -> f64 {
        if self.done >= total {
            return 100.0;
        }
        (100.0 * self.done as f64 / total as f64).min(99.0)
    }

    /// Returns the recent rate, in documents per second; `None` while less than a second was
    /// measured.
    pub fn rate(&self) -> Option<f64> {
        let ((from, was), (to, is)) = (self.samples.front()?, self.samples.back()?);
        let seconds = to.saturating_sub(*from).as_secs_f64();
        (seconds >= 1.0).then(|| is.saturating_sub(*was) as f64 / seconds)
    }
}

/// Returns the first 200 characters of a text, with U+FFFD in the place of control characters.
/// Postgres cannot store NUL, and with it no later checkpoint.
fn legible(text: &str) -> String {
    let shown = text.chars().take(200).map(|c| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    });
    shown.collect()
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn spell(seconds: f64) -> String {
    let s = seconds.round().min(1e9) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..172_800 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(n: u64) -> Vec<String> {
        vec![n.to_string()]
    }

    #[test]
    fn the_note_reports_count_share_rate_and_time_left() {
        let mut progress = Progress::resume(None);
        progress.total = Some(50_000);
        progress.checkpoint(Duration::ZERO);
        progress.advance(12_000, &keys(12_000));

        let checkpoint = progress.checkpoint(Duration::from_secs(100));

        assert_eq!(
            checkpoint.note,
            "12,000 of about 50,000 documents (24 %), 120/s, about 5 min 17 s left"
        );
        assert_eq!((checkpoint.done, checkpoint.total), (12_000, Some(50_000)));
    }

    #[test]
    fn a_checkpoint_is_resumed_where_it_was_and_a_finished_one_starts_over() {
        let mut progress = Progress::resume(None);
        progress.advance(7, &keys(7));
        progress.refuse(RefusedDocument::new("3", "mapper_parsing_exception"));

        let mut resumed = Progress::resume(Some(progress.checkpoint(Duration::ZERO)));
        assert_eq!((&resumed.mark, resumed.done), (&progress.mark, 7));

        resumed.mark.complete = true;
        let mut resumed = Progress::resume(Some(resumed.checkpoint(Duration::ZERO)));
        assert_eq!((&resumed.mark, resumed.done), (&progress.mark, 7));

        resumed.mark.finished = true;
        let restarted = Progress::resume(Some(resumed.checkpoint(Duration::ZERO)));
        assert_eq!(
            (restarted.mark, restarted.done),
            (ReindexCursor::default(), 0)
        );
    }

    #[test]
    fn a_scan_that_begins_again_is_counted_and_leaves_the_index_visible() {
        let mut progress = Progress::resume(None);
        progress.advance(7, &keys(7));
        (progress.mark.scanned, progress.mark.published) = (true, true);
        progress.mark.route = "0a1b".to_owned();

        progress.restart();

        let mark = ReindexCursor {
            route: "0a1b".to_owned(),
            published: true,
            rescans: 1,
            ..ReindexCursor::default()
        };
        assert_eq!((&progress.mark, progress.done), (&mark, 0));
    }

    #[test]
    fn a_cursor_that_cannot_be_read_starts_over_rather_than_skipping() {
        let strange = Checkpoint {
            cursor: serde_json::json!({"key": 7}),
            done: 5,
            total: None,
            note: String::new(),
        };

        assert_eq!(Progress::resume(Some(strange)).mark.key, None);
    }

    #[test]
    fn many_refusals_are_counted_and_the_first_are_listed() {
        let mut progress = Progress::resume(None);
        for n in 0..1000 {
            progress.refuse(RefusedDocument::new(&n.to_string(), "too strange"));
        }

        assert_eq!(
            (progress.mark.refused, progress.mark.listed.len()),
            (1000, LISTED)
        );
        assert!(
            progress
                .checkpoint(Duration::ZERO)
                .note
                .ends_with("1,000 refused (0: too strange; 1: too strange; 2: too strange)")
        );
    }

    #[test]
    fn the_last_refusals_are_listed_while_changes_are_copied() {
        let mut progress = Progress::resume(None);
        for n in 0..30 {
            progress.refuse(RefusedDocument::new(&n.to_string(), "too strange"));
        }
        progress.mark.scanned = true;
        for n in 30..32 {
            progress.refuse(RefusedDocument::new(&n.to_string(), "too strange"));
        }

        let listed: Vec<&str> = progress.mark.listed.iter().map(|r| &*r.id).collect();
        assert_eq!(
            (listed.len(), &listed[..3]),
            (LISTED, &["31", "30", "0"][..])
        );
    }

    #[test]
    fn control_characters_of_a_refused_document_are_replaced() {
        let mut progress = Progress::resume(None);
        progress.refuse(RefusedDocument::new("a\0b", "failed\nto parse [\0]"));

        let listed = &progress.mark.listed[0];
        assert_eq!(
            (&*listed.id, &*listed.reason),
            ("a\u{fffd}b", "failed to parse [\u{fffd}]")
        );
    }

    #[test]
    fn an_estimate_that_was_too_low_never_shows_more_than_all() {
        let mut progress = Progress::resume(None);
        progress.total = Some(10);
        progress.advance(12, &keys(12));

        assert!(
            progress
                .checkpoint(Duration::ZERO)
                .note
                .starts_with("12 of about 12 documents (100 %)")
        );
    }
}
