//! An authenticated identity, as authentication, authorization, audit and admission read it.

use std::collections::BTreeMap;

/// An authenticated identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// Such as `system:serviceaccount:NAMESPACE:NAME`.
    pub name: String,
    /// Stable id; may be empty.
    pub uid: String,
    /// With `system:authenticated`.
    pub groups: Vec<String>,
    /// Attributes set by the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}
