//! Connections to Redis for the tests themselves.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};

/// The time that a test gives Redis. The library's own half a second is too short for a machine on
/// which other tests run.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connects to a Redis.
pub async fn connect_redis(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = Client::open(url)?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
