//! Which of the candidates leads, as in kube-apiserver.

use super::Candidate;
use ferrokube_features::KubernetesVersion;

/// The strategy that this server knows.
const OLDEST: &str = "OldestEmulationVersion";

/// Result of an election.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) strategy: String,
    /// `None`: the strategy is another controller's.
    pub(super) holder: Option<String>,
}

/// Numbers of a semantic version; tolerant, as kube-apiserver is here.
fn version(text: &str) -> Option<[u64; 3]> {
    let text = text.trim_start_matches('v');
    let text = text.split(['-', '+']).next().unwrap_or_default();
    let mut numbers = [0; 3];
    let mut parts = text.split('.');
    for (at, number) in numbers.iter_mut().enumerate() {
        match parts.next() {
            Some(part) => *number = part.parse().ok()?,
            None if at > 0 => {}
            None => return None,
        }
    }
    parts.next().is_none().then_some(numbers)
}

/// The strategy is that of the newest program among the candidates. With the oldest emulation
/// version, ties go to the oldest program, then to the oldest object.
pub(super) fn choose(candidates: &[&Candidate]) -> Result<Choice, String> {
    let binary = |one: &Candidate| version(one.text("binaryVersion")).unwrap_or_default();
    let newest = candidates.iter().map(|one| binary(one)).max().ok_or("no candidates")?;
    let mut strategies: Vec<&str> = candidates
        .iter()
        .filter(|one| binary(one) == newest)
        .map(|one| one.text("strategy"))
        .collect();
    strategies.sort_unstable();
    strategies.dedup();
    let [strategy] = strategies[..] else {
        let [major, minor, _] = newest;
        let newest = KubernetesVersion::new(small(major), small(minor));
        let strategies = strategies.join(", ");
        return Err(format!(
            "candidates of version {newest} want different strategies: {strategies}"
        ));
    };
    let mut valid: Vec<_> = candidates
        .iter()
        .filter_map(|one| {
            let versions =
                (version(one.text("emulationVersion"))?, version(one.text("binaryVersion"))?);
            let document = &one.document;
            Some((versions, document.meta("creationTimestamp"), document.name()))
        })
        .collect();
    valid.sort_unstable();
    let holder =
        valid.first().filter(|_| strategy == OLDEST).map(|(_, _, name)| (*name).to_owned());
    Ok(Choice { strategy: strategy.to_owned(), holder })
}

fn small(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::{Document, json};
    use std::sync::Arc;
    use tokio::time::Instant;

    fn candidate(name: &str, made: &str, versions: [&str; 2], strategy: &str) -> Candidate {
        let [binary, emulated] = versions;
        let document = Document::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": made},
            "spec": {"binaryVersion": binary, "emulationVersion": emulated, "strategy": strategy},
        }));
        let document = Arc::new(document.unwrap());
        Candidate { document, since: Instant::now(), renewed: None, pinged: None }
    }

    fn chosen(candidates: &[Candidate]) -> Result<Choice, String> {
        choose(&candidates.iter().collect::<Vec<_>>())
    }

    #[tokio::test]
    async fn the_oldest_emulation_version_leads() {
        let of = |name, made, versions| candidate(name, made, versions, OLDEST);
        let mut all = vec![
            of("late", "2026-01-02T00:00:00Z", ["1.36.0", "1.36.0"]),
            of("early", "2026-01-01T00:00:00Z", ["1.36.0", "1.36.0"]),
        ];
        let holder = |all: &[Candidate]| chosen(all).unwrap().holder;
        assert_eq!(holder(&all).as_deref(), Some("early"));
        all.push(of("emulating", "2026-01-03T00:00:00Z", ["1.36.0", "1.35.0"]));
        assert_eq!(holder(&all).as_deref(), Some("emulating"));
        all.push(of("old", "2026-01-04T00:00:00Z", ["1.35.2", "1.35.0"]));
        assert_eq!(holder(&all).as_deref(), Some("old"));
        all.push(of("wrong", "2026-01-04T00:00:00Z", ["1.35.2", "x"]));
        assert_eq!(holder(&all).as_deref(), Some("old"));
    }

    #[tokio::test]
    async fn the_newest_program_says_how() {
        let of = |name, binary, strategy| candidate(name, "", [binary, "1.35.0"], strategy);
        let own = "example.com/own";
        let all = [of("a", "1.35.0", OLDEST), of("b", "1.36.0", own)];
        assert_eq!(chosen(&all), Ok(Choice { strategy: own.to_owned(), holder: None }));
        let all = [of("a", "1.36.0", OLDEST), of("b", "1.36.0", own)];
        assert!(chosen(&all).unwrap_err().contains("different strategies"));
        assert!(chosen(&[]).is_err());
        assert_eq!(version("v1.36"), Some([1, 36, 0]));
        assert_eq!((version(""), version("1.2.3.4"), version("1.x")), (None, None, None));
    }
}
