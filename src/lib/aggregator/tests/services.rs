//! Services that are objects: at which addresses they are reached.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use ferrokube_aggregator::{
    ListedServices, ServiceError, ServiceResolver, ServiceRouting, StoredServices,
};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_registry::admission::AllowAll;
use ferrokube_registry::offload::{Offload, has_slot};
use ferrokube_registry::{Catalog, Local, Registry};
use ferrokube_storage::{Config, Store};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

/// A server's objects in memory.
struct StoredObjects(Registry);

impl StoredObjects {
    fn new() -> Self {
        let bundles = [ferrokube_resources::bundle(), ferrokube_workloads::bundle()];
        let catalog = Arc::new(Catalog::default());
        let served = ferrokube_resources::compose(&bundles).unwrap();
        served.definitions.into_iter().for_each(|definition| catalog.put(definition));
        let store = Store::open(Config::memory()).unwrap();
        Self(Registry::new(store, catalog, Arc::new(AllowAll)))
    }

    async fn create(&self, plural: &str, object: Value) {
        let group = if plural == "endpointslices" { "discovery.k8s.io" } else { "" };
        let objects = Local::new(&self.0, group, "v1", plural).unwrap();
        objects.create("ns", Document::from_value(object).unwrap()).await.unwrap();
    }

    async fn service(&self, name: &str, spec: Value) {
        let kind = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}});
        let mut object = Document::from_value(kind).unwrap();
        object.set(&["spec"], spec);
        self.create("services", object.into_value()).await;
    }

    async fn slice(&self, name: &str, of: &str, ports: Value, endpoints: Value) {
        let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": of}},
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
        self.create("endpointslices", object).await;
    }

    fn services(&self, routing: ServiceRouting) -> StoredServices {
        let listed = ListedServices::new(["listed.ns=127.0.0.1:7".parse().unwrap()]);
        let (store, catalog) = (self.0.store().clone(), Arc::clone(self.0.catalog()));
        StoredServices::new(store, catalog, listed, routing)
    }
}

fn addresses<const N: usize>(texts: [&str; N]) -> Result<Vec<SocketAddr>, ServiceError> {
    Ok(texts.map(|text| text.parse().unwrap()).to_vec())
}

#[tokio::test]
async fn ready_endpoints_with_the_port_are_found() {
    let objects = StoredObjects::new();
    let services = objects.services(ServiceRouting::Endpoints);
    let find = async |name: &str, port| services.resolve("ns", name, port).await;
    assert_eq!(find("s", 443).await, Err(ServiceError::NotFound("s".to_owned())));
    let ports = json!([{"name": "a", "port": 443}, {"name": "b", "port": 80}]);
    objects.service("s", json!({"ports": ports})).await;
    let no_port = ServiceError::NoPort { service: "s".to_owned(), port: 9 };
    assert_eq!(find("s", 9).await, Err(no_port));
    assert_eq!(find("s", 443).await, Err(ServiceError::NoEndpoints("s".to_owned())));
    let of_another = json!([{"addresses": ["10.0.0.9"]}]);
    objects.slice("o", "other", json!([{"name": "a", "port": 1}]), of_another).await;
    assert_eq!(find("s", 443).await, Err(ServiceError::NoEndpoints("s".to_owned())));
    let ports = json!([{"name": "a", "port": 8443}, {"name": "c", "port": 1}]);
    let endpoints = json!([
        {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
        {"addresses": ["10.0.0.3"]},
    ]);
    objects.slice("s-1", "s", ports, endpoints).await;
    let both = ["10.0.0.1:8443", "10.0.0.3:8443"];
    assert_eq!(find("s", 443).await, addresses(both));
    let [first, second] = both;
    assert_eq!(find("s", 443).await, addresses([second, first]), "the next connection");
    let not_ready = ServiceError::NotReady { service: "s".to_owned(), port_name: "b".to_owned() };
    assert_eq!(find("s", 80).await, Err(not_ready));
    // The operator's list takes precedence.
    assert_eq!(find("listed", 1).await, addresses(["127.0.0.1:7"]));
}

#[tokio::test]
async fn endpoints_count_where_there_are_no_slices() {
    let objects = StoredObjects::new();
    objects.service("s", json!({"ports": [{"port": 443}]})).await;
    let subsets = json!([
        {"addresses": [{"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.2"}],
            "ports": [{"port": 8443}]},
        {"addresses": [{"ip": "10.0.0.3"}], "ports": [{"name": "x", "port": 1}]},
    ]);
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s"},
        "subsets": subsets});
    objects.create("endpoints", endpoints).await;
    let services = objects.services(ServiceRouting::Endpoints);
    assert_eq!(services.resolve("ns", "s", 443).await, addresses(["10.0.0.1:8443"]));
}

#[tokio::test]
async fn fault_47_no_name_or_address_of_this_machine_is_a_service() {
    let objects = StoredObjects::new();
    let name = json!({"type": "ExternalName", "externalName": "internal.example.com",
        "ports": [{"port": 443}]});
    objects.service("name", name).await;
    let local = json!({"clusterIP": "127.0.0.1", "ports": [{"port": 443}]});
    objects.service("local", local).await;
    objects.service("headless", json!({"clusterIP": "None", "ports": [{"port": 443}]})).await;
    objects.service("inner", json!({"clusterIP": "10.9.9.9", "ports": [{"port": 443}]})).await;
    let address_of = async |routing, name: &str| {
        let services = objects.services(routing);
        services.resolve("ns", name, 443).await
    };
    for routing in [ServiceRouting::Endpoints, ServiceRouting::ClusterIp] {
        let why = address_of(routing, "name").await.unwrap_err().to_string();
        assert_eq!(why, "unsupported service type \"ExternalName\"");
    }
    let of_cluster = async |name: &str| address_of(ServiceRouting::ClusterIp, name).await;
    assert_eq!(of_cluster("inner").await, addresses(["10.9.9.9:443"]));
    assert!(of_cluster("local").await.is_err());
    let why = of_cluster("headless").await.unwrap_err().to_string();
    assert_eq!(why, "cannot route to service with ClusterIP \"None\"");
}

#[tokio::test]
async fn a_lookup_among_many_slices_leaves_the_worker() {
    let objects = StoredObjects::new();
    objects.service("s", json!({"ports": [{"port": 443}]})).await;
    let ports = || json!([{"port": 8443}]);
    let endpoints = || json!([{"addresses": ["10.0.0.1"]}]);
    objects.slice("s-1", "s", ports(), endpoints()).await;
    let services = objects.services(ServiceRouting::Endpoints);
    let waits_for_a_slot = async || {
        let offload = Offload::default();
        let looked_up = async {
            let (mut found, mut polls) = (services.resolve("ns", "s", 443), 0);
            let found = poll_fn(|context| {
                polls += 1;
                found.as_mut().poll(context)
            });
            assert_eq!(found.await, addresses(["10.0.0.1:8443"]));
            assert!(!has_slot(), "not in the queue of its caller");
            polls > 1
        };
        offload.run(7, Box::pin(looked_up)).await
    };
    assert!(!waits_for_a_slot().await);
    for number in 0..64 {
        objects.slice(&format!("o-{number}"), "other", ports(), endpoints()).await;
    }
    assert!(waits_for_a_slot().await);
}
