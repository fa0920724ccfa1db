"""A domain that never trained: how well each way of adapting serves it, every domain in turn.

    python -m benchmarks.held_out
    python -m benchmarks.held_out --data digits --set percent=5 --set test_limit=1000 --rounds 20

FedBN and FedAvg train on all domains but one. On the test data of that one are scored: FedAvg's
global model as it is, and with the domain's own statistics (`own stats`); FedBN adapted with the
domain's training data by `average`, `reestimate` and `finetune`; and the oracle, FedBN trained with
the domain. Only `finetune` and the oracle see labels.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import fedbn
from fedbn.core.federation import Client
from fedbn.experiments.configuration import checked, with_settings
from fedbn.experiments.sources import load_federation
from fedbn.runs.folder import write_atomically

WAYS = ("fedavg", "own stats", "average", "reestimate", "finetune", "oracle")


def main() -> None:
    """Measure every domain, print a table, write JSON where it is asked for."""
    options = parsed()
    whole = federation(options, None)
    domains = list(dict.fromkeys(client.domain for client in whole.clients))
    rows = []
    sys.stdout.write(f"{'held out':12}{''.join(f'{way:>12}' for way in WAYS)}\n")
    for held in domains:
        seeds = [measured(options, domains, held, seed) for seed in options.seeds]
        rows.append({"domain": held, "seeds": seeds})
        say(held, seeds)
    by_seed = zip(*(row["seeds"] for row in rows), strict=True)
    say("mean", [{way: np.mean([one[way] for one in seed]) for way in WAYS} for seed in by_seed])
    if options.out:
        content = {"data": options.data, "set": options.set, "rounds": options.rounds, "rows": rows}
        write_atomically(options.out, (json.dumps(content, indent=2) + "\n").encode())


def measured(options: Any, domains: list[str], held: str, seed: int) -> dict[str, Any]:
    """Accuracy on a domain of models that did not train on it, and of one that did."""
    rest = federation(options, [domain for domain in domains if domain != held])
    (site, *_) = federation(options, [held]).clients
    bn, avg = (trained(options, rest, method, seed) for method in ("fedbn", "fedavg"))
    oracle = trained(options, federation(options, None), "fedbn", seed)
    found: dict[str, Any] = {
        "fedavg": scored(avg, site, rest.clients[0].name),
        "oracle": scored(oracle, site, site.name),
    }
    own = avg.adapt(site.train.x, site="held out", how="average")
    found["own stats"] = scored(own, site, "held out")
    for how in ("average", "reestimate", "finetune"):
        adapted = bn.adapt(site.train.x, site.train.y, site="held out", how=how)
        found[how] = scored(adapted, site, "held out")
    manifest = adapted.adapted["held out"].manifest()
    return {**found, "distances": manifest["distances"], "warnings": manifest["warnings"]}


def trained(options: Any, data: fedbn.Federation, method: str, seed: int) -> fedbn.Result:
    return fedbn.fit(
        data,
        options.model,
        method,
        rounds=options.rounds,
        seed=seed,
        training__batch_size=options.batch_size,
        training__lr=options.lr,
        evaluation__every=options.rounds,
    )


def scored(result: fedbn.Result, site: Client, client: str) -> float:
    test = site.tests[site.domain]
    return result.score(test.x, test.y, client)


def federation(options: Any, domains: list[str] | None) -> fedbn.Federation:
    settings = [f"data.{setting}" for setting in options.set]
    raw = with_settings({"data": {"name": options.data}}, settings)
    if domains is not None:
        raw["data"]["domains"] = domains
    return load_federation(checked(raw).data)


def say(name: str, rows: list[dict[str, Any]]) -> None:
    """Print a row: the mean over seeds, and their standard deviation."""
    cells = [100 * np.array([row[way] for row in rows]) for way in WAYS]
    texts = [f"{c.mean():.1f}" + (f"±{c.std(ddof=1):.1f}" if len(c) > 1 else "") for c in cells]
    sys.stdout.write(f"{name:12}{''.join(f'{text:>12}' for text in texts)}\n")
    sys.stdout.flush()


def parsed() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits_mini")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--model", default=None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
