//! A call of the Lua script, written straight into the command, so that an ask for a hundred lanes
//! allocates no string per lane.

use std::fmt::Display;
use std::io::Write;

use redis::{Cmd, ErrorKind, RedisResult, RedisWrite, Script, ServerErrorKind, ToRedisArgs, Value};

use super::connection::Connection;
use super::layout::Key;

/// The text of the Lua script.
pub const LUA_TEXT: &str = include_str!("../throttle.lua");

/// The Lua script, named by its SHA1 digest in Redis.
pub(super) struct LuaScript {
    sha: String,
}

impl LuaScript {
    pub(super) fn new() -> Self {
        Self {
            sha: Script::new(LUA_TEXT).get_hash().to_owned(),
        }
    }

    /// Begins a call with `keys` keys, which must be added first.
    pub(super) fn call(&self, keys: usize) -> Call {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.sha).arg(keys);
        Call(command)
    }
}

/// A call of the Lua script: its keys, then the verb, the time and the arguments of the verb.
pub(super) struct Call(Cmd);

impl Call {
    pub(super) fn key(&mut self, key: &Key<'_>) {
        self.0.arg(key);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.0.arg(text);
    }

    pub(super) fn number(&mut self, number: impl Display) {
        self.0.write_arg_fmt(number);
    }

    /// Makes the call, first loading the script into a Redis that does not know it.
    pub(super) async fn invoke(&self, mut redis: Connection) -> RedisResult<Vec<Value>> {
        let is_new = |error: &redis::RedisError| {
            error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        };
        match self.0.query_async(&mut redis).await {
            Err(error) if is_new(&error) => {
                redis::cmd("SCRIPT")
                    .arg("LOAD")
                    .arg(LUA_TEXT)
                    .exec_async(&mut redis)
                    .await?;
                self.0.query_async(&mut redis).await
            }
            answered => answered,
        }
    }
}

impl ToRedisArgs for Key<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut writer = out.writer_for_next_arg();
        for piece in self.pieces() {
            // A write into the command's buffer cannot fail.
            let _ = writer.write_all(piece.as_bytes());
        }
    }
}
