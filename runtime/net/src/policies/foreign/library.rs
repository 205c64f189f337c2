//! A library and its instances. All unsafe code of the crate is here.
//!
//! What a library promises is said in `include/tidemill_policy.h`. Nothing can make it keep that; what it returns is checked.
#![expect(unsafe_code, reason = "functions of a library")]
use super::abi::{self, Decision, ErrorBuffer, Export, Frame, SYMBOL, Table, Text, VERSION};
use crate::edge_name::EdgeName;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{Array, ArrayRef};
use arrow_schema::Field;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes for the reason of a failure.
const ERROR: usize = 1024;
/// Bytes of a name.
const NAME: usize = 64;
/// Bytes of the names of columns.
const COLUMNS: usize = 64 << 10;
/// Bytes of a state.
const STATE: usize = 16 << 20;

/// A library that is loaded, with the table of its policy. `dlopen` counts how often a file is loaded.
struct Library {
    table: Table,
    name: String,
    /// The functions are there as long as it is.
    _loaded: libloading::Library,
}

/// An instance of its policy.
pub(super) struct Instance {
    pointer: NonNull<c_void>,
    look: unsafe extern "C" fn(*mut c_void, *const Frame, *mut Decision, *mut ErrorBuffer) -> i32,
    drop: unsafe extern "C" fn(*mut c_void),
    keep: Vec<u8>,
    /// It is unloaded after the instance was dropped, which the order of `Drop` and of members says.
    library: Library,
}

// SAFETY: the header asks for functions that may be called from any thread, one at a time for an instance, and `&mut` or
// the thread that owns it see to the latter: `Instance` is not `Sync`.
unsafe impl Send for Instance {}

/// The facts about a frame.
pub(super) struct Facts<'a> {
    pub(super) now: u64,
    pub(super) channel: u64,
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) rows: usize,
    pub(super) bytes: u64,
    pub(super) waiting: u64,
    pub(super) edge: &'a EdgeName,
    pub(super) columns: Vec<(&'a Field, ArrayRef)>,
}

/// Decision of a library, before it is checked.
pub(super) struct Decided<'a> {
    pub(super) verdict: u32,
    pub(super) wait: u64,
    pub(super) keep: &'a [u8],
}

/// Spells a path in a way that no other load has.
///
/// `dlopen` takes what it loaded under the same path, even where another file is there now; under another spelling it
/// compares the file. So the slash before the name is followed by the digits of a number: `/` is 0 and `./` is 1.
fn spelled(path: &Path) -> PathBuf {
    static LOADS: AtomicU64 = AtomicU64::new(1);
    let mut load = LOADS.fetch_add(1, Ordering::Relaxed);
    let mut spelled = path.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
    spelled.push("/");
    while load > 0 {
        spelled.push(if load & 1 == 1 { "./" } else { "/" });
        load >>= 1;
    }
    spelled.push(path.file_name().unwrap_or_default());
    spelled.into()
}

impl Library {
    fn load(path: &Path) -> Result<Self, String> {
        let place = path.display();
        match std::fs::metadata(path) {
            Ok(file) if file.is_file() => {}
            Ok(_) => return Err(format!("{place} is no file")),
            Err(error) => return Err(format!("{place} cannot be read by the service: {error}")),
        }
        // SAFETY: loading runs the code that the file has for this. The person who names it may run code as the user of
        // the service anyway (`Site::may_load`).
        let loaded = unsafe { libloading::Library::new(spelled(path)) }.map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            format!("{place} cannot be loaded: {cause}; build it for this machine")
        })?;
        // SAFETY: a symbol of this name is a function of this type, says the header. `Option` for one that is null.
        let export =
            unsafe { loaded.get::<Option<Export>>(SYMBOL) }.ok().and_then(|symbol| *symbol).ok_or_else(
                || format!("{place} is no policy: it exports no `{SYMBOL}`; build it with tidemill_policy.h"),
            )?;
        // SAFETY: the function takes nothing, and the library is loaded.
        let table = unsafe { export() };
        if table.is_null() || !table.is_aligned() {
            return Err(format!("{place}: `{SYMBOL}` returns no table; see tidemill_policy.h"));
        }
        // SAFETY: a table of any version begins with its version. It is read before anything else of it.
        let version = unsafe { table.cast::<u32>().read() };
        if version != VERSION {
            return Err(format!(
                "{place} has version {version} of the interface, and this service has version {VERSION}; build it with the \
                 tidemill_policy.h of this service"
            ));
        }
        // SAFETY: a table of this version has all members. Functions that it lacks are null, which `Option` allows.
        let table = unsafe { table.read() };
        if table.name.is_null() {
            return Err(format!("{place}: its table has no name"));
        }
        // SAFETY: the name ends with a NUL and stays, says the header.
        let name = unsafe { CStr::from_ptr(table.name) }.to_bytes();
        if name.is_empty() || name.len() > NAME {
            return Err(format!("{place}: its name has {} bytes, and may have 1 to {NAME}", name.len()));
        }
        Ok(Self { table, name: printable(name), _loaded: loaded })
    }
}

impl Instance {
    /// Loads a library and makes an instance.
    ///
    /// # Errors
    /// The library is no policy of this version, or the options are wrong.
    pub(super) fn make(path: &Path, options: &str) -> Result<Self, String> {
        let library = Library::load(path)?;
        let Table { make: Some(make), look: Some(look), drop: Some(drop), .. } = library.table else {
            return Err(format!("{}: its table lacks `make`, `look` or `drop`", path.display()));
        };
        let mut reason = Reason::default();
        // SAFETY: the options and the place for the reason are valid for the call; the function is of the table's type.
        let pointer = unsafe { make(options.as_ptr(), options.len(), &mut reason.buffer()) };
        let pointer = NonNull::new(pointer).ok_or_else(|| format!("{}: {}", library.name, reason.text()))?;
        Ok(Self { pointer, look, drop, keep: Vec::new(), library })
    }

    pub(super) fn name(&self) -> &str {
        &self.library.name
    }

    /// Asks for the columns that it reads.
    ///
    /// # Errors
    /// Its answer makes no sense.
    pub(super) fn columns(&mut self) -> Result<Vec<String>, String> {
        let Some(columns) = self.library.table.columns else { return Ok(Vec::new()) };
        let names = filled(COLUMNS, "names of columns", |bytes, capacity| {
            // SAFETY: the instance lives, and `bytes` has room for `capacity`.
            unsafe { columns(self.pointer.as_ptr(), bytes, capacity) }
        })?;
        let Some((0, names)) = names.split_last() else {
            return if names.is_empty() {
                Ok(Vec::new())
            } else {
                Err("its last column lacks a NUL".to_owned())
            };
        };
        let names: Vec<String> = names.split(|byte| *byte == 0).map(printable).collect();
        if names.iter().any(String::is_empty) { Err("a column has no name".to_owned()) } else { Ok(names) }
    }

    /// Has it look at a frame.
    ///
    /// # Errors
    /// It cannot judge it, and why.
    pub(super) fn look(&mut self, facts: &Facts<'_>) -> Result<Decided<'_>, String> {
        let exported = facts.columns.iter().map(|(field, array)| {
            Ok((FFI_ArrowArray::new(&array.to_data()), FFI_ArrowSchema::try_from(*field)?))
        });
        let exported: Result<(Vec<_>, Vec<_>), arrow_schema::ArrowError> = exported.collect();
        // What is left of them is released at the end; what the library took has no `release` any more.
        let (mut columns, mut schemas) = exported.map_err(|error| error.to_string())?;
        let frame = Frame {
            size: size_of::<Frame>(),
            now: facts.now,
            channel: facts.channel,
            number: facts.number,
            epoch: facts.epoch,
            rows: facts.rows as u64,
            bytes: facts.bytes,
            waiting: facts.waiting,
            workflow: Text::of(&facts.edge.workflow),
            from: Text::of(&facts.edge.from),
            to: Text::of(&facts.edge.to),
            columns_len: columns.len(),
            columns: columns.as_mut_ptr(),
            schemas: schemas.as_mut_ptr(),
        };
        self.keep.clear();
        self.keep.resize(facts.rows, 1);
        let mut decision = Decision {
            size: size_of::<Decision>(),
            verdict: abi::PASS,
            wait: 0,
            keep: self.keep.as_mut_ptr(),
        };
        let mut reason = Reason::default();
        // SAFETY: the instance lives, and all that the frame, the decision and the reason point to is valid for the call;
        // the library writes to the columns' structs, the decision, its `rows` bytes and the reason only.
        let code = unsafe { (self.look)(self.pointer.as_ptr(), &frame, &mut decision, &mut reason.buffer()) };
        match code {
            0 => Ok(Decided { verdict: decision.verdict, wait: decision.wait, keep: &self.keep }),
            _ => Err(reason.text()),
        }
    }

    /// Asks for its state; `None`: it has none.
    ///
    /// # Errors
    /// Its answer makes no sense.
    pub(super) fn state(&self) -> Result<Option<Vec<u8>>, String> {
        let Some(state) = self.library.table.state else { return Ok(None) };
        filled(STATE, "a state", |bytes, capacity| {
            // SAFETY: the instance lives, and `bytes` has room for `capacity`.
            unsafe { state(self.pointer.as_ptr(), bytes, capacity) }
        })
        .map(Some)
    }

    /// Has it continue with a state.
    ///
    /// # Errors
    /// It cannot, and why.
    pub(super) fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let Some(restore) = self.library.table.restore else { return Ok(()) };
        let mut reason = Reason::default();
        // SAFETY: the instance lives; the state and the place for the reason are valid for the call.
        let code =
            unsafe { restore(self.pointer.as_ptr(), state.as_ptr(), state.len(), &mut reason.buffer()) };
        if code == 0 { Ok(()) } else { Err(reason.text()) }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: the instance lives until here, and nothing has its pointer after this.
        unsafe { (self.drop)(self.pointer.as_ptr()) };
    }
}

/// Calls a function that fills a buffer and returns the bytes that it needs: first without a buffer, then with one.
fn filled(most: usize, what: &str, mut call: impl FnMut(*mut u8, usize) -> usize) -> Result<Vec<u8>, String> {
    let needed = call(std::ptr::null_mut(), 0);
    if needed > most {
        return Err(format!("it has {what} of {needed} bytes, and {most} are allowed"));
    }
    let mut bytes = vec![0; needed];
    if needed > 0 && call(bytes.as_mut_ptr(), needed) != needed {
        return Err(format!("it needs another length for {what} each time it is asked"));
    }
    Ok(bytes)
}

/// The place for the reason of a failure.
struct Reason([u8; ERROR]);

impl Default for Reason {
    fn default() -> Self {
        Self([0; ERROR])
    }
}

impl Reason {
    fn buffer(&mut self) -> ErrorBuffer {
        ErrorBuffer { text: self.0.as_mut_ptr(), capacity: ERROR }
    }

    fn text(&self) -> String {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        if text.is_empty() { "it does not say why it failed".to_owned() } else { printable(text) }
    }
}

/// Bytes as a text that goes into messages and logs: without lines, or what a terminal would take for commands.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
