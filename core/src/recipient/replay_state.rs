//! The state that messages leave behind while they are replayed: sends by list, claims, open
//! digests, and what is due later.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::address::RecipientKey;
use super::candidate::{Candidate, CapList, NORMAL, Origin};
use super::caps::{CapRules, CapWindow, give_back, noted_at};
use super::collectors::collectors;
use super::dedup::{DedupClaim, DedupKey};
use super::digest::{Arrival, COALESCED, DigestOverflow, DigestType, OpenDigest};
use super::gates::{CapTimes, GatePolicy, GateRows, MessagePlan, cap_lists, plan, verify};
use super::logged::{GateVerdict, LoggedMessage};
use super::replay_tally::ReplayTally;
use super::rules::RecipientRules;

/// The time between two removals of state that no rule looks at any more.
const PRUNE_EVERY: SignedDuration = SignedDuration::from_hours(1);

/// The longest time for which the day of a recipient counts: a day of 25 hours, and a zone's width.
const DAY_S: i64 = 2 * 86_400;

/// The sends and reservations of one list.
#[derive(Debug, Default)]
struct ListState {
    sent: Vec<i64>,
    reserved: Vec<i64>,
    /// The longest window of its rules, in seconds.
    longest_s: i64,
}

/// The type and the recipient of an open digest, with its actor, or the category of messages that
/// slept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DigestId {
    pub(super) kind: Arc<str>,
    pub(super) recipient: RecipientKey,
    pub(super) of: Option<String>,
}

/// The recipient and the category of messages that may become one digest when they wake.
pub(super) type Sleepers = (RecipientKey, String);

/// A message that sleeps.
pub(super) type Sleeper = (Arc<LoggedMessage>, Origin);

/// An open digest with what is needed to close it.
#[derive(Debug)]
pub(super) struct OpenState {
    pub(super) open: OpenDigest,
    /// The newest item: it has the address and the profile.
    newest: Arc<LoggedMessage>,
    /// The items while they are too few for a digest, because they then go alone.
    few: Vec<Arc<LoggedMessage>>,
}

/// An event that is due later.
#[derive(Clone, Debug)]
enum Due {
    /// A held message goes, with the second that it reserved.
    Goes(Arc<LoggedMessage>, Origin, i64),
    /// A message that sleeps wakes, unless it has with another one.
    Wakes(Arc<LoggedMessage>),
    Closes(DigestId),
}

/// An event with its time; earlier ones and those that came first are due first.
#[derive(Clone, Debug)]
struct DueAt(Timestamp, u64, Due);

impl PartialEq for DueAt {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for DueAt {}

impl PartialOrd for DueAt {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DueAt {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A replay under one set of rules.
pub(super) struct GateReplay {
    pub(super) rules: Arc<RecipientRules>,
    lists: HashMap<RecipientKey, ListState>,
    /// Claims with the time at which they end.
    claims: HashMap<DedupKey, (DedupClaim, Timestamp)>,
    pub(super) digests: HashMap<DigestId, OpenState>,
    /// Messages that may become one digest when they wake.
    pub(super) asleep: HashMap<Sleepers, Vec<Sleeper>>,
    due: BinaryHeap<Reverse<DueAt>>,
    events: u64,
    pub(super) now: Timestamp,
    pruned_at: Timestamp,
    pub(super) tally: ReplayTally,
}

impl GateReplay {
    pub(super) fn new(rules: Arc<RecipientRules>) -> Self {
        Self {
            rules,
            lists: HashMap::new(),
            claims: HashMap::new(),
            digests: HashMap::new(),
            asleep: HashMap::new(),
            due: BinaryHeap::new(),
            events: 0,
            now: Timestamp::MIN,
            pruned_at: Timestamp::MIN,
            tally: ReplayTally::default(),
        }
    }

    /// Returns the number of lists and claims that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.lists.len(), self.claims.len())
    }

    /// Takes a message through the gates at `now`, and returns its outcome.
    pub(super) fn message(&mut self, message: &Arc<LoggedMessage>, now: Timestamp) -> GateVerdict {
        self.advance(now);
        if self.now.duration_since(self.pruned_at) >= PRUNE_EVERY {
            self.prune();
            self.pruned_at = self.now;
        }
        if !message.is_gated {
            self.tally.count(message, GateVerdict::Sent);
            return GateVerdict::Sent;
        }
        let (plan, lists) = self.planned(message, Origin::Sender, false);
        let verdict = GateVerdict::of(&plan);
        self.tally.count(message, verdict);
        match plan {
            MessagePlan::Send => {
                self.takes(&lists);
                self.claim(message, true);
            }
            MessagePlan::Held { .. } => {
                self.holds(message, Origin::Sender, &plan, &lists);
                self.claim(message, false);
            }
            MessagePlan::Collected { digest, arrival } => {
                self.collects(message, &digest, arrival, &lists);
            }
            MessagePlan::Refused { .. } | MessagePlan::Ended { .. } => {}
        }
        verdict
    }

    /// Lets everything happen that is due until `now`.
    pub(super) fn advance(&mut self, now: Timestamp) {
        while let Some(Reverse(next)) = self.due.peek() {
            if next.0 > now {
                break;
            }
            let Some(Reverse(DueAt(at, _, due))) = self.due.pop() else {
                break;
            };
            self.now = self.now.max(at);
            match due {
                Due::Goes(message, origin, reserved_s) => self.goes(&message, origin, reserved_s),
                Due::Wakes(message) => self.wakes(&message),
                Due::Closes(id) => self.closes(&id),
            }
        }
        self.now = self.now.max(now);
    }

    /// Makes the attempt at a held message.
    fn goes(&mut self, message: &Arc<LoggedMessage>, origin: Origin, reserved_s: i64) {
        for list in cap_lists(&candidate(message, origin), &self.rules) {
            if let Some(state) = self.lists.get_mut(&list.key) {
                give_back(&mut state.reserved, reserved_s);
            }
        }
        let (plan, lists) = self.planned(message, origin, true);
        match plan {
            MessagePlan::Send => {
                self.takes(&lists);
                if origin == Origin::Sender {
                    self.claim(message, true);
                }
            }
            MessagePlan::Held { .. } => self.holds(message, origin, &plan, &lists),
            _ => {
                // Items were counted as collected.
                if origin == Origin::Sender {
                    self.tally.recount(message, GateVerdict::of(&plan));
                    self.give_claim_back(message);
                }
            }
        }
    }

    /// Closes a digest, or keeps it open until its message may go.
    fn closes(&mut self, id: &DigestId) {
        let rules = self.rules.clone();
        let Some(state) = self.digests.get(id) else {
            return;
        };
        // An item that slid the end has an event of its own.
        if state.open.closes_at > self.now {
            return;
        }
        let (open, newest) = (state.open, state.newest.clone());
        let Some(kind) = rules.digest(&id.kind).filter(|_| open.items > 0) else {
            self.digests.remove(id);
            return;
        };
        let digest = digest_of(kind, id, &newest);
        let (plan, lists) = self.planned(&digest, Origin::Digest, false);
        match plan {
            // Few items stay together as well, because more may come.
            MessagePlan::Held { holds, .. } => {
                let until = holds.last().map_or(self.now, |hold| hold.until);
                if let Some(state) = self.digests.get_mut(id) {
                    state.open.put_off(until);
                    let at = state.open.closes_at;
                    self.at(at, Due::Closes(id.clone()));
                }
                return;
            }
            MessagePlan::Ended { .. } => {
                self.digests.remove(id);
                return;
            }
            _ if kind.goes_alone(open.items) => self.parts(id),
            _ => {
                let messages = match kind.overflow {
                    DigestOverflow::Count => 1,
                    DigestOverflow::Split => open.items.div_ceil(kind.max_items.max(1)),
                };
                (0..messages).for_each(|_| self.takes(&lists));
                let (category, tenant) = (&digest.args.category, &newest.tenant);
                self.tally.digests(category, tenant, messages as u64);
                self.digests.remove(id);
            }
        }
        if let Some(open) = kind.after_close(self.now) {
            self.opens(id.clone(), open, &newest, None);
        }
    }

    /// Lets the few items of a digest go alone.
    fn parts(&mut self, id: &DigestId) {
        let state = self.digests.remove(id);
        for item in state.into_iter().flat_map(|state| state.few) {
            let (plan, lists) = self.planned(&item, Origin::Item, false);
            match plan {
                MessagePlan::Send => self.takes(&lists),
                MessagePlan::Held { .. } => self.holds(&item, Origin::Item, &plan, &lists),
                _ => {}
            }
        }
    }

    /// Puts an item into its digest.
    pub(super) fn collects(
        &mut self,
        message: &Arc<LoggedMessage>,
        digest: &str,
        arrival: Arrival,
        lists: &[CapList],
    ) {
        let rules = self.rules.clone();
        let Some(kind) = rules.digest(digest) else {
            return;
        };
        let id = id_of(kind, message);
        match arrival {
            Arrival::Leads(open) => {
                self.takes(lists);
                self.claim(message, true);
                self.opens(id, open, message, None);
            }
            Arrival::Joins(open) => {
                if kind.dedup_items {
                    self.claim(message, true);
                }
                self.opens(id, open, message, Some(kind.min_items));
            }
        }
    }

    /// Notes a digest as it is now; with `min_items` the message became an item of it.
    pub(super) fn opens(
        &mut self,
        id: DigestId,
        open: OpenDigest,
        message: &Arc<LoggedMessage>,
        min_items: Option<usize>,
    ) {
        let state = self.digests.entry(id.clone()).or_insert_with(|| OpenState {
            // A time that no digest has, so that the first one is noted as well.
            open: OpenDigest {
                closes_at: Timestamp::MIN,
                ..open
            },
            newest: message.clone(),
            few: Vec::new(),
        });
        let moves = state.open.closes_at != open.closes_at;
        state.open = open;
        state.newest = message.clone();
        match min_items {
            Some(least) if open.items < least => state.few.push(message.clone()),
            _ => state.few = Vec::new(),
        }
        if moves {
            self.at(open.closes_at, Due::Closes(id));
        }
    }

    /// Keeps a held message until its time, with a reservation in each list unless it coalesces.
    pub(super) fn holds(
        &mut self,
        message: &Arc<LoggedMessage>,
        origin: Origin,
        plan: &MessagePlan,
        lists: &[CapList],
    ) {
        let MessagePlan::Held {
            holds,
            reserve_s,
            coalesces,
        } = plan
        else {
            return;
        };
        let until = holds.last().map_or(self.now, |hold| hold.until);
        if *coalesces {
            let sleepers = (message.key, message.args.category.clone());
            let asleep = self.asleep.entry(sleepers).or_default();
            asleep.push((message.clone(), origin));
            self.at(until, Due::Wakes(message.clone()));
            return;
        }
        for list in lists {
            let state = self.lists.entry(list.key).or_default();
            state.longest_s = longest_s(&list.caps);
            state.reserved.push(*reserve_s);
        }
        self.at(until, Due::Goes(message.clone(), origin, *reserve_s));
    }

    /// Notes a send in each list.
    pub(super) fn takes(&mut self, lists: &[CapList]) {
        for list in lists {
            let state = self.lists.entry(list.key).or_default();
            state.longest_s = longest_s(&list.caps);
            let last_s = state.sent.last().copied().unwrap_or(i64::MIN);
            let keep = list.caps.keep().max(1);
            let gone = (state.sent.len() + 1).saturating_sub(keep);
            state.sent.drain(..gone.min(state.sent.len()));
            state.sent.push(last_s.max(noted_at(self.now)));
        }
    }

    pub(super) fn claim(&mut self, message: &LoggedMessage, is_marked: bool) {
        let Some(key) = message.content else {
            return;
        };
        let window = self.rules.category(&message.args.category).dedup_window;
        let claim = DedupClaim {
            job: message.job,
            at: self.now,
            is_marked,
        };
        // One that is not marked ends when its message does.
        let ends = match is_marked {
            true => self.now.checked_add(window).unwrap_or(Timestamp::MAX),
            false => Timestamp::MAX,
        };
        self.claims.insert(key, (claim, ends));
    }

    pub(super) fn give_claim_back(&mut self, message: &LoggedMessage) {
        let Some(key) = message.content else {
            return;
        };
        if self
            .claims
            .get(&key)
            .is_some_and(|(claim, _)| claim.job == message.job)
        {
            self.claims.remove(&key);
        }
    }

    /// Returns the plan of a message at this time, by the state that the others left, with its lists.
    pub(super) fn planned(
        &self,
        message: &LoggedMessage,
        origin: Origin,
        attempts: bool,
    ) -> (MessagePlan, Vec<CapList>) {
        let lists = cap_lists(&candidate(message, origin), &self.rules);
        (self.planned_by(message, origin, attempts, &lists), lists)
    }

    /// Returns the plan of a message by these of its lists.
    pub(super) fn planned_by(
        &self,
        message: &LoggedMessage,
        origin: Origin,
        attempts: bool,
        lists: &[CapList],
    ) -> MessagePlan {
        let candidate = candidate(message, origin);
        let rules = &*self.rules;
        let times: Vec<CapTimes<'_>> = lists.iter().map(|list| self.times(list)).collect();
        let found: Vec<(&str, OpenDigest)> = collectors(&candidate, lists, rules)
            .into_iter()
            .filter_map(|kind| {
                let state = self.digests.get(&id_of(kind, message))?;
                Some((kind.name.as_str(), state.open))
            })
            .collect();
        let claim = message.content.and_then(|key| self.claims.get(&key));
        let rows = GateRows {
            claim: claim.map(|(claim, _)| *claim),
            digests: &found,
            times: &times,
            lists: Some(lists),
            ..GateRows::default()
        };
        let policy = GatePolicy {
            profile: &message.profile,
            defaults: &message.defaults,
            rules,
        };
        match attempts {
            true => verify(&candidate, policy, &rows, self.now),
            false => plan(&candidate, policy, &rows, self.now),
        }
    }

    fn times(&self, list: &CapList) -> CapTimes<'_> {
        self.lists
            .get(&list.key)
            .map_or_else(CapTimes::default, |state| CapTimes {
                sent: &state.sent,
                reserved: &state.reserved,
            })
    }

    fn at(&mut self, at: Timestamp, due: Due) {
        self.events += 1;
        self.due.push(Reverse(DueAt(at, self.events, due)));
    }

    /// Forgets what no rule looks at any more, so that a long log needs no more memory than its
    /// longest window.
    fn prune(&mut self) {
        let now_s = noted_at(self.now);
        self.lists.retain(|_, state| {
            let newest = state.sent.last().copied().unwrap_or(i64::MIN);
            !state.reserved.is_empty() || newest.saturating_add(state.longest_s) > now_s
        });
        self.claims.retain(|_, (_, ends)| *ends > self.now);
    }
}

/// Returns a message as the gates see it.
fn candidate(message: &LoggedMessage, origin: Origin) -> Candidate<'_> {
    let fields = &message.args.fields;
    Candidate {
        origin,
        job: Some(message.job),
        priority: message.priority,
        channel: message.args.channel,
        category: &message.args.category,
        template: fields.template_id.as_deref(),
        to: message.to.as_ref(),
        recipient: message.key,
        actor: fields.actor.as_deref(),
        digest: fields.digest.as_deref(),
        at_most: fields.at_most.as_ref(),
        local: message.times.local,
        accepted_at: message.times.accepted_at,
        deadline: message.times.deadline,
        is_cancelled: false,
    }
}

fn id_of(kind: &DigestType, message: &LoggedMessage) -> DigestId {
    DigestId {
        kind: kind.name.as_str().into(),
        recipient: message.key,
        of: message.args.fields.actor.clone().filter(|_| kind.per_actor),
    }
}

/// Returns the message of a digest, to the recipient of its newest item.
fn digest_of(kind: &DigestType, id: &DigestId, newest: &LoggedMessage) -> Arc<LoggedMessage> {
    let mut digest = newest.clone();
    digest.priority = NORMAL;
    digest.times.deadline = None;
    // Messages that slept keep their category.
    if kind.name == COALESCED {
        digest.args.fields.actor = None;
    } else {
        digest.args.category.clone_from(&kind.category);
        digest.args.fields.actor.clone_from(&id.of);
    }
    digest.args.fields.template_id = Some(kind.template.clone());
    digest.args.fields.digest = None;
    digest.args.fields.at_most = None;
    digest.args.fields.dedup_key = None;
    // A digest is compared with nothing.
    digest.content = None;
    Arc::new(digest)
}

fn longest_s(caps: &CapRules) -> i64 {
    let each = caps.0.iter().map(|rule| match rule.window {
        CapWindow::Rolling(span_s) => span_s,
        CapWindow::LocalDay => DAY_S,
    });
    each.max().unwrap_or_default()
}
