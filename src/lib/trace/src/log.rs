//! The log layer: JSON or text lines with `trace_id span_id initial_trace_id`. Logging never waits
//! for a reader.
//!
//! Lines go through a bounded queue to a thread: a stuck pipe costs lines (counted, and reported
//! once it recovers), never requests. Standard error and the log file have a queue and a thread
//! each, so that neither blocks the other.

mod format;
mod line_queue;
mod rotate;

pub use format::LogFormat;
pub use rotate::{Rotating, Rotation};

use crate::context::TraceContext;
use crate::scope;
use line_queue::{Flush, LineQueue};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{EnvFilter, Filtered};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Log configuration of a process.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Text or JSON.
    pub format: LogFormat,
    /// A level (for our own crates; libraries then log warnings), or directives as in `RUST_LOG`.
    pub filter: String,
    /// Whether lines have the ids of their request (gate `LogTracking`), for now.
    pub ids: Arc<AtomicBool>,
    /// An additional file.
    pub file: Option<LogFile>,
    /// Receives our own crates' lines with ids, at debug and above.
    pub tap: Option<Arc<dyn Tap>>,
}

/// A log file, readable only by its owner, in the same format, rotated.
#[derive(Clone, Debug)]
pub struct LogFile {
    /// The current file; rotated ones are next to it.
    pub path: PathBuf,
    /// When to rotate, and how many rotated files to keep.
    pub rotation: Rotation,
    /// As [`LogConfig::filter`].
    pub filter: String,
}

/// Receives a copy of each line with ids, as text. Called by the logging thread: must neither wait
/// nor log.
pub trait Tap: fmt::Debug + Send + Sync {
    /// One line, without its ids.
    fn line(&self, context: &TraceContext, text: &str);
}

/// The filter of a tap. Excludes access lines: requests reach it another way.
const TAPPED: &str =
    "off,ferrokube=debug,ferrokube::request=off,ferrokube_controlplane::filters::info=off";

impl Default for LogConfig {
    fn default() -> Self {
        let ids = Arc::new(AtomicBool::new(true));
        Self { format: LogFormat::Text, filter: "info".into(), ids, file: None, tap: None }
    }
}

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A malformed filter.
    #[error("{filter:?} is neither a log level nor a list of target=level")]
    Filter {
        /// As given.
        filter: String,
    },
    /// The log file cannot be opened.
    #[error("cannot open the log file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Starting the writer thread failed.
    #[error("cannot start the log writer")]
    Thread(#[source] io::Error),
    /// Logging was started before in this process.
    #[error("logging was started before")]
    Twice,
}

/// The level for kube's `-v` numbers: 0-2 info, 3-5 debug, above trace.
pub fn level_of_verbosity(verbosity: u8) -> &'static str {
    match verbosity {
        0..=2 => "info",
        3..=5 => "debug",
        _ => "trace",
    }
}

/// Flushes on drop, for at most half a second.
pub struct LastLines {
    _output: Flush,
    _file: Option<Flush>,
}

/// Starts the process's log, to a writer (standard error) and the configured file.
///
/// # Errors
/// [`LogError`].
pub fn start(
    config: &LogConfig,
    writer: impl io::Write + Send + 'static,
) -> Result<LastLines, LogError> {
    let filter = filter(&config.filter)?;
    let (layer, output) = layer(config, writer)?;
    let (file, kept) = file(config)?.unzip();
    let tap = config
        .tap
        .clone()
        .map(|tap| self::filter(TAPPED).map(|filter| TapLayer(tap).with_filter(filter)))
        .transpose()?;
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .with(file)
        .with(tap)
        .try_init()
        .map_err(|_| LogError::Twice)?;
    Ok(LastLines { _output: output, _file: kept })
}

/// Checks the filters as [`start`] does, without opening anything.
///
/// # Errors
/// [`LogError::Filter`].
pub fn check(config: &LogConfig) -> Result<(), LogError> {
    [Some(&config.filter), config.file.as_ref().map(|file| &file.filter)]
        .into_iter()
        .flatten()
        .try_for_each(|text| filter(text).map(drop))
}

fn layer(
    config: &LogConfig,
    writer: impl io::Write + Send + 'static,
) -> Result<(LogLayer, Flush), LogError> {
    let (line_queue, flush) = line_queue::start(writer, config.format).map_err(LogError::Thread)?;
    Ok((LogLayer { format: config.format, ids: Arc::clone(&config.ids), line_queue }, flush))
}

/// A layer with its own filter, and its guard.
type FilteredLog<S> = (Filtered<LogLayer, EnvFilter, S>, Flush);

fn file<S: Subscriber + for<'a> LookupSpan<'a>>(
    config: &LogConfig,
) -> Result<Option<FilteredLog<S>>, LogError> {
    let Some(LogFile { path, rotation, filter }) = &config.file else { return Ok(None) };
    let filter = self::filter(filter)?;
    let writer = Rotating::open(path, *rotation, false)
        .map_err(|source| LogError::File { path: path.clone(), source })?;
    let (layer, flush) = layer(config, writer)?;
    Ok(Some((layer.with_filter(filter), flush)))
}

fn filter(text: &str) -> Result<EnvFilter, LogError> {
    let is_level = ["off", "error", "warn", "info", "debug", "trace"]
        .contains(&text.to_ascii_lowercase().as_str());
    // A level enables lines, not request spans. kube logs every failed request as an error, also at
    // shutdown; its callers log failures that matter.
    let directives = if is_level {
        format!("warn,kube_client=off,ferrokube={text},ferrokube::request=off")
    } else {
        text.to_owned()
    };
    EnvFilter::builder().parse(directives).map_err(|_| LogError::Filter { filter: text.to_owned() })
}

struct LogLayer {
    format: LogFormat,
    ids: Arc<AtomicBool>,
    line_queue: LineQueue,
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let ids = if self.ids.load(Ordering::Relaxed) { scope::current() } else { None };
        self.line_queue.send(self.format.line(event, ids.as_ref()));
    }
}

struct TapLayer(Arc<dyn Tap>);

impl<S: Subscriber> Layer<S> for TapLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if let Some(ids) = scope::current() {
            self.0.line(&ids, &LogFormat::Text.line(event, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, ids: bool, directives: &str, log: impl FnOnce()) -> String {
        let captured = Captured::default();
        let (line_queue, flush) = line_queue::start(captured.clone(), format).unwrap();
        let ids = Arc::new(AtomicBool::new(ids));
        let layer = LogLayer { format, ids, line_queue }.with_filter(filter(directives).unwrap());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        drop(flush);
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_carry_the_ids_of_their_request() {
        let context = TraceContext::root().with_initial(Some(crate::TraceId::random()));
        let log = || {
            crate::in_scope(
                &context,
                || tracing::info!(target: "ferrokube::test", count = 3, name = "a b", ok = true, "it happened"),
            )
        };
        let text = logged(LogFormat::Text, true, "info", log);
        let ids = format!(
            "trace_id={} span_id={} initial_trace_id={}",
            context.trace_id,
            context.span_id,
            context.initial.unwrap()
        );
        assert!(
            text.contains(&format!(
                "INFO ferrokube::test: it happened count=3 name=\"a b\" ok=true {ids}\n"
            )),
            "{text}"
        );
        let json: serde_json::Value =
            serde_json::from_str(&logged(LogFormat::Json, true, "info", log)).unwrap();
        assert_eq!(json["level"], "INFO");
        assert_eq!(json["target"], "ferrokube::test");
        assert_eq!(json["message"], "it happened");
        assert_eq!(
            (&json["count"], &json["name"], &json["ok"]),
            (&3.into(), &"a b".into(), &true.into())
        );
        assert_eq!(json["trace_id"], context.trace_id.to_string());
        assert_eq!(json["initial_trace_id"], context.initial.unwrap().to_string());
        assert!(json["time"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn l07_without_the_gate_there_are_no_ids() {
        let log = || {
            crate::in_scope(
                &TraceContext::root(),
                || tracing::info!(target: "ferrokube::test", "it happened"),
            )
        };
        for format in [LogFormat::Text, LogFormat::Json] {
            assert!(!logged(format, false, "info", log).contains("trace_id"));
        }
    }

    #[test]
    fn hostile_values_stay_on_their_line_and_in_their_field() {
        let value = "x\ny\" \u{1b}[31m\\ \u{2028}\u{7f}\u{9b}";
        let log = || tracing::info!(target: "ferrokube::test", value, debug = ?value, display = %value, "it happened");
        let text = logged(LogFormat::Text, true, "info", log);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");
        let json: serde_json::Value =
            serde_json::from_str(&logged(LogFormat::Json, true, "info", log)).unwrap();
        assert_eq!(json["value"], value);
        assert_eq!(json["display"], value);
    }

    #[test]
    fn a_bare_level_applies_to_our_own_crates() {
        let log = || {
            tracing::debug!(target: "ferrokube_serve::server", "ours");
            tracing::debug!(target: "h2::proto", "theirs");
            tracing::warn!(target: "h2::proto", "their warning");
        };
        let text = logged(LogFormat::Text, true, "debug", log);
        assert!(
            text.contains("ours") && text.contains("their warning") && !text.contains("theirs"),
            "{text}"
        );
        assert!(logged(LogFormat::Text, true, "h2=debug", log).contains("theirs"));
        assert!(filter("ferrokube=loud").is_err());
    }
}
