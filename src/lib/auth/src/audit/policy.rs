//! The audit policy, in kube-apiserver's file format: the first rule that matches a request decides
//! what is recorded of it.

use super::event::{AuditLevel, AuditStage, StageSet};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::yaml;

/// Max rules of a policy.
const MAX_RULES: usize = 1_000;
/// Max entries of one list of a rule.
const MAX_WORDS: usize = 1_000;

/// Recorded by default regardless of the verb: secrets, and connections that run commands.
const ALWAYS: [&str; 5] =
    ["secrets", "pods/exec", "pods/attach", "pods/portforward", "nodes/proxy"];

/// The attributes of a request that the policy matches.
#[derive(Clone, Copy, Debug)]
pub struct AuditRequest<'a> {
    /// The authenticated user, before impersonation.
    pub user: &'a UserInfo,
    /// Kubernetes verb, or the lower-case method of a non-resource request.
    pub verb: &'a str,
    /// `None` for a non-resource request.
    pub resource: Option<crate::access::ResourceAccess<'a>>,
    /// Without the query.
    pub path: &'a str,
}

/// Decision of the policy about one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditPlan {
    /// Part of the request that is recorded.
    pub level: AuditLevel,
    /// Stages that are not recorded.
    pub omit: StageSet,
    /// Objects are recorded without `metadata.managedFields`.
    pub omit_managed_fields: bool,
    /// A refusal is recorded at any level ([`super::AuditLog::conclude`]).
    pub refusals: bool,
    /// Open to every account and without effect: shares the budget of refusals.
    pub rationed: bool,
}

impl AuditPlan {
    /// Whether an event is recorded at this stage.
    pub fn records(&self, stage: AuditStage) -> bool {
        self.level != AuditLevel::None && !self.omit.has(stage)
    }
}

/// Why a policy file is refused.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Neither YAML nor JSON.
    #[error("the audit policy cannot be read: {0}")]
    Syntax(String),
    /// Not a valid policy.
    #[error("the audit policy is not valid at {field}: {what}")]
    Invalid {
        /// Path of the field.
        field: String,
        /// The problem.
        what: String,
    },
}

/// Audit rules, in order.
#[derive(Clone, Debug)]
pub struct AuditPolicy {
    rules: Vec<AuditRule>,
    omit: StageSet,
    omit_managed_fields: bool,
    /// Only the built-in policy can set it.
    refusals: bool,
}

#[derive(Clone, Debug, Default)]
struct AuditRule {
    level: AuditLevel,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    urls: Vec<String>,
    omit: StageSet,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

impl Default for AuditPolicy {
    /// Records at level Metadata, stage ResponseComplete: writes, reads of secrets, connections to
    /// pods and kubelets by any method (a websocket that runs a command is a GET), refusals.
    fn default() -> Self {
        let verbs = [
            "create",
            "update",
            "patch",
            "delete",
            "deletecollection",
            "post",
            "put",
            "proxy",
            "connect",
        ];
        let writes = AuditRule {
            level: AuditLevel::Metadata,
            verbs: verbs.map(str::to_owned).to_vec(),
            ..AuditRule::default()
        };
        let always = GroupResources {
            group: String::new(),
            resources: ALWAYS.map(str::to_owned).to_vec(),
            names: Vec::new(),
        };
        let always = AuditRule {
            level: AuditLevel::Metadata,
            resources: vec![always],
            ..AuditRule::default()
        };
        let mut omit = StageSet::default();
        omit.insert(AuditStage::RequestReceived);
        Self { rules: vec![writes, always], omit, omit_managed_fields: true, refusals: true }
    }
}

impl AuditPolicy {
    /// Parses an `audit.k8s.io/v1` Policy, YAML or JSON. Unknown and duplicate fields are logged
    /// and ignored, as in kube-apiserver.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        let decoded = yaml::read(text).map_err(|error| PolicyError::Syntax(error.to_string()))?;
        let document = decoded.document;
        for field in
            decoded.duplicates.iter().map(ToString::to_string).chain(unknown_fields(&document))
        {
            tracing::warn!(field, "ignoring an unknown or duplicate field of the audit policy");
        }
        if document.api_version() != "audit.k8s.io/v1" || document.kind() != "Policy" {
            return Err(invalid("kind", "want apiVersion audit.k8s.io/v1, kind Policy"));
        }
        let items = list(document.get(&["rules"]), "rules")?;
        if items.is_empty() || items.len() > MAX_RULES {
            return Err(invalid("rules", "want between 1 and 1,000 rules"));
        }
        let rules = items
            .iter()
            .enumerate()
            .map(|(index, item)| AuditRule::parse(item, &format!("rules[{index}]")))
            .collect::<Result<_, _>>()?;
        let omit = stages(document.get(&["omitStages"]), "omitStages")?;
        let omit_managed_fields =
            flag(document.get(&["omitManagedFields"]), "omitManagedFields")?.unwrap_or_default();
        Ok(Self { rules, omit, omit_managed_fields, refusals: false })
    }

    /// A policy that records nothing.
    pub fn nothing() -> Self {
        Self {
            rules: Vec::new(),
            omit: StageSet::default(),
            omit_managed_fields: false,
            refusals: false,
        }
    }

    /// Decides what a request's events contain. Objects with credentials are recorded at level
    /// Metadata at most, regardless of the rules.
    pub fn plan(&self, subject: &AuditRequest<'_>) -> AuditPlan {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(subject)) else {
            return AuditPlan {
                omit: self.omit,
                omit_managed_fields: self.omit_managed_fields,
                refusals: self.refusals,
                ..AuditPlan::default()
            };
        };
        let level = if carries_credentials(subject) {
            rule.level.min(AuditLevel::Metadata)
        } else {
            rule.level
        };
        let omit_managed_fields = rule.omit_managed_fields.unwrap_or(self.omit_managed_fields);
        let rationed = self.refusals && is_self_review(subject);
        AuditPlan {
            level,
            omit: self.omit.union(rule.omit),
            omit_managed_fields,
            refusals: self.refusals,
            rationed,
        }
    }
}

fn is_self_review(subject: &AuditRequest<'_>) -> bool {
    subject.resource.is_some_and(|resource| {
        matches!(
            (resource.group, resource.resource),
            ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
                | ("authentication.k8s.io", "selfsubjectreviews")
        )
    })
}

fn carries_credentials(subject: &AuditRequest<'_>) -> bool {
    subject.resource.is_some_and(|resource| {
        matches!(
            (resource.group, resource.resource, resource.subresource),
            ("", "secrets", _)
                | ("", "serviceaccounts", "token")
                | ("authentication.k8s.io", "tokenreviews" | "tokenrequests", _)
        )
    })
}

impl AuditRule {
    fn parse(item: &Value, at: &str) -> Result<Self, PolicyError> {
        let item = Document::from_value(item.clone()).map_err(|_| invalid(at, "not an object"))?;
        let level = item.str(&["level"]).and_then(AuditLevel::parse).ok_or_else(|| {
            invalid(&format!("{at}.level"), "want None, Metadata, Request or RequestResponse")
        })?;
        let rule = Self {
            level,
            users: words(item.get(&["users"]), &format!("{at}.users"))?,
            groups: words(item.get(&["userGroups"]), &format!("{at}.userGroups"))?,
            verbs: words(item.get(&["verbs"]), &format!("{at}.verbs"))?,
            resources: group_resources(
                list(item.get(&["resources"]), &format!("{at}.resources"))?,
                at,
            )?,
            namespaces: words(item.get(&["namespaces"]), &format!("{at}.namespaces"))?,
            urls: words(item.get(&["nonResourceURLs"]), &format!("{at}.nonResourceURLs"))?,
            omit: stages(item.get(&["omitStages"]), &format!("{at}.omitStages"))?,
            omit_managed_fields: flag(
                item.get(&["omitManagedFields"]),
                &format!("{at}.omitManagedFields"),
            )?,
        };
        if !rule.urls.is_empty() && (!rule.resources.is_empty() || !rule.namespaces.is_empty()) {
            return Err(invalid(
                &format!("{at}.nonResourceURLs"),
                "cannot be given together with resources or namespaces",
            ));
        }
        if rule.urls.iter().any(|url| {
            url != "*" && (!url.starts_with('/') || url.trim_end_matches('*').contains('*'))
        }) {
            return Err(invalid(
                &format!("{at}.nonResourceURLs"),
                "want * or a path that may end with *",
            ));
        }
        Ok(rule)
    }

    fn matches(&self, subject: &AuditRequest<'_>) -> bool {
        any_or_empty(&self.users, &subject.user.name)
            && (self.groups.is_empty()
                || subject.user.groups.iter().any(|group| self.groups.contains(group)))
            && any_or_empty(&self.verbs, subject.verb)
            && self.matches_target(subject)
    }

    fn matches_target(&self, subject: &AuditRequest<'_>) -> bool {
        if self.resources.is_empty() && self.namespaces.is_empty() && self.urls.is_empty() {
            return true;
        }
        match &subject.resource {
            Some(resource) => {
                self.urls.is_empty()
                    && any_or_empty(&self.namespaces, resource.namespace)
                    && (self.resources.is_empty()
                        || self.resources.iter().any(|entry| entry.matches(resource)))
            }
            None => self.urls.iter().any(|url| url_matches(url, subject.path)),
        }
    }
}

impl GroupResources {
    fn matches(&self, resource: &crate::access::ResourceAccess<'_>) -> bool {
        self.group == resource.group
            && (self.names.is_empty() || self.names.iter().any(|name| name == resource.name))
            && (self.resources.is_empty()
                || self.resources.iter().any(|pattern| resource_matches(pattern, resource)))
    }
}

/// `pods`, `pods/log`, `pods/*` (includes the resource itself), `*/status`, `*` (everything); a
/// bare name does not match subresources.
fn resource_matches(pattern: &str, resource: &crate::access::ResourceAccess<'_>) -> bool {
    match pattern.split_once('/') {
        None => pattern == "*" || (pattern == resource.resource && resource.subresource.is_empty()),
        Some(("*", subresource)) => subresource == resource.subresource,
        Some((name, "*")) => name == resource.resource,
        Some((name, subresource)) => {
            name == resource.resource && subresource == resource.subresource
        }
    }
}

fn url_matches(pattern: &str, path: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == path, |prefix| path.starts_with(prefix))
}

fn any_or_empty(words: &[String], word: &str) -> bool {
    words.is_empty() || words.iter().any(|candidate| candidate == word)
}

fn group_resources(items: &[Value], at: &str) -> Result<Vec<GroupResources>, PolicyError> {
    if items.len() > MAX_WORDS {
        return Err(invalid(&format!("{at}.resources"), "too many entries"));
    }
    items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            let at = format!("{at}.resources[{index}]");
            let group = match item.get("group") {
                None | Some(Value::Null) => "",
                Some(Value::String(group)) if !group.contains('/') => group,
                Some(_) => {
                    return Err(invalid(&format!("{at}.group"), "want a group without a version"));
                }
            };
            let names = words(item.get("resourceNames"), &format!("{at}.resourceNames"))?;
            let resources = words(item.get("resources"), &format!("{at}.resources"))?;
            if resources.is_empty() && !names.is_empty() {
                return Err(invalid(&format!("{at}.resourceNames"), "needs resources"));
            }
            Ok(GroupResources { group: group.to_owned(), resources, names })
        })
        .collect()
}

/// Fields of a policy, of a rule, of an entry of a rule's resources.
const FIELDS: [&[&str]; 3] = [
    &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"],
    &[
        "level",
        "users",
        "userGroups",
        "verbs",
        "resources",
        "namespaces",
        "nonResourceURLs",
        "omitStages",
        "omitManagedFields",
    ],
    &["group", "resources", "resourceNames"],
];

/// Paths of unknown fields.
fn unknown_fields(document: &Document) -> Vec<String> {
    let [of_policy, of_rule, of_resources] = FIELDS;
    let mut found: Vec<String> = document
        .fields()
        .keys()
        .filter(|key| !of_policy.contains(&key.as_str()))
        .map(ToString::to_string)
        .collect();
    let strange = |value: &Value, known: &[&str], at: &str| {
        let keys = value
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys())
            .filter(|key| !known.contains(&key.as_str()));
        keys.map(|key| format!("{at}.{key}")).collect::<Vec<_>>()
    };
    for (index, rule) in document.list(&["rules"]).iter().enumerate() {
        found.extend(strange(rule, of_rule, &format!("rules[{index}]")));
        for (entry, resources) in
            rule.get("resources").and_then(Value::as_array).into_iter().flatten().enumerate()
        {
            found.extend(strange(
                resources,
                of_resources,
                &format!("rules[{index}].resources[{entry}]"),
            ));
        }
    }
    found
}

fn list<'a>(value: Option<&'a Value>, at: &str) -> Result<&'a [Value], PolicyError> {
    match value {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(invalid(at, "want a list")),
    }
}

fn flag(value: Option<&Value>, at: &str) -> Result<Option<bool>, PolicyError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(invalid(at, "want true or false")),
    }
}

fn words(value: Option<&Value>, at: &str) -> Result<Vec<String>, PolicyError> {
    let items = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MAX_WORDS => items,
        Some(_) => return Err(invalid(at, "want a list of at most 1,000 strings")),
    };
    items
        .iter()
        .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| invalid(at, "want strings")))
        .collect()
}

fn stages(value: Option<&Value>, at: &str) -> Result<StageSet, PolicyError> {
    let mut stages = StageSet::default();
    for word in words(value, at)? {
        stages.insert(AuditStage::parse(&word).ok_or_else(|| invalid(at, "unknown stage"))?);
    }
    Ok(stages)
}

fn invalid(field: &str, what: &str) -> PolicyError {
    PolicyError::Invalid { field: field.to_owned(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::ResourceAccess;
    use crate::testing::user;

    fn plan(policy: &AuditPolicy, who: &UserInfo, verb: &str, what: &str) -> AuditPlan {
        let path = what.starts_with('/').then_some(what);
        let mut words = what.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (group, resource, subresource, namespace) = (word(), word(), word(), word());
        let resource = ResourceAccess {
            group: group.trim_matches('-'),
            resource,
            subresource: subresource.trim_matches('-'),
            namespace,
            ..ResourceAccess::default()
        };
        let subject = AuditRequest {
            user: who,
            verb,
            resource: path.is_none().then_some(resource),
            path: path.unwrap_or_default(),
        };
        policy.plan(&subject)
    }

    fn level(policy: &AuditPolicy, verb: &str, what: &str) -> AuditLevel {
        plan(policy, &user("alice", &["devs"]), verb, what).level
    }

    #[test]
    fn by_default_writes_reads_of_secrets_and_connections_are_recorded() {
        let policy = AuditPolicy::default();
        for verb in ["create", "update", "patch", "delete", "deletecollection"] {
            assert_eq!(level(&policy, verb, "- configmaps"), AuditLevel::Metadata);
        }
        for verb in ["get", "list", "watch"] {
            assert_eq!(level(&policy, verb, "- secrets - n"), AuditLevel::Metadata);
            assert_eq!(level(&policy, verb, "- configmaps - n"), AuditLevel::None);
        }
        for connection in ["pods exec", "pods attach", "pods portforward", "nodes proxy"] {
            let what = format!("- {connection} n");
            assert_eq!(level(&policy, "get", &what), AuditLevel::Metadata, "{connection}");
        }
        assert_eq!(level(&policy, "get", "- pods log n"), AuditLevel::None);
        assert_eq!(level(&policy, "get", "/metrics"), AuditLevel::None);
        let plan = plan(&policy, &user("alice", &[]), "create", "- configmaps");
        assert!(
            plan.records(AuditStage::ResponseComplete)
                && plan.records(AuditStage::Panic)
                && !plan.records(AuditStage::RequestReceived)
        );
    }

    #[test]
    fn fault_55_self_reviews_are_recorded_within_the_budget_of_refusals() {
        let written = AuditPolicy::parse(br#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}"#).expect("a policy");
        let is_rationed = |policy: &AuditPolicy, what: &str| {
            plan(policy, &user("alice", &[]), "create", what).rationed
        };
        for what in [
            "authorization.k8s.io selfsubjectaccessreviews",
            "authorization.k8s.io selfsubjectrulesreviews",
            "authentication.k8s.io selfsubjectreviews",
        ] {
            assert!(
                is_rationed(&AuditPolicy::default(), what) && !is_rationed(&written, what),
                "{what}"
            );
        }
        for what in [
            "authorization.k8s.io subjectaccessreviews",
            "authentication.k8s.io tokenreviews",
            "- configmaps",
        ] {
            assert!(!is_rationed(&AuditPolicy::default(), what), "{what}");
        }
    }

    const FILE: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
omitManagedFields: true
rules:
- level: None
  users: ["system:kube-proxy"]
  verbs: ["watch"]
- level: None
  userGroups: ["devs"]
  nonResourceURLs: ["/api*", "/version"]
- level: Request
  resources:
  - group: ""
    resources: ["configmaps"]
  namespaces: ["kube-system"]
  omitStages: ["ResponseStarted"]
  omitManagedFields: false
- level: RequestResponse
  resources:
  - group: ""
    resources: ["pods/*", "*/status", "secrets", "serviceaccounts/token"]
  - group: authentication.k8s.io
- level: Metadata
"#;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = AuditPolicy::parse(FILE.as_bytes()).expect("a policy");
        assert_eq!(
            plan(&policy, &user("system:kube-proxy", &[]), "watch", "- configmaps").level,
            AuditLevel::None
        );
        assert_eq!(level(&policy, "watch", "- configmaps"), AuditLevel::Metadata);
        assert_eq!(level(&policy, "get", "/apis/x"), AuditLevel::None);
        assert_eq!(level(&policy, "get", "/version"), AuditLevel::None);
        assert_eq!(level(&policy, "get", "/version/x"), AuditLevel::Metadata);
        assert_eq!(level(&policy, "create", "- configmaps - kube-system"), AuditLevel::Request);
        assert_eq!(level(&policy, "create", "- configmaps - other"), AuditLevel::Metadata);
        assert_eq!(level(&policy, "create", "- pods exec n"), AuditLevel::RequestResponse);
        assert_eq!(
            level(&policy, "create", "- pods - n"),
            AuditLevel::RequestResponse,
            "as kube-apiserver's code matches"
        );
        assert_eq!(level(&policy, "create", "- nodes"), AuditLevel::Metadata);
        assert_eq!(level(&policy, "update", "- nodes status"), AuditLevel::RequestResponse);
        let request = plan(&policy, &user("alice", &[]), "create", "- configmaps - kube-system");
        assert!(
            !request.omit_managed_fields
                && !request.records(AuditStage::ResponseStarted)
                && !request.records(AuditStage::RequestReceived)
        );
        assert!(plan(&policy, &user("alice", &[]), "get", "- pods").omit_managed_fields);
    }

    #[test]
    fn fault_54_bodies_with_credentials_are_never_recorded() {
        let policy = AuditPolicy::parse(FILE.as_bytes()).expect("a policy");
        for what in [
            "- secrets - n",
            "- secrets status n",
            "- serviceaccounts token n",
            "authentication.k8s.io tokenreviews",
        ] {
            assert_eq!(level(&policy, "create", what), AuditLevel::Metadata, "{what}");
        }
    }

    #[test]
    fn bad_policies_name_the_field() {
        let field = |rule: &str| match AuditPolicy::parse(
            format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {rule}\n").as_bytes(),
        ) {
            Err(PolicyError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field("level: Everything"), "rules[0].level");
        assert_eq!(field("{level: Metadata, omitStages: [Never]}"), "rules[0].omitStages");
        assert_eq!(
            field("{level: Metadata, nonResourceURLs: [\"/a*b\"]}"),
            "rules[0].nonResourceURLs"
        );
        assert_eq!(
            field("{level: Metadata, nonResourceURLs: [\"/a\"], namespaces: [ns]}"),
            "rules[0].nonResourceURLs"
        );
        assert_eq!(field("{level: Metadata, users: [1]}"), "rules[0].users");
        assert_eq!(
            field("{level: Metadata, resources: [{group: a/v1}]}"),
            "rules[0].resources[0].group"
        );
        assert_eq!(
            field("{level: Metadata, resources: [{group: 1}]}"),
            "rules[0].resources[0].group"
        );
        assert_eq!(
            field("{level: Metadata, resources: {group: a}}"),
            "rules[0].resources",
            "it would match every resource"
        );
        assert_eq!(
            field("{level: Metadata, omitManagedFields: \"yes\"}"),
            "rules[0].omitManagedFields"
        );
        assert!(matches!(
            AuditPolicy::parse(b"apiVersion: v1\nkind: Policy"),
            Err(PolicyError::Invalid { .. })
        ));
        assert!(matches!(AuditPolicy::parse(b"\t:"), Err(PolicyError::Syntax(_))));
    }

    #[test]
    fn unknown_fields_are_found() {
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrule: []\nrules:\n- {level: Metadata, user: [a], resources: [{name: x}]}\n";
        let document = yaml::read(text.as_bytes()).expect("YAML").document;
        assert_eq!(
            unknown_fields(&document),
            ["rule", "rules[0].user", "rules[0].resources[0].name"]
        );
        assert!(AuditPolicy::parse(text.as_bytes()).is_ok());
        assert!(unknown_fields(&yaml::read(FILE.as_bytes()).expect("YAML").document).is_empty());
    }
}
