//! A connection to one server for one call, which may have to send ASKING before each command.

use futures_util::future::FutureExt;
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, ServerErrorKind, Value};

/// The connection that a call sends its commands on.
pub(super) struct Connection {
    manager: ConnectionManager,
    /// The call's slot is migrating to this server, which serves it only after ASKING.
    is_asking: bool,
}

impl Connection {
    pub(super) fn new(manager: ConnectionManager, is_asking: bool) -> Self {
        Self { manager, is_asking }
    }
}

/// Returns true if a cluster server redirected the call or put it off, so that it changed nothing.
fn is_elsewhere(kind: Option<ServerErrorKind>) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(kind, Some(Ask | ClusterDown | Moved | TryAgain))
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        if !self.is_asking {
            return self.manager.req_packed_command(command);
        }
        async move {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command.clone());
            let mut answers = self.manager.req_packed_commands(&both, 0, 2).await?;
            answers.pop().unwrap_or(Value::Nil).extract_error()
        }
        .boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        async move {
            let answers = if self.is_asking {
                let mut both = Pipeline::with_capacity(2 * pipeline.len());
                pipeline.cmd_iter().for_each(|command| {
                    both.cmd("ASKING").add_command(command.clone());
                });
                let answers = self
                    .manager
                    .req_packed_commands(&both, 2 * offset, 2 * count)
                    .await?;
                answers.into_iter().skip(1).step_by(2).collect()
            } else {
                self.manager
                    .req_packed_commands(pipeline, offset, count)
                    .await?
            };
            // One redirected command fails the whole call; a pipeline that ignores errors would
            // hide it.
            match answers.iter().find_map(|answer| match answer {
                Value::ServerError(error) if is_elsewhere(error.kind()) => Some(error.clone()),
                _ => None,
            }) {
                Some(error) => Err(RedisError::from(error)),
                None => Ok(answers),
            }
        }
        .boxed()
    }

    fn get_db(&self) -> i64 {
        self.manager.get_db()
    }
}

/// The reason why a call must be made at another server or later.
pub(super) enum Redirection<'a> {
    /// The slot has moved to this address.
    Moved(&'a str),
    /// The slot is migrating, and this key is already at the address.
    Ask(&'a str),
    /// The slot is migrating, and the keys of the call are at both servers.
    Underway,
    /// The cluster has no server for the slot, or not enough servers for a majority.
    Down,
}

impl<'a> Redirection<'a> {
    pub(super) fn read(error: &'a RedisError) -> Option<Self> {
        let address = error.redirect_node().map(|(address, _)| address);
        match (error.kind(), address) {
            (ErrorKind::Server(ServerErrorKind::Moved), Some(address)) => {
                Some(Self::Moved(address))
            }
            (ErrorKind::Server(ServerErrorKind::Ask), Some(address)) => Some(Self::Ask(address)),
            (ErrorKind::Server(ServerErrorKind::TryAgain), _) => Some(Self::Underway),
            (ErrorKind::Server(ServerErrorKind::ClusterDown), _) => Some(Self::Down),
            _ => None,
        }
    }
}
