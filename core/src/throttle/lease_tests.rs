use super::RateLimit;
use proptest::prelude::*;

use super::*;

const HORIZON: Duration = MAX_HORIZON;

fn lanes(want: u32, cost: f64) -> Vec<LaneRequest> {
    vec![LaneRequest {
        key: "k".to_owned(),
        want,
        cost,
        held: 0,
    }]
}

/// Returns the answer of a store at `rps` that grants everything, including the lease.
fn yes(lanes: &[LaneRequest], leased: u32, rps: f64, seq: u64) -> AcquireResponse {
    let interval = if rps > 0.0 { 1e6 / rps } else { 0.0 };
    let grant = |granted, cost: f64| Grant {
        granted,
        charge_us: [cost * interval, 0.0].into(),
        ..Grant::default()
    };
    let more = (leased > 0).then(|| grant(leased, 1.0));
    let lanes = lanes
        .iter()
        .map(|lane| grant(lane.want, lane.cost))
        .chain(more)
        .collect();
    AcquireResponse {
        lanes,
        effective_rps: RateLimit::new(rps),
        at_us: 1_000_000,
        seq,
        levels_decide: true,
        ..AcquireResponse::default()
    }
}

/// Asks as a process does: the lease first, then a store that grants everything. Returns true if
/// the lease answered, and the rests.
fn one(
    holding: &mut Holding,
    want: u32,
    rps: f64,
    seq: u64,
    now: Instant,
) -> (bool, Vec<LeaseRemainder>) {
    let lanes = lanes(want, 1.0);
    if holding.spend(&lanes, now).is_some() {
        return (true, Vec::new());
    }
    let asking = holding.ask(&lanes, 1, now);
    let rests = holding.answered(
        &asking,
        &lanes,
        &mut yes(&lanes, asking.leased, rps, seq),
        now,
    );
    (false, rests)
}

/// Returns a holding with a new lease, after a horizon in which one token was spent each
/// millisecond, and the time.
fn busy(rps: f64) -> (Holding, Instant) {
    let mut now = Instant::now();
    let mut holding = Holding::new(HORIZON, now);
    while holding.lease.is_none() {
        one(&mut holding, 1, rps, 1, now);
        now += Duration::from_millis(1);
    }
    (holding, now)
}

#[test]
fn who_has_spent_nothing_lately_holds_nothing() {
    let now = Instant::now();
    let mut holding = Holding::new(HORIZON, now);
    for n in 0..20 {
        let (leased, rests) = one(&mut holding, 1000, 1e6, 1, now + n * Duration::from_secs(1));
        assert!(!leased && rests.is_empty() && holding.lease.is_none());
    }
}

#[test]
fn a_lease_is_what_was_spent_lately_and_at_most_this_process_s_part_of_the_slowest_rate() {
    let leased = |rps, workers| {
        let (mut holding, now) = busy(rps);
        holding.lease = None;
        holding.ask(&lanes(1, 1.0), workers, now).leased
    };

    assert!((249..=251).contains(&leased(1e6, 1)), "{}", leased(1e6, 1));
    assert!((249..=251).contains(&leased(-1.0, 1)));
    assert_eq!(
        [leased(400.0, 1), leased(400.0, 4), leased(400.0, 80)],
        [100, 25, 0]
    );
}

#[test]
fn nothing_is_leased_while_others_wait() {
    let (mut holding, now) = busy(1e6);
    holding.lease = None;
    let asking = holding.ask(&lanes(1, 1.0), 1, now);
    let wanted = lanes(1, 1.0);
    let mut short = yes(&wanted, asking.leased, 1e6, 1);
    short.lanes[1].granted -= 1;
    holding.answered(&asking, &wanted, &mut short, now);
    holding.lease = None;

    assert_eq!(
        short.lanes.len(),
        1,
        "whoever asked sees its own lanes alone"
    );
    assert_eq!(holding.ask(&lanes(1, 1.0), 1, now + HORIZON).leased, 0);
}

#[test]
fn another_seq_or_another_rate_ends_the_lease_and_its_rest_goes_back() {
    for (rps, seq) in [(1e6, 2), (10.0, 1), (0.0, 1)] {
        let (mut holding, now) = busy(1e6);
        let lease = holding.lease.as_ref().unwrap();
        let (left, interval) = (lease.left, lease.charge_us[0]);
        let asking = PendingLease {
            leased: 0,
            ..holding.ask(&lanes(1, 1.0), 1, now)
        };

        let rests = holding.answered(&asking, &[], &mut yes(&[], 0, rps, seq), now);

        assert_eq!(rests.len(), 1);
        assert_eq!(
            (rests[0].tokens, rests[0].grant.charge_us[0]),
            (left, left * interval)
        );
        assert!(holding.spend(&lanes(1, 1.0), now).is_none());
    }
}

#[test]
fn what_is_let_go_while_an_ask_is_under_way_is_not_held_by_its_answer() {
    let (mut holding, now) = busy(1e6);
    holding.lease = None;
    let asking = holding.ask(&lanes(1, 1.0), 1, now);
    assert!(asking.leased > 0);
    holding.let_go();

    let rests = holding.answered(&asking, &[], &mut yes(&[], asking.leased, 1e6, 1), now);

    assert_eq!(
        rests.iter().map(|rest| rest.tokens).sum::<f64>(),
        f64::from(asking.leased)
    );
    assert!(holding.spend(&lanes(1, 1.0), now).is_none());
    assert_eq!(
        holding.ask(&lanes(1, 1.0), 1, now).leased,
        0,
        "the next answer must say first that the levels decide"
    );
}

#[test]
fn a_lost_store_neither_ends_nor_renews_a_lease() {
    let (mut holding, now) = busy(1e6);
    let asking = holding.ask(&lanes(1, 1.0), 1, now);
    let mut lost = AcquireResponse {
        effective_rps: RateLimit::Unlimited,
        ..AcquireResponse::default()
    };
    holding.answered(&asking, &[], &mut lost, now);

    assert!(holding.spend(&lanes(1, 1.0), now).is_some());
    assert!(holding.spend(&lanes(1, 1.0), now + HORIZON).is_none());
    assert!(holding.over(now + HORIZON).is_some());
}

#[test]
fn a_key_with_something_of_its_own_is_never_served_from_a_lease() {
    let (mut holding, now) = busy(1e6);
    let asking = holding.ask(&lanes(1, 1.0), 1, now);
    let mut paused = AcquireResponse {
        levels_decide: false,
        ..yes(&[], 0, 1e6, 1)
    };

    let rests = holding.answered(&asking, &[], &mut paused, now);

    assert_eq!(rests.len(), 1);
    assert!(holding.spend(&lanes(1, 1.0), now).is_none());
    assert_eq!(holding.ask(&lanes(1, 1.0), 1, now).leased, 0);
}

#[test]
fn nothing_is_held_for_asks_that_are_too_large_for_a_lease_nor_again_after_one_that_was_not_spent()
{
    let (mut holding, now) = busy(1e6);
    holding.lease = None;
    assert_eq!(holding.ask(&lanes(30, 1.0), 1, now).leased, 0);
    assert!(holding.ask(&lanes(20, 1.0), 1, now).leased > 0);

    let (mut holding, now) = busy(1e6);
    assert!(holding.over(now + HORIZON).is_some());
    let mut then = now + HORIZON;
    for _ in 0..900 {
        one(&mut holding, 1, 1e6, 1, then);
        then += Duration::from_millis(1);
        assert!(holding.lease.is_none());
    }
    for _ in 0..200 {
        one(&mut holding, 1, 1e6, 1, then);
        then += Duration::from_millis(1);
    }
    assert!(holding.lease.is_some());
}

/// An event for a holding.
#[derive(Clone, Debug)]
enum Op {
    /// An ask for `want` units of `cost`, after some microseconds.
    Ask { us: u64, want: u32, cost: f64 },
    /// A change of the rate.
    Turn(f64),
    /// An event that ends leases.
    LetGo,
    /// A check for a lease whose time is over.
    Look,
}

fn op() -> impl Strategy<Value = Op> {
    let cost = prop_oneof![4 => Just(1.0), 1 => 0.01..5.0_f64];
    prop_oneof![
        40 => (0..3000_u64, 1..4_u32, cost).prop_map(|(us, want, cost)| Op::Ask { us, want, cost }),
        1 => (0..400_000_u64).prop_map(|us| Op::Ask { us, want: 1, cost: 1.0 }),
        1 => (1.0..1e5_f64).prop_map(Op::Turn),
        1 => Just(Op::LetGo),
        2 => Just(Op::Look),
    ]
}

proptest! {
    /// Every leased token is spent within the horizon or goes back with its charge; none twice. At
    /// no time is more held than the rate times the horizon, and in no stretch is more spent than
    /// its part of the lease and the lead.
    #[test]
    fn leased_tokens_are_spent_evenly_or_given_back(ops in prop::collection::vec(op(), 1..1500)) {
        let mut now = Instant::now();
        let mut holding = Holding::new(HORIZON, now);
        let (mut rps, mut seq) = (5000.0, 1);
        let (mut leased, mut spent, mut back, mut charged_us, mut back_us, mut spent_us) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        let mut of_lease: Vec<(Instant, f64)> = Vec::new();
        for op in ops {
            let mut rests: Vec<LeaseRemainder> = Vec::new();
            match op {
                Op::Ask { us, want, cost } => {
                    now += Duration::from_micros(us);
                    let lanes = lanes(want, cost);
                    if let Some(answer) = holding.spend(&lanes, now) {
                        let lease = holding.lease.as_ref().unwrap();
                        prop_assert!(now < lease.since + HORIZON);
                        let tokens = f64::from(want) * cost;
                        spent += tokens;
                        spent_us += f64::from(want) * answer.lanes[0].charge_us[0];
                        of_lease.push((now, tokens));
                        let mut sum = 0.0;
                        for (at, tokens) in of_lease.iter().rev() {
                            sum += tokens;
                            let part = lease.tokens * (now - *at).as_secs_f64() / HORIZON.as_secs_f64();
                            prop_assert!(sum <= part + depth(lease.tokens) + 1e-6, "{} in a stretch", sum);
                        }
                    } else {
                        let asking = holding.ask(&lanes, 1, now);
                        prop_assert!(f64::from(asking.leased) <= (rps * HORIZON.as_secs_f64()).max(slowest_seen(&holding)));
                        let more = f64::from(asking.leased);
                        leased += more;
                        charged_us += more * 1e6 / rps;
                        if asking.leased > 0 {
                            of_lease.clear();
                        }
                        rests = holding.answered(&asking, &lanes, &mut yes(&lanes, asking.leased, rps, seq), now);
                    }
                }
                Op::Turn(to) => (rps, seq) = (to, seq + 1),
                Op::LetGo => rests.extend(holding.let_go()),
                Op::Look => rests.extend(holding.over(now)),
            }
            back += rests.iter().map(|rest| rest.tokens).sum::<f64>();
            back_us += rests.iter().map(|rest| rest.grant.charge_us[0]).sum::<f64>();
            let held = holding.lease.as_ref().map_or(0.0, |lease| lease.left);
            prop_assert!((leased - spent - back - held).abs() < 1e-3, "{leased} leased, {spent} spent, {back} back, {held} held");
        }
        let last: Vec<LeaseRemainder> = holding.over(now + HORIZON).into_iter().collect();
        prop_assert!(holding.lease.is_none());
        back_us += last.iter().map(|rest| rest.grant.charge_us[0]).sum::<f64>();
        prop_assert!((charged_us - spent_us - back_us).abs() <= 1e-6 * charged_us.max(1.0));
    }
}

/// Returns the most that a holding may ask for at the last known rate.
fn slowest_seen(holding: &Holding) -> f64 {
    holding.slowest_rps.map_or(0.0, RateLimit::number) * HORIZON.as_secs_f64()
}
