"""The errors of groups."""

import typing


class CollectiveError(Exception):
    """An operation of a group failed, or a group could not be joined.

    `rank` is the rank that caused it, None where it was no rank; `host` is the host of the cause, empty where it is unknown. `reason` says it in words.
    """

    def __init__(self, reason: str, rank: typing.Optional[int] = None, host: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.rank = rank
        self.host = host


class Lost(CollectiveError):
    """A program, a service or a host is gone. `Group.shrink` continues with the ranks that are left, `Group.rejoin` with all."""


class Late(CollectiveError):
    """An operation did not end before its deadline. It names the rank that has not called it."""


class Differs(CollectiveError):
    """The ranks called different operations, or one with elements of different types or numbers."""


class Wrong(CollectiveError, ValueError):
    """The call is wrong; nothing was done."""


class Refused(CollectiveError):
    """The service refused: ranks are missing at the deadline, the rank is taken, or there is no memory left."""


class Unreachable(CollectiveError):
    """No service for groups answers on this host in time."""


KINDS: typing.Dict[str, typing.Type[CollectiveError]] = {"lost": Lost, "deadline": Late, "differs": Differs, "wrong": Wrong}


def of_failure(failure: typing.Mapping[str, typing.Any]) -> CollectiveError:
    """Makes the error of a failure, as the service describes it."""
    kind = KINDS.get(failure["kind"], CollectiveError)
    return kind(failure["text"], failure.get("rank"), failure.get("host", ""))
