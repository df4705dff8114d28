//! Who is told that a connection can go on.
//!
//! A connection has no task of its own: whoever wants its answer drives it, and while it is idle
//! the pool's sweeper watches it. What hyper wakes goes here, and from here to whoever that is. A
//! wake during the driving itself is only noted: it comes from the two halves of the connection
//! talking to each other, and the loop in [`Wire::poll`](super::link::Wire::poll) goes round again
//! for it instead of the whole task.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// It is being driven: wakes are only noted.
const DRIVEN: u8 = 1;
/// Its driver has something to do, as for what came on the socket.
const DUE: u8 = 2;
/// Its driver was asked for more by whoever took what it gave.
const ASKED: u8 = 4;
/// What it gives may be there.
const GIVEN: u8 = 8;

/// What is to be done for a connection, and who does it.
#[derive(Debug)]
pub(super) struct Signal {
    state: AtomicU8,
    /// What the connection gave is being taken, on the thread that drives it.
    is_taken: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// What [`Signal::next`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Drive it.
    Drive,
    /// Look again for what it gives.
    Look,
    /// Nothing: whoever waits is woken from here on.
    Wait,
}

impl Signal {
    /// Of a connection that was never driven.
    pub(super) fn new() -> Arc<Self> {
        let (state, is_taken) = (AtomicU8::new(DUE), AtomicBool::new(false));
        Arc::new(Self { state, is_taken, waker: Mutex::new(None) })
    }

    /// The waker of the connection itself.
    pub(super) fn of_driver(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// The waker of what is waited for.
    pub(super) fn of_taker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::new(Taker(Arc::clone(self))))
    }

    /// Begins driving, for the task of this waker.
    pub(super) fn hold(&self, waker: &Waker) {
        self.tell(waker);
        self.mute();
    }

    /// Has nobody woken until it was driven.
    pub(super) fn mute(&self) {
        self.state.fetch_or(DRIVEN, Ordering::AcqRel);
    }

    /// Runs what takes from the connection: a wake of its driver meanwhile asks for more.
    pub(super) fn taking<T>(&self, take: impl FnOnce() -> T) -> T {
        self.is_taken.store(true, Ordering::Relaxed);
        let taken = take();
        self.is_taken.store(false, Ordering::Relaxed);
        taken
    }

    /// What is to be done next while it is driven. [`Next::Wait`] ends the driving.
    pub(super) fn next(&self) -> Next {
        let before = self.state.fetch_and(DRIVEN, Ordering::AcqRel);
        if before & (DUE | ASKED) != 0 {
            return Next::Drive;
        }
        if before & GIVEN != 0 {
            return Next::Look;
        }
        match self.state.compare_exchange(DRIVEN, 0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Next::Wait,
            // Woken from another thread meanwhile.
            Err(_) => Next::Look,
        }
    }

    /// Ends driving before there was nothing left to do. What is due stays so.
    pub(super) fn let_go(&self) {
        self.state.fetch_and(DUE | ASKED, Ordering::AcqRel);
    }

    /// Of a connection that has served its call: from here on `waker` is told what comes on the
    /// socket, or nobody. What its driver was asked for is not wanted any more.
    pub(super) fn rest(&self, waker: Option<&Waker>) {
        match waker {
            // A waker keeps its whole task in memory.
            None => *self.lock() = None,
            Some(waker) => self.tell(waker),
        }
        let before = self.state.fetch_and(DUE, Ordering::AcqRel);
        if before & DUE != 0
            && let Some(waker) = waker
        {
            waker.wake_by_ref();
        }
    }

    /// Names who is woken from here on. What is noted already is not told again.
    pub(super) fn tell(&self, waker: &Waker) {
        let mut told = self.lock();
        match &mut *told {
            Some(told) => told.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Takes what is due of one that rests: the caller does it.
    pub(super) fn take_due(&self) -> bool {
        // Looked at first: it is a load, and hardly ever true.
        self.state.load(Ordering::Acquire) & DUE != 0
            && self.state.fetch_and(!DUE, Ordering::AcqRel) & DUE != 0
    }

    fn note(&self, why: u8) {
        if self.state.fetch_or(why, Ordering::AcqRel) == 0
            && let Some(waker) = &*self.lock()
        {
            waker.wake_by_ref();
        }
    }

    fn of_the_driver(&self) -> u8 {
        if self.is_taken.load(Ordering::Relaxed) { ASKED } else { DUE }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.note(self.of_the_driver());
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.note(self.of_the_driver());
    }
}

struct Taker(Arc<Signal>);

impl Wake for Taker {
    fn wake(self: Arc<Self>) {
        self.0.note(GIVEN);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.note(GIVEN);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counted() -> (Arc<Counted>, Waker) {
        let counted = Arc::new(Counted::default());
        (Arc::clone(&counted), Waker::from(counted))
    }

    fn count(counted: &Counted) -> usize {
        counted.0.load(Ordering::SeqCst)
    }

    #[test]
    fn a_wake_reaches_whoever_waits_once_and_is_only_noted_while_driving() {
        let (woken, waker) = counted();
        let signal = Signal::new();
        let (driver, taker) = (signal.of_driver(), signal.of_taker());

        signal.hold(&waker);
        assert_eq!(signal.next(), Next::Drive, "it is new");
        driver.wake_by_ref();
        assert_eq!(signal.next(), Next::Drive);
        taker.wake_by_ref();
        assert_eq!(signal.next(), Next::Look);
        assert_eq!(signal.next(), Next::Wait);
        assert_eq!(count(&woken), 0);

        driver.wake_by_ref();
        driver.wake_by_ref();
        taker.wake_by_ref();
        assert_eq!(count(&woken), 1);
        signal.hold(&waker);
        assert_eq!(signal.next(), Next::Drive);
    }

    #[test]
    fn what_was_asked_of_a_connection_that_rests_is_forgotten_and_what_came_on_it_is_told() {
        let (woken, waker) = counted();
        let signal = Signal::new();
        let driver = signal.of_driver();
        signal.hold(&waker);
        assert_eq!(signal.next(), Next::Drive);
        signal.taking(|| driver.wake_by_ref());
        signal.let_go();

        signal.rest(Some(&waker));
        assert_eq!((count(&woken), signal.take_due()), (0, false));

        driver.wake_by_ref();
        assert_eq!((count(&woken), signal.take_due()), (1, true));

        driver.wake_by_ref();
        assert_eq!(count(&woken), 2);
        signal.rest(Some(&waker));
        assert_eq!(count(&woken), 3, "it was due before anybody rested with it");
    }

    #[test]
    fn nobody_is_woken_for_a_connection_that_is_about_to_be_driven() {
        let (woken, waker) = counted();
        let signal = Signal::new();
        signal.rest(Some(&waker));
        signal.take_due();
        let before = count(&woken);

        signal.mute();
        signal.of_driver().wake();

        assert_eq!(count(&woken), before);
    }
}
