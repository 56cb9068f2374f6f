//! Notes in Redis: a hash beside the throttle's knobs.

use futures_util::future::{BoxFuture, FutureExt};

use super::connection::Connection;
use super::store::RedisStore;
use crate::throttle::notes::{Notes, NotesSnapshot};
use crate::throttle::{Error, Name};

/// The last part of the key that holds a throttle's notes.
const NOTES: &str = "notes";

/// Compares and sets a note; an empty second argument requires that there is none.
const SWAP: &str = "local is = redis.call('HGET', KEYS[1], ARGV[1]) or '' \
                    if is ~= ARGV[2] then return 0 end \
                    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) return 1";

impl Notes for RedisStore {
    fn read<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<NotesSnapshot, Error>> {
        async move {
            let mut pipe = redis::pipe();
            pipe.cmd("HGETALL")
                .arg(self.layout.key(throttle, NOTES, ""));
            pipe.cmd("TIME");
            let pipe = &pipe;
            let read = |mut redis: Connection| async move {
                pipe.query_async::<(Vec<(String, String)>, (i64, i64))>(&mut redis)
                    .await
            };
            let (notes, (s, us)) = self
                .servers
                .run(self.layout.slot(throttle), self.operator_bound, read)
                .await?;
            let now_ms = self
                .clock
                .as_ref()
                .map_or(s * 1000 + us / 1000, |clock| clock() / 1000);
            Ok(NotesSnapshot {
                notes: notes.into_iter().collect(),
                now_ms,
            })
        }
        .boxed()
    }

    fn swap<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        old: Option<&'a str>,
        new: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            let mut call = redis::cmd("EVAL");
            call.arg(SWAP)
                .arg(1)
                .arg(self.layout.key(throttle, NOTES, ""))
                .arg(key)
                .arg(old.unwrap_or_default())
                .arg(new);
            let call = &call;
            let swap =
                |mut redis: Connection| async move { call.query_async::<i64>(&mut redis).await };
            Ok(self
                .servers
                .run(self.layout.slot(throttle), self.operator_bound, swap)
                .await?
                == 1)
        }
        .boxed()
    }
}
