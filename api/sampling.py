"""From the sampling fields of a request to ``SamplingParams``."""

from typing import Any

import msgspec

from ..core.config import EngineConfig
from ..core.errors import RequestError
from ..core.sampling_params import RequestOutputKind, SamplingParams
from .protocol import SamplingFields
from .structured import structured_field, structured_outputs

# Fields of both sides that cannot be handed on as they are.
_CONVERTED = {"max_tokens", "stop", "logit_bias", "structured_outputs"}
_SAME = set(SamplingFields.__struct_fields__) & set(SamplingParams.__struct_fields__) - _CONVERTED


def sampling_params(
    request: SamplingFields,
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    detokenize: bool,
    renamed: dict[str, str] | None = None,
) -> SamplingParams:
    """The parameters that a request asks for. Absent fields come from ``defaults``, the model's generation_config.json.

    ``renamed`` maps names of ``SamplingParams`` to the request's own where they differ, for the ``param`` of an error.
    Raises ``RequestError``.
    """
    given: dict[str, Any] = dict(defaults)
    for name in _SAME:
        value = getattr(request, name)
        if value is not None:
            given[name] = value
    if request.stop is not None:
        given["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    if request.logit_bias is not None:
        given["logit_bias"] = logit_bias(request.logit_bias)
    renamed = {"structured_outputs": structured_field(request)} | (renamed or {})
    try:
        return SamplingParams(
            structured_outputs=structured_outputs(request),
            max_tokens=max_tokens,
            logprobs=logprobs,
            detokenize=detokenize,
            output_kind=RequestOutputKind.DELTA,
            **given,
        )
    except RequestError as error:
        raise rename_param(error, renamed) from error


def logit_bias(given: dict[str, float]) -> dict[int, float]:
    """JSON has only string keys; token ids are meant. Raises ``RequestError`` for a key that is none."""
    biases = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 11):
            raise RequestError.at("logit_bias", f"has the key {key[:32]!r} where a token id is expected")
        biases[int(key)] = bias
    return biases


def rename_param(error: RequestError, renamed: dict[str, str]) -> RequestError:
    """The same error, told with the request's own field name."""
    own = renamed.get(error.param or "")
    if own is None:
        return error
    # In a message "the prompt" is plain English, whatever field it came in; the other names are quoted as they are.
    message = error.message if error.param == "prompt" else error.message.replace(str(error.param), own)
    return type(error)(message, own, error.code)


def check_logprobs(config: EngineConfig, **counts: int | None) -> None:
    """Raises ``RequestError`` if a field asks for more alternatives than ``--max-logprobs``, or for fewer than none."""
    for param, count in counts.items():
        if count is not None and not 0 <= count <= config.max_logprobs:
            raise RequestError.at(param, f"must be between 0 and {config.max_logprobs}, not {count}")


def check_stream_options(stream: bool | None, stream_options: msgspec.Struct | None) -> None:
    """Raises ``RequestError`` for ``stream_options`` without ``stream``."""
    if stream_options is not None and not stream:
        raise RequestError.at("stream_options", "is only allowed with stream set to true")
