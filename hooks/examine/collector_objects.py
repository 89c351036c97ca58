"""Objects that the collector knows, chosen by their type, without any of them living longer for it.

All of them are gone through with the GIL held from the first to the last, some 0.1 s a million of them: whoever asks
sees to it that there are not too many.
"""

from __future__ import annotations

import gc
from functools import partial
from itertools import chain, compress, repeat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any


def objects_by_type(is_meant: Callable[..., bool], *more: Iterable[Any]) -> Iterator[Any]:
    """Those of whose type is_meant, a function of C, says so; more: what else it is called with, for each object.

    The list of all objects is made once the first is asked for. What is called here is made of C alone, and lets go of
    the list at its end: so no other thread runs meanwhile. The list has these very iterators in it, so that one of them
    that kept it (as tee and zip do) would keep everything alive until the collector comes.
    """
    # The same list, twice: as what is chosen from, and for its types.
    lists = chain.from_iterable(map(repeat, map(gc.get_objects, (None,)), (2,)))
    are_meant = map(partial(map, is_meant), map(partial(map, type), lists), *((each,) for each in more))
    return chain.from_iterable(map(compress, lists, are_meant))
