//! The workload kinds (pods, services, deployments and related ones) as one bundle: data tables,
//! and code for kinds that data cannot describe.
//!
//! Must never know controllers, the kubelet, sockets or the generic kinds. Start reading at
//! `table`; `data/` says what each table holds:
//!
//! | table | rows | made by |
//! |---|---|---|
//! | `resources.tsv` | discovery: names, scope, verbs, subresources | `resources/data/generate.py` |
//! | `schema.tsv`, `protobuf.tsv` | types: fields, numbers, list keys | `resources/data/generate.py` |
//! | `emit.tsv` | how fields are encoded where its rules guess wrong | hand |
//! | `kinds.tsv` | storage prefixes, selectable fields, strategies | hand |
//! | `columns.tsv` | printer columns and their cells | hand |
//! | `defaults.tsv` | defaults of types | hand |
//! | `rules.tsv` | validation of types | hand |

mod cells;
mod checks;
mod conditions;
mod hooks;
mod kinds;
mod paths;
mod priorities;
mod resource_names;
mod rows;
mod rules;
mod table;
mod types;
mod warnings;

use ferrokube_resource::Bundle;

pub use cells::selector_text;

/// The workload kinds, in discovery order. Their types build on those of the generic bundle.
pub fn bundle() -> Bundle {
    Bundle::new("workloads")
        .kinds(&table::native_kinds())
        .priorities(priorities::PRIORITIES)
        .schemas(rows::SCHEMAS)
        .messages(include_str!("../data/protobuf.tsv"))
        .descriptions(include_str!("../data/descriptions.tsv"))
        .roles(ROLES)
}

/// The user with which API servers call kubelets; it has no other rights.
const ROLES: &str = "clusterbinding system:kube-apiserver-kubelet-client system:kubelet-api-admin \
                     u:kube-apiserver-kubelet-client";
