"""The gRPC of Python as a stock client and a stock server of the service of the tests, for messages that are bytes.

    stock.py client HOST:PORT    calls a server, and says how many checks it passed
    stock.py server              says its port and what happens, until its input ends
"""

import sys
import threading
from concurrent import futures

import grpc

METADATA = (
    ("x-one", "a, b"),
    ("x-two", "1"),
    ("x-two", "2"),
    ("x-some-bin", bytes([0, 1, 254, 255, 10])),
    ("x-some-bin", b"z"),
)
LARGE = b"\x07" * (1 << 20)
OPTIONS = (("grpc.max_receive_message_length", 16 << 20),)


def chosen(metadata):
    """The metadata that comes back."""
    return tuple((name, value) for name, value in metadata or () if name.startswith("x-"))


def say(text):
    # In one piece, as several threads do this.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Client:
    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=OPTIONS)
        self.checks = 0

    def unary(self, method):
        return self.channel.unary_unary(path(method))

    def stream(self, method):
        return self.channel.unary_stream(path(method))

    def equal(self, there, wanted):
        assert there == wanted, f"{there!r} is not {wanted!r}"
        self.checks += 1

    def fails(self, call, code):
        """Makes a call that fails, and gives its error."""
        try:
            call()
        except grpc.RpcError as error:
            self.equal(error.code(), code)
            return error
        raise AssertionError(f"no error, but {code}")

    def run(self):
        answer, call = self.unary("Echo").with_call(b"hello", metadata=METADATA, timeout=50)
        self.equal(answer, b"hello")
        self.equal(sorted(map(tuple, chosen(call.initial_metadata())), key=repr), sorted(METADATA, key=repr))
        self.equal(sorted(map(tuple, chosen(call.trailing_metadata())), key=repr), sorted(METADATA, key=repr))
        self.equal(self.unary("Echo")(LARGE), LARGE)
        self.equal(self.unary("Echo")(b""), b"")
        self.equal(list(self.stream("Count")(b"1000")), [str(number).encode() for number in range(1000)])
        self.equal(list(self.stream("Count")(b"0")), [])
        self.equal(self.unary("Timeout")(b""), b"none")
        # It is sent in few digits, rounded up.
        self.equal(80_000 < int(self.unary("Timeout")(b"", timeout=90)) < 100_000, True)
        for code in list(grpc.StatusCode)[1:]:
            metadata = (("code", str(code.value[0])), *METADATA)
            text = "50 % of Größe\n"
            error = self.fails(lambda: self.unary("Fail")(text.encode(), metadata=metadata), code)
            self.equal(error.details(), text)
            self.equal(len(chosen(error.trailing_metadata())), len(METADATA))
        self.fails(lambda: self.unary("Missing")(b""), grpc.StatusCode.UNIMPLEMENTED)
        self.fails(lambda: self.unary("Wait")(b"", timeout=0.1), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.fails(lambda: list(self.stream("Begin")(b"", timeout=0.1)), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.fails(
            lambda: self.unary("Echo")(b"x" * 100, compression=grpc.Compression.Gzip),
            grpc.StatusCode.UNIMPLEMENTED,
        )
        self.fails(lambda: self.unary("Echo")(b"x" * (5 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED)
        several = self.channel.stream_unary(path("Echo"))
        self.fails(lambda: several(iter([b"a", b"b"])), grpc.StatusCode.UNIMPLEMENTED)
        self.fails(lambda: several(iter([])), grpc.StatusCode.UNIMPLEMENTED)
        self.equal(several(iter([b"a"])), b"a")
        health = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        self.equal(health(b""), b"\x08\x01")

        calls = [(number, self.unary("Echo").future(str(number).encode() * 100)) for number in range(200)]
        for number, call in calls:
            self.equal(call.result(), str(number).encode() * 100)

        stream = self.stream("Begin")(b"cancelled")
        self.equal(next(stream), b"first")
        say("cancels")
        stream.cancel()
        say(f"passed {self.checks}")


def path(method):
    return f"/test.Shop/{method}"


class Shop(grpc.GenericRpcHandler):
    """All methods as streams: on the wire they are the same as unary ones."""


    def service(self, details):
        name = details.method.removeprefix("/test.Shop/")
        method = getattr(self, name, None) if name in ("Echo", "Count", "Fail", "Timeout", "Wait", "Begin") else None
        return method and grpc.unary_stream_rpc_method_handler(method)

    def Echo(self, request, context):
        context.send_initial_metadata(chosen(context.invocation_metadata()))
        context.set_trailing_metadata(chosen(context.invocation_metadata()))
        yield request

    def Count(self, request, context):
        for number in range(int(request)):
            yield str(number).encode()

    def Fail(self, request, context):
        number = int(dict(context.invocation_metadata())["code"])
        code = next(code for code in grpc.StatusCode if code.value[0] == number)
        context.set_trailing_metadata(chosen(context.invocation_metadata()))
        context.abort(code, request.decode())
        yield b""

    def Timeout(self, request, context):
        left = context.time_remaining()
        yield b"none" if left is None else str(int(left * 1000)).encode()

    def Wait(self, request, context):
        ending("Wait", request, context).wait()
        yield b""

    def Begin(self, request, context):
        ended = ending("Begin", request, context)
        yield b"first"
        ended.wait()


def ending(method, request, context):
    """Says that a call began to wait, and later that it ended; gives the event of that."""
    ended = threading.Event()

    def end():
        say(f"dropped {request.decode()}")
        ended.set()

    say(f"{method} {request.decode()}")
    if not context.add_callback(end):
        end()
    return ended


def main():
    if sys.argv[1] == "client":
        Client(sys.argv[2]).run()
        return
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(Shop(),), options=OPTIONS)
    say(f"port {server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    sys.stdin.read()
    server.stop(None)


main()
