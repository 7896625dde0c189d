//! The executable: sets up the process, picks the role, nothing else. Start reading at [`cmd`].

mod cmd;
mod memory;

use std::process::ExitCode;

fn main() -> ExitCode {
    let started = std::time::Instant::now();
    memory::set_up();
    // With them an idle server holds 20 MB more, for memory that it does not use; a kernel that cannot do without them only costs that.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // Before anything makes a TLS client: two crypto libraries could be linked, and the choice is ours.
    let _ = rustls::crypto::ring::default_provider().install_default();
    cmd::run(std::env::args_os().collect(), started)
}
