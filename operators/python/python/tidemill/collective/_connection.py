"""The connection of a rank with the service of its host: packets of JSON over a Unix socket, with descriptors beside them."""

import array
import collections
import json
import math
import operator
import os
import pathlib
import select
import socket
import threading
import time
import typing
import weakref

from ._errors import CollectiveError, Lost, Refused, Unreachable, Wrong

#: The version of the packets. A service refuses programs of another one.
VERSION = 1
#: Bytes of a packet, at most.
PACKET = 64 << 10
#: Descriptors beside a packet, at most.
DESCRIPTORS = 2
#: Calls without an answer after which answers are read before the next call: the service drops programs that never read.
MOST_UNREAD = 64
#: Seconds after a deadline of the service in which it answers.
PATIENCE = 30.0
#: Seconds in which a service must be there, where nothing else is said: it may be about to start.
WAIT = 5.0
#: Seconds before a service is looked for again: no event says that it is there.
PAUSE = 0.05

Body = typing.Any
Answer = typing.Tuple[str, Body, typing.List[int]]
_T = typing.TypeVar("_T")


def usual_socket() -> str:
    """Returns the socket of the service of this host: that of the variable TIDEMILL_NET, or the usual one of this user, or that of root."""
    named = os.environ.get("TIDEMILL_NET")
    if named:
        return named
    of_root = "/run/tidemill/net.sock"
    if os.geteuid() == 0:
        return of_root
    folder = os.environ.get("XDG_RUNTIME_DIR")
    own = os.path.join(folder, "tidemill/net.sock") if folder else os.path.join(
        os.environ.get("TMPDIR") or "/tmp", f"tidemill-{os.geteuid()}", "net.sock")
    return of_root if not os.path.exists(own) and os.path.exists(of_root) else own


def milliseconds(given: typing.Any) -> int:
    """Returns a deadline in the unit of the packets."""
    try:
        seconds = math.nan if isinstance(given, (str, bytes, bytearray)) else float(given)
    except OverflowError:
        seconds = math.inf if given > 0 else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        raise Wrong(f"a deadline of {given!r} s: name a number of seconds from 0 on")
    return min(round(seconds * 1000), (1 << 63) - 1) if seconds < 1e15 else (1 << 63) - 1


def whole(name: str, given: typing.Any) -> int:
    """Returns an integer of Python for one of any package: the packets have no others."""
    try:
        if isinstance(given, bool):
            raise TypeError
        return operator.index(given)
    except TypeError:
        raise Wrong(f"{name} {given!r} is no integer") from None


class Connection:
    """A socket of packets that several threads may use: one receives for all that wait."""

    def __init__(self, service: typing.Union[str, "os.PathLike[str]", None], wait: float = 0.0) -> None:
        of_service = pathlib.Path(usual_socket() if service is None else service)
        self.path = str(of_service.with_suffix(".groups"))
        #: The group and the rank that the service has given to this process.
        self.holds: typing.Optional[typing.Tuple[str, int]] = None
        self._socket = _dial(of_service, self.path, wait)
        self._socket.setblocking(False)
        self._begin()
        _connections.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._receives = False
        self._closes = False
        self._ended: typing.Dict[int, typing.Optional[Body]] = {}
        self._answers: typing.List[Answer] = []
        self._gone: typing.Optional[CollectiveError] = None
        self._calls = 0
        self._unread = 0
        # Filled by finalizers, which may run anywhere: a deque needs no lock.
        self._freed: typing.Deque[int] = collections.deque()
        self._forgotten: typing.Deque[int] = collections.deque()
        self._unwanted: typing.Set[int] = set()

    # Sending

    def send(self, kind: str, body: Body) -> None:
        """Sends a packet."""
        with self._sending:
            self._free()
            self._write({kind: body}, ())

    def call(self, body: typing.Dict[str, typing.Any], descriptors: typing.Sequence[int]) -> int:
        """Sends a call, and returns its number. Numbers reach the service in order."""
        with self._sending:
            self._free()
            if self._unread >= MOST_UNREAD:
                self.drain()
            number = self._calls + 1
            self._write({"call": {"number": number, **body}}, descriptors)
            self._calls = number
            with self._changed:
                self._unread += 1
            return number

    def free(self, region: int) -> None:
        """Gives a region back, now or before the next packet. A finalizer may call it."""
        self._freed.append(region)
        if self._gone is None and self._sending.acquire(blocking=False):
            try:
                self._free(waits=False)
            except CollectiveError:
                pass  # A service that is gone has freed it.
            finally:
                self._sending.release()

    def _free(self, waits: bool = True) -> None:
        while self._freed:
            region = self._freed.popleft()
            if not self._write({"free": {"id": region}}, (), waits):
                return self._freed.appendleft(region)

    def _write(self, packet: Body, descriptors: typing.Sequence[int], waits: bool = True) -> bool:
        """Sends a packet; returns False where that would have to wait and must not."""
        try:
            data = json.dumps(packet, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise Wrong(f"the packet cannot be sent: {error}") from None
        if len(data) > PACKET:
            raise Wrong("the name of the group is too long: 128 characters are the most")
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        while True:
            if self._gone is not None:
                raise self._again()
            try:
                self._socket.sendmsg([data], beside, socket.MSG_NOSIGNAL)
                return True
            except BlockingIOError:
                if not waits:
                    return False
                # The service reads whatever comes, but not always at once.
                room = select.poll()
                room.register(self._socket, select.POLLOUT)
                room.poll()
            except OSError as error:
                # What the service said last explains it better than the system does.
                self.drain()
                if self._gone is not None:
                    raise self._again() from None
                if isinstance(error, ConnectionError):
                    raise Lost(GONE) from None
                raise Wrong(f"the packet cannot be sent: {error.strerror}") from None

    # Receiving

    def wait(self, wanted: typing.Callable[[], typing.Optional[_T]], timeout: typing.Optional[float] = None) -> _T:
        """Receives until there is what is wanted. One thread receives, the others wait for it.

        Raises TimeoutError after as many seconds.
        """
        if timeout is not None and math.isnan(timeout):
            raise Wrong("a timeout of nan s: name a number of seconds")
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                found = wanted()
                if found is not None:
                    return found
                if self._gone is not None:
                    raise self._again()
                # A day is more than the system calls may take at once, and enough to look again.
                left = None if until is None else min(until - time.monotonic(), 86_400)
                if left is not None and left <= 0:
                    raise TimeoutError("it has not come in time")
                if self._receives:
                    self._changed.wait(left)
                    continue
                self._receives = True
            self._receive(left)

    def drain(self) -> None:
        """Receives what is there, and does not wait."""
        while True:
            with self._changed:
                if self._receives or self._gone is not None:
                    return
                self._receives = True
            if not self._receive(0):
                return

    def _receive(self, timeout: typing.Optional[float]) -> bool:
        """Receives a packet; returns whether one came. The caller has set `_receives`."""
        kind, gone = "", None
        body: Body = None
        descriptors: typing.List[int] = []
        try:
            waits = select.poll()
            waits.register(self._socket, select.POLLIN)
            if not waits.poll(None if timeout is None else timeout * 1000):
                return False
            kind, body, descriptors = self._read()
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:
            gone = Lost(str(error) if isinstance(error, ValueError) else GONE)
        finally:
            with self._changed:
                self._receives = False
                if kind == "bye":
                    # The service ends, and says why.
                    gone = Lost(body["reason"])
                if gone is not None:
                    self._gone = self._gone or gone
                elif kind == "ended":
                    self._unread -= 1
                    self._ended[body["number"]] = body.get("failure")
                elif kind:
                    self._answers.append((kind, body, descriptors))
                if self._closes:
                    self._socket.close()
                self._tidy()
                self._changed.notify_all()
        return True

    def _read(self) -> Answer:
        limits = (PACKET, socket.CMSG_SPACE(DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC)
        try:
            data, beside, flags, _ = self._socket.recvmsg(*limits)
        except ConnectionResetError:
            # It closed its end before it read everything: its last words come after this, then the end.
            data, beside, flags, _ = self._socket.recvmsg(*limits)
        descriptors = array.array("i")
        for level, kind, rights in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(rights[:len(rights) - len(rights) % descriptors.itemsize])
        if not data:
            raise ConnectionResetError
        if flags & socket.MSG_CTRUNC:
            # This process can have no more. The packet is whole.
            while descriptors:
                os.close(descriptors.pop())
        if flags & socket.MSG_TRUNC:
            raise ValueError("the transport service sends packets that are too long")
        try:
            (name, body), = json.loads(data).items()
        except (ValueError, AttributeError):
            raise ValueError("the transport service speaks another language") from None
        return name, body, list(descriptors)

    def _tidy(self) -> None:
        while self._forgotten:
            number = self._forgotten.popleft()
            if number not in self._ended:
                self._unwanted.add(number)
            else:
                del self._ended[number]
        for number in self._unwanted.intersection(self._ended):
            del self._ended[number]
            self._unwanted.discard(number)

    def forget_joined(self) -> None:
        """Drops answers that came after the program had given up waiting: they are not those to the next packet."""
        with self._changed:
            self._answers = [answer for answer in self._answers if answer[0] not in ("joined", "refused")]

    def answer(self, wanted: typing.Callable[[str, Body], bool], timeout: typing.Optional[float] = None) -> Answer:
        """Waits for the first answer of a kind."""
        def find() -> typing.Optional[Answer]:
            for position, (kind, body, _) in enumerate(self._answers):
                if wanted(kind, body):
                    return self._answers.pop(position)
            return None
        return self.wait(find, timeout)

    def joined(self, deadline: float) -> typing.Tuple[typing.Tuple[int, ...], int]:
        """Waits until all ranks are there; returns the members and the number of the strategy."""
        try:
            kind, body, _ = self.answer(lambda kind, _: kind in ("joined", "refused"), deadline + PATIENCE)
        except TimeoutError:
            raise Lost("the transport service does not answer") from None
        if kind == "refused":
            raise Refused(body["reason"])
        return tuple(body["members"]), body["epoch"]

    def ended(self, number: int, timeout: typing.Optional[float] = None) -> typing.Optional[Body]:
        """Waits until a call has ended; returns its failure."""
        return self.wait(lambda: (self._ended[number],) if number in self._ended else None, timeout)[0]

    def has_ended(self, number: int) -> bool:
        """Returns whether a call has ended, well or not."""
        if number not in self._ended:
            self.drain()
        return number in self._ended or self._gone is not None

    def forget(self, number: int) -> None:
        """Drops the end of a call, also if it has not come. A finalizer may call it."""
        self._forgotten.append(number)

    # Ending

    def _again(self) -> CollectiveError:
        """The error for which there is nothing more, for one more caller."""
        gone = self._gone
        assert gone is not None
        return type(gone)(gone.reason)

    def holds_too(self) -> bool:
        """Returns whether this process has what another connection holds: the service gives a rank once."""
        return any(other is not self and other._gone is None and (other.path, other.holds) == (self.path, self.holds)
                   for other in list(_connections))

    def close(self, why: typing.Optional[CollectiveError] = None) -> None:
        """Leaves the group."""
        with self._changed:
            if self._gone is None:
                self._gone = why or Wrong("this program has left the group")
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._closes = True
            # A thread that receives wakes up by that, and closes the socket that it waits for.
            if not self._receives:
                self._socket.close()
            self._changed.notify_all()

    def _forked(self) -> None:
        """Lets go of the group in the child of a fork: it belongs to the parent, whose end must be seen."""
        self._socket.close()
        self._begin()
        self._gone = Wrong("the group belongs to the process that this one was forked from: join from here, with a rank of its own")

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()


def _dial(service: pathlib.Path, path: str, wait: float) -> socket.socket:
    """Connects to the socket of groups of a service, and waits as many seconds for one that is not there yet."""
    until = time.monotonic() + wait
    while True:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connected.connect(path)
            return connected
        except BaseException as error:
            connected.close()
            if not isinstance(error, OSError):
                raise
            # There is no socket, or it has no listener: that may change.
            is_absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError))
            left = until - time.monotonic()
            if not is_absent or left <= 0:
                after = f", also after {wait:g} s" if is_absent and wait > 0 else ""
                start = "tidemill net serve" + ("" if str(service) == usual_socket() else f" --socket {service}")
                reason = error.strerror or str(error)
                raise Unreachable(f"no service for groups answers at {path}: {reason}{after}; `{start}` starts one") from None
        time.sleep(min(left, PAUSE))


GONE = "the transport service is gone: join the group again with `Group.rejoin` or `tidemill.collective.init`"

_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_connections):
        connection._forked()


os.register_at_fork(after_in_child=_after_fork)
