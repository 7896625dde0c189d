//! Leases by which API servers say that they serve at an address: kube-apiserver's, shared with it.
//!
//! Each is an Endpoints object without a name, at `/registry/masterleases/<address>`, outside of
//! the API. It expires unless its server renews it.

use crate::failure::{lost, rejected, unavailable};
use crate::pipeline::Registry;
use crate::stored::MASTER_LEASES;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{CommitError, Key, Prefix, Put, Rejected, Sidecar, Store, Txn, Write};
use std::net::IpAddr;
use std::time::Duration;

/// Attempts of a write that others get in the way of.
const ATTEMPTS: usize = 5;

/// The leases in a server's store.
#[derive(Clone)]
pub struct MasterLeases {
    store: Store,
    prefix: Prefix,
}

impl MasterLeases {
    /// Those of the registry's store.
    pub fn new(registry: &Registry) -> Self {
        let prefix = Prefix::new(MASTER_LEASES).expect("a constant that is one segment");
        Self { store: registry.store().clone(), prefix }
    }

    fn key(&self, address: IpAddr) -> Key {
        self.prefix.key(None, &address.to_string()).expect("an address is one segment")
    }

    /// Waits until the store has caught up with earlier writes.
    async fn catch_up(&self) -> Result<(), Failure> {
        match self.store.barrier() {
            Some(passed) => passed.await.map_err(|error| unavailable(&error)),
            None => Ok(()),
        }
    }

    /// Addresses of the servers whose leases last, in text order.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn addresses(&self) -> Result<Vec<String>, Failure> {
        self.catch_up().await?;
        let snapshot = self.store.snapshot(&self.prefix);
        let leases = snapshot.range(None, None).filter_map(|entry| json::read(&entry.bytes).ok());
        Ok(leases.filter_map(|lease| address(&lease.document)).collect())
    }

    /// Makes or renews the lease of an address.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn renew(&self, address: IpAddr, ttl: Duration) -> Result<(), Failure> {
        let key = self.key(address);
        let put = || {
            let generation = self.generation(&key).saturating_add(1);
            let (value, layout) = json::write(&lease(address, generation));
            let sidecar = Sidecar {
                marks: layout.marks(),
                revision_at: layout.revision_at,
                comma: layout.comma(),
                ..Sidecar::default()
            };
            Write::Put(Put { key: key.clone(), value: value.into(), sidecar, ttl: Some(ttl) })
        };
        self.write(put).await.map(drop)
    }

    /// kube-apiserver counts renewals in it.
    fn generation(&self, key: &Key) -> i64 {
        let entry = self.store.get(key);
        let lease = entry.and_then(|entry| json::read(&entry.bytes).ok());
        let path = ["metadata", "generation"];
        lease.and_then(|lease| lease.document.get(&path)?.as_i64()).unwrap_or_default()
    }

    /// Removes the lease of an address. False if there was none.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remove(&self, address: IpAddr) -> Result<bool, Failure> {
        let key = self.key(address);
        self.catch_up().await?;
        if self.store.get(&key).is_none() {
            return Ok(false);
        }
        self.write(|| Write::Delete { key: key.clone(), last: None }).await
    }

    /// False for a delete of a missing key.
    async fn write(&self, write: impl Fn() -> Write) -> Result<bool, Failure> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let write = write();
            let is_delete = matches!(write, Write::Delete { .. });
            let ticket = match self.store.submit(Txn { guards: Vec::new(), writes: vec![write] }) {
                Ok(ticket) => ticket,
                Err(Rejected::Guard(_)) if is_delete => return Ok(false),
                Err(error) => return Err(rejected(&error)),
            };
            match ticket.committed().await {
                Ok(_) => return Ok(true),
                Err(CommitError::Conflict(key)) => last = Some(key),
                Err(error) => return Err(lost(&error)),
            }
        }
        Err(rejected(&Rejected::Guard(last.expect("each attempt conflicted"))))
    }
}

fn lease(address: IpAddr, generation: i64) -> Document {
    let lease = json!({
        "kind": "Endpoints",
        "apiVersion": "v1",
        "metadata": {"generation": generation},
        "subsets": [{"addresses": [{"ip": address.to_string()}]}],
    });
    Document::from_value(lease).expect("an object literal")
}

fn address(lease: &Document) -> Option<String> {
    let subset = lease.list(&["subsets"]).first()?;
    let address = subset.get("addresses").and_then(Value::as_array)?.first()?;
    address.get("ip").and_then(Value::as_str).filter(|ip| !ip.is_empty()).map(str::to_owned)
}
