//! Errors of parsing IP addresses and networks, with the messages of Go's `netip`.

use crate::field::quote;

/// The error, and the text from its position on.
type AddressFault<'a> = (&'static str, Option<&'a str>);

/// Why a text is no address; `None`: it is one.
pub fn address_fault(text: &str) -> Option<String> {
    let (why, at) = address(text).err()?;
    let at = at.map_or_else(String::new, |at| format!(" (at {})", quote(at)));
    Some(format!("ParseAddr({}): {why}{at}", quote(text)))
}

/// Why a text is no network such as `10.0.0.0/8`; `None`: it is one.
pub fn prefix_fault(text: &str) -> Option<String> {
    let fault = |why: &str| Some(format!("netip.ParsePrefix({}): {why}", quote(text)));
    let Some((address, bits)) = text.rsplit_once('/') else { return fault("no '/'") };
    if let Some(why) = address_fault(address) {
        return fault(&why);
    }
    if address.contains('%') {
        return fault("IPv6 zones cannot be present in a prefix");
    }
    let is_number = bits.bytes().all(|byte| byte.is_ascii_digit())
        && (bits == "0" || bits.starts_with(|c: char| matches!(c, '1'..='9')));
    let most = if address.contains(':') { 128 } else { 32 };
    match bits.parse::<u32>() {
        Ok(bits) if is_number && bits <= most => None,
        Ok(_) if is_number => fault("prefix length out of range"),
        _ => fault(&format!("bad bits after slash: {}", quote(bits))),
    }
}

fn address(text: &str) -> Result<(), AddressFault<'_>> {
    match text.find(['.', ':', '%']).map(|at| text.as_bytes()[at]) {
        Some(b'.') => dotted(text),
        Some(b':') => fields(text),
        Some(_) => Err(("missing IPv6 address", None)),
        None => Err(("unable to parse IP", None)),
    }
}

fn dotted(text: &str) -> Result<(), AddressFault<'_>> {
    let (mut value, mut digits, mut dots) = (0_u32, 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '0'..='9' => {
                if digits == 1 && value == 0 {
                    return Err(("IPv4 field has octet with leading zero", None));
                }
                value = value * 10 + u32::from(c) - u32::from('0');
                digits += 1;
                if value > 255 {
                    return Err(("IPv4 field has value >255", None));
                }
            }
            '.' if digits == 0 || at + 1 == text.len() => {
                return Err(("IPv4 field must have at least one digit", Some(&text[at..])));
            }
            '.' if dots == 3 => return Err(("IPv4 address too long", None)),
            '.' => {
                (value, digits) = (0, 0);
                dots += 1;
            }
            _ => return Err(("unexpected character", Some(&text[at..]))),
        }
    }
    if dots < 3 { Err(("IPv4 address too short", None)) } else { Ok(()) }
}

fn fields(text: &str) -> Result<(), AddressFault<'_>> {
    let (mut rest, zone) =
        text.split_once('%').map_or((text, None), |(text, zone)| (text, Some(zone)));
    if zone == Some("") {
        return Err(("zone must be a non-empty string", None));
    }
    // Bytes so far, and whether `::` was among them.
    let (mut length, mut gap) = (0, false);
    if let Some(after) = rest.strip_prefix("::") {
        (rest, gap) = (after, true);
        if rest.is_empty() {
            return Ok(());
        }
    }
    while length < 16 {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits > 4 {
            return Err(("each group must have 4 or fewer digits", Some(rest)));
        }
        if digits == 0 {
            return Err(("each colon-separated field must have at least one digit", Some(rest)));
        }
        if rest[digits..].starts_with('.') {
            if !gap && length != 12 {
                let why = "embedded IPv4 address must replace the final 2 fields of the address";
                return Err((why, Some(rest)));
            }
            if length + 4 > 16 {
                let why = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return Err((why, Some(rest)));
            }
            dotted(rest)?;
            (rest, length) = ("", length + 4);
            break;
        }
        length += 2;
        rest = &rest[digits..];
        if rest.is_empty() {
            break;
        }
        let Some(after) = rest.strip_prefix(':') else {
            return Err(("unexpected character, want colon", Some(rest)));
        };
        if after.is_empty() {
            return Err(("colon must be followed by more characters", Some(rest)));
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if gap {
                return Err(("multiple :: in address", Some(rest)));
            }
            (rest, gap) = (after, true);
            if rest.is_empty() {
                break;
            }
        }
    }
    match (rest.is_empty(), length < 16, gap) {
        (false, ..) => Err(("trailing garbage after address", Some(rest))),
        (_, true, false) => Err(("address string too short", None)),
        (_, false, true) => Err(("the :: must expand to at least one field of zeros", None)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_refused_in_go_s_words() {
        let cases = [
            ("x", "unable to parse IP"),
            ("", "unable to parse IP"),
            ("10.0.0.01", "IPv4 field has octet with leading zero"),
            ("10.0.0.256", "IPv4 field has value >255"),
            ("10.0.0", "IPv4 address too short"),
            ("10.0.0.0.1", "IPv4 address too long"),
            ("10..0.1", "IPv4 field must have at least one digit (at \".0.1\")"),
            ("10.x", "unexpected character (at \"x\")"),
            ("::1%", "zone must be a non-empty string"),
            ("1:2", "address string too short"),
            (":::", "each colon-separated field must have at least one digit (at \":\")"),
            ("12345::", "each group must have 4 or fewer digits (at \"12345::\")"),
            ("1:2:3:4:5:6:7:8:9", "trailing garbage after address (at \"9\")"),
            ("1::2::3", "multiple :: in address (at \":3\")"),
            ("1:", "colon must be followed by more characters (at \":\")"),
        ];
        for (text, why) in cases {
            let want = format!("ParseAddr({}): {why}", quote(text));
            assert_eq!(address_fault(text), Some(want), "{text}");
        }
        for sound in ["10.0.0.1", "::", "::1", "1::", "::ffff:1.2.3.4", "1:2:3:4:5:6:7:8"] {
            assert_eq!(address_fault(sound), None, "{sound}");
        }
    }

    #[test]
    fn networks_are_refused_in_go_s_words() {
        let cases = [
            ("x", "no '/'"),
            ("x/8", "ParseAddr(\"x\"): unable to parse IP"),
            ("10.0.0.0/33", "prefix length out of range"),
            ("10.0.0.0/08", "bad bits after slash: \"08\""),
            ("10.0.0.0/", "bad bits after slash: \"\""),
            ("fe80::1%a/8", "IPv6 zones cannot be present in a prefix"),
        ];
        for (text, why) in cases {
            let want = format!("netip.ParsePrefix({}): {why}", quote(text));
            assert_eq!(prefix_fault(text), Some(want), "{text}");
        }
        assert_eq!(prefix_fault("10.0.0.0/8"), None);
    }
}
