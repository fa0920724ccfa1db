"""The methods by name, and how one writes them: `fedbn+prox(0.01)`, `my.module:method`.

Adding a file here adds a method.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import fedbn.methods
from fedbn import registry
from fedbn.core import aggregation
from fedbn.core.method import Method, proximal
from fedbn.core.selectors import local, only
from fedbn.errors import ConfigError, unknown

__all__ = ["parse_method"]
PARTS: dict[str, Callable[..., Any]] = {
    "adagrad": aggregation.server_adagrad,
    "adam": aggregation.server_adam,
    "krum": aggregation.krum,
    "local": local,
    "mean": aggregation.mean,
    "median": aggregation.median,
    "momentum": aggregation.server_momentum,
    "multikrum": aggregation.multi_krum,
    "only": only,
    "prox": proximal,
    "trimmed": aggregation.trimmed_mean,
    "yogi": aggregation.server_yogi,
}
_PIECE = re.compile(r"(?P<name>[\w.:]+)\s*(?:\((?P<args>[^()]*)\))?")


def pieces_of(spec: str) -> list[str]:
    """Cut a written method at its `+`; joined by it again, they are the method's name.

    Examples:
        >>> pieces_of("fedbn + prox(0.1)")
        ['fedbn', 'prox(0.1)']
    """
    return [piece.strip() for piece in re.split(r"\+(?![^(]*\))", spec)]


def baseline_names() -> list[str]:
    """List the registered baselines: methods that each client runs alone, without a network."""
    known = registry.names(fedbn.methods)
    return [name for name in known if parse_method(name).baseline is not None]


def parse_method(
    spec: str, defaults: Mapping[str, Any] | None = None, held: registry.Held = registry.TYPED
) -> Method:
    """Make a method from its written form; `held` says where that comes from.

    Examples:
        >>> parse_method("fedbn + prox(0.1)").name
        'fedbn+prox(0.1)'
        >>> parse_method("fedprox", {"mu": 0.2}).rules
        (Proximal(mu=0.2),)
    """
    first, *rest = pieces = pieces_of(spec)

    def method_of(name: str) -> Callable[..., Any]:
        return registry.find(fedbn.methods, name, "method", held)

    method = _built(first, method_of, defaults)
    if not isinstance(method, Method):
        raise ConfigError(f"method {first!r} gives a {type(method).__name__}, not a Method")
    for piece in rest:
        method |= _built(piece, lambda name: _part(name, held), defaults)
    assert isinstance(method, Method)
    return replace(method, name="+".join(pieces))


def _part(name: str, held: registry.Held) -> Callable[..., Any]:
    known = (*PARTS, *registry.names(fedbn.methods))
    if ":" not in name and name not in known:
        raise ConfigError(unknown("part of a method", name, known))
    return PARTS.get(name) or registry.find(fedbn.methods, name, "part of a method", held)


def _built(
    piece: str, find: Callable[[str], Callable[..., Any]], defaults: Mapping[str, Any] | None
) -> Any:
    match = _PIECE.fullmatch(piece)
    if match is None:
        raise ConfigError(
            f"cannot read the method {piece!r}: expected NAME or NAME(arguments), joined by +"
        )
    build = find(match["name"])
    args, kwargs = _arguments(match["args"] or "", piece)
    signature = registry.signature_of(build, f"method {piece!r}")
    try:
        bound = signature.bind_partial(*args, **kwargs)
        for name, value in (defaults or {}).items():
            if name in signature.parameters:
                bound.arguments.setdefault(name, value)
        return build(*bound.args, **bound.kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"method {piece!r}: {error}; it takes {signature}") from error


def _arguments(text: str, piece: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        args = [_literal(node) for node in call.args]
        return args, {word.arg or "**": _literal(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"cannot read the arguments of {piece!r}: expected numbers or words, as in prox(0.01)"
        ) from error


def _literal(node: ast.expr) -> Any:
    """Read a number, or a bare word (`instance`, `fc.*` must be quoted) as text."""
    value = node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
    if isinstance(value, int):
        float(value)  # an overflow shows here, before a formula meets it
    return value
