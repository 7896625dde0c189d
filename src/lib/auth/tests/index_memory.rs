//! Memory of the index, as the process's RSS: no other test may run in this process.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_auth::rbac::RbacIndex;

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
fn fault_34_a_bindings_subject_takes_few_bytes() {
    let mut index = RbacIndex::default();
    index.put_binding(&binding(0, 5_000));
    let before = resident();
    (1..21).for_each(|number| index.put_binding(&binding(number, 5_000)));
    let each = (resident() - before) / 100_000;
    println!("{each} bytes per subject");
    assert!(each < 400, "{each}");
}
