"""Sixteen float32 side by side: for loops whose sums have to stay in registers, where the compiler by itself would go
through memory because it cannot know that two pointers differ."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import register_model

from . import LANES
from .team import instruction

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_FLAGS = ("reassoc", "contract", "nsz")


class Lanes(types.Type):
    """The compiler's name for ``LANES`` float32."""

    def __init__(self) -> None:
        super().__init__("Lanes")


_LANES = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: types.Type) -> None:
        super().__init__(manager, fe_type, _VECTOR)


def _broadcast(builder: Any, value: Any) -> Any:
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), zeros)


@instruction
def zero_lanes(typing_context: Any) -> Any:
    """All lanes zero."""
    return _LANES(), lambda context, builder, signature, arguments: ir.Constant(_VECTOR, None)


@instruction
def load_lanes(typing_context: Any, pointer: Any, index: Any) -> Any:
    """The ``LANES`` elements from ``pointer[index]``, widened."""
    element = pointer.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.gep(arguments[0], [arguments[1]])
        if element == types.float32:
            return builder.load(builder.bitcast(start, _VECTOR.as_pointer()), align=4)
        halves = ir.VectorType(ir.IntType(16), LANES)
        words = ir.VectorType(ir.IntType(32), LANES)
        bits = builder.zext(builder.load(builder.bitcast(start, halves.as_pointer()), align=2), words)
        return builder.bitcast(builder.shl(bits, ir.Constant(words, [16] * LANES)), _VECTOR)

    return _LANES(pointer, types.int64), generate


@instruction
def store_lanes(typing_context: Any, pointer: Any, index: Any, lanes: Any) -> Any:
    """Write float32 to ``pointer[index]`` and on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.gep(arguments[0], [arguments[1]])
        builder.store(arguments[2], builder.bitcast(start, _VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, lanes), generate


@instruction
def add_product(typing_context: Any, total: Any, left: Any, right: Any) -> Any:
    """``total + left * right`` in each lane; ``right`` may be one float32 for all."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        factor = arguments[2] if right == _LANES else _broadcast(builder, arguments[2])
        return builder.fadd(arguments[0], builder.fmul(arguments[1], factor, flags=_FLAGS), flags=_FLAGS)

    return _LANES(total, left, right), generate


@instruction
def sum_lanes(typing_context: Any, lanes: Any) -> Any:
    """The sum of all lanes, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, size = arguments[0], LANES
        while size > 1:
            size //= 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            index = ir.VectorType(ir.IntType(32), size)
            low = builder.shuffle_vector(vector, undefined, ir.Constant(index, list(range(size))))
            high = builder.shuffle_vector(vector, undefined, ir.Constant(index, list(range(size, 2 * size))))
            vector = builder.fadd(low, high, flags=_FLAGS)
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return types.float32(lanes), generate
