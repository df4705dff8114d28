//! The chain against everything that can be done to its rows.

use proptest::prelude::*;

use super::line::{Holder, Line, Linked};
use super::row::{Attempt, Row, Told};
use super::verify::{CHAIN, Verifier, beginning, redaction, retention};
use super::*;
use crate::ledger::entry::State;

const STORE: &[u8] = b"one ledger";

fn keys() -> Keys {
    Keys::parse(&"k".repeat(32)).unwrap()
}

/// Rows of a chain: its beginning, and a begin and a finish of entries 1, 2, ...
fn lines(calls: &[(String, Option<String>)]) -> (Vec<Line>, Head) {
    let keys = keys();
    let mut chain = Chain::new(keys.current(), None, [7; 32]);
    let detail = beginning(1, chain.key(), STORE);
    let first = Line { noted: Some(CHAIN.to_owned()), detail: Some(detail), ..Line::default() };
    let mut lines = vec![first];
    for (number, (target, undo)) in (1_u8..).zip(calls) {
        let entry = vec![number; 16];
        let begun = i64::try_from(lines.len()).unwrap();
        let holder = Box::new(Holder {
            id: entry.clone(),
            version: begun + 1,
            finish: begun + 1,
            state: State::Accepted.code(),
            attempt: 1,
            principal: "ann".to_owned(),
            target: target.clone(),
            ..Holder::default()
        });
        let to = State::Begun.code();
        lines.push(Line {
            seq: begun,
            entry: entry.clone(),
            to,
            attempt: 1,
            at_ms: 10 * begun,
            holder: Some(holder.clone()),
            ..Line::default()
        });
        lines.push(Line {
            seq: begun + 1,
            entry,
            previous: Some(begun),
            from: Some(to),
            to: State::Accepted.code(),
            attempt: 1,
            at_ms: 10 * begun + 1,
            disposition: Some("accepted".to_owned()),
            undo: undo.clone(),
            holder: Some(holder),
            ..Line::default()
        });
    }
    for line in &mut lines {
        link_up(&mut chain, line);
    }
    (lines, chain.head())
}

/// Links a line as a store does.
fn link_up(chain: &mut Chain, line: &mut Line) {
    let plain = line.clone();
    let holder = plain.holder.as_deref();
    let attempt = holder.map(Holder::attempt).unwrap_or_default();
    let told = plain.told();
    let content = if plain.is_begin() {
        Content::Attempt(&attempt)
    } else if plain.disposition.is_some() {
        Content::Told(&told)
    } else {
        Content::None
    };
    let first = holder.filter(|_| plain.is_begin()).map(Holder::first);
    let seal = chain.seal(&plain.row(), first.as_ref(), content);
    // Both forms, by turns.
    let seal = if plain.seq % 2 == 0 { seal.compact() } else { seal };
    let seal = seal.to_bytes();
    line.link = Some(Linked { chain: 1, place: chain.head().length, seal });
}

fn verify(lines: &[Line], heads: &[Head]) -> Result<Verified, Broken> {
    let keys = keys();
    let mut verifier = Verifier::new(&keys, STORE, heads);
    for line in lines {
        verifier.take(line)?;
    }
    verifier.end(None)
}

fn calls() -> impl Strategy<Value = Vec<(String, Option<String>)>> {
    proptest::collection::vec((".{0,12}", proptest::option::of(".{0,12}")), 1..6)
}

proptest! {
    #[test]
    fn what_was_linked_verifies_and_ends_at_its_head(calls in calls()) {
        let (lines, head) = lines(&calls);
        let verified = verify(&lines, &[head]).unwrap();
        prop_assert_eq!(verified.rows, u64::try_from(lines.len()).unwrap());
        prop_assert_eq!(verified.chains[0].head, head);
        prop_assert!(verified.missing.is_empty());
    }

    #[test]
    fn f15_a_row_that_is_dropped_is_found_and_one_at_the_end_is_missed_by_the_head(
        calls in calls(),
        at in any::<prop::sample::Index>(),
    ) {
        let (mut lines, head) = lines(&calls);
        let at = at.index(lines.len());
        let is_last = at + 1 == lines.len();
        lines.remove(at);
        match verify(&lines, &[head]) {
            Ok(verified) => {
                prop_assert!(is_last, "only the end can be cut off unseen");
                prop_assert_eq!(verified.missing, [head]);
            }
            Err(broken) => prop_assert_eq!(broken.row, lines[at].seq, "{}", broken),
        }
    }

    #[test]
    fn f15_two_rows_that_change_places_are_found_at_the_first(
        calls in calls(),
        one in any::<prop::sample::Index>(),
        two in any::<prop::sample::Index>(),
    ) {
        let (mut lines, _) = lines(&calls);
        let (one, two) = (one.index(lines.len()), two.index(lines.len()));
        prop_assume!(one != two);
        lines.swap(one, two);
        let broken = verify(&lines, &[]).unwrap_err();
        prop_assert_eq!(broken.row, lines[one.min(two)].seq);
    }

    #[test]
    fn f15_a_row_in_between_that_was_linked_without_the_key_is_found(
        calls in calls(),
        at in any::<prop::sample::Index>(),
    ) {
        let (mut lines, _) = lines(&calls);
        let at = at.index(lines.len() - 1) + 1;
        let before = Seal::from_bytes(&lines[at - 1].link.as_ref().unwrap().seal).unwrap().link;
        let head = Head { link: before, length: u64::try_from(at).unwrap() };
        let mut forged = Chain::new(MacKey::none(), Some(head), [1; 32]);
        link_up(&mut forged, &mut lines[at]);
        prop_assert_eq!(verify(&lines, &[]).unwrap_err().row, lines[at].seq);
    }

    #[test]
    fn f15_a_flipped_bit_of_a_link_is_found_at_its_row(
        calls in calls(),
        at in any::<prop::sample::Index>(),
        byte in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let (mut lines, _) = lines(&calls);
        let at = at.index(lines.len());
        let seal = &mut lines[at].link.as_mut().unwrap().seal;
        let byte = byte.index(seal.len());
        seal[byte] ^= 1 << bit;
        prop_assert_eq!(verify(&lines, &[]).unwrap_err().row, lines[at].seq);
    }

    #[test]
    fn a_seal_reads_back_as_it_was_written(
        link in any::<[u8; 32]>(),
        commitment in proptest::option::of(any::<[u8; 32]>()),
        inner in any::<[u8; 32]>(),
        salt in any::<[u8; 16]>(),
        which in 0..3,
    ) {
        let rest = commitment.map(|_| match which {
            0 => Rest::Intact(salt),
            1 => Rest::Redacted(inner, salt),
            _ => Rest::Removed(inner),
        });
        let seal = Seal { link, commitment, rest };
        prop_assert_eq!(Seal::from_bytes(&seal.to_bytes()), Some(seal));
        let compact = seal.compact();
        prop_assert_eq!(Seal::from_bytes(&compact.to_bytes()), Some(compact));
    }

    #[test]
    fn no_bytes_of_a_seal_panic(bytes in proptest::collection::vec(any::<u8>(), 0..140)) {
        if let Some(seal) = Seal::from_bytes(&bytes) {
            prop_assert_eq!(seal.to_bytes(), bytes);
        }
    }

    #[test]
    fn no_two_rows_read_alike(one in ".{0,4}", two in ".{0,4}", three in ".{0,4}") {
        // The same characters, cut in other places.
        let whole = format!("{one}{two}{three}");
        let row = |cause: &str, who: &str| {
            let mut bytes = Vec::new();
            Row { cause: Some(cause), who: Some(who), ..Row::default() }.write(&mut bytes);
            bytes
        };
        let cut = one.len();
        prop_assume!(cut > 0 && cut < whole.len());
        prop_assert_ne!(row(&whole[..cut], &whole[cut..]), row(&whole, ""));
    }
}

/// A later row that says what was done to the content of earlier ones.
fn noted(lines: &mut Vec<Line>, noted: &str, detail: String, holder: Option<Box<Holder>>) {
    let last = lines.last().unwrap();
    let linked = last.link.as_ref().unwrap();
    let head = Head { link: Seal::from_bytes(&linked.seal).unwrap().link, length: linked.place };
    let mut chain = Chain::new(keys().current(), Some(head), [9; 32]);
    let mut line = Line {
        seq: last.seq + 1,
        at_ms: last.at_ms + 1,
        noted: Some(noted.to_owned()),
        detail: Some(detail),
        ..Line::default()
    };
    if let Some(holder) = holder {
        line.entry = holder.id.clone();
        line.previous = Some(holder.version);
        line.from = Some(holder.state);
        line.to = holder.state;
        line.attempt = holder.attempt;
        line.holder = Some(holder);
    }
    link_up(&mut chain, &mut line);
    lines.push(line);
}

#[test]
fn removal_is_believed_only_where_a_row_of_the_chain_says_so() {
    let calls = [("POST /secret/1".to_owned(), Some("{\"a\":1}".to_owned()))];
    let (mut lines, _) = lines(&calls);
    let told = lines[2].told();
    let linked = lines[2].link.clone().unwrap();
    let seal = Seal::from_bytes(&linked.seal).unwrap().removed(Content::Told(&told));
    lines[2].undo = None;
    lines[2].link = Some(Linked { seal: seal.to_bytes(), ..linked });
    let broken = verify(&lines, &[]).unwrap_err();
    assert_eq!(broken.row, lines[2].seq);
    assert!(broken.why.contains("no retention says so"), "{broken}");

    // A retention of what is older does not cover it.
    let mut early = lines.clone();
    noted(&mut early, "retention", retention(11, 1), None);
    assert!(verify(&early, &[]).is_err());
    noted(&mut lines, "retention", retention(12, 1), None);
    let verified = verify(&lines, &[]).unwrap();
    assert_eq!(verified.removed, 1);

    // Nor may anything be put in its place.
    lines[2].undo = Some("{\"operation\":\"theirs\"}".to_owned());
    assert!(verify(&lines, &[]).unwrap_err().why.contains("something stands"));
}

#[test]
fn a_redaction_is_believed_only_as_a_row_of_the_chain_says() {
    let calls = [("POST /secret/1".to_owned(), Some("{\"name\":\"ann\"}".to_owned()))];
    let (mut lines, head) = lines(&calls);
    let linked = lines[2].link.clone().unwrap();
    let left = Told { undo_unavailable: Some("redacted"), ..Told::default() };
    let mut chain = Chain::new(keys().current(), Some(head), [3; 32]);
    let (salt, now) = chain.commit(Content::Told(&left));
    let seal = Seal::from_bytes(&linked.seal).unwrap();
    let seal = seal.redacted(Content::Told(&lines[2].told()), salt);
    lines[2].undo = None;
    lines[2].undo_unavailable = Some("redacted".to_owned());
    lines[2].link = Some(Linked { seal: seal.to_bytes(), ..linked });
    let broken = verify(&lines, &[]).unwrap_err();
    assert!(broken.why.contains("no redaction says so"), "{broken}");

    let mut holder = lines[2].holder.clone().unwrap();
    holder.version = 3;
    for line in &mut lines[1..] {
        line.holder = Some(holder.clone());
    }
    let pointers = ["/undo".to_owned()];
    noted(&mut lines, "redaction", redaction(&pointers, &[(2, now)]), Some(holder));
    assert_eq!(verify(&lines, &[]).unwrap().redacted, 1);

    lines[2].undo_unavailable = Some("other".to_owned());
    assert_eq!(verify(&lines, &[]).unwrap_err().row, 2);
}

#[test]
fn what_is_left_of_a_removed_content_does_not_tell_it() {
    // Without the salt, a commitment to one of two known values is one to either.
    let (yes, no) =
        (Attempt { target: "yes", ..<_>::default() }, Attempt { target: "no", ..<_>::default() });
    let mut chain = Chain::new(keys().current(), None, [5; 32]);
    let mut seals = Vec::new();
    for attempt in [&yes, &yes, &no] {
        let content = Content::Attempt(attempt);
        let seal = chain.seal(&Row::default(), None, content).removed(content);
        assert_eq!(seal.to_bytes().len(), 96, "no salt is left");
        seals.push(seal);
    }
    assert_ne!(seals[0].rest, seals[1].rest, "equal contents do not look alike");
    assert_ne!(seals[0].commitment, seals[1].commitment);
}

#[test]
fn a_head_reads_back_and_nothing_else_is_one() {
    let head = Head { link: [0xab; 32], length: 1042 };
    assert_eq!(Head::parse(&head.to_string()), Some(head));
    let hex = "ab".repeat(32);
    for text in
        ["", ":", "ab:1", &hex, &format!("{hex}:0"), &format!("{hex}:-1"), &format!("{hex}:x")]
    {
        assert_eq!(Head::parse(text), None, "{text}");
    }
}

#[test]
fn another_ledgers_chain_is_none_of_this_one() {
    let (lines, _) = lines(&[("a".to_owned(), None)]);
    let keys = keys();
    let mut verifier = Verifier::new(&keys, b"another", &[]);
    verifier.take(&lines[0]).unwrap();
    assert!(verifier.end(None).unwrap_err().why.contains("another ledger's chain"));
}
