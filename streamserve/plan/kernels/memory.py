"""What numba has no words for: bits, unaligned loads, and arrays given by their addresses.

Arrays that are read-only (constants of a memory-mapped store) cost a microsecond each to hand to a kernel, twenty of
them more than the kernel's own work on one document. So a stage hands over one array of addresses, and whoever made it
keeps the arrays alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from streamserve.core.messages import I64, AnyArray


@intrinsic
def trailing_zeros(typing_context, value):
    """How many low bits of a uint64 are zero; the argument must not be."""

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), codegen


def _load(kind: Any, bits: int) -> Any:
    @intrinsic
    def load(typing_context, array, at):
        def codegen(context, builder, signature, arguments):
            view = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(view.data, [arguments[1]])
            word = builder.bitcast(place, cgutils.ir.IntType(bits).as_pointer())
            return builder.load(word, align=1)

        return kind(array, types.int64), codegen

    return load


#: `load64(bytes, at)`: eight bytes from any place of a byte array as one number, and four.
load64: Any = _load(types.uint64, 64)
load32: Any = _load(types.uint32, 32)


@intrinsic
def pointer(typing_context, address):
    """An address as a pointer, for `carray`."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


def addresses(*arrays: AnyArray) -> I64:
    """(address, length) of each array, end to end; their owner must keep them."""
    for array in arrays:
        if not array.flags.c_contiguous:
            raise ValueError("an array that is handed over by its address must be contiguous")
    pairs = [(array.__array_interface__["data"][0], array.size) for array in arrays]
    return np.array(pairs, dtype=np.int64).reshape(-1)
