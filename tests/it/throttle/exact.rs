//! The rate is exact to 0.2 %, for any clients, and nothing is free beyond the bucket.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flyball::throttle::{RedisStore, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::redis_server::Server;
use crate::throttle::{World, ask, laws, name};

laws! {
    rates_are_exact_from_one_in_hours_to_ten_thousand_a_second_for_one_and_for_eight,
    never_more_than_the_bucket_beyond_the_line_in_any_interval,
    nothing_is_free_after_a_cut_a_stop_an_expiry_and_a_restart,
}

/// Rates, each with the tokens to wait for and the clients' lateness in microseconds.
const RATES: [(&str, f64, i64); 10] = [
    ("0.0001", 600.0, 50_000),
    ("0.001", 600.0, 50_000),
    ("0.02", 600.0, 5000),
    ("0.3", 600.0, 5000),
    ("1", 600.0, 1000),
    ("7.3", 600.0, 1000),
    ("120", 1000.0, 9000),
    ("999.9", 4000.0, 5000),
    ("3456.7", 8000.0, 2000),
    ("10000", 20000.0, 2000),
];

/// Clients that come at the advised time, slightly late, for a number of tokens.
struct TimedClients {
    stores: Vec<Arc<dyn Store>>,
    due: Vec<i64>,
    chance: StdRng,
    late_us: i64,
    want: u32,
}

impl TimedClients {
    fn new(world: &World, count: usize, late_us: i64, want: u32) -> Self {
        let now = world.now.load(Ordering::SeqCst);
        let stores = (0..count).map(|_| world.another()).collect();
        Self {
            stores,
            due: vec![now; count],
            chance: StdRng::seed_from_u64(1788),
            late_us,
            want,
        }
    }

    /// Advances time to the next client's due time; returns that time and the grant.
    async fn next(&mut self, world: &World, throttle: &str) -> (i64, f64) {
        let who = (0..self.due.len())
            .min_by_key(|who| self.due[*who])
            .unwrap();
        let now = world
            .now
            .fetch_max(self.due[who], Ordering::SeqCst)
            .max(self.due[who]);
        let grant = self.stores[who]
            .acquire(&ask(throttle, &[("", self.want, 1.0)]))
            .await
            .lanes
            .remove(0);
        let late = self.chance.random_range(1..=self.late_us);
        self.due[who] = now + grant.wait.as_micros() as i64 + late;
        (now, f64::from(grant.granted))
    }
}

async fn rates_are_exact_from_one_in_hours_to_ten_thousand_a_second_for_one_and_for_eight(
    world: World,
) {
    for (rps, tokens, late_us) in RATES {
        for count in [1, 8] {
            let throttle = format!("{count}-{rps}");
            world.knobs(&throttle, &[("rps", rps)]);
            let mut askers = TimedClients::new(&world, count, late_us, 1_000_000);
            let begun = loop {
                let (at, granted) = askers.next(&world, &throttle).await;
                if granted > 0.0 {
                    break at;
                }
            };
            let (mut all, mut last) = (0.0, begun);
            while all < tokens {
                let (at, granted) = askers.next(&world, &throttle).await;
                all += granted;
                last = at;
            }

            let achieved = all / ((last - begun) as f64 / 1e6);
            let off = achieved / rps.parse::<f64>().unwrap() - 1.0;
            assert!(
                off.abs() <= 0.002,
                "{count} got {achieved} a second of {rps}: {:+.3} % off",
                off * 100.0
            );
        }
    }
}

/// Returns the largest excess of any interval of `grants` (time in microseconds, tokens) over
/// `rps`.
fn beyond(grants: &[(i64, f64)], rps: f64) -> f64 {
    let (mut most, mut ends_here, mut before) = (0.0_f64, 0.0_f64, None);
    for (at, granted) in grants {
        let passed = before.map_or(0, |before| at - before) as f64 / 1e6;
        // An interval that ends here extends one that ended at the previous grant, or begins with
        // this grant.
        ends_here = (ends_here - rps * passed).max(0.0) + granted;
        most = most.max(ends_here);
        before = Some(*at);
    }
    most
}

#[test]
fn an_interval_is_measured_from_its_first_grant_to_its_last() {
    assert_eq!(
        beyond(&[(0, 1.0), (1_000_000, 1.0), (2_000_000, 1.0)], 1.0),
        1.0
    );
    assert_eq!(
        beyond(&[(0, 1.0), (5_000_000, 4.0), (5_500_000, 2.0)], 1.0),
        5.5
    );
}

async fn never_more_than_the_bucket_beyond_the_line_in_any_interval(world: World) {
    for (at, (rps, burst, window)) in [
        ("0.0001", "1", "1"),
        ("0.5", "10", "60"),
        ("3", "0", "1"),
        ("20", "1", "1"),
        ("200", "2.5", "0.4"),
        ("10000", "5", "1"),
    ]
    .into_iter()
    .enumerate()
    {
        let throttle = format!("t{at}");
        world.knobs(
            &throttle,
            &[("rps", rps), ("burst", burst), ("window", window)],
        );
        let [rps, burst, window] = [rps, burst, window].map(|text| text.parse::<f64>().unwrap());
        // There is room for two tokens at least.
        let bucket = (burst * window * rps).max(2.0);
        let mut askers = TimedClients::new(&world, 8, 1000, 1);
        let mut grants = Vec::new();
        for _ in 0..600 {
            // Some clients come at once, some stay away for as long as it takes to fill the bucket.
            askers.want = 1 + askers.chance.random_range(0..(2.0 * bucket) as u32 + 2);
            let pause = [0.0, 0.0, 0.0, 0.2, 1.5][askers.chance.random_range(0..5)] * bucket / rps;
            world.pass(Duration::from_secs_f64(pause));
            grants.push(askers.next(&world, &throttle).await);
        }

        let most = beyond(&grants, rps);
        assert!(
            most <= bucket + 0.001,
            "{most} beyond the line at {rps}, where the bucket holds {bucket}"
        );
        assert!(
            most > bucket * 0.9 || bucket < 3.0,
            "the bucket was full at some time: {most} of {bucket}"
        );
    }
}

async fn nothing_is_free_after_a_cut_a_stop_an_expiry_and_a_restart(world: World) {
    for (at, (from, to)) in [
        ("100", "10"),
        ("10", "0.01"),
        ("10000", "3"),
        ("50", "50"),
        ("5", "500"),
        ("0.001", "0.0001"),
    ]
    .into_iter()
    .enumerate()
    {
        for (what, free) in [
            ("turned", 0.0),
            ("stopped", 0.0),
            ("paused", 0.0),
            ("lost", 1.0),
        ] {
            let throttle = format!("{what}-{at}");
            let knobs = [("rps", from), ("burst", "20"), ("window", "2")];
            world.knobs(&throttle, &knobs);
            let mut askers = TimedClients::new(&world, 8, 50, 1_000_000);
            for _ in 0..40 {
                askers.next(&world, &throttle).await;
            }
            // Another client has just taken everything.
            world
                .store
                .acquire(&ask(&throttle, &[("", 1_000_000, 1.0)]))
                .await;
            match what {
                "turned" => {}
                "stopped" => world.write(&throttle, "rps", "0"),
                "paused" => world.write(&throttle, "paused", "1"),
                _ => {
                    world.store.delete(&name(&throttle)).await.unwrap();
                    world.knobs(&throttle, &knobs);
                }
            }
            if ["stopped", "paused"].contains(&what) {
                world.store.acquire(&ask(&throttle, &[("", 1, 1.0)])).await;
                world.pass(Duration::from_secs(100_000));
                world.remove(&throttle, "paused");
            }
            world.write(&throttle, "rps", to);
            let begun = world.now.load(Ordering::SeqCst);
            let mut askers = TimedClients::new(&world, 8, 50, 1_000_000);
            let (mut all, to) = (0.0, to.parse::<f64>().unwrap());
            for _ in 0..60 {
                let (now, granted) = askers.next(&world, &throttle).await;
                all += granted;
                let due = to * (now - begun) as f64 / 1e6 + free;
                assert!(
                    all <= due + 0.001 * to.max(1.0),
                    "{what} from {from} to {to}: {all} where {due} were due"
                );
            }
            assert!(all > 0.0, "it flows again");
        }
    }
}

// === Redis alone ===

#[tokio::test]
async fn what_a_bucket_owes_is_kept_until_it_is_paid() {
    let server = Server::start();
    let store = RedisStore::connect(&server.url(), "")
        .unwrap()
        .with_bound(Duration::from_secs(20));
    let mut redis = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("HSET")
        .arg("throttle:a:knobs")
        .arg(&["rps", "0.0001", "key_rps", "0.01", "key_burst", "3"])
        .exec(&mut redis)
        .unwrap();
    // At so low a rate one charge is limited to ten tokens: the throttle owes two charges, the key
    // its own.
    store
        .settle_many(&name("a"), &[("", 136.4), ("k", 863.6)])
        .await
        .unwrap();

    let mut left = |key: &str| {
        redis::cmd("PTTL")
            .arg(key)
            .query::<i64>(&mut redis)
            .unwrap()
    };

    // An idle throttle is kept for a week.
    let (debt, week) = (200_000 * 1_000, 7 * 86_400 * 1_000);
    assert!(
        left("throttle:a:bucket") > debt + week,
        "{}",
        left("throttle:a:bucket")
    );
    // A key is full, and forgotten, when its debt is paid and its bucket of two tokens is filled.
    let whole = 1_000 * (1_000 + 200);
    assert!(
        (whole - 200_000 - 60_000..=whole).contains(&left("throttle:a:lane:k")),
        "{}",
        left("throttle:a:lane:k")
    );
}
