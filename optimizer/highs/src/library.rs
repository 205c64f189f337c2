//! The C functions of the library. All unsafe code of the crate is here.
//!
//! Types follow `highs_c_api.h` of HiGHS 1.15 with `HighsInt` of 32 bits, which is checked when the library is opened.
#![expect(unsafe_code, reason = "functions of a C library")]
use crate::{HighsError, Program, Settings, Solved, Status};
use std::ffi::{CStr, c_char, c_double, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::{Mutex, PoisonError};

/// A model in the library's memory.
type Model = *mut c_void;

/// `kHighsStatusError`.
const STATUS_ERROR: c_int = -1;
/// `kHighsMatrixFormatRowwise`.
const ROW_WISE: c_int = 2;
/// `kHighsObjSenseMinimize`.
const MINIMIZE: c_int = 1;
/// `kHighsSolutionStatusFeasible`.
const FEASIBLE: c_int = 2;

/// The functions used, each with its C type.
macro_rules! functions {
    ($($field:ident = $name:literal : fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[derive(Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of the function of this name in `highs_c_api.h`, which has not
                        // changed since HiGHS 1.7.
                        let symbol = unsafe { library.get($name.to_bytes_with_nul()) };
                        *symbol.map_err(|error| format!("it has no {}: {error}", stringify!($field)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    version = c"Highs_version": fn() -> *const c_char;
    size_of_int = c"Highs_getSizeofHighsInt": fn(Model) -> c_int;
    create = c"Highs_create": fn() -> Model;
    destroy = c"Highs_destroy": fn(Model);
    set_bool = c"Highs_setBoolOptionValue": fn(Model, *const c_char, c_int) -> c_int;
    set_int = c"Highs_setIntOptionValue": fn(Model, *const c_char, c_int) -> c_int;
    set_double = c"Highs_setDoubleOptionValue": fn(Model, *const c_char, c_double) -> c_int;
    pass = c"Highs_passMip": fn(
        Model, c_int, c_int, c_int, c_int, c_int, c_double, *const c_double, *const c_double, *const c_double,
        *const c_double, *const c_double, *const c_int, *const c_int, *const c_double, *const c_int
    ) -> c_int;
    set_solution = c"Highs_setSolution":
        fn(Model, *const c_double, *const c_double, *const c_double, *const c_double) -> c_int;
    run = c"Highs_run": fn(Model) -> c_int;
    status = c"Highs_getModelStatus": fn(Model) -> c_int;
    objective = c"Highs_getObjectiveValue": fn(Model) -> c_double;
    int_info = c"Highs_getIntInfoValue": fn(Model, *const c_char, *mut c_int) -> c_int;
    long_info = c"Highs_getInt64InfoValue": fn(Model, *const c_char, *mut i64) -> c_int;
    double_info = c"Highs_getDoubleInfoValue": fn(Model, *const c_char, *mut c_double) -> c_int;
    solution = c"Highs_getSolution":
        fn(Model, *mut c_double, *mut c_double, *mut c_double, *mut c_double) -> c_int;
}

/// The library, loaded for the rest of the process.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
    functions: Functions,
    version: String,
    /// The functions are only valid while it is loaded.
    _loaded: libloading::Library,
}

/// Loads the library, once for each file.
pub(crate) fn open(path: &Path) -> Result<&'static Library, String> {
    static OPEN: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = open.iter().find(|known| known.path == path) {
        return Ok(known);
    }
    // Never unloaded: unloading C++ libraries is unsafe, and a process loads it once.
    let library: &'static Library = Box::leak(Box::new(Library::load(path)?));
    open.push(library);
    Ok(library)
}

impl Library {
    fn load(path: PathBuf) -> Result<Self, String> {
        // SAFETY: loading runs the initialisers of the file's static objects. Those of HiGHS need nothing of ours; the
        // caller vouches that the file is HiGHS, and its required functions are looked up next.
        let loaded = unsafe { libloading::Library::new(&path) }.map_err(|error| error.to_string())?;
        let functions = Functions::of(&loaded)?;
        // SAFETY: takes no arguments and returns a static string that ends with a zero.
        let version = unsafe { CStr::from_ptr((functions.version)()) }.to_string_lossy().into_owned();
        let library = Self { path, functions, version, _loaded: loaded };
        let model = Owned::new(&library)?;
        // SAFETY: the model is alive.
        let bytes = unsafe { (library.functions.size_of_int)(model.0) };
        drop(model);
        match bytes {
            4 => Ok(library),
            _ => Err(format!("it was built with indices of {} bits, but 32 are required", 8 * bytes)),
        }
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn solve(&self, program: &Program, settings: &Settings<'_>) -> Result<Solved, HighsError> {
        let model = Owned::new(self).map_err(|_| HighsError::Refused("a new model"))?;
        model.set_bool(c"output_flag", false)?;
        // With several threads the answer would depend on their timing.
        model.set_int(c"threads", 1)?;
        model.set_double(c"mip_rel_gap", settings.relative_gap)?;
        model.set_double(c"mip_abs_gap", 0.0)?;
        model.set_double(c"mip_feasibility_tolerance", settings.integer_tolerance)?;
        if settings.seconds.is_finite() {
            model.set_double(c"time_limit", settings.seconds.max(1e-3))?;
        }
        if let Some(nodes) = settings.nodes {
            model.set_int(c"mip_max_nodes", c_int::try_from(nodes).unwrap_or(c_int::MAX))?;
        }
        model.pass(program)?;
        if let Some(start) = settings.start.filter(|start| start.len() == program.columns()) {
            model.start(start);
        }
        model.run()?;
        Ok(model.solved(program))
    }
}

/// A model that is destroyed when it is dropped.
struct Owned<'a>(Model, &'a Functions);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        unsafe { (self.1.destroy)(self.0) };
    }
}

impl<'a> Owned<'a> {
    fn new(library: &'a Library) -> Result<Self, String> {
        // SAFETY: takes no arguments.
        let model = unsafe { (library.functions.create)() };
        match model.is_null() {
            true => Err("it gives no model".to_owned()),
            false => Ok(Self(model, &library.functions)),
        }
    }

    fn set_bool(&self, name: &CStr, value: bool) -> Result<(), HighsError> {
        // SAFETY: the model is alive, the name ends with a zero.
        accepted(unsafe { (self.1.set_bool)(self.0, name.as_ptr(), c_int::from(value)) }, "an option")
    }

    fn set_int(&self, name: &CStr, value: c_int) -> Result<(), HighsError> {
        // SAFETY: as above.
        accepted(unsafe { (self.1.set_int)(self.0, name.as_ptr(), value) }, "an option")
    }

    fn set_double(&self, name: &CStr, value: f64) -> Result<(), HighsError> {
        // SAFETY: as above.
        accepted(unsafe { (self.1.set_double)(self.0, name.as_ptr(), value) }, "an option")
    }

    fn pass(&self, program: &Program) -> Result<(), HighsError> {
        let count =
            |length: usize| c_int::try_from(length).map_err(|_| HighsError::Refused("so large a program"));
        let (columns, rows) = (count(program.columns())?, count(program.rows())?);
        let coefficients = count(program.coefficients.len())?;
        // SAFETY: every array has the length that goes with it: `columns` for costs, bounds and integrality, `rows` for
        // bounds and starts, `coefficients` for indices and values; indices are below `columns` (`Program::row`), starts
        // rise from 0 to at most `coefficients`. HiGHS copies all of it.
        let status = unsafe {
            (self.1.pass)(
                self.0,
                columns,
                rows,
                coefficients,
                ROW_WISE,
                MINIMIZE,
                0.0,
                program.costs.as_ptr(),
                program.column_low.as_ptr(),
                program.column_high.as_ptr(),
                program.row_low.as_ptr(),
                program.row_high.as_ptr(),
                program.starts.as_ptr(),
                program.indices.as_ptr(),
                program.coefficients.as_ptr(),
                program.integer.as_ptr(),
            )
        };
        accepted(status, "the program")
    }

    /// One value for each column.
    fn start(&self, values: &[f64]) {
        // SAFETY: one value for each column of the model; the other arrays may be null. Rejection of a point that does
        // not fit is no failure, because it is a hint.
        unsafe { (self.1.set_solution)(self.0, values.as_ptr(), null(), null(), null()) };
    }

    fn run(&self) -> Result<(), HighsError> {
        // SAFETY: the model is alive.
        accepted(unsafe { (self.1.run)(self.0) }, "to solve the program")
    }

    fn solved(&self, program: &Program) -> Solved {
        // SAFETY: the model is alive.
        let status = match unsafe { (self.1.status)(self.0) } {
            // `kHighsModelStatusOptimal`; an empty model has its only point.
            6 | 7 => Status::Optimal,
            8 => Status::Infeasible,
            13 => Status::TimeLimit,
            // Iterations, solutions.
            14 | 16 => Status::NodeLimit,
            _ => Status::Unknown,
        };
        let has_point = self.int_info(c"primal_solution_status") == Some(FEASIBLE);
        let values = has_point.then(|| self.values(program));
        // SAFETY: the model is alive.
        let objective = if has_point { unsafe { (self.1.objective)(self.0) } } else { 0.0 };
        let bound = match program.has_integers() {
            true => self.double_info(c"mip_dual_bound").filter(|bound| bound.is_finite()),
            false => (has_point && status == Status::Optimal).then_some(objective),
        };
        let nodes = self.long_info(c"mip_node_count").and_then(|nodes| u64::try_from(nodes).ok());
        Solved {
            status,
            values,
            objective,
            bound,
            nodes: nodes.filter(|_| program.has_integers()).unwrap_or(0),
        }
    }

    fn values(&self, program: &Program) -> Vec<f64> {
        let (mut values, mut column_duals) = (vec![0.0; program.columns()], vec![0.0; program.columns()]);
        let (mut activities, mut row_duals) = (vec![0.0; program.rows()], vec![0.0; program.rows()]);
        // SAFETY: the first two arrays have one entry per column, the others one per row.
        unsafe {
            (self.1.solution)(
                self.0,
                values.as_mut_ptr(),
                column_duals.as_mut_ptr(),
                activities.as_mut_ptr(),
                row_duals.as_mut_ptr(),
            )
        };
        values
    }

    fn int_info(&self, name: &CStr) -> Option<c_int> {
        let mut value = 0;
        // SAFETY: the model is alive, the name ends with a zero, the value has the type of this function.
        let status = unsafe { (self.1.int_info)(self.0, name.as_ptr(), &raw mut value) };
        (status != STATUS_ERROR).then_some(value)
    }

    fn long_info(&self, name: &CStr) -> Option<i64> {
        let mut value = 0;
        // SAFETY: as above.
        let status = unsafe { (self.1.long_info)(self.0, name.as_ptr(), &raw mut value) };
        (status != STATUS_ERROR).then_some(value)
    }

    fn double_info(&self, name: &CStr) -> Option<f64> {
        let mut value = 0.0;
        // SAFETY: as above.
        let status = unsafe { (self.1.double_info)(self.0, name.as_ptr(), &raw mut value) };
        (status != STATUS_ERROR).then_some(value)
    }
}

/// Accepts warnings: a time limit is one.
fn accepted(status: c_int, what: &'static str) -> Result<(), HighsError> {
    if status == STATUS_ERROR { Err(HighsError::Refused(what)) } else { Ok(()) }
}
