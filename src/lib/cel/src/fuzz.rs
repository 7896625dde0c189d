//! Fuzz target of the parser of expressions.

use crate::source::SourceErrors;
use crate::syntax::{Ast, ExprKind, parse};
use ferrokube_apimachinery::work::counted;
use ferrokube_fuzz::{Verdict, run};

const EXPRESSIONS: &[&str] = &[
    "self.replicas <= self.maxReplicas && has(self.a) || !(self.b in [1, 2u, -3.5e1])",
    "self.items.all(i, i.name.matches('^[a-z]+$') ? size(i.v) > 0x1f : i.?v.orValue(null) == b'\\x00')",
    "{'a': 1, ?'b': self.?c, \"d\": [?self[?0], dyn(self)]}['a'].map(x, x > 1, x * 2)",
    "oldSelf.hasValue() && duration('1h') < timestamp(r\"\\n\") - type(self.`a-b`)",
    "google.protobuf.Int64Value{value: 1, ?other: optional.none()} // comment",
    "cel.bind(x, self.a, x.exists_one(k, v, k == '''long''' || v == true))",
    "((((1 +",
    "self.a.b(c, d",
    "[1, 2 3, {4: }, self.\u{e9}]",
];

/// Nodes of a tree, all of which begin within the source.
fn nodes(ast: &Ast, source: &str) -> usize {
    assert!(ast.at <= source.len(), "{} of {}", ast.at, source.len());
    let below = |one: &Ast| nodes(one, source);
    1 + match &ast.kind {
        ExprKind::Null
        | ExprKind::Bool(_)
        | ExprKind::Int(_)
        | ExprKind::Uint(_)
        | ExprKind::Double(_)
        | ExprKind::Text(_)
        | ExprKind::Bytes(_)
        | ExprKind::Name(_) => 0,
        ExprKind::Select { operand, .. } => below(operand),
        ExprKind::Index { operand, index, .. } => below(operand) + below(index),
        ExprKind::Call { target, args, .. } => {
            target.as_deref().map_or(0, below) + args.iter().map(below).sum::<usize>()
        }
        ExprKind::And(all) | ExprKind::Or(all) => all.iter().map(below).sum(),
        ExprKind::Conditional(all) => all.iter().map(below).sum(),
        ExprKind::List(items) => items.iter().map(|(item, _)| below(item)).sum(),
        ExprKind::Map(entries) => {
            entries.iter().map(|(key, value, _)| below(key) + below(value)).sum()
        }
        ExprKind::Message(_, fields) => fields.iter().map(|field| below(&field.value)).sum(),
    }
}

#[test]
fn expressions_become_trees_or_errors_of_bounded_size() {
    let deep = "(".repeat(300) + "1" + &")".repeat(300);
    let long = "self.a + ".repeat(500) + "1";
    let seeds: Vec<&str> = EXPRESSIONS.iter().copied().chain([&*deep, &*long]).collect();
    run("cel", &seeds, |input| {
        let Ok(source) = std::str::from_utf8(input) else { return Verdict::Refused };
        let (parsed, steps) = counted(|| parse(source));
        assert!(steps <= 4 * source.len() as u64 + 100, "{steps} steps");
        let errors: SourceErrors = match parsed {
            Ok(ast) => {
                let nodes = nodes(&ast, source);
                assert!(nodes <= 4 * source.len() + 4, "{nodes} nodes");
                return Verdict::Accepted;
            }
            Err(errors) => errors,
        };
        assert!(!errors.is_empty());
        let written = errors.written(source);
        // Of at most 30 errors, each with a token and its line unless that is long.
        assert!(written.len() <= 30 * (source.len() + 8 * 1024), "{} bytes", written.len());
        Verdict::Refused
    });
}
