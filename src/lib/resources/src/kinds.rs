//! A file per kind.

pub(crate) mod apiservice;
pub(crate) mod configmap;
pub(crate) mod crd;
pub(crate) mod csr;
pub(crate) mod event;
pub(crate) mod feature;
pub(crate) mod flowcontrol;
pub(crate) mod flowschema;
pub(crate) mod lease;
pub(crate) mod leasecandidate;
pub(crate) mod namespace;
pub(crate) mod policy;
pub(crate) mod policybinding;
pub(crate) mod prioritylevel;
pub(crate) mod resourcequota;
pub(crate) mod review;
pub(crate) mod role;
pub(crate) mod rolebinding;
pub(crate) mod secret;
pub(crate) mod serviceaccount;
pub(crate) mod storageversion;
pub(crate) mod storageversionmigration;
pub(crate) mod webhookconfiguration;
