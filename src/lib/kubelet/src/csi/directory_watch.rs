//! Changes of directories (inotify), so that they are not read every second.

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes of events that are read at a time.
const EVENTS: usize = 4096;

/// Watched directories. The kernel limits their number per user.
pub(super) struct DirectoryWatch(AsyncFd<OwnedFd>);

impl DirectoryWatch {
    /// Watches none yet.
    #[expect(deprecated, reason = "sound with an owned descriptor; what replaces it is unsafe")]
    pub(super) fn new() -> io::Result<Self> {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self(AsyncFd::with_interest(watch, Interest::READABLE)?))
    }

    /// Adds a directory; idempotent. One that is removed is no longer watched.
    pub(super) fn add(&self, directory: &Path) -> io::Result<()> {
        let entries = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let own = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        inotify::add_watch(self.0.get_ref(), directory, entries | own)?;
        Ok(())
    }

    /// Waits for a change since the last call; cancel safe.
    pub(super) async fn changed(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        let mut events = [0; EVENTS];
        loop {
            match rustix::io::read(self.0.get_ref(), &mut events[..]) {
                Ok(_) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        ready.clear_ready();
        Ok(())
    }
}
