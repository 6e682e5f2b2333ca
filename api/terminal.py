"""``octavo chat`` and ``octavo complete``: a server's answers in the terminal, streamed as they come."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from .client import DEFAULT_URL, ServerAnswerError, ServerClient, StreamUsage
from .config_file import UsageError

BLOCK_MARK = '"""'

HELP = f"""\
/help           this text
/reset          forget the conversation (the system message stays)
/system [TEXT]  set the system message, or show it
/save FILE      write the conversation to FILE as JSON
/exit           leave (also Ctrl-D)
Several lines: end a line with \\, or put the text between two lines of {BLOCK_MARK}
Ctrl-C stops an answer."""


@Parameter(name="*")
@dataclass(kw_only=True)
class TerminalArgs:
    """Which server to talk to, and how it shall sample. What is left out, the server decides."""

    url: str = DEFAULT_URL
    """Address of the server."""

    model: str | None = None
    """Name of the model. Without it, the first that the server offers."""

    api_key: Annotated[str | None, Parameter(env_var="OCTAVO_API_KEY")] = None
    """Key to send as a bearer token."""

    max_tokens: int | None = None
    """Most tokens of one answer."""

    temperature: float | None = None
    """Sampling temperature; 0 is greedy."""

    top_p: float | None = None
    """Nucleus sampling."""

    seed: int | None = None
    """Makes the draws repeatable."""

    stats: bool = True
    """Print tokens and speed after each answer, on a terminal."""

    def sampling(self) -> dict[str, Any]:
        """The request's fields that were set."""
        fields = {name: getattr(self, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
        return {name: value for name, value in fields.items() if value is not None}


def complete(prompt: str | None = None, /, *, terminal: TerminalArgs | None = None) -> int:
    """Let a server continue a text.

    Parameters
    ----------
    prompt
        The text. Without it, what comes on standard input.
    """
    terminal = terminal or TerminalArgs()
    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is no text to continue; give it as PROMPT or on standard input")
    text = sys.stdin.read() if prompt is None else prompt
    with ServerClient(terminal.url, api_key=terminal.api_key) as client:
        model = terminal.model or client.first_model()
        answer = Answer(client.stream_completion(text, model=model, **terminal.sampling()))
        for piece in answer:
            _write(piece)
    _write("\n")
    if terminal.stats:
        _note(answer.summary())
    return 0


def chat(*, system: str | None = None, terminal: TerminalArgs | None = None) -> int:
    """Talk to a server from the terminal; /help tells the commands.

    Parameters
    ----------
    system
        System message that begins the conversation.
    """
    terminal = terminal or TerminalArgs()
    with ServerClient(terminal.url, api_key=terminal.api_key) as client:
        model = terminal.model or client.first_model()
        interactive = sys.stdin.isatty()
        if interactive:
            _enable_line_editing()
            _note(f"{model} at {client.url}; /help tells the commands")
        ChatSession(client, model, terminal, system, interactive=interactive).run()
    return 0


class Answer:
    """Iterates over the pieces of one streamed answer, and knows afterwards what it was and how fast it came."""

    def __init__(self, stream: Iterator[str | StreamUsage]) -> None:
        self._stream = stream
        self._began = time.perf_counter()
        self._first: float | None = None
        self._last = self._began
        self._pieces: list[str] = []
        self._usage: StreamUsage | None = None

    def __iter__(self) -> Iterator[str]:
        for item in self._stream:
            if isinstance(item, StreamUsage):
                self._usage = item
                continue
            self._last = time.perf_counter()
            if self._first is None:
                self._first = self._last
            self._pieces.append(item)
            yield item

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._pieces)

    def summary(self) -> str:
        """``24 tokens, 31.0 tok/s, first after 0.12 s``: the rate counts from the first token on."""
        if self._first is None:
            return "no text"
        parts = []
        if self._usage is not None:
            tokens = self._usage.completion_tokens
            parts.append(f"{tokens} tokens")
            if tokens > 1 and self._last > self._first:
                parts.append(f"{(tokens - 1) / (self._last - self._first):.1f} tok/s")
        parts.append(f"first after {self._first - self._began:.2f} s")
        return ", ".join(parts)


class ChatSession:
    """One conversation: reads turns, runs slash commands, streams the answers and remembers both."""

    def __init__(
        self,
        client: ServerClient,
        model: str,
        args: TerminalArgs,
        system: str | None = None,
        read_line: Callable[[str], str] = input,
        interactive: bool = True,
    ) -> None:
        self.client = client
        self.model = model
        self.args = args
        self.system = system
        self.turns: list[dict[str, str]] = []
        self._read_line = read_line
        self._interactive = interactive

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as the API takes it, the system message first."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def run(self) -> None:
        """Reads and answers until /exit or the end of the input.

        A person sees a server's error and goes on; a script that pipes its turns in gets it raised, as
        ``ServerAnswerError``.
        """
        while True:
            try:
                text = read_turn(self._read_line, ">>> " if self._interactive else "")
            except EOFError:
                return
            except KeyboardInterrupt:
                _write("\n")
                continue
            if text.startswith("/"):
                if not self.command(text):
                    return
            elif text.strip():
                self.answer(text)

    def answer(self, text: str) -> None:
        """Sends one turn and streams the reply. A turn that failed is taken back, so that it can be tried again."""
        self.turns.append({"role": "user", "content": text})
        stream = self.client.stream_chat(self.messages, model=self.model, **self.args.sampling())
        answer = Answer(stream)
        try:
            for piece in answer:
                _write(piece)
        except KeyboardInterrupt:
            _note(" (stopped)")
        except ServerAnswerError as error:
            if not self._interactive:
                raise
            _note(str(error))
            if not answer.text:
                self.turns.pop()
                return
        _write("\n")
        self.turns.append({"role": "assistant", "content": answer.text})
        if self.args.stats:
            _note(answer.summary())

    def command(self, text: str) -> bool:
        """Runs one slash command. False if it ends the conversation."""
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        match name:
            case "/exit" | "/quit":
                return False
            case "/help":
                _note(HELP)
            case "/reset":
                self.turns.clear()
                _note("forgotten")
            case "/system":
                if rest:
                    self.system = rest
                _note(f"system: {self.system or '(none)'}")
            case "/save":
                self._save(rest)
            case _:
                _note(f"there is no command {name}; /help lists them")
        return True

    def _save(self, target: str) -> None:
        if not target:
            _note("/save needs a file name")
            return
        try:
            Path(target).write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            _note(f"{target} cannot be written: {error.strerror}")
        else:
            _note(f"{len(self.messages)} messages written to {target}")


def read_turn(read_line: Callable[[str], str], prompt: str) -> str:
    """One turn of the user, which a final backslash or a block between triple quotes spreads over lines.

    Raises ``EOFError`` at the end of the input when nothing was typed.
    """
    line = read_line(prompt)
    if line.strip() == BLOCK_MARK:
        return "\n".join(_until_end(read_line, prompt))
    lines = []
    more = "... " if prompt else ""
    while line.endswith("\\"):
        lines.append(line[:-1])
        try:
            line = read_line(more)
        except EOFError:
            line = ""
    return "\n".join([*lines, line])


def _until_end(read_line: Callable[[str], str], prompt: str) -> Iterator[str]:
    while True:
        try:
            line = read_line("... " if prompt else "")
        except EOFError:
            return
        if line.strip() == BLOCK_MARK:
            return
        yield line


def _enable_line_editing() -> None:
    """Arrow keys and history in ``input``, where Python was built with readline."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401


def _write(text: str) -> None:
    # Not through rich: an answer is text, not markup, and may come in pieces of a word.
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(text: str) -> None:
    """A remark of ours, dim and on stderr, and only on a terminal, so that piped output is the answer alone."""
    if sys.stderr.isatty():
        Console(stderr=True, highlight=False).print(text, style="dim", markup=False)
