//! Subresources that connect to other servers: kubelets, pods and services, and what the program
//! adds.

use crate::builder::ControlPlaneBuilder;
use crate::client_certificate::OwnCertificate;
use crate::config::KubeletAccessConfig;
use crate::context::{FromServer, ServerContext};
use crate::error::{BuildError, InputError};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_controlplane::connect::{
    ConnectResource, ConnectSettings, Connections, KubeletTrust,
};
use ferrokube_pki::files;
use ferrokube_resource::{Composition, Definition};
use std::collections::BTreeSet;

/// A subresource of the program's own.
pub(crate) struct OwnConnection {
    /// `plural.group`
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) make: FromServer<dyn ConnectResource>,
}

/// `None` if nothing connects. `kubelet_client`: if nodes are served.
pub(crate) fn connections(
    builder: &mut ControlPlaneBuilder,
    context: &ServerContext,
    served: &Composition,
    kubelet_client: Option<&OwnCertificate>,
) -> Result<Option<Connections>, BuildError> {
    let own = std::mem::take(&mut builder.connections);
    if own.is_empty() && kubelet_client.is_none() {
        check_all(&BTreeSet::new(), served)?;
        return Ok(None);
    }
    let settings = match kubelet_client {
        Some(certificate) => kubelets(&builder.kubelets, certificate)?,
        None => ConnectSettings::default(),
    };
    let mut connections = Connections::new(&settings);
    let mut seen = BTreeSet::new();
    for OwnConnection { resource, subresource, make } in own {
        let (plural, group) = resource.split_once('.').unwrap_or((&resource, ""));
        let name = GroupResource::new(group, plural);
        let full_name = format!("{resource}/{subresource}");
        let is_known = |definition: &Definition| {
            definition.group_resource() == name && Connections::is_own(definition, &subresource)
        };
        if !served.definitions.iter().any(|definition| is_known(definition)) {
            return Err(BuildError::UnknownResource(full_name));
        }
        connections = connections.with(&name, &subresource, make(context));
        if !seen.insert((name, subresource)) {
            return Err(BuildError::DuplicateHandler(full_name));
        }
    }
    check_all(&seen, served)?;
    Ok(Some(connections))
}

/// Checks that the program says where each of its subresources goes.
fn check_all(
    known: &BTreeSet<(GroupResource, String)>,
    served: &Composition,
) -> Result<(), BuildError> {
    for definition in &served.definitions {
        for subresource in definition.versions.iter().flat_map(|version| &version.subresources) {
            let name = (definition.group_resource(), subresource.name.to_owned());
            if Connections::is_own(definition, subresource.name) && !known.contains(&name) {
                return Err(BuildError::NoConnection(name.0, subresource.name));
            }
        }
    }
    Ok(())
}

/// How kubelets, pods and services are reached.
fn kubelets(
    config: &KubeletAccessConfig,
    certificate: &OwnCertificate,
) -> Result<ConnectSettings, InputError> {
    let address_types = config.address_types.clone();
    Ok(ConnectSettings { identity: certificate.identity(), trust: trust(config)?, address_types })
}

/// Reads the CAs of kubelets.
pub(crate) fn trust(config: &KubeletAccessConfig) -> Result<KubeletTrust, InputError> {
    let Some(path) = &config.ca_file else { return Ok(KubeletTrust::Any) };
    let pem = files::read(path)?.ok_or_else(|| InputError::missing(path))?;
    KubeletTrust::authorities(&pem)
        .map_err(|why| InputError::Unusable(format!("cannot use {}: {why}", path.display())))
}
