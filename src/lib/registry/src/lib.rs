//! The object pipeline without HTTP: create, update, patch, apply, delete, list and watch of every
//! resource, on one path.
//!
//! Must never know HTTP or concrete kinds. Start reading at [`pipeline`].
//!
//! ```text
//! decode -> patch/apply -> default -> mutating admission -> default -> stamp ids -> prune + validate
//!        -> validating admission -> no-op test -> encode -> commit -> publish -> answer + watchers
//! ```

pub mod admission;
mod backlog;
pub mod catalog;
mod codec;
mod computed;
pub mod context;
mod conversion;
mod decode;
mod failure;
mod ids;
pub mod informer;
pub mod local;
mod master_leases;
mod meta;
mod name;
mod noop;
pub mod offload;
mod options;
pub mod pipeline;
mod random;
pub mod read;
mod served;
mod stored;
mod warnings;

pub use admission::{
    Admission, AdmissionOptions, Attributes, Effects, Operation, Stamps, WriteContext,
};
pub use catalog::Catalog;
pub use codec::{ConvertedObject, convert};
pub use computed::ComputedResource;
pub use context::{FieldValidation, RequestContext, Target};
pub use decode::{internal_package, unrecognized};
pub use ids::{keep_ids, show_ids};
pub use informer::{Informer, InformerBatch, Notice};
pub use local::Local;
pub use master_leases::MasterLeases;
pub use noop::is_same_content;
pub use options::{DeleteOptions, WriteOptions};
pub use pipeline::{
    Body, Deleted, Object, Patch, Registry, Written, decode_mutated, no_object, schema_at, view,
};
pub use read::{
    ListOptions, ListPage, Listing, Reading, VersionMatch, Watch, WatchItem, WatchOptions,
    caught_up,
};
pub use served::Served;
pub use stored::{StorageMediaType, StoredValues};
