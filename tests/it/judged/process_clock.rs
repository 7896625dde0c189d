//! A wall clock of a process, set by a test.

use ferrokube_testkit::Launch;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Loaded before libc, whose clock it replaces.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/judged/process_clock.c");

/// The system's clock, until it is set.
pub(super) struct ProcessClock {
    /// Seconds, mapped by the process.
    offset: File,
    directory: TempDir,
}

impl ProcessClock {
    /// Builds the library, with the C compiler that the build needs.
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let offset = File::create(directory.path().join("offset")).unwrap();
        let clock = Self { offset, directory };
        clock.set(0);
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", SOURCE, "-o"]).arg(clock.library());
        assert!(compiler.status().unwrap().success());
        clock
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("process_clock.so")
    }

    /// Makes it the clock of a process and its restarts.
    pub(super) fn given_to(&self, launch: Launch) -> Launch {
        let [library, offset] = [self.library(), self.directory.path().join("offset")];
        launch
            .environment("LD_PRELOAD", library.to_str().unwrap())
            .environment("FERROKUBE_TEST_CLOCK", offset.to_str().unwrap())
    }

    /// Sets the clock to this many seconds after the system's.
    pub(super) fn set(&self, seconds: i64) {
        self.offset.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}
