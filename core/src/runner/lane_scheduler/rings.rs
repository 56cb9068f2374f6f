//! The throttles of the scheduler: their places, and the waits of those that were refused.

use super::LaneScheduler;
use super::ring::{Block, Ring};
use crate::runner::lane::{Lane, LaneStatus};
use crate::runner::waits::Waits;
use crate::throttle::Name;

impl LaneScheduler {
    /// Returns a lane, which is added if it is not known.
    pub(super) fn lane_of(
        &mut self,
        id: i64,
        throttle: Name,
        key: String,
        weight: f32,
    ) -> &mut Lane {
        let ring = match self.lanes.get(&id) {
            Some(lane) => lane.ring,
            None => {
                let ring = self.ring_of(throttle);
                self.rings[ring].lanes += 1;
                ring
            }
        };
        self.lanes
            .entry(id)
            .or_insert_with(|| Lane::new(ring, key, weight))
    }

    fn ring_of(&mut self, name: Name) -> usize {
        if let Some(place) = self.by_name.get(&name) {
            return *place;
        }
        let place = self.vacant.pop().unwrap_or(self.rings.len());
        self.by_name.insert(name.clone(), place);
        match self.rings.get_mut(place) {
            Some(vacant) => *vacant = Ring::new(name),
            None => self.rings.push(Ring::new(name)),
        }
        place
    }

    /// Returns false if the throttle was dropped since it had this place.
    pub(super) fn is_ring(&self, place: usize, name: &Name) -> bool {
        let ring = &self.rings[place];
        ring.lanes > 0 && ring.name == *name
    }

    /// Forgets lanes, and throttles of which no lane is left.
    pub(super) fn forget(&mut self, gone: &[i64]) {
        let mut has_dropped = false;
        for id in gone {
            self.stand(*id, LaneStatus::Idle);
            self.probing.remove(id);
            let Some(lane) = self.lanes.remove(id) else {
                continue;
            };
            let ring = &mut self.rings[lane.ring];
            ring.lanes -= 1;
            if ring.lanes == 0 {
                self.drop_ring(lane.ring);
                has_dropped = true;
            }
        }
        if has_dropped {
            let rings = &self.rings;
            self.open.retain(|place| rings[*place].is_listed);
            self.reporting.retain(|place| rings[*place].is_reporting);
        }
        // Work that looks at all lanes grows with the room for them.
        if self.lanes.capacity() / 8 > self.lanes.len() {
            self.lanes.shrink_to(2 * self.lanes.len());
        }
    }

    fn drop_ring(&mut self, place: usize) {
        self.block(place, None);
        self.probing_rings.remove(&place);
        let ring = &mut self.rings[place];
        (ring.is_listed, ring.is_reporting, ring.counts) = (false, false, false);
        self.by_name.remove(&ring.name);
        self.vacant.push(place);
    }

    /// Lets a throttle wait, or ends its wait.
    pub(super) fn block(&mut self, place: usize, block: Option<Block>) {
        let ring = &mut self.rings[place];
        let was_unknown = ring.is_unknown();
        let before = std::mem::replace(&mut ring.block, block);
        match (was_unknown, ring.is_unknown()) {
            (false, true) => self.due -= ring.all_ready(),
            (true, false) => self.due += ring.all_ready(),
            _ => {}
        }
        if let Some(before) = before {
            self.waits_of(&before).remove(place, &before.wait);
        }
        match block {
            Some(block) => self.waits_of(&block).insert(place, &block.wait),
            None => self.list(place),
        }
    }

    pub(super) fn waits_of(&mut self, block: &Block) -> &mut Waits<usize> {
        match block.is_unknown {
            true => &mut self.unknown,
            false => &mut self.blocked,
        }
    }

    /// Lists a throttle that may be asked now.
    pub(super) fn list(&mut self, place: usize) {
        let ring = &mut self.rings[place];
        if !ring.is_listed && ring.is_open() {
            ring.is_listed = true;
            self.open.push(place);
        }
    }

    /// Forgets the work in other workers' lanes of throttles that drop: of two workers at one lane,
    /// one might drop jobs for which the other was granted tokens.
    pub(super) fn leave_guests(&mut self) {
        let open = self.open.iter().map(|place| &self.rings[*place]);
        let guests: Vec<i64> = open
            .filter(|ring| ring.drops)
            .flat_map(|ring| ring.guests.iter().map(|(.., id)| *id))
            .collect();
        for id in guests {
            self.stand(id, LaneStatus::Idle);
        }
    }
}
