//! The wheel: its name says what runs it, and it has the command and the whole package.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::path::Path;
use std::process::Command;

const LOOK: &str = "
import base64, hashlib, pathlib, re, sys, zipfile
path = pathlib.Path(sys.argv[1])
assert re.fullmatch(r'tidemill-1\\.2\\.3-py3-none-manylinux_2_[0-9]+_(x86_64|aarch64)\\.whl', path.name), path.name
wheel = zipfile.ZipFile(path)
names = set(wheel.namelist())
package = pathlib.Path('operators/python/python/tidemill')
for file in package.rglob('*.py'):
    assert wheel.read(f'tidemill/{file.relative_to(package)}') == file.read_bytes(), file
command = 'tidemill-1.2.3.data/scripts/tidemill'
assert wheel.getinfo(command).external_attr >> 16 & 0o111 == 0o111, 'the command can be started'
record = wheel.read('tidemill-1.2.3.dist-info/RECORD').decode().splitlines()
assert {line.split(',')[0] for line in record} == names
for line in record[:-1]:
    name, digest, size = line.split(',')
    found = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b'=').decode()
    assert (digest, size) == (f'sha256={found}', str(wheel.getinfo(name).file_size)), name
assert {'tidemill/py.typed', 'tidemill-1.2.3.dist-info/licenses/LICENSE'} <= names
sys.path[:0] = [str(path)]
import tidemill
assert tidemill.__file__.startswith(str(path)) and callable(tidemill.run) and callable(tidemill.plan)
import tidemill.collective
assert tidemill.collective.__file__.startswith(str(path)) and callable(tidemill.collective.init)
";

fn build(program: &str, folder: &Path) -> std::process::Output {
    let mut command = Command::new("python3");
    command.args(["scripts/build_wheel.py", program, "1.2.3"]).arg(folder);
    command.current_dir(root()).output().unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn a_wheel_has_the_command_the_package_and_an_honest_tag() {
    let folder = tempfile::tempdir().unwrap();
    let built = build("/bin/true", folder.path());
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let wheel = String::from_utf8(built.stdout).unwrap();
    let looked =
        Command::new("python3").args(["-c", LOOK, wheel.trim()]).current_dir(root()).output().unwrap();
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stderr));
    let script = build("scripts/wheel.sh", folder.path());
    assert!(String::from_utf8_lossy(&script.stderr).contains("no ELF file"), "{script:?}");
}
