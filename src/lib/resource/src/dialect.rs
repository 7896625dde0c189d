//! Native or custom: which of kube-apiserver's two implementations a resource behaves like.

/// The implementation that a resource behaves like. Tests name the difference that they need, not
/// the variant, so that each difference is documented once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Compiled into kube-apiserver: Go types behind the generic registry and router.
    #[default]
    Native,
    /// Defined by a CustomResourceDefinition: unstructured objects behind the handler of
    /// apiextensions-apiserver.
    Custom,
}

impl Dialect {
    /// Whether objects are decoded into types. A mistyped field of a typed object fails decoding
    /// (400), and its kind and apiVersion default to the endpoint's. Of an untyped object only the
    /// metadata is decoded: its kind is required, the schema validates the rest (422), and its
    /// numbers keep their form until stored.
    pub fn is_typed(self) -> bool {
        self == Self::Native
    }

    /// Whether the definition is part of the server. A custom one never replaces it.
    pub fn is_bundled(self) -> bool {
        self == Self::Native
    }

    /// Whether the schema may change under stored objects. Those of an earlier epoch are pruned and
    /// defaulted when read.
    pub fn has_epochs(self) -> bool {
        self == Self::Custom
    }

    /// Whether a write of the status changes only that field of the object, instead of all but the
    /// version's reset fields.
    pub fn writes_status_alone(self) -> bool {
        self == Self::Custom
    }

    /// Whether validation runs rules that users wrote, whose run time only measuring tells.
    pub fn runs_user_rules(self) -> bool {
        self == Self::Custom
    }

    /// Whether its handler parses paths and media types itself, after warning of a deprecated
    /// version: errors are worded unlike those of the generic router.
    pub fn routes_itself(self) -> bool {
        self == Self::Custom
    }

    /// Whether controllers write its discovery entries (verbs and subresources in fixed order
    /// rather than sorted, and kinds always with group and version) and its OpenAPI paths (without
    /// the legacy watches, and with other options).
    pub fn is_discovered_by_controller(self) -> bool {
        self == Self::Custom
    }
}
