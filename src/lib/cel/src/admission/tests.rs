//! Expressions of admission: variables, authorization checks, messages.

use super::*;
use crate::value::authorizer::{CheckDecision, CheckedSubject, Right};

const BOOL: &[Type] = &[Type::Bool];
const ALL: OptionalVariables = OptionalVariables { params: true, authorizer: true, patches: true };

/// Grants `create` of deployments, to everybody.
#[derive(Debug)]
struct Deployments;

impl Authorize for Deployments {
    fn decide(&self, subject: &CheckedSubject, right: &Right) -> CheckDecision {
        let allowed = match right {
            Right::Resource { resource, verb } => {
                &*resource.resource == "deployments" && &**verb == "create"
            }
            Right::Path { path, .. } => &**path == "/healthz" && *subject == CheckedSubject::Caller,
        };
        CheckDecision { allowed, ..CheckDecision::default() }
    }
}

fn document(json: Json) -> Document {
    Document::from_value(json).expect("an object")
}

/// Evaluates one expression after defining variables.
fn evaluate(variables: &[(&str, &str)], source: &str, budget: u64) -> Result<String, String> {
    let mut compiler = AdmissionCompiler::composing();
    for (name, source) in variables {
        let _ = compiler.define(name, source, ALL);
    }
    let program = compiler.compile(source, ALL, &[])?;
    let object = document(json!({"kind": "Widget", "spec": {"replicas": 3, "tags": ["a", "b"]}}));
    let request =
        document(json!({"operation": "CREATE", "name": "w", "userInfo": {"groups": ["g"]}}));
    let namespace = document(json!({"metadata": {"name": "n", "labels": {"a": "b"}}}));
    let authorizer: Arc<dyn Authorize> = Arc::new(Deployments);
    let resource = CheckedResource { resource: "deployments".into(), ..CheckedResource::default() };
    let input = AdmissionInput {
        object: Some(&object),
        old: None,
        namespace: Some(&namespace),
        request: &request,
        params: None,
        authorizer: Some(&authorizer),
        resource: &resource,
    };
    let scope = compiler.scope(&input);
    let mut meter = Meter::with_budget(budget);
    let answer = program.evaluate_in(&scope, &mut meter).map_err(|why| why.to_string())?;
    Ok(match answer {
        Value::Bool(flag) => flag.to_string(),
        other => format!("{other:?}"),
    })
}

#[test]
fn expressions_see_the_request_and_its_objects() {
    let cases = [
        ("object.spec.replicas <= 3 && oldObject == null", "true"),
        ("request.operation == 'CREATE' && 'g' in request.userInfo.groups", "true"),
        ("namespaceObject.metadata.labels['a'] == 'b'", "true"),
        ("params == null", "true"),
        ("has(request.namespace)", "false"),
        ("authorizer.group('apps').resource('deployments').check('create').allowed()", "true"),
        ("authorizer.requestResource.check('delete').allowed()", "false"),
        ("authorizer.path('/healthz').check('get').allowed()", "true"),
        ("authorizer.serviceAccount('a', 'b').path('/healthz').check('get').allowed()", "false"),
    ];
    for (source, expected) in cases {
        assert_eq!(evaluate(&[], source, 10_000_000).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn variables_are_evaluated_at_first_use_and_once() {
    let variables = [
        ("big", "object.spec.replicas > 2"),
        ("again", "variables.big ? object.spec.tags.size() : 0"),
        ("broken", "object.spec.nothing"),
        ("wrong", "1 +"),
    ];
    let cases: [(&str, Result<&str, &str>); 7] = [
        ("variables.again == 2", Ok("true")),
        (
            "variables.?none ? 1 : 2",
            Err(
                "compilation failed: ERROR: <input>:1:10: undefined field 'none'\n | variables.?none ? 1 : 2\n | .........^\nERROR: <input>:1:17: found no matching overload for '_?_:_' applied to '(optional_type(!error!), int, int)'",
            ),
        ),
        ("variables.big || variables.broken", Ok("true")),
        ("has(variables.broken)", Ok("true")),
        (
            "variables.broken == 1",
            Err("composited variable \"broken\" fails to evaluate: no such key: nothing"),
        ),
        (
            "variables.none == 1",
            Err(
                "compilation failed: ERROR: <input>:1:10: undefined field 'none'\n | variables.none == 1\n | .........^",
            ),
        ),
        (
            "variables.wrong == 1",
            Err(
                "composited variable \"wrong\" fails to compile: compilation failed: ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>'",
            ),
        ),
    ];
    for (source, expected) in cases {
        let answer = evaluate(&variables, source, 10_000_000);
        match expected {
            Ok(expected) => assert_eq!(answer.as_deref(), Ok(expected), "{source}"),
            Err(start) => {
                let why = answer.expect_err(source);
                assert!(why.starts_with(start), "{source}: {why}");
            }
        }
    }
}

#[test]
fn an_element_of_a_list_or_a_map_has_any_type() {
    for (source, is_any) in [
        ("object.?a[0]", true),
        ("object[?0]", true),
        ("object.a[?'x']", true),
        ("object.?a[object.b]", true),
        ("object.?a['x']", false),
        ("object.?a[?'x']", false),
        ("optional.none()[0]", false),
    ] {
        let source = format!("isSemver({source}, true)");
        let why = evaluate(&[], &source, 10_000_000).err().unwrap_or_default();
        assert_eq!(!why.starts_with("compilation failed"), is_any, "{source}: {why}");
    }
}

#[test]
fn authorization_checks_use_up_the_budget() {
    let check = "authorizer.requestResource.check('create').allowed()";
    assert_eq!(evaluate(&[], check, 10_000_000).as_deref(), Ok("true"));
    let three = [check; 3].join(" && ");
    let why = evaluate(&[], &three, 10_000_000).expect_err("over the limit of a call");
    assert_eq!(why, "operation cancelled: actual cost limit exceeded");
}

#[test]
fn results_have_the_wanted_type() {
    let compiler = AdmissionCompiler::default();
    let none = OptionalVariables::default();
    let cases = [
        ("object.spec.flag", BOOL, "must evaluate to bool but got dyn"),
        ("'a'", BOOL, "must evaluate to bool but got string"),
        (
            "1",
            &[Type::String, Type::Null],
            "must evaluate to one of [string null_type] but got int",
        ),
    ];
    for (source, wanted, expected) in cases {
        assert_eq!(compiler.compile(source, none, wanted).expect_err(source), expected);
    }
    for (source, why) in [
        ("duration(null) == duration('1s')", "1:10: invalid duration argument"),
        ("timestamp(null) == timestamp(1)", "1:11: invalid timestamp argument"),
    ] {
        let found = compiler.compile(source, none, BOOL).expect_err(source);
        assert!(found.starts_with(&format!("compilation failed: ERROR: <input>:{why}")), "{found}");
    }
    let why = compiler.compile("params.a == 1", none, BOOL).expect_err("not declared");
    assert!(why.contains("undeclared reference to 'params'"), "{why}");
}

#[test]
fn mutations_make_messages() {
    let compiler = AdmissionCompiler::default();
    let patches = "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b~c'), value: 1}]";
    compiler.compile(patches, ALL, &[Type::json_patches()]).expect("a list of operations");
    let apply = "Object{metadata: Object.metadata{labels: {'a': 'b'}}, ?spec: optional.none()}";
    compiler.compile(apply, ALL, &[Type::apply_configuration()]).expect("an object");
    let why = compiler.compile(apply, ALL, &[Type::json_patches()]).expect_err("another type");
    assert_eq!(why, "must evaluate to list(JSONPatch) but got Object");
    let why = compiler.compile("JSONPatch{x: 'a'}", ALL, &[]).expect_err("no such field");
    assert!(why.contains("type of field 'x' is '' but provided type is 'string'"), "{why}");
    let none = OptionalVariables::default();
    let why = compiler.compile("Object{}", none, &[]).expect_err("no such type");
    assert!(why.contains("undeclared reference to 'Object'"), "{why}");
}

#[test]
fn messages_become_json_and_their_names_are_checked() {
    let compiler = AdmissionCompiler::default();
    let request = document(json!({}));
    let resource = CheckedResource::default();
    let input = AdmissionInput {
        object: None,
        old: None,
        namespace: None,
        request: &request,
        params: None,
        authorizer: None,
        resource: &resource,
    };
    let run = |source: &str| {
        let program = compiler.compile(source, ALL, &[]).expect(source);
        let scope = compiler.scope(&input);
        match program.evaluate_in(&scope, &mut Meter::default()).expect(source) {
            Value::Message(message) => (message.check_names(), Value::Message(message).to_json()),
            other => panic!("{other:?}"),
        }
    };
    let nested = "Object{spec: Object.spec{n: 2, l: [{'a': b'x'}], ?no: optional.none()}}";
    let (names, value) = run(nested);
    assert_eq!(names, Ok(()));
    assert_eq!(value, Ok(json!({"spec": {"n": 2, "l": [{"a": "eA=="}]}})));
    let (names, _) = run("Object{spec: Object.status{}}");
    assert!(
        names.expect_err("another path").contains("\"Object.status\", expected \"Object.spec\"")
    );
}
