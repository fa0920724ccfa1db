"""What must not break it: every fault and bad input, and the tests that show each.

A test says which lines it shows by `@pytest.mark.shows("F07")`; `scripts/reliability_page.py` makes
docs/reliability.md of them. A suite ends red when a line was only skipped in it (skipped_lines.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
LINES = {
    "F01": "kill -9 in the middle of a round: resumed to the same bits",
    "F02": "kill -9 while a checkpoint is written",
    "F03": "twenty kills at random instants",
    "F04": "Ctrl-C once: the round is saved, exit 130",
    "F05": "Ctrl-C twice: at once, and resumable",
    "F06": "SIGTERM: the round is saved, exit 143",
    "F07": "the disk fills up at a checkpoint",
    "F08": "the disk fills up at a line of metrics",
    "F09": "a read-only folder, seen before training",
    "F10": "a truncated checkpoint",
    "F11": "a flipped bit in a checkpoint or its manifest",
    "F12": "an empty checkpoint",
    "F13": "one client's local part is missing",
    "F14": "a checkpoint of a newer format",
    "F15": "two processes on one run; the lock of a dead one is taken over",
    "F16": "resume with a changed configuration: refused, the keys listed",
    "F17": "resume with other versions: said",
    "F18": "one client raises",
    "F19": "all clients fail",
    "F20": "out of memory",
    "F21": "a client hangs",
    "F22": "a client answers late",
    "F23": "a client answers twice",
    "F24": "a client answers for an old round",
    "F25": "a sender nobody knows",
    "F26": "an update with NaN",
    "F27": "an update with infinity",
    "F28": "an update a million times too large",
    "F29": "a sign-flipped update: robust aggregators stay near the clean accuracy",
    "F30": "an update of the wrong shape; a (1,) tensor does not broadcast",
    "F31": "an update without one of its tensors",
    "F32": "an update with a tensor too many: BatchNorm smuggled in",
    "F33": "an update of the wrong dtype",
    "F34": "negative, zero, NaN or enormous counts of examples",
    "F35": "away for some rounds, and back with its own BatchNorm",
    "F36": "a client joins a run under way",
    "F37": "a client leaves for good",
    "F38": "a site's node is killed and restarted: its BatchNorm comes from its disk",
    "F39": "the link is restarted under a run",
    "F40": "the server app is killed, the run resumed",
    "F41": "the network is cut for a minute: no double effect",
    "F42": "a slow link",
    "F43": "a message over a limit",
    "F44": "a client without TLS",
    "F45": "a wrong authority",
    "F46": "an expired certificate: its date is shown",
    "F47": "a key that was not registered",
    "F48": "a wrong host name",
    "F49": "a key file open to others: warned of",
    "F50": "a replayed request",
    "F51": "clocks that differ",
    "F52": "another model at one site",
    "F53": "another class list or order at one site",
    "F54": "another version of the package at one site",
    "F55": "a GPU here, none there",
    "F56": "mixed precision at one site",
    "F57": "operations without a fixed order of sums",
    "F58": "a port in use",
    "F59": "a server that is not there: a deadline, not for ever",
    "F60": "no internet",
    "F61": "a worker killed by the system",
    "F62": "processes made by fork and by spawn",
    "F63": "ten thousand rounds: memory and open files stay flat",
    "F64": "200 clients on 2 cores",
    "C01": "an unknown key",
    "C02": "a value of the wrong type",
    "C03": "a value out of range",
    "C04": "NaN or infinity as a value",
    "C05": "TOML that is none: line and column",
    "C06": "a missing file",
    "C07": "two clients of one name",
    "C08": "no clients",
    "C09": "one path for two clients",
    "C10": "an unknown method, model or data set",
    "C11": "options that exclude each other",
    "C12": "a file that is not UTF-8",
    "C13": "an enormous or deeply nested file",
    "C14": "a run or client name that climbs out of its folder",
    "C15": "an environment variable of the wrong type",
    "C16": "an old format",
    "C17": "a negative seed",
    "C18": "ten thousand generated configurations: an error of ours or success",
    "D01": "a client without samples",
    "D02": "a client with one sample",
    "D03": "a last batch of one sample",
    "D04": "a batch larger than the client",
    "D05": "NaN in a sample",
    "D06": "infinity in a sample",
    "D07": "a constant image or feature",
    "D08": "a label out of range",
    "D09": "a negative label",
    "D10": "labels as floats or text",
    "D11": "one class only",
    "D12": "grey, colour, transparent and 16-bit pictures mixed",
    "D13": "pictures of different sizes",
    "D14": "a truncated JPEG",
    "D15": "a file of zero bytes",
    "D16": "other files among the pictures",
    "D17": "a file that may not be read",
    "D18": "links in a circle",
    "D19": "names with spaces, newlines, in any script",
    "D20": "a column is missing",
    "D21": "two rows of one id",
    "D22": "a path in a table that does not exist",
    "D23": "the same file in train and test",
    "D24": "the same picture at two sites",
    "D25": "a class missing at a site",
    "D26": "another order of classes at a site",
    "D27": "values from 0 to 1 here, to 255 there",
    "D28": "a .mat with a wrong key, or of version 7.3",
    "D29": "an npz with pickled objects",
    "D30": "samples and labels of different number",
    "D31": "object or complex numbers",
    "D32": "extreme imbalance",
    "D33": "a decompression bomb",
    "D34": "an empty test split",
    "D35": "data that changed since the run began",
    "D36": "a download with a wrong checksum",
    "D37": "a download that is cut off",
    "D38": "a read-only cache",
    "M01": "no BatchNorm",
    "M02": "BatchNorm without running statistics",
    "M03": "BatchNorm without affine parameters",
    "M04": "BatchNorm with momentum None",
    "M05": "SyncBatchNorm",
    "M06": "a lazy module that is not initialised",
    "M07": "one BatchNorm in two places; tied weights",
    "M08": "wrapped models (module., _orig_mod.)",
    "M09": "a subclass of BatchNorm",
    "M10": "other norms",
    "M11": "frozen BatchNorm",
    "M12": "outputs that do not fit the classes",
    "M13": "integer parameters or buffers",
    "M14": "a forward that raises",
    "M15": "half precision, quantised",
    "M16": "another order of keys",
    "W01": "a .pt as weights",
    "W02": "a header that claims 100 GB",
    "W03": "a nested header",
    "W04": "negative or overlapping offsets",
    "W05": "an unknown dtype",
    "W06": "markup in a client's name, in the report",
    "W07": "a formula in a cell of a CSV",
    "W08": "an archive that climbs out of its folder",
    "W09": "a newline in a name, in the log",
    "W10": "oversized metrics",
}
GROUPS = {
    "F": "Faults",
    "C": "Configurations",
    "D": "Data",
    "M": "Models",
    "W": "Files and the wire",
}
# Where a test runs, by its first marker among these.
SUITES = {
    "slow": "scripts/test-soak",
    "slow_federation": "scripts/test-federation",
    "browser": "scripts/test-report",
}
CI = "scripts/test"


@dataclass(frozen=True)
class Shown:
    """One test that shows some lines."""

    lines: tuple[str, ...]
    name: str
    file: str
    suite: str


def shown() -> Iterator[Shown]:
    """Every marked test, in the order of files; read as text, nothing is imported."""
    for file in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        whole = [name for name, _ in _markers(_file_markers(tree))]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = list(_markers(node.decorator_list))
                lines = tuple(word for name, words in marks if name == "shows" for word in words)
                named = [*(name for name, _ in marks), *whole]
                suite = next((SUITES[name] for name in named if name in SUITES), CI)
                if lines:
                    yield Shown(lines, node.name, str(file.relative_to(TESTS.parent)), suite)


def _file_markers(tree: ast.Module) -> list[ast.expr]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            return node.value.elts if isinstance(node.value, ast.List) else [node.value]
    return []


def _markers(nodes: list[ast.expr]) -> Iterator[tuple[str, list[str]]]:
    """Names of pytest's markers, each with the texts it is given."""
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else node
        if ast.unparse(called).startswith("pytest.mark."):
            given = node.args if isinstance(node, ast.Call) else []
            words = [a.value for a in given if isinstance(a, ast.Constant)]
            yield ast.unparse(called).removeprefix("pytest.mark."), [str(word) for word in words]
