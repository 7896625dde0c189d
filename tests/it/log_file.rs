//! The log file in all-in-one's data directory, so that `ferrokube trace` needs only the object:
//! rotated, and private.

use crate::FERROKUBE;
use crate::objects::made;
use crate::trails::{ADMIN, actions, has_line, has_request, id, story};
use ferrokube_testkit::{BOUND, Cluster, Launch, wait_until};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NAMESPACES: &str = "/api/v1/namespaces";
const OFF: &str = "--feature-gates=LogTracking=false";

/// `ferrokube trace WHAT` with all-in-one's default data directory.
fn trace(cluster: &Cluster, words: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    symlink(cluster.data_dir(), home.path().join("ferrokube")).unwrap();
    Command::new(FERROKUBE)
        .arg("trace")
        .args(words)
        .env("XDG_DATA_HOME", home.path())
        .output()
        .unwrap()
}

/// The log file and its rotated predecessors.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("ferrokube"))
        .collect()
}

#[tokio::test]
async fn l12_in_all_in_one_trace_needs_no_arguments_beyond_the_object() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let namespace = made(
        &admin,
        NAMESPACES,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "harbor"}}),
    )
    .await;
    let family = id(&namespace, "initial-trace-id");
    let both = || async {
        let output = trace(&cluster, &["namespace/harbor", "--json"]);
        let found = story(&output);
        let creation = actions(&found, family);
        let request = has_request(creation, "create", NAMESPACES, ADMIN);
        let line = has_line(creation, "root-ca-certificate-publisher", "reconciled");
        if request && line { Ok(()) } else { Err(format!("{request} {line} {found:#}")) }
    };
    wait_until("the request and the controller's line", BOUND, both).await;
    let absent = trace(&cluster, &["ns/nowhere"]);
    assert_eq!(absent.status.code(), Some(1), "{}", String::from_utf8_lossy(&absent.stderr));
    let text = String::from_utf8(trace(&cluster, &["ns/harbor"]).stdout).unwrap();
    assert!(
        text.contains(&format!("trace {family}"))
            && text.contains("create /api/v1/namespaces by kubernetes-admin -> 201"),
        "{text}"
    );

    let file = cluster.data_dir().join("ferrokube.log");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // Controllers go on logging until then.
    cluster.terminate().unwrap();
    let before = fs::read_to_string(&file).unwrap();
    assert!(!before.contains(": request verb="), "requests are in the audit log: {before}");
    cluster.restart_with(&[OFF]).unwrap();
    let added = || async {
        let text = fs::read_to_string(&file).unwrap();
        let added =
            text.strip_prefix(&before).unwrap_or_else(|| panic!("it goes on where it was: {text}"));
        if added.contains("the API server is ready") { Ok(added.to_owned()) } else { Err(text) }
    };
    let added = wait_until("the log goes on", BOUND, added).await;
    assert!(!added.contains("trace_id="), "L07: {added}");
}

#[tokio::test]
async fn the_log_file_is_bounded() {
    let cluster = Launch::new(FERROKUBE)
        .flag("--log-level=debug")
        .flag("--log-file-maxsize=1")
        .flag("--log-file-maxbackup=1")
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let path = format!("/api/v1/namespaces/default/configmaps/{}", "x".repeat(6000));
    for _ in 0..600 {
        admin.get(&path).await.unwrap();
    }
    // It may be rotated at any time, also while it is looked at.
    wait_until("two files, of which one is full", BOUND, async || {
        admin.get(&path).await.unwrap();
        let files = files(&cluster.data_dir());
        let bytes = files.iter().filter_map(|path| Some(fs::metadata(path).ok()?.len()));
        let bytes: u64 = bytes.sum();
        let is_bounded = files.len() == 2 && bytes > 1 << 20 && bytes <= 2 << 20;
        if is_bounded { Ok(()) } else { Err(format!("{bytes} bytes in {files:?}")) }
    })
    .await;
    assert!(cluster.log().len() > 3 << 20, "standard error has it all");
}

#[tokio::test]
async fn log_file_flags_set_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let (chosen, none) = (folder.path().join("chosen.json"), folder.path().join("none"));
    let flag = format!("--log-file={}", chosen.display());
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(flag)
        .flag("--log-format=json")
        .start()
        .unwrap();
    assert!(files(&cluster.data_dir()).is_empty(), "an API server of its own keeps none by itself");
    let line = || async {
        let text = fs::read_to_string(&chosen).unwrap_or_default();
        text.lines()
            .find(|line| line.contains("the API server is ready"))
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .ok_or(text)
    };
    assert_eq!(wait_until("the line is there", BOUND, line).await["level"], "INFO");
    for flags in [&["--log-file=-"][..], &["--storage=memory"]] {
        let cluster = flags
            .iter()
            .fold(Launch::new(FERROKUBE), |launch, flag| launch.flag(*flag))
            .start()
            .unwrap();
        assert!(files(&cluster.data_dir()).is_empty(), "{flags:?}");
    }
    let refused = Launch::new(FERROKUBE)
        .flag(format!("--log-file={}/x/y", none.display()))
        .command(&folder.path().join("data"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("cannot use --log-file"),
        "{refused:?}"
    );
}

/// Files damaged by crashes, rotation or by hand: lines of a known form are found, the rest is
/// counted, and nothing is fatal.
#[test]
fn l11_bad_log_files_are_skipped_and_counted() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let id = "0af7651916cd43dd8448eb211c80319c";
    let line = |text: &str| {
        format!("2026-11-21T03:00:00Z INFO x: {text} trace_id={id} span_id=b7ad6b7169203331\n")
    };
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("a.log.1.gz", &gzip(&line("rotated")));
    write("cut.log.2.gz", &gzip(&line("cut"))[..30]);
    let noise: Vec<u8> =
        (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    write("binary", &noise);
    write("long.log", (line(&"x".repeat(2 << 20)) + &line("after")).as_bytes());
    let terminal = line("a\u{1b}[31mb");
    write(
        "broken.log",
        format!("{{\"message\":\"broken {id}\nno form {id}\n{terminal}\u{1b}[31m {id}\n")
            .as_bytes(),
    );
    write("empty.log", b"");
    let search = |what: &str| {
        Command::new(FERROKUBE).args(["trace", what, "--logs"]).arg(folder.path()).output().unwrap()
    };
    let output = search(id);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for found in [
        "rotated",
        "after",
        "a\\u{1b}[31mb",
        "cut.log.2.gz was not read completely",
        "! 4 lines were skipped",
    ] {
        assert!(text.contains(found), "{found}: {text}");
    }
    assert!(!text.contains('\u{1b}'));
    assert_eq!(search(&"f".repeat(32)).status.code(), Some(1), "no line has it");
    for wrong in ["", "no-id", "/", "configmap/", "a/b/c"] {
        assert_eq!(search(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
