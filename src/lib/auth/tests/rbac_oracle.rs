//! An independent oracle for RBAC: no index, no compiled roles; each question scans every stored
//! document and spells out what each rule grants. It must agree with the authorizer on 100,000
//! random questions while roles and bindings come and go.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::rbac::{Feed, RbacChange, RbacKind};
use ferrokube_auth::{Access, Authorizer, Rbac, ResourceAccess};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const USERS: [&str; 6] =
    ["u1", "u2", "system:serviceaccount:a:s", "system:serviceaccount:b:s", "", "u1 "];
const GROUPS: [&str; 4] = ["g1", "g2", "system:masters", "system:authenticated"];
const VERBS: [&str; 5] = ["get", "list", "create", "*", "use"];
const API_GROUPS: [&str; 4] = ["", "apps", "x.example.com", "*"];
const RESOURCES: [&str; 9] = [
    "pods",
    "pods/log",
    "pods/status",
    "things",
    "things/status",
    "*",
    "*/status",
    "*/log",
    "pods/*",
];
const NAMES: [&str; 4] = ["n1", "n2", "*", ""];
const URLS: [&str; 8] =
    ["/healthz", "/healthz/*", "/api*", "*", "/", "/metrics", "/api/**", "/x*y"];
const PATHS: [&str; 7] = ["/healthz", "/healthz/etcd", "/api", "/apis/x", "/", "/metrics/", "/x*y"];

/// Deterministic.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).expect("64 bits") % bound
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn some(&mut self, from: &[&str], most: usize) -> Vec<String> {
        (0..self.below(most + 1).max(self.below(2))).map(|_| self.pick(from).to_owned()).collect()
    }
}

/// The stored objects and pending changes.
#[derive(Default)]
struct PolicyTables {
    objects: BTreeMap<(u8, String, String), Document>,
    pending: Vec<RbacChange>,
}

struct TablesFeed(Arc<Mutex<PolicyTables>>);

impl Feed for TablesFeed {
    fn drain(&mut self, apply: &mut dyn FnMut(RbacChange)) {
        std::mem::take(&mut self.0.lock().expect("lock").pending).into_iter().for_each(apply);
    }
}

fn kind_number(kind: RbacKind) -> u8 {
    u8::try_from(RbacKind::ALL.iter().position(|other| *other == kind).expect("one of four"))
        .expect("small")
}

impl PolicyTables {
    fn put(&mut self, kind: RbacKind, document: Document) {
        let key = (kind_number(kind), document.namespace().to_owned(), document.name().to_owned());
        self.pending.push(RbacChange::Put(kind, Arc::new(document.clone())));
        self.objects.insert(key, document);
    }

    fn remove(&mut self, kind: RbacKind, namespace: &str, name: &str) {
        if self
            .objects
            .remove(&(kind_number(kind), namespace.to_owned(), name.to_owned()))
            .is_some()
        {
            self.pending.push(RbacChange::Remove(kind, namespace.to_owned(), name.to_owned(), 0));
        }
    }

    fn replace_all(&mut self, kind: RbacKind) {
        self.pending.push(RbacChange::Clear(kind, 0));
        let of_kind = self.objects.iter().filter(|((number, ..), _)| *number == kind_number(kind));
        let puts: Vec<RbacChange> = of_kind
            .map(|(_, document)| RbacChange::Put(kind, Arc::new(document.clone())))
            .collect();
        self.pending.extend(puts);
    }

    fn of(&self, kind: RbacKind) -> impl Iterator<Item = &Document> {
        self.objects
            .iter()
            .filter(move |((number, ..), _)| *number == kind_number(kind))
            .map(|(_, document)| document)
    }

    /// Whether some applicable binding has a rule that grants the request.
    fn allows(&self, access: &Access<'_>) -> bool {
        if access.user.groups.contains(&"system:masters".to_owned()) {
            return true;
        }
        let cluster =
            self.of(RbacKind::ClusterRoleBinding).filter(|binding| binds(binding, access.user));
        let mut granted = cluster.flat_map(|binding| self.rules(binding));
        if granted.any(|rule| grants(&rule, access)) {
            return true;
        }
        let place = access.resource.map_or("", |resource| resource.namespace);
        let here = self.of(RbacKind::RoleBinding).filter(|binding| {
            !place.is_empty() && binding.namespace() == place && binds(binding, access.user)
        });
        here.flat_map(|binding| self.rules(binding)).any(|rule| grants(&rule, access))
    }

    fn rules(&self, binding: &Document) -> Vec<Value> {
        let (kind, namespace) = match binding.str(&["roleRef", "kind"]) {
            Some("Role") => (RbacKind::Role, binding.namespace()),
            _ => (RbacKind::ClusterRole, ""),
        };
        let name = binding.str(&["roleRef", "name"]).expect("a name");
        self.objects
            .get(&(kind_number(kind), namespace.to_owned(), name.to_owned()))
            .map(|role| role.list(&["rules"]).to_vec())
            .unwrap_or_default()
    }
}

fn binds(binding: &Document, user: &UserInfo) -> bool {
    binding.list(&["subjects"]).iter().any(|subject| {
        let name = subject["name"].as_str().expect("a name");
        match subject["kind"].as_str() {
            Some("User") => user.name == name,
            Some("Group") => user.groups.iter().any(|group| group == name),
            Some("ServiceAccount") => {
                let namespace = subject["namespace"]
                    .as_str()
                    .filter(|text| !text.is_empty())
                    .unwrap_or(binding.namespace());
                user.name
                    .strip_prefix("system:serviceaccount:")
                    .and_then(|rest| rest.split_once(':'))
                    == Some((namespace, name))
                    && !namespace.is_empty()
            }
            _ => false,
        }
    })
}

fn words<'a>(rule: &'a Value, field: &str) -> Vec<&'a str> {
    rule[field]
        .as_array()
        .map(|words| words.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// Spells out all (verb, group, resource, name) quadruples of a rule and looks for the request.
fn grants(rule: &Value, access: &Access<'_>) -> bool {
    words(rule, "verbs").iter().any(|verb| *verb == "*" || *verb == access.verb)
        && match &access.resource {
            None => words(rule, "nonResourceURLs").iter().any(|url| url_grants(url, access.path)),
            Some(resource) => quadruple_grants(rule, resource),
        }
}

fn url_grants(url: &str, path: &str) -> bool {
    let stem: String = url
        .chars()
        .rev()
        .skip_while(|letter| *letter == '*')
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    url == path
        || (stem.len() < url.len()
            && path.chars().zip(stem.chars()).filter(|(one, other)| one == other).count()
                == stem.chars().count())
}

fn quadruple_grants(rule: &Value, asked: &ResourceAccess<'_>) -> bool {
    let mut names = words(rule, "resourceNames");
    let any_name = names.is_empty();
    if any_name {
        names.push(asked.name);
    }
    for group in words(rule, "apiGroups") {
        for resource in words(rule, "resources") {
            for name in &names {
                let whole = if asked.subresource.is_empty() {
                    asked.resource.to_owned()
                } else {
                    [asked.resource, asked.subresource].join("/")
                };
                let suffix = format!("*/{}", asked.subresource);
                let same_resource = resource == "*"
                    || resource == whole
                    || (!asked.subresource.is_empty() && resource == suffix);
                if (group == "*" || group == asked.group) && same_resource && *name == asked.name {
                    return true;
                }
            }
        }
    }
    false
}

fn random_role(random: &mut Xorshift, namespace: &str, name: &str) -> Document {
    let rules: Vec<Value> = (0..random.below(6))
        .map(|_| {
            json!({
                "verbs": random.some(&VERBS, 3), "apiGroups": random.some(&API_GROUPS, 3), "resources": random.some(&RESOURCES, 4),
                "resourceNames": if random.below(3) == 0 { random.some(&NAMES, 2) } else { Vec::new() }, "nonResourceURLs": random.some(&URLS, 2),
            })
        })
        .collect();
    Document::from_value(
        json!({"metadata": {"namespace": namespace, "name": name}, "rules": rules}),
    )
    .expect("an object")
}

fn random_binding(random: &mut Xorshift, namespace: &str, name: &str) -> Document {
    let kind = if namespace.is_empty() || random.below(2) == 0 { "ClusterRole" } else { "Role" };
    let subjects: Vec<Value> = (0..random.below(6))
        .map(|_| match random.below(4) {
            0 => json!({"kind": "User", "name": random.pick(&USERS)}),
            1 => json!({"kind": "Group", "name": random.pick(&GROUPS)}),
            2 => json!({"kind": "ServiceAccount", "name": "s", "namespace": random.pick(&["a", "b", ""])}),
            _ => json!({"kind": "Robot", "name": random.pick(&USERS)}),
        })
        .collect();
    let role = format!("r{}", random.below(5));
    Document::from_value(json!({"metadata": {"namespace": namespace, "name": name}, "roleRef": {"kind": kind, "name": role}, "subjects": subjects}))
        .expect("an object")
}

fn change(random: &mut Xorshift, world: &mut PolicyTables) {
    let kind = RbacKind::ALL[random.below(4)];
    let is_cluster = matches!(kind, RbacKind::ClusterRole | RbacKind::ClusterRoleBinding);
    let namespace = if is_cluster { "" } else { random.pick(&NAMESPACES) };
    let name = format!("r{}", random.below(5));
    match random.below(12) {
        0..=2 => world.remove(kind, namespace, &name),
        3 => world.replace_all(kind),
        _ if matches!(kind, RbacKind::Role | RbacKind::ClusterRole) => {
            world.put(kind, random_role(random, namespace, &name))
        }
        _ => world.put(kind, random_binding(random, namespace, &name)),
    }
}

fn agree(random: &mut Xorshift, rbac: &Rbac, world: &PolicyTables) -> bool {
    let groups = random
        .some(&GROUPS, 2)
        .into_iter()
        .filter(|group| group != "system:masters" || world.objects.len().is_multiple_of(50))
        .collect();
    let user = UserInfo { name: random.pick(&USERS).to_owned(), groups, ..UserInfo::default() };
    let asked =
        random.pick(&["pods", "pods/log", "things", "things/status", "nodes", "pods/", "*"]);
    let (resource, subresource) = asked.split_once('/').unwrap_or((asked, ""));
    let resource = ResourceAccess {
        group: random.pick(&API_GROUPS),
        version: "v1",
        resource,
        subresource,
        namespace: random.pick(&["a", "b", "c", "d", ""]),
        name: random.pick(&["n1", "n2", "", "n3"]),
    };
    let resource = (random.below(5) > 0).then_some(resource);
    let access =
        Access { user: &user, verb: random.pick(&VERBS), resource, path: random.pick(&PATHS) };
    let expected = world.allows(&access);
    assert_eq!(rbac.authorize(&access).is_allowed(), expected, "{access:?}");
    expected
}

#[test]
fn the_oracle_agrees_on_100_000_questions() {
    let world = Arc::new(Mutex::new(PolicyTables::default()));
    let head = Arc::new(AtomicU64::new(0));
    let published = Arc::clone(&head);
    let rbac = Rbac::new(
        Box::new(TablesFeed(Arc::clone(&world))),
        Box::new(move || published.load(Ordering::SeqCst)),
    );
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let mut allowed = 0;
    for round in 0..2_000 {
        for _ in 0..if round == 0 { 60 } else { 3 } {
            change(&mut random, &mut world.lock().expect("lock"));
        }
        head.fetch_add(1, Ordering::SeqCst);
        for _ in 0..50 {
            // The feed locks the tables, too: the authorizer must catch up before the oracle takes
            // the lock.
            rbac.view("");
            let world = world.lock().expect("lock");
            allowed += usize::from(agree(&mut random, &rbac, &world));
        }
    }
    assert!((5_000..95_000).contains(&allowed), "the questions are not one-sided: {allowed}");
}
