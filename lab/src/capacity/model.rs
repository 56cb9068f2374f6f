//! The cost of a job in each part, and the sizes of an installation that bears a load. Pure.

/// A cost in microseconds of processor time: for each job, for each statement, which a batch of
/// jobs shares, and for each lane that is found and emptied, which its jobs share.
#[derive(Clone, Copy, Debug)]
struct Cost {
    job_us: f64,
    batch_us: f64,
    lane_us: f64,
}

// Fitted to three lines of the benchmark `drain`, "runner free", without a backlog: one lane at
// batch 100 and at batch 500, and 10,000 lanes at batch 500, where each lane has 7.2 jobs.

/// Claims and ends of jobs in Postgres.
const POSTGRES: Cost = Cost {
    job_us: 11.89,
    batch_us: 320.0,
    lane_us: 21.2,
};

/// The runner, without the handlers' own work.
const RUNNER: Cost = Cost {
    job_us: 3.61,
    batch_us: 190.0,
    lane_us: 8.5,
};

/// Redis, for one throttle.
const REDIS: Cost = Cost {
    job_us: 0.066,
    batch_us: 78.7,
    lane_us: 1.19,
};

/// Enqueueing in Postgres, a hundred jobs in a call, in parts of a claim and an end of the same
/// batch; measured by the test `jobs::footprint`.
const ENQUEUE_SHARE: f64 = 0.9;

/// The share of its processors that a machine with all parts on it has used when it takes no more
/// jobs. Fitted to one lane on a calm machine.
const USABLE: f64 = 0.885;

/// The share of its processors that a server should use at the peak, which also covers that the
/// model was not fitted to more than two of them.
const PLANNED: f64 = 0.5;

/// The bytes of log for a job: enqueue, claim and end; one lane, and lanes of twenty jobs.
const LOG_BYTES: [f64; 2] = [925.0, 948.0];

/// The bytes of a finished job on the disk, with its index and its history, without its arguments:
/// 224 where each page is full, and a tenth more.
const KEPT_BYTES: f64 = 250.0;

/// Connections of a process with the role runner: those of the default settings, two for heartbeats
/// and four for LISTEN.
const CONNECTIONS: f64 = 16.0;

/// Statements that a worker sends in a second while it has nothing to do.
const IDLE_STATEMENTS: f64 = 3.8;

/// The seconds that a walk which counts the depths takes for a million waiting jobs.
const WALK_S_PER_MILLION: f64 = 20.0;

const DAY_S: f64 = 86_400.0;

impl Cost {
    /// Returns the microseconds for one job.
    fn of(self, load: &Load) -> f64 {
        self.job_us + self.batch_us / load.batch + self.lane_us / load.jobs_per_lane
    }
}

/// A load, at its peak.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Jobs a day.
    pub jobs_per_day: f64,
    /// The rate of the busiest second over the mean.
    pub peak: f64,
    /// Jobs of one claim.
    pub batch: f64,
    /// Jobs that a lane has whenever it is found; `f64::INFINITY` for lanes that never run empty.
    pub jobs_per_lane: f64,
    /// Seconds that a handler takes.
    pub job_s: f64,
    /// Microseconds of processor time that a handler takes.
    pub handler_us: f64,
    /// Bytes of a job's arguments.
    pub args_bytes: f64,
    /// Days for which finished jobs are kept.
    pub kept_days: f64,
    /// Slots of one worker process.
    pub slots: f64,
    /// Ready jobs at the longest.
    pub backlog: f64,
}

/// The needs of a load.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Jobs a second over the day, and at the peak.
    pub mean_per_s: f64,
    pub peak_per_s: f64,
    /// Cores in use at the peak.
    pub postgres_cores: f64,
    pub worker_cores: f64,
    pub redis_cores: f64,
    /// Cores of a Postgres that is half used at the peak.
    pub postgres_planned: f64,
    /// Worker processes, for the slots that the handlers need at the peak.
    pub processes: f64,
    pub connections: f64,
    /// Calls of Redis a second at the peak.
    pub redis_calls_per_s: f64,
    /// Commits a second at the peak.
    pub commits_per_s: f64,
    /// Megabytes of log a second at the peak, and gigabytes a day.
    pub log_mb_per_s: f64,
    pub log_gb_per_day: f64,
    /// Gigabytes of finished jobs.
    pub kept_gb: f64,
    /// Statements a second of all workers while nothing happens.
    pub idle_statements_per_s: f64,
    /// Seconds by which depths are old while the backlog is longest.
    pub walk_s: f64,
}

impl Load {
    /// Returns the needs of the load.
    pub fn need(&self) -> Need {
        let mean_per_s = self.jobs_per_day / DAY_S;
        let peak_per_s = mean_per_s * self.peak;
        let claimed_us = self.postgres_us();
        let enqueued_us = ENQUEUE_SHARE * (POSTGRES.job_us + POSTGRES.batch_us / self.batch);
        let postgres_cores = peak_per_s * (claimed_us + enqueued_us) / 1e6;
        let processes = (peak_per_s * self.job_s / self.slots).ceil().max(1.0);
        let log_bytes = LOG_BYTES[usize::from(self.jobs_per_lane.is_finite())] + self.args_bytes;
        Need {
            mean_per_s,
            peak_per_s,
            postgres_cores,
            worker_cores: peak_per_s * (RUNNER.of(self) + self.handler_us) / 1e6,
            redis_cores: peak_per_s * REDIS.of(self) / 1e6,
            postgres_planned: (postgres_cores / PLANNED).ceil(),
            processes,
            connections: processes * CONNECTIONS,
            redis_calls_per_s: peak_per_s / self.batch,
            // An enqueue, a claim and an end for each batch.
            commits_per_s: 3.0 * peak_per_s / self.batch,
            log_mb_per_s: peak_per_s * log_bytes / 1e6,
            log_gb_per_day: self.jobs_per_day * log_bytes / 1e9,
            kept_gb: self.jobs_per_day * self.kept_days * (KEPT_BYTES + self.args_bytes) / 1e9,
            idle_statements_per_s: processes * IDLE_STATEMENTS,
            walk_s: self.backlog / 1e6 * WALK_S_PER_MILLION,
        }
    }

    /// Returns the jobs a second that a machine with these cores drains if it has all parts on it.
    pub fn drained_on(&self, cores: f64) -> f64 {
        let us = POSTGRES.of(self) + RUNNER.of(self) + REDIS.of(self);
        cores * USABLE * 1e6 / us
    }

    /// Returns the microseconds that a job costs Postgres, from its claim to its end.
    pub fn postgres_us(&self) -> f64 {
        POSTGRES.of(self)
    }
}
