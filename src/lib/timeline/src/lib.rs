//! Log and audit search behind `ferrokube trace`: from a log line to its request, and from a
//! request to its log lines.
//!
//! Works on the files of any number of components: our own text and JSON lines, those of stock
//! `tracing`, klog text, audit events, rotated and gzip files. Must never know storage or the API
//! server. Start at [`mod@search`].

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

pub use files::is_hidden;
pub use page::{CONTENT_SECURITY_POLICY, MAX_PAGE_BYTES, Page, TracePages};
pub use ring::{ObjectRef, Ring};
pub use search::{ObjectName, SearchError, SearchQuery, last_life, search};
pub use story::{Story, TraceAction, TraceStory};
