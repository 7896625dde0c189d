//! Fuzz targets: log files are untrusted.

use crate::line;
use crate::render;
use crate::story::{Story, StoryEntry};
use ferrokube_fuzz::{Verdict, run};

const LINES: &[&str] = &[
    concat!(
        "2026-11-21T03:00:00.5Z ERROR request{otel.name=\"a } b\" trace_id=0af7651916cd43dd8448eb211c80319c",
        "}: x::y: mount failed pod=\"a\\\"b\" took_us=5 span_id=b7ad6b7169203331",
    ),
    "E1121 03:00:00.500000 12 file.rs:7] \"mount failed\" pod=\"a\" trace_id=\"0af7651916cd43dd8448eb211c80319c\"",
    concat!(
        r#"{"timestamp":"2026-11-21T03:00:00.5Z","level":"ERROR","fields":{"message":"mount failed"},"#,
        r#""span":{"trace_id":"0af7651916cd43dd8448eb211c80319c"},"spans":[{}]}"#,
    ),
    concat!(
        r#"{"__REALTIME_TIMESTAMP":"1795230001000000","_SYSTEMD_UNIT":"kubelet.service","#,
        r#""MESSAGE":"2026-11-21T03:00:00Z INFO x: a trace_id=0af7651916cd43dd8448eb211c80319c"}"#,
    ),
    concat!(
        r#"{"kind":"Event","auditID":"a","stageTimestamp":"2026-11-21T03:00:00Z","requestReceivedTimestamp":"2026-11-21T02:00:00Z","verb":"create","#,
        r#""responseStatus":{"code":201}}"#,
    ),
];

/// Whatever the file contains, no terminal escapes reach the output, and programs get valid JSON.
#[test]
fn l11_any_lines() {
    run("log lines", LINES, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let lines = text.split('\n').filter_map(line::parse);
        let entries: Vec<StoryEntry> = lines
            .enumerate()
            .map(|(number, line)| StoryEntry { component: format!("c{}", number % 2), line })
            .collect();
        let found = !entries.is_empty();
        let story = Story::new(
            vec![text.to_string()],
            entries,
            0,
            vec![(text.as_ref().into(), text.to_string())],
            0,
        );
        let shown = render::text(&story);
        assert!(
            !shown.chars().any(|character| character.is_control() && character != '\n'),
            "{shown:?}"
        );
        assert!(render::json(&story).is_object());
        Verdict::from(found)
    });
}
