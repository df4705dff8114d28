//! The pairs of a query or a form: one splitter for all that look into them.
//!
//! Everybody parts pairs at `&`. Some readers part them at `;` too, and so find names, and values, that
//! the others do not: whoever must not be misled by that asks [`further`] as well.

/// The pairs as every reader parts them, empty ones left out.
pub fn parted(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty())
}

/// The pairs that only readers find which part at `;` too: every piece of a pair that has one.
pub fn further(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    parted(text)
        .filter(|pair| pair.contains(&b';'))
        .flat_map(|pair| pair.split(|byte| *byte == b';'))
        .filter(|piece| !piece.is_empty())
}

/// A pair's name and value, still encoded; the value is empty where there is no `=`.
pub fn halves(pair: &[u8]) -> (&[u8], &[u8]) {
    let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
    let (name, value) = pair.split_at_checked(at).unwrap_or((pair, &[]));
    (name, value.get(1..).unwrap_or_default())
}

/// A name or a value as it is meant; `None` if it is not UTF-8.
pub fn decoded(part: &[u8]) -> Option<String> {
    let spaced: Vec<u8> =
        part.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    String::from_utf8(percent_encoding::percent_decode(&spaced).collect()).ok()
}

/// A pair's name as it is meant; what is not UTF-8 in it is no letter of any name.
pub fn name(pair: &[u8]) -> String {
    let (name, _) = halves(pair);
    decoded(name).unwrap_or_else(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<'a>(pairs: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
        pairs.map(name).collect()
    }

    #[test]
    fn pairs_part_at_ampersands_and_for_some_at_semicolons_too() {
        let cases: [(&str, &[&str], &[&str]); 7] = [
            ("", &[], &[]),
            ("a=1&b=2&&c", &["a", "b", "c"], &[]),
            ("a=1;b=2", &["a"], &["a", "b"]),
            ("a;b=1&c=3", &["a;b", "c"], &["a", "b"]),
            ("a=1%3Bb=2", &["a"], &[]),
            ("%61+x=1;;%62", &["a x"], &["a x", "b"]),
            ("%ff=1", &["%ff"], &[]),
        ];
        for (text, parts, more) in cases {
            assert_eq!(names(parted(text.as_bytes())), parts, "{text}");
            assert_eq!(names(further(text.as_bytes())), more, "{text}");
        }
        assert_eq!(halves(b"a=b=c"), (&b"a"[..], &b"b=c"[..]));
        assert_eq!(halves(b"a"), (&b"a"[..], &b""[..]));
        assert_eq!(decoded(b"%C3%A9+"), Some("\u{e9} ".to_owned()));
        assert_eq!(decoded(b"%ff"), None);
    }
}
