import importlib.abc, importlib.util, json, signal, socket, struct, sys

signal.signal(signal.SIGINT, signal.SIG_IGN)
control, requests, results = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
control = socket.socket(fileno=control)


def receive(length):
    data = b""
    while len(data) < length:
        piece = control.recv(length - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


hello = json.loads(receive(struct.unpack("<IIQ", receive(16))[0]))
if sys.version_info < (3, 9):
    version = ".".join(map(str, sys.version_info[:2]))
    message = "this is Python %s, and a step needs 3.9 or newer: name another one with `python`" % version
    answer = json.dumps({"version": 1, "error": {"message": message, "traceback": "", "file": None, "line": None}}).encode()
    control.sendall(struct.pack("<IIQ", len(answer), 16, 0) + answer)
    sys.exit(1)


class Package(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the package from the greeting."""

    def find_spec(self, name, path=None, target=None):
        stem = name.replace(".", "/")
        for file in (stem + "/__init__.py", stem + ".py"):
            if file in hello["package"]:
                is_package = file.endswith("/__init__.py")
                spec = importlib.util.spec_from_loader(name, self, origin="<" + file + ">", is_package=is_package)
                return spec
        return None

    def file(self, name):
        stem = name.replace(".", "/")
        return stem + "/__init__.py" if stem + "/__init__.py" in hello["package"] else stem + ".py"

    def get_source(self, name):
        return hello["package"][self.file(name)]

    def is_package(self, name):
        return self.file(name).endswith("/__init__.py")

    def exec_module(self, module):
        file = self.file(module.__name__)
        module.__file__ = "<" + file + ">"
        exec(compile(hello["package"][file], "<" + file + ">", "exec"), module.__dict__)


sys.meta_path.insert(0, Package())
sys.argv = [hello["module"]]
sys.path[:] = [folder for folder in sys.path if folder]
from tidemill import _runner

_runner.main(control, hello, requests, results)
