//! A reader that turns WordNet's data files into documents.
//!
//! Each line is one entry: words with the same meaning, pointers to related entries and, after a
//! bar, their definition, often with examples. (`man 5 wndb` describes the format.)

use std::collections::{HashMap, HashSet, VecDeque};

/// The approximate length of a short document, in characters: the entry and its nearest relations.
const BODY_CHARS: usize = 600;
/// The number of relatives whose short documents a long document adds to its own.
///
/// Measured: a long document costs ten times as much to index as a short one.
pub const RELATIVES: usize = 17;
/// The most entries whose pointers are followed in the search for relatives.
const MAX_FOLLOWED: usize = 60;

/// All entries, in the order of the files.
#[derive(Debug, Default)]
pub struct Corpus {
    entries: Vec<Synset>,
    places: HashMap<(char, u32), usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The document's number, from 1 and without gaps.
    pub id: i64,
    /// The entry's first word.
    pub title: String,
    /// The entry with its nearest relations.
    pub body: String,
    /// The ids of related documents, nearest first; a long document adds their bodies.
    pub related: Vec<i64>,
}

#[derive(Debug)]
struct Synset {
    title: String,
    text: String,
    pointers: Vec<(char, u32)>,
}

impl Corpus {
    /// Adds the entries of one file and skips all other lines; `part` is the letter of its part of
    /// speech.
    pub fn read(&mut self, part: char, text: &str) {
        for line in text.lines() {
            if let Some((offset, entry)) = entry(line) {
                self.places.insert((part, offset), self.entries.len());
                self.entries.push(entry);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if no file held an entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the document at an index, counted from 0.
    pub fn document(&self, place: usize) -> Document {
        let relatives = self.relatives(place);
        let entry = &self.entries[place];
        let mut body = entry.text.clone();
        for relative in &relatives {
            if body.chars().count() >= BODY_CHARS {
                break;
            }
            body.push('\n');
            body.push_str(&self.entries[*relative].text);
        }
        let related = relatives.iter().map(|place| *place as i64 + 1).collect();
        Document {
            id: place as i64 + 1,
            title: entry.title.clone(),
            body,
            related,
        }
    }

    /// Returns the related entries: breadth first along the pointers, then neighbours in the file.
    ///
    /// There are always [`RELATIVES`] of them if the corpus is large enough, so that all long
    /// documents have about the same length.
    fn relatives(&self, place: usize) -> Vec<usize> {
        let mut seen = HashSet::from([place]);
        let mut queue = VecDeque::from([place]);
        let mut found = Vec::with_capacity(RELATIVES);
        for _ in 0..MAX_FOLLOWED {
            let Some(next) = queue.pop_front().filter(|_| found.len() < RELATIVES) else {
                break;
            };
            for to in self.entries[next]
                .pointers
                .iter()
                .filter_map(|p| self.places.get(p))
            {
                if seen.insert(*to) {
                    queue.push_back(*to);
                    found.push(*to);
                }
            }
        }
        let neighbours = (1..self.len())
            .map(|step| (place + step) % self.len())
            .filter(|n| !seen.contains(n));
        found.extend(
            neighbours
                .take(RELATIVES.saturating_sub(found.len()))
                .collect::<Vec<_>>(),
        );
        found.truncate(RELATIVES);
        found
    }
}

/// Parses one line of a data file:
///
/// `offset lexfile type count (word id)… pointers (symbol offset part source/target)… | gloss`.
fn entry(line: &str) -> Option<(u32, Synset)> {
    let (head, gloss) = line.split_once(" | ")?;
    let mut fields = head.split(' ');
    let offset = fields.next()?.parse().ok()?;
    let (_lexfile, _kind) = (fields.next()?, fields.next()?);
    let count = usize::from_str_radix(fields.next()?, 16).ok()?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        words.push(fields.next()?.replace('_', " "));
        fields.next()?;
    }
    let pointers = (0..fields.next()?.parse::<usize>().ok()?)
        .map(|_| {
            let (_symbol, offset, part, _words) = (
                fields.next()?,
                fields.next()?,
                fields.next()?,
                fields.next()?,
            );
            // Satellites ("s") live in the file of adjectives.
            let part = part.chars().next()?;
            Some((if part == 's' { 'a' } else { part }, offset.parse().ok()?))
        })
        .collect::<Option<_>>()?;
    let title = words.first()?.clone();
    Some((
        offset,
        Synset {
            title,
            text: format!("{}: {}", words.join(", "), gloss.trim()),
            pointers,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOUNS: &str = "  1 This software and database is being provided to you, the LICENSEE, by  \n\
        00000010 03 n 01 entity 0 001 ~ 00000030 n 0000 | that which is perceived  \n\
        00000020 03 n 02 flyball_governor 0 governor 0 002 @ 00000010 n 0000 + 00000005 v 0101 | regulates speed; \"it hunts\"  \n\
        00000030 03 n 01 machine 0 000 | a mechanical device  \n";

    fn corpus() -> Corpus {
        let mut corpus = Corpus::default();
        corpus.read('n', NOUNS);
        corpus.read('v', "00000005 30 v 01 govern 0 001 + 00000020 n 0101 01 + 08 00 | bring into conformity with rules  \n");
        corpus
    }

    #[test]
    fn an_entry_becomes_a_document_and_the_licence_does_not() {
        let corpus = corpus();

        let document = corpus.document(1);

        assert_eq!(corpus.len(), 4);
        assert_eq!(
            (document.id, document.title.as_str()),
            (2, "flyball governor")
        );
        assert!(
            document
                .body
                .starts_with("flyball governor, governor: regulates speed; \"it hunts\"\nentity: ")
        );
    }

    #[test]
    fn relatives_are_the_pointed_at_entries_and_then_the_neighbours() {
        assert_eq!(corpus().document(1).related, [1, 4, 3]);
        assert_eq!(corpus().document(2).related, [4, 1, 2]);
    }

    #[test]
    fn broken_lines_are_skipped_without_a_panic() {
        let mut corpus = Corpus::default();
        corpus.read(
            'n',
            "x | y\n00000001 03 n ff a 0 | short\n00000001 03 n 01 a 0 999 ~ | z\n\n",
        );

        assert!(corpus.is_empty());
    }
}
