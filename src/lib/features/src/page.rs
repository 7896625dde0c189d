//! Renders a feature's page for docs/features/ from its descriptor, as Markdown.

use crate::coverage::CoverageFigures;
use crate::descriptor::Descriptor;
use crate::gate::Gate;
use std::fmt::Write;

/// Production readiness questions by section (P01 to P30).
const QUESTIONS: &[(&str, &[(&str, &str)])] = &[
    (
        "Enabling and disabling",
        &[
            ("P01", "How is it enabled and disabled in a live cluster?"),
            ("P02", "Does enabling it change default behavior?"),
            ("P03", "Can it be disabled again, and what becomes of what exists?"),
            ("P04", "What happens when it is enabled again?"),
            ("P05", "Are there tests for enabling and disabling?"),
        ],
    ),
    (
        "Rollout, upgrade, rollback",
        &[
            ("P06", "How can a rollout or a rollback fail?"),
            ("P07", "Which metrics should lead to a rollback?"),
            ("P08", "Were upgrade, downgrade and upgrade again tested?"),
            ("P09", "Does the rollout deprecate or remove anything?"),
        ],
    ),
    (
        "Monitoring",
        &[
            ("P10", "How does an operator see that it is in use?"),
            ("P11", "How does a user see that it works?"),
            ("P12", "What are reasonable objectives?"),
            ("P13", "Which indicators tell whether they are met?"),
            ("P14", "Which metrics are missing?"),
        ],
    ),
    (
        "Dependencies and scale",
        &[
            ("P15", "What does it depend on, and what if that fails?"),
            ("P16", "Which new API calls does it make?"),
            ("P17", "Which new API types does it bring?"),
            ("P18", "Which calls to a cloud provider?"),
            ("P19", "How do existing objects grow?"),
            ("P20", "How much longer do operations take?"),
            ("P21", "How much CPU, memory, disk or IO more?"),
            ("P22", "Can it use up a node's resources?"),
        ],
    ),
    (
        "Troubleshooting",
        &[
            ("P23", "What if the API server or the storage is away?"),
            ("P24", "Which other ways of failing are known?"),
            ("P25", "What to do when the objectives are missed?"),
        ],
    ),
    (
        "Process",
        &[
            ("P26", "What must be there for a release?"),
            ("P27", "How is it tested?"),
            ("P28", "When does it graduate?"),
            ("P29", "Which versions of components work together?"),
            ("P30", "History, drawbacks, alternatives"),
        ],
    ),
];

/// Renders the page of a feature.
pub fn markdown(descriptor: &Descriptor, figures: CoverageFigures<'_>) -> String {
    let mut page = String::new();
    let _ = write!(page, "# {}\n\n{}.\n\n", descriptor.gate.name, descriptor.summary);
    let _ = writeln!(page, "| | |\n|---|---|\n| from | {} |", descriptor.source);
    let _ = writeln!(page, "| stages | {} |", stages(descriptor.gate));
    let _ = writeln!(page, "| components | {} |", descriptor.components.join(", "));
    let _ = writeln!(page, "| owner | {} |", descriptor.owner);
    let _ = writeln!(
        page,
        "| metrics | {} |",
        descriptor
            .metrics
            .iter()
            .map(|metric| format!("`{metric}`"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    write_answers(&mut page, descriptor);
    let open: Vec<&str> =
        questions().filter(|(id, _)| descriptor.answer(id).is_none()).map(|(id, _)| id).collect();
    if !open.is_empty() {
        let _ = write!(page, "\nNot answered yet: {}.\n", open.join(", "));
    }
    figures.write(descriptor, &mut page);
    page.push_str("\nThis page is generated from the feature's descriptor (`src/lib/features`); a test keeps both in sync.\n");
    page
}

/// All questions, by id.
pub fn questions() -> impl Iterator<Item = (&'static str, &'static str)> {
    QUESTIONS.iter().flat_map(|(_, questions)| questions.iter().copied())
}

/// Answer to a question, if given.
pub fn answer(descriptor: &Descriptor, id: &str) -> Option<String> {
    descriptor.answer(id).map(str::to_owned)
}

fn write_answers(page: &mut String, descriptor: &Descriptor) {
    for (part, questions) in QUESTIONS {
        let answered: Vec<_> = questions
            .iter()
            .filter_map(|(id, question)| Some((id, question, answer(descriptor, id)?)))
            .collect();
        if answered.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {part}\n");
        for (id, question, text) in answered {
            let _ = write!(page, "\n**{id} {question}** {text}\n");
        }
    }
}

/// Renders the production readiness sheet of a feature: every question, also those without an
/// answer.
pub fn sheet(descriptor: &Descriptor, figures: CoverageFigures<'_>) -> String {
    let mut page = format!("# {}\n\n{}.\n", descriptor.gate.name, descriptor.summary);
    let _ = writeln!(page, "\nStages: {}.", stages(descriptor.gate));
    let _ = writeln!(page, "Components: {}.", descriptor.components.join(", "));
    let _ = writeln!(page, "Owner: {}.", descriptor.owner);
    let _ = writeln!(page, "Metrics: {}.", descriptor.metrics.join(", "));
    for (part, questions) in QUESTIONS {
        let _ = write!(page, "\n## {part}\n");
        for (id, question) in *questions {
            let text = answer(descriptor, id).unwrap_or_else(|| "Not answered yet.".to_owned());
            let _ = write!(page, "\n{id} {question}\n    {text}\n");
        }
    }
    figures.write(descriptor, &mut page);
    page
}

/// Text above the table of [`index`].
const GUIDE: &str = "\
# Features

Every feature has a gate, which `--feature-gates` sets for a process. With the gate `FeatureAPI` the API server also serves an object for each feature
(`features.k8s.io/v1alpha1`, short name `feat`, namespace kube-system), and turning a feature off removes what it stored. The server, and a second terminal:

    ferrokube all-in-one --feature-gates=FeatureAPI=true,CoordinatedLeaderElection=true

    ferrokube feature-admin list

To turn features off, stop the server and start it with other gates. Here these are CoordinatedLeaderElection, which is off unless a flag turns it on, and
LogTracking, which is on unless a flag turns it off:

    ferrokube all-in-one --feature-gates=FeatureAPI=true,LogTracking=false

    ferrokube feature-admin watch
    ferrokube feature-admin wait CoordinatedLeaderElection --for state=Off
    ferrokube feature-admin check-downgrade --to 1.35

A Feature is `TurningOff` while tasks clear stored objects, and until no component has reported the old value for the evaluation time
(`--feature-evaluation-time`, 60 s); then it is `Off`, and OpenAPI no longer shows its fields. `watch` ends when no feature is in transition. `check-downgrade`
says safe once every feature is off that 1.35 lacks and that stores something: these two.

`benches/features target/release/ferrokube` runs this story with 10,000 Leases, and prints what the task takes. `--emulated-version` chooses the version of Kubernetes whose gates and
defaults apply; `--min-compatibility-version` says how old other components may be: a default that they would not understand waits for them.

| command of `feature-admin` | does |
|---|---|
| `list` | the states |
| `describe FEATURE` | who uses a feature, what blocks its transition, and how to unblock it |
| `uses`, `tasks` | the values that components have reported; the tasks that remain |
| `watch` | shows transitions until there are none, on a terminal with progress bars |
| `wait FEATURE --for state=Off` | waits for a state, at most `--timeout` (5 minutes); then the exit code is 1 |
| `check-upgrade --to 1.37`, `check-downgrade --to 1.35` | exit with 0 if changing to that version of Kubernetes is safe, else with 1 and the reasons. It is not safe before an API server has confirmed the state of each feature |
| `enable FEATURE`, `disable FEATURE` | set a dynamic feature (see below); of another, print the flag to set and the components to restart |
| `prr FEATURE` | prints the production readiness sheet; needs no cluster |

All take `-o table|json|yaml`, `-n` (kube-system), `--kubeconfig` (else `$KUBECONFIG`, which may name several files, else that of an all-in-one, else
`~/.kube/config`), `--context`, `--dry-run` (the server checks writes and keeps none) and `-v` (each request with its trace ids). Linked as `kubectl-features`, the
same commands are `kubectl features`.

`/ui/features/` of the API server, in a browser with `kubectl proxy`, is a board of states, transitions and what blocks them. A user needs `get` on the path
`/ui/features/*`, and sees what the API would show: `list` on features of a namespace for the board, `get` for the page of a feature.

| metric | of | is |
|---|---|---|
| `kubernetes_feature_enabled{name,stage}` | every component | 1 if the gate is on |
| `feature_state{name,state}` | API server | 1 for the state that the feature is in |
| `feature_tasks_remaining{name}`, `feature_blocked{name}` | API server | tasks before the transition ends; 1 if it cannot advance |
| `feature_uses{name,version,enabled}` | API server | 1 for each value that components have reported |
| `feature_dangling_references{name}` | API server | 1 if stored objects use a feature that is off |
| `feature_leader{name}` | API server | 1 if this server leads the feature's transitions |
| `feature_transition_duration_seconds{name,to}` | API server | durations of the transitions that this server has ended |

Transitions have events (`kubectl events -n kube-system`): `TransitionStarted`, `TransitionCompleted`, `TransitionBlocked`. The conditions of a Feature say whether an
upgrade or a downgrade is safe, and `DanglingReferences` how many stored objects use a feature that is off, with three examples; they are counted every 10 minutes.
[features-tests.md](features-tests.md) lists the tests of each requirement.

A central feature is set once, by `--feature-gates` of the API server: other components take its value from the API, without a restart, unless their own command
line sets it. Until a component has read the value, a feature that stores something is off there, and another has the component's own
value: the limits of a kubelet hold without an API server. Where the API server serves no features, the component's own gates apply.
The API server may let the API set it instead:

    ferrokube all-in-one --feature-gates=FeatureAPI=true --dynamic-features=LogTracking
    ferrokube feature-admin disable LogTracking

`spec.canaryPercent` of a dynamic feature turns it on in some components first, chosen by a hash of their names; it is `TurningOn` until the field is 100 or unset.

A component reports a value within 10 s, at random, unless another one of its version has: thousands of them write a few times for a transition, and not at all at rest.
A kubelet, and the controller manager that leads, also say it in the Lease that they renew (annotation `features.k8s.io/uses`): one that is alive and whose reports do not
arrive holds a transition until its Lease agrees. A manager that stands by runs no controllers and renews no Lease; when it takes over, its Lease is read within 10
minutes, and a feature that is off, but on there, is unsafe (`DanglingReferences`). The scheduler of `--node` asks no gate.

Only the API server writes the status, and what API servers say of themselves in their identity Leases (annotations `features.k8s.io/...`, kube-system). A Lease that
a user labels as an API server's holds transitions, but cannot agree to one, or lead. Components need the role `system:feature-reporter`, which lets them add the
values that they use and nothing else. An unknown gate on the command line is warned about and gets an object with the stability `Unavailable`. An object of a
feature that this version does not have is left as it is, and deleted three minor versions after it was last known.

";

/// Renders docs/features.md: a guide, and a table of all features.
pub fn index(descriptors: &[&Descriptor]) -> String {
    let mut page = GUIDE.to_owned();
    page.push_str("| feature | stages | turning it off |\n|---|---|---|\n");
    for descriptor in descriptors {
        let name = descriptor.gate.name;
        let tasks: Vec<String> = descriptor.tasks.iter().map(|task| format!("`{task}`")).collect();
        let tasks =
            if tasks.is_empty() { "nothing is stored".to_owned() } else { tasks.join(", ") };
        let stages = stages(descriptor.gate);
        let _ = writeln!(page, "| [{name}](features/{name}.md) | {stages} | {tasks} |");
    }
    page.push_str("\nThis page is generated from the descriptors (`src/lib/features`); a test keeps both in sync.\n");
    page
}

fn stages(gate: &Gate) -> String {
    let stage = |spec: &crate::GateSpec| {
        let name = if spec.stage.as_str().is_empty() { "GA" } else { spec.stage.as_str() };
        format!(
            "{name} since {}, {} by default",
            spec.since,
            if spec.default { "on" } else { "off" }
        )
    };
    gate.specs.iter().map(stage).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::ALL;
    use std::path::Path;

    /// `UPDATE_PAGES=1` rewrites the pages.
    #[test]
    fn the_pages_are_those_of_the_descriptors() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/features");
        let figures = folder.join("../../src/lib/feature-admin/data/coverage.tsv");
        let figures = std::fs::read_to_string(figures).unwrap();
        let of_one = |descriptor: &&Descriptor| {
            let page = markdown(descriptor, CoverageFigures(&figures));
            (folder.join(format!("{}.md", descriptor.gate.name)), page)
        };
        let all = [(folder.with_extension("md"), index(&ALL))];
        for (path, page) in all.into_iter().chain(ALL.iter().map(of_one)) {
            if std::env::var_os("UPDATE_PAGES").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &page).unwrap();
            }
            let written = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                written == page,
                "{} is outdated: run UPDATE_PAGES=1 cargo test -p ferrokube-features",
                path.display()
            );
        }
    }

    #[test]
    fn every_answer_belongs_to_a_question() {
        let asked: Vec<_> = questions().map(|(id, _)| id).collect();
        assert!(asked.is_sorted() && asked.len() == 30);
        for descriptor in ALL {
            assert!(
                descriptor.answers.iter().all(|answer| asked.contains(&answer.id)),
                "{}",
                descriptor.gate.name
            );
        }
    }
}
