r"""What an update tells the server, with BatchNorm shared and local: three attacks.

- **Moments.** After a step with momentum \(m\) the running mean is \((1 - m) \mu_0 + m \mu\): who
  has both has \(\mu\), the mean of the site's activations; after more steps, that of its batches.
- **Pictures.** One step on a small batch gives its gradient. Pictures are sought whose gradient
  points the same way (Geiping et al. 2020) and, where statistics travel, whose moments are the
  site's (Yin et al. 2021). The attacker is given the labels.
- **Whose a sample is.** Of the sites' updates, the one that likes it best: by its loss, where what
  does not travel is as it began, with the samples' own statistics; or by the likelihood of the
  first layer's activations under a site's moments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from fedbn.core.bn_statistics import estimate_statistics, tracked_norms
from fedbn.core.federation import Client
from fedbn.core.plan import Plan
from fedbn.core.randomness import generator
from fedbn.core.replica import Replica
from fedbn.core.rounds import RunState, Update, initial_state, train_client
from fedbn.core.selectors import BATCHNORM
from fedbn.core.state import Kind, State, entries
from fedbn.errors import ModelError
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import run_plan
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of
from fedbn.paper.paper_figures import draw_intervals
from fedbn.results import display_name
from fedbn.results.figures import PAGE, headed, looks, plain, saved, styled
from fedbn.trained.local_parts import layers_of

DEFAULTS: dict[str, Any] = {"batches": [4, 16], "iterations": 200}
MEAN_ONE, VAR_ONE = "error of the mean, one step", "of the variance, one step"
MEAN_ROUND = "of the mean, a usual round"
LOSS_TRAIN, LOSS_TEST = "whose, by loss, trained on", "whose, by loss, new"
MOMENTS = "whose, by moments, new"
NAMING = (LOSS_TRAIN, LOSS_TEST, MOMENTS)
PICTURES, CHANCE, ORIGINAL = "PSNR, batch of", "chance", "original"
GUESSES = (CHANCE, "mean of the batch")
_RATE, _SMOOTH, _STATISTICS, _RANGE, _EACH = 0.02, 1e-3, 0.1, 2.0, 100
Found = dict[str, dict[str, dict[int, float]]]
"""By method, by what was measured, by seed."""
Moments = tuple[Tensor, Tensor]


def leak(request: Request) -> Outcome:
    """Attack every method with every seed."""
    options = options_of(request.options, DEFAULTS, counts=("iterations",))
    found: Found = defaultdict(lambda: defaultdict(dict))
    shown: dict[str, Tensor] = {}
    planner = Planner()
    for job in jobs(checked(request.several(), request.name, request.held)):
        request.tell(f"{job.method.name} seed {job.seed}: training, then attacking")
        plan, own = planner.plan(job), found[job.method.name]
        state = run_plan(plan, workers=request.workers)
        for name, value in (*_moments(plan, state), *_owners(plan, state)):
            own[name][job.seed] = value
            if name in NAMING:
                found[CHANCE][name][job.seed] = 100 / len(plan.federation.clients)
        for size in options["batches"]:
            pictures, values = _inverted(plan, size, options["iterations"])
            for name, value in zip((job.method.name, *GUESSES), values, strict=True):
                found[name][f"{PICTURES} {size}"][job.seed] = value
            if job.seed == request.experiment["seeds"][0]:
                shown |= {ORIGINAL: pictures[0], job.method.name: pictures[1]}
    found |= {name: found.pop(name) for name in GUESSES}  # below the methods
    table = _table(request, found)
    return Outcome((table,), _draw(request, shown, table))


def _step(plan: Plan, client: Client, state: RunState, whole: bool) -> Update:
    """A client's update: of a usual round, or of one step on all of its samples."""
    if whole:
        plan = replace(plan, training=replace(plan.training, local_steps=1, batch_size=None))
    update = train_client(plan, Replica(plan.initial_model, plan.method), client, state)
    assert isinstance(update, Update)
    return update


def _joined(plan: Plan, state: State) -> nn.Module:
    """The model as it began, with what is known in its place."""
    model = plan.model()
    model.load_state_dict({**plan.initial_model.state_dict(), **state})
    return model


def _read_off(plan: Plan, before: State, after: State, steps: int) -> list[Moments]:
    """Mean and variance of what each BatchNorm layer was given; none where they do not travel."""
    sent = plan.method.shared(entries(plan.initial_model))
    if not any(entry.kind is Kind.BN_STATISTIC for entry in sent):
        return []
    norms = tracked_norms(plan.initial_model)
    old, new = (layers_of(_joined(plan, state)) for state in (before, after))
    found = []
    for norm, was, now in zip(norms, old, new, strict=True):
        momentum = norm.momentum
        if not isinstance(momentum, float):
            raise ModelError("leak: BatchNorm without a momentum, whose means cannot be read off")
        kept = (1 - momentum) ** steps
        mean, var = ((b - kept * a) / (1 - kept) for a, b in zip(was, now, strict=True))
        found.append((mean, var))
    return found


def _watched(model: nn.Module) -> list[Tensor]:
    """A list that fills with what BatchNorm layers are given, channels first, as samples pass."""
    seen: list[Tensor] = []
    for norm in tracked_norms(model):
        norm.register_forward_pre_hook(lambda m, a: seen.append(a[0].transpose(0, 1).flatten(1)))
    return seen


@torch.no_grad()
def _moments(plan: Plan, state: RunState) -> Iterator[tuple[str, float]]:
    """How far what is read off is from the truth, by its length; the mean over sites."""
    sent = [e for e in plan.method.shared(entries(plan.initial_model)) if e.kind in BATCHNORM]
    yield "BatchNorm entries sent", float(len(sent))
    errors: dict[str, list[float]] = defaultdict(list)
    for client in plan.federation.clients:
        model = _joined(plan, {**state.shared.state, **state.local[client.name].state})
        seen = _watched(model.train())
        model(client.train.batch(slice(None))[0])
        truth = (seen[0].mean(1), seen[0].var(1))
        for whole in (True, False):
            with torch.enable_grad():
                update = _step(plan, client, state, whole)
            steps = 1 if whole else plan.steps(client)
            read = _read_off(plan, state.shared.state, update.shared.state, steps)
            for kind, name in enumerate((MEAN_ONE, VAR_ONE) if whole else (MEAN_ROUND,)):
                if read:
                    error = (read[0][kind] - truth[kind]).norm() / truth[kind].norm()
                    errors[name].append(float(error))
    yield from ((name, sum(values) / len(values)) for name, values in errors.items())


@torch.no_grad()
def _owners(plan: Plan, state: RunState) -> Iterator[tuple[str, float]]:
    """How often the site of a sample is named rightly, in per cent."""
    clients = plan.federation.clients
    with torch.enable_grad():
        sent = [_step(plan, c, state, whole=False).shared.state for c in clients]
    tests = [client.tests[client.domain] for client in clients]
    for name, splits in ((LOSS_TRAIN, [client.train for client in clients]), (LOSS_TEST, tests)):
        parts = [split.batch(slice(0, _EACH)) for split in splits]
        x, y = (torch.cat([part[i] for part in parts]) for i in range(2))
        owner = torch.cat([torch.full_like(part[1], i) for i, part in enumerate(parts)])
        likes, dense = [], []
        for update, client in zip(sent, clients, strict=True):
            model = _joined(plan, update)
            read = _read_off(plan, state.shared.state, update, plan.steps(client))
            if not read:
                estimate_statistics(model, x)
            seen = _watched(model.eval())
            losses = functional.cross_entropy(model(x), y, reduction="none")
            likes.append(losses.mean() - losses)
            for mean, var in read[:1]:
                spread = var[:, None] + 1e-5
                density = (seen[0] - mean[:, None]).square() / spread + spread.log()
                dense.append(-density.mean(0))
        yield name, _right(likes, owner)
        if dense and name == LOSS_TEST:
            yield MOMENTS, _right(dense, owner)


def _right(scores: list[Tensor], owner: Tensor) -> float:
    return 100 * float((torch.stack(scores).argmax(0) == owner).double().mean())


def _inverted(
    plan: Plan, size: int, iterations: int
) -> tuple[tuple[Tensor, Tensor], tuple[float, ...]]:
    """Invert a batch of every site's first update: the first site's pictures; ours and guesses."""
    clients, state = plan.federation.clients, initial_state(plan)
    guess = torch.cat([c.tests[c.domain].batch(slice(None))[0] for c in clients]).mean(0)
    values, pictures = [], []
    for client in clients:
        draws = generator(plan.seed, f"leak {size}", client=client.name)
        few = client.train.take(torch.randperm(len(client.train), generator=draws)[:size])
        x, y = few.batch(slice(None))
        update = _step(plan, replace(client, train=few), state, whole=True)
        start = guess + 0.01 * torch.randn(x.shape, generator=draws)
        made = invert(plan, state.shared.state, update.shared.state, (start, y), iterations)
        made, value = _psnr(made, x)
        values.append((value, *(_psnr(m.expand_as(x), x)[1] for m in (guess, x.mean(0)))))
        pictures.append((x, made))
    return pictures[0], tuple(map(fmean, zip(*values, strict=True)))


def invert(
    plan: Plan, before: State, after: State, batch: tuple[Tensor, Tensor], iterations: int
) -> Tensor:
    """Seek the pictures behind one step; `batch` is where to start, and the labels."""
    model = _joined(plan, before).train()
    known = [name for name, _ in model.named_parameters() if name in after]
    wanted = torch.cat([(before[name] - after[name]).flatten() for name in known])
    moments = _read_off(plan, before, after, 1)
    x, y = batch[0].clone().requires_grad_(), batch[1]
    optimizer = torch.optim.Adam([x], lr=_RATE)
    seen = _watched(model)
    parameters = [dict(model.named_parameters())[name] for name in known]
    for _ in range(iterations):
        seen.clear()
        loss = functional.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([slope.flatten() for slope in slopes])
        apart = 1 - functional.cosine_similarity(flat, wanted, dim=0)
        apart = apart + _SMOOTH * sum(x.diff(dim=dim).abs().mean() for dim in (2, 3))
        for a, (mean, var) in zip(seen, moments, strict=False):
            off = (a.mean(1) - mean).square() / (var + 1e-3)
            apart = apart + _STATISTICS * (off + (a.var(1) / (var + 1e-3) - 1).square()).mean()
        (x.grad,) = torch.autograd.grad(apart, x)
        optimizer.step()
    return x.detach()


def _psnr(made: Tensor, truth: Tensor) -> tuple[Tensor, float]:
    """The pictures in the order that fits best, and the mean of 10 log₁₀(range² / MSE)."""
    errors = (truth[:, None] - made[None]).square().flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    values = 10 * torch.log10(_RANGE**2 / errors[rows, columns])
    return made[torch.as_tensor(columns)], float(values.mean())


def _table(request: Request, found: Found) -> Table:
    """Everything measured; and the differences that matter, with intervals."""
    columns = tuple(dict.fromkeys(column for own in found.values() for column in own))
    pairs = [(m, CHANCE) for m in found if m not in GUESSES]
    pairs += [("fedbn", m) for m in ("fedavg", "silobn") if {"fedbn", m} <= found.keys()]
    compared = [column for column in columns if column in found[CHANCE]]
    rows = []
    for method, own in found.items():
        cells = [Cell.of(own[column].values()) if column in own else None for column in columns]
        rows.append(Row((display_name(method),), tuple(cells)))
    for new, old in pairs:
        gaps = [
            Cell.gained(found[new][column], found[old][column], len(pairs) * len(compared))
            if column in compared and found[new].keys() & found[old].keys() >= {column}
            else None
            for column in columns
        ]
        rows.append(Row((f"{display_name(new)} − {display_name(old)}",), tuple(gaps)))
    note = (
        "Mean (standard deviation). Moments of the first BatchNorm layer's inputs: the "
        "error relative to their length, 0 is exact. Whose a sample is: rightly named in per cent. "
        "Pictures: PSNR in dB, the mean of all sites; chance is the mean picture of all sites, "
        "where the search starts; nobody outside has the mean of the batch. Intervals hold for all "
        "differences at once (paired t, Bonferroni)."
    )
    title = "what the updates of one round tell"
    return replace(request.table(request.name, title, columns, rows, note), digits=2)


def _draw(request: Request, shown: Mapping[str, Tensor], table: Table) -> tuple[Path, ...]:
    """Draw a site's pictures above what was made of its update, and PSNR against chance."""
    with styled({"axes.grid": False}):
        figure = Figure(figsize=(PAGE, 2.6))
        left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
        rows = [torch.cat([*picture[:8]], dim=2) for picture in shown.values()]
        canvas = torch.cat(rows, dim=1).permute(1, 2, 0)
        left.imshow(((canvas + 1) / 2).clamp(0, 1).numpy(), aspect="equal")
        side = canvas.shape[0] / len(rows)
        left.set_yticks([side * (i + 0.5) for i in range(len(rows))])
        left.set_yticklabels([plain(display_name(name)) for name in shown])
        left.set_xticks([])
        headed(left, "a  One batch, and what its update gave")
        known = looks([name for name in shown if name != ORIGINAL])
        sizes = [column for column in table.columns if column.startswith(PICTURES)]
        gains = {r.label[0]: dict(zip(table.columns, r.cells, strict=True)) for r in table.rows}
        for shift, (method, look) in enumerate(known.items()):
            own = gains[f"{display_name(method)} − {CHANCE}"]
            cells = [cell for size in sizes if (cell := own[size])]
            at = [place + 0.15 * (shift - 1) for place in range(len(cells))]
            draw_intervals(right, at, cells, look, ls="", label=display_name(method))
        right.set_xticks(range(len(sizes)), [size.rpartition(" ")[2] for size in sizes])
        right.set_xlabel("pictures in the batch")
        right.set_xlim(-0.5, len(sizes) - 0.5)
        right.set_ylabel("PSNR − chance (dB)")
        right.margins(y=0.3)
        right.legend(loc="upper right")
        headed(right, "b  Against chance")
        return saved(figure, request.folder / request.name, request.label)
