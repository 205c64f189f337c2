"""Groups of programs: sums, broadcasts and exchanges through the transport service of each machine.

Each program of a group has a rank, and calls the same operations in the same order::

    import numpy, tidemill.collective

    with tidemill.collective.init("training", rank=0, size=2) as group:
        gradients = numpy.ones(1000, "float32")
        group.all_reduce(gradients)

See the page "Groups of programs in Python" of the documentation; `tidemill.collective.torch` is for PyTorch.
"""

from ._buffer import Buffer
from ._errors import CollectiveError, Differs, Late, Lost, Refused, Unreachable, Wrong
from ._group import DEADLINE, Group, init
from ._pending import Pending

__all__ = ["DEADLINE", "Buffer", "CollectiveError", "Differs", "Group", "Late", "Lost", "Pending", "Refused", "Unreachable", "Wrong", "init"]
