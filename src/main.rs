//! The executable: sets up the process and picks the role. Start at [`cmd`].

mod cmd;
mod memory;

use std::process::ExitCode;

fn main() -> ExitCode {
    let started = std::time::Instant::now();
    memory::set_up();
    // Transparent huge pages would cost an idle server 20 MB. Failure is harmless.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // Before any TLS client exists: with two crypto libraries linked, rustls would not choose.
    let _ = rustls::crypto::ring::default_provider().install_default();
    cmd::run(std::env::args_os().collect(), started)
}
