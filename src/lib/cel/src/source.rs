//! Errors with source positions, formatted as by cel-go.

/// Max collected errors.
const MAX_ERRORS: usize = 30;
/// Longer source lines are omitted.
const MAX_LINE: usize = 1024;

/// An error at a byte offset of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceError {
    pub(crate) at: usize,
    pub(crate) why: String,
}

impl SourceError {
    /// A parser error.
    pub(crate) fn syntax(at: usize, why: impl std::fmt::Display) -> Self {
        Self { at, why: format!("Syntax error: {why}") }
    }
}

/// Collected errors.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceErrors(Vec<SourceError>);

impl SourceErrors {
    pub(crate) fn push(&mut self, fault: SourceError) {
        if !self.is_full() {
            self.0.push(fault);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports the errors from an index on once more: of an expression that a macro copies.
    pub(crate) fn repeat_from(&mut self, start: usize) {
        for fault in self.0.get(start..).unwrap_or_default().to_vec() {
            self.push(fault);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= MAX_ERRORS
    }

    /// Sorted by position, each with its source line and a marker.
    pub(crate) fn written(mut self, source: &str) -> String {
        self.0.sort_by_key(|fault| fault.at);
        let each: Vec<String> = self.0.iter().map(|fault| written(source, fault)).collect();
        each.join("\n")
    }
}

fn written(source: &str, fault: &SourceError) -> String {
    if source.is_empty() {
        // There is no line to show.
        return format!("ERROR: <input>:1:0: {}", fault.why);
    }
    let before = source.get(..fault.at).unwrap_or(source);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = source[start..].split('\n').next().unwrap_or_default();
    let number = before.matches('\n').count() + 1;
    let column = source[start..fault.at.min(source.len())].chars().count();
    let head = format!("ERROR: <input>:{number}:{}: {}", column + 1, fault.why);
    if line.len() > MAX_LINE {
        return head;
    }
    // A character of several bytes gets a full-width marker.
    let sign = |letter: Option<char>, narrow: char, wide: char| {
        if letter.is_some_and(|letter| letter.len_utf8() > 1) { wide } else { narrow }
    };
    let mut letters = line.chars();
    let mut mark = String::new();
    for _ in 0..column {
        if let Some(letter) = letters.next() {
            mark.push(sign(Some(letter), '.', '\u{ff0e}'));
        }
    }
    mark.push(sign(letters.next(), '^', '\u{ff3e}'));
    format!("{head}\n | {}\n | {mark}", line.replace('\t', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_source_has_no_line() {
        let mut faults = SourceErrors::default();
        faults.push(SourceError::syntax(0, "one"));
        assert_eq!(faults.written(""), "ERROR: <input>:1:0: Syntax error: one");
    }

    #[test]
    fn errors_point_at_their_source() {
        let mut faults = SourceErrors::default();
        faults.push(SourceError::syntax(6, "two"));
        faults.push(SourceError { at: 0, why: "one".to_owned() });
        assert_eq!(
            faults.written("'\u{e9}'\n\tb"),
            "ERROR: <input>:1:1: one\n | '\u{e9}'\n | ^\nERROR: <input>:2:2: Syntax error: two\n |  b\n | .^"
        );
    }
}
