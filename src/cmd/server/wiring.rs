//! Assembles an API server from the crates.

use super::ServerSetup;
use super::authentication_info::AuthenticationInfo;
use super::front_proxy::ProxyCertificate;
use super::rights::{self, Rights};
use super::token_keys::{KeyFiles, KeyPem};
use super::trace_page::{self, RingObserver, TracePage};
use crate::cmd::flags::Storage;
use anyhow::{Context, anyhow};
use ferrokube_admission::webhook::NoServices;
use ferrokube_admission::{
    Chain, MutatingPolicies, MutatingWebhooks, PolicyInputs, PolicyReaders, ValidatingPolicies,
    ValidatingWebhooks, WebhookEnvironment,
};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::audit::{self, AuditLog, OnFailure, Rotation};
use ferrokube_auth::authenticate::{
    Bearer, BootstrapTokens, FrontProxy, FrontProxyHeaders, TokenAuthenticator, X509,
};
use ferrokube_auth::token::{ServiceAccountTokens, TokenConfig, TokenKeys};
use ferrokube_auth::{
    AnonymousLock, Authenticator, Authorizer, Rbac, bootstrap, review, system_clock,
};
use ferrokube_controlplane::{Builder, ControlPlane, DocumentRoute, Route};
use ferrokube_pki::Pki;
use ferrokube_registry::{Catalog, ComputedResource, Registry, RequestContext, Target};
use ferrokube_schema::Schema;
use ferrokube_storage::Store;
use ferrokube_timeline::TracePages;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Disk space reserved for the audit log in the data directory, in bytes.
const AUDIT_RESERVE: u64 = 4 << 20;

/// Schema of requests to `serviceaccounts/token`.
const TOKEN_REQUEST: &str = "io.k8s.api.authentication.v1.TokenRequest";

/// A computed subresource with the schema of its input.
struct TypedSubresource {
    behaviour: ServiceAccountTokens,
    schema: Arc<Schema>,
}

impl ComputedResource for TypedSubresource {
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
pub(super) struct AssembledServer {
    pub(super) control_plane: ControlPlane,
    pub(super) audit: AuditLog,
    /// Service account tokens, and the key files' contents.
    pub(super) tokens: ServiceAccountTokens,
    pub(super) keys: (KeyFiles, KeyPem),
    pub(super) front_proxy: ProxyCertificate,
}

/// Wires the crates according to the plan.
pub(super) fn build(
    setup: &ServerSetup<'_>,
    pki: &Pki,
    store: &Store,
) -> anyhow::Result<AssembledServer> {
    let catalog = Arc::new(Catalog::default());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        catalog.put(definition);
    }
    for row in &setup.inputs.on_request {
        let definition = row
            .definition(ferrokube_resources::tables())
            .map_err(|missing| anyhow!("no schema for {missing}"))?;
        catalog.put(Arc::new(definition));
    }
    let key_files = KeyFiles::new(setup);
    let pem = key_files.read()?;
    let tokens = service_account_tokens(setup, pem.keys()?, store);
    let request =
        ferrokube_resources::tables().get(TOKEN_REQUEST).context("no schema for token requests")?;
    catalog.put_computed(
        "",
        "serviceaccounts",
        "token",
        Arc::new(TypedSubresource { behaviour: tokens.clone(), schema: request }),
    );
    let rbac = Arc::new(Rbac::of(store, &catalog));
    let authorizer: Arc<dyn Authorizer> = Arc::new(AnonymousLock(Arc::clone(&rbac) as _));
    let rights = Arc::new(Rights(Arc::clone(&authorizer)));
    let webhooks = WebhookEnvironment {
        store: store.clone(),
        catalog: Arc::clone(&catalog),
        permits: Arc::clone(&rights) as _,
        services: Arc::new(NoServices),
        stats: Arc::default(),
    };
    let webhook_stats = Arc::clone(&webhooks.stats);
    let policies = PolicyInputs {
        store: store.clone(),
        catalog: Arc::clone(&catalog),
        permits: Arc::clone(&rights) as _,
    };
    let admission = Chain::new(store, setup.inputs.gates.clone(), rights)
        .with(rights::escalation_step(&rbac, &authorizer))
        .with(Arc::new(PolicyReaders::new(policies.clone())))
        .with_remote(Arc::new(MutatingPolicies::new(policies.clone())))
        .with_remote(Arc::new(ValidatingPolicies::new(policies)))
        .with_remote(Arc::new(MutatingWebhooks::new(webhooks.clone())))
        .with_remote(Arc::new(ValidatingWebhooks::new(webhooks)));
    let registry = Registry::new(store.clone(), catalog, Arc::new(admission))
        .with_token_key(&pki.derived_key("continue tokens"));
    let bearer = bearer(setup, store, &tokens);
    review::install(registry.catalog(), &authorizer, &rbac, &bearer);
    let audit = open_audit(setup)?;
    let info = AuthenticationInfo::new(setup, pki)?;
    let front_proxy = ProxyCertificate::new(setup, pki)?;
    let mut builder = ControlPlane::builder(registry.clone())
        .gates(setup.inputs.gates.clone())
        .messages(ferrokube_resources::messages())
        .anonymous(setup.kube_apiserver.anonymous_auth)
        .authorizer(Arc::clone(&authorizer))
        .audit(audit.clone())
        .limits(setup.flags.flow.limits())
        .aggregator(front_proxy.aggregator(setup))
        .metrics(Box::new(move |registry| webhook_stats.register(registry)))
        .post_start(
            "rbac/bootstrap-roles",
            Box::new(|registry| Box::pin(bootstrap_roles(registry))),
        )
        .post_start(
            "start-cluster-authentication-info-controller",
            Box::new(|registry| Box::pin(info.publish(registry))),
        );
    for authenticator in authenticators(setup, bearer) {
        builder = builder.authenticator(authenticator);
    }
    for (path, is_public, route) in oidc_documents(&tokens) {
        builder = builder.route(path, is_public || setup.flags.auth.public_issuer_discovery, route);
    }
    if setup.flags.trace_ui.enabled {
        builder = with_trace_page(setup, builder, authorizer);
    }
    let (control_plane, keys) = (builder.build(), (key_files, pem));
    Ok(AssembledServer { control_plane, audit, tokens, keys, front_proxy })
}

fn with_trace_page(
    setup: &ServerSetup<'_>,
    builder: Builder,
    authorizer: Arc<dyn Authorizer>,
) -> Builder {
    let pages =
        TracePages { ring: setup.ring.clone(), backend: setup.flags.trace_ui.backend.clone() };
    let page: Arc<dyn Route> = Arc::new(TracePage { pages, authorizer });
    let builder = builder
        .route(trace_page::PATH.trim_end_matches('/'), false, Arc::clone(&page))
        .route(trace_page::PATH, false, page);
    match &setup.ring {
        Some(ring) => builder.observer(Arc::new(RingObserver(Arc::clone(ring)))),
        None => builder,
    }
}

async fn bootstrap_roles(registry: Registry) -> Result<(), String> {
    bootstrap::reconcile(&registry).await.map(drop).map_err(|error| error.to_string())
}

/// OIDC documents for relying parties that verify service account tokens, and whether
/// kube-apiserver serves them to anyone.
fn oidc_documents(tokens: &ServiceAccountTokens) -> [(&'static str, bool, Arc<dyn Route>); 2] {
    let (discovery, keys) = (tokens.clone(), tokens.clone());
    let discovery = DocumentRoute {
        media_type: "application/json",
        produce: Box::new(move || discovery.discovery_document()),
    };
    let keys = DocumentRoute {
        media_type: "application/jwk-set+json",
        produce: Box::new(move || keys.jwks()),
    };
    [
        ("/.well-known/openid-configuration", true, Arc::new(discovery)),
        ("/openid/v1/jwks", false, Arc::new(keys)),
    ]
}

fn service_account_tokens(
    setup: &ServerSetup<'_>,
    keys: TokenKeys,
    store: &Store,
) -> ServiceAccountTokens {
    let issuer = setup.kube_apiserver.service_account_issuer.clone();
    let max_life =
        Some(setup.flags.auth.service_account_max_token_expiration).filter(|life| !life.is_zero());
    let config = TokenConfig {
        issuers: vec![issuer],
        api_audiences: audiences(setup),
        jwks_uri: String::new(),
        max_life,
    };
    ServiceAccountTokens::new(config, keys, store.clone(), system_clock())
}

/// Of the server itself.
fn audiences(setup: &ServerSetup<'_>) -> Vec<String> {
    let kube_apiserver = setup.kube_apiserver;
    if kube_apiserver.api_audiences.is_empty() {
        vec![kube_apiserver.service_account_issuer.clone()]
    } else {
        kube_apiserver.api_audiences.clone()
    }
}

/// In order of evaluation.
fn authenticators(setup: &ServerSetup<'_>, bearer: Bearer) -> Vec<Arc<dyn Authenticator>> {
    let kube_apiserver = setup.kube_apiserver;
    let mut authenticators: Vec<Arc<dyn Authenticator>> = Vec::new();
    if kube_apiserver.requestheader_client_ca_file.is_some() {
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let headers = FrontProxyHeaders {
            user: lower(&kube_apiserver.requestheader_username_headers),
            uid: lower(&kube_apiserver.requestheader_uid_headers),
            group: lower(&kube_apiserver.requestheader_group_headers),
            extra: lower(&kube_apiserver.requestheader_extra_headers_prefix),
        };
        authenticators.push(Arc::new(FrontProxy::new(
            headers,
            kube_apiserver.requestheader_allowed_names.clone(),
            system_clock(),
        )));
    }
    authenticators.push(Arc::new(X509::new(system_clock())));
    authenticators.push(Arc::new(bearer));
    authenticators
}

/// Every supported kind of bearer token.
fn bearer(
    setup: &ServerSetup<'_>,
    store: &Store,
    service_accounts: &ServiceAccountTokens,
) -> Bearer {
    let mut kinds: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
    if let Some(file) = &setup.inputs.static_tokens {
        kinds.push(Arc::clone(&file.tokens) as _);
    }
    kinds.push(Arc::new(service_accounts.clone()));
    if setup.flags.auth.enable_bootstrap_token_auth {
        kinds.push(Arc::new(BootstrapTokens::new(store.clone(), system_clock())));
    }
    Bearer::new(kinds, audiences(setup))
}

fn open_audit(setup: &ServerSetup<'_>) -> anyhow::Result<AuditLog> {
    let flags = &setup.flags.audit;
    let default =
        || (setup.flags.storage == Storage::Embedded).then(|| setup.directory.join("audit.log"));
    // In our own data directory the log's space is our responsibility.
    let reserve_bytes = if flags.audit_log_path.is_none() { AUDIT_RESERVE } else { 0 };
    let Some(path): Option<PathBuf> = flags.audit_log_path.clone().or_else(default) else {
        return Ok(AuditLog::disabled());
    };
    let rotation = Rotation {
        max_bytes: flags.audit_log_maxsize.saturating_mul(1 << 20),
        max_backups: flags.audit_log_maxbackup,
        max_age: Duration::from_secs(u64::from(flags.audit_log_maxage) * 24 * 3600),
    };
    let on_failure =
        if flags.audit_log_mode == "blocking" { OnFailure::Drop } else { OnFailure::Refuse };
    let config = audit::AuditConfig {
        policy: setup.inputs.audit_policy.clone(),
        rotation,
        on_failure,
        sync: flags.audit_log_sync,
        reserve_bytes,
        ..audit::AuditConfig::new(path)
    };
    Ok(AuditLog::open(config)?)
}
