//! Which runs are computed together, and when. No clock, no threads.
//!
//! The oldest run that is due leads the next batch, and runs like it follow it in the order in which they came, as far as their rows fit. Each
//! session has at most one run here, so a run waits for at most one of each other session before it.
use super::Batching;
use crate::value::{Element, Value};
use std::collections::VecDeque;
use std::time::Duration;

/// Key of the runs of one batch: the model, the wanted outputs, and the inputs without their first dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    model: usize,
    outputs: Vec<u32>,
    inputs: Vec<(Element, Vec<usize>)>,
}

/// Rows of a run that is put together with others: with more, sums could overflow.
const MOST_ROWS: usize = u32::MAX as usize;

impl Kind {
    /// The kind of a run, and its rows. None: its inputs have no rows in common.
    pub(super) fn of(model: usize, outputs: &[u32], inputs: &[Value]) -> Option<(Self, usize)> {
        let rows = *inputs.first()?.shape().first()?;
        let inputs = inputs.iter().map(|input| {
            let (first, row) = input.shape().split_first()?;
            (*first == rows && (1..=MOST_ROWS).contains(&rows)).then(|| (input.element(), row.to_vec()))
        });
        let inputs = inputs.collect::<Option<_>>()?;
        Some((Self { model, outputs: outputs.to_vec(), inputs }, rows))
    }
}

/// A run that waits.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub(super) since: Duration,
    /// None: it is computed alone.
    pub(super) kind: Option<(Kind, usize)>,
    pub(super) run: T,
}

impl<T> Waiting<T> {
    fn is_like(&self, other: &Self) -> bool {
        matches!((&self.kind, &other.kind), (Some((ours, _)), Some((theirs, _))) if ours == theirs)
    }

    fn rows(&self) -> usize {
        self.kind.as_ref().map_or(1, |(_, rows)| *rows)
    }
}

/// The runs that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct Queue<T> {
    batching: Batching,
    waiting: VecDeque<Waiting<T>>,
}

impl<T> Queue<T> {
    pub(super) fn new(batching: Batching) -> Self {
        Self { batching, waiting: VecDeque::new() }
    }

    pub(super) fn push(&mut self, run: Waiting<T>) {
        self.waiting.push_back(run);
    }

    /// Returns when the next batch is due; none: nothing waits. `sessions`: those that have loaded the model of a run.
    pub(super) fn due(&self, sessions: impl Fn(&T) -> usize) -> Option<Duration> {
        (0..self.waiting.len()).map(|leader| self.due_of(leader, &sessions)).min()
    }

    /// When a batch is due that this run leads. It is full, and waits for nothing, also if each session of the model has a run in it.
    fn due_of(&self, leader: usize, sessions: &impl Fn(&T) -> usize) -> Duration {
        let leading = &self.waiting[leader];
        if self.batching.wait.is_zero() || leading.kind.is_none() {
            return leading.since;
        }
        let like = self.waiting.iter().skip(leader).filter(|other| leading.is_like(other));
        let (runs, rows) = like.fold((0, 0), |(runs, rows), other| (runs + 1, rows + other.rows()));
        let is_full = rows >= self.batching.rows || runs >= sessions(&leading.run);
        if is_full { leading.since } else { leading.since.saturating_add(self.batching.wait) }
    }

    /// Takes the next batch, if one is due: its first run leads it.
    pub(super) fn take(&mut self, now: Duration, sessions: impl Fn(&T) -> usize) -> Vec<Waiting<T>> {
        let leader = (0..self.waiting.len()).find(|leader| self.due_of(*leader, &sessions) <= now);
        let Some(leading) = leader.and_then(|leader| self.waiting.remove(leader)) else { return Vec::new() };
        let mut rows = leading.rows();
        let mut batch = vec![leading];
        for other in std::mem::take(&mut self.waiting) {
            if batch[0].is_like(&other) && rows + other.rows() <= self.batching.rows {
                rows += other.rows();
                batch.push(other);
            } else {
                self.waiting.push_back(other);
            }
        }
        batch
    }

    /// Puts these runs together with no others.
    pub(super) fn separate(&mut self, is_one: impl Fn(&T) -> bool) {
        self.waiting
            .iter_mut()
            .filter(|waiting| is_one(&waiting.run))
            .for_each(|waiting| waiting.kind = None);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A run of so many rows of a model. Its name is that of its session.
    fn run(session: char, model: usize, rows: usize, since: Duration) -> Waiting<char> {
        let input = Value::zeros(Element::Uint8, vec![rows, 2]).unwrap();
        Waiting { since, kind: Kind::of(model, &[0], &[input]), run: session }
    }

    fn queue(rows: usize, wait: Duration) -> Queue<char> {
        Queue::new(Batching { rows, wait })
    }

    fn taken(queue: &mut Queue<char>, now: Duration) -> String {
        queue.take(now, |_| 3).iter().map(|waiting| waiting.run).collect()
    }

    #[test]
    fn without_a_wait_whatever_waits_is_computed_at_once() {
        let mut queue = queue(4, Duration::ZERO);
        assert_eq!(queue.due(|_| 3), None);
        for (at, session) in "abcde".chars().enumerate() {
            queue.push(run(session, 1, 1, MS * at as u32));
        }
        assert_eq!(queue.due(|_| 3), Some(Duration::ZERO));
        assert_eq!(taken(&mut queue, MS * 5), "abcd");
        assert_eq!(taken(&mut queue, MS * 5), "e");
        assert_eq!(taken(&mut queue, MS * 5), "");
    }

    #[test]
    fn only_runs_of_one_kind_go_together_and_the_oldest_first() {
        let mut queue = queue(8, Duration::ZERO);
        queue.push(run('a', 1, 1, MS));
        queue.push(run('b', 2, 1, MS));
        queue.push(run('c', 1, 3, MS));
        let wide = Value::zeros(Element::Uint8, vec![1, 3]).unwrap();
        queue.push(Waiting { since: MS, kind: Kind::of(1, &[0], &[wide]), run: 'd' });
        queue.push(Waiting { since: MS, kind: None, run: 'e' });
        queue.push(Waiting { since: MS, kind: None, run: 'f' });
        queue.push(run('g', 1, 5, MS));
        queue.push(run('h', 1, 4, MS));
        let batches: Vec<String> = std::iter::repeat_with(|| taken(&mut queue, MS)).take(6).collect();
        // Five rows more would be nine; four fit.
        assert_eq!(batches, ["ach", "b", "d", "e", "f", "g"]);
    }

    #[test]
    fn a_run_of_more_rows_than_a_batch_is_computed_alone() {
        let mut queue = queue(4, Duration::ZERO);
        queue.push(run('a', 1, 9, MS));
        queue.push(run('b', 1, 1, MS));
        assert_eq!((taken(&mut queue, MS), taken(&mut queue, MS)), ("a".to_owned(), "b".to_owned()));
    }

    #[test]
    fn a_batch_waits_until_it_is_full_or_its_time_is_over() {
        let mut queue = queue(4, MS * 5);
        queue.push(run('a', 1, 1, MS));
        assert_eq!(queue.due(|_| 3), Some(MS * 6));
        assert_eq!(taken(&mut queue, MS * 5), "");
        queue.push(run('b', 1, 2, MS * 5));
        assert_eq!(queue.due(|_| 3), Some(MS * 6));
        assert_eq!(queue.due(|_| 2), Some(MS), "each session has its run in it");
        assert_eq!(taken(&mut queue, MS * 6), "ab");
        queue.push(run('c', 1, 3, MS * 7));
        queue.push(run('d', 1, 1, MS * 8));
        assert_eq!(queue.due(|_| 3), Some(MS * 7), "four rows");
        assert_eq!(taken(&mut queue, MS * 8), "cd");
    }

    #[test]
    fn a_batch_that_waits_holds_no_other_model_up() {
        let mut queue = queue(4, MS * 5);
        queue.push(run('a', 1, 1, MS));
        queue.push(run('b', 2, 4, MS * 2));
        assert_eq!(queue.due(|_| 3), Some(MS * 2));
        assert_eq!(taken(&mut queue, MS * 2), "b");
        assert_eq!(taken(&mut queue, MS * 6), "a");
    }

    #[test]
    fn inputs_without_common_rows_are_computed_alone() {
        let value = |shape: &[usize]| Value::zeros(Element::Uint8, shape.to_vec()).unwrap();
        assert!(Kind::of(1, &[0], &[]).is_none());
        assert!(Kind::of(1, &[0], &[value(&[])]).is_none());
        assert!(Kind::of(1, &[0], &[value(&[0, 2])]).is_none());
        assert!(Kind::of(1, &[0], &[value(&[2, 2]), value(&[3])]).is_none());
        let kind = |outputs: &[u32]| Kind::of(1, outputs, &[value(&[2, 2]), value(&[2])]);
        assert_eq!(kind(&[0]).map(|(_, rows)| rows), Some(2));
        assert_ne!(kind(&[0]), kind(&[1]));
    }
}
