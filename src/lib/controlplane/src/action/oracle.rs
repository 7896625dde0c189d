//! A second implementation of kube-apiserver's `RequestInfoFactory`, as naive as possible: owned
//! strings, one rule at a time. [`Action::parse`] must agree with it on every generated request.

use super::{Action, Depth, Refusal};
use http::Method;

/// Number of requests compared.
const REQUESTS: u32 = 150_000;

/// `RequestInfo` of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct ExpectedInfo {
    failed: bool,
    is_resource: bool,
    path: String,
    verb: String,
    group: String,
    version: String,
    namespace: String,
    resource: String,
    subresource: String,
    name: String,
    parts: usize,
}

impl ExpectedInfo {
    fn expected(method: &str, path: &str, query: &[(String, String)]) -> Self {
        let mut info =
            Self { path: path.to_owned(), verb: method.to_lowercase(), ..Self::default() };
        let mut parts: Vec<String> = path.trim_matches('/').split('/').map(str::to_owned).collect();
        let prefix = parts[0].clone();
        let needed = match prefix.as_str() {
            "api" => 3,
            "apis" => 4,
            _ => return info,
        };
        if parts.len() < needed {
            return info;
        }
        info.is_resource = true;
        parts.remove(0);
        if prefix == "apis" {
            info.group = parts.remove(0);
        }
        info.version = parts.remove(0);
        let special = parts[0] == "watch" || parts[0] == "proxy";
        if special {
            if parts.len() == 1 {
                return Self { failed: true, ..Self::default() };
            }
            info.verb = parts.remove(0);
        } else {
            let verbs = [
                ("POST", "create"),
                ("GET", "get"),
                ("HEAD", "get"),
                ("PUT", "update"),
                ("PATCH", "patch"),
                ("DELETE", "delete"),
            ];
            let verb = verbs.iter().find(|(known, _)| *known == method);
            info.verb = verb.map_or("", |(_, verb)| verb).to_owned();
        }
        if parts[0] == "namespaces" && parts.len() >= 2 {
            info.namespace = parts[1].clone();
            if parts.len() >= 3 && parts[2] != "status" && parts[2] != "finalize" {
                parts.drain(..2);
            }
        }
        info.parts = parts.len();
        info.resource = parts[0].clone();
        if parts.len() >= 2 {
            info.name = parts[1].clone();
        }
        if parts.len() >= 3 && info.verb != "proxy" {
            info.subresource = parts[2].clone();
        }
        if info.name.is_empty() && info.verb == "get" {
            info.verb = "list".to_owned();
            if let Some(value) = first(query, "watch")
                && !["false", "0"].contains(&value.to_lowercase().as_str())
            {
                info.verb = "watch".to_owned();
            }
            if options_are_readable(query)
                && let Some(name) = required_name(first(query, "fieldSelector").unwrap_or_default())
                && is_path_segment(&name)
            {
                info.name = name;
            }
        }
        if info.name.is_empty() && info.verb == "delete" {
            info.verb = "deletecollection".to_owned();
        }
        info
    }

    fn actual(action: &Action) -> Self {
        if matches!(action.refusal(), Some(Refusal::NoResource | Refusal::Malformed)) {
            return Self { failed: true, ..Self::default() };
        }
        let (path, verb) = (action.path().to_owned(), action.verb().to_owned());
        let Some(resource) = action.resource() else {
            return Self { path, verb, ..Self::default() };
        };
        let access = resource.access();
        Self {
            failed: false,
            is_resource: true,
            path,
            verb,
            group: access.group.to_owned(),
            version: access.version.to_owned(),
            namespace: access.namespace.to_owned(),
            resource: access.resource.to_owned(),
            subresource: access.subresource.to_owned(),
            name: access.name.to_owned(),
            parts: match resource.depth() {
                Depth::Collection => 1,
                Depth::Object => 2,
                Depth::Subresource => 3,
                Depth::Beyond => 4,
            },
        }
    }
}

fn first<'a>(query: &'a [(String, String)], key: &str) -> Option<&'a str> {
    query.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

fn is_path_segment(name: &str) -> bool {
    name != "." && name != ".." && !name.contains('/') && !name.contains('%')
}

/// Whether `ListOptions` decode.
fn options_are_readable(query: &[(String, String)]) -> bool {
    let numbers = ["limit", "timeoutSeconds"]
        .iter()
        .all(|key| first(query, key).is_none_or(|value| value.parse::<i64>().is_ok()));
    let labels = first(query, "labelSelector")
        .is_none_or(|text| LABELS.iter().any(|(known, valid)| *known == text && *valid));
    numbers
        && labels
        && first(query, "fieldSelector").is_none_or(|text| field_terms(text).is_some())
}

/// `=` terms (`true`) and `!=` terms of a field selector, in kube-apiserver's order.
fn field_terms(text: &str) -> Option<Vec<(String, bool, String)>> {
    let mut pieces = vec![String::new()];
    let mut escaped = false;
    for symbol in text.chars() {
        if symbol == ',' && !escaped {
            pieces.push(String::new());
        } else {
            pieces.last_mut().unwrap().push(symbol);
        }
        escaped = symbol == '\\' && !escaped;
    }
    pieces.sort();
    let mut terms = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let at = (0..piece.len())
            .filter(|at| piece.is_char_boundary(*at))
            .find(|at| ["!=", "="].iter().any(|operator| piece[*at..].starts_with(operator)))?;
        let operator =
            ["!=", "==", "="].iter().find(|operator| piece[at..].starts_with(**operator))?;
        terms.push((
            piece[..at].to_owned(),
            *operator != "!=",
            unescaped(&piece[at + operator.len()..])?,
        ));
    }
    Some(terms)
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut escaping = false;
    for symbol in text.chars() {
        match (escaping, symbol) {
            (true, '\\' | ',' | '=') => out.push(symbol),
            (true, _) | (false, ',' | '=') => return None,
            (false, '\\') => {}
            (false, _) => out.push(symbol),
        }
        escaping = !escaping && symbol == '\\';
    }
    (!escaping).then_some(out)
}

fn required_name(selector: &str) -> Option<String> {
    field_terms(selector)?
        .into_iter()
        .find(|(field, equal, _)| field == "metadata.name" && *equal)
        .map(|(_, _, value)| value)
}

/// Label selectors, and whether kube-apiserver parses them.
const LABELS: [(&str, bool); 8] = [
    ("", true),
    ("a=b", true),
    ("!a", true),
    ("a in (b,c)", true),
    ("a notin (b)", true),
    ("a in", false),
    ("a=b=c", false),
    ("-a=b", false),
];

const FIELDS: [&str; 18] = [
    "",
    "metadata.name=p",
    "metadata.name==p",
    "metadata.name!=p",
    "metadata.name=",
    "metadata.name=.",
    "metadata.name=..",
    "metadata.name=a/b",
    "metadata.name=a%b",
    "metadata.name=b,metadata.name=a",
    "metadata.name=b,metadata.name==z",
    "metadata.namespace=x,metadata.name=p",
    "status.phase=a\\,metadata.name\\=q,metadata.name=p",
    "metadata.name=p\\",
    "metadata.name",
    "metadata.name=p,,",
    "metadata.names=p",
    "metadata.name=a=b",
];

const WORDS: [&str; 25] = [
    "api",
    "apis",
    "v1",
    "apps",
    "example.com",
    "namespaces",
    "watch",
    "proxy",
    "pods",
    "nodes",
    "widgets",
    "status",
    "finalize",
    "scale",
    "token",
    "log",
    "x",
    "p",
    "",
    ".",
    "..",
    "a b",
    "n\u{e9}",
    "WATCH",
    "healthz",
];

const METHODS: [&str; 11] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"];

/// splitmix64.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// Segments of a path, mostly of a resource.
fn segments(random: &mut SplitMix) -> Vec<&'static str> {
    let mut all = Vec::new();
    if random.chance(6) {
        all.extend((0..random.below(8)).map(|_| random.one_of(&WORDS)));
        return all;
    }
    all.extend(if random.chance(2) { &["api", "v1"][..] } else { &["apis", "apps", "v1"][..] });
    if random.chance(3) {
        all.push(random.one_of(&["watch", "proxy"]));
    }
    if random.chance(2) {
        all.extend(["namespaces", random.one_of(&WORDS)]);
    }
    all.extend((0..random.below(5)).map(|_| random.one_of(&WORDS)));
    all
}

/// The path as sent, with escapes, and decoded.
fn path(random: &mut SplitMix) -> (String, String) {
    let mut bytes = vec![b'/'; 1 + usize::from(random.chance(20))];
    bytes.extend(segments(random).join("/").bytes());
    bytes.extend(vec![b'/'; usize::from(random.chance(5)) + usize::from(random.chance(30))]);
    if random.chance(40) {
        bytes.extend([0xff, 0xe2, 0x82]);
    }
    let mut sent = String::new();
    for byte in &bytes {
        let must = !byte.is_ascii_graphic() || *byte == b'%';
        if must || random.chance(25) {
            sent.push_str(&if random.chance(2) {
                format!("%{byte:02x}")
            } else {
                format!("%{byte:02X}")
            });
        } else {
            sent.push(char::from(*byte));
        }
    }
    (sent, runes(&bytes))
}

/// Like Go's `range` over a string: U+FFFD for each byte that starts no rune.
fn runes(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let rune =
            (1..=rest.len().min(4)).find_map(|length| std::str::from_utf8(&rest[..length]).ok());
        text.push_str(rune.unwrap_or("\u{fffd}"));
        rest = &rest[rune.map_or(1, str::len)..];
    }
    text
}

/// The pairs of a query, and the query as sent.
fn query(random: &mut SplitMix) -> (Vec<(String, String)>, String) {
    let mut pairs = Vec::new();
    let mut sent = Vec::new();
    for _ in 0..random.below(4) {
        let (key, value) = match random.below(8) {
            0..3 => {
                ("watch", random.one_of(&["", "1", "0", "true", "false", "FALSE", "00", "junk"]))
            }
            3..6 => ("fieldSelector", random.one_of(&FIELDS)),
            6 => ("labelSelector", LABELS[random.below(LABELS.len())].0),
            _ => (
                random.one_of(&["limit", "timeoutSeconds"]),
                random.one_of(&["5", "-1", "+7", "", "x", "1.5", "9223372036854775808"]),
            ),
        };
        let escaped: String = value
            .bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect();
        let malformed = random.chance(30);
        sent.push(format!(
            "{key}={escaped}{}",
            if malformed { random.one_of(&["%", "%zz", ";x"]) } else { "" }
        ));
        if !malformed {
            pairs.push((key.to_owned(), value.to_owned()));
        }
    }
    (pairs, sent.join("&"))
}

#[test]
fn fault_50_the_parser_agrees_with_a_second_implementation() {
    let mut random = SplitMix(14);
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..REQUESTS {
        let method = random.one_of(&METHODS);
        let ((sent, meant), (pairs, raw)) = (path(&mut random), query(&mut random));
        let expected = ExpectedInfo::expected(method, &meant, &pairs);
        let action =
            Action::parse(&Method::from_bytes(method.as_bytes()).unwrap(), &sent, Some(&raw));
        let expected = ExpectedInfo { parts: expected.parts.min(4), ..expected };
        let actual = ExpectedInfo::actual(&action);
        assert_eq!(actual, expected, "{method} {sent}?{raw}");
        *seen
            .entry(if expected.is_resource { expected.verb } else { "none".to_owned() })
            .or_default() += 1;
    }
    // Every verb was generated often enough.
    for verb in [
        "",
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "proxy",
        "none",
    ] {
        assert!(seen.get(verb).is_some_and(|count| *count > 500), "{verb:?}: {seen:?}");
    }
}
