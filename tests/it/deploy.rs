//! `ferrokube install`, and the installed units: their command lines, under the names of the
//! components, as separate processes that notify a service manager.

use crate::FERROKUBE;
use ferrokube_features::KubernetesVersion;
use ferrokube_testkit::{BOUND, Client, Kubectl, newest_kubectl, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Where units expect executables and state.
const BIN: &str = "/usr/local/bin/";
const STATE: &str = "/var/lib/ferrokube";
const UNITS: &str = "usr/local/lib/systemd/system";

/// A machine: a directory that is its root.
struct InstalledRoot {
    root: TempDir,
}

/// A unit's process, killed on drop.
struct UnitProcess {
    child: Child,
    notified: UnixDatagram,
}

impl InstalledRoot {
    fn new() -> Self {
        let machine = Self { root: tempfile::tempdir().unwrap() };
        machine.install(&[]);
        // `StateDirectory=`.
        let mut state = fs::DirBuilder::new();
        state.recursive(true).mode(0o700).create(machine.path(STATE)).unwrap();
        machine
    }

    fn install(&self, flags: &[&str]) {
        let mut command = Command::new(FERROKUBE);
        let output =
            command.args(["install", "--root"]).arg(self.root.path()).args(flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn unit(&self, name: &str) -> Unit {
        Unit(fs::read_to_string(self.path(UNITS).join(name)).unwrap())
    }

    /// The unit's command, with the flags that its settings file would add, in this root.
    fn command(&self, name: &str, flags: &str) -> Command {
        let unit = self.unit(name);
        let line = unit.value("ExecStart").replace("$FLAGS", flags);
        let line = match unit.values("Environment").first() {
            Some(setting) => {
                let (name, value) = setting.split_once('=').unwrap();
                line.replace(&format!("${{{name}}}"), value)
            }
            None => line,
        };
        let words: Vec<String> = line
            .split_whitespace()
            .map(|word| word.replace(STATE, &self.path(STATE).display().to_string()))
            .collect();
        let executable = words[0].strip_prefix(BIN).expect("an installed executable");
        let mut command = Command::new(self.path(BIN).join(executable));
        command.args(&words[1..]).env_clear().stdin(Stdio::null());
        command
    }

    /// Starts a unit as systemd does, and waits until it says that it is ready.
    fn start(&self, name: &str, flags: &str) -> UnitProcess {
        self.start_until(name, flags, "READY=1\n")
    }

    /// Waits until it says these words.
    fn start_until(&self, name: &str, flags: &str, words: &str) -> UnitProcess {
        let unit = self.unit(name);
        assert_eq!(unit.value("Type"), "notify");
        let path = self.root.path().join(format!("{name}.notify"));
        let _ = fs::remove_file(&path);
        let notified = UnixDatagram::bind(&path).unwrap();
        notified.set_read_timeout(Some(BOUND)).unwrap();
        let log = fs::File::create(self.root.path().join(format!("{name}.log"))).unwrap();
        let child = self
            .command(name, flags)
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "30000000")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let service = UnitProcess { child, notified };
        // In any order.
        let (mut said, mut alive) = (false, false);
        while !said || !alive {
            let message = service.message();
            said |= message.starts_with(words);
            alive |= message == "WATCHDOG=1\n";
        }
        service
    }

    fn kubeconfig(&self) -> PathBuf {
        self.path(STATE).join("admin.kubeconfig")
    }

    fn admin(&self) -> Client {
        Client::from_kubeconfig(&self.kubeconfig()).unwrap()
    }

    fn check(&self, kubectl: &Kubectl, arguments: &[&str], words: &str) {
        let ran = kubectl.run(&self.kubeconfig(), arguments);
        assert!(ran.ok && ran.stdout.contains(words), "{arguments:?}: {ran:?}");
    }
}

impl UnitProcess {
    fn message(&self) -> String {
        let mut bytes = [0; 512];
        let count = self.notified.recv(&mut bytes).expect("a notification in time");
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    /// As `systemctl stop`.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        while self.message() != "STOPPING=1\n" {}
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for UnitProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text of a unit.
struct Unit(String);

impl Unit {
    fn values(&self, name: &str) -> Vec<&str> {
        let start = format!("{name}=");
        self.0.lines().filter_map(|line| line.strip_prefix(start.as_str())).collect()
    }

    fn value(&self, name: &str) -> &str {
        let values = self.values(name);
        assert_eq!(values.len(), 1, "{name} in {}", self.0);
        values[0]
    }
}

const CONTROL_PLANE: [&str; 2] =
    ["ferrokube-apiserver.service", "ferrokube-controller-manager.service"];
const FREE_PORT: &str = "--secure-port=0";
/// What the check of an upgrade asks for.
const FEATURE_API: &str = "--feature-gates=FeatureAPI=true --feature-evaluation-time=1s";

#[tokio::test(flavor = "multi_thread")]
async fn the_units_start_a_control_plane_that_outlives_upgrades_and_reinstallation() {
    let machine = InstalledRoot::new();
    let kubectl = newest_kubectl();
    let target = machine.unit("ferrokube-control-plane.target");
    assert_eq!(target.value("Wants"), CONTROL_PLANE.join(" "));
    let start = || {
        [
            machine.start(CONTROL_PLANE[0], &format!("{FREE_PORT} {FEATURE_API}")),
            machine.start(CONTROL_PLANE[1], FREE_PORT),
        ]
    };
    let [server, manager] = start();
    machine.check(&kubectl, &["create", "namespace", "shop"], "created");
    machine.check(
        &kubectl,
        &["-n", "shop", "create", "configmap", "page", "--from-literal=color=blue"],
        "created",
    );
    // By a controller, in the other process.
    let admin = machine.admin();
    wait_until("the account of the namespace", BOUND, || async {
        let path = "/api/v1/namespaces/shop/serviceaccounts/default";
        let response = admin.get(path).await.map_err(|error| error.to_string())?;
        if response.status == 200 { Ok(()) } else { Err(response.text) }
    })
    .await;
    // Safe once the features of a new cluster have settled.
    wait_until("the check of an upgrade", BOUND, || async {
        let check = machine.command("ferrokube-check-upgrade.service", "").output().unwrap();
        if check.status.success() { Ok(()) } else { Err(format!("{check:?}")) }
    })
    .await;

    // An upgrade under running processes, to the same version, and a restart.
    machine.install(&[]);
    manager.stop();
    server.stop();
    let [server, manager] = start();
    let page = ["-n", "shop", "get", "configmap", "page", "-o", "jsonpath={.data.color}"];
    machine.check(&kubectl, &page, "blue");
    manager.stop();
    server.stop();

    // Everything but state and settings goes, and comes again.
    machine.install(&["--uninstall"]);
    assert!(!machine.path(UNITS).join(CONTROL_PLANE[0]).exists());
    assert!(!machine.path(BIN).join("ferrokube").exists());
    machine.install(&[]);
    let server = machine.start("ferrokube.service", FREE_PORT);
    machine.check(&kubectl, &page, "blue");
    server.stop();
}

/// The kubelet notifies, too, but is not ready without a runtime; a flag of the settings file goes
/// before one of the unit.
#[test]
fn the_unit_of_the_kubelet_starts_it() {
    let machine = InstalledRoot::new();
    let root = machine.path("/pods");
    let flags = format!(
        "--root-dir={} --hostname-override=node-a --container-runtime-endpoint=unix://{}/none.sock",
        root.display(),
        machine.root.path().display()
    );
    let waits = "STATUS=waiting for the container runtime: ";
    let kubelet = machine.start_until("ferrokube-kubelet.service", &flags, waits);
    assert!(root.is_dir());
    kubelet.stop();
}

/// Settings that give a service mounts of its own.
const OWN_MOUNTS: [&str; 17] = [
    "BindPaths",
    "BindReadOnlyPaths",
    "InaccessiblePaths",
    "PrivateDevices",
    "PrivateMounts",
    "PrivateTmp",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "RootDirectory",
    "TemporaryFileSystem",
];

/// Otherwise it would start the containers with what is below the mount.
#[test]
fn the_runtime_sees_the_volumes_that_the_kubelet_mounts() {
    let unit = InstalledRoot::new().unit("ferrokube-kubelet.service");
    let own: Vec<&str> =
        OWN_MOUNTS.into_iter().filter(|setting| !unit.values(setting).is_empty()).collect();
    assert!(own.is_empty(), "{own:?}");
    let has = |setting: &str, word: &str| unit.value(setting).split(' ').any(|it| it == word);
    assert!(has("CapabilityBoundingSet", "CAP_SYS_ADMIN"));
    assert!(has("SystemCallFilter", "@mount"));
}

#[test]
fn the_check_is_for_the_next_minor() {
    let unit = InstalledRoot::new().unit("ferrokube-check-upgrade.service");
    let KubernetesVersion { major, minor } = KubernetesVersion::CURRENT;
    assert_eq!(unit.value("Environment"), format!("UPGRADE_TO={major}.{}", minor + 1));
}

#[test]
fn services_have_few_rights_and_limits() {
    let machine = InstalledRoot::new();
    for entry in fs::read_dir(machine.path(UNITS)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".service") {
            continue;
        }
        let unit = machine.unit(&name);
        let of_all = [
            ("NoNewPrivileges", "yes"),
            ("MemoryDenyWriteExecute", "yes"),
            ("RestrictNamespaces", "yes"),
            ("StateDirectoryMode", "0700"),
            ("UMask", "0077"),
        ];
        // The kubelet makes files of the users of pods.
        let of_users = [
            ("User", "ferrokube"),
            ("CapabilityBoundingSet", ""),
            ("ProtectSystem", "strict"),
            ("ProtectHome", "yes"),
        ];
        let is_kubelet = name == "ferrokube-kubelet.service";
        for (setting, value) in of_all.iter().chain(of_users.iter().filter(|_| !is_kubelet)) {
            let (setting, value) = (*setting, *value);
            assert_eq!(unit.value(setting), value, "{name}: {setting}");
        }
        for limit in ["MemoryMax", "TasksMax"] {
            assert!(!unit.value(limit).is_empty(), "{name}: {limit}");
        }
        // The settings that it names are installed.
        let settings = unit.value("EnvironmentFile").trim_start_matches('-');
        let text = fs::read_to_string(machine.path(settings)).unwrap();
        assert!(text.lines().any(|line| line == "FLAGS="), "{settings}");
    }
}

/// What systemd itself says, where it is installed.
#[test]
fn systemd_reads_the_units() {
    let machine = InstalledRoot::new();
    let units: Vec<PathBuf> =
        fs::read_dir(machine.path(UNITS)).unwrap().map(|entry| entry.unwrap().path()).collect();
    let Ok(verified) =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output()
    else {
        return missing_systemd();
    };
    let text = String::from_utf8_lossy(&verified.stderr);
    let wrong: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("ferrokube") || line.contains(&*units_in(&machine)))
        // The executables are in another root.
        .filter(|line| !line.contains("is not executable"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Exposure that systemd sees, of 100: the kubelet is root.
#[test]
fn systemd_rates_the_units_as_safe() {
    let machine = InstalledRoot::new();
    for (name, exposure) in [
        ("ferrokube.service", 15),
        ("ferrokube-apiserver.service", 15),
        ("ferrokube-controller-manager.service", 15),
        ("ferrokube-check-upgrade.service", 15),
        ("ferrokube-kubelet.service", 46),
    ] {
        let unit = machine.path(UNITS).join(name);
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", "--no-pager"]).arg(&unit);
        let Ok(rated) = analyze.arg(format!("--threshold={exposure}")).output() else {
            return missing_systemd();
        };
        let text = String::from_utf8_lossy(&rated.stdout);
        let rating = text.lines().last().unwrap_or_default();
        assert!(rated.status.success(), "{name}: {rating}");
        assert!(rating.contains("exposure level"), "{name}: {rating}");
    }
}

/// With `FERROKUBE_MUST_SYSTEMD` a failure.
fn missing_systemd() {
    assert!(std::env::var_os("FERROKUBE_MUST_SYSTEMD").is_none(), "no systemd-analyze");
    eprintln!("skipped: no systemd-analyze");
}

/// Below a prefix of its own, without root's directories: everything is there.
#[test]
fn a_prefix_of_its_own_has_everything() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = directory.path().join("tried");
    let run = |flags: &[&str]| {
        let mut command = Command::new(FERROKUBE);
        let output =
            command.args(["install", "--prefix"]).arg(&prefix).args(flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let next = run(&[]);
    let units = prefix.join("lib/systemd/system");
    assert!(next.contains(&format!("systemctl link {}/ferrokube*", units.display())), "{next}");
    let unit = Unit(fs::read_to_string(units.join("ferrokube-apiserver.service")).unwrap());
    let executable = unit.value("ExecStart").split(' ').next().unwrap().to_owned();
    assert_eq!(Path::new(&executable), prefix.join("bin/kube-apiserver"));
    assert!(Command::new(&executable).arg("--help").output().unwrap().status.success());
    let settings = unit.value("EnvironmentFile").trim_start_matches('-').to_owned();
    assert!(Path::new(&settings).starts_with(&prefix), "{settings}");
    fs::write(&settings, "FLAGS=--secure-port=7443\n").unwrap();
    run(&[]);
    run(&["--uninstall"]);
    assert!(!Path::new(&executable).exists() && !units.join("ferrokube.service").exists());
    assert_eq!(fs::read_to_string(&settings).unwrap(), "FLAGS=--secure-port=7443\n");
    assert!(!prefix.join("bin").exists() && !prefix.join("lib").exists());
}

#[test]
fn what_is_not_installed_cannot_be_uninstalled() {
    let directory = tempfile::tempdir().unwrap();
    let (code, text) = install_in(directory.path(), &["--root", "image", "--uninstall"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("nothing is installed in image/usr/local: name the --prefix"), "{text}");
    assert!(!directory.path().join("image").exists());
}

fn units_in(machine: &InstalledRoot) -> String {
    machine.path(UNITS).display().to_string()
}

fn install_in(directory: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(FERROKUBE);
    let output = command.arg("install").args(flags).current_dir(directory).output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_root_may_be_relative() {
    let directory = tempfile::tempdir().unwrap();
    let (code, text) = install_in(directory.path(), &["--root", "image"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(directory.path().join("image").join(UNITS).join(CONTROL_PLANE[0]).exists());
}

#[test]
fn names_of_others_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("usr/local/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("kube-apiserver"), "the real one").unwrap();
    let output =
        Command::new(FERROKUBE).args(["install", "--root"]).arg(root.path()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("is not a link to ferrokube"), "{text}");
    assert!(!Path::new(&bin.join("ferrokube")).exists());
}
