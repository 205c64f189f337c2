//! ffmpeg's libraries and their functions.
#![expect(unsafe_code, reason = "functions of a C library")]
use crate::Error;
use crate::layout::{
    AvCodec, AvCodecContext, AvCodecParameters, AvDictionary, AvFormatContext, AvFrame, AvPacket,
    AvPacketSideData, INVALID_DATA, NO_MEMORY, QUIET, SwsContext,
};
use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_double, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Declares a struct of functions, each with its C type.
macro_rules! functions {
    ($(#[$doc:meta])* $of:ident { $($field:ident = $name:literal : fn($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $of {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $of {
            fn of(library: &Loaded) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of the function of this name in the headers of ffmpeg 8, which has not
                        // changed since ffmpeg 5; the version was checked.
                        let symbol = unsafe { library.get($name.to_bytes_with_nul()) };
                        *symbol.map_err(|error| format!("it has no {}: {error}", stringify!($field)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    /// Functions of libavutil.
    Util {
        set_log_level = c"av_log_set_level": fn(c_int);
        error_text = c"av_strerror": fn(c_int, *mut c_char, usize) -> c_int;
        zeroed = c"av_mallocz": fn(usize) -> *mut c_void;
        new_frame = c"av_frame_alloc": fn() -> *mut AvFrame;
        free_frame = c"av_frame_free": fn(*mut *mut AvFrame);
        set_entry = c"av_dict_set": fn(*mut *mut AvDictionary, *const c_char, *const c_char, c_int) -> c_int;
        free_dictionary = c"av_dict_free": fn(*mut *mut AvDictionary);
        set_option = c"av_opt_set": fn(*mut c_void, *const c_char, *const c_char, c_int) -> c_int;
        set_number = c"av_opt_set_int": fn(*mut c_void, *const c_char, i64, c_int) -> c_int;
        format_name = c"av_get_pix_fmt_name": fn(c_int) -> *const c_char;
        planes = c"av_pix_fmt_count_planes": fn(c_int) -> c_int;
        chroma_shifts = c"av_pix_fmt_get_chroma_sub_sample": fn(c_int, *mut c_int, *mut c_int) -> c_int;
        row_bytes = c"av_image_get_linesize": fn(c_int, c_int, c_int) -> c_int;
        rotation = c"av_display_rotation_get": fn(*const i32) -> c_double;
    }
}

functions! {
    /// Functions of libavcodec.
    Codecs {
        license = c"avcodec_license": fn() -> *const c_char;
        name = c"avcodec_get_name": fn(c_int) -> *const c_char;
        find = c"avcodec_find_decoder": fn(c_int) -> *const AvCodec;
        find_by_name = c"avcodec_find_decoder_by_name": fn(*const c_char) -> *const AvCodec;
        new_context = c"avcodec_alloc_context3": fn(*const AvCodec) -> *mut AvCodecContext;
        free_context = c"avcodec_free_context": fn(*mut *mut AvCodecContext);
        new_parameters = c"avcodec_parameters_alloc": fn() -> *mut AvCodecParameters;
        free_parameters = c"avcodec_parameters_free": fn(*mut *mut AvCodecParameters);
        use_parameters =
            c"avcodec_parameters_to_context": fn(*mut AvCodecContext, *const AvCodecParameters) -> c_int;
        open = c"avcodec_open2": fn(*mut AvCodecContext, *const AvCodec, *mut *mut AvDictionary) -> c_int;
        send = c"avcodec_send_packet": fn(*mut AvCodecContext, *const AvPacket) -> c_int;
        receive = c"avcodec_receive_frame": fn(*mut AvCodecContext, *mut AvFrame) -> c_int;
        flush = c"avcodec_flush_buffers": fn(*mut AvCodecContext);
        new_packet = c"av_packet_alloc": fn() -> *mut AvPacket;
        free_packet = c"av_packet_free": fn(*mut *mut AvPacket);
        clear_packet = c"av_packet_unref": fn(*mut AvPacket);
        fill_packet = c"av_new_packet": fn(*mut AvPacket, c_int) -> c_int;
        side_data =
            c"av_packet_side_data_get": fn(*const AvPacketSideData, c_int, c_int) -> *const AvPacketSideData;
    }
}

functions! {
    /// Functions of libavformat.
    Formats {
        open = c"avformat_open_input":
            fn(*mut *mut AvFormatContext, *const c_char, *const c_void, *mut *mut AvDictionary) -> c_int;
        close = c"avformat_close_input": fn(*mut *mut AvFormatContext);
        find_streams = c"avformat_find_stream_info": fn(*mut AvFormatContext, *mut *mut AvDictionary) -> c_int;
        read = c"av_read_frame": fn(*mut AvFormatContext, *mut AvPacket) -> c_int;
        seek = c"avformat_seek_file": fn(*mut AvFormatContext, c_int, i64, i64, i64, c_int) -> c_int;
    }
}

functions! {
    /// Functions of libswscale.
    Scaling {
        new_context = c"sws_alloc_context": fn() -> *mut SwsContext;
        free_context = c"sws_freeContext": fn(*mut SwsContext);
        prepare = c"sws_init_context": fn(*mut SwsContext, *mut c_void, *mut c_void) -> c_int;
        coefficients = c"sws_getCoefficients": fn(c_int) -> *const c_int;
        set_colours = c"sws_setColorspaceDetails":
            fn(*mut SwsContext, *const c_int, c_int, *const c_int, c_int, c_int, c_int, c_int) -> c_int;
        scale = c"sws_scale":
            fn(*mut SwsContext, *const *const u8, *const c_int, c_int, c_int, *const *mut u8, *const c_int) -> c_int;
    }
}

/// Version of a library: major, minor, micro.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Versions of the libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// Version of libavutil.
    pub util: Version,
    /// Version of libavcodec.
    pub codec: Version,
    /// Version of libavformat.
    pub format: Version,
    /// Version of libswscale, if it is there.
    pub scale: Option<Version>,
}

/// A library that is needed: its name, the function that tells its version, and the first version with the structs of
/// [`crate::layout`], which is that of ffmpeg 8.0.
struct Wanted {
    name: &'static str,
    version: &'static CStr,
    least: Version,
}

const UTIL: Wanted = Wanted { name: "libavutil", version: c"avutil_version", least: Version(60, 8, 0) };
const CODEC: Wanted = Wanted { name: "libavcodec", version: c"avcodec_version", least: Version(62, 11, 0) };
const FORMAT: Wanted = Wanted { name: "libavformat", version: c"avformat_version", least: Version(62, 3, 0) };
const SCALE: Wanted = Wanted { name: "libswscale", version: c"swscale_version", least: Version(9, 1, 0) };

/// ffmpeg's libraries, loaded for the rest of the process.
#[derive(Debug)]
pub struct Library {
    folder: PathBuf,
    versions: Versions,
    pub(crate) util: Util,
    pub(crate) codecs: Codecs,
    pub(crate) formats: Formats,
    pub(crate) scaling: Option<Scaling>,
    /// The functions are only valid while these are loaded.
    _loaded: Vec<Loaded>,
}

impl Library {
    /// Loads the libraries of a folder; a second call with the same folder returns the same handle. They are never
    /// unloaded. From then on they write nothing to standard error.
    ///
    /// The folder has the libraries of ffmpeg 8, named `libavcodec.so.62` as systems have them, or
    /// `libavcodec-5e6b81c2.so.62.28.102` as Python packages do. libswscale may be missing: then [`crate::Scaler`] is.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Load`] or [`Error::Version`].
    pub fn load(folder: &Path) -> Result<Arc<Self>, Error> {
        static LOADED: Mutex<Vec<Arc<Library>>> = Mutex::new(Vec::new());
        let missing = || Error::Missing { folder: folder.to_owned(), name: UTIL.name };
        let folder = folder.canonicalize().map_err(|_| missing())?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loaded.iter().find(|known| known.folder == folder) {
            return Ok(Arc::clone(known));
        }
        let library = Arc::new(Self::open(folder)?);
        // SAFETY: the function takes any number.
        unsafe { (library.util.set_log_level)(QUIET) };
        loaded.push(Arc::clone(&library));
        Ok(library)
    }

    fn open(folder: PathBuf) -> Result<Self, Error> {
        // Each needs those before it. Libraries that these need in turn are found by their own search paths.
        let (util, util_version, util_file) = open(&folder, &UTIL)?;
        let (codec, codec_version, codec_file) = open(&folder, &CODEC)?;
        let (format, format_version, format_file) = open(&folder, &FORMAT)?;
        let scale = match open(&folder, &SCALE) {
            Ok(opened) => Some(opened),
            Err(Error::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        let lacks = |path: &PathBuf| {
            let path = path.clone();
            move |reason| Error::Load { path, reason }
        };
        Ok(Self {
            versions: Versions {
                util: util_version,
                codec: codec_version,
                format: format_version,
                scale: scale.as_ref().map(|(_, version, _)| *version),
            },
            util: Util::of(&util).map_err(lacks(&util_file))?,
            codecs: Codecs::of(&codec).map_err(lacks(&codec_file))?,
            formats: Formats::of(&format).map_err(lacks(&format_file))?,
            scaling: match &scale {
                Some((scale, _, file)) => Some(Scaling::of(scale).map_err(lacks(file))?),
                None => None,
            },
            _loaded: [util, codec, format].into_iter().chain(scale.map(|(scale, ..)| scale)).collect(),
            folder,
        })
    }

    /// Returns the folder the libraries were loaded from.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the versions of the libraries.
    pub fn versions(&self) -> Versions {
        self.versions
    }

    /// Returns the licence that libavcodec states for itself, such as `LGPL version 2.1 or later`. Libraries that it needs
    /// in turn may have another.
    pub fn license(&self) -> String {
        // SAFETY: takes no arguments and returns a static string that ends with a zero.
        unsafe { CStr::from_ptr((self.codecs.license)()) }.to_string_lossy().into_owned()
    }

    /// Turns a negative result into an error.
    pub(crate) fn checked(&self, code: c_int, what: &'static str) -> Result<c_int, Error> {
        match code {
            0.. => Ok(code),
            INVALID_DATA => Err(Error::Damaged(what)),
            NO_MEMORY => Err(Error::Memory(what)),
            _ => Err(Error::Refused { what, code, text: self.words(code) }),
        }
    }

    /// Returns ffmpeg's words for an error.
    pub(crate) fn words(&self, code: c_int) -> String {
        let mut text = [0u8; 128];
        // SAFETY: it writes at most that many bytes, and a zero at the end.
        unsafe { (self.util.error_text)(code, text.as_mut_ptr().cast(), text.len()) };
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}

/// Loads a library and checks its version.
fn open(folder: &Path, wanted: &Wanted) -> Result<(Loaded, Version, PathBuf), Error> {
    let (path, is_major) = find(folder, wanted)
        .ok_or_else(|| Error::Missing { folder: folder.to_owned(), name: wanted.name })?;
    let needed = || format!("{}.{} or a later {}", wanted.least.0, wanted.least.1, wanted.least.0);
    if !is_major {
        // It is not loaded: its name says enough.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let found = name.rsplit_once(".so.").map_or("unknown", |(_, version)| version).to_owned();
        return Err(Error::Version { found, needed: needed(), path });
    }
    let failed = |error: libloading::Error| Error::Load { path: path.clone(), reason: error.to_string() };
    // SAFETY: loading runs the initialisers of the file's static objects. Those of ffmpeg need nothing of ours; the caller
    // vouches that the folder is one of ffmpeg's libraries.
    let loaded = unsafe { Loaded::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
    // SAFETY: this is its type in every version of ffmpeg.
    let version = unsafe { loaded.get::<unsafe extern "C" fn() -> u32>(wanted.version.to_bytes_with_nul()) };
    // SAFETY: it takes no arguments.
    let version = unsafe { version.map_err(failed)?() };
    let version = Version(version >> 16, version >> 8 & 0xff, version & 0xff);
    if version < wanted.least || version.0 != wanted.least.0 {
        return Err(Error::Version { found: version.to_string(), needed: needed(), path });
    }
    Ok((loaded, version, path))
}

/// Finds the file of a library, and whether its name has the major version that is wanted.
fn find(folder: &Path, wanted: &Wanted) -> Option<(PathBuf, bool)> {
    let major = wanted.least.0.to_string();
    let entries = std::fs::read_dir(folder).ok()?;
    let files = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let rest = name.to_str()?.strip_prefix(wanted.name)?;
        // `libavcodec.so.62` or `libavcodec-5e6b81c2.so.62.28.102`.
        let (hash, version) = rest.split_once(".so.")?;
        let is_named = hash.is_empty() || hash.starts_with('-');
        is_named.then(|| (version.split('.').next() == Some(&major), entry.path()))
    });
    let (is_major, path) = files.max()?;
    Some((path, is_major))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_libraries_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let error = Library::load(folder.path()).unwrap_err();
        assert!(matches!(&error, Error::Missing { name: "libavutil", .. }), "{error}");
        assert!(error.to_string().contains("scripts/fetch-library.sh avcodec"), "{error}");
        let nowhere = Library::load(&folder.path().join("nowhere")).unwrap_err();
        assert!(matches!(nowhere, Error::Missing { .. }), "{nowhere}");
    }

    #[test]
    fn another_version_is_refused_by_its_name_and_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libavutil.so.59.39.100"), "no library").unwrap();
        let error = Library::load(folder.path()).unwrap_err();
        let Error::Version { found, needed, .. } = &error else { panic!("{error}") };
        assert_eq!((found.as_str(), needed.as_str()), ("59.39.100", "60.8 or a later 60"));
        // The right one is found beside it, and is none.
        std::fs::write(folder.path().join("libavutil-0a.so.60.26.101"), "no library").unwrap();
        let error = Library::load(folder.path()).unwrap_err();
        assert!(matches!(error, Error::Load { .. }), "{error}");
    }
}
