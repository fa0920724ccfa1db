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
    "F06": "SIGTERM: the round is saved, exit 130",
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
OWN_LINES = {
    "R01": "a rule that writes to memory it did not declare, or of another shape",
    "R02": "a rule that declares an entry twice, or one that is not its to give away",
    "R03": "a rule that declares something else than when the run began",
    "R04": "a rule that remembers NaN or infinity, at a client or at the server",
    "R05": "a rule that raises, or gives something else than what training gave",
    "R06": "methods that do not go together, or under what their papers do not define",
    "R07": "a path of modules that matches nothing: the nearest one is named",
    "R08": "a last module that is not the head",
    "R09": "a method that cannot be read",
    "R10": "InstanceNorm under FedBN: the word that helps is named",
    "R11": "a word that is a kind and a module's name",
    "T01": "a metric that raises",
    "T02": "a metric that gives a tensor",
    "T03": "a metric that does not say which way is better",
    "T04": "targets that do not fit the task: the one that does is named",
    "T05": "a mask of another size than its picture",
    "T06": "a picture without its mask, a mask without its picture",
    "T07": "a mask with a value nobody named",
    "T08": "a loss that gives a vector",
    "T09": "a loss without a gradient",
    "T10": "a label column that is constant, or text, in regression",
    "T11": "several labels, one of which nobody has",
    "T12": "class weights that do not fit",
    "T13": "outputs that do not fit the task",
    "T14": "runs compared that are judged by different metrics",
    "T15": "runs compared over test samples that do not record which samples are right",
    "T16": "runs compared over test samples that are not the same",
    "T17": "recorded outcomes of test samples that contradict the recorded scores",
    "S01": "a Dataset that raises: client and index are named",
    "S02": "a Dataset that changed its length or its content",
    "S03": "a Dataset that gives None, another shape, NaN or an unknown label",
    "S04": "a Dataset that cannot be copied to a worker",
    "S05": "a DataFrame with two columns of one name",
    "S06": "a DataFrame with a column without values",
    "S07": "a manifest that names a missing file",
    "S08": "a patient in two splits",
    "S09": "a manifest with an unknown split",
    "S10": "more shards or clients than samples",
    "S11": "a partition that does not exist, a Dirichlet of 0",
    "S12": "a schedule that does not exist",
    "S13": "patience without validation data",
    "S14": "clipping to 0 or NaN",
    "S15": "a callback that raises: the round is saved",
    "S16": "a worker that reads data dies",
    "S17": "what is no data, or does not fit the other clients' data",
    "A01": "the mod for a model without BatchNorm",
    "A02": "the mod with a folder it cannot write, at the start or later",
    "A03": "arrays of another model, in a message or in the app's reply",
    "A04": "a method that a mod cannot do: who does it is named",
    "A05": "a damaged part on a node's disk",
    "A06": "an app that fails: the part stays as it was",
    "A07": "a message that runs twice",
    "A08": "`fedbn audit` of functions that cannot be asked",
    "H01": "a site's table that does not fit the contract: column and row are named",
    "H02": "values outside the contract's range",
    "H03": "a contract that says too little",
    "H04": "pictures and data sets of other classes, sizes or shapes than the contract's",
    "H05": "sites that disagree when a contract is proposed",
    "H06": "a site that sets what is not its own to set",
    "H07": "an experiment that would show samples: forbidden by the strict policy",
    "H08": "a method or model that the site did not allow",
    "H09": "more runs than the site takes",
    "H10": "an experiment that nobody approved",
    "H11": "a path that the server names",
    "H12": "another site's count that asks for endless steps",
    "H13": "a count far from the one agreed on",
    "H14": "names and hashes in an order that lead out of a folder",
    "H15": "a policy with an unknown key or an illegal value",
    "H16": "a request that was changed, or signed by another key",
    "H17": "a fingerprint that differs, an authority nobody confirmed",
    "H18": "a new key that the old one did not sign for",
    "H19": "a revoked site, also during a run",
    "H20": "a certificate that ends within thirty days",
    "H21": "a second run while one is on",
    "H22": "a log with a changed, removed or reordered line",
    "H23": "a log whose end was cut off",
    "H24": "a log written anew with another key",
    "H25": "a stranger's message is logged without being believed",
    "H26": "another run of a name that a site's model has",
    "G01": "runs merged that are not one experiment, or not of one data",
    "G02": "runs merged with different numbers for one job",
    "G03": "runs merged that are not finished, into a folder that is not empty",
    "G04": "a run that cannot grow: what depends on the number of rounds",
    "G05": "a pace of checkpoints that does not exist",
}
LINES |= OWN_LINES
GROUPS = {
    "F": "Faults",
    "C": "Configurations",
    "D": "Data",
    "M": "Models",
    "W": "Files and the wire",
    "R": "Rules and methods with memory",
    "T": "Tasks, losses and metrics",
    "S": "Data from Python, and the training loop",
    "A": "FedBN in a Flower app of one's own",
    "H": "Hospitals: contract, policy, keys and log",
    "G": "Runs that grow and merge",
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
