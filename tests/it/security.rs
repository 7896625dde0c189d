//! `docs/security.md`: every limit exists in the code with the documented number.

use std::fs;
use std::path::Path;

/// The numbers in a cell, as bytes, seconds or counts.
fn numbers(cell: &str) -> Vec<f64> {
    let words: Vec<&str> =
        cell.split_whitespace().map(|word| word.trim_matches([';', ',', '(', ')', '.'])).collect();
    let units = [
        ("KiB", 1024.0),
        ("MiB", 1024.0 * 1024.0),
        ("million", 1e6),
        ("s", 1.0),
        ("min", 60.0),
        ("h", 3600.0),
    ];
    let number = |(at, word): (usize, &&str)| {
        let number: f64 = word.replace(',', "").parse().ok()?;
        let unit = words.get(at + 1).and_then(|next| units.iter().find(|(name, _)| name == next));
        Some(number * unit.map_or(1.0, |(_, factor)| *factor))
    };
    words.iter().enumerate().filter_map(number).collect()
}

/// Evaluates a constant's expression: products and shifts of numbers, durations in seconds, the
/// first field of a struct.
fn value(expression: &str) -> Option<f64> {
    let expression = expression.trim().trim_matches('"');
    if let Some((_, fields)) = expression.split_once('{') {
        return value(fields.split_once(':')?.1.split(',').next()?);
    }
    for (constructor, seconds) in [("Duration::from_secs(", 1.0), ("Duration::from_millis(", 0.001)]
    {
        if let Some(inner) = expression.strip_prefix(constructor) {
            return Some(value(inner.trim_end_matches(')'))? * seconds);
        }
    }
    if let Some((number, bits)) = expression.split_once("<<") {
        return Some(value(number)? * value(bits)?.exp2());
    }
    if let Some((one, other)) = expression.split_once('*') {
        return Some(value(one)? * value(other)?);
    }
    if let Some(hours) = expression.strip_suffix('h') {
        return Some(value(hours)? * 3600.0);
    }
    expression.replace('_', "").parse().ok()
}

/// The value of a constant, a default's field or a flag in a file.
fn defined(text: &str, name: &str) -> Option<f64> {
    let mut flag = None;
    text.lines().map(str::trim).filter(|line| !line.starts_with("//")).find_map(|line| {
        if let Some((_, default)) = line.split_once("default_value") {
            flag = default
                .split_once('=')
                .map(|(_, default)| default.split([',', ')']).next().unwrap_or_default());
        }
        let (head, rest) = line.split_once(':')?;
        if head.split(' ').next_back()? != name {
            return None;
        }
        if head.contains("const ") {
            return value(rest.split_once('=')?.1.trim_end_matches(';'));
        }
        value(rest.trim_end_matches(',')).or_else(|| value(flag?))
    })
}

#[test]
fn expressions_are_evaluated() {
    let text = "/// A: 1\npub(crate) const A: usize = 3 << 20;\nconst B: Duration = Duration::from_secs(24 * 3600);\n    stall: Duration::from_millis(1_500),\n\
        const C: Few = Few { burst: 600, each: X };\n#[arg(long, default_value_t = 30)]\npub(crate) days: u32,\n#[arg(default_value = \"24h\", value_parser = x)]\nlife: D,";
    let values = ["A", "B", "stall", "C", "days", "life", "D"].map(|name| defined(text, name));
    assert_eq!(
        values,
        [
            Some(3_145_728.0),
            Some(86_400.0),
            Some(1.5),
            Some(600.0),
            Some(30.0),
            Some(86_400.0),
            None
        ]
    );
    assert_eq!(
        numbers("3 MiB; 10,000, 10 min (1.5 KiB in all), 10 million"),
        [3_145_728.0, 10_000.0, 600.0, 1536.0, 1e7]
    );
}

/// The table of attacks has a row for each attack of the bench, in its order, and nothing else; the
/// text names those that are newer than the table. What it says of the table is true of it.
#[test]
fn documented_attacks_are_those_of_the_bench() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let section = page.split("## Under attack").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| attack"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let source = fs::read_to_string(root.join("benches/hostile/attacks/mod.rs")).unwrap();
    let names =
        source.lines().filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","));
    let (text, _) = section.split_once("\n|").unwrap();
    let (text, newer) = text.split_once("Newer than this run: ").unwrap_or((text, ""));
    let newer: Vec<&str> = newer.split('`').skip(1).step_by(2).collect();
    let (unmeasured, measured): (Vec<&str>, Vec<&str>) =
        names.partition(|name| newer.contains(name));
    assert_eq!(unmeasured, newer);
    let expected: Vec<&str> = std::iter::once("quiet").chain(measured).collect();
    let documented: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(documented, expected);
    let bench = fs::read_to_string(root.join("benches/hostile/main.rs")).unwrap();
    let [slowdown, mib] =
        ["MAX_SLOWDOWN", "MAX_PEAK_MIB"].map(|name| defined(&bench, name).unwrap());
    let aims = numbers(text);
    assert!(aims.contains(&slowdown) && aims.contains(&(mib * 1024.0 * 1024.0)), "{text}");
    let number = |cell: &str| cell.replace(',', "").parse::<f64>().unwrap();
    for row in &rows {
        let [name, _, _, small, errors, _, _, large, more_errors, peak, ..] = row[..] else {
            panic!("{row:?}")
        };
        let has_errors = !errors.starts_with("0 of") || !more_errors.starts_with("0 of");
        let misses = number(small) > slowdown || number(large) > slowdown || number(peak) > mib;
        assert_eq!(
            text.contains(&format!("`{name}`")),
            misses || has_errors,
            "{name} misses the aims if and only if the text names it: {row:?}"
        );
    }
}

/// Else a user who fills a node's streams, but no more than half of an API server's, would lock out
/// the others there.
#[test]
fn fault_38_a_kubelet_takes_all_that_an_api_server_shares() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let number = |path: &str, name| {
        let text = fs::read_to_string(root.join("src/lib").join(path)).unwrap();
        defined(&text, name).unwrap()
    };
    let shared = number("connect/src/lib.rs", "MAX_CONNECTIONS");
    let [streams, connections] =
        ["STREAMS", "CONNECTIONS"].map(|name| number("kubelet/src/server/mod.rs", name));
    assert!(streams >= shared && connections > 2.0 * shared, "{streams} {connections} {shared}");
}

#[test]
fn documented_limits_match_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let limits = page.split("## Limits").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut names = 0;
    for row in limits.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [_, most, _, place] = cells[..] else { panic!("{row}") };
        let told = numbers(most);
        let mut text = String::new();
        for word in place.split_whitespace().map(|word| word.trim_matches('`')) {
            if word.contains('/') {
                text = fs::read_to_string(root.join(word))
                    .unwrap_or_else(|error| panic!("{word}: {error}"));
                continue;
            }
            names += 1;
            if told.is_empty() {
                // Computed at run time: only its name is checked.
                assert!(text.contains(word), "no {word} in the file of {row}");
                continue;
            }
            let value =
                defined(&text, word).unwrap_or_else(|| panic!("no {word} in the file of {row}"));
            assert!(told.contains(&value), "{word} is {value}: {row}");
        }
    }
    assert!(names > 40, "{names}");
}
