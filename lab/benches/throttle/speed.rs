//! Decisions per second, and the cost of each for Redis and for the client, beside a bare script in
//! the same run.

use flyball::throttle::{AcquireRequest, LaneRequest, Name};

use crate::ThrottleArgs;
use crate::child::{LANES, RequestMode};
use crate::report::{Report, against, count, median};
use crate::world::ThrottleServer;

/// A case: the request, the throttle, and the knobs along its chain.
struct SpeedRow {
    name: &'static str,
    what: RequestMode,
    lanes: usize,
    chain: &'static [(&'static str, &'static [(&'static str, &'static str)])],
    /// The goal for one decision, in microseconds of Redis.
    goal_us: Option<f64>,
}

/// A rate that no machine reaches: the buckets are really counted down, but no request waits.
const FAR: &str = "100000000";

const ROWS: [SpeedRow; 6] = [
    SpeedRow {
        name: "a bare EVALSHA of an INCR",
        what: RequestMode::Bare,
        lanes: 1,
        chain: &[("bare", &[("rps", FAR)])],
        goal_us: None,
    },
    SpeedRow {
        name: "one key, one ask after the other",
        what: RequestMode::Single,
        lanes: 1,
        chain: &[("one", &[("rps", FAR)])],
        goal_us: None,
    },
    SpeedRow {
        name: "one key of one throttle",
        what: RequestMode::One,
        lanes: 1,
        chain: &[("one", &[("rps", FAR)])],
        goal_us: None,
    },
    SpeedRow {
        name: "tier, throttle, 100 keys a call",
        what: RequestMode::Lanes,
        lanes: LANES,
        chain: &[
            ("tier", &[("rps", FAR)]),
            ("plain", &[("rps", FAR), ("parent", "tier")]),
        ],
        goal_us: Some(4.0),
    },
    SpeedRow {
        name: "the same, each key with its own rate",
        what: RequestMode::Lanes,
        lanes: LANES,
        chain: &[
            ("tier", &[("rps", FAR)]),
            (
                "keyed",
                &[("rps", FAR), ("parent", "tier"), ("key_rps", FAR)],
            ),
        ],
        goal_us: Some(4.0),
    },
    SpeedRow {
        name: "one key, 20 asks a millisecond, leases",
        what: RequestMode::Leased,
        lanes: 1,
        chain: &[("leased", &[("rps", FAR)])],
        goal_us: None,
    },
];

/// The goal for a decision from a lease, in microseconds of the process.
const LEASED_GOAL_US: f64 = 1.0;

#[derive(Clone, Copy)]
struct SpeedRound {
    per_s: f64,
    client_us: f64,
    redis_us_per_call: f64,
    redis_us: f64,
}

pub async fn measure(
    world: &ThrottleServer,
    cli: &ThrottleArgs,
    report: Report,
) -> anyhow::Result<()> {
    for (throttle, knobs) in ROWS.iter().flat_map(|row| row.chain) {
        world.knobs(throttle, knobs).await?;
        // A new bucket begins with one token and fills from the first request on.
        let ask = AcquireRequest {
            throttle: Name::new(*throttle)?,
            lanes: vec![LaneRequest::default()],
            holder: None,
        };
        world.store.acquire(&ask).await;
    }
    let columns = [
        "who is asked, by how many processes",
        "decisions/s",
        "µs each, asker",
        "Redis µs a call",
        "Redis µs each",
    ];
    let table = report.table(
        "decisions: eight requests in flight in each process, or one where stated",
        &columns,
    );
    let mut seen: Vec<Vec<SpeedRound>> = vec![Vec::new(); ROWS.len() * cli.processes.len()];
    for _ in 0..cli.rounds.max(1) {
        let places = cli
            .processes
            .iter()
            .flat_map(|processes| ROWS.iter().map(move |row| (row, *processes)));
        for ((row, processes), rounds) in places.zip(&mut seen) {
            rounds.push(once(world, row, processes, cli.seconds)?);
        }
    }
    let places = cli
        .processes
        .iter()
        .flat_map(|processes| ROWS.iter().map(move |row| (row, *processes)));
    for ((row, processes), rounds) in places.zip(&seen) {
        let over = |figure: fn(&SpeedRound) -> f64| median(rounds.iter().map(figure));
        let (client_us, redis_us) = (over(|round| round.client_us), over(|round| round.redis_us));
        table.row([
            format!("{} x{processes}", row.name),
            count(over(|round| round.per_s)),
            if row.what == RequestMode::Leased {
                against(client_us, LEASED_GOAL_US, false)
            } else {
                format!("{client_us:.2}")
            },
            format!("{:.2}", over(|round| round.redis_us_per_call)),
            row.goal_us.map_or_else(
                || format!("{redis_us:.3}"),
                |goal| against(redis_us, goal, false),
            ),
        ]);
    }
    Ok(())
}

fn once(
    world: &ThrottleServer,
    row: &SpeedRow,
    processes: usize,
    seconds: f64,
) -> anyhow::Result<SpeedRound> {
    let throttle = row.chain[row.chain.len() - 1].0;
    let mut redis = world.redis()?;
    let askers = world.askers(row.what, throttle, seconds, processes)?;
    let output = askers.go(|| Ok(redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut redis)?))?;
    let (mut decisions, mut per_s, mut busy_s, mut known_decisions) = (0.0, 0.0, 0.0, 0.0);
    for line in output.iter().flatten() {
        let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        // A client that asks at intervals also prints the time of one answer, and the number of
        // decisions that Redis saw.
        let (count, took, busy, known) = match numbers[..] {
            [count, took] => (count, took, took, count),
            [count, took, each_us, all] => (count, took, each_us * count / 1e6, all),
            _ => anyhow::bail!("a client process printed {line:?}"),
        };
        decisions += count;
        per_s += count / took;
        busy_s += busy;
        known_decisions += known;
    }
    let (calls, redis_us) = scripts(&mut redis)?;
    Ok(SpeedRound {
        per_s,
        client_us: busy_s * 1e6 / decisions,
        redis_us_per_call: redis_us / calls,
        redis_us: if row.what == RequestMode::Leased {
            redis_us / known_decisions
        } else {
            redis_us / calls / row.lanes as f64
        },
    })
}

/// Returns the number of scripts or functions that Redis has run since its counters were reset, and
/// the microseconds that they took.
fn scripts(redis: &mut redis::Connection) -> anyhow::Result<(f64, f64)> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(redis)?;
    let line = stats
        .lines()
        .find_map(|line| {
            line.strip_prefix("cmdstat_fcall:")
                .or_else(|| line.strip_prefix("cmdstat_evalsha:"))
        })
        .unwrap_or_default();
    let of = |name: &str| {
        line.split(',').find_map(|part| {
            part.strip_prefix(name)?
                .strip_prefix('=')?
                .parse::<f64>()
                .ok()
        })
    };
    match (of("calls"), of("usec")) {
        (Some(calls), Some(us)) if calls > 0.0 => Ok((calls, us)),
        _ => anyhow::bail!("Redis has counted no script: {line:?}"),
    }
}
