//! Rules of a resource that are plain data.

use ferrokube_apimachinery::document::Document;

/// Whether a finalizer needs a domain (`example.com/cleanup`). Standard finalizers never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizerDomain {
    /// 422 without one.
    Required,
    /// A warning for a new one without.
    Preferred,
    /// Any qualified name: kinds that kube-apiserver validates outside of its core API.
    Optional,
}

/// The metadata errors that a kind's own update validation repeats after the common checks, as in
/// kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataRules {
    /// No error is reported twice.
    Nothing,
    /// Immutable metadata, labels, annotations, and owners.
    Changes,
    /// The metadata as that of a new object.
    Object,
    /// The same, and each of its errors twice.
    ObjectTwice,
    /// Both.
    All,
}

/// How requests for a resource are treated, as far as that needs no code (see
/// [`Hooks`](crate::Hooks)). The default fits most native kinds.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Whether names of finalizers need a domain.
    pub finalizer_domain: FinalizerDomain,
    /// Metadata errors of an update that are reported again.
    pub metadata_rules: MetadataRules,
    /// The same, of an update through a subresource.
    pub subresource_metadata_rules: MetadataRules,
    /// The metadata of a new object is validated only if its other fields are valid.
    pub metadata_last: bool,
    /// Lists may select by `metadata.namespace`. False for cluster-scoped kinds that declare their
    /// selectable fields.
    pub selects_namespace: bool,
    /// A POST without a name gets one, as random as a uid.
    pub names_itself: bool,
    /// A `generateName` becomes the name, without a suffix.
    pub prefix_becomes_name: bool,
    /// A `generateName` must be a valid name itself; the usual leniency for prefixes does not
    /// apply.
    pub prefix_is_name: bool,
    /// A PUT may create the object. Patches other than apply never do.
    pub create_on_update: bool,
    /// A PUT without a resourceVersion is an unconditional update.
    pub unconditional_update: bool,
    /// Other versions of the group in which kube-apiserver stores objects, with the fields of the
    /// storage version.
    pub former_versions: &'static [&'static str],
    /// Validating even a small object may take long: writes are computed off the worker threads.
    pub computes_long: bool,
    /// `metadata.generation` is maintained: 1 on create, +1 when anything but metadata and status
    /// changes.
    pub counts_generation: bool,
    /// Another annotation is a generation, too.
    pub counts_annotations: bool,
    /// The fields that a write resets (the version's `reset`) keep the client's value on create.
    /// Otherwise they are dropped before [`Hooks::prepare`](crate::Hooks::prepare).
    pub keeps_reset_on_create: bool,
    /// Reset fields of subresources that a write changes anyway: no manager owns them, and
    /// [`Hooks::prepare`](crate::Hooks::prepare) sets them.
    pub written_unowned: &'static [&'static str],
    /// A write of a subresource that does not change metadata leaves the fields of a deletion
    /// alone, too. False for API services, where other ones are an error.
    pub status_keeps_deletion: bool,
    /// Subresources that are not shown as Tables.
    pub untabled_subresources: &'static [&'static str],
    /// Rows of a Table are in ascending order of this, then of their names.
    pub table_order: Option<fn(&Document) -> i64>,
    /// Deletes honor propagation policies by adding the finalizers `orphan` and
    /// `foregroundDeletion`. False for events.
    pub garbage_collected: bool,
    /// A delete without a propagation policy orphans dependents, as it did in old versions.
    pub orphans_by_default: bool,
    /// Warning of a delete that orphans dependents without having said so; empty for none.
    pub orphan_warning: &'static str,
    /// The kind's own code starts its deletion; failed preconditions are then worded differently.
    pub begins_own_deletion: bool,
    /// A delete that only marks the object leaves the garbage collection finalizers alone, whatever
    /// propagation policy it requests.
    pub mark_keeps_finalizers: bool,
    /// A completed delete returns the last state of the object instead of a `Status`.
    pub returns_deleted: bool,
    /// Group named in `Invalid` errors, if not the definition's (`events.k8s.io` reports the core
    /// group).
    pub invalid_group: Option<&'static str>,
    /// Resource named in `NotFound` errors, if not the definition's.
    pub missing_resource: Option<&'static str>,
    /// Annotations that kube-apiserver's internal type has as fields: metadata on its own, as
    /// `PartialObjectMetadata` and in rows of Tables, lacks them.
    pub internal_annotations: &'static [&'static str],
    /// Why kube-apiserver's conversion to its internal version fails, for texts that the internal
    /// version holds as another type.
    pub conversion_error: Option<fn(&Document) -> Option<String>>,
    /// The message about a field that lists cannot select by, of a kind that words it differently.
    pub unknown_field: Option<fn(&str) -> String>,
}

impl Policy {
    /// The default, for constants.
    pub const DEFAULT: Self = Self {
        finalizer_domain: FinalizerDomain::Required,
        metadata_rules: MetadataRules::All,
        subresource_metadata_rules: MetadataRules::All,
        metadata_last: false,
        selects_namespace: true,
        names_itself: false,
        prefix_becomes_name: false,
        prefix_is_name: false,
        create_on_update: false,
        unconditional_update: true,
        former_versions: &[],
        computes_long: false,
        counts_generation: false,
        counts_annotations: false,
        keeps_reset_on_create: false,
        written_unowned: &[],
        status_keeps_deletion: true,
        untabled_subresources: &[],
        table_order: None,
        garbage_collected: true,
        orphans_by_default: false,
        orphan_warning: "",
        begins_own_deletion: false,
        mark_keeps_finalizers: false,
        returns_deleted: false,
        invalid_group: None,
        missing_resource: None,
        internal_annotations: &[],
        conversion_error: None,
        unknown_field: None,
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}
