"""Choosing some of a data set's domains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedbn.errors import ConfigError, unknown


def checked_domains(asked: Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    """Check `data.domains`: one or more known ones, each once; all of them unless given.

    Examples:
        >>> checked_domains(None, ["a", "b"]), checked_domains(["b"], ["a", "b"])
        (('a', 'b'), ('b',))
    """
    legal = tuple(known)
    chosen = legal if asked is None else tuple(asked)
    for domain in chosen:
        if domain not in legal:
            raise ConfigError(f"data.domains: {unknown('domain', domain, legal)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"data.domains = {list(chosen)}: legal are one or more of {', '.join(legal)}, each once"
        )
    return chosen
