//! Operating system services: users, ownership, locks, and processes that an earlier supervisor
//! left behind.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};

use super::Error;
use super::layout::{Layout, NAMES};

/// The user that the servers run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub uid: u32,
    pub gid: u32,
    pub name: String,
    /// True if the supervisor is root and must switch to this user.
    pub step_down: bool,
}

impl User {
    /// Returns the current user; for root an unprivileged one, because Postgres refuses to run as
    /// root.
    ///
    /// The owner of existing data comes first, so that `sudo make demo` works after `make demo`.
    pub fn choose(layout: &Layout) -> Result<Self, Error> {
        let me = geteuid();
        if !me.is_root() {
            return Ok(Self {
                uid: me.as_raw(),
                gid: rustix::process::getegid().as_raw(),
                name: "yourself".to_owned(),
                step_down: false,
            });
        }
        let passwd = fs::read_to_string("/etc/passwd")
            .map_err(Error::io("reading", Path::new("/etc/passwd")))?;
        if let Ok(home) = fs::metadata(layout.home("postgres"))
            && home.uid() != 0
        {
            let name = users(&passwd)
                .find(|user| user.uid == home.uid())
                .map_or(home.uid().to_string(), |user| user.name);
            return Ok(Self {
                uid: home.uid(),
                gid: home.gid(),
                name,
                step_down: true,
            });
        }
        let named = |wanted: &str| users(&passwd).find(|user| user.name == wanted);
        Ok(named("postgres")
            .or_else(|| named("nobody"))
            .unwrap_or(Self {
                uid: 65_534,
                gid: 65_534,
                name: "65534".to_owned(),
                step_down: true,
            }))
    }

    /// Makes a command run as this user. Functions set with `pre_exec` run after the change of
    /// user.
    pub fn apply(&self, command: &mut Command) {
        if self.step_down {
            // The standard library also drops root's supplementary groups here.
            command.uid(self.uid).gid(self.gid);
        }
    }

    /// Returns true if the user can enter the directory, which is tried and not computed from
    /// modes.
    pub fn can_enter(&self, dir: &Path) -> bool {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "cd -- \"$1\"", "sh"])
            .arg(dir)
            .current_dir("/");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.apply(&mut command);
        command.status().is_ok_and(|status| status.success())
    }

    /// Creates a directory that only this user can enter, or checks that an existing one belongs to
    /// this user.
    ///
    /// The check matters in /tmp, where any user may have created it before.
    pub fn own_private_dir(&self, dir: &Path, help: &'static str) -> Result<(), Error> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) if self.step_down => lchown(dir, Some(self.uid), Some(self.gid))
                .map_err(Error::io("changing the owner of", dir))?,
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("creating", dir)(error)),
        }
        let found = fs::symlink_metadata(dir).map_err(Error::io("looking at", dir))?;
        if !found.is_dir() || found.uid() != self.uid {
            return Err(Error::NotOurs {
                path: dir.to_path_buf(),
                owner: found.uid(),
                wanted: self.uid,
                help,
            });
        }
        fs::set_permissions(dir, Permissions::from_mode(0o700))
            .map_err(Error::io("setting the mode of", dir))
    }
}

/// Returns the users in the text of /etc/passwd.
fn users(passwd: &str) -> impl Iterator<Item = User> + '_ {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        // macOS writes the id of the user nobody as -2.
        let mut id = || fields.next()?.parse::<i64>().ok().map(|id| id as u32);
        Some(User {
            name: name.to_owned(),
            uid: id()?,
            gid: id()?,
            step_down: true,
        })
    })
}

/// Creates a directory that every user may enter and that the supervisor owns.
pub(super) fn open_dir(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(Error::io("creating", dir))?;
    if fs::metadata(dir)
        .map_err(Error::io("looking at", dir))?
        .uid()
        == geteuid().as_raw()
    {
        fs::set_permissions(dir, Permissions::from_mode(0o755))
            .map_err(Error::io("setting the mode of", dir))?;
    }
    Ok(())
}

/// Adds the right to enter for all users, so that the servers' user reaches the files below. For
/// root only.
///
/// A directory with other entries than the stack's own is left as it is: `--dir /root` must not
/// open root's home.
pub(super) fn let_enter(layout: &Layout) -> Result<(), Error> {
    let dir = &layout.dir;
    let entries = fs::read_dir(dir).map_err(Error::io("looking into", dir))?;
    if !entries.flatten().all(|entry| {
        entry
            .file_name()
            .to_str()
            .is_some_and(|name| NAMES.contains(&name))
    }) {
        return Ok(());
    }
    let mode = fs::metadata(dir)
        .map_err(Error::io("looking at", dir))?
        .permissions()
        .mode();
    fs::set_permissions(dir, Permissions::from_mode(mode | 0o011))
        .map_err(Error::io("setting the mode of", dir))
}

/// Takes the lock of a directory, for as long as the file stays open.
pub(super) fn lock(layout: &Layout) -> Result<File, Error> {
    let path = layout.lock();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(&path)
        .map_err(Error::io("opening", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let pid = fs::read_to_string(&path)
                .unwrap_or_default()
                .trim()
                .to_owned();
            return Err(Error::InUse {
                dir: layout.dir.clone(),
                pid,
            });
        }
        Err(fs::TryLockError::Error(error)) => return Err(Error::io("locking", &path)(error)),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(Error::io("writing", &path))?;
    Ok(file)
}

/// Stops a server whose supervisor was killed before it could.
///
/// Its process id is the first line of the file, but ids are reused, so its command line must also
/// name a path below this stack's data.
pub(super) async fn stop_orphan(pid_file: &Path, data: &Path, signal: Signal) {
    let Some(pid) = pid_in(pid_file) else { return };
    for (signal, tries) in [(signal, 200), (Signal::KILL, 40)] {
        if serves(pid, data) {
            let _ = kill_process(pid, signal);
        }
        for _ in 0..tries {
            if !serves(pid, data) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Returns true if the process in the file lives but does not serve this stack's data, because its
/// id was reused.
pub(super) fn pid_was_reused(pid_file: &Path, data: &Path) -> bool {
    pid_in(pid_file).is_some_and(|pid| {
        test_kill_process(pid) != Err(rustix::io::Errno::SRCH) && !serves(pid, data)
    })
}

fn pid_in(file: &Path) -> Option<Pid> {
    Pid::from_raw(
        fs::read_to_string(file)
            .ok()?
            .lines()
            .next()?
            .trim()
            .parse()
            .ok()?,
    )
}

fn serves(pid: Pid, data: &Path) -> bool {
    test_kill_process(pid).is_ok() && command_line(pid).contains(&format!("{}/", data.display()))
}

fn command_line(pid: Pid) -> String {
    let proc = PathBuf::from(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    if let Ok(bytes) = fs::read(proc) {
        return String::from_utf8_lossy(&bytes).replace('\0', " ");
    }
    let ps = Command::new("ps")
        .args([
            "-ww",
            "-o",
            "command=",
            "-p",
            &pid.as_raw_nonzero().to_string(),
        ])
        .output();
    ps.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default()
}

/// Returns true if /dev/shm is too small for Postgres' parallel queries; containers often have 64
/// MB.
pub(super) fn shm_is_tiny() -> bool {
    cfg!(target_os = "linux")
        && rustix::fs::statvfs("/dev/shm").map_or(true, |shm| {
            shm.f_blocks.saturating_mul(shm.f_frsize) < 256 << 20
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_from_linux_and_from_macos() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n# a comment\npostgres:x:101:104::/var/lib/postgresql:/bin/bash\nnobody:*:-2:-2:User:/:/bin/false\n";

        let found: Vec<_> = users(passwd)
            .map(|user| (user.name, user.uid, user.gid))
            .collect();

        assert_eq!(
            found,
            [
                ("root".to_owned(), 0, 0),
                ("postgres".to_owned(), 101, 104),
                ("nobody".to_owned(), u32::MAX - 1, u32::MAX - 1)
            ]
        );
    }
}
