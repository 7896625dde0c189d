//! docs/library.md as a newcomer follows it: a new package outside of the workspace, with the code
//! of the page.

use super::{ROOT, RunningProgram, cargo};
use crate::FERROKUBE;
use std::fs;
use std::path::Path;

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
    ];
    for (name, program) in &programs[..2] {
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

    let start = |name: &str| RunningProgram::start(&Path::new(FERROKUBE).with_file_name(name));
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
}
