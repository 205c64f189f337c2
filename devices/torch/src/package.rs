//! Packages of `torch.export` that AOTInductor has compiled (.pt2): machine code and weights in a zip.
#![expect(unsafe_code, reason = "libtorch loads packages by functions of C++")]
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use tch::Tensor;
use tidemill_device::processor::check_outputs;

/// Bytes of a message.
const ROOM: usize = 2048;
/// Folder of the compiled models in a package, below its own.
const COMPILED: &str = "data/aotinductor/model/";

// package.cpp
unsafe extern "C" {
    fn tidemill_package_load(folder: *const c_char, reason: *mut c_char, room: usize) -> *mut c_void;
    fn tidemill_package_run(
        package: *mut c_void,
        inputs: *const *const c_void,
        count: usize,
        outputs: *mut *mut c_void,
        most: usize,
        found: *mut usize,
        reason: *mut c_char,
        room: usize,
    ) -> bool;
    fn tidemill_package_free(package: *mut c_void);
}

/// A loaded package.
pub struct Package(NonNull<c_void>);

// SAFETY: it belongs to no thread, and is used by one at a time: `run` takes it mutably.
unsafe impl Send for Package {}

impl Package {
    /// Loads the package in a file. Its content is unpacked beside it and gone when this returns: the code is mapped then.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let folder = path.with_extension("pt2.unpacked");
        let loaded = unpack(path, &folder).and_then(|root| Self::load_folder(&root));
        // What remains goes with the folder of the session.
        let _ = fs::remove_dir_all(&folder);
        loaded
    }

    fn load_folder(folder: &Path) -> Result<Self, String> {
        let folder =
            CString::new(folder.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        let mut reason = [0u8; ROOM];
        // SAFETY: the folder ends with a zero, and the reason has the given room.
        let loaded = unsafe { tidemill_package_load(folder.as_ptr(), reason.as_mut_ptr().cast(), ROOM) };
        NonNull::new(loaded).map(Self).ok_or_else(|| text(&reason))
    }

    /// Runs it once. The result has `outputs` tensors.
    pub(crate) fn run(&mut self, inputs: &[&Tensor], outputs: usize) -> Result<Vec<Tensor>, String> {
        let inputs: Vec<*const c_void> = inputs.iter().map(|tensor| tensor.as_ptr().cast()).collect();
        let (mut results, mut found) = (vec![ptr::null_mut::<c_void>(); outputs], 0);
        let mut reason = [0u8; ROOM];
        // SAFETY: the package is loaded; the inputs are tensors that live until it returns; the results and the reason have the
        // given room.
        let is_done = unsafe {
            tidemill_package_run(
                self.0.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                results.as_mut_ptr(),
                outputs,
                &raw mut found,
                reason.as_mut_ptr().cast(),
                ROOM,
            )
        };
        // One that fails midway has made some.
        let results = results.into_iter().filter(|result| !result.is_null());
        // SAFETY: each is a tensor on the heap, as those of `tch` are, and has no other owner.
        let results: Vec<Tensor> = results.map(|result| unsafe { Tensor::from_ptr(result.cast()) }).collect();
        if !is_done {
            return Err(text(&reason));
        }
        check_outputs(found, outputs)?;
        Ok(results)
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        // SAFETY: it was loaded, and nothing uses it any more.
        unsafe { tidemill_package_free(self.0.as_ptr()) }
    }
}

/// The first line of a message that ends with a zero.
fn text(reason: &[u8]) -> String {
    let reason = CStr::from_bytes_until_nul(reason).unwrap_or_default().to_string_lossy();
    reason.lines().next().unwrap_or_default().to_owned()
}

/// Unpacks a package; returns its root in the folder.
fn unpack(path: &Path, folder: &Path) -> Result<PathBuf, String> {
    let failed = |error: &dyn std::fmt::Display| format!("it cannot be unpacked: {error}");
    let mut archive = zip::ZipArchive::new(File::open(path).map_err(|error| failed(&error))?)
        .map_err(|error| failed(&error))?;
    let mut root = None;
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(|error| failed(&error))?;
        let name = entry.enclosed_name().ok_or_else(|| failed(&"a name in it leads elsewhere"))?.to_owned();
        let target = folder.join(&name);
        if entry.is_dir() {
            continue;
        }
        if let Some((before, _)) = name.to_string_lossy().split_once(COMPILED) {
            root = Some(folder.join(before));
        }
        let parent = target.parent().unwrap_or(folder);
        let written = fs::create_dir_all(parent)
            .and_then(|()| File::create(&target))
            .and_then(|mut file| io::copy(&mut entry, &mut file));
        written.map_err(|error| failed(&error))?;
    }
    root.ok_or_else(|| {
        "it has no compiled model named `model`; write it by `torch._inductor.aoti_compile_and_package`"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn packed(folder: &Path, names: &[&str]) -> PathBuf {
        let path = folder.join("m.pt2");
        let mut archive = zip::ZipWriter::new(File::create(&path).expect("a file"));
        for name in names {
            archive.start_file(*name, zip::write::FileOptions::default()).expect("an entry");
            archive.write_all(b"content").expect("it is written");
        }
        archive.finish().expect("it is finished");
        path
    }

    #[test]
    fn a_package_without_compiled_model_is_refused_with_what_writes_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = packed(folder.path(), &["m/models/model.json", "m/version"]);
        let told = Package::load(&path).err().expect("it is refused");
        assert!(told.contains("aoti_compile_and_package"), "{told}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing stays beside it");
    }

    #[test]
    fn a_package_whose_names_lead_out_of_it_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = packed(folder.path(), &["../outside.so"]);
        let told = Package::load(&path).err().expect("it is refused");
        assert!(told.contains("leads elsewhere") && !folder.path().join("outside.so").exists(), "{told}");
    }

    #[test]
    fn code_that_is_none_is_refused_by_libtorch() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = packed(folder.path(), &["m/data/aotinductor/model/m.so"]);
        let told = Package::load(&path).err().expect("it is refused");
        assert!(!told.is_empty() && !told.contains("frame #"), "{told}");
    }
}
