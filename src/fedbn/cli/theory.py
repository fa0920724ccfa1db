"""`fedbn theory`: the paper's convergence theory, computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbn.cli.output import emit


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Examples: fedbn theory   ·   fedbn theory --alpha 10 --out theory/")(theory)


def theory(
    width: Annotated[int, typer.Option(min=1, help="Neurons, the paper's m.")] = 1024,
    alpha: Annotated[float, typer.Option(min=0.001, help="Deviation at the start.")] = 4.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of gradient descent.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Decides data and network.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the figure (SVG, PNG) and theory.json.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Compare FedAvg's and FedBN's kernels, bounds and measured convergence (section 4).

    docs/theory.md explains every number.
    """
    import sys

    from fedbn.paper.theory import study
    from fedbn.runs.folder import write_atomically

    found = study(width=width, alpha=alpha, steps=steps, seed=seed)
    if out is not None:
        from fedbn.paper.paper_figures import draw_theory

        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "theory.json", (found.to_json() + "\n").encode())
        pictures = draw_theory(found.to_dict(), out)
        print(f"wrote {', '.join(str(p) for p in pictures)}, theory.json", file=sys.stderr)
    emit(found.to_json()) if json else _print(found.to_dict())


def _print(found: dict[str, Any]) -> None:
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "least eigenvalue of G∞": lambda b: f"{b['printed']['mu']:.4g}",
        "least eigenvalue of the limit of G(0)": lambda b: f"{b['start']['mu']:.4g}",
        "least eigenvalue of Λ(0)": lambda b: f"{b['kernels']['total'][0]:.4g}",
        "the same in federated rounds": lambda b: f"{b['kernels']['of_rounds'][0]:.4g}",
        "error at the end, joint descent": lambda b: f"{b['measured'][-1]:.3g}",
        "error at the end, federated rounds": lambda b: f"{b['rounds'][-1]:.3g}",
        "bound with G∞ broken at step": lambda b: _step(b["printed"]["violation"]),
        "bound with the limit of G(0) broken at": lambda b: _step(b["start"]["violation"]),
        "width the theorem asks for (G∞)": lambda b: f"{b['printed']['width']:.3g}",
        "width the theorem asks for (limit)": lambda b: f"{b['start']['width']:.3g}",
    }
    emit(f"{'':40} {'FedAvg':>12} {'FedBN':>12}")
    for name, value in rows.items():
        emit(f"{name:40} {value(found['fedavg']):>12} {value(found['fedbn']):>12}")
    checks = found["checks"]
    emit(f"\nCorollary 4.6, λmin(G*∞) >= λmin(G∞): {'holds' if checks['corollary'] else 'fails'}")
    emit(f"Lemma 4.3, both positive definite: {'holds' if checks['definite'] else 'fails'}")


def _step(violation: int | None) -> str:
    return "never" if violation is None else str(violation)
