//! Feature objects for people: the commands of `feature-admin` and the pages of `/ui/features/`.
//!
//! Must never know how transitions work or where objects are stored: it only reads Feature objects.
//! Start at [`report`]; [`admin`] has the commands, [`board`] the pages, [`check`] says whether a
//! change of version is safe.

pub mod admin;
pub mod board;
pub mod check;
mod follow;
pub mod report;
mod request_log;
mod text;

pub use admin::{AdminOptions, FeatureAdmin, FeatureAdminError, FeatureCommand};
pub use check::{CheckReason, VersionChange};
pub use report::{FeatureReport, Hindrance};
pub use request_log::RequestNote;
