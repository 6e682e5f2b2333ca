"""DeepSeek's formats."""

from .json_calls import JsonCallParser
from .text_machine import NotACall, Steps
from .tool_parser import MAX_NAME

_CALLS, _END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"


class DeepseekV3Parser(JsonCallParser):
    """Calls between DeepSeek's markers: V3 and R1 write ``function<sep>name``, a line break and the arguments in a
    fenced block of JSON; V3.1 writes ``name<sep>{...}``."""

    markers = (_CALLS, _END_CALLS, _CALL, _END_CALL, _SEPARATOR)
    template_signs = ((_CALLS,), (_CALL,))

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        yield from self._calls_behind((_CALLS, _CALL), self._call, (_END_CALL, _END_CALLS))

    def _call(self) -> Steps[None]:
        yield from self._skip(_CALLS)
        yield from self._skip_space()
        if (yield from self._skip(_CALL)) is None:
            raise NotACall
        name = (yield from self._until(_SEPARATOR, MAX_NAME)).strip()
        fenced = (yield from self._skip_space()) != "{"
        if fenced:
            # What stood before the separator was the kind of the call.
            name = (yield from self._until("\n", MAX_NAME)).strip()
            yield from self._skip_space()
            yield from self._skip(_FENCE + "json", _FENCE)
            if (yield from self._skip_space()) != "{":
                raise NotACall
        self._start(name)
        yield from self._streamed_arguments()
        yield from self._skip_space()
        if fenced and (yield from self._skip(_FENCE)) is not None:
            yield from self._skip_space()
        yield from self._skip(_END_CALL)
