//! The cost of one request for tokens, for few and many lanes at once: the part of Redis in the
//! data path.

use std::time::Instant;

use flyball::throttle::{AcquireRequest, LaneRequest, MAX_LANES_PER_ASK, Name};

use crate::QueueArgs;
use crate::report::{Report, count, median};
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};

const CALLS: usize = 500;

pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    let table = report.table(
        "asking a throttle for tokens, one client",
        &[
            "lanes in one ask",
            "asks/s",
            "lanes/s",
            "lanes per Redis cpu-s",
        ],
    );
    for lanes in [1, 10, MAX_LANES_PER_ASK] {
        let ask = AcquireRequest {
            throttle: Name::new(THROTTLE)?,
            lanes: (0..lanes)
                .map(|n| LaneRequest {
                    key: n.to_string(),
                    ..LaneRequest::default()
                })
                .collect(),
            holder: None,
        };
        let (mut rates, mut per_cpu) = (Vec::new(), Vec::new());
        for _ in 0..cli.rounds() {
            let (begun, before) = (Instant::now(), world.servers.spent(&[]));
            for _ in 0..CALLS {
                world.store.acquire(&ask).await;
            }
            rates.push(CALLS as f64 / begun.elapsed().as_secs_f64());
            per_cpu.push((CALLS * lanes) as f64 / (world.servers.spent(&[]) - before).redis_s);
        }
        let rate = median(rates);
        table.row([
            count(lanes as f64),
            count(rate),
            count(rate * lanes as f64),
            count(median(per_cpu)),
        ]);
    }
    Ok(())
}
