//! Log and audit search behind `ferrokube trace`: the request behind a log line, and the log lines behind a request.
//!
//! Works on files alone, of any number of components: our own text and JSON lines, those of stock `tracing`, klog-style text, audit events, rotated and
//! gzip files. Must never know storage or the API server. Start reading at [`mod@search`].

mod files;
mod finder;
#[cfg(test)]
mod fuzz;
pub mod line;
pub mod page;
pub mod render;
pub mod ring;
pub mod scan;
pub mod search;
pub mod story;

pub use page::{CONTENT_SECURITY_POLICY, Page, TracePages};
pub use ring::{ObjectRef, Ring};
pub use search::{ObjectName, SearchError, SearchQuery, last_life, search};
pub use story::{Story, TraceAction, TraceStory};
