//! JSON strings: finding their end eight bytes at a time, escapes, invalid UTF-8.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// First position from `from` on of a quote, backslash or control character; the length if there is
/// none.
pub(super) fn plain_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    // Whole blocks, as words. A fold over the bytes compiles to vector instructions in some builds,
    // and to branches for each byte in others, which take up to ten times as long.
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<32>) {
        let words = block.as_chunks::<8>().0.iter().map(|word| special(u64::from_le_bytes(*word)));
        if words.fold(0, |hits, word| hits | word) != 0 {
            break;
        }
        at += block.len();
    }
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let hits = special(u64::from_le_bytes(*chunk));
        if hits != 0 {
            return at + (hits.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    // The last bytes, together with preceding ones that are known to be plain.
    if at < bytes.len()
        && let Some(chunk) = bytes[from..].last_chunk::<8>()
    {
        let begin = bytes.len() - 8;
        let hits = special(u64::from_le_bytes(*chunk)) >> (8 * (at - begin));
        return if hits == 0 { bytes.len() } else { at + (hits.trailing_zeros() / 8) as usize };
    }
    while at < bytes.len() && !matches!(bytes[at], b'"' | b'\\' | 0..=0x1f) {
        at += 1;
    }
    at
}

/// Sets a bit in each byte that is a quote, a backslash or below 0x20; only the lowest bit is exact
/// (borrows propagate upwards).
fn special(word: u64) -> u64 {
    let zeros = |x: u64| x.wrapping_sub(ONES) & !x;
    let quotes = zeros(word ^ (ONES * b'"' as u64));
    let slashes = zeros(word ^ (ONES * b'\\' as u64));
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    (quotes | slashes | controls) & HIGHS
}

/// Replaces each invalid byte by U+FFFD, like Go. The standard library replaces each truncated
/// sequence.
pub(super) fn replace_invalid(body: &[u8]) -> String {
    let mut out = String::with_capacity(body.len() + 16);
    for chunk in body.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    out
}

/// Appends a JSON string with its quotes.
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    out.push(b'"');
    let mut from = 0;
    loop {
        let end = plain_end(bytes, from);
        out.extend_from_slice(&bytes[from..end]);
        let Some(&byte) = bytes.get(end) else { break };
        write_escape(out, byte);
        from = end + 1;
    }
    out.push(b'"');
}

fn write_escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            out.extend_from_slice(b"\\u00");
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 15)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// Decodes the escape at `at` (a backslash); returns the character and the position after it.
pub(super) fn read_escape(bytes: &[u8], at: usize) -> Result<(char, usize), &'static str> {
    let simple = match bytes.get(at + 1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return read_unicode(bytes, at),
        Some(_) => return Err("an unknown escape in a string"),
        None => return Err("the body ends inside a string"),
    };
    Ok((simple, at + 2))
}

/// `\uXXXX`, or two for a surrogate pair; half a pair becomes U+FFFD.
fn read_unicode(bytes: &[u8], at: usize) -> Result<(char, usize), &'static str> {
    let first = hex4(bytes, at + 2).ok_or("an unfinished \\u escape in a string")?;
    let after = at + 6;
    if let Some(char) = char::from_u32(first) {
        return Ok((char, after));
    }
    if first < 0xdc00 && bytes.get(after..after + 2) == Some(b"\\u") {
        let second = hex4(bytes, after + 2).filter(|second| (0xdc00..0xe000).contains(second));
        if let Some(char) = second.and_then(|second| {
            char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
        }) {
            return Ok((char, after + 6));
        }
    }
    Ok((char::REPLACEMENT_CHARACTER, after))
}

fn hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_plain_text_is_exact() {
        for length in 0..=80 {
            // Between the special bytes, and with the high bit, which the words treat as their own.
            for filling in [b' ', b'a', 0x7f, 0xff] {
                let mut bytes = vec![filling; length];
                assert_eq!(plain_end(&bytes, 0), length);
                for at in 0..length {
                    for byte in 0..=u8::MAX {
                        bytes[at] = byte;
                        let is_plain = byte >= 0x20 && byte != b'"' && byte != b'\\';
                        let want = if is_plain { length } else { at };
                        assert_eq!(plain_end(&bytes, 0), want, "{bytes:?}");
                        assert_eq!(plain_end(&bytes, at), want, "{bytes:?} from {at}");
                        assert_eq!(plain_end(&bytes, at + 1), length, "{bytes:?} after {at}");
                    }
                    bytes[at] = filling;
                }
            }
        }
    }
}
