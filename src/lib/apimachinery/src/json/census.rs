//! Counts the elements of large arrays before they are read, so that each is allocated at its exact
//! size: an array that grows by doubling temporarily takes three times its size.

/// Shorter bodies are not counted.
const MIN_BODY: usize = 16 << 10;

/// Shorter arrays are not counted.
const MIN_LENGTH: usize = 64;

/// Positions and lengths of large arrays, in order.
pub(super) struct Census {
    arrays: std::iter::Peekable<std::vec::IntoIter<(usize, usize)>>,
}

impl Census {
    /// Length of the array at this position, if it is large. Call with ascending positions.
    pub(super) fn of(&mut self, at: usize) -> Option<usize> {
        self.arrays.next_if(|(begin, _)| *begin == at).map(|(_, length)| length)
    }
}

/// Counts the commas of each array. In a malformed body the counts are wrong, but at most the
/// number of its commas.
pub(super) fn take(body: &[u8]) -> Census {
    let mut arrays = if body.len() < MIN_BODY { Vec::new() } else { count(body) };
    arrays.sort_unstable();
    Census { arrays: arrays.into_iter().peekable() }
}

fn count(body: &[u8]) -> Vec<(usize, usize)> {
    let mut arrays = Vec::new();
    // Start and commas of each open array or object.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while let Some(byte) = body.get(at) {
        match byte {
            b'"' => match string_end(body, at + 1) {
                Some(end) => at = end,
                None => break,
            },
            b'[' | b'{' if open.len() >= super::MAX_DEPTH => break,
            b'[' | b'{' => open.push((at, 0)),
            b',' => open.last_mut().into_iter().for_each(|(_, commas)| *commas += 1),
            b']' => arrays.extend(
                open.pop()
                    .filter(|(_, commas)| *commas >= MIN_LENGTH)
                    .map(|(begin, commas)| (begin, commas + 1)),
            ),
            b'}' => drop(open.pop()),
            _ => {}
        }
        at += 1;
    }
    arrays
}

/// Position of a string's closing quote.
fn string_end(body: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr2(b'"', b'\\', body.get(at..)?)?;
        if body[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}
