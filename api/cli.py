"""The ``octavo`` command. Each command's module is imported only when that command runs: ``--help`` is instant."""

import os
import signal
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

from .. import __version__
from ..core.errors import OctavoError
from .config_file import UsageError, apply_config_file

if TYPE_CHECKING:
    from cyclopts import App

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def console() -> int:
    """The ``octavo`` command itself: ``main`` in a process that ends with it."""
    try:
        return main()
    finally:
        # What is left is the interpreter's own end; a late signal must not change the exit code.
        for late in (signal.SIGINT, signal.SIGTERM):
            signal.signal(late, signal.SIG_IGN)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the process's exit code.

    An error that Octavo raises on purpose is one line on stderr; a traceback comes with it only under
    ``OCTAVO_LOGGING_LEVEL=DEBUG``. Exit codes: 0, 1 for a failure, 2 for wrong usage, 130 for Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a character of an answer
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except UsageError as error:
        return _fail(error, EXIT_USAGE)
    except OctavoError as error:
        return _fail(error, EXIT_FAILURE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except UnicodeEncodeError as error:  # bytes of the command line or of standard input, which Python lets through
        return _fail(UsageError(f"a text is not valid UTF-8: {error}"), EXIT_USAGE)
    except OSError as error:  # a file or folder that cannot be read or written: it says which
        return _fail(error, EXIT_FAILURE)


def _run(arguments: list[str]) -> int:
    from cyclopts import CycloptsError

    try:
        result = build_app()(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _fail(error, EXIT_USAGE)
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


def build_app() -> "App":
    """The command tree. Commands are named by import path, so that building it imports none of them."""
    from cyclopts import App, Parameter

    app = App(
        name="octavo",
        help="An LLM inference engine and server.",
        version=f"octavo {__version__}",
        default_parameter=Parameter(negative_iterable=()),
        config=apply_config_file,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    api = __package__
    app.command(f"{api}.serve_command:serve", name="serve", help="Serve a model over HTTP, with OpenAI's API.")
    app.command(f"{api}.terminal:chat", name="chat", help="Talk to a server from the terminal.")
    app.command(f"{api}.terminal:complete", name="complete", help="Let a server continue a text.")
    app.command(f"{api}.bench.command:bench", name="bench", help="Measure throughput, latency, a server, a start.")
    app.command(f"{api}.batch_command:run_batch", name="run-batch", help="Work off a batch file of requests.")
    app.command(f"{api}.environment:collect_env", name="collect-env", help="Print what a bug report should say.")
    app.command(f"{api}.flag_reference:docs", name="docs", help="Print the reference of all flags as Markdown.")
    return app


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("OCTAVO_LOGGING_LEVEL", "").upper() == "DEBUG":
        import traceback

        traceback.print_exception(error)
    print(f"octavo: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(console())
