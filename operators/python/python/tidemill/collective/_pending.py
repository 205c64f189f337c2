"""An operation that has been called and may not have ended."""

import asyncio
import os
import socket
import threading
import typing

from ._connection import Connection
from ._errors import Wrong, of_failure

T = typing.TypeVar("T")


class Pending(typing.Generic[T]):
    """An operation that runs while the program does other things. `wait` waits for its end, and so does `await` in asyncio.

    The result of an array is in place after that. Dropping a pending operation does not end it.
    """

    def __init__(self, connection: Connection, number: int, readable: typing.Optional[socket.socket],
                 finish: typing.Callable[[bool], T]) -> None:
        self._connection = connection
        self._number = number
        self._readable = readable
        self._finish: typing.Optional[typing.Callable[[bool], T]] = finish
        self._lock = threading.Lock()
        self._result: typing.List[T] = []

    def wait(self, timeout: typing.Optional[float] = None) -> T:
        """Waits until it has ended, and returns the result.

        Raises what made it fail: a `CollectiveError` with the rank and the host. Raises TimeoutError where it has not ended after
        `timeout` seconds: it continues until its own deadline, and may be waited for again.
        """
        failure = self._connection.ended(self._number, timeout)
        with self._lock:
            if self._finish is not None:
                finish, self._finish = self._finish, None
                result = finish(failure is None)
                if failure is None:
                    self._result.append(result)
        if failure is not None:
            raise of_failure(failure)
        return self._result[0]

    def done(self) -> bool:
        """Returns whether it has ended, well or not: then `wait` does not wait."""
        return self._connection.has_ended(self._number)

    def fileno(self) -> int:
        """A descriptor that becomes readable when it has ended, for `select` and other loops of events. It ends with this object."""
        if self._readable is None:
            raise Wrong("the operation was not called with `async_=True`")
        return self._readable.fileno()

    def __await__(self) -> typing.Generator[typing.Any, None, T]:
        return self._ended().__await__()

    async def _ended(self) -> T:
        if not self.done():
            loop = asyncio.get_running_loop()
            over = loop.create_future()
            # Another one for each that awaits: a loop has one reader for a descriptor.
            descriptor = os.dup(self.fileno())
            try:
                loop.add_reader(descriptor, lambda: None if over.done() else over.set_result(None))
                await over
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return self.wait()

    def __del__(self) -> None:
        if hasattr(self, "_readable"):
            self._connection.forget(self._number)
            if self._readable is not None:
                self._readable.close()
