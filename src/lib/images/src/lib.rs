//! The kubelet's image manager: limited, ordered and deduplicated pulls (KEP-3673).
//!
//! Must never know the API, pods beyond their identity, or configuration files. Start at
//! [`ImageManager::ensure`].
//!
//! - A **flight** is one pull of an image with credentials. Pods that request it meanwhile join it
//!   without a slot of their own (`flights.rs`). When its last pod leaves, by dropping the future
//!   of `ensure`, the flight leaves the queue or its call is cancelled.
//! - The **list** limits concurrent flights, first come first served (`list.rs`). A waiting flight
//!   has no slot; `Queued` and `Pulling` are reported when they happen. The slot is freed as soon
//!   as the pull ends, before the size of the image is read.
//! - After waiting, presence is checked again: another flight may have pulled the image.
//! - A runtime that lists the limit in its verbose status (`ferrokube_cri::limit`) gets it with
//!   each pull and enforces it, and the list is not used. Its rejection is reported on the pod as
//!   `TooManyPullingInParallelErr` and backed off like any failure; it is never retried here.
//! - A pull without progress for [`PullConfig::progress_timeout`] is cancelled. CRI reports no
//!   progress of a pull, so any change in the image file system's usage counts: a stalled pull may
//!   live longer next to active ones.
//! - A present image is for pods with credentials that have pulled it (`access.rs`); others pull it
//!   themselves.
//! - Unused images are removed when their file system fills up (`collect.rs`).
//! - As in kubelet, QPS and burst reject a pull; they do not limit concurrent pulls.
//!
//! Events use kubelet's messages where it has them.

mod access;
mod backoff;
mod bucket;
mod collect;
mod flights;
mod list;
mod manager;
mod metrics;
mod progress;
mod reference;

pub use access::{CredentialVerification, ImageAccess};
pub use collect::{ImageCollection, ImageCollector, UnusedImage};
pub use manager::{
    ImageManager, PodIdentity, PullConfig, PullError, PullEvent, PullEvents, PullPolicy,
    PullRequest, go_duration,
};
pub use metrics::PullMetrics;
pub use reference::{ReferenceError, with_default_tag};
