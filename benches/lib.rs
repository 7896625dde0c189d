//! Benches of the server as a process: see `docs/benchmarks.md`.

/// The executable to measure: the release build in the target directory of this bench.
pub use ferrokube_testkit::built_binary;
