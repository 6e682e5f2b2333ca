"""Telling a model's reasoning from its answer: text between ``<think>`` and ``</think>``."""

from dataclasses import dataclass

from ..core.errors import ConfigurationError
from .answer_parts import ContentText, ReasoningText
from .tools.text_machine import Steps, TextMachine


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags around a model's reasoning."""

    opening: str
    closing: str

    def state_after(self, prompt: str, open_text: str = "") -> str:
        """What an answer to this prompt begins with, from the prompt's end alone.

        ``open_text``: the text of the message that the answer continues, if it does: reasoning may be open in it.

        ``open``: reasoning, the template has written the opening tag itself. ``closed``: content, the template has
        ruled reasoning out by an empty pair of tags. ``unknown``: the model decides.
        """
        end = prompt.rstrip()
        if open_text and self.opening in open_text:
            return "open" if open_text.rfind(self.opening) > open_text.rfind(self.closing) else "closed"
        if end.endswith(self.opening):
            return "open"
        return "closed" if end.endswith(self.closing) else "unknown"


REASONING_FORMATS = {
    "qwen3": ReasoningFormat("<think>", "</think>"),
    "deepseek_r1": ReasoningFormat("<think>", "</think>"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
}


def reasoning_format(name: str, template: str) -> ReasoningFormat | None:
    """The format for ``--reasoning-parser``: a name, ``none``, or ``auto`` for the one whose tags the chat template
    shows. Raises ``ConfigurationError``."""
    if name == "none":
        return None
    if name == "auto":
        # Templates that only cut reasoning out of earlier turns show the closing tag alone.
        return next((each for each in REASONING_FORMATS.values() if each.closing in template), None)
    if name not in REASONING_FORMATS:
        raise ConfigurationError(
            f"--reasoning-parser {name}: there is no such parser; choose auto, none or one of "
            f"{', '.join(sorted(REASONING_FORMATS))}"
        )
    return REASONING_FORMATS[name]


class ReasoningMachine(TextMachine):
    """Splits one completion into ``ReasoningText`` and ``ContentText``. Whitespace around the reasoning is dropped."""

    def __init__(self, tags: ReasoningFormat, state: str) -> None:
        """``state``: see ``ReasoningFormat.state_after``."""
        super().__init__()
        self._tags = tags
        self.state = state
        """``open`` while the text is reasoning, ``closed`` from the closing tag on."""
        self.reasoned = state == "open"
        """There was an opening tag, here or in the prompt."""

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        if self.state == "unknown":
            yield from self._begin()
        if self.state == "open":
            yield from self._reasoning()
        while True:
            if self._at < len(self._text):
                self._out.append(ContentText(self._text[self._at :]))
                self._at = len(self._text)
            if self._ended:
                return
            yield

    def _begin(self) -> Steps[None]:
        """Only an opening tag before anything else begins reasoning."""
        space = yield from self._space_here()
        if (yield from self._skip(self._tags.opening)) is not None:
            self.state = "open"
            self.reasoned = True
            return
        self.state = "closed"
        if space:
            self._out.append(ContentText(space))

    def _reasoning(self) -> Steps[None]:
        # A template that writes the opening tag does not keep every model from writing it again.
        yield from self._skip_space()
        yield from self._skip(self._tags.opening)
        yield from self._skip_space()
        self._shown_as = ReasoningText
        if (yield from self._content_until((self._tags.closing,))) is None:
            return
        self._at += len(self._tags.closing)
        self.state = "closed"
        yield from self._skip_space()
