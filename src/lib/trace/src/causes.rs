//! Errors with their causes as one text, for logs and operators.

use std::error::Error;
use std::fmt::{self, Write};

/// `outermost: cause: cause`, without the causes that the text quotes.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    append_causes(&mut text, sources(error), usize::MAX);
    text
}

/// Causes of an error, the outermost first.
pub fn sources(error: &dyn Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (**cause).source())
}

/// Appends causes to the text of an error until it has `max` bytes. One that the text has already
/// is left out: errors of some libraries quote theirs.
pub fn append_causes<'a>(
    text: &mut String,
    causes: impl Iterator<Item = &'a (dyn Error + 'static)>,
    max: usize,
) {
    for cause in causes {
        if text.len() >= max {
            return;
        }
        let mut quoted = String::new();
        let _ = write!(Bounded::new(&mut quoted, max), "{cause}");
        if !text.contains(&quoted) {
            let separator = if text.is_empty() { "" } else { ": " };
            let _ = write!(Bounded::new(text, max), "{separator}{quoted}");
        }
    }
}

/// A writer that truncates without an error.
pub(crate) struct Bounded<'a> {
    text: &'a mut String,
    max: usize,
}

impl<'a> Bounded<'a> {
    /// Appends to a text while it has less than `max` bytes.
    pub(crate) fn new(text: &'a mut String, max: usize) -> Self {
        Self { text, max }
    }
}

impl fmt::Write for Bounded<'_> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.max.saturating_sub(self.text.len());
        self.text.push_str(cut_to(more, room));
        Ok(())
    }
}

/// Start of a text with at most that many bytes.
pub(crate) fn cut_to(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct ChainedError {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    /// An error with these texts, the outermost first.
    fn chain(texts: &[&'static str]) -> ChainedError {
        let (text, inner) = texts.split_first().expect("a text");
        let source = (!inner.is_empty()).then(|| Box::new(chain(inner)));
        ChainedError { text, source }
    }

    #[test]
    fn a_cause_that_is_quoted_already_is_left_out() {
        let error = chain(&["cannot open: no disk", "no disk", "", "power failure"]);
        assert_eq!(sources(&error).count(), 3);
        assert_eq!(with_causes(&error), "cannot open: no disk: power failure");
        assert_eq!(with_causes(&chain(&["no disk"])), "no disk");
    }

    #[test]
    fn an_error_without_a_text_begins_with_its_cause() {
        assert_eq!(with_causes(&chain(&["", "no disk", "worn out"])), "no disk: worn out");
    }

    #[test]
    fn appended_causes_end_at_the_limit_between_characters() {
        let error = chain(&["", "d\u{e9}t\u{e9}"]);
        let mut text = "failed".to_owned();
        append_causes(&mut text, sources(&error), 10);
        assert_eq!(text, "failed: d");
        let mut text = "failed".to_owned();
        append_causes(&mut text, sources(&error), 6);
        assert_eq!(text, "failed");
    }
}
