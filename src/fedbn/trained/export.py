"""A client's model as a file that runs without fedbn, checked before it is kept, with its card.

The file holds what the server shares and what this client keeps, and nothing of another client's.
A model is traced on blank samples, because both graph formats keep what they were traced on or
could tell of it; paths of source files are taken out.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from fedbn import __version__
from fedbn.core.bn_folding import fold
from fedbn.core.randomness import generator
from fedbn.data.preparation import SiteFit
from fedbn.errors import ConfigError, FedbnError, ModelError, unknown
from fedbn.runs.folder import RunFolder, explained, folder_name, write_atomically
from fedbn.trained.model_card import model_card
from fedbn.trained.trained_run import Trained

TOLERANCE = 1e-4
_SAMPLES = 32
_LONGEST = 200  # bytes of a file's name, before its suffix
_PIXELS = "pixels from 0 to 255, as float32: x / 127.5 - 1"
_NUMBERS = "float32 numbers as they are in the data"
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Format:
    """A file format: how a model, the shape of a sample and what is known of it become bytes.

    The model lends `load` its architecture where needed. `extra` brings the packages it needs.
    """

    suffix: str
    save: Callable[[nn.Module, tuple[int, ...], Mapping[str, Any]], bytes]
    load: Callable[[bytes, nn.Module], Run]
    extra: str = ""
    needs: tuple[str, ...] = ()


def _save_safetensors(model: nn.Module, shape: tuple[int, ...], facts: Mapping[str, Any]) -> bytes:
    # Clones: tied tensors are stored under each of their names, so that a plain load is complete.
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return safetensors.torch.save({k: v.contiguous() for k, v in state.items()}, _strings(facts))


def _load_safetensors(content: bytes, model: nn.Module) -> Run:
    twin = copy.deepcopy(model)
    for tensor in (*twin.parameters(), *twin.buffers()):
        tensor.data.zero_()  # what is not in the file must show
    twin.load_state_dict(safetensors.torch.load(content))
    return twin.eval()


def _save_torch_export(model: nn.Module, shape: tuple[int, ...], facts: Mapping[str, Any]) -> bytes:
    with _explained("torch.export"):
        program = torch.export.export(model, (_blank(shape),), dynamic_shapes=(_BATCHES,))
        for graph in program.graph_module.modules():
            for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
                node.meta.pop("stack_trace", None)
        content = io.BytesIO()
        torch.export.save(program, content, extra_files={"fedbn.json": json.dumps(dict(facts))})
    return content.getvalue()


def _load_torch_export(content: bytes, model: nn.Module) -> Run:
    with _explained("torch.export"):
        return torch.export.load(io.BytesIO(content)).module()


def _save_onnx(model: nn.Module, shape: tuple[int, ...], facts: Mapping[str, Any]) -> bytes:
    with _explained("torch.onnx.export"):
        program = torch.onnx.export(
            model,
            (_blank(shape),),
            dynamo=True,
            verbose=False,
            input_names=["x"],
            output_names=["scores"],
            dynamic_shapes=(_BATCHES,),
        )
        assert program is not None
        proto = program.model_proto
        _strip(proto)
        for key, value in _strings(facts).items():
            proto.metadata_props.add(key=key, value=value)
        content: bytes = proto.SerializeToString(deterministic=True)
    return content


def _load_onnx(content: bytes, model: nn.Module) -> Run:
    import onnxruntime

    with _explained("onnxruntime"):
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.contiguous().numpy()})[0])


def _strip(proto: Any) -> None:
    """Take out names of source files and lines, wherever in the graph they are."""
    for field, value in proto.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            proto.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if field.label == field.LABEL_REPEATED else (value,):
                _strip(part)


def _blank(shape: tuple[int, ...]) -> Tensor:
    """Two samples of zeros, that share one number in memory and so in the file."""
    return torch.zeros(()).expand(2, *shape)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Quiet the exporters, which warn of their own affairs, and say in a line why one failed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0]}"
        raise ModelError(f"{what} cannot take this model ({reason}); safetensors can") from error
    finally:
        log.setLevel(level)


def _strings(facts: Mapping[str, Any]) -> dict[str, str]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}


_BATCHES = {0: torch.export.Dim("batch")}
FORMATS = {
    "safetensors": Format(".safetensors", _save_safetensors, _load_safetensors),
    "onnx": Format(".onnx", _save_onnx, _load_onnx, "onnx", ("onnx", "onnxscript", "onnxruntime")),
    "torch-export": Format(".pt2", _save_torch_export, _load_torch_export),
}


_DEFAULT = "safetensors"


@dataclass(frozen=True)
class Agreement:
    """How far the file's outputs are from the model's at worst, and the largest output."""

    samples: int
    inputs: str
    worst: float
    largest: float


@dataclass(frozen=True)
class Exported:
    """What an export left: the model, its card, and which layers took in which BatchNorm."""

    file: Path
    card: Path
    bytes: int
    agreement: Agreement
    folded: dict[str, str]


def export(
    trained: Trained,
    client: str,
    format: str | None = None,
    *,
    out: str | Path | None = None,
    fold_bn: bool = False,
    force: bool = False,
) -> Exported:
    """Write a client's model as a file that runs without fedbn, and its card.

    Args:
        trained: The run.
        client: Whose model, a training client's or an adapted site's.
        format: `safetensors`, `onnx` or `torch-export`; by the end of the file's name unless
            given, and `safetensors` where there is none.
        out: The file, or a folder for it; `exports` in the run's folder unless given.
        fold_bn: Fold BatchNorm into the layers before it.
        force: Replace files that are there.

    Raises:
        ModelError: The file would not give the model's outputs within 1e-4; nothing is kept.
    """
    format = _format(format, out)
    chosen = FORMATS[format]
    missing = [package for package in chosen.needs if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"--format {format} needs {', '.join(missing)}: pip install 'fedbn[{chosen.extra}]'"
        )
    original = trained.model(client)  # refuses an unknown client before anything is made
    file = _place(trained, client, out, chosen.suffix)
    card = file.with_name(f"{file.name}.md")
    for path in (file, card):
        if path.is_dir() or (path.exists() and not force):
            raise ConfigError(f"{path} is there already; choose another --out, or --force")
    x, inputs = _samples(trained, client)
    model = copy.deepcopy(trained.plan.initial_model).cpu()  # with memory of its own, no more
    model.load_state_dict(original.state_dict())
    model.eval().requires_grad_(False)
    folded = _fold(model, x) if fold_bn else {}
    facts = _facts(trained, client, format, folded)
    content = chosen.save(model, tuple(x.shape[1:]), facts)
    agreement = _checked(original, chosen.load(content, model), x, inputs)
    text = model_card(trained, facts, agreement.__dict__, file.name, len(content))
    with explained(file.parent, ConfigError):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content)
    write_atomically(card, text.encode())
    return Exported(file, card, len(content), agreement, folded)


def _format(format: str | None, out: str | Path | None) -> str:
    """Return the format that is asked for; the name of the file must not say otherwise."""
    if format is not None and format not in FORMATS:
        raise ConfigError(unknown("format", format, FORMATS))
    if out is None or str(out).endswith("/") or Path(out).is_dir():
        return format or _DEFAULT
    suffix = Path(out).suffix.lower()
    by_suffix = {known.suffix: name for name, known in FORMATS.items()}
    if suffix in by_suffix:
        if format not in (None, by_suffix[suffix]):
            raise ConfigError(
                f"--out {out}: a name for --format {by_suffix[suffix]}, but --format is {format}; "
                f"choose a name that ends in {FORMATS[str(format)].suffix}"
            )
        return by_suffix[suffix]
    if format is None and suffix:
        legal = ", ".join(f"{end} ({name})" for end, name in by_suffix.items())
        raise ConfigError(
            f"--out {out}: expected a name that ends in {legal}, got {suffix}; to keep the name, "
            "give --format, too"
        )
    return format or _DEFAULT


def _place(trained: Trained, client: str, out: str | Path | None, suffix: str) -> Path:
    plan = trained.plan
    setting = [] if plan.setting == "default" else [plan.setting]
    words = folder_name("-".join([client, plan.method.name, *setting, f"seed-{plan.seed}"]))
    name = words.encode()[:_LONGEST].decode(errors="ignore") + suffix
    if out is not None:
        path = Path(out)
        return path / name if path.is_dir() or str(out).endswith("/") else path
    if trained.folder is None:
        raise ConfigError("the run has no folder: say where the file goes, with out=")
    return trained.folder / "exports" / name


def _samples(trained: Trained, client: str) -> tuple[Tensor, str]:
    """Some test samples of the client, where its data can be had; else noise."""
    shape = trained.plan.federation.input_shape
    with suppress(FedbnError, KeyError, StopIteration, OSError):
        found = {each.name: each for each in trained.federation.clients}
        test = next(iter(found[client].tests.values()))
        if test.shape == shape:
            return test.batch(slice(0, _SAMPLES))[0].cpu(), f"test samples of {client}"
    return torch.randn(_SAMPLES, *shape, generator=generator(0, "export")), "random samples"


def _fold(model: nn.Module, x: Tensor) -> dict[str, str]:
    """Fold BatchNorm in place; returns the layer that took in each norm."""
    if (twin := fold(model, x[:2], ["plain"])) is None:
        raise ModelError(
            "--fold-bn: nothing to fold; BatchNorm must come right after a linear or convolutional "
            "layer, in a model that torch.fx can trace"
        )
    twin.refresh()
    names = {id(module): name for name, module in model.named_modules()}
    found = {names[id(norm)]: names[id(layer)] for layer, norm, _ in twin.pairs}
    for layer, norm, both in twin.pairs:
        model.set_submodule(names[id(layer)], copy.deepcopy(both))
        model.set_submodule(names[id(norm)], nn.Identity())
    return found


def _facts(trained: Trained, client: str, format: str, folded: dict[str, str]) -> dict[str, Any]:
    """What a reader of the file needs to know; plain values."""
    plan, inputs = trained.plan, trained.inputs
    config = RunFolder(trained.folder).read_request() if trained.folder else {}
    section, prepared = config.get("model", {}), dict(inputs.get("preparation") or {})
    own = trained.site_fit(client) or SiteFit()  # and nobody else's
    if "levels" in prepared:
        prepared["levels"] = {client: own.levels}
    if "means" in (table := prepared.get("table", {})):
        prepared["table"] = {**table, "means": {client: own.means}}
    return {
        "client": client,
        "format": format,
        "classes": list(plan.federation.classes),
        "data": plan.federation.name,
        "fedbn": __version__,
        "folded": folded,
        "input_shape": list(plan.federation.input_shape),
        "method": plan.method.name,
        "model": section.get("name") or type(plan.initial_model).__name__,
        "model_args": section.get("args", {}),
        "preparation": prepared,
        "round": trained.state.round,
        "scaling": _PIXELS if inputs.get("dtype") == "uint8" else _NUMBERS,
        "seed": plan.seed,
        "setting": plan.setting,
        "task": plan.task.name,
        "torch": torch.__version__,
    }


def _checked(original: nn.Module, run: Run, x: Tensor, inputs: str) -> Agreement:
    """Compare outputs on one batch and on a single sample; refuse what is too far off."""
    gaps, largest = [], 0.0
    with torch.inference_mode():
        for some in (x, x[:1]):
            expected = original(some)
            try:
                found = run(some)
            except Exception as error:
                reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                raise ModelError(
                    f"the exported model fails on {len(some)} sample(s): {reason}; nothing is kept"
                ) from error
            if found.shape != expected.shape:
                raise ModelError(
                    f"the exported model gives {tuple(found.shape)} in place of "
                    f"{tuple(expected.shape)}; nothing is kept"
                )
            gaps.append(float((found - expected).abs().max()))
            largest = max(largest, float(expected.abs().max()))
    worst = float(torch.tensor(gaps).max())  # which is NaN where one is
    if not worst <= TOLERANCE * max(1.0, largest):
        raise ModelError(
            f"the exported model's outputs are off by up to {worst:.3g} (outputs reach "
            f"{largest:.3g}; legal is {TOLERANCE:g}); nothing is kept"
        )
    return Agreement(len(x), inputs, worst, largest)
