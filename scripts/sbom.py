"""Write a CycloneDX list of what fedbn is made of: `python scripts/sbom.py [RELEASED FILES]`."""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def found(name: str, extras: frozenset[str], seen: dict[str, Distribution]) -> None:
    """Collect a distribution and what it needs here, as it is installed."""
    key = canonicalize_name(name)
    try:
        one = distribution(name)
    except PackageNotFoundError:
        return
    known, seen[key] = key in seen, one
    for text in one.requires or ():
        need = Requirement(text)
        wanted = (
            [need.marker.evaluate({"extra": e}) for e in ("", *extras)] if need.marker else [True]
        )
        if any(wanted) and not (known and not extras):
            found(need.name, frozenset(need.extras), seen)


def component(one: Distribution) -> dict[str, Any]:
    """Describe a distribution; its hash is that of its RECORD, which has all its files' hashes."""
    about, record = one.metadata, one.read_text("RECORD") or ""
    licence = about.get("License-Expression") or about.get("License") or "unknown"
    return {
        "type": "library",
        "name": about["Name"],
        "version": one.version,
        "purl": f"pkg:pypi/{canonicalize_name(about['Name'])}@{one.version}",
        "licenses": [{"license": {"name": licence.strip().partition("\n")[0][:100]}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(record.encode()).hexdigest()}],
    }


def released(file: Path) -> dict[str, Any]:
    """Describe a file of a release."""
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    hashes = [{"alg": "SHA-256", "content": content}]
    return {"type": "file", "name": file.name, "hashes": hashes}


def bill(files: list[Path]) -> dict[str, Any]:
    """The whole list."""
    seen: dict[str, Distribution] = {}
    found("fedbn", frozenset({"flower"}), seen)
    own = seen.pop("fedbn")
    libraries = [component(seen[name]) for name in sorted(seen)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(own)},
        "components": [*libraries, *map(released, files)],
    }


if __name__ == "__main__":
    print(json.dumps(bill([Path(name) for name in sys.argv[1:]]), indent=2))
