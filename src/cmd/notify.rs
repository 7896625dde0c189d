//! systemd's notifications (`sd_notify(3)`): readiness, the end, and the watchdog.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing happens. A message that cannot be sent is
//! dropped: the service manager then acts as it does on silence.

use rustix::process::getpid;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Microseconds added to the service manager's start timeout with each failed attempt; far more
/// than the interval between attempts.
const EXTENSION: u64 = 60_000_000;

/// The service serves; `status` is shown by `systemctl status`.
pub(crate) fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={}\n", status.replace('\n', " ")));
}

/// Shows the step of a start in `systemctl status`; the timeout of the start stays.
pub(crate) fn status(status: &str) {
    notify(&format!("STATUS={}\n", status.replace('\n', " ")));
}

/// Reports why a start waits, and extends its timeout.
pub(crate) fn waiting(why: &str) {
    let why = why.replace('\n', " ");
    notify(&format!("EXTEND_TIMEOUT_USEC={EXTENSION}\nSTATUS=waiting for the storage: {why}\n"));
}

/// The service ends.
pub(crate) fn stopping() {
    notify("STOPPING=1\n");
}

/// Shows the service manager that the runtime works, if it wants that; to be run as a task.
pub(crate) async fn watchdog() {
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let Some(limit) = variable("WATCHDOG_USEC").map(Duration::from_micros) else { return };
    let own = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
    if limit.is_zero() || variable("WATCHDOG_PID").is_some_and(|pid| pid != own) {
        return;
    }
    loop {
        notify("WATCHDOG=1\n");
        tokio::time::sleep(limit / 3).await;
    }
}

fn notify(message: &str) {
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&path, message)
    {
        tracing::debug!(%error, "failed to notify the service manager");
    }
}

fn send(path: &OsStr, message: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    // A full queue must not stop the service.
    socket.set_nonblocking(true)?;
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    socket.send_to_addr(message.as_bytes(), &address).map(drop)
}
