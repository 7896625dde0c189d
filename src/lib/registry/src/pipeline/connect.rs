//! CONNECT: admission of a request that connects a client with something else.

use super::Registry;
use crate::admission::{AdmissionOptions, Attributes, Effects, Operation};
use crate::context::{RequestContext, Target};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;

impl Registry {
    /// The options of a connection, as admission leaves them. Nothing is stored.
    ///
    /// # Errors
    /// Every error is a Status for the client.
    pub async fn admit_connect(
        &self,
        context: &RequestContext,
        target: &Target,
        mut options: Document,
    ) -> Result<Document, Failure> {
        let attributes = Attributes {
            context,
            target,
            operation: Operation::Connect,
            old: None,
            options: AdmissionOptions::Connect,
            dry_run: false,
        };
        let admission = self.admission();
        admission.mutate(&attributes, &mut options)?;
        let is_remote = admission.is_remote(&attributes);
        if is_remote {
            options = admission.mutate_remote(attributes, options).await?;
        }
        admission.validate(&attributes, Some(&options), &mut Effects::default())?;
        if is_remote {
            admission.validate_remote(attributes, Some(&options)).await?;
        }
        Ok(options)
    }
}
