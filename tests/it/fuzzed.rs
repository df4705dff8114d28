//! Every reader of foreign bytes, on random bytes and on broken texts of its own kind: no panic, and what
//! `fuzz/functions.rs` says of each. The fuzz targets call the same functions.
//!
//! `PROPTEST_CASES` sets how many of each are tried.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

#[path = "../../fuzz/functions.rs"]
mod functions;

/// Bytes that readers treat apart from others.
const TELLING: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"/",
    b"//",
    b"..",
    b"%2F",
    b"%",
    b"~",
    b"?",
    b".",
    b"\r",
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b" ",
    b"\t",
    b"-",
    b"0",
    b"1e999",
    b"null",
    b"data:",
    b"*",
    b"&",
    b"&a",
    b"*a",
    b"|",
    b">",
    b"- ",
    b"---",
    b"{}",
    b"[[[[[[[[",
    b"\xe2\x80\xa8",
    b"=",
    b";",
    b"#",
    b"!!",
    b"<<",
];

/// One way to break a text.
#[derive(Clone, Debug)]
enum Change {
    Cut(Index, Index),
    Double(Index, Index),
    Insert(Index, Vec<u8>),
    Set(Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let place = any::<Index>;
    let telling = select(TELLING).prop_map(<[u8]>::to_vec);
    prop_oneof![
        (place(), place()).prop_map(|(from, to)| Change::Cut(from, to)),
        (place(), place()).prop_map(|(from, to)| Change::Double(from, to)),
        (place(), telling).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (place(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
    ]
}

fn changed(text: &str, changes: &[Change]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for change in changes {
        let at = |index: &Index, bytes: &[u8]| index.index(bytes.len() + 1);
        match change {
            Change::Cut(from, to) => {
                let (from, to) = (at(from, &bytes), at(to, &bytes));
                bytes.drain(from.min(to)..from.max(to));
            }
            Change::Double(from, to) => {
                let (from, to) = (at(from, &bytes), at(to, &bytes));
                let piece = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.splice(from.max(to)..from.max(to), piece);
            }
            Change::Insert(place, piece) => {
                let place = at(place, &bytes);
                bytes.splice(place..place, piece.iter().copied());
            }
            Change::Set(place, byte) => {
                if !bytes.is_empty() {
                    let place = place.index(bytes.len());
                    bytes[place] = *byte;
                }
            }
        }
    }
    bytes
}

fn pounded(name: &str) {
    let known = functions::ALL.iter().find(|(known, ..)| *known == name);
    let (_, function, text) = known.expect("a function of this name");
    function(b"");
    function(text.as_bytes());
    let bytes = prop_oneof![
        1 => vec(any::<u8>(), 0..200),
        1 => vec(select(TELLING), 0..40).prop_map(|pieces| pieces.concat()),
        4 => vec(change(), 1..6).prop_map(|changes| changed(text, &changes)),
    ];
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let tried = runner.run(&bytes, |bytes| {
        function(&bytes);
        Ok(())
    });
    assert!(tried.is_ok(), "{}", tried.unwrap_err());
}

macro_rules! pounded {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            pounded(stringify!($name));
        })*

        #[test]
        fn every_function_is_tried() {
            let tried = [$(stringify!($name)),*];
            assert_eq!(functions::ALL.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), tried);
        }
    };
}

pounded! {
    json path pointer template policy openapi tools settings message sse answer renaming oddity head body key token schema call_json
}
