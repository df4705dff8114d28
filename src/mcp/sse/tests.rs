use proptest::prelude::*;

use super::*;

fn split(stream: &[u8], chunk: usize, limit: usize) -> (Vec<Frame>, bool) {
    let mut splitter = Splitter::with_limit(limit);
    let mut frames = Vec::new();
    for chunk in stream.chunks(chunk.max(1)) {
        splitter.push(Bytes::copy_from_slice(chunk));
        while let Some(frame) = splitter.next_frame() {
            frames.push(frame);
        }
    }
    frames.extend(splitter.finish());
    let has_unseen = frames.iter().any(Frame::is_unseen);
    (frames, has_unseen)
}

fn frames(stream: &[u8], chunk: usize) -> Vec<Frame> {
    split(stream, chunk, MAX_FRAME).0
}

fn joined(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.raw().to_vec()).collect()
}

/// The data of the events that a client dispatches.
fn dispatched(frames: &[Frame]) -> Vec<String> {
    frames
        .iter()
        .filter(|frame| !frame.is_cut())
        .filter_map(Frame::data)
        .map(|data| String::from_utf8(data.to_vec()).unwrap())
        .collect()
}

#[derive(Debug, Default, PartialEq)]
struct Event {
    event: String,
    data: String,
    id: Option<String>,
    retry: Option<String>,
}

/// The algorithm of WHATWG HTML 9.2.6, on a whole text.
fn reference(stream: &[u8]) -> Vec<Event> {
    let text = String::from_utf8_lossy(stream).into_owned();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    lines.pop();
    let mut events = Vec::new();
    let mut event = Event::default();
    for line in lines {
        if line.is_empty() {
            let done = std::mem::take(&mut event);
            if let Some(data) = done.data.strip_suffix('\n')
                && !data.is_empty()
            {
                events.push(Event { data: data.to_owned(), ..done });
            }
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => event.event = value.to_owned(),
            "data" => {
                event.data.push_str(value);
                event.data.push('\n');
            }
            "id" if !value.contains('\0') => event.id = Some(value.to_owned()),
            "retry" => event.retry = Some(value.to_owned()),
            _ => {}
        }
    }
    events
}

fn id() -> Id {
    Id::parse("7").unwrap()
}

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}}"#;

#[test]
fn d7_a_character_cut_by_a_chunk_border_stays_whole() {
    let stream = "event: message\ndata: {\"t\":\"你好 🙂\"}\n\ndata: é\n\n".as_bytes();
    for chunk in 1..=stream.len() {
        let frames = frames(stream, chunk);

        assert_eq!(joined(&frames), stream);
        assert_eq!(dispatched(&frames), ["{\"t\":\"你好 🙂\"}", "é"], "{chunk}");
    }
}

#[test]
fn d8_every_framing_is_parsed_the_same_and_rewritten_as_valid_events() {
    let lines = r#"{"jsonrpc":"2.0",~"id":7,~"result":{"content":[]}}"#;
    let spread: String = lines.split('~').map(|line| format!("data: {line}\n")).collect();
    let cases = [
        (
            format!("event: message\nid: 3\nretry: 5\ndata: {ANSWER}\n\n"),
            "event: message\nid: 3\nretry: 5\ndata: NEW\n\n",
        ),
        (
            format!("event: message\r\nid: 3\r\ndata: {ANSWER}\r\n\r\n"),
            "event: message\r\nid: 3\r\ndata: NEW\r\n\r\n",
        ),
        (
            format!("event: message\rid: 3\rdata: {ANSWER}\r\r"),
            "event: message\nid: 3\ndata: NEW\n\n",
        ),
        (format!("data:{ANSWER}\n\n"), "data: NEW\n\n"),
        (format!("id: 3\n{spread}\n"), "id: 3\ndata: NEW\n\n"),
        (
            format!("event: message\n: mid\ndata: {ANSWER}\n: end\nid:3\n\n"),
            "event: message\n: mid\ndata: NEW\n: end\nid:3\n\n",
        ),
        (format!("\u{feff}data: {ANSWER}\n\n"), "data: NEW\n\n"),
        (format!("\u{feff}\ndata: {ANSWER}\n\n"), "data: NEW\n\n"),
        (format!("x-vendor: 1\ndata\ndata: {ANSWER}\n\n"), "x-vendor: 1\ndata: NEW\n\n"),
    ];
    for (stream, expected) in cases {
        for chunk in 1..=stream.len() {
            let frames = frames(stream.as_bytes(), chunk);
            let answers: Vec<_> =
                frames.iter().filter(|frame| frame.answer_to(&id()).is_some()).collect();

            assert_eq!(joined(&frames), stream.as_bytes());
            assert_eq!(answers.len(), 1, "{stream:?} {chunk}");
            let out = String::from_utf8(answers[0].with_data("NEW").to_vec()).unwrap();
            assert_eq!(out, expected, "{stream:?} {chunk}");
        }
    }
}

#[test]
fn mcp_19_only_the_answer_is_recognised() {
    let stream = ": open\n\nid: p1\ndata: \n\n\
         data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n\
         data: not json\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":\"7\",\"result\":{}}\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"roots/list\"}\n\n\
         id: p2\ndata: {\"jsonrpc\":\"2.0\",\"i\\u0064\":7,\"result\":{}}\n\n";
    let frames = frames(stream.as_bytes(), 5);
    let answers: Vec<_> = frames.iter().filter(|f| f.answer_to(&id()).is_some()).collect();

    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].event_id(), Some(&b"p2"[..]));
    let priming = frames.iter().find(|frame| frame.event_id() == Some(b"p1")).unwrap();
    assert_eq!(priming.data(), None);
    assert_eq!(priming.with_data("{}"), "id: p1\ndata: {}\n\n");
}

#[test]
fn a_frame_goes_out_with_its_blank_line_and_nothing_waits_behind_it() {
    let mut splitter = Splitter::default();
    let mut next = |chunk: &'static [u8]| {
        splitter.push(Bytes::from_static(chunk));
        std::iter::from_fn(|| splitter.next_frame().map(Frame::into_raw)).collect::<Vec<_>>()
    };

    assert!(next(b"data: 1\n").is_empty());
    assert_eq!(next(b"\ndata"), [&b"data: 1\n\n"[..]]);
    assert!(next(b": 2\r\n").is_empty());
    assert_eq!(next(b"\r"), [&b"data: 2\r\n\r"[..]]);
    assert_eq!(next(b"\n"), [&b"\n"[..]]);
    assert_eq!(next(b": ping\n"), [&b": ping\n"[..]]);
    assert_eq!(next(b"data: 3\r\r"), [&b"data: 3\r\r"[..]]);
    assert!(next(b"data: 4\n: not alone\n").is_empty());
}

#[test]
fn h_50_a_cut_event_is_no_event_until_we_finish_it() {
    for (tail, expected) in [
        ("id: 1\ndata: ", "id: 1\ndata: NEW\n\n"),
        ("event: x\r\ndata: ", "event: x\r\ndata: NEW\r\n\r\n"),
    ] {
        for end in ["", "\n"] {
            let stream = format!("data: a\n\n{tail}{ANSWER}{end}");
            let frames = frames(stream.as_bytes(), 4);
            let cut = frames.last().unwrap();

            assert!(cut.is_cut());
            assert_eq!(joined(&frames), stream.as_bytes());
            assert_eq!(dispatched(&frames), ["a"]);
            assert!(cut.answer_to(&id()).is_some());
            assert_eq!(cut.with_data("NEW"), expected);
        }
    }
    assert!(Splitter::default().finish().is_none());
}

#[test]
fn a_frame_over_the_limit_passes_unseen_and_the_next_one_is_seen() {
    for end in ["\n", "\r\n", "\r"] {
        let long = format!("id: 9~data: {}~data:~data:{}~~", "x".repeat(60), "y".repeat(60));
        let stream = format!("data: 12345~~{long}data: {ANSWER}~~: c~{long}~data: 6~~{long}");
        let stream = stream.replace('~', end);
        for chunk in 1..=stream.len() {
            let (frames, has_unseen) = split(stream.as_bytes(), chunk, 64);

            assert!(has_unseen, "{chunk}");
            assert_eq!(joined(&frames), stream.as_bytes());
            assert_eq!(dispatched(&frames), ["12345", ANSWER, "6"], "{chunk} {end:?}");
            assert!(frames.iter().all(|frame| frame.event_id().is_none()));
        }
    }
    let exact = "data: 12345\n\n".repeat(3);
    assert!(!split(exact.as_bytes(), 3, 13).1);
    assert!(split(exact.as_bytes(), 3, 12).1);
}

#[test]
fn our_own_data_stays_on_one_line() {
    let frame = &frames(b"data: x\n\n", 99)[0];

    assert_eq!(frame.with_data("{\r\n\"a\":\n1}"), "data: {  \"a\": 1}\n\n");
    assert_eq!(event("{\n}"), "event: message\ndata: { }\n\n");
    let comment = &frames(b": c\n", 99)[0];
    assert_eq!(comment.with_data("{}"), ": c\n");
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => Just(String::new()),
        3 => "data: ?[a-z\u{e9}\u{1f642}: ]{0,6}",
        1 => Just("data".to_owned()),
        1 => ": ?[a-z]{0,4}",
        1 => "id: ?[0-9\u{0}]{0,3}",
        1 => Just("event: message".to_owned()),
        1 => "retry: [0-9a]{1,3}",
        1 => "[a-z\u{feff}]{1,5}(: x)?",
    ];
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let mark = prop_oneof![4 => Just(""), 1 => Just("\u{feff}")];
    (mark, prop::collection::vec((line, end), 0..24), "(data: [a-z]{0,3})?").prop_map(
        |(mark, lines, tail)| {
            let lines = lines.iter().flat_map(|(line, end)| [line.as_str(), end]);
            let text: String = std::iter::once(mark).chain(lines).chain([tail.as_str()]).collect();
            text.into_bytes()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn h_50_any_chunking_gives_the_bytes_back_and_the_events_of_the_reference(
        stream in stream(),
        chunk in 1_usize..20,
    ) {
        let frames = frames(&stream, chunk);

        prop_assert_eq!(joined(&frames), stream.clone());
        let expected: Vec<String> =
            reference(&stream).into_iter().map(|event| event.data).collect();
        prop_assert_eq!(dispatched(&frames), expected);
    }

    #[test]
    fn h_50_arbitrary_bytes_come_back(
        stream in prop::collection::vec(
            prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), any::<u8>()],
            0..60,
        ),
        chunk in 1_usize..9,
        limit in 1_usize..40,
    ) {
        let (frames, _) = split(&stream, chunk, limit);

        prop_assert_eq!(joined(&frames), stream);
        for frame in frames {
            frame.with_data("{}");
        }
    }

    #[test]
    fn mcp_19_new_data_changes_the_data_and_nothing_else(
        stream in stream(),
        chunk in 1_usize..20,
    ) {
        for frame in frames(&stream, chunk).iter().filter(|frame| frame.data().is_some()) {
            let mut whole = frame.raw().to_vec();
            if frame.is_cut() {
                whole.extend_from_slice(b"\n\n");
            }
            let before = reference(&whole);
            let out = frame.with_data("{\"a\":1}");
            let after = reference(&out);

            prop_assert_eq!(after.len(), 1);
            prop_assert_eq!(&after[0].data, "{\"a\":1}");
            let kept = before.into_iter().next().unwrap();
            prop_assert_eq!(&after[0], &Event { data: after[0].data.clone(), ..kept });
            let text = String::from_utf8(out.to_vec()).unwrap();
            prop_assert!(!text.replace("\r\n", "").contains('\r'));
            let comments = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes).replace('\r', "\n");
                let lines = text.split('\n').filter(|line| line.starts_with(':'));
                lines.map(str::to_owned).collect::<Vec<_>>()
            };
            prop_assert_eq!(comments(&out), comments(frame.raw()));
        }
    }
}
