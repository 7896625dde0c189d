//! Flags of Services, above all of `default/kubernetes`, with kube-apiserver's names.

use clap::Args;
use ferrokube_cluster::{KubernetesService, first_service_address};
use ferrokube_controlplane::aggregator::ServiceRouting;
use ferrokube_pki::main_addresses;
use std::net::{IpAddr, Ipv4Addr};

/// Service and endpoints by which clients in the cluster find API servers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Services (profile kubernetes)")]
pub(crate) struct ServiceFlags {
    /// How the endpoints of the Service kubernetes are maintained: lease: each server adds its own;
    /// none: not at all
    #[arg(long, value_name = "TYPE", default_value = "lease", value_parser = ["lease", "none"])]
    endpoint_reconciler_type: String,
    /// Address of this server's endpoint, also in the serving certificate; a loopback address gets
    /// no endpoint [default: --bind-address, or for a wildcard the address of the default route]
    #[arg(long, value_name = "IP")]
    advertise_address: Option<IpAddr>,
    /// CIDRs of Service addresses. The first address is that of the Service kubernetes; no others
    /// are allocated
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',', default_value = "10.0.0.0/24", value_parser = service_range)]
    service_cluster_ip_range: Vec<IpAddr>,
    /// Call webhooks and aggregated APIs at the endpoints of their Services; false: at their
    /// cluster IPs, which must be reachable from here
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_aggregator_routing: bool,
}

fn service_range(text: &str) -> Result<IpAddr, String> {
    first_service_address(text).ok_or_else(|| "no range of addresses like 10.0.0.0/24".to_owned())
}

impl ServiceFlags {
    fn service_address(&self) -> IpAddr {
        let first = self.service_cluster_ip_range.first();
        first.copied().unwrap_or(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)))
    }

    /// How Services are reached.
    pub(crate) fn routing(&self) -> ServiceRouting {
        match self.enable_aggregator_routing {
            true => ServiceRouting::Endpoints,
            false => ServiceRouting::ClusterIp,
        }
    }

    /// Addresses for the serving certificate.
    pub(crate) fn names(&self) -> Vec<String> {
        let addresses = self.advertise_address.into_iter().chain([self.service_address()]);
        addresses.map(|address| address.to_string()).collect()
    }

    /// The Service of a server that listens there.
    pub(crate) fn service(&self, listen: IpAddr, port: u16) -> KubernetesService {
        let own = self.advertise_address.or_else(|| match listen.is_unspecified() {
            true => main_addresses(listen).first().copied(),
            false => Some(listen),
        });
        let is_kept = self.endpoint_reconciler_type == "lease";
        let advertised = own.filter(|own| is_kept && !own.is_loopback() && !own.is_unspecified());
        KubernetesService { service_address: self.service_address(), advertised, port }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ServiceCli {
        #[command(flatten)]
        flags: ServiceFlags,
    }

    fn service(flags: &[&str], listen: &str) -> Option<KubernetesService> {
        let parsed = ServiceCli::try_parse_from([&["x"], flags].concat());
        Some(parsed.ok()?.flags.service(listen.parse().ok()?, 6443))
    }

    #[test]
    fn only_an_address_that_others_reach_is_advertised() {
        let advertised = |flags: &[&str], listen: &str| {
            service(flags, listen).and_then(|service| service.advertised).map(|ip| ip.to_string())
        };
        assert_eq!(advertised(&[], "127.0.0.1"), None);
        assert_eq!(advertised(&["--advertise-address=127.0.0.1"], "10.1.1.1"), None);
        assert_eq!(advertised(&["--endpoint-reconciler-type=none"], "10.1.1.1"), None);
        assert_eq!(advertised(&[], "10.1.1.1").as_deref(), Some("10.1.1.1"));
        let other = ["--advertise-address=10.2.2.2"];
        assert_eq!(advertised(&other, "127.0.0.1").as_deref(), Some("10.2.2.2"));
        assert!(service(&["--endpoint-reconciler-type=master-count"], "10.1.1.1").is_none());
    }

    #[test]
    fn the_first_range_has_the_service() {
        let address = |flags: &[&str]| {
            service(flags, "::").map(|service| service.service_address.to_string())
        };
        assert_eq!(address(&[]).as_deref(), Some("10.0.0.1"));
        let two = ["--service-cluster-ip-range=10.96.0.0/16,fd00::/108"];
        assert_eq!(address(&two).as_deref(), Some("10.96.0.1"));
        assert_eq!(address(&["--service-cluster-ip-range=10.96.0.0"]), None);
    }
}
