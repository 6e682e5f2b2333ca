"""What kernels say about elements and words: loads that widen, stores that round, an exponential that vectorizes."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from .team import inlined, instruction

_WORD = ir.IntType(32)

Pointer = Any
"""In a kernel: a pointer to elements or words, indexed like an array, from zero up."""


def _reinterpret(target: types.Type) -> Any:
    """An intrinsic that reads one word of a kernel's argument as ``target``: a pointer or a 64-bit number."""

    @instruction
    def cast(typing_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            wanted = context.get_value_type(target)
            if isinstance(wanted, ir.PointerType):
                return builder.bitcast(arguments[0], wanted)
            bits = builder.ptrtoint(arguments[0], ir.IntType(64))
            return bits if wanted == bits.type else builder.bitcast(bits, wanted)

        return target(word), generate

    return cast


integer = _reinterpret(types.int64)
"""A word as an integer."""
real = _reinterpret(types.float64)
"""A word as a floating-point number."""
int32s = _reinterpret(types.CPointer(types.int32))
"""A word as a pointer to int32."""
int64s = _reinterpret(types.CPointer(types.int64))
floats = _reinterpret(types.CPointer(types.float32))


@instruction
def widen(typing_context: Any, element: Any) -> Any:
    """An element as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if element == types.float32:
            return arguments[0]
        bits = builder.shl(builder.zext(arguments[0], _WORD), ir.Constant(_WORD, 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(element), generate


@instruction
def rounded_like(typing_context: Any, pointer: Any, value: Any) -> Any:
    """A float32 as the elements that ``pointer`` points to have it: round to nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if pointer.dtype == types.float32:
            return arguments[1]
        bits = builder.bitcast(arguments[1], _WORD)
        last = builder.and_(builder.lshr(bits, ir.Constant(_WORD, 16)), ir.Constant(_WORD, 1))
        rounded = builder.add(bits, builder.add(last, ir.Constant(_WORD, 0x7FFF)))
        return builder.trunc(builder.lshr(rounded, ir.Constant(_WORD, 16)), ir.IntType(16))

    return pointer.dtype(pointer, types.float32), generate


@instruction
def larger(typing_context: Any, left: Any, right: Any) -> Any:
    """The larger of two float32; NaN if one is. Python's max keeps the compiler from using vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.FloatType()
        kind = ir.FunctionType(number, [number, number])
        declared = builder.module.declare_intrinsic("llvm.maximum", [number], kind)
        return builder.call(declared, arguments)

    return types.float32(types.float32, types.float32), generate


@inlined
def exponential(x: Any) -> Any:
    """e to the power of a float32 x of at most zero, to two units in the last place; zero below -87.

    Powers of two by their bits, the rest by a polynomial (Cephes' coefficients): straight code, where a call of the C
    library's function would keep the compiler from using vectors.
    """
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    rest = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    sum_ = np.float32(1.9875691500e-4)
    sum_ = sum_ * rest + np.float32(1.3981999507e-3)
    sum_ = sum_ * rest + np.float32(8.3334519073e-3)
    sum_ = sum_ * rest + np.float32(4.1665795894e-2)
    sum_ = sum_ * rest + np.float32(1.6666665459e-1)
    sum_ = sum_ * rest + np.float32(5.0000001201e-1)
    sum_ = sum_ * rest * rest + rest + np.float32(1.0)
    power = np.uint32(np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23)).view(np.float32)
    return sum_ * power if x > np.float32(-87.0) else np.float32(0)


@instruction
def shifted(typing_context: Any, pointer: Any, count: Any) -> Any:
    """The pointer ``count`` elements on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate
