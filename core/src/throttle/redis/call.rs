//! A call of the Lua script, written straight into the command, so that an ask for a hundred lanes
//! allocates no string per lane.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{
    Arg, Cmd, ErrorKind, RedisError, RedisResult, RedisWrite, Script, ServerErrorKind, ToRedisArgs,
    Value,
};

use super::connection::Connection;
use super::layout::Key;

/// The text of the Lua script.
pub const LUA_TEXT: &str = include_str!("../throttle.lua");

/// The name under which the text registers itself.
const REGISTERED: &str = "'flyball_throttle'";

/// The Lua script: a library of functions in Redis 7 and newer, where it is made once, and in an
/// older one a script, which Redis makes again for each call.
pub(super) struct LuaScript {
    sha: String,
    /// The name of the library and of its function, which differs from one text to another, so that
    /// programs of two versions use one Redis.
    library: String,
    /// True once this Redis has refused functions.
    is_script: AtomicBool,
}

impl LuaScript {
    pub(super) fn new() -> Self {
        let sha = Script::new(LUA_TEXT).get_hash().to_owned();
        Self {
            library: format!("flyball_throttle_{}", &sha[..12]),
            sha,
            is_script: AtomicBool::new(false),
        }
    }

    /// Begins a call with `keys` keys, which must be added first.
    pub(super) fn call(&self, keys: usize) -> Call<'_> {
        let is_script = self.is_script.load(Ordering::Relaxed);
        let mut command = self.begin(is_script);
        command.arg(keys);
        Call {
            law: self,
            command,
            is_script,
        }
    }

    fn begin(&self, is_script: bool) -> Cmd {
        let mut command = Cmd::new();
        match is_script {
            true => command.arg("EVALSHA").arg(&self.sha),
            false => command.arg("FCALL").arg(&self.library),
        };
        command
    }

    async fn load_library(&self, redis: &mut Connection) -> RedisResult<()> {
        let registered = LUA_TEXT.replace(REGISTERED, &format!("'{}'", self.library));
        let text = format!("#!lua name={}\n{registered}", self.library);
        let mut command = redis::cmd("FUNCTION");
        // Two programs may load it at the same time.
        command.arg("LOAD").arg("REPLACE").arg(text);
        command.exec_async(redis).await
    }
}

/// A call of the Lua script: its keys, then the verb, the time and the arguments of the verb.
pub(super) struct Call<'a> {
    law: &'a LuaScript,
    command: Cmd,
    is_script: bool,
}

impl Call<'_> {
    pub(super) fn key(&mut self, key: &Key<'_>) {
        self.command.arg(key);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.command.arg(text);
    }

    pub(super) fn number(&mut self, number: impl Display) {
        self.command.write_arg_fmt(number);
    }

    /// Makes the call, first loading the law into a Redis that does not know it.
    pub(super) async fn invoke(&self, mut redis: Connection) -> RedisResult<Vec<Value>> {
        if self.is_script {
            return invoke_script(&self.command, &mut redis).await;
        }
        let mut answered = self.command.query_async(&mut redis).await;
        if let Err(error) = &answered
            && error.detail() == Some("Function not found")
        {
            answered = match self.law.load_library(&mut redis).await {
                Ok(()) => self.command.query_async(&mut redis).await,
                Err(error) => Err(error),
            };
        }
        match answered {
            Err(error) if refuses_functions(&error) => {
                self.law.is_script.store(true, Ordering::Relaxed);
                invoke_script(&self.as_script(), &mut redis).await
            }
            answered => answered,
        }
    }

    /// Returns the same call of the script.
    fn as_script(&self) -> Cmd {
        let mut command = self.law.begin(true);
        for arg in self.command.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                command.arg(bytes);
            }
        }
        command
    }
}

/// Returns true for an error of a Redis that has no functions, or of one whose user may not load or
/// call them.
fn refuses_functions(error: &RedisError) -> bool {
    let is_unknown = |detail: &str| detail.to_ascii_lowercase().starts_with("unknown command");
    error.code() == Some("NOPERM") || error.detail().is_some_and(is_unknown)
}

async fn invoke_script(command: &Cmd, redis: &mut Connection) -> RedisResult<Vec<Value>> {
    match command.query_async(redis).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(LUA_TEXT).exec_async(redis).await?;
            command.query_async(redis).await
        }
        answered => answered,
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
