//! Starting, watching and stopping one server.
//!
//! Every server leads a process group of its own, so that a Ctrl-C at the terminal reaches only
//! Flyball and the supervisor decides the order of stopping. If the kernel supports it, a server is
//! also signalled to stop when the supervisor dies.

use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::{Instant, sleep, timeout};

use super::Error;
use super::layout::Layout;
use super::output::log_line;
use super::unix::{User, stop_orphan};

/// Longest time for a server to become ready; recovery after a crash is included.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Longest time for a server to stop before it is killed.
const SERVER_STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Size above which a server's log is put aside when the server starts, in bytes.
const LOG_BYTES_MAX: u64 = 10 << 20;

pub(super) type Step<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The differences between servers; one file per technology implements it.
pub(super) trait Technology {
    /// Returns the server's name in messages, logs and paths.
    fn name(&self) -> &'static str;
    /// Returns the URL for clients, once the server is ready.
    fn url(&self) -> String;
    /// Creates the server's directories and writes its configuration; repeated at each start.
    fn prepare(&mut self) -> Step<'_, Result<(), Error>>;
    /// Returns the command that runs the server in the foreground.
    fn command(&self) -> Command;
    /// Makes one real request, and succeeds if it is answered.
    fn ready(&self) -> Step<'_, Result<(), String>>;
    /// Returns the signal that asks the server for a quick but orderly stop.
    fn stop_signal(&self) -> Signal;
    /// Returns true if another start may help, judged by the log before the server ended.
    fn worth_another_try(&mut self, _log_tail: &str) -> bool {
        false
    }
}

/// A server and, while it runs, its process.
pub(super) struct ManagedServer {
    pub technology: Box<dyn Technology>,
    layout: Layout,
    user: User,
    child: Option<Process>,
}

// === impl Server ===

impl ManagedServer {
    pub fn new(technology: Box<dyn Technology>, layout: &Layout, user: &User) -> Self {
        Self {
            technology,
            layout: layout.clone(),
            user: user.clone(),
            child: None,
        }
    }

    pub fn name(&self) -> &'static str {
        self.technology.name()
    }

    /// Starts the server and waits until it answers.
    pub async fn start(&mut self) -> Result<(), Error> {
        let pid_file = self.layout.pid(self.name());
        stop_orphan(&pid_file, &self.layout.data, self.technology.stop_signal()).await;
        let _ = fs::remove_file(pid_file);
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            self.technology.prepare().await?;
            let log_from = self.launch()?;
            match self.wait_until_ready(deadline).await {
                Ok(()) => return Ok(()),
                Err(why) => {
                    let ended = self.take_ended().is_some();
                    self.stop().await;
                    let log = self.layout.log(self.name());
                    let log_tail = last_lines(&log, log_from);
                    if ended
                        && self.technology.worth_another_try(&log_tail)
                        && Instant::now() < deadline
                    {
                        sleep(Duration::from_millis(300)).await;
                        continue;
                    }
                    return Err(Error::Start {
                        server: self.name(),
                        why,
                        log_tail,
                        log,
                    });
                }
            }
        }
    }

    /// Starts the process; returns the size of its log before the start.
    pub fn launch(&mut self) -> Result<u64, Error> {
        let path = self.layout.log(self.name());
        let log = open_log(&path)?;
        let log_from = log.metadata().map_or(0, |file| file.len());
        let mut command = self.technology.command();
        prepare_command(
            &mut command,
            &self.user,
            &self.layout.data,
            &log,
            self.technology.stop_signal(),
            &path,
        )?;
        let program = PathBuf::from(command.get_program());
        let child = command.spawn().map_err(Error::io("starting", &program))?;
        let _ = fs::write(self.layout.pid(self.name()), format!("{}\n", child.id()));
        self.child = Some(Process(child));
        Ok(log_from)
    }

    async fn wait_until_ready(&mut self, deadline: Instant) -> Result<(), String> {
        loop {
            let refused = match timeout(Duration::from_secs(5), self.technology.ready()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(refused)) => refused,
                Err(_) => "no answer within 5 s".to_owned(),
            };
            if let Some(status) = self.ended() {
                return Err(format!("it ended with {status}"));
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "not ready after {} s: {refused}",
                    READY_WITHIN.as_secs()
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the exit status if the process ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.0.try_wait().ok()?
    }

    /// Returns the exit status if the process ended by itself, and forgets the process.
    pub fn take_ended(&mut self) -> Option<ExitStatus> {
        let status = self.ended()?;
        self.child = None;
        let _ = fs::remove_file(self.layout.pid(self.name()));
        Some(status)
    }

    /// Asks the process to stop, waits, and kills it if it does not.
    pub async fn stop(&mut self) {
        let Some(mut process) = self.child.take() else {
            return;
        };
        process.signal(self.technology.stop_signal());
        let stopped = async {
            while matches!(process.0.try_wait(), Ok(None)) {
                sleep(Duration::from_millis(5)).await
            }
        };
        if timeout(SERVER_STOP_TIMEOUT, stopped).await.is_err() {
            log_line(&format!(
                "{} did not stop within {} s; killing it",
                self.name(),
                SERVER_STOP_TIMEOUT.as_secs()
            ));
        }
        drop(process);
        let _ = fs::remove_file(self.layout.pid(self.name()));
    }
}

/// A process that is killed with its group when dropped, unless it ended before.
struct Process(Child);

impl Process {
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.0.id()).ok()?)
    }

    /// Signals the process alone, because Postgres and Redis look after their own children.
    fn signal(&self, signal: Signal) {
        let _ = self.pid().map(|pid| kill_process(pid, signal));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.pid().map(|pid| kill_process_group(pid, Signal::KILL));
            let _ = self.0.wait();
        }
    }
}

/// Runs a helper such as initdb to its end, in the same environment as the server.
pub(super) async fn run_to_end(
    mut command: Command,
    name: &'static str,
    layout: &Layout,
    user: &User,
) -> Result<(), Error> {
    let path = layout.log(name);
    let log = open_log(&path)?;
    let log_from = log.metadata().map_or(0, |file| file.len());
    prepare_command(&mut command, user, &layout.data, &log, Signal::TERM, &path)?;
    let program = PathBuf::from(command.get_program());
    let mut process = Process(command.spawn().map_err(Error::io("starting", &program))?);
    let status = loop {
        if let Some(status) = process
            .0
            .try_wait()
            .map_err(Error::io("waiting for", &program))?
        {
            break status;
        }
        sleep(Duration::from_millis(10)).await;
    };
    if status.success() {
        return Ok(());
    }
    Err(Error::Start {
        server: name,
        why: format!("it ended with {status}"),
        log_tail: last_lines(&path, log_from),
        log: path,
    })
}

fn prepare_command(
    command: &mut Command,
    user: &User,
    cwd: &Path,
    log: &File,
    on_parent_death: Signal,
    log_path: &Path,
) -> Result<(), Error> {
    for (name, _) in std::env::vars_os() {
        // A PGPORT or PGDATA in the environment must not reach a private server.
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    let output = |log: &File| log.try_clone().map_err(Error::io("opening", log_path));
    command
        .stdin(Stdio::null())
        .stdout(output(log)?)
        .stderr(output(log)?);
    // The servers' user may be unable to enter the supervisor's own working directory.
    command.current_dir(cwd).process_group(0);
    user.apply(command);
    die_with_us(command, on_parent_death);
    Ok(())
}

/// Makes the kernel signal the child when this thread ends; the supervisor spawns from its main
/// thread only.
#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "pre_exec has no safe form; between fork and exec only two system calls are made"
)]
fn die_with_us(command: &mut Command, signal: Signal) {
    let supervisor = Pid::from_raw(std::process::id().cast_signed());
    // SAFETY: both calls are plain system calls, and nothing is allocated.
    // It runs after the change of user, which would clear the setting.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(signal))?;
            // The supervisor may have died before the line above.
            if rustix::process::getppid() == supervisor {
                Ok(())
            } else {
                Err(rustix::io::Errno::SRCH.into())
            }
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_us(_command: &mut Command, _signal: Signal) {}

fn open_log(path: &Path) -> Result<File, Error> {
    if fs::metadata(path).is_ok_and(|file| file.len() > LOG_BYTES_MAX) {
        let _ = fs::rename(path, path.with_extension("log.old"));
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(Error::io("opening", path))
}

/// Returns the last lines of a log, from a position on.
fn last_lines(path: &Path, from: u64) -> String {
    const LINES: usize = 8;
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(path)
        && file.seek(SeekFrom::Start(from)).is_ok()
    {
        let _ = file.take(1 << 20).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
