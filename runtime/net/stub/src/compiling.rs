//! .proto files to descriptors.

use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;
use tidemill_schema::SchemaError;

/// Reason why there is no code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StubError {
    /// A .proto file does not compile; the text names file, line and column.
    #[error("{0}")]
    Proto(String),
    /// The bytes are no set of descriptors.
    #[error("the descriptors are no FileDescriptorSet: {0}")]
    Malformed(String),
    /// The descriptors are no schema of Tidemill.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The client sends a stream to a method.
    #[error(
        "method {method}: streams from the client are not supported; take one request, or let the client call many times"
    )]
    ClientStreaming {
        /// Full name of the method.
        method: String,
    },
    /// Two things get the same name in Rust.
    #[error("{first} and {second} would have the same name in Rust; rename one of them")]
    SameName {
        /// Name in the .proto file.
        first: String,
        /// Name in the .proto file.
        second: String,
    },
    /// A file cannot be written.
    #[error("{}: {error}", path.display())]
    Write {
        /// File that was to be written.
        path: PathBuf,
        /// Reason of the system.
        error: std::io::Error,
    },
    /// It runs outside of a build script.
    #[error("OUT_DIR is not set: write() is for build.rs; use out_dir() elsewhere")]
    NoOutDir,
}

/// Compiles .proto files, with all that they import, to the bytes of a `FileDescriptorSet` without comments. The files are
/// looked for in the directories.
///
/// # Errors
///
/// Mistakes in the files, with file, line and column.
pub fn compile(protos: &[impl AsRef<Path>], includes: &[impl AsRef<Path>]) -> Result<Vec<u8>, StubError> {
    let mut set = with_comments(protos, includes)?;
    strip(&mut set);
    Ok(set.encode_to_vec())
}

/// Compiles .proto files and keeps their comments.
pub(crate) fn with_comments(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<FileDescriptorSet, StubError> {
    // Its Debug form has the place of a mistake, its Display form has not.
    let wrong = |error: protox::Error| StubError::Proto(format!("{error:?}"));
    let mut compiler = protox::Compiler::new(includes).map_err(wrong)?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(protos).map_err(wrong)?;
    Ok(compiler.file_descriptor_set())
}

/// Takes the comments out.
pub(crate) fn strip(set: &mut FileDescriptorSet) {
    set.file.iter_mut().for_each(|file| file.source_code_info = None);
}
