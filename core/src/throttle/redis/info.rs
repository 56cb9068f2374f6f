//! Facts about the servers themselves, for people who look for a fault.

use std::time::Duration;

use super::store::RedisStore;
use crate::throttle::Error;

/// The time limit of one answer.
const INFO_TIMEOUT: Duration = Duration::from_secs(2);

impl RedisStore {
    /// Returns true if the URL is that of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.servers.is_cluster()
    }

    /// Returns, for each server, its text of `INFO` and its time in unix seconds.
    pub async fn server_info(&self) -> Vec<Result<(String, f64), Error>> {
        let mut all = Vec::new();
        for number in 0.. {
            let call = |mut connection: super::connection::Connection| async move {
                let mut asked = redis::pipe();
                asked.cmd("INFO").cmd("TIME");
                let (info, (seconds, micros)): (String, (i64, i64)) =
                    asked.query_async(&mut connection).await?;
                Ok((info, seconds as f64 + micros as f64 / 1e6))
            };
            let Some(answer) = self.servers.run_at(number, INFO_TIMEOUT, call).await else {
                break;
            };
            all.push(answer);
        }
        all
    }
}
