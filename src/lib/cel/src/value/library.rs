//! Values of the libraries' types.

use super::authorizer::AuthorizerValue;
use super::cidr::Cidr;
use super::named_format::NamedFormat;
use super::url::Url;
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_apimachinery::semver::Semver;
use std::net::IpAddr;

/// A value of a library type.
#[derive(Clone, Debug)]
pub enum Library {
    /// `kubernetes.URL`
    Url(Url),
    /// `net.IP`
    Ip(IpAddr),
    /// `net.CIDR`
    Cidr(Cidr),
    /// `kubernetes.Quantity`
    Quantity(Quantity),
    /// `kubernetes.Semver`
    Semver(Semver),
    /// `kubernetes.NamedFormat`
    Format(&'static NamedFormat),
    /// `kubernetes.authorization.*`
    Authorizer(AuthorizerValue),
}

pub(crate) const URL: &str = "kubernetes.URL";
pub(crate) const IP: &str = "net.IP";
pub(crate) const CIDR: &str = "net.CIDR";
pub(crate) const QUANTITY: &str = "kubernetes.Quantity";
pub(crate) const SEMVER: &str = "kubernetes.Semver";
pub(crate) const FORMAT: &str = "kubernetes.NamedFormat";

impl Library {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Url(_) => URL,
            Self::Ip(_) => IP,
            Self::Cidr(_) => CIDR,
            Self::Quantity(_) => QUANTITY,
            Self::Semver(_) => SEMVER,
            Self::Format(_) => FORMAT,
            Self::Authorizer(value) => value.type_name(),
        }
    }
}
