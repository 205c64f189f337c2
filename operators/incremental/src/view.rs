//! A view and its thread.
pub use differential_dataflow::VecCollection;
use differential_dataflow::input::Input;
use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use timely::WorkerConfig;
use timely::communication::Allocator;
use timely::communication::allocator::Thread;
use timely::worker::Worker;

/// A row and a number to add to its count.
pub type Change<R> = (R, isize);

/// A row of a collection.
pub trait Row: Ord + Clone + Debug + Send + 'static {}
impl<R: Ord + Clone + Debug + Send + 'static> Row for R {}

/// Why a view has failed.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The system provides no thread.
    #[error("cannot start the thread of a view: {0}")]
    Thread(#[from] std::io::Error),
    /// It panicked: a bug in this library, or no memory.
    #[error(
        "the thread of a view has ended: its rows are lost; create another view from the rows of its input"
    )]
    Ended,
}

/// A collection `O` derived from a collection `I`, updated with its changes.
///
/// It is computed on its own thread, because the dataflow cannot move between threads, while a view can.
/// [`View::update`] waits for it.
pub struct View<I, O> {
    /// None after the end.
    updates: Option<SyncSender<Vec<Change<I>>>>,
    changes: Receiver<Vec<Change<O>>>,
    thread: Option<JoinHandle<()>>,
}

impl<I: Row, O: Row> View<I, O> {
    /// Creates a view of an empty collection; `build` derives the output with the operators of a collection (`map`,
    /// `filter`, `flat_map`, `distinct`, `count`, `reduce`, `join` and so on, see [`VecCollection`]). Several input
    /// collections are combined in one enum. `name` is that of the thread.
    ///
    /// ```
    /// use tidemill_incremental::view::View;
    /// let mut view: View<(String, u32), (String, isize)> =
    ///     View::new("values of each key", |rows| rows.distinct().map(|(key, _)| key).count())?;
    /// let row = |value| (("a".to_owned(), value), 1);
    /// assert_eq!(view.update([row(1), row(2), row(2)])?, [(("a".to_owned(), 2), 1)]);
    /// let gone = view.update([(("a".to_owned(), 1), -1)])?;
    /// assert_eq!(gone, [(("a".to_owned(), 1), 1), (("a".to_owned(), 2), -1)]);
    /// # Ok::<(), tidemill_incremental::view::ViewError>(())
    /// ```
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(
        name: &str,
        build: impl for<'scope> FnOnce(
            VecCollection<'scope, u64, I, isize>,
        ) -> VecCollection<'scope, u64, O, isize>
        + Send
        + 'static,
    ) -> Result<Self, ViewError> {
        let (updates, from_outside) = sync_channel(1);
        let (to_outside, changes) = sync_channel(1);
        let keep = move || keep(build, &from_outside, &to_outside);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(keep)?;
        Ok(Self { updates: Some(updates), changes, thread: Some(thread) })
    }

    /// Adds changes of the input, all at once, and returns the changes of the output: each row at most once, in order,
    /// never with 0. Counts of the input may be negative within one update only.
    ///
    /// # Errors
    /// The thread of the view has panicked, now or earlier.
    pub fn update(
        &mut self,
        changes: impl IntoIterator<Item = Change<I>>,
    ) -> Result<Vec<Change<O>>, ViewError> {
        let updates = self.updates.as_ref().ok_or(ViewError::Ended)?;
        updates.send(changes.into_iter().collect()).map_err(|_| ViewError::Ended)?;
        self.changes.recv().map_err(|_| ViewError::Ended)
    }
}

impl<I, O> Drop for View<I, O> {
    fn drop(&mut self) {
        self.updates = None;
        if let Some(thread) = self.thread.take() {
            // It reports its own panic.
            let _ = thread.join();
        }
    }
}

/// Runs the thread: one dataflow, one time per update.
fn keep<I: Row, O: Row>(
    build: impl for<'scope> FnOnce(VecCollection<'scope, u64, I, isize>) -> VecCollection<'scope, u64, O, isize>,
    updates: &Receiver<Vec<Change<I>>>,
    changes: &SyncSender<Vec<Change<O>>>,
) {
    let mut worker = Worker::new(WorkerConfig::default(), Allocator::Thread(Thread::default()), None);
    let found: Rc<RefCell<Vec<Change<O>>>> = Rc::default();
    let finding = Rc::clone(&found);
    let (mut input, probe) = worker.dataflow::<u64, _, _>(|scope| {
        let (input, collection) = scope.new_collection::<I, isize>();
        let seen = build(collection)
            .inspect(move |(row, _, count)| finding.borrow_mut().push((row.clone(), *count)));
        (input, seen.probe().0)
    });
    while let Ok(update) = updates.recv() {
        update.into_iter().for_each(|(row, count)| input.update(row, count));
        let next = *input.time() + 1;
        input.advance_to(next);
        input.flush();
        worker.step_while(|| probe.less_than(input.time()));
        let mut result = std::mem::take(&mut *found.borrow_mut());
        consolidate(&mut result);
        if changes.send(result).is_err() {
            return;
        }
    }
}

/// Adds up the counts of equal rows, and sorts them.
fn consolidate<R: Ord>(changes: &mut Vec<Change<R>>) {
    differential_dataflow::consolidation::consolidate(changes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_told() {
        let mut view: View<u32, u32> = View::new("half", |rows| rows.map(|row| row / 2).distinct()).unwrap();
        assert_eq!(view.update([(4, 1), (5, 1), (9, 1)]).unwrap(), [(2, 1), (4, 1)]);
        assert_eq!(view.update([(4, -1)]).unwrap(), []);
        assert_eq!(view.update([(5, -1), (9, -1), (9, 1)]).unwrap(), [(2, -1)]);
        assert_eq!(view.update([]).unwrap(), []);
    }

    #[test]
    fn a_view_that_panics_says_that_it_ended() {
        let mut view: View<u32, u32> = View::new("none", |rows| rows.map(|row| 10 / row)).unwrap();
        assert_eq!(view.update([(5, 1)]).unwrap(), [(2, 1)]);
        assert!(matches!(view.update([(0, 1)]), Err(ViewError::Ended)));
        assert!(matches!(view.update([(5, 1)]), Err(ViewError::Ended)));
    }
}
