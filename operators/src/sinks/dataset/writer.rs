//! Writes shards, and what they hold into `dataset.json`.
use super::labels::Labels;
use crate::api::{DeadLetter, Flush, OperatorError, Sink};
use crate::record::METADATA_COLUMNS;
use crate::sinks::lock::check_free;
use crate::sinks::rows::{Rows, json_text};
use crate::sinks::staging::{LOST_HELP, Staging, read_token, write_error, write_token};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, RecordBatch};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_dataset::{DatasetError, Description, FILE, Shard, shard_name, shard_number};
use tidemill_spec::publication::Publication;

/// Shards of a full dataset.
const SHARDS: u64 = 16;

/// Most classes: a column with more is no class.
const MOST_CLASSES: usize = 1000;

/// The content of a dataset, and its place.
pub(super) struct Plan {
    pub(super) folder: PathBuf,
    pub(super) rows: Rows,
    pub(super) labels: Labels,
    /// The dataset without rows.
    pub(super) empty: Description,
    /// Most rows.
    pub(super) most: u64,
    /// Whether the dataset of an earlier run is continued.
    pub(super) appends: bool,
}

impl Plan {
    /// Rows of a full shard.
    fn of_shard(&self) -> u64 {
        self.most.div_ceil(SHARDS)
    }
}

/// Data that another process needs to continue the dataset.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    /// The committed rows.
    description: Description,
    /// Token of the last shard, if it is not full.
    last: Option<String>,
}

/// A shard that grows.
struct Open {
    shard: Shard,
    number: u64,
    staging: Staging,
    /// Rows of each class since the last commit.
    staged: BTreeMap<String, u64>,
}

impl Open {
    fn rows(&self) -> u64 {
        self.shard.rows + self.staged.values().sum::<u64>()
    }
}

/// The sink; see the module.
pub(super) struct Writer {
    plan: Arc<Plan>,
    /// The committed rows.
    description: Description,
    /// Records left out since the last commit: without a label, without an input.
    left_out: (u64, u64),
    /// The last shard if it is not full, and new ones.
    open: Vec<Open>,
    /// Number of the next shard.
    next: u64,
    /// Full shards that may not survive a power loss.
    full: Arc<Mutex<Vec<(u64, Staging)>>>,
    classes: BTreeSet<String>,
    epoch: u64,
    letters: Vec<(u64, DeadLetter)>,
}

impl Writer {
    /// Starts from nothing or from the dataset of earlier runs without a token, else continues.
    pub(super) fn open(plan: &Arc<Plan>, token: Option<&[u8]>) -> Result<Self, OperatorError> {
        let folder = &plan.folder;
        let (description, last) = match token {
            Some(token) => {
                let Token { mut description, last } = read_token::<Token>(folder, token)?;
                if !description.has_columns_of(&plan.empty) {
                    return Err(other_columns(folder));
                }
                forget_removed(folder, &mut description);
                check_shards(folder, &description, last.is_some())?;
                let staging = match (last, description.shards.last()) {
                    (Some(token), Some(shard)) => {
                        Some(Staging::resume(&folder.join(&shard.file), token.as_bytes())?)
                    }
                    _ => None,
                };
                (description, staging)
            }
            None => start(plan)?,
        };
        let number = |shard: &Shard| shard_number(&shard.file).unwrap_or_default();
        let next = description.shards.last().map_or(0, number) + 1;
        let open = match (last, description.shards.last()) {
            (Some(staging), Some(shard)) => {
                vec![Open { shard: shard.clone(), number: next - 1, staging, staged: BTreeMap::new() }]
            }
            _ => Vec::new(),
        };
        save(folder, &description)?;
        remove_shards(folder, next)?;
        Ok(Self {
            plan: Arc::clone(plan),
            classes: description.classes().into_keys().collect(),
            description,
            left_out: (0, 0),
            open,
            next,
            full: Arc::default(),
            epoch: 0,
            letters: Vec::new(),
        })
    }

    /// Returns the shard for the next row.
    fn growing(&mut self) -> Result<&mut Open, OperatorError> {
        if self.open.last().is_none_or(|open| open.rows() >= self.plan.of_shard()) {
            let file = shard_name(self.next);
            let staging = Staging::create(&self.plan.folder.join(&file), true)?;
            let shard = Shard { file, ..Shard::default() };
            self.open.push(Open { shard, number: self.next, staging, staged: BTreeMap::new() });
            self.next += 1;
        }
        self.open.last_mut().ok_or_else(|| OperatorError::new("dataset: no shard is open"))
    }

    fn write_row(&mut self, batch: &RecordBatch, row: usize, label: String) -> Result<(), OperatorError> {
        let plan = Arc::clone(&self.plan);
        let open = self.growing()?;
        let out = open.staging.buffer();
        out.push(b'{');
        plan.rows.members(batch, row, out)?;
        out.push(b',');
        json_text(&plan.empty.label, out);
        out.push(b':');
        json_text(&label, out);
        out.extend_from_slice(b"}\n");
        open.staging.spill()?;
        *open.staged.entry(label).or_insert(0) += 1;
        Ok(())
    }

    /// Whether the class may be written: the dataset knows it, or has room for a further one.
    fn knows(&mut self, class: &str) -> bool {
        if !self.classes.contains(class) && self.classes.len() < MOST_CLASSES {
            self.classes.insert(class.to_owned());
        }
        self.classes.contains(class)
    }

    /// Removes the oldest shards from the description, and returns their names.
    fn surplus(&mut self) -> Vec<String> {
        let mut removed = Vec::new();
        while self.description.rows() > self.plan.most && self.description.shards.len() > 1 {
            let shard = self.description.shards.remove(0);
            self.description.removed += shard.rows;
            removed.push(shard.file);
        }
        removed
    }

    fn release(&mut self) -> Result<(), OperatorError> {
        self.rollback()?;
        self.open.drain(..).try_for_each(|mut open| open.staging.release())
    }
}

/// Starts a run without a state: returns the description to begin with, and its last shard if it is not full.
fn start(plan: &Plan) -> Result<(Description, Option<Staging>), OperatorError> {
    let folder = &plan.folder;
    std::fs::create_dir_all(folder).map_err(|error| write_error(folder, &error))?;
    let found = match Description::load(folder) {
        Ok(found) => found,
        Err(DatasetError::None { .. }) => {
            no_shards(folder)?;
            return Ok((plan.empty.clone(), None));
        }
        Err(error) => return Err(unreadable(&error)),
    };
    check_shards_free(folder, &found)?;
    if !plan.appends {
        return Ok((plan.empty.clone(), None));
    }
    if !found.has_columns_of(&plan.empty) {
        return Err(other_columns(folder));
    }
    check_shards(folder, &found, true)?;
    let last = match found.shards.last().filter(|shard| shard.rows < plan.of_shard()) {
        Some(shard) => Some(Staging::resume_at(&folder.join(&shard.file), shard.bytes)?),
        None => None,
    };
    Ok((found, last))
}

fn unreadable(error: &DatasetError) -> OperatorError {
    OperatorError::new(format!("{error}: remove it, or choose another path"))
}

fn other_columns(folder: &Path) -> OperatorError {
    OperatorError::new(format!(
        "the columns of the dataset `{}` are not those of this run: choose another path, or write `mode: replace` \
         and start from the beginning",
        folder.display()
    ))
}

/// Leaves out the oldest shards that were removed after the token was made.
fn forget_removed(folder: &Path, description: &mut Description) {
    while let Some(shard) = description.shards.first().filter(|shard| !folder.join(&shard.file).exists())
        && description.shards.len() > 1
    {
        description.removed += shard.rows;
        description.shards.remove(0);
    }
}

/// Checks that the committed rows of all shards exist; `but_last`: those of the last one are checked elsewhere.
fn check_shards(folder: &Path, description: &Description, but_last: bool) -> Result<(), OperatorError> {
    let count = description.shards.len() - usize::from(but_last && !description.shards.is_empty());
    for shard in description.shards.iter().take(count) {
        let path = folder.join(&shard.file);
        let found = path.metadata().map(|metadata| metadata.len()).unwrap_or_default();
        if found < shard.bytes {
            return Err(OperatorError::new(format!(
                "cannot continue `{}`: {} bytes of it are committed, and it has {found}: {LOST_HELP}",
                path.display(),
                shard.bytes
            )));
        }
    }
    Ok(())
}

fn check_shards_free(folder: &Path, description: &Description) -> Result<(), OperatorError> {
    description.shards.iter().try_for_each(|shard| check_free(&folder.join(&shard.file), folder))
}

fn save(folder: &Path, description: &Description) -> Result<(), OperatorError> {
    description.save(folder).map_err(|error| write_error(&folder.join(FILE), &error))
}

/// Returns the files in a folder that are shards by their names, with their numbers.
fn shards_in(folder: &Path) -> Result<Vec<(u64, PathBuf)>, OperatorError> {
    let list = || -> io::Result<Vec<(u64, PathBuf)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            found.extend(entry.file_name().to_str().and_then(shard_number).map(|n| (n, entry.path())));
        }
        Ok(found)
    };
    list().map_err(|error| write_error(folder, &error))
}

/// Refuses a folder with shards of something else.
fn no_shards(folder: &Path) -> Result<(), OperatorError> {
    match shards_in(folder)?.first() {
        None => Ok(()),
        Some((_, path)) => Err(OperatorError::new(format!(
            "`{}` is there without a `{FILE}`: move it, or choose another path",
            path.display()
        ))),
    }
}

/// Removes the shards from a number on; other files stay.
fn remove_shards(folder: &Path, from: u64) -> Result<(), OperatorError> {
    for (_, path) in shards_in(folder)?.into_iter().filter(|(number, _)| *number >= from) {
        tidemill_disk::remove(&path).map_err(|error| write_error(&path, &error))?;
    }
    Ok(())
}

/// Checks whether a run could write the dataset, and with a token continue it. Changes nothing.
///
/// # Errors
/// Another run writes it, or it has lost rows.
pub(in crate::sinks) fn check(folder: &Path, token: Option<&[u8]>) -> Result<(), OperatorError> {
    match Description::load(folder) {
        Ok(found) => check_shards_free(folder, &found)?,
        Err(DatasetError::None { .. }) => {}
        Err(error) => return Err(unreadable(&error)),
    }
    let Some(token) = token else { return Ok(()) };
    let Token { mut description, last } = read_token::<Token>(folder, token)?;
    forget_removed(folder, &mut description);
    check_shards(folder, &description, last.is_some())?;
    match (last, description.shards.last()) {
        (Some(token), Some(shard)) => Staging::check(&folder.join(&shard.file), token.as_bytes()),
        _ => Ok(()),
    }
}

/// Whether a row has a finite value in each of these columns.
fn is_whole(batch: &RecordBatch, columns: &[usize], row: usize) -> bool {
    columns.iter().all(|column| {
        let column = batch.column(*column);
        if column.is_null(row) {
            return false;
        }
        if let Some(numbers) = column.as_primitive_opt::<Float64Type>() {
            return numbers.value(row).is_finite();
        }
        let Some(list) = column.as_fixed_size_list_opt() else { return true };
        let values = list.value(row);
        if let Some(values) = values.as_primitive_opt::<Float32Type>() {
            return values.values().iter().all(|value| value.is_finite());
        }
        if let Some(values) = values.as_primitive_opt::<Float64Type>() {
            return values.values().iter().all(|value| value.is_finite());
        }
        let half = values.as_primitive_opt::<Float16Type>();
        half.is_none_or(|values| values.values().iter().all(|value| value.is_finite()))
    })
}

impl Sink for Writer {
    fn at_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let plan = Arc::clone(&self.plan);
        let inputs: Vec<usize> =
            plan.rows.names().filter_map(|name| batch.schema_ref().index_of(name).ok()).collect();
        debug_assert!(inputs.iter().all(|column| *column >= METADATA_COLUMNS), "inputs are payload");
        for row in 0..batch.num_rows() {
            let Some(label) = plan.labels.of(batch, row) else {
                self.left_out.0 += 1;
                continue;
            };
            if !is_whole(batch, &inputs, row) {
                self.left_out.1 += 1;
            } else if self.knows(&label) {
                self.write_row(batch, row, label)?;
            } else {
                let detail = format!(
                    "`{label}` in `{}` would be class {} of the dataset, and {MOST_CLASSES} are possible",
                    plan.empty.label,
                    MOST_CLASSES + 1
                );
                self.letters.push((self.epoch, DeadLetter::of_row(batch, row, "too_many_classes", detail)));
            }
        }
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        let left_out = std::mem::take(&mut self.left_out);
        if left_out == (0, 0) && self.open.iter().all(|open| open.staged.is_empty()) {
            return Ok(());
        }
        self.description.without_label += left_out.0;
        self.description.without_input += left_out.1;
        for open in &mut self.open {
            open.staging.commit()?;
            let is_new = open.shard.rows == 0;
            open.shard.bytes = open.staging.committed();
            for (class, rows) in std::mem::take(&mut open.staged) {
                open.shard.rows += rows;
                *open.shard.classes.entry(class).or_insert(0) += rows;
            }
            match self.description.shards.last_mut().filter(|_| !is_new) {
                Some(last) => last.clone_from(&open.shard),
                None => self.description.shards.push(open.shard.clone()),
            }
        }
        let surplus = self.surplus();
        let of_shard = self.plan.of_shard();
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        while self.open.first().is_some_and(|open| self.open.len() > 1 || open.rows() >= of_shard) {
            let open = self.open.remove(0);
            full.push((open.number, open.staging));
        }
        let first = self.description.shards.first().and_then(|shard| shard_number(&shard.file));
        full.retain(|(number, _)| first.is_none_or(|first| *number >= first));
        drop(full);
        save(&self.plan.folder, &self.description)?;
        // A reader of the new description needs none of them.
        for file in surplus {
            let path = self.plan.folder.join(file);
            tidemill_disk::remove(&path).map_err(|error| write_error(&path, &error))?;
        }
        Ok(())
    }

    fn take_dead_letters(&mut self) -> Vec<(u64, DeadLetter)> {
        std::mem::take(&mut self.letters)
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.left_out = (0, 0);
        self.letters.clear();
        for open in &mut self.open {
            open.staged.clear();
            open.staging.rollback()?;
        }
        while let Some(open) = self.open.pop_if(|open| open.shard.rows == 0) {
            self.next = open.number;
            let path = self.plan.folder.join(&open.shard.file);
            tidemill_disk::remove(&path).map_err(|error| write_error(&path, &error))?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        let durable = self.rollback().and_then(|()| self.flush().map_or(Ok(()), |flush| flush()));
        self.release()?;
        durable
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        let last = self.open.first().filter(|open| open.shard.rows > 0);
        let last = last.map(|open| open.staging.token()).transpose()?.flatten();
        let last = last.map(|token| String::from_utf8_lossy(&token).into_owned());
        write_token(&Token { description: self.description.clone(), last }).map(Some)
    }

    fn flush(&self) -> Option<Flush> {
        let (folder, full) = (self.plan.folder.clone(), Arc::clone(&self.full));
        let last = self.open.first().and_then(|open| open.staging.flush());
        Some(Box::new(move || {
            let full = std::mem::take(&mut *full.lock().unwrap_or_else(PoisonError::into_inner));
            full.iter().try_for_each(|(_, staging)| staging.sync())?;
            last.map_or(Ok(()), |flush| flush())?;
            Description::sync(&folder).map_err(|error| write_error(&folder.join(FILE), &error))
        }))
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.release()
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        // A token takes back every later commit.
        Publication::EachEpoch
    }
}
