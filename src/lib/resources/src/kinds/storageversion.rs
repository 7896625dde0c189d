//! StorageVersion: storage versions of a resource as reported by the API servers. Served on request
//! only, like alpha versions of kube-apiserver.

use crate::cells;
use crate::checks::{ErrorList, items, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, MetadataRules, Policy};
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) fn body() -> KindBody {
    KindBody {
        subresources: &[NativeSubresource::STATUS_ALONE],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text(
                    "CommonEncodingVersion",
                    "What all servers store, if they agree.",
                ),
                NativeColumn::AGE,
            ]
        },
        storage: Some("storageversions"),
        policy: Policy {
            metadata_rules: MetadataRules::Nothing,
            subresource_metadata_rules: MetadataRules::Nothing,
            finalizer_domain: FinalizerDomain::Optional,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(StorageVersion),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct StorageVersion;

impl Hooks for StorageVersion {
    /// Names are `group.resource`.
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(ferrokube_apimachinery::name::path_segment(name))
    }

    fn validate(&self, _change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        const SERVERS: &str = "status.storageVersions";
        let mut errors = ErrorList::default();
        let servers = object.list(&["status", "storageVersions"]);
        errors.check_each(servers.iter().enumerate(), |(index, server)| {
            let nameless = text(server, "apiServerID")
                .is_empty()
                .then(|| FieldError::required(format!("{SERVERS}[{index}].apiServerID"), ""));
            let encoding = text(server, "encodingVersion");
            let is_missing =
                !items(server, "decodableVersions").iter().any(|version| version == encoding);
            let missing = is_missing.then(|| {
                let why = "decodableVersions must include encodingVersion";
                FieldError::invalid_unshown(format!("{SERVERS}[{index}]"), why)
            });
            nameless.into_iter().chain(missing)
        });
        let mut errors = errors.into_vec();
        let common = object.str(&["status", "commonEncodingVersion"]).unwrap_or_default();
        if !common.is_empty()
            && servers.iter().any(|server| text(server, "encodingVersion") != common)
        {
            errors.push(FieldError::invalid(
                "status.commonEncodingVersion",
                common,
                "must be unset when the servers do not agree",
            ));
        }
        errors
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let common = object.str(&["status", "commonEncodingVersion"]).unwrap_or_default();
        vec![Value::from(object.name()), Value::from(common), Value::from(cells::age(object, now))]
    }
}
