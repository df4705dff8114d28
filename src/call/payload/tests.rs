use std::pin::pin;
use std::sync::Mutex;

use http_body::Body as _;
use http_body_util::BodyExt as _;
use proptest::prelude::*;

use super::*;

/// Runs out whenever something waits.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3600);

/// A body of these frames, then whatever `last` says.
fn body_of(frames: &[&'static str], last: Last) -> Body {
    let frames = frames.iter().map(|text| Frame::data(Bytes::from_static(text.as_bytes())));
    Body::source(Box::new(Scripted { frames: frames.collect(), last, log: Log::default() }))
}

#[derive(Clone, Copy, PartialEq)]
enum Last {
    End,
    Fail,
    Stall,
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn add(&self, word: &'static str) {
        self.0.lock().unwrap().push(word);
    }

    fn words(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

struct Scripted {
    frames: std::collections::VecDeque<Frame<Bytes>>,
    last: Last,
    log: Log,
}

impl Source for Scripted {
    fn poll_frame(&mut self, _: &mut Context<'_>) -> PolledFrame {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => match self.last {
                Last::End => Poll::Ready(None),
                Last::Fail => Poll::Ready(Some(Err(BodyError::Stopped))),
                Last::Stall => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }

    fn finish(self: Box<Self>) {
        self.log.add("finished");
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.log.add("dropped");
    }
}

async fn next(body: &mut Body) -> Option<Result<Frame<Bytes>, BodyError>> {
    body.frame().await
}

async fn text(mut body: Body) -> Result<String, BodyError> {
    let mut all = String::new();
    while let Some(frame) = next(&mut body).await {
        if let Ok(data) = frame?.into_data() {
            all.push_str(std::str::from_utf8(&data).unwrap());
        }
    }
    Ok(all)
}

fn ends() -> (impl FnOnce(End) + Send + Sync + 'static, Arc<Mutex<Vec<End>>>) {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ends);
    (move |end| log.lock().unwrap().push(end), ends)
}

type Named = (&'static str, fn() -> Body);

#[tokio::test]
async fn the_end_is_known_once_and_whole_only_if_the_last_frame_was_handed_over() {
    let read_to_the_end: [Named; 5] = [
        ("full", || Body::full("abc")),
        ("empty", Body::empty),
        ("source", || body_of(&["a", "b"], Last::End)),
        ("prefix only", || Body::empty().after(Bytes::from_static(b"x"))),
        ("prefix and rest", || Body::full("y").after(Bytes::from_static(b"x"))),
    ];
    for (name, make) in read_to_the_end {
        let (hook, ends) = ends();
        text(make().on_end(hook)).await.unwrap();
        assert_eq!(*ends.lock().unwrap(), [End::Whole], "{name}");
    }

    let dropped_before: [Named; 3] = [
        ("full", || Body::full("abc")),
        ("source", || body_of(&["a", "b"], Last::End)),
        ("prefix", || Body::empty().after(Bytes::from_static(b"x"))),
    ];
    for (name, make) in dropped_before {
        let (hook, ends) = ends();
        drop(make().on_end(hook));
        assert_eq!(*ends.lock().unwrap(), [End::Cut], "{name}");
    }

    let (hook, ends) = ends();
    drop(Body::empty().on_end(hook));
    assert_eq!(*ends.lock().unwrap(), [End::Whole], "hyper never asks an empty body for a frame");
}

#[tokio::test]
async fn a_body_in_memory_is_whole_when_its_only_frame_is_out() {
    let (hook, ends) = ends();
    let mut body = Body::full("abc").on_end(hook);

    assert!(!body.is_end_stream());
    next(&mut body).await.unwrap().unwrap();

    assert!(body.is_end_stream());
    assert_eq!(*ends.lock().unwrap(), [End::Whole]);
}

#[tokio::test]
async fn a_failed_body_is_cut_and_has_nothing_more() {
    let (hook, ends) = ends();
    let mut body = body_of(&["a"], Last::Fail).on_end(hook);

    next(&mut body).await.unwrap().unwrap();
    let failed = next(&mut body).await.unwrap();

    assert!(matches!(failed, Err(BodyError::Stopped)));
    assert_eq!(*ends.lock().unwrap(), [End::Cut]);
    assert!(next(&mut body).await.is_none());
}

#[tokio::test]
async fn hooks_run_in_the_order_they_were_set_and_held_things_are_let_go_at_the_end() {
    let log = Log::default();
    let (first, second) = (log.clone(), log.clone());
    let held = Arc::new(());
    let mut body = Body::full("abc")
        .on_end(move |_| first.add("first"))
        .hold(Arc::clone(&held))
        .on_end(move |_| second.add("second"));
    assert_eq!(Arc::strong_count(&held), 2);

    next(&mut body).await.unwrap().unwrap();

    assert_eq!(log.words(), ["first", "second"]);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn a_source_is_finished_after_its_last_frame_and_only_dropped_before() {
    let read = Log::default();
    let source = |log: &Log| Scripted {
        frames: [Frame::data(Bytes::from_static(b"a"))].into(),
        last: Last::End,
        log: log.clone(),
    };
    text(Body::source(Box::new(source(&read)))).await.unwrap();
    assert_eq!(read.words(), ["finished", "dropped"]);

    let cut = Log::default();
    let mut body = Body::source(Box::new(source(&cut)));
    next(&mut body).await.unwrap().unwrap();
    drop(body);
    assert_eq!(cut.words(), ["dropped"]);
}

#[tokio::test]
async fn h_13_trailers_end_a_body_and_are_passed_or_dropped() {
    let with_trailers = |rule: &Trailers| {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        let frames = [Frame::data(Bytes::from_static(b"a")), Frame::trailers(trailers)];
        let source = Scripted { frames: frames.into(), last: Last::Stall, log: Log::default() };
        Body::source(Box::new(source)).with_trailers(rule.clone())
    };

    for rule in [Trailers::Pass, Trailers::Drop] {
        let (hook, ends) = ends();
        let mut body = with_trailers(&rule).on_end(hook);
        next(&mut body).await.unwrap().unwrap();
        let last = next(&mut body).await;
        let seen = last.map(|frame| frame.unwrap().is_trailers());
        assert_eq!(seen, matches!(rule, Trailers::Pass).then_some(true));
        assert_eq!(*ends.lock().unwrap(), [End::Whole]);
    }
}

#[tokio::test]
async fn a_size_is_exact_where_it_is_known_and_counts_the_prefix() {
    let exact = |body: &Body| body.size_hint().exact();

    assert_eq!(exact(&Body::empty()), Some(0));
    assert_eq!(exact(&Body::full("abc")), Some(3));
    assert_eq!(exact(&Body::full("abc").after(Bytes::from_static(b"xy"))), Some(5));
    let open = body_of(&["a"], Last::End).after(Bytes::from_static(b"xy"));
    assert_eq!((exact(&open), open.size_hint().lower()), (None, 2));
    assert!(Body::full("").is_end_stream());
}

#[tokio::test]
async fn the_idle_clock_ends_a_wait_and_nothing_that_is_there() {
    let mut body = body_of(&["a", "b"], Last::Stall).with_idle(Duration::ZERO);

    assert!(next(&mut body).await.unwrap().is_ok());
    assert!(next(&mut body).await.unwrap().is_ok());

    assert!(matches!(next(&mut body).await, Some(Err(BodyError::Idle))));
}

#[tokio::test]
async fn a_channel_that_is_finished_is_whole_and_one_that_is_dropped_is_not() {
    let (sender, body) = Body::channel(4);
    sender.reserve().await.unwrap().send(Bytes::from_static(b"a"));
    sender.reserve().await.unwrap().send(Bytes::from_static(b"b"));
    sender.finish();
    assert_eq!(text(body).await.unwrap(), "ab");

    let (sender, body) = Body::channel(1);
    sender.reserve().await.unwrap().send(Bytes::from_static(b"a"));
    drop(sender);
    assert!(matches!(text(body).await, Err(BodyError::Stopped)));

    let (sender, body) = Body::channel(1);
    sender.reserve().await.unwrap().fail(BodyError::Total);
    assert!(matches!(text(body).await, Err(BodyError::Total)));
}

#[tokio::test]
async fn a_channel_is_bounded_and_says_when_nobody_reads() {
    let (sender, mut body) = Body::channel(1);
    sender.reserve().await.unwrap().send(Bytes::from_static(b"a"));
    {
        let mut waiting = pin!(sender.reserve());
        let ready = |cx: &mut Context<'_>| Poll::Ready(waiting.as_mut().poll(cx).is_ready());
        assert!(!std::future::poll_fn(ready).await);
        next(&mut body).await.unwrap().unwrap();
        waiting.await.unwrap().send(Bytes::from_static(b"b"));
    }

    assert!(!sender.is_closed());
    drop(body);

    sender.closed().await;
    assert!(sender.reserve().await.is_none());
}

#[tokio::test]
async fn collect_takes_up_to_the_limit_and_gives_the_budget_back() {
    let budget = Budget::new(100);

    let collected =
        collect(body_of(&["abc", "", "de"], Last::End), 5, &budget, LONG).await.unwrap();

    assert_eq!(collected.bytes(), "abcde");
    assert_eq!(budget.free_bytes(), 95);
    let body = Body::from(collected);
    assert_eq!(budget.free_bytes(), 95, "the bytes are still in memory");
    assert_eq!(text(body).await.unwrap(), "abcde");
    assert_eq!(budget.free_bytes(), 100);
}

#[tokio::test]
async fn a_body_of_one_frame_is_collected_without_a_copy() {
    let bytes = Bytes::from(vec![7_u8; 64]);
    let budget = Budget::new(100);

    let collected = collect(Body::full(bytes.clone()), 64, &budget, LONG).await.unwrap();

    assert_eq!(collected.bytes().as_ptr(), bytes.as_ptr());
}

#[tokio::test]
async fn b6_collect_stops_at_the_limit_whatever_was_declared() {
    let budget = Budget::new(100);

    let counted = collect(body_of(&["abc", "def"], Last::End), 5, &budget, LONG).await;
    assert!(matches!(counted, Err(CollectError::TooLarge { limit_bytes: 5 })));

    let log = Log::default();
    let source = Declared { bytes: 6, log: log.clone() };
    let declared = collect(Body::source(Box::new(source)), 5, &budget, LONG).await;
    assert!(matches!(declared, Err(CollectError::TooLarge { limit_bytes: 5 })));
    assert!(log.words().is_empty(), "a declared length above the limit fails before it is read");
    assert_eq!(budget.free_bytes(), 100);
}

struct Declared {
    bytes: u64,
    log: Log,
}

impl Source for Declared {
    fn poll_frame(&mut self, _: &mut Context<'_>) -> PolledFrame {
        self.log.add("read");
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }

    fn finish(self: Box<Self>) {}
}

#[tokio::test]
async fn collect_fails_when_the_budget_is_used_up_and_works_when_it_is_free_again() {
    let budget = Budget::new(5);
    let first = collect(Body::full("abc"), 100, &budget, LONG).await.unwrap();

    let second = collect(Body::full("def"), 100, &budget, LONG).await;
    assert!(matches!(second, Err(CollectError::Budget)));
    assert_eq!(budget.free_bytes(), 2);

    drop(first);
    assert!(collect(Body::full("def"), 100, &budget, LONG).await.is_ok());
    assert_eq!(budget.free_bytes(), 5);
}

#[tokio::test]
async fn collect_tells_a_stall_from_a_broken_body() {
    let budget = Budget::new(100);

    let stalled = collect(body_of(&["a"], Last::Stall), 5, &budget, SHORT).await;
    assert!(matches!(stalled, Err(CollectError::Idle)));

    let broken = collect(body_of(&["a"], Last::Fail), 5, &budget, LONG).await;
    assert!(matches!(broken, Err(CollectError::Broken(BodyError::Stopped))));
    assert_eq!(budget.free_bytes(), 100);
}

/// Name, body, limit, reason, and what the whole of it reads as: to its end, or to an error.
type PrefixCase = (&'static str, Body, usize, Partial, Result<&'static str, &'static str>);

#[tokio::test]
async fn collect_prefix_gives_a_body_that_reads_as_the_original() {
    let cases: [PrefixCase; 5] = [
        ("too large", body_of(&["abc", "def"], Last::End), 4, Partial::TooLarge, Ok("abcdef")),
        ("declared too large", Body::full("abcdef"), 4, Partial::TooLarge, Ok("abcdef")),
        ("cut", body_of(&["abc", "d"], Last::Fail), 9, Partial::Broken, Err("abcd")),
        ("stalled", body_of(&["abc"], Last::Stall), 9, Partial::Idle, Err("abc")),
        (
            "budget",
            body_of(&["abc", "def", "ghi"], Last::End),
            99,
            Partial::Budget,
            Ok("abcdefghi"),
        ),
    ];
    for (name, body, limit, right, reads) in cases {
        let budget = Budget::new(7);
        let got = collect_prefix(body, limit, &budget, Some(SHORT)).await;
        let Prefix::Partial { mut body, why } = got else { panic!("{name}: whole") };
        assert_eq!(why, right, "{name}");

        let mut seen = String::new();
        let mut failed = false;
        while let Some(frame) = next(&mut body).await {
            match frame {
                Ok(frame) => {
                    seen.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
                }
                Err(_) => failed = true,
            }
        }
        assert_eq!(if failed { Err(seen.as_str()) } else { Ok(seen.as_str()) }, reads, "{name}");
        assert_eq!(budget.free_bytes(), 7, "{name}");
    }
}

#[tokio::test]
async fn collect_prefix_gives_a_short_body_whole() {
    let budget = Budget::new(100);

    let got = collect_prefix(body_of(&["abc"], Last::End), 4, &budget, None).await;

    let Prefix::Whole(collected) = got else { panic!("partial") };
    assert_eq!(collected.bytes(), "abc");
}

#[tokio::test]
async fn p_22_discard_reads_to_the_end_within_its_bounds() {
    let table = [
        ("empty", Body::empty(), 0, true),
        ("short", body_of(&["abc", "de"], Last::End), 5, true),
        ("long", body_of(&["abc", "def"], Last::End), 5, false),
        ("declared long", Body::full("abcdef"), 5, false),
        ("cut", body_of(&["abc"], Last::Fail), 5, false),
        ("stalled", body_of(&["abc"], Last::Stall), 5, false),
    ];
    for (name, body, limit, right) in table {
        assert_eq!(discard(body, limit, SHORT).await, right, "{name}");
    }
}

#[test]
fn debug_shows_no_bytes() {
    let shown = format!("{:?}", Body::full("planted secret"));

    assert!(!shown.contains("planted"), "{shown}");
}

proptest! {
    #[test]
    fn collecting_a_prefix_changes_no_byte(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..8),
        limit in 0..100_usize,
        free in 0..100_usize,
    ) {
        let whole: Vec<u8> = frames.concat();
        let frames = frames.into_iter().map(|bytes| Frame::data(Bytes::from(bytes)));
        let source =
            Scripted { frames: frames.collect(), last: Last::End, log: Log::default() };
        let budget = Budget::new(free);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

        let read = runtime.block_on(async {
            let body = Body::source(Box::new(source));
            let mut body = match collect_prefix(body, limit, &budget, None).await {
                Prefix::Whole(collected) => {
                    assert!(whole.len() <= limit && whole.len() <= free);
                    Body::from(collected)
                }
                Prefix::Partial { body, .. } => {
                    assert!(whole.len() > limit || whole.len() > free);
                    body
                }
            };
            let mut read = Vec::new();
            while let Some(frame) = next(&mut body).await {
                read.extend_from_slice(frame.unwrap().data_ref().unwrap());
            }
            read
        });

        prop_assert_eq!(read, whole);
        prop_assert_eq!(budget.free_bytes(), free);
    }
}
