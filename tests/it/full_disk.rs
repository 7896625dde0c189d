//! Fault 7 on a real file system: filled until writes are refused, then to the last byte by another
//! process; everything can still be deleted, and writes resume once there is space.

use crate::FERROKUBE;
use ferrokube_testkit::{ApiResponse, BOUND, Client, Launch, wait_until};
use reqwest::Method;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const OBJECT_BYTES: usize = 900_000;

/// A small ext4 file system in a file; removed on drop.
struct FileSystem {
    directory: tempfile::TempDir,
}

impl FileSystem {
    /// `None`, with a message, where it cannot be mounted: root in a container without loop devices
    /// cannot, either. `options` are mkfs's.
    ///
    /// Panics if it cannot, and `FERROKUBE_MUST_MOUNT` is set.
    fn mounted(bytes: u64, options: &[&str]) -> Option<Self> {
        match Self::mount(bytes, options) {
            Ok(disk) => Some(disk),
            Err(why) => {
                let must = std::env::var_os("FERROKUBE_MUST_MOUNT").is_some();
                assert!(!must, "a small file system cannot be made: {why}");
                eprintln!("skipped: a small file system cannot be made: {why}");
                None
            }
        }
    }

    fn mount(bytes: u64, options: &[&str]) -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let (image, at) = (directory.path().join("image"), directory.path().join("at"));
        File::create(&image).unwrap().set_len(bytes).unwrap();
        std::fs::create_dir(&at).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).args(options).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).args([&image, &at]))?;
        Ok(Self { directory })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("at")
    }

    /// Another writer fills the file system.
    fn fill(&self) {
        let mut file =
            OpenOptions::new().create(true).append(true).open(self.path().join("others")).unwrap();
        for chunk in [vec![7; 1 << 20], vec![7; 4096]] {
            while file.write_all(&chunk).is_ok() {}
        }
        file.sync_all().unwrap();
    }

    fn empty(&self) {
        std::fs::remove_file(self.path().join("others")).unwrap();
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}, {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

/// A server process; killed on drop.
struct SmallDiskServer {
    process: Child,
    _output: BufReader<std::process::ChildStdout>,
    admin: Client,
}

impl SmallDiskServer {
    fn start(data: &Path) -> Self {
        let log = data.with_file_name("server.log");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap_or_else(|_| File::create("/dev/null").unwrap());
        let mut process = Launch::new(FERROKUBE)
            .command(data)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready in "), "{line:?}");
        Self {
            process,
            _output: output,
            admin: Client::from_kubeconfig(&data.join("admin.kubeconfig")).unwrap(),
        }
    }
}

impl Drop for SmallDiskServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config_map(name: &str, bytes: usize, metadata: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"v": "v".repeat(bytes)}});
    object["metadata"]["name"] = name.into();
    object
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
}

async fn create(admin: &Client, namespace: &str, object: &Value) -> ApiResponse {
    admin.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), object).await.unwrap()
}

async fn is_gone(admin: &Client, path: &str) {
    wait_until(&format!("{path} is gone"), BOUND, || async {
        let answer = admin.get(path).await.unwrap();
        if answer.status == 404 { Ok(()) } else { Err(answer.text.chars().take(2000).collect()) }
    })
    .await;
}

/// Creates objects of every kind of deletion; returns their names.
async fn fill_in(admin: &Client) -> Vec<String> {
    for namespace in ["full", "doomed"] {
        let made = admin
            .post(
                "/api/v1/namespaces",
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            )
            .await
            .unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
    }
    for number in 0..20 {
        let held =
            config_map(&format!("held-{number}"), 1000, &json!({"finalizers": ["ex.com/held"]}));
        assert_eq!(create(admin, "full", &held).await.status, 201);
        assert_eq!(
            create(admin, "doomed", &config_map(&format!("small-{number}"), 1000, &json!({})))
                .await
                .status,
            201
        );
    }
    let held = create(
        admin,
        "doomed",
        &config_map("held", OBJECT_BYTES, &json!({"finalizers": ["ex.com/held"]})),
    )
    .await;
    let owner = create(admin, "full", &config_map("owner", OBJECT_BYTES, &json!({}))).await;
    assert_eq!((held.status, owner.status), (201, 201));
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.body["metadata"]["uid"], "blockOwnerDeletion": true});
    assert_eq!(
        create(
            admin,
            "full",
            &config_map("owned", OBJECT_BYTES, &json!({"ownerReferences": [reference]}))
        )
        .await
        .status,
        201
    );
    for number in 0.. {
        let answer = create(
            admin,
            "full",
            &config_map(&format!("large-{number}"), OBJECT_BYTES, &json!({})),
        )
        .await;
        if answer.status != 201 {
            assert_eq!(
                (answer.status, answer.body["reason"].as_str()),
                (507, Some("InsufficientStorage")),
                "{}",
                answer.text
            );
            assert!(
                answer.body["message"]
                    .as_str()
                    .unwrap()
                    .contains("the disk is full: nothing was written"),
                "{}",
                answer.text
            );
            return (0..number).map(|number| format!("large-{number}")).collect();
        }
    }
    unreachable!("it ends")
}

async fn says_so(admin: &Client) {
    let ready = admin.get("/readyz").await.unwrap();
    assert!(ready.status == 500 && ready.text.contains("[-]disk-space failed"), "{}", ready.text);
    assert_eq!(
        (
            admin.get("/livez").await.unwrap().status,
            admin.get("/readyz?exclude=disk-space").await.unwrap().status
        ),
        (200, 200)
    );
    assert!(admin.get("/metrics").await.unwrap().text.contains("\nferrokube_store_disk_full 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_07_a_small_file_system_that_is_full_can_be_emptied() {
    let Some(disk) = FileSystem::mounted(128 << 20, &[]) else { return };
    let data = disk.path().join("data");
    let server = SmallDiskServer::start(&data);
    let names = fill_in(&server.admin).await;
    assert!(names.len() > 20, "{} large objects", names.len());
    disk.fill();
    says_so(&server.admin).await;
    // Without any free space it restarts and serves everything.
    drop(server);
    disk.fill();
    let server = SmallDiskServer::start(&data);
    let admin = &server.admin;
    says_so(admin).await;
    assert_eq!(
        create(admin, "full", &config_map("more", OBJECT_BYTES, &json!({}))).await.status,
        507
    );
    assert_eq!(
        admin.get(&path("full", &names[0])).await.unwrap().body["data"]["v"].as_str().map(str::len),
        Some(OBJECT_BYTES)
    );
    // Foreground: marked, its dependent is deleted first.
    let foreground = admin.request(
        Method::DELETE,
        &format!("{}?propagationPolicy=Foreground", path("full", "owner")),
    );
    assert_eq!(admin.send(foreground).await.unwrap().status, 200);
    for number in 0..20 {
        let held = path("full", &format!("held-{number}"));
        let marked = admin.delete(&held).await.unwrap();
        assert!(
            marked.status == 200 && marked.body["metadata"]["deletionTimestamp"].is_string(),
            "{}",
            marked.text
        );
        let released =
            admin.merge(&held, &json!({"metadata": {"finalizers": null}})).await.unwrap();
        assert_eq!(released.status, 200, "{}", released.text);
        assert_eq!(admin.get(&held).await.unwrap().status, 404);
    }
    assert_eq!(admin.delete("/api/v1/namespaces/doomed").await.unwrap().status, 200);
    for (number, name) in names.iter().enumerate() {
        let gone = admin.delete(&path("full", name)).await.unwrap();
        assert_eq!(gone.status, 200, "{number}: {}", gone.text);
        if number % 8 == 0 {
            disk.fill();
        }
    }
    is_gone(admin, &path("full", "owned")).await;
    is_gone(admin, &path("full", "owner")).await;
    let held = path("doomed", "held");
    wait_until("the namespace's content is marked", BOUND, || async {
        let answer = admin.get(&held).await.unwrap();
        if answer.body["metadata"]["deletionTimestamp"].is_string() {
            Ok(())
        } else {
            Err(answer.text.chars().take(500).collect())
        }
    })
    .await;
    assert_eq!(
        admin.merge(&held, &json!({"metadata": {"finalizers": null}})).await.unwrap().status,
        200
    );
    is_gone(admin, "/api/v1/namespaces/doomed").await;
    assert_eq!(admin.delete("/api/v1/namespaces/full").await.unwrap().status, 200);
    is_gone(admin, "/api/v1/namespaces/full").await;
    // With free space it recovers without a restart.
    disk.empty();
    wait_until("writes go on", BOUND, || async {
        let answer = create(admin, "default", &config_map("more", OBJECT_BYTES, &json!({}))).await;
        if answer.status == 201 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    wait_until("the server is ready", BOUND, || async {
        let answer = admin.get("/readyz").await.unwrap();
        if answer.status == 200 { Ok(()) } else { Err(answer.text) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_07_a_server_starts_without_free_inodes() {
    let Some(disk) = FileSystem::mounted(64 << 20, &["-N", "256"]) else { return };
    let data = disk.path().join("data");
    let server = SmallDiskServer::start(&data);
    let made = create(&server.admin, "default", &config_map("a", 1000, &json!({}))).await;
    assert_eq!(made.status, 201, "{}", made.text);
    // Others take every inode, also what a start gave up for itself.
    let mut files = (0..).map(|number| File::create(disk.path().join(format!("f{number}"))));
    let mut server = Some(server);
    for round in 0..3 {
        let taken = files.position(|file| file.is_err());
        assert!(round > 0 || taken > Some(10), "{taken:?}");
        drop(server.take());
        server = Some(SmallDiskServer::start(&data));
    }
    let admin = &server.expect("started above").admin;
    assert_eq!(admin.get(&path("default", "a")).await.unwrap().status, 200);
    assert_eq!(admin.delete(&path("default", "a")).await.unwrap().status, 200);
    is_gone(admin, &path("default", "a")).await;
}

/// The reserve of the audit log is used up, and others take all the rest.
#[tokio::test(flavor = "multi_thread")]
async fn fault_07_deletes_outlive_the_reserve_of_the_audit_log() {
    let Some(disk) = FileSystem::mounted(128 << 20, &[]) else { return };
    let data = disk.path().join("data");
    let server = SmallDiskServer::start(&data);
    for name in ["full", "doomed"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let made = server.admin.post("/api/v1/namespaces", &namespace).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
    }
    let finalizers = json!({"finalizers": ["ex.com/held"]});
    for number in 0..10 {
        let held = config_map(&format!("held-{number}"), 1000, &finalizers);
        assert_eq!(create(&server.admin, "full", &held).await.status, 201);
        let plain = config_map(&format!("plain-{number}"), 1000, &json!({}));
        for namespace in ["full", "doomed"] {
            assert_eq!(create(&server.admin, namespace, &plain).await.status, 201);
        }
    }
    drop(server);
    std::fs::remove_file(data.join(".audit.log.reserve")).unwrap();
    disk.fill();
    let server = SmallDiskServer::start(&data);
    let admin = &server.admin;
    wait_until("the audit log is full", BOUND, || async {
        disk.fill();
        // Refused, and recorded until there is no room.
        create(admin, "full", &config_map("more", 1000, &json!({}))).await;
        let ready = admin.get("/readyz").await.unwrap();
        if ready.text.contains("[-]audit failed") { Ok(()) } else { Err(ready.text) }
    })
    .await;
    let change = json!({"data": {"v": "w"}});
    let ordinary = admin.merge(&path("full", "plain-0"), &change).await.unwrap();
    assert_eq!(ordinary.status, 500, "{}", ordinary.text);
    for number in 0..10 {
        let held = path("full", &format!("held-{number}"));
        let marked = admin.delete(&held).await.unwrap();
        assert_eq!(marked.status, 200, "{}", marked.text);
        let released =
            admin.merge(&held, &json!({"metadata": {"finalizers": null}})).await.unwrap();
        assert_eq!(released.status, 200, "{}", released.text);
        let gone = admin.delete(&path("full", &format!("plain-{number}"))).await.unwrap();
        assert_eq!(gone.status, 200, "{}", gone.text);
        disk.fill();
    }
    assert_eq!(admin.delete("/api/v1/namespaces/doomed").await.unwrap().status, 200);
    is_gone(admin, "/api/v1/namespaces/doomed").await;
    disk.empty();
    wait_until("writes go on", BOUND, || async {
        let answer = create(admin, "full", &config_map("later", 1000, &json!({}))).await;
        if answer.status == 201 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    // The queue had room for all events.
    let log = std::fs::read_to_string(data.join("audit.log")).unwrap();
    for name in (0..10).flat_map(|number| [format!("held-{number}"), format!("plain-{number}")]) {
        let is_delete = |line: &&str| {
            line.contains(r#""verb":"delete""#) && line.contains(&format!(r#""name":"{name}""#))
        };
        assert_eq!(log.lines().filter(is_delete).count(), 1, "{name}");
    }
}
