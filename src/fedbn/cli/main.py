"""The `fedbn` command: finds the sub-command, and turns errors into one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import Annotated, NoReturn

import click
import typer

from fedbn.cli import inspect, ls, resume, run, schema
from fedbn.errors import ConfigError, FedbnError

app = typer.Typer(
    name="fedbn",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine · 1 the run failed · 2 unknown command or flag · 3 a wrong value · "
    "4 data · 5 too few clients · 6 damaged run files · 130 interrupted, the state saved.",
)
for module in (run, resume, inspect, ls, schema):
    module.add_to(app)


@app.callback()
def _fedbn(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Federated learning when data looks different at every site: FedBN and its relatives.

    Start with [bold]fedbn run[/bold]: it compares four methods on embedded data, no GPU needed.
    """


def main() -> NoReturn:
    """Run the command line and end the process with the documented exit code."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:
        logging.basicConfig(level=logging.DEBUG)
        arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments == ["--version"]:
        from fedbn._version import __version__

        print(f"fedbn {__version__}")
        sys.exit(0)
    try:
        code = app(arguments, standalone_mode=False, prog_name="fedbn") or 0
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except FedbnError as error:
        code = _failed(str(error), error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort):
        code = _failed("interrupted before training began; nothing to save", 130, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        code = _failed(f"not foreseen: {text} (--debug shows where)", 1, debug)
    sys.stdout.flush()
    sys.exit(code)


def _failed(text: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"fedbn: {printable(text)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """Keep a message on one line, whatever names it quotes."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def environment_number(name: str, default: int) -> int:
    """Read a whole number from the environment."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(f"environment variable {name} = {text!r}: legal are whole numbers >= 0")
    return int(text)
