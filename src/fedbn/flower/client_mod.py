"""FedBN in a Flower app of one's own: `ClientApp(mods=[keep_local(Net, "fedbn", folder="kept")])`.

What stays local is filled in before the app works; its reply has what the message brought instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from fedbn.core.aggregation import Mean
from fedbn.core.method import Method
from fedbn.core.state import State, entries
from fedbn.errors import ConfigError, DamagedRun, FedbnError, ModelError
from fedbn.methods import parse_method
from fedbn.runs.checkpoints import digest
from fedbn.runs.folder import explained, folder_name, write_atomically


def keep_local(
    make_model: Callable[[], nn.Module],
    method: str | Method = "fedbn",
    *,
    folder: str | Path,
    site: str | None = None,
) -> Mod:
    """Make a Flower mod that keeps at the site what a method keeps local.

    Args:
        make_model: Makes the app's model; what counts is its entries and their modules' types.
        method: FedBN, SiloBN or another method that is fully said by what it shares.
        folder: Where the site keeps its part, as `run-RUN/SITE.safetensors`.
        site: The site's name; the node's `partition-id`, else its id, unless given.
    """
    chosen = parse_method(method) if isinstance(method, str) else method
    _check_method(chosen)
    with torch.random.fork_rng(devices=[]):  # the app draws what it would draw without us
        found = entries(make_model())
    chosen.check(found)
    root = Path(folder).expanduser().resolve()
    with explained(root, ConfigError):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (root / ".writable").touch()
    shapes = {entry.name: entry.shape for entry in found}
    return _KeepLocal(shapes, {entry.name for entry in chosen.local(found)}, root, site)


def _check_method(method: Method) -> None:
    server = [p.label for p in (method.aggregator, method.server) if p not in (None, Mean())]
    training = [rule.label for rule in method.rules] + ["pooled"] * method.pooled
    training += ["the baseline"] * (method.baseline is not None)
    if named := ", ".join(server or training):
        whose = "the server's, as a strategy there" if server else "the app's, in its training"
        raise ConfigError(f"keep_local: {method.name}: {named} is {whose}; legal is fedbn, silobn")


@dataclass(frozen=True)
class _KeepLocal:
    shapes: Mapping[str, tuple[int, ...]]
    kept: set[str]
    root: Path
    site: str | None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        name = str(self.site or context.node_config.get("partition-id", context.node_id))
        file = self.root / f"run-{context.run_id}" / f"{folder_name(name)}.safetensors"
        try:
            return self._handled(message, lambda filled: call_next(filled, context), file)
        except FedbnError as error:
            reason = f"keep_local, site {name}: {error}"
            logging.getLogger("fedbn").error(reason)
            return Message(Error(6, reason), reply_to=message)  # 6: a mod's MOD_FAILED_PRECONDITION

    def _handled(self, message: Message, app: Callable[[Message], Message], file: Path) -> Message:
        kind, identity = message.metadata.message_type, message.metadata.message_id
        key, brought = _arrays(message.content)
        if brought or not kind.startswith("query"):
            self._check(brought, f"the {kind} message")
            own = _before(file, identity) if kind.startswith("train") else _read(file)[0]
            filled = ArrayRecord({**brought, **{name: Array(own[name]) for name in own}})
            message.content = RecordDict({**message.content, key: filled})  # others share the old
        reply = app(message)
        if reply.has_error():
            return reply
        if kind.startswith("train"):
            trained = self._check(_arrays(reply.content)[1], "the app's reply")
            _write(file, {name: trained[name] for name in self.kept}, identity)
        for record in reply.content.array_records.values():
            if strange := sorted(self.kept & record.keys() - brought.keys()):
                raise ModelError(f"the app's reply holds {strange[0]}, which stays at the site")
            record.update({name: brought[name] for name in self.kept & record.keys()})
        return reply

    def _check(self, arrays: Mapping[str, Array], what: str) -> Mapping[str, Array]:
        """Names and shapes must be the model's; dtypes need not: Flower's mean makes floats."""
        found = {name: tuple(array.shape) for name, array in arrays.items()}
        for name in {**self.shapes, **found}:
            shape, expected = found.get(name, "missing"), self.shapes.get(name, "none")
            if shape != expected:
                fault = f"arrays of {what} do not fit the model: {name} is {shape}"
                hint = "send ArrayRecord(model.state_dict()), alone or as 'arrays'"
                raise ModelError(f"{fault}, expected {expected}; {hint}")
        return arrays


def _arrays(content: RecordDict) -> tuple[str, Mapping[str, Array]]:
    records = dict(content.array_records)
    key = "arrays" if len(records) != 1 else next(iter(records))
    return key, records.get(key, {})


def _before(file: Path, message: str) -> State:
    """The part that a message starts from: the same one each time that it runs."""
    (now, last), earlier = _read(file), file.with_suffix(".before.safetensors")
    if message and message == last:
        return _read(earlier)[0]
    if now:
        write_atomically(earlier, file.read_bytes())
    return now


def _read(file: Path) -> tuple[State, str]:
    """A part and the message that trained it; nothing where there is none yet."""
    if not file.exists():
        return {}, ""
    try:
        with safe_open(file, framework="pt") as opened:
            facts = opened.metadata()
            part = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if digest(part) != facts["sha256"]:
            raise ValueError("its sha256 is not its own")
        return part, facts["message"]
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise DamagedRun(f"{file}: damaged ({error}); bring it back, or begin a new run") from error


def _write(file: Path, arrays: Mapping[str, Array], message: str) -> None:
    part = {name: torch.from_numpy(array.numpy()).contiguous() for name, array in arrays.items()}
    with explained(file):
        file.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(file, save(part, {"message": message, "sha256": digest(part)}))
