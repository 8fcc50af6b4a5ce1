"""Special methods that the tests' process calls on a program's object."""

import copy
import operator
from collections.abc import Callable
from typing import Any

# Asked with any arguments: they hold nothing of what a test expects.
CONVERSIONS: dict[str, Callable[..., Any]] = {
    "__len__": len, "__bool__": bool, "__int__": int, "__float__": float, "__complex__": complex,
    "__index__": operator.index, "__str__": str, "__repr__": repr, "__hash__": hash, "__abs__": abs,
    "__neg__": operator.neg, "__pos__": operator.pos, "__invert__": operator.invert, "__round__": round,
    "__format__": format, "__bytes__": bytes, "__iter__": iter, "__next__": next, "__reversed__": reversed,
    "__getitem__": operator.getitem, "__setitem__": operator.setitem, "__delitem__": operator.delitem,
    "__enter__": lambda of: type(of).__enter__(of),
    "__exit__": lambda of, *exc_info: type(of).__exit__(of, *exc_info),
    "__aiter__": aiter, "__anext__": anext, "__aenter__": lambda of: type(of).__aenter__(of),
    "__aexit__": lambda of, *exc_info: type(of).__aexit__(of, *exc_info),
    "__await__": lambda of: of.__await__(),
    "__call__": lambda of, *args, **more: of(*args, **more),
}  # fmt: skip
COMPARISONS: dict[str, Callable[..., Any]] = {
    f"__{name}__": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
CONTAINS = "__contains__"
_BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
    "matmul",
)
_OF = {name: getattr(operator, f"__{name}__") for name in _BINARY} | {"divmod": divmod}
ARITHMETIC: dict[str, Callable[..., Any]] = {f"__{name}__": work for name, work in _OF.items()}
REFLECTED: dict[str, Callable[..., Any]] = {
    f"__r{name}__": lambda of, other, work=work: work(other, of) for name, work in _OF.items()
}
IN_PLACE: dict[str, Callable[..., Any]] = {
    f"__i{name}__": getattr(operator, f"__i{name}__") for name in _BINARY
}
COPIES: dict[str, Callable[..., Any]] = {
    "__copy__": copy.copy,
    "__deepcopy__": lambda of, *_: copy.deepcopy(of),
}
SPECIAL = {
    **CONVERSIONS, **COMPARISONS, **ARITHMETIC, **REFLECTED, **IN_PLACE, **COPIES,
    CONTAINS: operator.contains,
}  # fmt: skip
