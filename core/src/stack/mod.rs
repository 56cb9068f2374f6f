//! A private Postgres, Redis and Prometheus, run as child processes for the demo and for the tests.
//!
//! The servers are the ones that are installed on the machine ([`find`]); nothing here is a
//! stand-in. They belong to a **supervisor process**, `flyball services` ([`supervise`]), and not
//! to the process that uses them: the supervisor stops them when its standard input closes, and
//! that happens on every death of its parent, `kill -9` included. [`spawn()`] starts such a
//! supervisor from a library or a test.
//!
//! The paths below the directory and the configurations of the servers are computed by [`layout`],
//! which is pure.
//!
//! Left out on purpose: this room is not for production. It creates no backups, no replicas, no
//! passwords (the sockets are private to one user), and it knows nothing of jobs, throttles or
//! migrations.

pub mod find;
pub mod layout;
pub mod supervise;

mod error;
mod launch;
mod output;
mod postgres;
mod prometheus;
mod redis;
mod spawn;
mod stop;
mod unix;
mod watch;

pub use error::Error;
pub use layout::{Urls, as_superuser};
pub use spawn::{RunningStack, ServerKind, SpawnOptions, spawn};
