//! What a local step is, and the question of rights that some ask.

use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Attributes, Effects, UserInfo};

/// A local admission step: synchronous, called inside the key's turn, perhaps several times for one
/// write.
pub trait Step: Send + Sync {
    /// Its name, one of [`crate::ORDER`].
    fn name(&self) -> &'static str;

    /// May change the object or refuse the write. Not called for deletes.
    ///
    /// # Errors
    /// The refusal, as the client sees it.
    fn mutate(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Result<(), Failure> {
        Ok(())
    }

    /// May refuse the write, and say what must hold or be written with it. `object` is `None` for a
    /// delete.
    ///
    /// # Errors
    /// The refusal, as the client sees it.
    fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        Ok(())
    }
}

/// May this user do that? Answered by the server's authorizer.
pub trait Permits: Send + Sync {
    /// Whether the answer is yes.
    fn permits(&self, user: &UserInfo, question: &Question<'_>) -> bool;
}

/// A right to a named object of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// `approve`, `sign`, ...
    pub verb: &'a str,
    /// The group.
    pub group: &'a str,
    /// The version; `*` when it does not matter.
    pub version: &'a str,
    /// The plural name.
    pub resource: &'a str,
    /// Empty for cluster scope.
    pub namespace: &'a str,
    /// The object.
    pub name: &'a str,
}

/// A validating step made of a function: how steps of other crates (the RBAC escalation check) take
/// their place.
pub struct Check<F> {
    name: &'static str,
    check: F,
    early: bool,
}

impl<F> Check<F>
where
    F: Fn(&Attributes<'_>, Option<&Document>) -> Result<(), Failure> + Send + Sync,
{
    /// A step of this name, one of [`crate::ORDER`]; the function's object is `None` for a delete.
    pub fn new(name: &'static str, check: F) -> Self {
        Self { name, check, early: false }
    }

    /// The same, asked before the object is validated as well: its refusal comes before that of
    /// what is wrong with the object.
    #[must_use]
    pub fn early(self) -> Self {
        Self { early: true, ..self }
    }
}

impl<F> Step for Check<F>
where
    F: Fn(&Attributes<'_>, Option<&Document>) -> Result<(), Failure> + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        if self.early { (self.check)(attributes, Some(object)) } else { Ok(()) }
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        (self.check)(attributes, object)
    }
}
