"""Write docs/cli.md, the page of all commands, from the commands: `python scripts/cli_page.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
_HEAD = """# Command line

What `fedbn COMMAND --help` says, on one page. `scripts/cli_page.py` writes it from the commands.
"""


def page() -> str:
    """All commands as Markdown."""
    from fedbn.cli.main import app

    whole = typer.main.get_command(app)
    return "\n".join([_HEAD, *_section(whole, _looking(whole, "fedbn"))])


def _looking(
    command: click.Command, name: str, parent: click.Context | None = None
) -> click.Context:
    """A context without words, which a command would miss."""
    return click.Context(command, info_name=name, parent=parent, resilient_parsing=True)


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    name = context.command_path
    yield f"## {name}\n"
    yield _plain(command.help) + "\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```\n"
    rows = [record for p in command.params if (record := p.get_help_record(context))]
    if rows:
        yield "| option | meaning |\n|---|---|"
        yield "\n".join(f"| `{_cell(left)}` | {_cell(right)} |" for left, right in rows) + "\n"
    if command.epilog:
        yield _examples(_plain(command.epilog)) + "\n"
    for word in getattr(command, "commands", ()):
        _, below, _ = command.resolve_command(context, [word])
        yield from _section(below, _looking(below, word, context))


def _plain(text: str | None) -> str:
    return re.sub(r"\[/?bold\]", "", inspect.cleandoc(text or ""))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _examples(text: str) -> str:
    """Commands as a block, a sentence as it is."""
    lines = re.split(r"\n+|\s+·\s+", re.sub(r"^Examples?:?\s*", "", text))
    commands = all(line.startswith("fedbn ") for line in lines)
    return "\n".join(["```text", *lines, "```"]) if commands else text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
