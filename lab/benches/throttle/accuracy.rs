//! Commanded and achieved rates, for one client and for eight: slow rates in virtual time, fast
//! ones in real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use flyball::throttle::{AcquireRequest, LaneRequest, Name, RedisStore, Store};

use crate::child::RequestMode;
use crate::report::{Report, count};
use crate::world::ThrottleServer;

/// Rates that are too slow to measure in real time, in tokens per second.
const VIRTUAL: [&str; 5] = ["0.0001", "0.001", "0.01", "0.1", "0.7"];

/// Rates that are measured in real time, in tokens per second, each with its duration in seconds.
const REAL: [(&str, f64); 5] = [
    ("1", 20.0),
    ("10", 10.0),
    ("100", 6.0),
    ("1000", 6.0),
    ("10000", 6.0),
];

const ASKERS: [usize; 2] = [1, 8];

/// The tokens of a run in virtual time.
const TOKENS: f64 = 1000.0;

/// The largest relative error of a rate.
const ALLOWED: f64 = 0.002;

/// The start of virtual time, in unix microseconds.
const START: i64 = 1_795_000_000_000_000;

pub async fn measure(world: &ThrottleServer, report: Report) -> anyhow::Result<()> {
    let columns = [
        "commanded rate, tokens/s",
        "who asks",
        "time",
        "granted",
        "achieved, tokens/s",
        "off by",
    ];
    let table = report.table("commanded and achieved rates (at most 0.2 % off)", &columns);
    let row = |commanded: &str, who: String, time: String, granted: f64, achieved: f64| {
        let off = achieved / commanded.parse::<f64>().unwrap_or(f64::NAN) - 1.0;
        let met = if off.abs() <= ALLOWED {
            "met"
        } else {
            "missed"
        };
        table.row([
            commanded.to_owned(),
            who,
            time,
            count(granted),
            format!("{achieved:.7}"),
            format!("{:+.4} % ({met})", off * 100.0),
        ]);
    };
    for (rps, clients) in VIRTUAL
        .into_iter()
        .flat_map(|rps| ASKERS.map(|clients| (rps, clients)))
    {
        world
            .knobs(&format!("virtual-{clients}-{rps}"), &[("rps", rps)])
            .await?;
        let (granted, seconds) = in_virtual_time(world, rps, clients).await?;
        row(
            rps,
            format!("{clients} clients"),
            format!("{seconds:.0} s, virtual"),
            granted,
            granted / seconds,
        );
    }
    for ((rps, seconds), processes) in REAL
        .into_iter()
        .flat_map(|rate| ASKERS.map(|processes| (rate, processes)))
    {
        let throttle = format!("real-{processes}-{rps}");
        world.knobs(&throttle, &[("rps", rps)]).await?;
        let output = world
            .askers(RequestMode::Pace, &throttle, seconds, processes)?
            .go(|| Ok(()))?;
        let read = |line: &String| {
            let (at_us, units) = line.split_once(' ')?;
            Some((at_us.parse::<i64>().ok()?, units.parse::<f64>().ok()?))
        };
        let mut grants: Vec<(i64, f64)> = output.iter().flatten().filter_map(read).collect();
        grants.sort_by_key(|grant| grant.0);
        // Each grant empties the bucket, so the tokens after the first grant are those refilled
        // until the last.
        let (Some(first), Some(last)) = (grants.first(), grants.last()) else {
            anyhow::bail!("nothing was granted at {rps}")
        };
        let granted: f64 = grants.iter().skip(1).map(|grant| grant.1).sum();
        let took = (last.0 - first.0) as f64 / 1e6;
        row(
            rps,
            format!("{processes} processes"),
            format!("{took:.2} s"),
            granted,
            granted / took,
        );
    }
    Ok(())
}

/// Lets each client ask for one token, again after each advised wait.
///
/// Returns the tokens granted after the first one, and the seconds since that one.
async fn in_virtual_time(
    world: &ThrottleServer,
    rps: &str,
    clients: usize,
) -> anyhow::Result<(f64, f64)> {
    let now = Arc::new(AtomicI64::new(START));
    let store = |_| {
        let clock = now.clone();
        let store = RedisStore::connect(&world.url(), "")?.with_bound(Duration::from_secs(10));
        anyhow::Ok(store.with_clock(Arc::new(move || clock.load(Ordering::SeqCst))))
    };
    let stores = (0..clients)
        .map(store)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let ask = AcquireRequest {
        throttle: Name::new(format!("virtual-{clients}-{rps}"))?,
        lanes: vec![LaneRequest::default()],
        holder: None,
    };
    let mut due: Vec<i64> = (0..clients as i64).map(|n| START + n).collect();
    let (mut granted, mut first, mut last) = (0.0, None, START);
    while granted < TOKENS {
        let who = (0..clients).min_by_key(|who| due[*who]).unwrap_or_default();
        now.fetch_max(due[who], Ordering::SeqCst);
        let answer = stores[who].acquire(&ask).await;
        let lane = &answer.lanes[0];
        anyhow::ensure!(answer.at_us > 0, "Redis does not answer");
        if lane.granted > 0 {
            // The first empties the bucket.
            granted += if first.is_some() { 1.0 } else { 0.0 };
            last = answer.at_us;
            first.get_or_insert(answer.at_us);
        }
        due[who] = answer.at_us + (lane.wait.as_micros() as i64).max(1);
    }
    Ok((granted, (last - first.unwrap_or(START)) as f64 / 1e6))
}
