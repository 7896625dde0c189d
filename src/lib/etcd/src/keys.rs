//! Keys and values of an etcd as a whole, for migrations: no store, no feed.

use crate::connection::{ConfigError, EtcdConfig, EtcdConnection, EtcdTls, reason};
use crate::lease::Leases;
use crate::proto::op;
use crate::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, LeaseTimeToLiveRequest,
    PutRequest, RangeRequest, RequestUnion, ResponseUnion, TargetUnion, TxnRequest, TxnResponse,
};
use crate::shared::{in_etcd, in_store};
use bytes::Bytes;
use std::time::Duration;
use tonic::Status;

/// Start of the store's keys.
const STORE_PREFIX: &str = "/registry";
/// Key of the migration note, below a name that is neither a resource nor a group.
const MIGRATION: &str = "/ferrokube/migration";
/// Below it there are no objects.
const OWN: &str = "/ferrokube/";
/// Values per page.
const PAGE: i64 = 500;

/// All keys below a prefix.
pub struct EtcdKeys {
    connection: EtcdConnection,
    prefix: String,
    renamed: &'static [(&'static str, &'static str)],
    leases: Leases,
}

/// A key with its value, as stored.
#[derive(Clone, Debug)]
pub struct EtcdValue {
    /// Key as the store names it; `None` for a key that is not of a store.
    pub key: Option<Box<str>>,
    /// Empty if only keys were requested.
    pub value: Bytes,
    /// Revision of etcd that wrote it.
    pub revision: u64,
    /// Lease of the key; 0: none.
    pub lease: i64,
}

/// Some keys, in the order of etcd.
#[derive(Debug)]
pub struct EtcdPage {
    /// Revision of etcd of this page and the next ones.
    pub revision: u64,
    /// Number of all keys below the prefix.
    pub total: u64,
    /// The page, without keys that do not belong to a store.
    pub values: Vec<EtcdValue>,
    /// Start of the next page; `None` for the last one.
    pub next: Option<PageStart>,
}

/// Key and revision at which a page starts.
#[derive(Clone, Debug)]
pub struct PageStart {
    key: Bytes,
    revision: i64,
}

/// Result of [`EtcdKeys::create`].
#[derive(Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The key was created.
    Created,
    /// The key existed, with this value.
    Present(Bytes),
}

impl EtcdKeys {
    /// Connects when first used. To be called within a runtime.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            connection: EtcdConnection::new(config)?,
            prefix: config.prefix.clone(),
            renamed: config.renamed,
            leases: Leases::default(),
        })
    }

    /// New connections use these certificates.
    pub(crate) fn renew(&self, tls: &EtcdTls) -> Result<(), ConfigError> {
        self.connection.renew(tls)
    }

    /// Why this etcd is refused for good, if it is.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.connection.refused()
    }

    fn failed(&self, status: &Status) -> String {
        reason(self.connection.url(), status)
    }

    fn key(&self, key: &str) -> Bytes {
        let rest = key.strip_prefix(STORE_PREFIX).unwrap_or(key);
        in_etcd(&self.prefix, self.renamed, rest).into()
    }

    fn marker(&self) -> Bytes {
        format!("{}{MIGRATION}", self.prefix).into()
    }

    /// A page of keys, with values if wanted; the first one is of the current revision.
    ///
    /// # Errors
    /// A reason for operators; likewise for all methods below.
    pub async fn page(
        &self,
        start: Option<PageStart>,
        keys_only: bool,
    ) -> Result<EtcdPage, String> {
        let (key, at) = match start {
            Some(start) => (start.key, start.revision),
            None => (format!("{}/", self.prefix).into(), 0),
        };
        // '0' follows '/'.
        let range_end = format!("{}0", self.prefix).into();
        let request = RangeRequest { key, range_end, limit: PAGE, revision: at, keys_only };
        let page = self.connection.range(request).await.map_err(|status| self.failed(&status))?;
        let revision = if at == 0 { page.header.unwrap_or_default().revision } else { at };
        let total = u64::try_from(page.count).unwrap_or(0);
        let last = page.kvs.last().map(|kv| [&kv.key[..], b"\0"].concat().into());
        let next = last.filter(|_| page.more).map(|key| PageStart { key, revision });
        let values = page.kvs.into_iter().filter_map(|kv| self.value(kv)).collect();
        Ok(EtcdPage { revision: u64::try_from(revision).unwrap_or(0), total, values, next })
    }

    fn value(&self, kv: KeyValue) -> Option<EtcdValue> {
        let rest = std::str::from_utf8(&kv.key)
            .ok()
            .and_then(|key| key.strip_prefix(self.prefix.as_str()));
        if rest.is_some_and(|rest| rest.starts_with(OWN)) {
            return None;
        }
        let key = rest.and_then(|rest| in_store(self.renamed, rest));
        let revision = u64::try_from(kv.mod_revision).unwrap_or(0);
        Some(EtcdValue { key, value: kv.value, revision, lease: kv.lease })
    }

    /// Time left of a lease; `None` if it has expired.
    pub async fn time_left(&self, lease: i64) -> Result<Option<Duration>, String> {
        let request = LeaseTimeToLiveRequest { id: lease };
        let left = self.connection.time_left(request).await;
        let left = left.map_err(|status| self.failed(&status))?.ttl;
        Ok(u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_secs))
    }

    /// The migration note.
    pub async fn migration(&self) -> Result<Option<String>, String> {
        let request = RangeRequest { key: self.marker(), ..Default::default() };
        let found = self.connection.range(request).await.map_err(|status| self.failed(&status))?;
        Ok(found.kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()))
    }

    /// Writes the migration note, for servers and the next migration.
    pub async fn note_migration(&self, text: &str) -> Result<(), String> {
        let value = Bytes::copy_from_slice(text.as_bytes());
        let put = PutRequest { key: self.marker(), value, ..Default::default() };
        self.txn(TxnRequest { success: vec![op(RequestUnion::Put(put))], ..Default::default() })
            .await
            .map(drop)
    }

    async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, String> {
        self.connection.txn(request).await.map_err(|status| self.failed(&status))
    }

    async fn put_request(
        &self,
        key: Bytes,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<PutRequest, String> {
        let lease = match ttl {
            Some(ttl) => self
                .leases
                .for_ttl(&self.connection, rounded(ttl))
                .await
                .map_err(|status| self.failed(&status))?,
            None => 0,
        };
        Ok(PutRequest { key, value, lease })
    }

    /// Writes a value unless the key has one. Takes keys of the store.
    pub async fn create(
        &self,
        key: &str,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<CreateOutcome, String> {
        let key = self.key(key);
        let put = self.put_request(key.clone(), value, ttl).await?;
        let is_absent = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(0)),
        };
        let range = RangeRequest { key, ..Default::default() };
        let request = TxnRequest {
            compare: vec![is_absent],
            success: vec![op(RequestUnion::Put(put))],
            failure: vec![op(RequestUnion::Range(range))],
        };
        let response = self.txn(request).await?;
        if response.succeeded {
            return Ok(CreateOutcome::Created);
        }
        match response.responses.into_iter().next().and_then(|op| op.response) {
            Some(ResponseUnion::Range(range)) => match range.kvs.into_iter().next() {
                Some(kv) => Ok(CreateOutcome::Present(kv.value)),
                None => Err("a key vanished while it was read".to_owned()),
            },
            _ => Err("etcd sent no value".to_owned()),
        }
    }

    /// Replaces a value.
    pub async fn replace(
        &self,
        key: &str,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<(), String> {
        let put = self.put_request(self.key(key), value, ttl).await?;
        self.txn(TxnRequest { success: vec![op(RequestUnion::Put(put))], ..Default::default() })
            .await
            .map(drop)
    }

    /// Without a guard; a key that does not exist is no error.
    pub async fn delete(&self, key: &str) -> Result<(), String> {
        let delete = RequestUnion::DeleteRange(DeleteRangeRequest { key: self.key(key) });
        self.txn(TxnRequest { success: vec![op(delete)], ..Default::default() }).await.map(drop)
    }
}

/// A TTL for one of which a part has passed, rounded up: values from different times then share
/// leases, of which etcd handles few well.
fn rounded(left: Duration) -> Duration {
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    let unit = match seconds {
        0..60 => 1,
        60..600 => 10,
        _ => 60,
    };
    Duration::from_secs(seconds.checked_next_multiple_of(unit).unwrap_or(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn remaining_times_are_few_and_hardly_longer() {
        let mut times = BTreeSet::new();
        for left in (1..3_600_000).step_by(333).map(Duration::from_millis) {
            let rounded = rounded(left);
            let most = left / 6 + Duration::from_secs(1);
            assert!(rounded >= left && rounded - left <= most, "{left:?}: {rounded:?}");
            times.insert(rounded);
        }
        assert!(times.len() < 200, "{}", times.len());
    }
}
