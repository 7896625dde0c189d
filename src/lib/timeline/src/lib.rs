//! Log and audit search behind `ferrokube trace`: the request behind a log line, and the log lines behind a request.
//!
//! Works on files alone, of any number of components: our own text and JSON lines, klog-style text, audit events, rotated and gzip
//! files. Must never know storage or the API server. Start reading at [`mod@search`].

pub mod line;
pub mod render;
pub mod scan;
pub mod search;
pub mod story;

pub use search::{Query, SearchError, search};
pub use story::{Action, Story, Trace};
