"""A bundle of arrays as one pointer.

The loop's functions need dozens of arrays.  Passed as a NamedTuple each costs seven arguments a call and most of the
compile time; packed into one table of addresses the whole bundle is one integer.  In compiled code ``bundle.name`` loads an
array from that table; with the JIT off the functions get the NamedTuple itself, with the same names.

The arrays must outlive the call: the caller holds the NamedTuple while the kernel runs.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model
from numba.np.arrayobj import make_array, populate_array

import tfanalyze.replay.jit  # noqa: F401  (sets the cache folder before numba is loaded)

WORDS = 4  # address, and up to three lengths, of one array in the table


class Bundle(types.Type):  # type: ignore[misc]
    """Numba type: names and array types of the bundle, in table order; functions come after the arrays."""

    def __init__(self, name: str, arrays: tuple[tuple[str, Any], ...], functions: tuple[tuple[str, Any], ...]) -> None:
        self.arrays, self.functions = dict(arrays), dict(functions)
        self.order = {n: i for i, n in enumerate([*self.arrays, *self.functions])}
        super().__init__(name=f"Bundle({name}: {', '.join(f'{n}={t}' for n, t in [*arrays, *functions])})")


@register_model(Bundle)
class BundleModel(models.PrimitiveModel):  # type: ignore[misc]
    """The address of the table."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.IntType(64))


@infer_getattr
class BundleAttribute(AttributeTemplate):  # type: ignore[misc]
    """``bundle.name`` has the type that was declared for it."""

    key = Bundle

    def generic_resolve(self, bundle: Bundle, attr: str) -> Any:
        return bundle.arrays.get(attr) or bundle.functions.get(attr)


@lower_getattr_generic(Bundle)
def load_field(context: Any, builder: Any, bundle: Bundle, value: Any, attr: str) -> Any:
    """Load one array (address and lengths) or one function (three pointers) from the table."""
    word = ir.IntType(64)
    table = builder.inttoptr(value, word.as_pointer())

    def load(i: int) -> Any:
        at = builder.load(builder.gep(table, [ir.Constant(word, bundle.order[attr] * WORDS + i)]))
        at.set_metadata("invariant.load", builder.module.add_metadata([]))
        return at

    if attr in bundle.functions:
        kind = bundle.functions[attr]
        struct = cgutils.create_struct_proxy(kind)(context, builder)
        for i, name in enumerate(("c_addr", "py_addr", "jit_addr")):
            setattr(struct, name, builder.inttoptr(load(i), cgutils.voidptr_t))
        return struct._getvalue()
    kind = bundle.arrays[attr]
    array = make_array(kind)(context, builder)
    itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    shape = [load(1 + d) for d in range(kind.ndim)]
    strides: list[Any] = [ir.Constant(word, itemsize)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.inttoptr(load(0), context.get_data_type(kind.dtype).as_pointer())
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=ir.Constant(word, itemsize), meminfo=None)
    return array._getvalue()


def bundle_type(arrays: Any, functions: dict[str, Any] | None = None) -> Bundle:
    """Numba type for a NamedTuple of C-contiguous arrays."""
    kinds = tuple(
        (name, types.Array(numba.from_dtype(array.dtype), array.ndim, "C")) for name, array in arrays._asdict().items()
    )
    return Bundle(type(arrays).__name__, kinds, tuple((functions or {}).items()))


def table_of(arrays: Any, n_functions: int = 0) -> Any:
    """(fields * WORDS,) int64: the table that the compiled code reads."""
    table = np.zeros((len(arrays) + n_functions) * WORDS, np.int64)
    for i, array in enumerate(arrays):
        assert array.flags.c_contiguous and array.ndim < WORDS, type(arrays)._fields[i]
        table[i * WORDS] = array.ctypes.data
        table[i * WORDS + 1 : i * WORDS + 1 + array.ndim] = array.shape
    return table


def opener(bundle: Bundle) -> Any:
    """An intrinsic that turns the table's address into the bundle."""

    @intrinsic  # type: ignore[untyped-decorator]
    def open_bundle(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return args[0]

        return bundle(types.int64), codegen

    return open_bundle


@intrinsic  # type: ignore[untyped-decorator]
def store_function(typingctx: Any, bundle: Any, index: Any, function: Any) -> Any:
    """Put a function pointer into the table as its ``index``-th function."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, _, function_type = signature.args
        word = ir.IntType(64)
        table = builder.inttoptr(args[0], word.as_pointer())
        struct = cgutils.create_struct_proxy(function_type)(context, builder, value=args[2])
        base = builder.mul(builder.add(args[1], ir.Constant(word, len(kind.arrays))), ir.Constant(word, WORDS))
        for i, name in enumerate(("c_addr", "py_addr", "jit_addr")):
            at = builder.gep(table, [builder.add(base, ir.Constant(word, i))])
            builder.store(builder.ptrtoint(getattr(struct, name), word), at)
        return context.get_dummy_value()

    return types.void(bundle, types.int64, function), codegen
