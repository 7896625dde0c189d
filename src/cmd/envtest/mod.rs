//! `ferrokube envtest-assets`, and the two executables in the directory that it makes.

pub(crate) mod apiserver;
pub(crate) mod assets;
pub(crate) mod etcd;
