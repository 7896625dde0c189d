//! The kubelet's image manager: pulls that are bounded, in order, and made once (KEP-3673).
//!
//! Must never know the API, pods beyond their identity, or configuration files. Start at
//! [`ImageManager::ensure`].
//!
//! - A **flight** is one pull of an image with credentials. Pods that need it meanwhile join it and
//!   hold no slot of their own (`flights.rs`). A flight whose last pod has gone ends: it leaves the
//!   queue, or its call is cancelled. A pod goes by dropping the future of `ensure`.
//! - The **list** bounds flights in progress, in the order of arrival (`list.rs`). A flight waits in
//!   it without a slot; `Queued`, then `Pulling` are reported when they are true. The slot is free
//!   as soon as the pull ends: before the size of the image is read.
//! - After waiting, presence is looked up again: another flight may have brought the image.
//! - A runtime that lists the limit in its verbose status (`ferrokube_cri::limit`) gets it with each
//!   pull and enforces it; then the list is not used. Its refusal is shown on the pod as
//!   `TooManyPullingInParallelErr` and backed off like any failure; never retried here.
//! - A pull without progress for [`PullConfig::progress_timeout`] is cancelled. CRI reports no bytes
//!   of a pull: progress is any change of the image filesystem's use, so that a stalled pull may
//!   live longer next to others that write.
//! - Images that nothing uses are removed when their file system fills up (`collect.rs`).
//! - QPS and burst refuse a pull, as kubelet's do; they do not bound pulls in progress.
//!
//! Messages of events are kubelet's, as far as it has them.

mod backoff;
mod bucket;
mod collect;
mod flights;
mod list;
mod manager;
mod metrics;
mod progress;
mod reference;

pub use collect::{ImageCollection, ImageCollector, UnusedImage};
pub use manager::{
    ImageManager, PodIdentity, PullConfig, PullError, PullEvent, PullEvents, PullPolicy,
    PullRequest, go_duration,
};
pub use metrics::PullMetrics;
pub use reference::{ReferenceError, with_default_tag};
