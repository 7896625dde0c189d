//! Semantic versions (semver.org, 2.0.0).

use crate::field::quote;
use crate::go;
use std::cmp::Ordering;

/// A version; build metadata is ignored. Default: 0.0.0.
#[derive(Clone, Debug, Default)]
pub struct Semver {
    /// Major, minor, patch.
    pub numbers: [u64; 3],
    pre: Vec<Identifier>,
}

impl PartialEq for Semver {
    fn eq(&self, other: &Self) -> bool {
        self.order(other).is_eq()
    }
}

impl PartialOrd for Semver {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.order(other))
    }
}

/// A pre-release identifier: numbers order before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

impl Semver {
    /// `lenient`: a leading `v`, missing numbers and leading zeros are accepted.
    ///
    /// # Errors
    /// The message of the Go library.
    pub fn parse(text: &str, lenient: bool) -> Result<Self, String> {
        if lenient {
            return Self::parse_exact(&repaired(text)?);
        }
        Self::parse_exact(text)
    }

    fn parse_exact(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts[..] else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (major, minor) = (number(major, "major")?, number(minor, "minor")?);
        let (rest, build) =
            rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) =
            rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let numbers = [major, minor, number(patch, "patch")?];
        let pre = pre.into_iter().flat_map(|pre| pre.split('.'));
        let pre = pre.map(identifier).collect::<Result<_, _>>()?;
        for word in build.into_iter().flat_map(|build| build.split('.')) {
            if word.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !is_word(word) {
                let shown = quote(word);
                return Err(format!("Invalid character(s) found in build meta data {shown}"));
            }
        }
        Ok(Self { numbers, pre })
    }

    /// A pre-release version orders before its release.
    pub fn order(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                _ => self.pre.cmp(&other.pre),
            }
        })
    }
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn has_leading_zeros(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0')
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if !is_digits(text) {
        let invalid = || format!("Invalid character(s) found in prerelease {}", quote(text));
        return is_word(text).then(|| Identifier::Word(text.to_owned())).ok_or_else(invalid);
    }
    if has_leading_zeros(text) {
        let shown = quote(text);
        return Err(format!("Numeric PreRelease version must not contain leading zeroes {shown}"));
    }
    text.parse().map(Identifier::Number).map_err(|_| go::integer_fault(text, false))
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    if !is_digits(text) {
        return Err(format!("Invalid character(s) found in {what} number {}", quote(text)));
    }
    if has_leading_zeros(text) {
        let (first, rest) = what.split_at(1);
        let (first, shown) = (first.to_ascii_uppercase(), quote(text));
        return Err(format!("{first}{rest} number must not contain leading zeroes {shown}"));
    }
    text.parse().map_err(|_| go::integer_fault(text, false))
}

fn repaired(text: &str) -> Result<String, String> {
    let mut parts: Vec<String> =
        text.strip_prefix('v').unwrap_or(text).splitn(3, '.').map(str::to_owned).collect();
    for part in parts.iter_mut().filter(|part| part.len() > 1) {
        let trimmed = part.trim_start_matches('0');
        let starts = trimmed.starts_with(|c: char| c.is_ascii_digit());
        *part = if starts { trimmed.to_owned() } else { format!("0{trimmed}") };
    }
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        for text in [
            "",
            "1",
            "1.2",
            "01.2.3",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3+",
            "v1.2.3",
            "1.2.3.4",
            "1.2.-3",
            "1.2.3-a_b",
        ] {
            assert_eq!(Semver::parse(text, false).ok(), None, "{text}");
        }
        let order = [
            "0.0.0",
            "1.2.3-alpha",
            "1.2.3-alpha.1",
            "1.2.3-alpha.beta",
            "1.2.3-beta.2",
            "1.2.3-beta.11",
            "1.2.3",
            "1.10.0",
        ];
        assert!(
            order
                .map(|text| Semver::parse(text, false).expect("valid"))
                .is_sorted_by(|one, other| one < other)
        );
        assert_eq!(Semver::parse("1.2.3+a", false), Semver::parse("1.2.3+b.1", false));
    }
}
