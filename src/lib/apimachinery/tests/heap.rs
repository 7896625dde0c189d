//! Heap use of value trees, with a counting allocator.
#![expect(unsafe_code, reason = "an allocator that counts")]

use ferrokube_apimachinery::{heap, json, yaml};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn note(change: isize) {
    LIVE.with(|live| {
        live.set(live.get() + change);
        PEAK.with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: everything is forwarded to the system allocator; the counters are thread-local cells and
// do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks exist for a moment.
        note(size as isize);
        note(-(layout.size() as isize));
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes held by a call's result, peak bytes of the call, and the result.
fn measure<T>(call: impl FnOnce() -> T) -> (usize, usize, T) {
    let before = LIVE.get();
    PEAK.set(before);
    let made = call();
    ((LIVE.get() - before) as usize, (PEAK.get() - before) as usize, made)
}

const SIZE: usize = 300_000;

fn list(item: &str) -> String {
    format!("[{}]", vec![item; SIZE / (item.len() + 1)].join(","))
}

/// Bodies with the largest trees for their size.
fn hostile() -> Vec<(&'static str, String)> {
    let deep = |open: &str, close: &str, levels: usize| {
        list(&format!("{}{}", open.repeat(levels), close.repeat(levels)))
    };
    let fields = |value: &str| {
        format!(
            "{{{}}}",
            (0..SIZE / 12)
                .map(|number| format!("\"{number:x}\":{value}"))
                .collect::<Vec<_>>()
                .join(",")
        )
    };
    let shuffled = |value: &str| {
        let keys =
            (0..SIZE as u64 / 12).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44);
        format!(
            "{{{}}}",
            keys.map(|key| format!("\"{key:x}\":{value}")).collect::<Vec<_>>().join(",")
        )
    };
    vec![
        ("numbers", list("0")),
        ("floats", list("1e9")),
        ("nulls", list("null")),
        ("empty lists", list("[]")),
        ("empty maps", list("{}")),
        ("empty strings", list("\"\"")),
        ("short strings", list("\"a\"")),
        ("strings just too long", list(&format!("\"{}\"", "a".repeat(25)))),
        (
            "escaped strings",
            list(
                "\"\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\"",
            ),
        ),
        ("lists of one", list("[0]")),
        ("lists of three", list("[0,0,0]")),
        ("maps of one", list("{\"\":0}")),
        ("maps of one, named", list("{\"a\":0}")),
        ("maps of three", list("{\"a\":0,\"b\":0,\"c\":0}")),
        ("maps in maps", list("{\"\":{\"\":{}}}")),
        ("deep lists", deep("[", "]", 500)),
        ("deep maps", list(&format!("{}0{}", "{\"\":".repeat(500), "}".repeat(500)))),
        ("one map", fields("0")),
        ("one map of maps", fields("{}")),
        ("one map, shuffled", shuffled("0")),
        ("repeated keys", format!("{{{}}}", vec!["\"a\":[0,0]"; SIZE / 10].join(","))),
    ]
}

#[test]
fn json_trees_take_the_computed_bytes_within_the_bound() {
    for (name, body) in hostile() {
        let bound = heap::json_bound(body.as_bytes());
        let (held, peak, read) = measure(|| json::read_any(body.as_bytes()).expect(name));
        let said = heap::bytes(&read.value);
        let times = |bytes: usize| bytes as f64 / body.len() as f64;
        println!(
            "{name:<24} held {:>6.1}x said {:>6.1}x peak {:>6.1}x bound {:>6.1}x",
            times(held),
            times(said),
            times(peak),
            times(bound)
        );
        assert!(said + 1024 >= held - held / 50, "{name}: {said} of {held}");
        assert!(peak <= bound, "{name}: {peak} of {bound}");
        assert!(
            peak <= 12 * body.len() + body.len() / 2 + 4096,
            "{name}: {peak} for {} bytes",
            body.len()
        );
        assert!(bound <= 25 * body.len() + (10 << 20), "{name}: {bound} for {} bytes", body.len());
    }
}

/// Short bodies are not counted beforehand: their lists grow.
#[test]
fn short_bodies_take_no_more_than_the_bound() {
    for (name, body) in
        [("numbers", "0,"), ("lists", "[],"), ("maps", "{\"\":0},"), ("strings", "\"a\",")]
    {
        for length in [1, 10, 1_000, 16_000] {
            let body = format!("[{}0]", body.repeat(length / body.len() + 1));
            let (_, peak, _) = measure(|| json::read_any(body.as_bytes()).expect(name));
            assert!(peak <= heap::json_bound(body.as_bytes()), "{name}: {peak} of {}", body.len());
        }
    }
}

#[test]
fn yaml_trees_stay_within_the_bound() {
    for (name, body) in hostile().into_iter().chain(hostile_yaml()) {
        let body = format!("# not JSON\n{body}");
        let bound = heap::yaml_bound(body.as_bytes());
        let (held, peak, read) = measure(|| yaml::read_any(body.as_bytes()));
        let times = |bytes: usize| bytes as f64 / body.len() as f64;
        println!(
            "{name:<24} held {:>6.1}x peak {:>6.1}x bound {:>6.1}x",
            times(held),
            times(peak),
            times(bound)
        );
        assert!(peak <= bound, "{name}: {peak} of {bound}");
        drop(read);
    }
}

fn hostile_yaml() -> Vec<(&'static str, String)> {
    vec![
        ("block list of nothing", "-\n".repeat(SIZE / 2)),
        ("block list of lists", "- []\n".repeat(SIZE / 5)),
        ("block lists in a line", format!("{}x\n", "- ".repeat(500))),
        ("block list of maps", "- a:\n".repeat(SIZE / 5)),
        ("flow list of pairs", format!("[{}]", "a: ,".repeat(SIZE / 4))),
        ("aliases", format!("a: &a [{}]\nb: [{}]\n", "0,".repeat(1_000), "*a,".repeat(80))),
    ]
}

/// Half of the body limit, and far more than may be read of it.
const LARGE: usize = 1_500_000;

/// Bodies whose bound exceeds the limit: the reader stops in time.
#[test]
fn no_yaml_takes_more_than_one_body_may() {
    let filled = |open: &str, piece: &str, close: &str| {
        format!("{open}{}{close}", piece.repeat(LARGE / piece.len()))
    };
    let shapes = [
        ("flow list", filled("# x\n[", "a,", "]")),
        ("flow list of pairs", filled("[", "a: ,", "]")),
        ("flow list of empty pairs", filled("[", ": ,", "]")),
        ("flow list of keys", filled("[", "? ,", "]")),
        ("flow list of lists", filled("[", "[],", "]")),
        ("flow map", filled("{", "a,", "}")),
        ("anchors", filled("[", "&a ", "]")),
        ("tags", filled("[", "!a ", "]")),
        ("aliases", filled("&a x: [", "*a,", "]")),
        ("strings", filled("[", "\"\" ", "]")),
        ("quotes", filled("[", "'a',", "]")),
        ("not closed", filled("[", "a,", "")),
        ("a list below a map", filled("a:\n  b: [", "a,", "]")),
        ("block list of nothing", filled("", "-\n", "")),
        ("block list of maps", filled("", "- a:\n", "")),
        ("block list of lists", filled("", "- []\n", "")),
        ("block map", (0..LARGE / 9).map(|number| format!("{number:x}:\n")).collect()),
        ("lines in a scalar", filled("a: \"", "a\n ", "\"")),
        ("one string", filled("a: |\n ", "a", "\n")),
        ("one escaped string", filled("a: \"", "\\n", "\"")),
        ("JSON", filled("{\"a\": [", "[],", "0]}")),
        ("almost JSON", filled("{a: [", "[],", "0]}")),
    ];
    for (name, body) in shapes {
        let bound = heap::yaml_bound(body.as_bytes());
        let (_, peak, read) = measure(|| yaml::read_any(body.as_bytes()).map(|_| ()));
        println!(
            "{name:<24} peak {:>5.1} MB bound {:>5.1} MB {read:?}",
            peak as f64 / 1e6,
            bound as f64 / 1e6
        );
        assert!(peak <= heap::LARGEST, "{name}: {peak}");
        assert!(peak <= bound, "{name}: {peak} of {bound}");
    }
}

/// Ordinary YAML is read at any length.
#[test]
fn long_yaml_is_read() {
    let folded: String = (0..20_000).map(|_| format!("    {}\n", "word ".repeat(14))).collect();
    let fields: String =
        (0..60_000).map(|number| format!("  key-{number}: value-{number}\n")).collect();
    let embedded: String = (0..50_000)
        .map(|number| format!("    {{\"a\": [{number}, {{\"b\": true}}]}},\n"))
        .collect();
    let numbers = (0..8_000).map(|number| number.to_string()).collect::<Vec<_>>().join(", ");
    for (name, body) in [
        ("a folded string", format!("data:\n  a: \"\n{folded}    \"\n")),
        ("a plain string", format!("data:\n  a:\n{folded}")),
        ("fields", format!("data:\n{fields}")),
        ("JSON in a string", format!("data:\n  a.json: |\n{embedded}")),
        ("a list in brackets", format!("data: [{numbers}]\n")),
        (
            "braces",
            format!(
                "{{data: {{a: [{}]}}}}",
                numbers.split(", ").take(3_000).collect::<Vec<_>>().join(", ")
            ),
        ),
    ] {
        let (_, peak, read) = measure(|| yaml::read_any(body.as_bytes()).map(|_| ()));
        println!(
            "{name:<24} {} bytes, bound {}, peak {peak}",
            body.len(),
            heap::yaml_bound(body.as_bytes())
        );
        read.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
