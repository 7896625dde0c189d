//! How much of the features' sources is tested: figures that `tests/coverage` measures.

use crate::descriptor::Descriptor;
use std::fmt::Write;

/// Tested lines of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SourceCoverage<'a> {
    /// Relative to the repository.
    path: &'a str,
    /// Lines that a test runs.
    covered: u32,
    /// Lines with code.
    lines: u32,
}

/// The measured figures as text: what was measured, then path, lines that tests run and lines with
/// code, separated by tabs.
#[derive(Clone, Copy, Debug)]
pub struct CoverageFigures<'a>(pub &'a str);

impl<'a> CoverageFigures<'a> {
    fn measured(self) -> &'a str {
        self.0.lines().next().unwrap_or_default().trim_start_matches("# ")
    }

    fn read(self) -> impl Iterator<Item = SourceCoverage<'a>> {
        self.0.lines().skip(1).filter_map(|line| {
            let mut fields = line.split('\t');
            let path = fields.next()?;
            let mut number = || fields.next()?.parse().ok();
            Some(SourceCoverage { path, covered: number()?, lines: number()? })
        })
    }

    /// Figure of a source; `None`: not measured.
    fn of(self, path: &str) -> Option<SourceCoverage<'a>> {
        self.read().find(|one| one.path == path)
    }

    /// Appends a section with a table of all sources, as Markdown.
    pub(crate) fn write(self, descriptor: &Descriptor, page: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## Test coverage\n\n{}\n\n", self.measured());
        page.push_str("| file | lines |\n|---|---|\n");
        for path in descriptor.sources {
            let figure = match self.of(path) {
                Some(SourceCoverage { covered, lines, .. }) => {
                    let percent = covered * 100 / lines.max(1);
                    format!("{percent} % ({covered} of {lines})")
                }
                None => "not measured".to_owned(),
            };
            let _ = writeln!(page, "| `{path}` | {figure} |");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::ALL;
    use std::path::Path;

    #[test]
    fn p27_every_source_of_a_feature_exists_and_is_measured() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let text = root.join("src/lib/feature-admin/data/coverage.tsv");
        let text = std::fs::read_to_string(text).unwrap();
        let figures = CoverageFigures(&text);
        for descriptor in ALL {
            let name = descriptor.gate.name;
            assert!(!descriptor.sources.is_empty(), "{name} has no sources");
            for path in descriptor.sources {
                assert!(root.join(path).is_file(), "{name}: {path}");
            }
            let mut page = String::new();
            figures.write(descriptor, &mut page);
            for path in descriptor.sources {
                let Some(figure) = figures.of(path) else {
                    panic!("{name}: {path} is not measured: run tests/coverage")
                };
                assert!(figure.covered <= figure.lines && figure.lines > 0, "{figure:?}");
                let row = page.lines().find(|row| row.starts_with(&format!("| `{path}` | ")));
                let shown = format!("({} of {})", figure.covered, figure.lines);
                assert!(row.is_some_and(|row| row.contains(&shown)), "{path}: {row:?}");
            }
        }
        let is_source =
            |path: &str| ALL.iter().any(|descriptor| descriptor.sources.contains(&path));
        let other = figures.read().find(|one| !is_source(one.path));
        assert!(other.is_none(), "run tests/coverage: {other:?}");
    }
}
