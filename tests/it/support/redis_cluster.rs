//! A private Redis or Valkey Cluster: three primaries and, on request, a replica of the first.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};

use crate::support::redis_server::{freeze, thaw};
use crate::support::waiting::block_until;

/// The number of servers with slots.
pub const PRIMARIES: usize = 3;

/// The time limit for starting, joining and failing over on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The servers of a cluster, which end when this is dropped.
pub struct RedisCluster {
    servers: Vec<Server>,
    _dir: tempfile::TempDir,
}

struct Server {
    child: Child,
    port: u16,
}

impl RedisCluster {
    /// Starts a cluster and waits until all its servers know each other.
    pub fn start(program: &str, has_replica: bool, node_timeout: Duration) -> Self {
        let count = PRIMARIES + usize::from(has_replica);
        for _ in 0..5 {
            let dir = tempfile::Builder::new()
                .prefix("fbc")
                .tempdir_in("/tmp")
                .expect("a directory in /tmp");
            // Holding all ports at once makes them distinct; another process may still take one
            // before the cluster does.
            let held: Vec<TcpListener> = (0..2 * count)
                .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
                .collect();
            let ports: Vec<u16> = held
                .iter()
                .map(|one| one.local_addr().expect("an address").port())
                .collect();
            drop(held);
            let servers = ports
                .chunks(2)
                .map(|ports| Server::start(program, dir.path(), ports, node_timeout))
                .collect();
            let mut cluster = Self { servers, _dir: dir };
            if cluster.servers.iter_mut().all(Server::listens) {
                cluster.join(&ports);
                return cluster;
            }
        }
        panic!("{program} could not be started on free ports");
    }

    /// Returns the URL for clients, without the last primary, so that clients must discover it.
    pub fn url(&self) -> String {
        format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}",
            self.servers[0].port, self.servers[1].port
        )
    }

    /// Returns the name of a throttle, without a hash tag, whose slot is on this primary.
    pub fn name_at(&self, primary: usize, kind: &str) -> String {
        let name = (0..)
            .map(|n| format!("{kind}{n}"))
            .find(|name| self.home(&format!("throttle:{name}:knobs")) == primary);
        name.expect("numbers do not end")
    }

    /// Returns the primary that owned the slot of a key at startup.
    pub fn home(&self, key: &str) -> usize {
        let slot = self.slot(key);
        (0..PRIMARIES)
            .find(|primary| range(*primary).1 >= slot)
            .expect("all slots are given")
    }

    pub fn slot(&self, key: &str) -> u16 {
        self.ask(1, &["CLUSTER", "KEYSLOT", key])
    }

    /// Sends a command to one server, without following redirects.
    pub fn command<T: FromRedisValue>(&self, server: usize, words: &[&str]) -> RedisResult<T> {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{}", self.servers[server].port))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    pub fn ask<T: FromRedisValue>(&self, server: usize, words: &[&str]) -> T {
        self.command(server, words)
            .unwrap_or_else(|error| panic!("{words:?} at server {server}: {error}"))
    }

    pub fn port(&self, server: usize) -> u16 {
        self.servers[server].port
    }

    pub fn kill(&mut self, server: usize) {
        self.servers[server].end();
    }

    pub fn freeze(&self, server: usize) {
        freeze(&self.servers[server].child);
    }

    pub fn thaw(&self, server: usize) {
        thaw(&self.servers[server].child);
    }

    fn join(&self, ports: &[u16]) {
        for primary in 0..PRIMARIES {
            let (first, last) = range(primary);
            self.ask::<()>(
                primary,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(primary + 1).to_string()],
            );
            self.ask::<()>(
                primary,
                &[
                    "CLUSTER",
                    "ADDSLOTSRANGE",
                    &first.to_string(),
                    &last.to_string(),
                ],
            );
        }
        for server in ports.chunks(2).skip(1) {
            self.ask::<()>(
                0,
                &[
                    "CLUSTER",
                    "MEET",
                    "127.0.0.1",
                    &server[0].to_string(),
                    &server[1].to_string(),
                ],
            );
        }
        if self.servers.len() > PRIMARIES {
            let first: String = self.ask(0, &["CLUSTER", "MYID"]);
            // The command fails until the replica knows its primary.
            wait("the replica to join", || {
                self.command::<()>(PRIMARIES, &["CLUSTER", "REPLICATE", &first])
                    .is_ok()
            });
        }
        let says = |server, words: &[&str], text: &str| {
            self.command::<String>(server, words)
                .is_ok_and(|output| output.contains(text))
        };
        wait("the cluster to form", || {
            (0..self.servers.len()).all(|server| {
                says(server, &["CLUSTER", "INFO"], "cluster_state:ok")
                    && says(
                        server,
                        &["CLUSTER", "INFO"],
                        &format!("cluster_known_nodes:{}", self.servers.len()),
                    )
                    && says(server, &["CLUSTER", "INFO"], "cluster_slots_ok:16384")
                    && (self.servers.len() == PRIMARIES
                        || says(server, &["CLUSTER", "NODES"], "slave"))
            })
        });
        if self.servers.len() > PRIMARIES {
            wait("the replica to follow", || {
                says(PRIMARIES, &["INFO", "replication"], "master_link_status:up")
            });
        }
    }
}

/// Returns the first and the last slot of a primary.
fn range(primary: usize) -> (u16, u16) {
    let bound = |primary: usize| (primary * 16384 / PRIMARIES) as u16;
    (bound(primary), bound(primary + 1) - 1)
}

pub fn wait(what: &str, is_so: impl FnMut() -> bool) {
    block_until(what, PATIENCE, is_so);
}

impl Server {
    fn start(program: &str, dir: &Path, ports: &[u16], node_timeout: Duration) -> Self {
        let (port, bus) = (ports[0], ports[1].to_string());
        let home = dir.join(port.to_string());
        std::fs::create_dir(&home).expect("a directory");
        let child = Command::new(program)
            .args([
                "--port",
                &port.to_string(),
                "--cluster-port",
                &bus,
                "--bind",
                "127.0.0.1",
                "--cluster-enabled",
                "yes",
            ])
            .args([
                "--cluster-node-timeout",
                &node_timeout.as_millis().to_string(),
            ])
            // A lost primary makes only its own slots unavailable, and its replica takes over
            // regardless of the age of its data.
            .args([
                "--cluster-require-full-coverage",
                "no",
                "--cluster-replica-validity-factor",
                "0",
            ])
            .args([
                "--repl-diskless-sync-delay",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ])
            .arg(&home)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server can be started; install Redis or Valkey");
        Self { child, port }
    }

    /// Waits until the server answers; returns false if it exited instead.
    fn listens(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let client =
                redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("a URL");
            let connection = client.get_connection_with_timeout(Duration::from_secs(1));
            if connection
                .is_ok_and(|mut connection| redis::cmd("PING").exec(&mut connection).is_ok())
            {
                return true;
            }
            let has_ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
