//! The open connections, and the choice of the ones to close when the limit is reached.
//!
//! A connection either waits for a request or is being answered. A waiting one can be closed
//! without harm, the one that has waited longest first: a client that opens connections and sends
//! nothing makes room for others. Each address, or IPv6 network, has a share. If no connection can
//! be closed, a few more places are in reserve, on which only the health of the process is served.

use std::collections::{BTreeMap, HashMap};

use super::denied::Origin;

/// The number of reserved places.
const RESERVE: usize = 16;

/// The fewest connections that are allowed, whatever the limit of file descriptors is.
const FEWEST: usize = 8;

/// The number of a connection.
pub type Id = u64;

/// The kind of place that a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionClass {
    /// A place that counts towards the limit.
    Ordinary,
    /// A reserved place.
    Reserve,
}

/// The open connections, each with the means to close it.
#[derive(Debug)]
pub struct ConnectionSlots<T> {
    most: usize,
    share: usize,
    last: Id,
    rows: HashMap<Id, ConnectionEntry<T>>,
    /// The connections that wait for a request, longest first.
    waiting: BTreeMap<u64, Id>,
    turns: u64,
    ordinary: usize,
    origins: HashMap<Origin, usize>,
}

#[derive(Debug)]
struct ConnectionEntry<T> {
    origin: Origin,
    place: ConnectionClass,
    /// The turn among the waiting connections; none while a request is being answered.
    turn: Option<u64>,
    connection: T,
}

/// The result of the admission of a connection.
#[derive(Debug)]
pub struct Admitted<T> {
    /// The number and the place of the new connection; none where there was no room.
    pub seat: Option<(Id, ConnectionClass)>,
    /// The connection that must close to make room.
    pub sent_away: Option<T>,
}

impl<T> ConnectionSlots<T> {
    /// Creates an empty table of at most `most` ordinary places. Half of them may be of one origin.
    pub fn new(most: usize) -> Self {
        let most = most.max(FEWEST);
        Self {
            most,
            share: most / 2,
            last: 0,
            rows: HashMap::new(),
            waiting: BTreeMap::new(),
            turns: 0,
            ordinary: 0,
            origins: HashMap::new(),
        }
    }

    /// Returns the most connections that may be open, with those in reserve.
    pub fn bound(&self) -> usize {
        self.most + RESERVE
    }

    /// Returns the number of connections, and of those that wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.rows.len(), self.waiting.len())
    }

    /// Admits a connection. It waits for its first request.
    pub fn admit(&mut self, origin: Origin, connection: T) -> Admitted<T> {
        let of_origin = self.origins.get(&origin).copied().unwrap_or_default();
        let (is_full, own) = match of_origin >= self.share {
            true => (true, Some(origin)),
            false => (self.ordinary >= self.most, None),
        };
        if !is_full {
            return Admitted {
                seat: Some((
                    self.seat(origin, ConnectionClass::Ordinary, connection),
                    ConnectionClass::Ordinary,
                )),
                sent_away: None,
            };
        }
        if let Some(id) = self.longest(|row| {
            row.place == ConnectionClass::Ordinary && own.is_none_or(|own| row.origin == own)
        }) {
            let sent_away = self.remove(id);
            return Admitted {
                seat: Some((
                    self.seat(origin, ConnectionClass::Ordinary, connection),
                    ConnectionClass::Ordinary,
                )),
                sent_away,
            };
        }
        let sent_away = match self.rows.len() - self.ordinary < RESERVE {
            true => None,
            false => match self.longest(|row| row.place == ConnectionClass::Reserve) {
                Some(id) => self.remove(id),
                None => {
                    return Admitted {
                        seat: None,
                        sent_away: None,
                    };
                }
            },
        };
        Admitted {
            seat: Some((
                self.seat(origin, ConnectionClass::Reserve, connection),
                ConnectionClass::Reserve,
            )),
            sent_away,
        }
    }

    /// Marks a connection as busy with a request. False for a connection that must close: its
    /// request may no longer be answered.
    pub fn begins(&mut self, id: Id) -> bool {
        let Some(row) = self.rows.get_mut(&id) else {
            return false;
        };
        if let Some(turn) = row.turn.take() {
            self.waiting.remove(&turn);
        }
        true
    }

    /// Marks a connection as waiting: its answer has been sent.
    pub fn ends(&mut self, id: Id) {
        let turn = self.next_turn();
        if let Some(row) = self.rows.get_mut(&id)
            && row.turn.is_none()
        {
            row.turn = Some(turn);
            self.waiting.insert(turn, id);
        }
    }

    /// Removes a closed connection.
    pub fn leaves(&mut self, id: Id) {
        self.remove(id);
    }

    fn longest(&self, is_meant: impl Fn(&ConnectionEntry<T>) -> bool) -> Option<Id> {
        self.waiting
            .values()
            .copied()
            .find(|id| self.rows.get(id).is_some_and(&is_meant))
    }

    fn seat(&mut self, origin: Origin, place: ConnectionClass, connection: T) -> Id {
        self.last += 1;
        let turn = self.next_turn();
        self.waiting.insert(turn, self.last);
        self.rows.insert(
            self.last,
            ConnectionEntry {
                origin,
                place,
                turn: Some(turn),
                connection,
            },
        );
        if place == ConnectionClass::Ordinary {
            self.ordinary += 1;
            *self.origins.entry(origin).or_default() += 1;
        }
        self.last
    }

    fn remove(&mut self, id: Id) -> Option<T> {
        let row = self.rows.remove(&id)?;
        if let Some(turn) = row.turn {
            self.waiting.remove(&turn);
        }
        if row.place == ConnectionClass::Ordinary {
            self.ordinary -= 1;
            if let Some(count) = self.origins.get_mut(&row.origin) {
                *count -= 1;
                if *count == 0 {
                    self.origins.remove(&row.origin);
                }
            }
        }
        Some(row.connection)
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(number: u8) -> Origin {
        [number; 8]
    }

    /// Fills the table with connections of as many origins as there are places.
    fn full(most: u8) -> (ConnectionSlots<u64>, Vec<Id>) {
        let mut crowd = ConnectionSlots::new(most.into());
        let ids = (0..most)
            .map(|n| crowd.admit(from(n), n.into()).seat.unwrap().0)
            .collect();
        (crowd, ids)
    }

    #[test]
    fn who_has_waited_longest_makes_room_for_who_comes() {
        let (mut crowd, ids) = full(20);
        assert!(crowd.begins(ids[0]));
        crowd.ends(ids[0]);

        let admitted = crowd.admit(from(100), 100);

        assert_eq!(
            (admitted.sent_away, admitted.seat.unwrap().1),
            (Some(1), ConnectionClass::Ordinary)
        );
        assert!(!crowd.begins(ids[1]), "who was sent away is not answered");
        assert_eq!(crowd.counts(), (20, 20));
    }

    #[test]
    fn one_origin_has_a_share_and_takes_no_place_from_others() {
        let mut crowd = ConnectionSlots::new(20);
        for n in 0..1000 {
            assert_eq!(
                crowd.admit(from(1), n).seat.unwrap().1,
                ConnectionClass::Ordinary
            );
        }
        assert_eq!(crowd.counts().0, 10);
        for n in 0..10 {
            assert!(crowd.admit(from(10 + n), 0).sent_away.is_none());
        }
        assert_eq!(crowd.counts().0, 20);
    }

    #[test]
    fn who_is_being_answered_stays_and_a_reserve_is_left_for_questions_of_health() {
        let (mut crowd, ids) = full(20);
        assert!(ids.iter().all(|id| crowd.begins(*id)));
        for n in 0..1000 {
            let admitted = crowd.admit(from(50), n);
            assert_eq!(admitted.seat.unwrap().1, ConnectionClass::Reserve);
        }
        assert_eq!(crowd.counts(), (20 + RESERVE, RESERVE));
        assert!(crowd.rows.len() <= crowd.bound());
        let reserved: Vec<Id> = crowd.waiting.values().copied().collect();
        assert!(reserved.iter().all(|id| crowd.begins(*id)));
        assert!(crowd.admit(from(51), 0).seat.is_none());
        crowd.leaves(reserved[0]);
        assert!(crowd.admit(from(51), 0).seat.is_some());
    }

    #[test]
    fn nothing_is_left_of_connections_that_are_gone() {
        let (mut crowd, ids) = full(20);
        for id in ids {
            crowd.begins(id);
            crowd.leaves(id);
            crowd.ends(id);
            crowd.leaves(id);
        }
        assert_eq!(
            (crowd.counts(), crowd.ordinary, crowd.origins.len()),
            ((0, 0), 0, 0)
        );
    }
}
