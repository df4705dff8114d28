//! JSON Pointer (RFC 6901), read only.
//!
//! `""` is the whole document and `/` the member with the empty name. An array is entered by `0` or
//! a number without leading zero or sign; `-` names nothing. The URI fragment form (`#/a`) is
//! refused. Nothing is normalised. At most [`MAX_POINTER`] bytes.

use std::fmt;

use super::json::{Kind, Value};

/// The longest pointer that is read, in bytes (EffectSpec's limit).
pub const MAX_POINTER: usize = 512;

/// A pointer that was read.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

/// Why a text is no pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// `~` is followed by neither `0` nor `1`; the offset is the `~`'s, in bytes.
    #[error("`~` must be followed by `0` or `1`, at byte {0}")]
    Escape(usize),
    /// The first byte is not `/`.
    #[error("a pointer is empty or starts with `/`")]
    Start,
    /// Longer than [`MAX_POINTER`].
    #[error("the pointer is longer than 512 bytes")]
    TooLong,
}

impl Pointer {
    /// Reads a pointer.
    ///
    /// # Errors
    ///
    /// See [`PointerError`].
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        if text.len() > MAX_POINTER {
            return Err(PointerError::TooLong);
        }
        let mut tokens = Vec::new();
        if !text.is_empty() {
            let rest = text.strip_prefix('/').ok_or(PointerError::Start)?;
            for (offset, _) in text.match_indices('~') {
                let following = text.as_bytes().get(offset.saturating_add(1));
                if !matches!(following, Some(b'0' | b'1')) {
                    return Err(PointerError::Escape(offset));
                }
            }
            // `~1` first: `~01` is the name `~1`.
            tokens.extend(rest.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")));
        }
        Ok(Self { text: text.to_owned(), tokens })
    }

    /// The unescaped reference tokens; none for the whole document.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The pointer as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The value that it names, `null` included; `None` if it names nothing.
    pub fn resolve<'a>(&self, value: Value<'a>) -> Option<Value<'a>> {
        walk(&self.tokens, value)
    }
}

/// Follows tokens from a value on.
pub(super) fn walk<'a>(tokens: &[String], value: Value<'a>) -> Option<Value<'a>> {
    tokens.iter().try_fold(value, |at, token| match at.kind() {
        Kind::Object => at.get(token),
        Kind::Array => at.at(index(token)?),
        Kind::Bool | Kind::Null | Kind::Number | Kind::String => None,
    })
}

fn index(token: &str) -> Option<usize> {
    let is_canonical = token == "0"
        || (!token.starts_with('0')
            && !token.is_empty()
            && token.bytes().all(|byte| byte.is_ascii_digit()));
    if is_canonical { token.parse().ok() } else { None }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pointer({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::json::Doc;
    use super::*;

    fn doc(value: &serde_json::Value) -> Doc {
        Doc::parse(value.to_string()).unwrap()
    }

    #[test]
    fn every_vector_holds() {
        let vectors = Doc::parse(include_str!("../../tests/vectors/pointers.json")).unwrap();
        let document = vectors.root().get("document").unwrap();
        let mut counts = (0, 0, 0);
        for case in vectors.root().get("cases").unwrap().elements() {
            let text = case.get("pointer").unwrap().as_str().unwrap();
            let expected = case.get("expect").and_then(Value::as_str);
            match (Pointer::parse(&text), expected.as_deref()) {
                (Err(error), None) => {
                    assert_eq!(
                        case.get("load_error").unwrap().as_str().as_deref(),
                        Some("InvalidPointer"),
                        "{error}"
                    );
                    counts.0 += 1;
                }
                (Ok(pointer), Some("missing")) => {
                    assert!(pointer.resolve(document).is_none(), "{text}");
                    counts.1 += 1;
                }
                (Ok(pointer), Some("invalid")) => {
                    assert!(!pointer.resolve(document).unwrap().is_scalar(), "{text}");
                    counts.1 += 1;
                }
                (Ok(pointer), None) => {
                    let found = pointer.resolve(document).unwrap();
                    assert_eq!(found.raw(), case.get("value").unwrap().raw(), "{text}");
                    counts.2 += 1;
                }
                (parsed, expected) => panic!("{text}: {parsed:?} against {expected:?}"),
            }
        }
        assert_eq!(counts, (3, 7, 11), "errors, misses, values");
    }

    #[test]
    fn rfc_6901_pointers_name_what_the_rfc_says() {
        let value = json!({"foo": ["bar", "baz"], "": 0, "~1": "t", "0": {"1": "x"}, "-": "dash"});
        let doc = doc(&value);
        let cases = [
            ("", Some(doc.root().raw())),
            ("/", Some("0")),
            ("/~01", Some("\"t\"")),
            ("/0/1", Some("\"x\"")),
            ("/-", Some("\"dash\"")),
            ("/foo/0", Some("\"bar\"")),
            ("/foo/00", None),
            ("/foo/01", None),
            ("/foo/-", None),
            ("/foo/-1", None),
            ("/foo/", None),
            ("/foo/18446744073709551616", None),
            ("/foo/0/0", None),
            ("//", None),
        ];
        for (text, expected) in cases {
            let found = Pointer::parse(text).unwrap().resolve(doc.root());
            assert_eq!(found.map(Value::raw), expected, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_pointers_say_why() {
        let longest = format!("/{}", "a".repeat(MAX_POINTER - 1));
        let cases = [
            ("foo", Err(PointerError::Start)),
            ("#/foo", Err(PointerError::Start)),
            ("/a/b~", Err(PointerError::Escape(4))),
            ("/~2", Err(PointerError::Escape(1))),
            (&format!("{longest}a"), Err(PointerError::TooLong)),
            (&longest, Ok(())),
        ];
        for (text, expected) in cases {
            assert_eq!(Pointer::parse(text).map(|_| ()), expected, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!("s"))];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[a-c0-2~/]{0,2}", inner, 0..4)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn pointers_agree_with_another_reader(
            value in value(),
            tokens in prop::collection::vec("[a-c0-2]|~0|~1|[a-c]~1", 0..4),
        ) {
            let text: String = tokens.iter().map(|token| format!("/{token}")).collect();
            let doc = doc(&value);

            let found = Pointer::parse(&text).unwrap().resolve(doc.root());

            let expected = value.pointer(&text).map(ToString::to_string);
            prop_assert_eq!(found.map(|value| value.raw().to_owned()), expected);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}|[/~01a]{0,20}") {
            if let Ok(pointer) = Pointer::parse(&text) {
                prop_assert_eq!(pointer.as_str(), text.as_str());
                prop_assert_eq!(pointer.tokens().is_empty(), text.is_empty());
            }
        }
    }
}
