"""The size of a model that a server asks for, measured before the model takes memory.

A model's arguments are the server's, and the model is made before a person at the site approves
anything. So it is first made on torch's `meta` device, where tensors have shapes and no contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from fedbn.core.federation import Federation
from fedbn.errors import FedbnError
from fedbn.experiments.schema import Experiment
from fedbn.experiments.sources import model_builder

# A model of fedbn has fewer than a hundred modules; without a limit a list of a million layers
# would take memory although each of them is tiny.
_MOST_MODULES = 10_000
MEGABYTE = 1_000_000
# What a model does with its arguments before it makes a layer: a loop, a list, a power of two.
_LARGEST_ARGUMENT = 1_000_000
_LONGEST_ARGUMENT = 1_000


class ModelTooLarge(FedbnError):  # noqa: N818 - the name says what happened
    """A model needs more memory than is allowed."""


def check_model_size(experiment: Experiment, federation: Federation, megabytes: int) -> None:
    """Refuse a model of more than so many MB, or one whose layers give more than that.

    Custom code may not run on the `meta` device. It runs only where a person at the site trusts it,
    and `limited_model` still counts its parameters while the model is made.
    """
    _check_arguments(experiment.model.args, megabytes)
    section = experiment.model.model_copy(update={"weights": None, "fresh": []})
    try:
        with limited_model(megabytes), torch.device("meta"), torch.no_grad():
            model = model_builder(section, federation)()
            _check_bytes(model, megabytes)  # lazy modules have no parameters yet
            model.eval()
            model(torch.zeros((2, *federation.input_shape)))
            _check_bytes(model, megabytes)
    except ModelTooLarge:
        raise
    except RuntimeError as error:
        if "overflow" in str(error):  # more bytes than a number of 64 bits can say
            raise _too_large("more than 2^63 bytes", megabytes) from error
    except Exception:  # what is wrong with the model is said where it is made
        return


def _check_arguments(value: Any, megabytes: int) -> None:
    if isinstance(value, int | float) and not abs(value) <= _LARGEST_ARGUMENT:
        raise _too_large(f"an argument over {_LARGEST_ARGUMENT:,}", megabytes)
    if isinstance(value, str | list | dict):
        if len(value) > _LONGEST_ARGUMENT:
            raise _too_large(f"an argument of over {_LONGEST_ARGUMENT:,} entries", megabytes)
        inner = [] if isinstance(value, str) else value
        for one in inner.values() if isinstance(inner, dict) else inner:
            _check_arguments(one, megabytes)


@contextmanager
def limited_model(megabytes: int) -> Iterator[None]:
    """Count the modules, parameters and outputs of models that are made and used meanwhile."""
    modules = parameters = 0
    most = megabytes * MEGABYTE

    def see_module(_: nn.Module, __: str, child: nn.Module | None) -> None:
        nonlocal modules
        modules += child is not None
        if modules > _MOST_MODULES:
            raise _too_large(f"more than {_MOST_MODULES:,} modules", megabytes)

    def see_tensor(_: nn.Module, __: str, tensor: Tensor | None) -> None:
        nonlocal modules, parameters
        if tensor is None:
            return
        modules += 1  # layers that are made, and not yet part of another
        parameters += 0 if nn.parameter.is_lazy(tensor) else _bytes(tensor)
        if modules > _MOST_MODULES:
            raise _too_large(f"more than {_MOST_MODULES:,} parameters and modules", megabytes)
        if parameters > most:
            raise _too_large(f"{parameters:,} bytes of parameters", megabytes)

    def see_output(module: nn.Module, _: Any, output: Any) -> None:
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, Tensor) and _bytes(tensor) > most:
                what = f"a layer ({type(module).__name__}) that gives {_bytes(tensor):,} bytes"
                raise _too_large(f"{what} for two samples", megabytes)

    with ExitStack() as stack:
        for handle in (
            hooks.register_module_module_registration_hook(see_module),
            hooks.register_module_parameter_registration_hook(see_tensor),
            hooks.register_module_buffer_registration_hook(see_tensor),
            hooks.register_module_forward_hook(see_output),
        ):
            stack.callback(handle.remove)
        yield


def _check_bytes(model: nn.Module, megabytes: int) -> None:
    tensors = [*model.parameters(), *model.buffers()]
    found = sum(_bytes(t) for t in tensors if not nn.parameter.is_lazy(t))
    if found > megabytes * MEGABYTE:
        raise _too_large(f"{found:,} bytes of parameters", megabytes)


def _bytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * tensor.element_size()


def _too_large(found: str, megabytes: int) -> ModelTooLarge:
    return ModelTooLarge(
        f"the site's policy forbids a model with {found} (max_model_mb = {megabytes:,})"
    )
