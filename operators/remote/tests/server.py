"""A server of the Open Inference Protocol for tests, over HTTP or gRPC; a second reading of the protocol.

    server.py http|grpc [NAME=FILE.onnx ...]

It says its port, and ends with its input. HTTP needs nothing but Python, gRPC needs grpcio, and files need onnxruntime. Beside the
files it has models that test a client, see `Odd`.
"""

import json
import os
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TYPES = ["FP32", "FP16", "FP64", "INT64", "INT32", "INT8", "UINT8", "BOOL", "BYTES"]


class Refusal(Exception):
    """An answer that refuses: a status of HTTP, the name of a code of gRPC, and a text."""

    def __init__(self, status, code, text):
        super().__init__(text)
        self.status, self.code, self.text = status, code, text


def tensor(name, datatype, shape):
    return {"name": name, "datatype": datatype, "shape": shape}


class Odd:
    """A model without a file: what it does is its name.

    echo-TYPE    gives its input
    connections  gives the number of connections so far
    identity     gives its input, four floats
    mortal       the same, but a 7 ends the process
    texts        gives each text twice
    dies         ends the process while it computes
    half         ends the process in the middle of an answer; HTTP only
    never        gives no answer
    fails        fails, with a text
    unloaded     is gone when it is asked to compute
    loading      is not ready
    json         answers without bytes
    silent       says nothing about its inputs and outputs
    """

    NAMES = [f"echo-{name}" for name in TYPES]
    NAMES += ["identity", "mortal", "connections", "dies", "half", "never", "fails", "unloaded", "loading", "json", "silent", "texts"]

    def __init__(self, name, server):
        self.name, self.server, self.is_ready = name, server, name != "loading"
        datatype = name.removeprefix("echo-") if name.startswith("echo-") else "FP32"
        datatype = {"texts": "BYTES", "connections": "INT64"}.get(name, datatype)
        shape = [-1, 4] if name in ("identity", "mortal") else [-1, 2]
        self.inputs = [] if name in ("silent", "connections") else [tensor("x", datatype, shape)]
        self.outputs = [] if name == "silent" else [tensor("y", datatype, shape)]

    def infer(self, inputs, wanted):
        if self.name == "dies":
            os._exit(1)
        if self.name == "never":
            threading.Event().wait()
        if self.name == "fails":
            raise Refusal(500, "INTERNAL", "the cat sat on it, 50 % of Größe")
        if self.name == "unloaded":
            raise Refusal(404, "NOT_FOUND", "model 'unloaded' is not loaded")
        if self.name == "connections":
            return [("y", "INT64", [1], struct.pack("<q", self.server.connections))]
        assert wanted == ["y"], wanted
        datatype, shape, data = inputs["x"]
        if self.name == "mortal" and struct.pack("<f", 7) in data:
            os._exit(1)
        if self.name == "texts":
            data = packed(2 * text for text in texts(data))
        return [("y", datatype, shape, data)]


def texts(data):
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def packed(parts):
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


class Onnx:
    """A file, computed by ONNX Runtime on one thread."""

    # Names in ONNX Runtime, in NumPy and here.
    KINDS = {
        "tensor(float)": ("float32", "FP32"),
        "tensor(float16)": ("float16", "FP16"),
        "tensor(double)": ("float64", "FP64"),
        "tensor(int64)": ("int64", "INT64"),
        "tensor(int32)": ("int32", "INT32"),
        "tensor(int8)": ("int8", "INT8"),
        "tensor(uint8)": ("uint8", "UINT8"),
        "tensor(bool)": ("bool", "BOOL"),
        "tensor(string)": ("object", "BYTES"),
    }
    is_ready = True

    def __init__(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = [self.port(port) for port in self.session.get_inputs()]
        self.outputs = [self.port(port) for port in self.session.get_outputs()]

    def port(self, port):
        shape = [size if isinstance(size, int) else -1 for size in port.shape]
        return tensor(port.name, self.KINDS[port.type][1], shape)

    def infer(self, inputs, wanted):
        import numpy

        named = {name: kind for kind, name in self.KINDS.values()}
        given = {}
        for name, (datatype, shape, data) in inputs.items():
            if datatype == "BYTES":
                given[name] = numpy.array([text.decode() for text in texts(data)], object).reshape(shape)
            else:
                given[name] = numpy.frombuffer(data, named[datatype]).reshape(shape)
        answers = []
        for name, value in zip(wanted, self.session.run(wanted, given)):
            datatype = {kind: name for kind, name in self.KINDS.values()}[value.dtype.name]
            data = packed(text.encode() for text in value.flat) if datatype == "BYTES" else value.tobytes()
            answers.append((name, datatype, list(value.shape), data))
        return answers


class Models:
    def __init__(self, files):
        self.connections, self.files, self.loaded, self.lock = 0, files, {}, threading.Lock()

    def __getitem__(self, name):
        with self.lock:
            if name not in self.loaded:
                if name in self.files:
                    self.loaded[name] = Onnx(self.files[name])
                elif name in Odd.NAMES:
                    self.loaded[name] = Odd(name, self)
                else:
                    raise Refusal(404, "NOT_FOUND", f"unknown model: '{name}'")
            return self.loaded[name]


def http(models):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def setup(self):
            super().setup()
            models.connections += 1

        def answer(self, status, said, data=None, half=False):
            body = json.dumps(said).encode()
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body) + len(data or b'')}\r\n"
            if data is not None:
                head += f"Inference-Header-Content-Length: {len(body)}\r\n"
            self.wfile.write(head.encode() + b"\r\n" + body + (data or b"")[: 1 if half else None])
            if half:
                self.wfile.flush()
                os._exit(1)

        def do(self, act):
            try:
                act()
            except Refusal as refusal:
                self.answer(refusal.status, {"error": refusal.text})

        def do_GET(self):
            self.do(self.get)

        def do_POST(self):
            self.do(self.post)

        def get(self):
            match self.path.split("/")[1:]:
                case ["v2"]:
                    self.answer(200, {"name": "odd", "version": "1.0", "extensions": ["binary_tensor_data"]})
                case ["v2", "health", "live" | "ready"]:
                    self.answer(200, {})
                case ["v2", "models", name, "ready"]:
                    self.answer(200 if models[name].is_ready else 400, {"name": name})
                case ["v2", "models", name]:
                    model = models[name]
                    self.answer(200, {"name": name, "platform": "x", "inputs": model.inputs, "outputs": model.outputs})
                case _:
                    raise Refusal(404, "", f"nothing is at {self.path}")

        def post(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            match self.path.split("/")[1:]:
                case ["v2", "models", name, "infer"]:
                    length = int(self.headers["Inference-Header-Content-Length"])
                    said, at, inputs = json.loads(body[:length]), length, {}
                    for each in said["inputs"]:
                        size = each["parameters"]["binary_data_size"]
                        inputs[each["name"]] = (each["datatype"], each["shape"], body[at : at + size])
                        at += size
                    assert at == len(body) and all(each["parameters"]["binary_data"] for each in said["outputs"])
                    found = models[name].infer(inputs, [each["name"] for each in said["outputs"]])
                    described = [
                        tensor(*each) | {"parameters": {"binary_data_size": len(data)}} for *each, data in found
                    ]
                    data = None if name == "json" else b"".join(data for *_, data in found)
                    self.answer(200, {"model_name": name, "outputs": described}, data, name == "half")
                case _:
                    raise Refusal(404, "", f"nothing is at {self.path}")

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.server_address[1]


def varint(number):
    number &= (1 << 64) - 1
    bytes_ = bytearray()
    while number > 0x7F:
        bytes_.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(bytes_) + bytes([number])


def field(number, value):
    """A field of a message of protobuf: a text, bytes or a whole number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """The fields of a message, by number; each has a list of values."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
        else:
            assert key & 7 == 2, "no field of these messages is of another kind"
            length = number()
            value = data[at : at + length]
            at += length
        found.setdefault(key >> 3, []).append(value)
    return found


def packed_numbers(data):
    numbers = fields(b"".join(b"\x08" + part for part in split(data)))
    return [number - (1 << 64) if number >> 63 else number for number in numbers.get(1, [])]


def split(data):
    """Cuts bytes into varints."""
    begin = 0
    for at, byte in enumerate(data):
        if byte < 0x80:
            yield data[begin : at + 1]
            begin = at + 1


def grpc(models):
    from concurrent import futures

    import grpc

    def text(message, number):
        return message.get(number, [b""])[0].decode()

    def described(name, datatype, shape):
        return field(1, name) + field(2, datatype) + field(3, b"".join(varint(size) for size in shape))

    def metadata(request):
        model = models[text(request, 1)]
        answer = field(1, text(request, 1)) + field(3, "x")
        answer += b"".join(field(4, described(**port)) for port in model.inputs)
        return answer + b"".join(field(5, described(**port)) for port in model.outputs)

    def infer(request):
        name, inputs = text(request, 1), {}
        for each, data in zip(map(fields, request.get(5, [])), request.get(7, []), strict=True):
            inputs[text(each, 1)] = (text(each, 2), packed_numbers(each.get(3, [b""])[0]), data)
        found = models[name].infer(inputs, [text(fields(each), 1) for each in request.get(6, [])])
        answer = b"".join(field(5, described(*each)) for *each, _ in found)
        return answer + b"".join(field(6, data) for *_, data in found if name != "json")

    methods = {
        "ServerLive": lambda _: field(1, 1),
        "ServerReady": lambda _: field(1, 1),
        "ModelReady": lambda request: field(1, int(models[text(request, 1)].is_ready)),
        "ServerMetadata": lambda _: field(1, "odd") + field(2, "1.0"),
        "ModelMetadata": metadata,
        "ModelInfer": infer,
    }

    class Service(grpc.GenericRpcHandler):
        def service(self, details):
            method = methods.get(details.method.removeprefix("/inference.GRPCInferenceService/"))

            def call(request, context):
                try:
                    return method(fields(request))
                except Refusal as refusal:
                    context.abort(getattr(grpc.StatusCode, refusal.code), refusal.text)

            return method and grpc.unary_unary_rpc_method_handler(call)

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[Service()], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def main(kind, *files):
    models = Models(dict(file.split("=", 1) for file in files))
    modules = ["onnxruntime"] if files else []
    modules += ["grpc"] if kind == "grpc" else []
    versions = {}
    for module in modules:
        try:
            versions[module] = __import__(module).__version__
        except ImportError:
            versions[module] = None
    if kind == "grpc" and not versions["grpc"]:
        print(json.dumps({"port": None, **versions}), flush=True)
        return
    server, port = {"http": http, "grpc": grpc}[kind](models)  # the server ends when nothing refers to it
    print(json.dumps({"port": port, **versions}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
