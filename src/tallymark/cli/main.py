"""`tallymark`: the frame around all verbs: options before the verb, logs, errors and exit codes.

Exit codes: 0 done, 1 a problem was found, 2 wrong usage, 3 a dependency is unreachable, 130 Ctrl-C. A user's
mistake is one or two lines; a traceback appears only with --verbose or TALLYMARK_DEBUG.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tallymark import __version__
from tallymark.cli import connections, output
from tallymark.cli.signals import interruptible
from tallymark.cli.verbs import Verbs, closest_verb
from tallymark.errors import EXIT_DONE, EXIT_PROBLEM, TallymarkError, UsageError
from tallymark.observe.logs import LogFormat, configure

EXIT_INTERRUPTED = 128 + signal.SIGINT
DEBUG_VARIABLE = "TALLYMARK_DEBUG"

app = typer.Typer(
    cls=Verbs,
    name="tallymark",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tallymark {__version__}")
        raise typer.Exit(EXIT_DONE)


@app.callback()
def frame(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings; default: tallymark.toml here. [TALLYMARK_CONFIG]"
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="TALLYMARK_LOG_FORMAT", help="How log lines are written.")
    ] = LogFormat.HUMAN,
    log_level: Annotated[
        str, typer.Option(envvar="TALLYMARK_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Debug logs, and tracebacks of unexpected errors. [TALLYMARK_DEBUG]"),
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Messages on Kafka: none lost, none applied twice, and the tally to prove it."""
    configure(log_format, "debug" if verbose else log_level)
    connections.use(connections.Frame(config=config))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    try:
        # A verb that ends with typer.Exit gives its code; one that returns is done.
        with interruptible(signal.SIGINT):
            verb = typer.main.get_command(app)
            code = verb.main(list(arguments), prog_name="tallymark", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_DONE
    except TallymarkError as error:
        output.report(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except typer.TyperException as error:
        return _wrong_usage(error, as_json=as_json)
    except BrokenPipeError:
        # Whoever read us has gone (`| head`): not an error of anyone's, and nothing may be written any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except Exception as error:  # noqa: BLE001 - the outermost edge: a user must not be met by a traceback
        return _unexpected(error, arguments, as_json=as_json)


def _wrong_usage(error: typer.TyperException, *, as_json: bool) -> int:
    # Click's own messages end in a full stop, ours do not.
    said = str(getattr(error, "format_message", lambda: str(error))()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "tallymark")
    if not said:
        # No arguments at all: the help was asked for and has been shown.
        return UsageError.exit_code
    near = closest_verb(said)
    remedy = f"Did you mean `tallymark {near}`?" if near else f"See `{path} --help`."
    output.report(UsageError(said, remedy=remedy), as_json=as_json)
    return int(getattr(error, "exit_code", UsageError.exit_code))


def _unexpected(error: Exception, arguments: Sequence[str], *, as_json: bool) -> int:
    if os.environ.get(DEBUG_VARIABLE) or "--verbose" in arguments:
        import traceback

        from tallymark.observe.masking import mask

        sys.stderr.write(mask("".join(traceback.format_exception(error))))
    output.report(
        TallymarkError(
            f"unexpected {type(error).__name__}: {error}",
            remedy=f"This is a bug of ours: please report it. {DEBUG_VARIABLE}=1 shows where it happened.",
        ),
        as_json=as_json,
    )
    return EXIT_PROBLEM


def run() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))
