//! A private redis-server, for tests that stop, empty or kill it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A private redis-server on a unix socket; it ends with this value.
pub struct Server {
    child: Child,
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub fn start() -> Self {
        // A short path, because a socket path is limited to about 100 bytes.
        let dir = tempfile::Builder::new()
            .prefix("fb")
            .tempdir_in("/tmp")
            .expect("a directory in /tmp");
        let server = Self {
            child: spawn(&dir.path().join("s")),
            dir,
        };
        server.wait();
        server
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Suspends the process, like a machine that hangs.
    pub fn freeze(&self) {
        freeze(&self.child);
    }

    /// Resumes the process.
    pub fn thaw(&self) {
        thaw(&self.child);
    }

    /// Kills it and starts an empty one at the same address.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.socket());
        self.wait();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(self.socket());
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(
                Instant::now() < deadline,
                "redis-server did not listen within 10 s"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Suspends a child process and waits until it is stopped.
pub fn freeze(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).expect("stop redis-server");
    let is_still = waitid(
        WaitId::Pid(pid),
        WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
    );
    assert!(
        is_still
            .expect("waiting for redis-server")
            .is_some_and(|status| status.stopped()),
        "redis-server ended"
    );
}

/// Resumes a child process.
pub fn thaw(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).expect("let redis-server go on");
}

fn spawn(socket: &std::path::Path) -> Child {
    Command::new("redis-server")
        .args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--unixsocket",
        ])
        .arg(socket)
        .arg("--dir")
        .arg(socket.parent().expect("a directory"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server can be started; install Redis or Valkey")
}
