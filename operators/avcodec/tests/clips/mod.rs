//! The libraries, the program ffmpeg, and clips that it makes.
#![allow(dead_code, reason = "each test program uses a part")]
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tidemill_avcodec::{Decoder, Error, File, Frame, Library, Settings};

/// Limit of pixels that no clip reaches.
pub(crate) const MOST: u64 = 1 << 24;
/// The conversion of the program that the tests compare with.
const SCALE: &str = "scale=flags=bilinear+accurate_rnd+full_chroma_int+bitexact";

/// Finds a file or folder in `.tidemill/lib` of this folder or one above.
fn find(variable: &str, prefix: &str) -> PathBuf {
    if let Some(named) = std::env::var_os(variable).filter(|named| !named.is_empty()) {
        return named.into();
    }
    let folders =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join(".tidemill/lib"));
    let entries =
        folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flat_map(|entries| entries.flatten());
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| {
        panic!("there is no {prefix}* in .tidemill/lib: run `make setup`, or set {variable}")
    })
}

/// The libraries: those of `TIDEMILL_AVCODEC`, else those that `make setup` fetched.
pub(crate) fn library() -> Arc<Library> {
    Library::load(&find("TIDEMILL_AVCODEC", "avcodec-")).unwrap()
}

/// The program.
pub(crate) fn ffmpeg() -> Command {
    let mut command = Command::new(find("TIDEMILL_FFMPEG", "ffmpeg-"));
    command.args(["-nostdin", "-loglevel", "error", "-y"]).stdin(Stdio::null());
    command
}

/// Makes a clip of moving patterns: `source` is `testsrc2=size=64x48:rate=10:duration=2`, for instance.
pub(crate) fn clip(folder: &Path, name: &str, source: &str, options: &str) -> PathBuf {
    let file = folder.join(name);
    let status = ffmpeg()
        .args(["-f", "lavfi", "-i", source])
        .args(options.split_whitespace())
        .args(["-threads", "1"])
        .arg(&file)
        .status();
    assert!(status.unwrap().success(), "{name}");
    file
}

/// All frames as the program writes them in a pixel format, after the conversion if there is one.
pub(crate) fn by_program(file: &Path, conversion: Option<Option<(u32, u32)>>, format: &str) -> Vec<u8> {
    let mut filters = conversion.map_or_else(String::new, |_| format!("{SCALE},"));
    if let Some(Some((width, height))) = conversion {
        filters = format!("{SCALE}:w={width}:h={height},");
    }
    let output = ffmpeg()
        .args(["-copyts", "-err_detect", "explode", "-threads", "1", "-max_error_rate", "1", "-i"])
        .arg(file)
        .args(["-map", "0:v:0", "-fps_mode", "passthrough", "-filter_threads", "1"])
        .args(["-vf", &format!("{filters}format={format}"), "-f", "rawvideo", "-threads", "1", "pipe:1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Decodes the first video of a file to the end. Damaged frames are counted.
pub(crate) fn decode(
    library: &Arc<Library>,
    path: &Path,
    settings: &Settings,
    mut each: impl FnMut(Frame),
) -> Result<usize, Error> {
    let mut file = File::open(library, path, settings)?;
    let stream = file.video().ok_or(Error::NoStream(0))?.number;
    file.select(stream)?;
    let mut decoder = Decoder::of_stream(&file, stream, settings)?;
    let mut damaged = 0;
    while !decoder.has_ended() {
        let sent = match file.read() {
            Ok(Some(packet)) => decoder.send_packet(&packet),
            Ok(None) => decoder.drain(),
            // The container is damaged: nothing more comes.
            Err(_) => {
                damaged += 1;
                decoder.drain()
            }
        };
        damaged += usize::from(sent.is_err());
        loop {
            match decoder.receive() {
                Ok(Some(frame)) => each(frame),
                Ok(None) => break,
                Err(_) => damaged += 1,
            }
        }
    }
    Ok(damaged)
}
