//! Refuses toys where nobody tallies them, and counts them: in the ConfigMap `tally` of their
//! namespace, in the transaction of each create.

use ferrokube_server::ServerContext;
use ferrokube_server::admission_steps::AdmissionStep;
use ferrokube_server::apimachinery::document::Document;
use ferrokube_server::apimachinery::status::Failure;
use ferrokube_server::registry::{Attributes, Effects, Operation, WriteContext};

/// The step.
pub struct Tally(ServerContext);

impl Tally {
    /// Over the server's storage.
    pub fn new(context: &ServerContext) -> Self {
        Self(context.clone())
    }
}

impl AdmissionStep for Tally {
    fn name(&self) -> &'static str {
        "Tally"
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        let target = attributes.target;
        let definition = &target.served.definition;
        if attributes.operation != Operation::Create || definition.plural != "toys" {
            return Ok(());
        }
        let Some(configmaps) = self.0.catalog.find("", "v1", "configmaps") else { return Ok(()) };
        let namespace = target.namespace.as_deref().unwrap_or_default();
        let context = WriteContext { store: &self.0.store, catalog: &self.0.catalog };
        let exists = effects.change(&context, &configmaps, namespace, "tally", |tally| {
            let toys = tally.str(&["data", "toys"]).and_then(|text| text.parse().ok());
            tally.set(&["data", "toys"], (toys.unwrap_or(0_u64) + 1).to_string());
        })?;
        if exists {
            return Ok(());
        }
        let name = target.name.as_deref().unwrap_or_default();
        Err(Failure::forbidden(&definition.group_resource(), name, "nobody tallies toys here"))
    }
}
