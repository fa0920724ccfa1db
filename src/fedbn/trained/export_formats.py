"""The file formats of an export: a model to bytes, and bytes back to something that runs.

Nothing here needs fedbn to load a file again. A model is traced on blank samples, because both
graph formats keep what they were traced on or could tell of it; paths of source files are taken
out.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbn.errors import ConfigError, ModelError

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

    def check_installed(self, name: str) -> None:
        """Refuse a format whose packages are not here, with the way out."""
        missing = [package for package in self.needs if importlib.util.find_spec(package) is None]
        if missing:
            raise ConfigError(
                f"--format {name} needs {', '.join(missing)}: pip install 'fedbn[{self.extra}]'"
            )


def _save_safetensors(model: nn.Module, shape: tuple[int, ...], facts: Mapping[str, Any]) -> bytes:
    from safetensors.torch import save

    # Clones: tied tensors are stored under each of their names, so that a plain load is complete.
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    content: bytes = save({k: v.contiguous() for k, v in state.items()}, _strings(facts))
    return content


def _load_safetensors(content: bytes, model: nn.Module) -> Run:
    from safetensors.torch import load

    twin = copy.deepcopy(model)
    for tensor in (*twin.parameters(), *twin.buffers()):
        tensor.data.zero_()  # what is not in the file must show
    twin.load_state_dict(load(content))
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
        loaded: Run = torch.export.load(io.BytesIO(content)).module()
    return loaded


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
