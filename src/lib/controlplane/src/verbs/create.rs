//! POST.

use super::{offer, read_body, respond_written};
use crate::exchange::{Exchange, Stop};
use crate::handler::accepted;
use crate::negotiate::Views;
use crate::options::{self, WriteKind};
use crate::server::Shared;
use crate::{audited, decode};
use ferrokube_auth::audit::Level;
use ferrokube_registry::Target;
use ferrokube_serve::Response;

pub(crate) async fn create(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let form = decode::body_form(exchange, &target.served)?;
    let bytes = read_body(shared, exchange).await?;
    let options = options::write(&exchange.query, WriteKind::Create)?;
    let body = decode::object(shared, target, form, &bytes)?;
    if exchange.audit.wants(Level::Metadata) && exchange.info.access().is_some_and(|access| access.name.is_empty()) {
        exchange.audit.name = body.document.name().into();
    }
    audited::request(exchange, form, bytes, &body.document);
    let written = shared.registry.create(exchange.context(), target, body, &options).await?;
    respond_written(shared, exchange, target, &written, accepted).await
}
