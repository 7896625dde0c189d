//! Counting the elements of large arrays before they are read, so that each has the room that it
//! needs and no more, not even for a moment: an array that grows by doubling takes three times its
//! size while it moves.

/// Shorter bodies are not worth it.
const MIN_BODY: usize = 16 << 10;

/// Shorter arrays are not worth it.
const MIN_LENGTH: usize = 64;

/// Where large arrays begin, in order, and how many elements they have.
pub(super) struct Census {
    arrays: std::iter::Peekable<std::vec::IntoIter<(usize, usize)>>,
}

impl Census {
    /// The length of the array that begins there, if it is large. Positions come in order.
    pub(super) fn of(&mut self, at: usize) -> Option<usize> {
        self.arrays.next_if(|(begin, _)| *begin == at).map(|(_, length)| length)
    }
}

/// Counts the commas in each array of a well-formed body. Of another body the counts are wrong, but
/// together no more than its commas.
pub(super) fn take(body: &[u8]) -> Census {
    let mut arrays = if body.len() < MIN_BODY { Vec::new() } else { count(body) };
    arrays.sort_unstable();
    Census { arrays: arrays.into_iter().peekable() }
}

fn count(body: &[u8]) -> Vec<(usize, usize)> {
    let mut arrays = Vec::new();
    // Where each open array or object begins, and its commas.
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

/// The closing quote of a string.
fn string_end(body: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr2(b'"', b'\\', body.get(at..)?)?;
        if body[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}
