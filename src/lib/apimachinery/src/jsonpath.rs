//! JSONPath of printer columns: fields, indexes, wildcards, recursion and simple filters, in
//! kubectl's dialect.

use crate::document::{Array, Value};
use crate::work;

/// Nodes that the cells of a row may visit, including filters: about a millisecond. Further nodes
/// are not found.
pub const MAX_NODES: usize = 20_000;

/// A parsed path.
#[derive(Debug, PartialEq)]
pub struct JsonPath(Vec<PathStep>);

#[derive(Debug, PartialEq)]
enum PathStep {
    Field(String),
    Index(i64),
    /// Start, end (exclusive) and step.
    Range(Option<i64>, Option<i64>, usize),
    /// Alternatives, in order.
    Union(Vec<PathStep>),
    Every,
    Descend,
    Filter(Box<PathFilter>),
}

#[derive(Debug, PartialEq)]
struct PathFilter {
    path: JsonPath,
    /// `None`: the path must exist.
    test: Option<(Operator, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl JsonPath {
    /// Parses `.spec.a`, `{.a[0]}`, `.status.conditions[?(@.type=="Ready")].status`; `None` if
    /// malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(text);
        parse_steps(text.strip_prefix('$').unwrap_or(text), 0)
    }

    /// First match. `left` counts down the nodes to visit, from [`MAX_NODES`].
    pub fn first<'a>(&self, root: &'a Value, left: &mut usize) -> Option<&'a Value> {
        self.find(root, left).into_iter().next()
    }

    /// Field names, if the path consists of nothing else: such a path does not need a parsed value.
    pub fn names(&self) -> Option<Vec<&str>> {
        self.0
            .iter()
            .map(|step| if let PathStep::Field(name) = step { Some(name.as_str()) } else { None })
            .collect()
    }

    /// `left` counts down the nodes to visit.
    fn find<'a>(&self, root: &'a Value, left: &mut usize) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.0 {
            let mut below = Vec::new();
            for value in found {
                step.apply(value, left, &mut below);
            }
            found = below;
        }
        found
    }
}

/// Counts a node; false if none is left.
fn take(left: &mut usize) -> bool {
    work::count(1);
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

impl PathStep {
    fn apply<'a>(&self, value: &'a Value, left: &mut usize, out: &mut Vec<&'a Value>) {
        if !take(left) {
            return;
        }
        let items = || value.as_array().map_or(&[][..], Array::as_slice);
        match self {
            Self::Field(name) => out.extend(value.get(name)),
            Self::Index(index) => out.extend(at(items(), *index).and_then(|at| items().get(at))),
            Self::Range(from, to, step) => {
                let (from, to) = (
                    from.map_or(Some(0), |from| at(items(), from)),
                    to.map_or(Some(items().len()), |to| at(items(), to)),
                );
                if let Some((from, to)) = from.zip(to) {
                    let range = items().get(from..to.min(items().len())).unwrap_or_default();
                    out.extend(range.iter().step_by((*step).max(1)).take_while(|_| take(left)));
                }
            }
            Self::Union(steps) => steps.iter().for_each(|step| step.apply(value, left, out)),
            Self::Every => out.extend(children(value).take_while(|_| take(left))),
            Self::Descend => descend(value, left, out),
            Self::Filter(filter) => {
                for item in children(value) {
                    if !take(left) {
                        return;
                    }
                    if filter.holds(item, left) {
                        out.push(item);
                    }
                }
            }
        }
    }
}

/// Resolves an index, which may count from the end.
fn at(items: &[Value], index: i64) -> Option<usize> {
    usize::try_from(if index < 0 { i64::try_from(items.len()).unwrap_or(0) + index } else { index })
        .ok()
}

fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let items = value.as_array().into_iter().flatten();
    items.chain(value.as_object().into_iter().flat_map(|fields| fields.values()))
}

/// The value and all its descendants. Iterative: depth costs no stack.
fn descend<'a>(value: &'a Value, left: &mut usize, out: &mut Vec<&'a Value>) {
    let mut at = out.len();
    out.push(value);
    while let Some(value) = out.get(at) {
        let below = children(value).take_while(|_| take(left));
        let below: Vec<&Value> = below.collect();
        out.extend(below);
        at += 1;
    }
}

impl PathFilter {
    fn holds(&self, item: &Value, left: &mut usize) -> bool {
        let Some(found) = self.path.find(item, left).into_iter().next() else { return false };
        let Some((operator, wanted)) = &self.test else { return true };
        let order = match (found, wanted) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) => (a == b).then_some(std::cmp::Ordering::Equal),
        };
        match operator {
            Operator::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Operator::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
            Operator::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Operator::LessEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Operator::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Operator::GreaterEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

fn parse_steps(mut text: &str, depth: u8) -> Option<JsonPath> {
    let mut steps = Vec::new();
    if depth > 4 {
        return None;
    }
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix("..") {
            steps.push(PathStep::Descend);
            text = rest;
            if !text.starts_with('[') {
                text = parse_field(text, &mut steps)?;
            }
        } else if let Some(rest) = text.strip_prefix('.') {
            text = if rest.is_empty() || rest.starts_with('[') {
                rest
            } else {
                parse_field(rest, &mut steps)?
            };
        } else if let Some(rest) = text.strip_prefix('[') {
            text = parse_bracket(rest, &mut steps, depth)?;
        } else if steps.is_empty() {
            text = parse_field(text, &mut steps)?;
        } else {
            return None;
        }
    }
    Some(JsonPath(steps))
}

/// A field up to the next unescaped `.` or `[`.
fn parse_field<'a>(text: &'a str, steps: &mut Vec<PathStep>) -> Option<&'a str> {
    let mut name = String::new();
    let mut symbols = text.char_indices();
    let mut end = text.len();
    while let Some((at, symbol)) = symbols.next() {
        match symbol {
            '\\' => name.push(symbols.next()?.1),
            '.' | '[' => {
                end = at;
                break;
            }
            other => name.push(other),
        }
    }
    if name.is_empty() {
        return None;
    }
    steps.push(if name == "*" { PathStep::Every } else { PathStep::Field(name) });
    Some(&text[end..])
}

/// The content of brackets; returns the text after the closing one.
fn parse_bracket<'a>(text: &'a str, steps: &mut Vec<PathStep>, depth: u8) -> Option<&'a str> {
    if let Some(rest) = text.strip_prefix("?(") {
        let end = rest.find(")]")?;
        steps.push(PathStep::Filter(Box::new(parse_filter(&rest[..end], depth)?)));
        return Some(&rest[end + 2..]);
    }
    if let Some(quote) = text.chars().next().filter(|symbol| matches!(symbol, '\'' | '"')) {
        let end = text[1..].find(&[quote][..])? + 1;
        if let Some(rest) = text[end + 1..].strip_prefix(']') {
            steps.push(PathStep::Field(text[1..end].replace('\\', "")));
            return Some(rest);
        }
    }
    let end = text.find(']')?;
    let mut parts: Vec<PathStep> =
        text[..end].split(',').map(|part| parse_index(part.trim())).collect::<Option<_>>()?;
    steps.push(if parts.len() == 1 { parts.remove(0) } else { PathStep::Union(parts) });
    Some(&text[end + 1..])
}

/// `*`, `2`, `1:3`, `::2` or a quoted name.
fn parse_index(text: &str) -> Option<PathStep> {
    if let Some(quote) = text.chars().next().filter(|symbol| matches!(symbol, '\'' | '"')) {
        let name = text[1..].strip_suffix(quote)?;
        return Some(PathStep::Field(name.replace('\\', "")));
    }
    if text == "*" {
        return Some(PathStep::Every);
    }
    let number =
        |text: &str| if text.is_empty() { Some(None) } else { text.parse::<i64>().ok().map(Some) };
    let parts: Vec<Option<i64>> = text.split(':').map(number).collect::<Option<_>>()?;
    match parts.as_slice() {
        [index] => Some(PathStep::Index((*index)?)),
        [from, to] => Some(PathStep::Range(*from, *to, 1)),
        [from, to, step] => {
            Some(PathStep::Range(*from, *to, usize::try_from(step.unwrap_or(1)).ok()?))
        }
        _ => None,
    }
}

fn parse_filter(text: &str, depth: u8) -> Option<PathFilter> {
    const OPERATORS: [(&str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessEqual),
        (">=", Operator::GreaterEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];
    let found = OPERATORS
        .iter()
        .filter_map(|(symbol, operator)| text.find(symbol).map(|at| (at, symbol.len(), *operator)))
        .min_by_key(|(at, length, _)| (*at, 3 - length));
    let (path, test) = match found {
        None => (text, None),
        Some((at, length, operator)) => {
            (&text[..at], Some((operator, parse_literal(text[at + length..].trim())?)))
        }
    };
    let path = path.trim().strip_prefix('@')?;
    Some(PathFilter { path: parse_steps(path, depth + 1)?, test })
}

fn parse_literal(text: &str) -> Option<Value> {
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return Some(Value::from(inner));
        }
    }
    match text {
        "true" => Some(Value::from(true)),
        "false" => Some(Value::from(false)),
        number => number
            .parse::<i64>()
            .map(Value::from)
            .or_else(|_| number.parse::<f64>().map(Value::from))
            .ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::json;
    use proptest::prelude::*;

    #[test]
    fn fault_41_a_union_of_many_parts_finds_no_more_than_any_step() {
        let object = json!({"l": vec![0; 20_000]});
        let path = JsonPath::parse(&format!(".l[{}]", vec!["*"; 4_000].join(","))).unwrap();
        let found = path.find(&object, &mut { MAX_NODES }).len();
        assert!((1..=MAX_NODES).contains(&found), "{found}");
    }

    #[test]
    fn fault_34_a_cell_looks_at_few_nodes_whatever_its_path() {
        let wide = json!({"l": [vec![json!({"a": 1}); 50_000]]});
        let deep = (0..400).fold(json!(1), |inner, _| json!({"a": inner, "b": 1}));
        let same = vec!["0"; 5_000].join(",");
        let cases = [
            (&wide, format!(".l[{same}][?(@.a==\"x\")].a")),
            (&wide, format!(".l[{same}][*][?(@.a)]")),
            (&wide, ".l..[*]..[*]..[*]".to_owned()),
            (&deep, "..a".repeat(40)),
            (&deep, format!("{}[?(@..a..a..a==2)]", "..[*]".repeat(10))),
            (&wide, format!(".l[{}]", vec!["?(@.a)"; 100].join("]["))),
        ];
        for (object, path) in cases {
            let parsed = JsonPath::parse(&path)
                .unwrap_or_else(|| panic!("{} is a path", &path[..path.len().min(40)]));
            let (_, steps) = work::counted(|| parsed.first(object, &mut { MAX_NODES }).is_some());
            // A rejected element counts once per value found.
            assert!(
                steps <= 3 * MAX_NODES as u64 + 10_000,
                "{steps} steps for {}",
                &path[..path.len().min(40)]
            );
        }
    }

    #[test]
    fn columns_resolve_their_paths() {
        let object = json!({
            "spec": {"a": "x", "l": ["p", "q"], "dotted.key": 1},
            "metadata": {"annotations": {"example.com/x": "note"}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "n": 3}, {"type": "Other", "status": "False"}]},
        });
        let cases = [
            (".spec.a", json!("x")),
            ("{.spec.a}", json!("x")),
            ("spec.a", json!("x")),
            (".spec.l[0]", json!("p")),
            (".spec.l[-1]", json!("q")),
            (".spec.l[*]", json!("p")),
            (".spec.l", json!(["p", "q"])),
            (".spec.l[1:]", json!("q")),
            (".spec.l[-1:]", json!("q")),
            (".spec.l[1,0]", json!("q")),
            (".spec['z','a']", json!("x")),
            (r".spec.dotted\.key", json!(1)),
            (r".metadata.annotations.example\.com/x", json!("note")),
            (".metadata.annotations['example\\.com/x']", json!("note")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type != 'Ready')].status", json!("False")),
            (".status.conditions[?(@.n>=3)].type", json!("Ready")),
            (".status.conditions[?(@.n)].type", json!("Ready")),
            ("..n", json!(3)),
        ];
        for (path, want) in cases {
            assert_eq!(
                JsonPath::parse(path).unwrap().first(&object, &mut { MAX_NODES }),
                Some(&want),
                "{path}"
            );
        }
        for path in [".spec.none", ".spec.a.b", ".spec.l[7]"] {
            assert_eq!(
                JsonPath::parse(path).unwrap().first(&object, &mut { MAX_NODES }),
                None,
                "{path}"
            );
        }
        for bad in [".spec..", "[", ".a[", ".a[x]", ".a[?(b)]"] {
            assert_eq!(JsonPath::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_not(text in "[.\\[\\]?()@='\"\\\\a*0{}$ \u{e9}-]{0,40}") {
            if let Some(path) = JsonPath::parse(&text) {
                path.first(&json!({"a": [{"a": 0}, "a"]}), &mut { MAX_NODES });
            }
        }
    }
}
