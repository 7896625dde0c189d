//! Renders a feature's page for docs/features/ from its descriptor, as Markdown.

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
pub fn markdown(descriptor: &Descriptor) -> String {
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
    for (part, questions) in QUESTIONS {
        let answered: Vec<_> = questions
            .iter()
            .filter_map(|(id, question)| Some((id, question, text(descriptor, id)?)))
            .collect();
        if answered.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {part}\n");
        for (id, question, text) in answered {
            let _ = write!(page, "\n**{id} {question}** {text}\n");
        }
    }
    page.push_str("\nThis page is generated from the feature's descriptor (`src/lib/features`); a test keeps both in sync.\n");
    page
}

fn text(descriptor: &Descriptor, id: &str) -> Option<&'static str> {
    descriptor.answers.iter().find(|answer| answer.id == id).map(|answer| answer.text)
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
        for descriptor in ALL {
            let path = folder.join(format!("{}.md", descriptor.gate.name));
            let page = markdown(descriptor);
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
        let asked: Vec<_> = QUESTIONS
            .iter()
            .flat_map(|(_, questions)| questions.iter().map(|(id, _)| *id))
            .collect();
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
