//! Every task of the process is spawned here, so that it has a name, is counted, and is awaited
//! when the process drains (pitfall P14).
//!
//! Two kinds: work that a drain must wait for ([`Tasks::spawn`]: a recorded write, a pump), and
//! helpers that end when what they serve ends ([`Tasks::spawn_background`]: a connection's driver,
//! a sweeper). Both run on the runtime of the thread that spawns them, so with one current-thread
//! runtime per core a task stays on the core of its connection. A task that panics is counted; its
//! handle says so too.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The tasks of the process; clones share one count.
#[derive(Clone, Default)]
pub struct Tasks {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    counts: Mutex<Counts>,
    idle: Notify,
    is_hurried: AtomicBool,
    hurry: Notify,
    panicked: AtomicU64,
}

#[derive(Default)]
struct Counts {
    awaited: usize,
    names: Vec<(&'static str, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Awaited,
    Background,
}

impl Tasks {
    /// No tasks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns work that [`Tasks::wait_idle`] waits for, on this thread's runtime.
    ///
    /// Dropping the handle detaches the task; it is still counted.
    ///
    /// # Panics
    ///
    /// When it is called outside of a runtime.
    pub fn spawn<F>(&self, name: &'static str, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.start(name, Kind::Awaited, work)
    }

    /// Spawns a helper that no drain waits for: one that ends by itself when what it serves ends.
    ///
    /// # Panics
    ///
    /// When it is called outside of a runtime.
    pub fn spawn_background<F>(&self, name: &'static str, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.start(name, Kind::Background, work)
    }

    #[expect(clippy::disallowed_methods, reason = "this is where tasks are counted")]
    fn start<F>(&self, name: &'static str, kind: Kind, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // Counted before it is spawned: a drain that begins now must see it.
        let counted = Counted::new(Arc::clone(&self.shared), name, kind);
        tokio::spawn(Running { work, _counted: counted })
    }

    /// Waits until no awaited task is left. Tasks spawned meanwhile are waited for too.
    ///
    /// Cancel safe: dropping it forgets nothing.
    pub async fn wait_idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.shared.idle.notified());
            // Registered before the count is read, or the last end could fall between the two.
            idle.as_mut().enable();
            if self.awaited() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Asks what is awaited to end now with what it knows, because the process will not wait longer.
    pub fn hurry(&self) {
        self.shared.is_hurried.store(true, Ordering::Release);
        self.shared.hurry.notify_waiters();
    }

    /// Whether [`Tasks::hurry`] was called.
    pub fn is_hurried(&self) -> bool {
        self.shared.is_hurried.load(Ordering::Acquire)
    }

    /// Waits until [`Tasks::hurry`] is called.
    ///
    /// Cancel safe.
    pub async fn hurried(&self) {
        loop {
            let mut hurry = std::pin::pin!(self.shared.hurry.notified());
            // Registered before the flag is read, or the call could fall between the two.
            hurry.as_mut().enable();
            if self.is_hurried() {
                return;
            }
            hurry.await;
        }
    }

    /// How many tasks run that a drain waits for.
    pub fn awaited(&self) -> usize {
        self.shared.lock().awaited
    }

    /// The names of what runs and how many of each, of both kinds, sorted by name.
    pub fn running(&self) -> Vec<(&'static str, usize)> {
        let counts = self.shared.lock();
        let mut names: Vec<_> =
            counts.names.iter().copied().filter(|(_, count)| *count > 0).collect();
        names.sort_unstable();
        names
    }

    /// How many tasks have panicked since the start.
    pub fn panicked(&self) -> u64 {
        self.shared.panicked.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("running", &self.running()).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing panics while it is held; counts stay right even if something did.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pin_project! {
    /// The work of a task. No `async` block: that would keep the work twice, as what it captured and
    /// as what it waits for.
    struct Running<F> {
        #[pin]
        work: F,
        _counted: Counted,
    }
}

impl<F: Future> Future for Running<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().work.poll(cx)
    }
}

/// One running task; its drop is the task's end, by whatever way.
struct Counted {
    shared: Arc<Shared>,
    name: &'static str,
    kind: Kind,
}

impl Counted {
    fn new(shared: Arc<Shared>, name: &'static str, kind: Kind) -> Self {
        let mut counts = shared.lock();
        counts.awaited += usize::from(kind == Kind::Awaited);
        match counts.names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counts.names.push((name, 1)),
        }
        drop(counts);
        Self { shared, name, kind }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.panicked.fetch_add(1, Ordering::Relaxed);
        }
        let mut counts = self.shared.lock();
        counts.awaited -= usize::from(self.kind == Kind::Awaited);
        if let Some((_, count)) = counts.names.iter_mut().find(|(known, _)| *known == self.name) {
            *count -= 1;
        }
        let is_idle = self.kind == Kind::Awaited && counts.awaited == 0;
        drop(counts);
        if is_idle {
            self.shared.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn wait_idle_waits_for_awaited_tasks_and_not_for_background_ones() {
        let tasks = Tasks::new();
        let (stop, stopped) = oneshot::channel::<()>();
        let (_forever, never) = oneshot::channel::<()>();
        let write = tasks.spawn("write", stopped);
        let _connection = tasks.spawn_background("connection", never);
        assert_eq!(tasks.running(), [("connection", 1), ("write", 1)]);

        let mut waiting = std::pin::pin!(tasks.wait_idle());
        let early =
            std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_ready()));
        assert!(!early.await);
        stop.send(()).unwrap();
        waiting.await;

        write.await.unwrap().unwrap();
        assert_eq!(tasks.running(), [("connection", 1)]);
    }

    #[tokio::test]
    async fn work_that_waits_hears_of_the_hurry_and_work_that_comes_later_too() {
        let tasks = Tasks::new();
        let early = tasks.clone();
        let waiting = tasks.spawn("write", async move { early.hurried().await });
        assert!(!tasks.is_hurried());

        tasks.hurry();

        waiting.await.unwrap();
        tasks.hurried().await;
        assert!(tasks.is_hurried());
    }

    #[tokio::test]
    async fn a_task_that_panics_is_counted_and_no_longer_running() {
        let tasks = Tasks::new();

        let handle = tasks.spawn("broken", async { panic!("planted") });

        assert!(handle.await.unwrap_err().is_panic());
        tasks.wait_idle().await;
        assert_eq!(tasks.panicked(), 1);
        assert!(tasks.running().is_empty());
    }

    #[tokio::test]
    async fn an_aborted_task_is_no_longer_running() {
        let tasks = Tasks::new();
        let handle = tasks.spawn("write", std::future::pending::<()>());

        handle.abort();

        tasks.wait_idle().await;
        assert_eq!(tasks.awaited(), 0);
        assert_eq!(tasks.panicked(), 0);
    }

    #[test]
    fn tasks_of_several_runtimes_are_counted_together() {
        let tasks = Tasks::new();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let tasks = tasks.clone();
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let write = async { tasks.spawn("write", async {}).await };
                    runtime.block_on(write).unwrap();
                })
            })
            .collect();

        for thread in threads {
            thread.join().unwrap();
        }

        assert_eq!(tasks.awaited(), 0);
    }
}
