//! CONNECT: admission of a request that connects a client with something else.

use super::Registry;
use crate::admission::{AdmissionOptions, Attributes, Operation};
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
        options: Document,
    ) -> Result<Document, Failure> {
        let attributes = Attributes {
            context,
            target,
            operation: Operation::Connect,
            old: None,
            options: AdmissionOptions::Connect,
            dry_run: false,
        };
        self.admit_unstored(attributes, options, Ok).await
    }
}
