//! Numbers that every call adds to, kept apart for each worker.
//!
//! A count that two cores write goes from one to the other with each write, which costs a call more
//! than all else that is done with it. So each worker has cells of its own, on lines of memory of their
//! own, and they are added up when somebody looks. A thread that is no worker writes the first
//! worker's.
//!
//! Limit: [`MOST`] workers have cells of their own; more share them in turn, and only cost is lost.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{CounterFn, GaugeFn, HistogramFn};

/// How many workers have cells of their own: memory is bounded by it, and few machines have more cores
/// for one sidecar.
const MOST: usize = 16;

/// Cells on one line. Two lines of 64 bytes, because cores fetch them in pairs.
const WIDTH: usize = 16;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Says that this thread is a worker, and which.
pub fn enter(worker: usize) {
    OWN.set(worker);
}

/// Which worker this thread is; 0 for a thread that is none.
pub fn own() -> usize {
    OWN.get()
}

/// How many workers are kept apart.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; WIDTH]);

/// Some numbers, for each worker.
#[derive(Debug)]
pub(super) struct Cells {
    lines: Vec<Line>,
    lines_each: usize,
}

impl Cells {
    /// So many numbers, at 0.
    pub(super) fn new(count: usize) -> Arc<Self> {
        let lines_each = count.div_ceil(WIDTH).max(1);
        let mut lines = Vec::new();
        lines.resize_with(lines_each.saturating_mul(workers()), Line::default);
        Arc::new(Self { lines, lines_each })
    }

    /// This worker's cell of a number.
    fn own(&self, number: usize) -> Option<&AtomicU64> {
        let worker = own().checked_rem(self.lines.len() / self.lines_each)?;
        let line = worker.saturating_mul(self.lines_each).saturating_add(number / WIDTH);
        self.lines.get(line)?.0.get(number % WIDTH)
    }

    /// All cells of a number.
    fn all(&self, number: usize) -> impl Iterator<Item = u64> {
        let lines = self.lines.iter().skip(number / WIDTH).step_by(self.lines_each);
        let cells = lines.filter_map(move |line| line.0.get(number % WIDTH));
        cells.map(|cell| cell.load(Ordering::Relaxed))
    }

    fn add(&self, number: usize, value: u64) {
        if let Some(cell) = self.own(number) {
            cell.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Adds to a number that is a fraction.
    fn add_real(&self, number: usize, value: f64) {
        if let Some(cell) = self.own(number) {
            let more = |bits| Some((f64::from_bits(bits) + value).to_bits());
            // It gives a value each time, so this cannot fail.
            let _was = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    fn sum(&self, number: usize) -> u64 {
        self.all(number).fold(0, u64::wrapping_add)
    }

    fn sum_real(&self, number: usize) -> f64 {
        self.all(number).map(f64::from_bits).sum()
    }
}

/// A number that only grows.
pub(super) struct Count {
    cells: Arc<Cells>,
    number: usize,
}

impl Count {
    pub(super) fn new(cells: &Arc<Cells>, number: usize) -> Self {
        Self { cells: Arc::clone(cells), number }
    }

    pub(super) fn value(&self) -> u64 {
        self.cells.sum(self.number)
    }
}

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.cells.add(self.number, value);
    }

    /// For nobody: it cannot be said of a sum.
    fn absolute(&self, _: u64) {}
}

/// A number that grows and shrinks.
pub(super) struct Level {
    cells: Arc<Cells>,
    number: usize,
}

impl Level {
    pub(super) fn new(cells: &Arc<Cells>, number: usize) -> Self {
        Self { cells: Arc::clone(cells), number }
    }

    pub(super) fn value(&self) -> f64 {
        self.cells.sum_real(self.number)
    }
}

impl GaugeFn for Level {
    fn increment(&self, value: f64) {
        self.cells.add_real(self.number, value);
    }

    fn decrement(&self, value: f64) {
        self.cells.add_real(self.number, -value);
    }

    /// For nobody: it cannot be said of a sum.
    fn set(&self, _: f64) {}
}

/// How often values were how large.
pub(super) struct Buckets {
    /// Ascending; what is above the last has a cell of its own.
    bounds: &'static [f64],
    /// One number for each bound, one for what is above, and the sum.
    cells: Arc<Cells>,
}

impl Buckets {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, cells: Cells::new(bounds.len().saturating_add(2)) }
    }

    /// Writes its series: how many were at most so large, for each bound; their sum; how many there
    /// were. `labels` is empty or ends with a comma.
    pub(super) fn write(&self, name: &str, labels: &str, text: &mut String) {
        let mut count = 0_u64;
        for (position, bound) in self.bounds.iter().enumerate() {
            count = count.saturating_add(self.cells.sum(position));
            text.push_str(&format!("{name}_bucket{{{labels}le=\"{bound}\"}} {count}\n"));
        }
        count = count.saturating_add(self.cells.sum(self.bounds.len()));
        text.push_str(&format!("{name}_bucket{{{labels}le=\"+Inf\"}} {count}\n"));
        let sum = self.cells.sum_real(self.bounds.len().saturating_add(1));
        let labels = labels.trim_end_matches(',');
        let of = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        text.push_str(&format!("{name}_sum{of} {sum}\n{name}_count{of} {count}\n"));
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let above = self.bounds.len();
        let number = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(above);
        self.cells.add(number, 1);
        self.cells.add_real(above.saturating_add(1), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does this on threads that are these workers.
    fn on(workers: std::ops::Range<usize>, what: impl Fn() + Sync) {
        std::thread::scope(|scope| {
            for worker in workers {
                let what = &what;
                scope.spawn(move || {
                    enter(worker);
                    what();
                });
            }
        });
    }

    #[test]
    fn what_workers_count_apart_is_shown_together() {
        let cells = Cells::new(WIDTH + 2);
        let (first, last) = (Count::new(&cells, 0), Count::new(&cells, WIDTH + 1));

        // More workers than have cells of their own.
        on(0..MOST + 3, || {
            for _ in 0..100 {
                first.increment(1);
                last.increment(2);
            }
        });

        assert_eq!(first.value(), 100 * 19);
        assert_eq!(last.value(), 200 * 19);
        assert_eq!(Count::new(&cells, 1).value(), 0);
    }

    #[test]
    fn what_one_worker_began_may_end_on_another() {
        let cells = Cells::new(4);
        let level = Level::new(&cells, 3);

        on(0..1, || level.increment(1.0));
        on(1..2, || level.increment(1.0));
        on(1..2, || level.decrement(1.0));
        assert!((level.value() - 1.0).abs() < f64::EPSILON);
        on(1..2, || level.decrement(1.0));

        assert!(level.value().abs() < f64::EPSILON);
    }

    #[test]
    fn a_value_that_is_a_bound_is_in_its_bucket_and_one_above_all_in_the_last() {
        let buckets = Buckets::new(&[0.5, 1.0]);
        for value in [0.25, 0.5, 0.75, 4.0] {
            on(0..2, || buckets.record(value));
        }
        let mut text = String::new();

        buckets.write("t", "a=\"b\",", &mut text);
        buckets.write("u", "", &mut text);

        let expected = "t_bucket{a=\"b\",le=\"0.5\"} 4\nt_bucket{a=\"b\",le=\"1\"} 6\n\
                        t_bucket{a=\"b\",le=\"+Inf\"} 8\nt_sum{a=\"b\"} 11\nt_count{a=\"b\"} 8\n\
                        u_bucket{le=\"0.5\"} 4\nu_bucket{le=\"1\"} 6\nu_bucket{le=\"+Inf\"} 8\n\
                        u_sum 11\nu_count 8\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn each_worker_writes_lines_of_its_own() {
        let cells = Cells::new(1);
        on(0..MOST, || cells.add(0, 1));

        let workers = cells.lines.len();
        assert!(cells.all(0).all(|count| count >= 1), "{workers} workers");
        assert_eq!(align_of::<Line>(), 128);
    }
}
