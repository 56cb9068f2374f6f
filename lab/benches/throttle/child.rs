//! The child process of a measured round, which asks for tokens.
//!
//! It prints `ready` on standard output, waits for a line on standard input, asks for the given
//! time, and then prints its results, one per line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use flyball::throttle::lease::MAX_HORIZON;
use flyball::throttle::{AcquireRequest, LaneRequest, LeasedStore, Name, RedisStore, Store};
use futures_util::future::try_join_all;

use crate::report::median;

/// The bare script with which the throttle's script is compared.
const BARE: &str = "return redis.call('INCR', KEYS[1])";

/// The requests in flight, in cases that do not measure the time of an answer.
const IN_FLIGHT: usize = 8;

pub const LANES: usize = 100;

/// The parameters of the child.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// The address of Redis.
    #[arg(long)]
    redis_url: String,
    /// The kind of request.
    #[arg(long, value_enum)]
    what: RequestMode,
    /// The throttle and the keys.
    #[arg(long)]
    throttle: String,
    /// The duration.
    #[arg(long)]
    seconds: f64,
}

/// The requests of a process.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum RequestMode {
    /// A script that counts
    Bare,
    /// One token for one key, one request after the other
    Single,
    /// One token for one key
    One,
    /// A token for each of many keys
    Lanes,
    /// One token for one key, from a lease where possible
    Leased,
    /// Every available token, as soon as there is one
    Pace,
}

impl RequestMode {
    /// Returns the value on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Single => "single",
            Self::One => "one",
            Self::Lanes => "lanes",
            Self::Leased => "leased",
            Self::Pace => "pace",
        }
    }
}

/// Asks for tokens and prints the results.
pub async fn run(args: ClientArgs) -> anyhow::Result<()> {
    let redis: Arc<dyn Store> =
        Arc::new(RedisStore::connect(&args.redis_url, "")?.with_bound(Duration::from_secs(10)));
    let throttle = Name::new(args.throttle.as_str())?;
    let lanes = |lanes: usize, want| AcquireRequest {
        throttle: throttle.clone(),
        lanes: (0..lanes)
            .map(|n| LaneRequest {
                key: n.to_string(),
                want,
                ..LaneRequest::default()
            })
            .collect(),
        holder: None,
    };
    // The first connection is not measured.
    redis.peek(&lanes(1, 1)).await;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let begun = Instant::now();
    let time = Duration::from_secs_f64(args.seconds);
    let decisions = match args.what {
        RequestMode::Bare => bare(&args.redis_url, begun, time).await?,
        RequestMode::Single => asked(&redis, &lanes(1, 1), 1, begun, time).await?,
        RequestMode::One => asked(&redis, &lanes(1, 1), IN_FLIGHT, begun, time).await?,
        RequestMode::Lanes => asked(&redis, &lanes(LANES, 1), IN_FLIGHT, begun, time).await?,
        RequestMode::Leased => return leased(redis, &lanes(1, 1), time).await,
        RequestMode::Pace => return pace(&*redis, &lanes(1, 1_000_000), begun, time).await,
    };
    println!("{decisions} {}", begun.elapsed().as_secs_f64());
    Ok(())
}

async fn bare(url: &str, begun: Instant, time: Duration) -> anyhow::Result<u64> {
    let connection = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    let script = redis::Script::new(BARE);
    let key = format!("bare:{}", std::process::id());
    let one = async || {
        let (mut connection, mut calls) = (connection.clone(), 0);
        while begun.elapsed() < time {
            let _: i64 = script.key(&key).invoke_async(&mut connection).await?;
            calls += 1;
        }
        anyhow::Ok(calls)
    };
    Ok(try_join_all((0..IN_FLIGHT).map(|_| one()))
        .await?
        .iter()
        .sum())
}

async fn asked(
    store: &Arc<dyn Store>,
    ask: &AcquireRequest,
    in_flight: usize,
    begun: Instant,
    time: Duration,
) -> anyhow::Result<u64> {
    let one = async || {
        let mut decisions = 0;
        while begun.elapsed() < time {
            let answer = store.acquire(ask).await;
            anyhow::ensure!(
                answer.lanes.iter().all(|lane| lane.granted == 1),
                "there is enough for everybody"
            );
            decisions += answer.lanes.len() as u64;
        }
        anyhow::Ok(decisions)
    };
    Ok(try_join_all((0..in_flight).map(|_| one()))
        .await?
        .iter()
        .sum())
}

/// The requests per millisecond, as from a handler that does some work with every token.
const A_MILLISECOND: u32 = 20;

/// The time after which leases match the consumption.
const SETTLED: Duration = Duration::from_secs(2);

/// Prints the number of decisions, the seconds that they took, the median time of one in
/// microseconds, and the number including those before the lease had settled.
async fn leased(redis: Arc<dyn Store>, ask: &AcquireRequest, time: Duration) -> anyhow::Result<()> {
    let store = LeasedStore::new(redis, MAX_HORIZON);
    let (mut each_us, mut before_that) = (Vec::new(), 0);
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (begun, mut settled) = (Instant::now(), None);
    while begun.elapsed() < SETTLED + time {
        tick.tick().await;
        if settled.is_none() && begun.elapsed() >= SETTLED {
            before_that = each_us.len();
            each_us.clear();
            settled = Some(Instant::now());
        }
        let before = Instant::now();
        for _ in 0..A_MILLISECOND {
            let answer = store.acquire(ask).await;
            anyhow::ensure!(
                answer.lanes[0].granted == 1,
                "there is enough for everybody"
            );
        }
        each_us.push(before.elapsed().as_secs_f64() * 1e6 / f64::from(A_MILLISECOND));
    }
    let took_s = settled.unwrap_or(begun).elapsed().as_secs_f64();
    store.give_back_all().await;
    let [decisions, all] =
        [each_us.len(), each_us.len() + before_that].map(|times| times * A_MILLISECOND as usize);
    println!("{decisions} {took_s} {} {all}", median(each_us));
    Ok(())
}

/// Asks again after each advised wait; prints the time of each grant, by Redis' clock, and its
/// tokens.
async fn pace(
    store: &dyn Store,
    ask: &AcquireRequest,
    begun: Instant,
    time: Duration,
) -> anyhow::Result<()> {
    let mut granted = Vec::new();
    while begun.elapsed() < time {
        let answer = store.acquire(ask).await;
        let lane = &answer.lanes[0];
        if lane.granted > 0 {
            granted.push((answer.at_us, lane.granted));
        }
        tokio::time::sleep(lane.wait).await;
    }
    granted
        .iter()
        .for_each(|(at_us, units)| println!("{at_us} {units}"));
    Ok(())
}
