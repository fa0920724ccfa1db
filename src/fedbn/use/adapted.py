"""Adapted sites on disk: what is a new site's own, beside the run it was made from.

```
RUN/adapted/METHOD/SETTING/seed-S/SITE/
  manifest.json             how it was made, from how much data, sha256 of the file below
  local-XXXXXXXX.safetensors
```

The manifest is replaced as a whole and names its file, so a kill leaves the old site or the new
one. A site belongs to one shared part: where the run has gone on since, it is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes

from fedbn._version import __version__
from fedbn.core.checks import check_name
from fedbn.core.packing import Layout, Pack
from fedbn.core.replica import Replica
from fedbn.core.rounds import RunState
from fedbn.core.state import Kind, State, entries
from fedbn.errors import ConfigError, DamagedRun, DataError, ModelError
from fedbn.runs.checkpoints import verified
from fedbn.runs.files import explained, sealed, unsealed, write_atomically
from fedbn.runs.folder import RunFolder, folder_name

FORMAT = 2
_OWN = (Kind.BN_AFFINE, Kind.BN_STATISTIC)


@dataclass(frozen=True)
class AdaptedSite:
    """A site that was adapted; its files are read, and verified, when it is used."""

    name: str
    folder: Path

    def manifest(self) -> dict[str, Any]:
        """Read how the site was made."""
        return unsealed(self.folder / "manifest.json", FORMAT)

    def read(self, state: RunState, like: Replica) -> State:
        """Read the site's own entries.

        Args:
            state: The run's; the site must have been made from its shared part.
            like: Gives names, shapes and dtypes.

        Raises:
            DamagedRun: The files are not whole, or belong to another state of the run.
        """
        manifest = self.manifest()
        if manifest.get("shared") != fingerprint(state.shared):
            raise DamagedRun(
                f"{self.folder}: adapted to round {manifest.get('round')}, but round "
                f"{state.round} of the run is used now; adapt the site again"
            )
        ((name, digest),) = manifest["files"].items()
        content = verified(self.folder / Path(name).name, str(digest))
        try:
            return own_layout(like).pack(content).state
        except ModelError as error:
            raise DamagedRun(f"{self.folder / name}: {error}") from error


@dataclass(frozen=True)
class HeldSite:
    """A site that was adapted and is held in memory."""

    name: str
    own: State
    facts: Mapping[str, Any]

    def manifest(self) -> dict[str, Any]:
        """Say how the site was made."""
        return {**self.facts, "name": self.name}

    def read(self, state: RunState, like: Replica) -> State:
        """Give the site's own entries."""
        return self.own


Site = AdaptedSite | HeldSite


def own_layout(replica: Replica) -> Layout:
    """What an adapted site has of its own: what its method keeps local, and all of BatchNorm."""
    local = {entry.name for entry in replica.local.layout.entries}
    found = entries(replica.model)
    return Layout.of(e for e in found if e.name in local or e.kind in _OWN)


def fingerprint(pack: Pack) -> str:
    """Hash a pack's values."""
    return hashlib.sha256(to_bytes(pack.state)).hexdigest()


def place_of(folder: RunFolder, method: str, setting: str, seed: int) -> Path:
    """Where the adapted sites of a job lie."""
    names = folder_name(method), folder_name(setting), f"seed-{seed}"
    return folder.path.joinpath("adapted", *names)


def find(folder: RunFolder, method: str, setting: str, seed: int) -> dict[str, AdaptedSite]:
    """List the adapted sites of a job, by name."""
    place = place_of(folder, method, setting, seed)
    homes = sorted(path for path in place.glob("*") if (path / "manifest.json").is_file())
    return {home.name: AdaptedSite(home.name, home) for home in homes}


def check_site(name: str, trained: tuple[str, ...]) -> None:
    """Refuse a name that is a training client's, or that cannot be a folder's.

    Raises:
        ConfigError: Saying which names are legal.
    """
    try:
        check_name(name, "the new site")
    except DataError as error:
        raise ConfigError(str(error)) from error
    if name.startswith(".") or name != name.strip():
        raise ConfigError(f"the new site: {name!r}: no dot at the beginning, no space at the ends")
    if name in trained:
        raise ConfigError(
            f"the new site: {name!r} is a training client of the run; choose a name other than "
            f"{', '.join(trained)}"
        )


def write(place: Path, name: str, own: State, facts: Mapping[str, Any]) -> AdaptedSite:
    """Write a site, in place of an earlier one of its name; whole or not at all."""
    home = place / name
    content = to_bytes({key: value.contiguous() for key, value in own.items()})
    digest = hashlib.sha256(content).hexdigest()
    file = home / f"local-{digest[:8]}.safetensors"
    manifest = {
        **facts,
        "format": FORMAT,
        "name": name,
        "files": {file.name: digest},
        "fedbn": __version__,
    }
    with explained(home):
        home.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content)
    write_atomically(home / "manifest.json", sealed(manifest))
    for old in home.glob("local-*.safetensors"):
        if old != file:
            old.unlink()
    return AdaptedSite(name, home)
