//! The links of the chain, one file for each concern.

pub(crate) mod admit;
pub(crate) mod audit;
pub(crate) mod headers;
pub(crate) mod identity;
pub(crate) mod info;
pub(crate) mod limits;
pub(crate) mod trace;
