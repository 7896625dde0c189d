//! Memory of the index, measured as that of the process: the only test in it.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_auth::rbac::Index;

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

fn binding(number: usize, users: usize) -> Document {
    let subjects: Vec<Value> = (0..users)
        .map(|user| json!({"kind": "User", "name": format!("{number}.{user}")}))
        .collect();
    let metadata = json!({"namespace": "n", "name": format!("b{number}")});
    Document::from_value(json!({"metadata": metadata, "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects})).expect("an object")
}

#[test]
fn fault_34_a_subject_of_a_binding_takes_few_bytes() {
    let mut index = Index::default();
    index.put_binding(&binding(0, 5_000));
    let before = resident();
    (1..21).for_each(|number| index.put_binding(&binding(number, 5_000)));
    let each = (resident() - before) / 100_000;
    println!("{each} bytes for each subject");
    assert!(each < 400, "{each}");
}
