//! `/ui/features/`: the board of states, transitions and blockers, and a page for each feature.
//! Server-rendered HTML, no script, one style sheet.
//!
//! Texts of objects are made safe by [`crate::report`], then escaped by the templates.

use crate::report::{FeatureReport, Hindrance, KUBERNETES, safe};
use askama::Template;
use serde_json::Value;

/// Forbids everything except the style sheet and the form.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Features shown, and read for it.
pub const MAX_FEATURES: usize = 1000;
/// Bytes of features read for a page.
pub const MAX_BYTES: usize = 1 << 20;
/// Bytes of a feature that is read. A tree of many small maps takes a hundred times its text.
pub const MAX_FEATURE_BYTES: usize = 64 << 10;
/// Most bytes that a page and what it is made of take: a character may be escaped by eight.
pub const MAX_PAGE_BYTES: usize = 12 * MAX_BYTES;
/// Longest name of a namespace or feature.
const MAX_NAME: usize = 253;

/// A parsed request below `/ui/features/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardRequest {
    /// The style sheet; readable by every caller of the path.
    Style,
    /// The features of a namespace; needs the right to list them.
    Namespace(String),
    /// One feature; needs the right to get it.
    Feature {
        /// From the query, else `kube-system`.
        namespace: String,
        /// Well-formed; it need not exist.
        name: String,
    },
    /// Nothing.
    Unknown,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardPage {
    /// HTTP status.
    pub status: u16,
    /// For `Content-Type`, with its charset.
    pub media_type: &'static str,
    /// Response body.
    pub body: String,
}

/// A feature as in a row of the board.
struct BoardRow {
    name: String,
    link: String,
    state: &'static str,
    class: &'static str,
    configured: String,
    source: String,
    stability: String,
    uses: String,
    upgrade: &'static str,
    downgrade: &'static str,
    progress: Option<(u64, u64)>,
    tasks: Vec<String>,
    waiting: String,
    hindrances: Vec<Hindrance>,
}

#[derive(Template)]
#[template(path = "board.html")]
struct BoardTemplate<'a> {
    namespace: &'a str,
    message: String,
    turning: Vec<BoardRow>,
    rows: Vec<BoardRow>,
}

#[derive(Template)]
#[template(path = "feature.html")]
struct FeatureTemplate<'a> {
    report: &'a FeatureReport,
    row: BoardRow,
    change: String,
}

#[derive(Template)]
#[template(path = "message.html")]
struct MessageTemplate<'a> {
    namespace: &'a str,
    message: &'a str,
}

impl BoardRequest {
    /// `rest` is the path below `/ui/features/`, `query` the URI's query, both as sent.
    pub fn parse(rest: &str, query: &str) -> Self {
        let namespace = match parameter(query, "namespace") {
            "" => KUBERNETES,
            namespace => namespace,
        };
        let namespace = namespace.to_owned();
        match rest {
            "style.css" => Self::Style,
            _ if !is_name(&namespace) => Self::Unknown,
            "" => Self::Namespace(namespace),
            name if is_name(name) => Self::Feature { namespace, name: name.to_owned() },
            _ => Self::Unknown,
        }
    }
}

/// Whether an object may have it; then it needs no decoding either.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_plain) && !text.contains("..")
}

/// Value of a query parameter; empty if absent.
fn parameter<'a>(query: &'a str, name: &str) -> &'a str {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(own, _)| *own == name).map(|(_, value)| value).next().unwrap_or_default()
}

impl BoardRow {
    fn new(report: &FeatureReport) -> Self {
        let holds = |kind: &str| match report.condition(kind) {
            Some(condition) if condition.holds => "safe",
            Some(_) => "not safe",
            None => "unknown",
        };
        let class = match report.state {
            Some(state) if state.is_turning() => "turning",
            Some(state) if state.permits_use() => "on",
            _ => "off",
        };
        let uses: Vec<String> = report.uses.iter().map(|one| one.shown()).collect();
        let (name, namespace) = (&report.name, &report.namespace);
        let query = if namespace == KUBERNETES { "" } else { "?namespace=" };
        let shown = if query.is_empty() { "" } else { namespace.as_str() };
        Self {
            name: name.clone(),
            link: format!("./{name}{query}{shown}"),
            state: report.state_text(),
            class,
            configured: report.configured.clone(),
            source: report.source.clone(),
            stability: report.stability.clone(),
            uses: uses.join(", "),
            upgrade: holds("UpgradeSafe"),
            downgrade: holds("DowngradeSafe"),
            progress: report.progress,
            tasks: report.tasks.clone(),
            waiting: report.waiting().unwrap_or_default(),
            hindrances: report.hindrances(),
        }
    }
}

/// The style sheet.
pub fn style() -> BoardPage {
    let body = include_str!("../templates/style.css").to_owned();
    BoardPage { status: 200, media_type: "text/css; charset=utf-8", body }
}

/// The board of a namespace: its features in the stored form, in order; at most [`MAX_FEATURES`]
/// and [`MAX_BYTES`] are read, none above [`MAX_FEATURE_BYTES`].
pub fn board<'a>(namespace: &str, features: impl Iterator<Item = &'a [u8]>) -> BoardPage {
    let mut features = features.peekable();
    let (mut rows, mut left, mut is_complete) = (Vec::new(), MAX_BYTES, true);
    while rows.len() < MAX_FEATURES
        && let Some(bytes) = features.next_if(|bytes| is_too_large(bytes) || bytes.len() <= left)
    {
        if is_too_large(bytes) {
            is_complete = false;
            continue;
        }
        left -= bytes.len();
        rows.push(BoardRow::new(&report(bytes)));
    }
    let message = if !is_complete {
        "Features above 64 KiB are left out; kubectl get features shows all.".to_owned()
    } else if features.peek().is_some() {
        format!("Only the first {} are shown; kubectl get features shows all.", rows.len())
    } else {
        String::new()
    };
    let is_turning = |row: &BoardRow| row.class == "turning" || !row.hindrances.is_empty();
    let (turning, rest): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_turning);
    html(200, &BoardTemplate { namespace, message, turning, rows: rest })
}

/// The page of a feature in the stored form; `None`: it does not exist.
pub fn feature(namespace: &str, name: &str, stored: Option<&[u8]>) -> BoardPage {
    let Some(bytes) = stored else {
        return message(404, namespace, &format!("There is no feature {name} in {namespace}."));
    };
    if is_too_large(bytes) {
        let text = format!("The feature {name} in {namespace} is above 64 KiB; kubectl shows it.");
        return message(200, namespace, &text);
    }
    let report = report(bytes);
    let enable = report.configured != "Enabled";
    let change = if report.is_settable() {
        let verb = if enable { "enable" } else { "disable" };
        format!("ferrokube feature-admin -n {} {verb} {}", report.namespace, report.name)
    } else {
        report.flag(enable)
    };
    html(200, &FeatureTemplate { row: BoardRow::new(&report), report: &report, change })
}

/// A page that only says something.
pub fn message(status: u16, namespace: &str, text: &str) -> BoardPage {
    html(status, &MessageTemplate { namespace, message: &safe(text) })
}

fn is_too_large(bytes: &[u8]) -> bool {
    bytes.len() > MAX_FEATURE_BYTES
}

fn report(bytes: &[u8]) -> FeatureReport {
    FeatureReport::read(&serde_json::from_slice::<Value>(bytes).unwrap_or_default())
}

fn html(status: u16, template: &impl Template) -> BoardPage {
    match template.render() {
        Ok(body) => BoardPage { status, media_type: "text/html; charset=utf-8", body },
        // Writing to a string does not fail: a template that does not render is a bug.
        Err(_) => BoardPage {
            status: 500,
            media_type: "text/plain; charset=utf-8",
            body: "failed to render the page\n".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::turning;
    use serde_json::json;

    fn hostile() -> Value {
        let mut feature = turning();
        let evil = "\"><script>alert(1)</script>\u{1b}[31m\u{202e}";
        for field in ["configured", "source", "stability", "version"] {
            feature["status"][field] = json!(evil);
        }
        feature["status"]["uses"][0]["reporter"] = json!(evil);
        feature["status"]["uses"][0]["version"] = json!(evil);
        feature["status"]["transitionTasks"] = json!([evil]);
        feature["status"]["conditions"][0]["message"] = json!(evil);
        feature
    }

    fn pages(feature: &Value) -> [String; 2] {
        let bytes = serde_json::to_vec(feature).unwrap();
        let all = board(KUBERNETES, std::iter::once(bytes.as_slice()));
        let one = super::feature(KUBERNETES, "LogTracking", Some(&bytes));
        assert_eq!((all.status, one.status), (200, 200));
        [all.body, one.body]
    }

    #[test]
    fn the_board_shows_states_progress_and_blockers() {
        let [all, one] = pages(&turning());
        for part in [
            "<h2 id=\"transitions\"><span class=\"count\">1</span> In transition</h2>",
            "<progress value=\"5\" max=\"10\"",
            "<li><code>WaitForUses</code></li>",
            "2 objects use it: a, b<br>Change or delete these objects",
            "href=\"./LogTracking\"",
            "<meta http-equiv=\"refresh\" content=\"5\">",
        ] {
            assert!(all.contains(part), "{part} in {all}");
        }
        assert!(one.contains("--feature-gates=LogTracking=true of apiserver"), "{one}");
        assert!(one.contains("<td>eve</td>"), "{one}");
    }

    #[test]
    fn foreign_texts_are_escaped_and_the_pages_keep_to_their_policy() {
        for body in pages(&hostile()).iter().chain(&pages(&turning())) {
            assert!(!body.contains(['\u{1b}', '\u{202e}']), "{body}");
            for forbidden in ["<style", " style=", "<script", "javascript:", "src=", " onload"] {
                assert!(!body.contains(forbidden), "{forbidden} in {body}");
            }
        }
    }

    #[test]
    fn a_path_is_a_name_or_nothing() {
        let parse = BoardRequest::parse;
        let feature = |namespace: &str, name: &str| BoardRequest::Feature {
            namespace: namespace.into(),
            name: name.into(),
        };
        assert_eq!(parse("", ""), BoardRequest::Namespace(KUBERNETES.into()));
        assert_eq!(parse("", "namespace=shop"), BoardRequest::Namespace("shop".into()));
        assert_eq!(parse("LogTracking", ""), feature(KUBERNETES, "LogTracking"));
        assert_eq!(parse("style.css", "namespace=%2f"), BoardRequest::Style);
        let long = "x".repeat(300);
        for (rest, query) in [
            ("a/b", ""),
            ("..", ""),
            ("%2e%2e", ""),
            ("", "namespace=a/b"),
            ("", "namespace=%00"),
            (long.as_str(), ""),
        ] {
            assert_eq!(parse(rest, query), BoardRequest::Unknown, "{rest} {query}");
        }
    }

    #[test]
    fn of_many_features_the_first_are_read() {
        let bytes = serde_json::to_vec(&turning()).unwrap();
        let read = std::cell::Cell::new(0);
        let many = std::iter::repeat_with(|| {
            read.set(read.get() + 1);
            bytes.as_slice()
        });
        let page = board(KUBERNETES, many.take(10_000));
        assert!(page.body.contains("Only the first 1000 are shown"));
        assert_eq!(read.get(), MAX_FEATURES + 1);
        // Long ones cost as much as many.
        let mut long = turning();
        long["status"]["transitionTasks"] = json!(["x".repeat(MAX_BYTES / 20)]);
        let bytes = serde_json::to_vec(&long).unwrap();
        let page = board(KUBERNETES, std::iter::repeat_n(bytes.as_slice(), 100));
        assert!(page.body.contains("Only the first 19 are shown"));
        long["status"]["transitionTasks"] = json!(["x".repeat(MAX_FEATURE_BYTES)]);
        let bytes = serde_json::to_vec(&long).unwrap();
        let page = board(KUBERNETES, std::iter::once(bytes.as_slice()));
        assert!(page.body.contains("Features above 64 KiB are left out"));
        let page = super::feature(KUBERNETES, "LogTracking", Some(&bytes));
        assert!(page.body.contains("is above 64 KiB") && !page.body.contains("xxx"));
        assert_eq!(board("shop", std::iter::empty()).status, 200);
        assert_eq!(super::feature("shop", "Toys", None).status, 404);
        assert_eq!(super::feature("shop", "Toys", Some(b"{")).status, 200, "unreadable is empty");
    }
}
