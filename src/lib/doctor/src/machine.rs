//! The machine: disk, clock, ports, limits.

use crate::Finding;
use rustix::fs::StatVfsMountFlags;
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Free bytes below which a server soon refuses writes.
const FULL_BYTES: u64 = 64 << 20;
/// Free bytes below which merges and logs may not fit.
const TIGHT_BYTES: u64 = 1 << 30;
/// Free inodes for a day's files.
const FEW_INODES: u64 = 1000;
/// Descriptors needed for the default number of connections, and for files.
const DESCRIPTORS: u64 = 8192;
/// 2026-01-01: a clock whose battery died shows an earlier time.
const RELEASED: Duration = Duration::from_secs(1_767_225_600);
/// Tolerated clock skew of files that another machine wrote.
const SLACK: Duration = Duration::from_secs(300);

/// Space and inodes of the file system of a directory, or of its first parent that exists.
pub fn disk(directory: &Path) -> Finding {
    const DISK: &str = "disk";
    let Some(existing) = directory.ancestors().find(|path| path.exists()) else {
        return Finding::skipped(DISK, "no parent of the directory exists");
    };
    let stat = match rustix::fs::statvfs(existing) {
        Ok(stat) => stat,
        Err(error) => return Finding::failed(DISK, format!("{}: {error}", existing.display()), ""),
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let shown = format!("{} MiB free in {}", free >> 20, existing.display());
    if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Finding::failed(
            DISK,
            format!("{} is read-only", existing.display()),
            "mount it writable",
        );
    }
    if free < FULL_BYTES {
        return Finding::failed(DISK, shown, "make room: writes are refused on a full disk");
    }
    // Some file systems have no inodes to count.
    if stat.f_files > 0 && stat.f_favail < FEW_INODES {
        let what = format!("{} free inodes in {}", stat.f_favail, existing.display());
        return Finding::failed(DISK, what, "remove small files");
    }
    if free < TIGHT_BYTES {
        return Finding::warning(DISK, shown, "make room: at least 1 GiB");
    }
    Finding::ok(DISK, shown)
}

/// The clock: certificates, tokens and leases depend on it.
pub fn clock(directory: &Path, now: SystemTime) -> Finding {
    const CLOCK: &str = "clock";
    const ADVICE: &str = "set the clock, and run a time service (systemd-timesyncd, chrony)";
    if now < SystemTime::UNIX_EPOCH + RELEASED {
        return Finding::failed(CLOCK, "the clock is before the release of this version", ADVICE);
    }
    let written =
        |name: &str| fs::metadata(directory.join(name)).and_then(|found| found.modified());
    let newest = ["admin.kubeconfig", "lock", "version", "pki/ca.crt"]
        .iter()
        .filter_map(|name| written(name).ok())
        .max();
    if let Some(newest) = newest
        && let Ok(ahead) = newest.duration_since(now)
        && ahead > SLACK
    {
        let what = format!("files are {} s in the future: the clock was set back", ahead.as_secs());
        return Finding::warning(CLOCK, what, ADVICE);
    }
    let known = ["/run/systemd/timesync/synchronized", "/run/chrony", "/run/ntpd.pid"];
    match known.iter().find(|path| Path::new(path).exists()) {
        Some(path) => Finding::ok(CLOCK, format!("a time service runs ({path})")),
        None => Finding::warning(CLOCK, "no time service is known to run here", ADVICE),
    }
}

/// Whether an address can be listened on.
pub fn port(address: SocketAddr) -> Finding {
    const PORT: &str = "port";
    let what = |text: &str| format!("{address} {text}");
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(PORT, what("is free")),
        Err(error) => match error.kind() {
            ErrorKind::AddrInUse => Finding::failed(
                PORT,
                what("is in use by another process"),
                format!(
                    "find it with `ss -ltnp sport = {}`, or choose another port with --secure-port",
                    address.port()
                ),
            ),
            ErrorKind::AddrNotAvailable => Finding::failed(
                PORT,
                what("is not an address of this machine"),
                "choose another with --bind-address",
            ),
            ErrorKind::PermissionDenied => Finding::failed(
                PORT,
                what("needs a privilege"),
                "choose a port above 1023 with --secure-port",
            ),
            _ => Finding::failed(PORT, what(&error.to_string()), ""),
        },
    }
}

/// File descriptors of a process that is started like this one.
pub fn descriptors() -> Finding {
    const LIMITS: &str = "limits";
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < DESCRIPTORS => {
            let what = format!("{limit} file descriptors");
            Finding::warning(
                LIMITS,
                what,
                "raise `ulimit -Hn`, or LimitNOFILE in the unit, to 65536",
            )
        }
        Some(limit) => Finding::ok(LIMITS, format!("{limit} file descriptors")),
        None => Finding::ok(LIMITS, "file descriptors without a limit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckOutcome;

    #[test]
    fn a_port_in_use_and_a_foreign_address_are_found() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = port(taken.local_addr().unwrap());
        assert_eq!(found.outcome, CheckOutcome::Failed);
        assert!(found.what.ends_with("is in use by another process"), "{found:?}");
        assert!(
            port("192.0.2.1:6443".parse().unwrap()).what.contains("not an address of this machine")
        );
        assert_eq!(port("127.0.0.1:0".parse().unwrap()).outcome, CheckOutcome::Ok);
    }

    #[test]
    fn clocks_that_were_set_back_are_found() {
        let made = tempfile::tempdir().unwrap();
        fs::write(made.path().join("version"), "1").unwrap();
        let now = SystemTime::now();
        assert_ne!(clock(made.path(), now).outcome, CheckOutcome::Failed);
        let back = clock(made.path(), now - Duration::from_secs(3600));
        assert!(back.what.contains("the clock was set back"), "{back:?}");
        assert_eq!(clock(made.path(), SystemTime::UNIX_EPOCH).outcome, CheckOutcome::Failed);
    }

    #[test]
    fn the_disk_of_a_directory_that_does_not_exist_is_that_of_its_parent() {
        let made = tempfile::tempdir().unwrap();
        let found = disk(&made.path().join("a/b"));
        assert!(found.what.contains(&made.path().display().to_string()), "{found:?}");
    }
}
