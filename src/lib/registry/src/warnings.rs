//! Warnings for the client of a request, bounded as kube-apiserver bounds them.

use std::mem;

/// Characters of all warnings; if there are more, each is cut to [`CUT`].
const TOTAL: usize = 4096;
const CUT: usize = 256;
/// Warnings that are kept. Real ones reach [`TOTAL`] before.
const MOST: usize = 256;

/// In order, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct RequestWarnings {
    /// Not cut yet, since duplicates are whole; none is much longer than [`TOTAL`].
    texts: Vec<String>,
    /// Characters that are sent of them.
    characters: usize,
    /// Whether each is cut.
    is_cut: bool,
}

impl RequestWarnings {
    /// Empty ones, duplicates and those beyond the bounds are dropped.
    pub(crate) fn add(&mut self, text: String) {
        let text = shortened(text, TOTAL + 1);
        let is_full = self.is_cut && self.characters >= TOTAL || self.texts.len() >= MOST;
        if text.is_empty() || is_full || self.texts.contains(&text) {
            return;
        }
        self.characters += self.length(&text);
        self.texts.push(text);
        if !self.is_cut && self.characters > TOTAL {
            self.is_cut = true;
            self.characters = self.texts.iter().map(|text| self.length(text)).sum();
        }
    }

    /// Takes the warnings to send; none are left.
    pub(crate) fn take(&mut self) -> Vec<String> {
        let Self { texts, is_cut, .. } = mem::take(self);
        let limit = if is_cut { CUT } else { TOTAL };
        texts.into_iter().map(|text| shortened(text, limit)).collect()
    }

    fn length(&self, text: &str) -> usize {
        let length = text.chars().count();
        if self.is_cut { length.min(CUT) } else { length }
    }
}

fn shortened(mut text: String, characters: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(characters) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(given: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut warnings = RequestWarnings::default();
        given.into_iter().for_each(|text| warnings.add(text));
        warnings.take()
    }

    #[test]
    fn short_warnings_are_all_sent_once() {
        let given = || (0..100).map(|number| format!("unknown field \"spec.f{number}\""));
        assert_eq!(
            sent(given().chain(given()).chain([String::new()])),
            given().collect::<Vec<_>>()
        );
    }

    #[test]
    fn all_are_cut_once_they_are_too_long_together() {
        let (whole, short) = ("w".repeat(4000), "s".repeat(96));
        assert_eq!(sent([whole.clone(), short.clone()]), [whole.as_str(), short.as_str()]);
        let cut = sent([whole, "\u{e9}".repeat(97), "late".to_owned()]);
        assert_eq!(cut, ["w".repeat(256), "\u{e9}".repeat(97), "late".to_owned()]);
        let many = sent((100..200).map(|number| number.to_string().repeat(100)));
        assert_eq!(many.len(), 16, "4,096 characters");
        assert!(many.iter().all(|text| text.len() == 256));
    }

    #[test]
    fn a_flood_is_bounded() {
        assert_eq!(sent(["w".repeat(1 << 20)])[0].len(), 256);
        assert_eq!(sent((0..100_000).map(|number: u32| number.to_string())).len(), MOST);
    }
}
