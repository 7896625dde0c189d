//! Kinds with code: one file per kind or family.

pub(crate) mod autoscaler;
pub(crate) mod csidriver;
pub(crate) mod devices;
pub(crate) mod endpoints;
pub(crate) mod job;
pub(crate) mod limits;
pub(crate) mod networking;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod podspec;
pub(crate) mod priority;
pub(crate) mod revision;
pub(crate) mod service;
pub(crate) mod storage;
pub(crate) mod templated;
pub(crate) mod volume;
