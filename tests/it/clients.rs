//! The packages in `clients/`: their examples run against this executable.

use crate::FERROKUBE;
use std::path::Path;
use std::process::Command;

fn run(directory: &str, command: &mut Command) {
    let output = command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(directory))
        .env("FERROKUBE", FERROKUBE)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_python_package_starts_control_planes() {
    run(
        "python/examples",
        Command::new("python3")
            .args(["-m", "unittest"])
            .env("PYTHONPATH", "../src")
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

/// Where Node is installed, which the README does not ask for. `FERROKUBE_MUST_NODE` fails instead
/// of skipping.
#[test]
fn the_node_package_starts_control_planes() {
    if Command::new("node").arg("--version").output().is_ok() {
        run("node", Command::new("node").arg("--test"));
    } else {
        assert!(std::env::var_os("FERROKUBE_MUST_NODE").is_none(), "no node");
        eprintln!("skipped: no node");
    }
}
