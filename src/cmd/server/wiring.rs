//! What an API server is made of.

use super::Plan;
use super::authentication_info::AuthenticationInfo;
use super::rights::Rights;
use super::token_keys::{KeyFiles, Pem};
use super::trace_page::{self, RingObserver, TracePage};
use crate::cmd::flags::Storage;
use anyhow::{Context, anyhow};
use ferrokube_admission::Chain;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::audit::{self, AuditLog, OnFailure, Rotation};
use ferrokube_auth::authenticate::{Bearer, BootstrapTokens, FrontProxy, FrontProxyHeaders, TokenAuthenticator, X509};
use ferrokube_auth::token::{ServiceAccountTokens, TokenConfig, TokenKeys};
use ferrokube_auth::{AnonymousLock, Authenticator, Authorizer, Rbac, bootstrap, review, system_clock};
use ferrokube_controlplane::{Builder, ControlPlane, DocumentRoute, Route};
use ferrokube_pki::Pki;
use ferrokube_registry::{Catalog, Registry, RequestContext, Target, Virtual};
use ferrokube_schema::Schema;
use ferrokube_storage::Store;
use ferrokube_timeline::TracePages;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// So many bytes are held back for the audit log in the data directory.
const AUDIT_RESERVE: u64 = 4 << 20;

/// What is sent to `serviceaccounts/token`.
const TOKEN_REQUEST: &str = "io.k8s.api.authentication.v1.TokenRequest";

/// A computed subresource with the schema of what it takes.
struct Shaped {
    behaviour: ServiceAccountTokens,
    schema: Arc<Schema>,
}

impl Virtual for Shaped {
    fn create<'a>(
        &'a self,
        context: &'a RequestContext,
        target: &'a Target,
        object: Document,
    ) -> Pin<Box<dyn Future<Output = Result<Document, Failure>> + Send + 'a>> {
        self.behaviour.create(context, target, object)
    }

    fn fill_in(&self, object: &mut Document) {
        self.behaviour.fill_in(object);
    }

    fn schema(&self) -> Option<Arc<Schema>> {
        Some(Arc::clone(&self.schema))
    }
}

/// A server without its listener.
pub(super) struct Server {
    pub(super) control_plane: ControlPlane,
    pub(super) audit: AuditLog,
    /// Of service accounts, and what their keys were read from.
    pub(super) tokens: ServiceAccountTokens,
    pub(super) keys: (KeyFiles, Pem),
}

/// Wires the crates as the plan says.
pub(super) fn build(plan: &Plan<'_>, pki: &Pki, store: &Store) -> anyhow::Result<Server> {
    let catalog = Arc::new(Catalog::default());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        catalog.put(definition);
    }
    for row in &plan.inputs.on_request {
        let definition = row.definition(ferrokube_resources::tables()).map_err(|missing| anyhow!("there is no schema of {missing}"))?;
        catalog.put(Arc::new(definition));
    }
    let key_files = KeyFiles::new(plan);
    let pem = key_files.read()?;
    let tokens = service_account_tokens(plan, pem.keys()?, store);
    let request = ferrokube_resources::tables().get(TOKEN_REQUEST).context("there is no schema of token requests")?;
    catalog.put_virtual("", "serviceaccounts", "token", Arc::new(Shaped { behaviour: tokens.clone(), schema: request }));
    let rights = Rights::default();
    let admission = Chain::new(store, plan.inputs.gates.clone(), Arc::new(rights.clone())).with(rights.escalation_step());
    let registry = Registry::new(store.clone(), catalog, Arc::new(admission)).with_token_key(&pki.derived_key("continue tokens"));
    let rbac = Arc::new(Rbac::of(&registry));
    let authorizer: Arc<dyn Authorizer> = Arc::new(AnonymousLock(Arc::clone(&rbac) as _));
    rights.set(&rbac, &authorizer);
    let bearer = bearer(plan, store, &tokens);
    review::install(registry.catalog(), &authorizer, &rbac, &bearer);
    let audit = open_audit(plan)?;
    let info = AuthenticationInfo::new(plan, pki)?;
    let mut builder = ControlPlane::builder(registry.clone())
        .gates(plan.inputs.gates.clone())
        .messages(ferrokube_resources::messages())
        .anonymous(plan.namesake.anonymous_auth)
        .authorizer(Arc::clone(&authorizer))
        .audit(audit.clone())
        .post_start("rbac/bootstrap-roles", Box::new(|registry| Box::pin(bootstrap_roles(registry))))
        .post_start("cluster-authentication-info", Box::new(|registry| Box::pin(info.publish(registry))));
    for authenticator in authenticators(plan, bearer) {
        builder = builder.authenticator(authenticator);
    }
    for (path, is_public, route) in oidc_documents(&tokens) {
        builder = builder.route(path, is_public || plan.flags.auth.public_issuer_discovery, route);
    }
    if plan.flags.trace_ui.enabled {
        builder = with_trace_page(plan, builder, authorizer);
    }
    Ok(Server { control_plane: builder.build(), audit, tokens, keys: (key_files, pem) })
}

fn with_trace_page(plan: &Plan<'_>, builder: Builder, authorizer: Arc<dyn Authorizer>) -> Builder {
    let pages = TracePages { ring: plan.ring.clone(), backend: plan.flags.trace_ui.backend.clone() };
    let page: Arc<dyn Route> = Arc::new(TracePage { pages, authorizer });
    let builder = builder.route(trace_page::PATH.trim_end_matches('/'), false, Arc::clone(&page)).route(trace_page::PATH, false, page);
    match &plan.ring {
        Some(ring) => builder.observer(Arc::new(RingObserver(Arc::clone(ring)))),
        None => builder,
    }
}

async fn bootstrap_roles(registry: Registry) -> Result<(), String> {
    bootstrap::reconcile(&registry).await.map(drop).map_err(|error| error.to_string())
}

/// What a relying party needs to verify service account tokens, and whether kube-apiserver serves it to anybody.
fn oidc_documents(tokens: &ServiceAccountTokens) -> [(&'static str, bool, Arc<dyn Route>); 2] {
    let (discovery, keys) = (tokens.clone(), tokens.clone());
    let discovery = DocumentRoute { media_type: "application/json", produce: Box::new(move || discovery.discovery_document()) };
    let keys = DocumentRoute { media_type: "application/jwk-set+json", produce: Box::new(move || keys.jwks()) };
    [("/.well-known/openid-configuration", true, Arc::new(discovery)), ("/openid/v1/jwks", false, Arc::new(keys))]
}

fn service_account_tokens(plan: &Plan<'_>, keys: TokenKeys, store: &Store) -> ServiceAccountTokens {
    let issuer = plan.namesake.service_account_issuer.clone();
    let max_life = Some(plan.flags.auth.service_account_max_token_expiration).filter(|life| !life.is_zero());
    let config = TokenConfig { issuers: vec![issuer], api_audiences: audiences(plan), jwks_uri: String::new(), max_life };
    ServiceAccountTokens::new(config, keys, store.clone(), system_clock())
}

/// Of the server itself.
fn audiences(plan: &Plan<'_>) -> Vec<String> {
    let namesake = plan.namesake;
    if namesake.api_audiences.is_empty() { vec![namesake.service_account_issuer.clone()] } else { namesake.api_audiences.clone() }
}

/// In the order in which they are asked.
fn authenticators(plan: &Plan<'_>, bearer: Bearer) -> Vec<Arc<dyn Authenticator>> {
    let namesake = plan.namesake;
    let mut authenticators: Vec<Arc<dyn Authenticator>> = Vec::new();
    if namesake.requestheader_client_ca_file.is_some() {
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let headers = FrontProxyHeaders {
            user: lower(&namesake.requestheader_username_headers),
            uid: lower(&namesake.requestheader_uid_headers),
            group: lower(&namesake.requestheader_group_headers),
            extra: lower(&namesake.requestheader_extra_headers_prefix),
        };
        authenticators.push(Arc::new(FrontProxy::new(headers, namesake.requestheader_allowed_names.clone(), system_clock())));
    }
    authenticators.push(Arc::new(X509::new(system_clock())));
    authenticators.push(Arc::new(bearer));
    authenticators
}

/// Every kind of token that the server knows.
fn bearer(plan: &Plan<'_>, store: &Store, service_accounts: &ServiceAccountTokens) -> Bearer {
    let mut kinds: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
    if let Some(file) = &plan.inputs.static_tokens {
        kinds.push(Arc::clone(&file.tokens) as _);
    }
    kinds.push(Arc::new(service_accounts.clone()));
    if plan.flags.auth.enable_bootstrap_token_auth {
        kinds.push(Arc::new(BootstrapTokens::new(store.clone(), system_clock())));
    }
    Bearer::new(kinds, audiences(plan))
}

fn open_audit(plan: &Plan<'_>) -> anyhow::Result<AuditLog> {
    let flags = &plan.flags.audit;
    let default = || (plan.flags.storage == Storage::Embedded).then(|| plan.directory.join("audit.log"));
    // In our own directory it is ours to see that the log has space.
    let reserve_bytes = if flags.audit_log_path.is_none() { AUDIT_RESERVE } else { 0 };
    let Some(path): Option<PathBuf> = flags.audit_log_path.clone().or_else(default) else { return Ok(AuditLog::disabled()) };
    let rotation = Rotation {
        max_bytes: flags.audit_log_maxsize.saturating_mul(1 << 20),
        max_backups: flags.audit_log_maxbackup,
        max_age: Duration::from_secs(u64::from(flags.audit_log_maxage) * 24 * 3600),
    };
    let on_failure = if flags.audit_log_mode == "blocking" { OnFailure::Drop } else { OnFailure::Refuse };
    let config =
        audit::Config { policy: plan.inputs.audit_policy.clone(), rotation, on_failure, sync: flags.audit_log_sync, reserve_bytes, ..audit::Config::new(path) };
    Ok(AuditLog::open(config)?)
}
