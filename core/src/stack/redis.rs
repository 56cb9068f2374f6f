//! The private Redis (or Valkey).

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use super::Error;
use super::find::Program;
use super::launch::{Step, Technology};
use super::layout::{Layout, redis_config};
use super::unix::User;

/// A Redis that answers on a unix socket only and keeps its data.
pub(super) struct Redis {
    program: Program,
    layout: Layout,
    user: User,
    fsync: bool,
}

// === impl Redis ===

impl Redis {
    pub fn new(program: Program, layout: &Layout, user: &User, fsync: bool) -> Self {
        Self {
            program,
            layout: layout.clone(),
            user: user.clone(),
            fsync,
        }
    }

    async fn ping(&self) -> redis::RedisResult<()> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("PING").query_async(&mut connection).await
    }
}

impl Technology for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn url(&self) -> String {
        self.layout.redis_url()
    }

    fn prepare(&mut self) -> Step<'_, Result<(), Error>> {
        Box::pin(async {
            let home = self.layout.home("redis");
            self.user.own_private_dir(
                &home,
                "start as that user, or remove it with --wipe as its owner",
            )?;
            // The file is beside the home and not in it, because Redis needs no right to change it.
            let config = home.with_extension("conf");
            fs::write(&config, redis_config(&self.layout, self.fsync))
                .map_err(Error::io("writing", &config))
        })
    }

    fn command(&self) -> Command {
        let mut command = self.program.command();
        command.arg(self.layout.home("redis").with_extension("conf"));
        command
    }

    fn ready(&self) -> Step<'_, Result<(), String>> {
        Box::pin(async { self.ping().await.map_err(|error| error.to_string()) })
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }
}
