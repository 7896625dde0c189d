//! docs/library.md as a newcomer follows it: a new package outside of the workspace, with the code
//! of the page.

use super::{ROOT, RunningProgram, cargo};
use crate::FERROKUBE;
use ferrokube_testkit::{Launch, newest_kubectl};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fenced blocks in a language, in order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("\n```{language}\n");
    let block = |rest: &str| rest.split("\n```").next().unwrap_or_default().to_owned() + "\n";
    page.split(&start).skip(1).map(block).collect()
}

fn example(name: &str) -> String {
    fs::read_to_string(format!("{ROOT}/examples/{name}.rs")).unwrap()
}

/// Replaces what occurs once.
fn replace(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old} in {text}");
    text.replace(old, new)
}

/// Crates named by dependencies.
fn crates(dependencies: &str) -> impl Iterator<Item = String> {
    let names = dependencies.lines().filter_map(|line| line.split_once(" = "));
    names.map(|(name, _)| name.replace('-', "_"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_leads_to_a_control_plane() {
    let page = fs::read_to_string(format!("{ROOT}/docs/library.md")).unwrap();
    let [server, controllers]: [String; 2] = blocks(&page, "toml").try_into().unwrap();
    let [bundle, controller]: [String; 2] = blocks(&page, "rust").try_into().unwrap();
    let quoted = |code: &'static str| {
        assert!(page.contains(&format!("`{code}`")), "the page lacks {code}");
        code
    };
    // Sections 2, 3 and 5. The first is built with the code of the second.
    let few = quoted(".bundle(few())");
    let few = replace(&example("kube_core"), ".bundle(ferrokube_resources::bundle())", few);
    let own = quoted(r#".controller("toymaker", "toymaker", toymaker)"#);
    let mini = example("kube_hyper_mini");
    let mini = replace(&mini, ".controllers([", &format!("{own}.controllers(["));
    let [field]: [String; 1] = blocks(&page, "text").try_into().unwrap();
    let tickets = example("sample_generic_controlplane");
    let tickets = replace(&tickets, "\n\";\n", &format!("\n{field}\";\n"));
    let programs = [
        ("shop_few", format!("{few}\n{bundle}")),
        ("shop_box", tickets),
        ("shop_mini", format!("{mini}\n{controller}")),
        ("shop_halls", example("aggregated")),
    ];
    for (name, program) in programs.iter().filter(|(name, _)| *name != "shop_mini") {
        let early = crates(&controllers).find(|later| program.contains(&format!("{later}::")));
        assert_eq!(early, None, "{name} needs what the page adds in section 5");
    }

    let directory = tempfile::tempdir().unwrap();
    cargo(directory.path(), &["new", "--vcs", "none", "shop"], "");
    let shop = directory.path().join("shop");
    let mut manifest = fs::read_to_string(shop.join("Cargo.toml")).unwrap();
    manifest += &format!("{server}{controllers}").replace("../ferrokube", ROOT);
    // As in `tests/outside`, whose dependencies it shares.
    manifest += "\n[profile.dev]\ndebug = \"line-tables-only\"\n";
    fs::write(shop.join("Cargo.toml"), manifest).unwrap();
    assert!(page.contains("\ncp ../ferrokube/Cargo.lock .\n"), "a reader gets these versions");
    fs::copy(Path::new(ROOT).join("Cargo.lock"), shop.join("Cargo.lock")).unwrap();
    fs::remove_file(shop.join("src/main.rs")).unwrap();
    fs::create_dir(shop.join("src/bin")).unwrap();
    for (name, program) in &programs {
        fs::write(shop.join(format!("src/bin/{name}.rs")), program).unwrap();
    }
    cargo(&shop, &["build"], "");

    let start = |name: &str| RunningProgram::start(&built(name));
    let few = start("shop_few");
    assert_eq!(few.resources().len(), 6, "{:?}", few.resources());
    few.stop();
    let tickets = start("shop_box");
    assert!(tickets.kubectl("explain ticket.spec.price").contains("<integer>"));
    tickets.stop();
    let mini = start("shop_mini");
    mini.until(
        "the account of the controller",
        "get serviceaccounts --namespace=kube-system --output=name",
        "serviceaccount/toymaker",
    )
    .await;
    mini.stop();
    is_served_behind_another_server(&page, &shop);
}

fn built(name: &str) -> PathBuf {
    Path::new(FERROKUBE).with_file_name(name)
}

/// Section 6: three terminals in the directory of the package; free ports instead of the page's.
fn is_served_behind_another_server(page: &str, shop: &Path) {
    let all = blocks(page, "sh");
    let [.., server, program, clients] = &all[..] else { panic!("three terminals: {all:?}") };
    let mut front = Launch::new(FERROKUBE).start().unwrap();
    symlink(front.data_dir(), shop.join("front")).unwrap();

    let run = "cp ../ferrokube/examples/aggregated.rs src/main.rs\ncargo run -- halls ";
    let arguments = program.trim_end().strip_prefix(run).expect(run);
    let arguments = arguments.replace("front/", &format!("{}/front/", shop.display()));
    let arguments = arguments.replace(":7443", ":0");
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let halls = RunningProgram::start_with(&built("shop_halls"), &arguments);
    symlink(halls.kubeconfig.parent().unwrap(), shop.join("halls")).unwrap();

    let mut words = server.split_whitespace();
    let flag = words.find(|word| word.starts_with("--service-address=")).unwrap();
    let address = halls.url.trim_start_matches("https://");
    front.restart_with(&[&flag.replace("127.0.0.1:7443", address)]).unwrap();

    let kubectl = newest_kubectl().command(&front.kubeconfig());
    let kubectl = kubectl.get_program().display();
    let script = format!("set -e\nkubectl() {{ '{kubectl}' \"$@\"; }}\n{clients}");
    let mut bash = Command::new("bash");
    let ran = bash.args(["-c", &script]).current_dir(shop).env("HOME", shop).output().unwrap();
    let (shown, errors) = (String::from_utf8(ran.stdout).unwrap(), ran.stderr);
    assert!(ran.status.success(), "{shown}{}", String::from_utf8_lossy(&errors));
    assert!(shown.lines().last().unwrap_or_default().starts_with("big "), "{shown}");
    halls.stop();
}
