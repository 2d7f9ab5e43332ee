"""numba's intrinsics, typed by what their callers see.

Belongs here: the decorator. Must not be here: single intrinsics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from numba.core import extending

Parameters = ParamSpec("Parameters")


def intrinsic(function: Callable[Concatenate[Any, Parameters], Any]) -> Callable[Parameters, Any]:
    """Make an intrinsic; numba passes the first parameter, the typing context, by itself."""
    made: Any = extending.intrinsic(function)
    return made
