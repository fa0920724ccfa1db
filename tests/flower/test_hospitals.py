"""Four hospitals, each with one CSV file, each and the server on a machine of its own.

From the first key to the last line of the log, by the commands that people type.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from machines import Command, Machines, NoMachines
from typer.testing import CliRunner

import heart_files
from fedbn.cli.main import app
from fedbn.datasets.heart import SITES as FILES
from fedbn.flower import audit_log
from fedbn.flower.internals_node import environment
from fedbn.runs import checkpoints
from fedbn.runs.folder import RunFolder
from fedbn.trained.opening import open_run

pytestmark = [
    pytest.mark.slow_federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]
SITES = tuple(FILES)
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
HEADER = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach"),
    "exang",
    "oldpeak",
)
CATEGORIES = ("sex", "cp", "fbs", "restecg", "exang")
OWN_LABEL = {"hungary": "betegseg"}  # a column that this hospital calls otherwise
EXPERIMENT = """
methods = ["{method}"]
seeds = [0]
[training]
rounds = {rounds}
batch_size = 8
[model]
name = "mlp"
args = {{hidden = [8]}}
"""


def hospitals(root: Path) -> dict[str, Path]:
    """Write one plain CSV a hospital: the patients with all values; made up without the real ones.

    Of the real ones Switzerland has 30 to train with, so many are made up for it too.
    """
    real = Path(os.environ.get("FEDBN_DATA", "none")) / "heart"
    made_up = not real.is_dir()
    source = heart_files.written(root, people=90) if made_up else real
    written = {}
    for site, name in FILES.items():
        lines = (source / f"processed.{name}.data").read_text().split()
        rows = [line.split(",") for line in lines]
        whole = [row for row in rows if not {"?", "NaN", ""} & {*row[:10]}]
        whole = whole[:46] if made_up and site == "switzerland" else whole
        place = root / site / "export.csv"
        place.parent.mkdir()
        with place.open("w", newline="") as stream:
            out = csv.writer(stream)
            out.writerow([*HEADER, OWN_LABEL.get(site, "disease")])
            for row in whole:
                cells = [
                    f"{float(cell):g}" if name in NUMBERS else f"c{float(cell):g}"
                    for name, cell in zip(HEADER, row, strict=False)
                ]
                out.writerow([*cells, int(float(row[13]) > 0)])
        written[site] = place
    return written


class Federation:
    """The machines, and what people type at them."""

    def __init__(self, root: Path, stack: ExitStack):
        self.root = root
        self.machines = Machines(stack, ("server", *SITES))
        self.files = hospitals(root)
        self.fed = root / "server" / "FED"
        self.fed.parent.mkdir()
        self.running: dict[str, Command] = {}
        self._count = 0
        (root / "said").mkdir()

    def start(self, place: str, *words: str) -> Command:
        """Type a command of `fedbn federation` at a machine."""
        self._count += 1
        file = self.root / "said" / f"{self._count} {place} {words[0]}"
        home = environment(self.root / place / "flower")
        line = ["federation", *words]
        return self.machines.start(place, line, self.root / place, file, home)

    def type(self, place: str, *words: str, code: int = 0) -> str:
        """Type a command at a machine, and read what it says."""
        return read(self.start(place, *words), code)

    def serve(self) -> None:
        self.stop("server")
        self.running["server"] = command = self.start("server", "server", "FED")
        self.until(lambda: "ready at port" in command.said())

    def join(self, site: str, *flags: str) -> None:
        self.stop(site)
        words = ["join", f"{site}.fedbn", "--data", "export.csv", *self.own(site), *flags]
        self.running[site] = self.start(site, *words)

    def own(self, site: str) -> list[str]:
        """What a hospital says of its own file."""
        label = OWN_LABEL.get(site, "disease")
        return ["--set", f"data.label={label}", "--set", "data.test_share=0.34"]

    def stop(self, place: str) -> None:
        if process := self.running.pop(place, None):
            process.terminate()
            process.wait(60)

    def until(self, ready: Callable[[], bool], seconds: float = 600) -> None:
        begun = time.monotonic()
        while not ready():
            for place, process in self.running.items():
                assert process.poll() is None, (place, process.said())
            assert time.monotonic() - begun < seconds, [c.said() for c in self.running.values()]
            time.sleep(0.2)

    def connected(self, site: str) -> bool:
        """Whether Flower's node at a hospital was let in."""
        log = self.root / site / site / "node.log"
        return log.exists() and "SuperNode ID" in log.read_text()

    def admit(self, site: str, *flags: str) -> str:
        """A hospital's key: made there, admitted at the server; gives the authority's print."""
        home = ["--folder", str(self.root / site / site)]
        with chdir(self.fed.parent):  # as if the request had been sent there
            key = printed(typed("request", site, *home, *flags))
        words = ("admit", "FED", f"{site}.request", "--fingerprint", key)
        authority = printed(self.type("server", *words))
        shutil.copy(self.fed / "bundles" / f"{site}.fedbn", self.root / site)
        return authority

    def experiment(self, name: str, method: str, rounds: int, contract: str) -> Path:
        file = self.fed.parent / f"{name}.toml"
        file.write_text(EXPERIMENT.format(method=method, rounds=rounds) + contract)
        for site in SITES:
            shutil.copy(file, self.root / site)
        return file

    def approve(self, site: str) -> None:
        """A person approves what was asked for last."""
        home = self.root / site / site
        waiting = [
            row.split()[0] for row in typed("approve", str(home)).splitlines() if "waits" in row
        ]
        typed("approve", str(home), waiting[0])

    def rounds(self, run: str) -> list[dict]:
        files = list((self.fed / "runs" / run).rglob("rounds.jsonl"))
        return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []


def read(command: Command, code: int = 0) -> str:
    """Wait for a command's end, and read what it said."""
    assert command.wait(900) == code, command.said()
    return command.said()


def printed(text: str) -> str:
    """The last fingerprint of what a command said."""
    return re.findall(r"\b(?:[0-9a-f]{4}:){7}[0-9a-f]{4}\b", text)[-1]


def typed(*words: str) -> str:
    """Type a command that needs no network."""
    done = CliRunner().invoke(app, ["federation", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with ExitStack() as stack:
        try:
            yield Federation(tmp_path_factory.mktemp("hospitals"), stack)
        except NoMachines as error:
            warnings.warn(f"four hospitals were NOT tried: {error}", stacklevel=1)
            pytest.skip(f"no networks of their own for processes here: {error}")


def test_four_hospitals_from_the_first_key_to_the_last_line_of_the_log(four: Federation) -> None:
    contract = contracted(four)
    refused_and_approved(four, contract)
    same_as_embedded(four, contract)
    keys_change(four)
    revoked_while_a_run_is_on(four, contract)
    logs_hold(four)


def contracted(four: Federation) -> str:
    """Request, admit, join; the contract that the server proposes, with ranges by hand."""
    typed("init", str(four.fed), "--host", four.machines.addresses["server"])
    four.serve()
    for site in SITES:
        authority = four.admit(site)
        four.join(site, "--fingerprint", authority)
    for site in SITES:
        four.until(lambda site=site: four.connected(site))
        assert not four.machines.listening(site)  # nothing connects to a site
    assert four.machines.listening("server") == {"00000000:2384"}  # 9092, and nothing else
    said = four.type("server", "propose", "FED", "--out", "contract.toml")
    text = (four.fed.parent / "contract.toml").read_text()
    assert "disease" in text, said
    for name in CATEGORIES:
        assert re.search(rf'name = "{name}"\nvalues = \[', text), text
    # What fewer than 10 patients have is not named by their hospital; a person adds it.
    levels = {"cp": 4, "restecg": 3}
    for name in CATEGORIES:
        first = 1 if name == "cp" else 0
        values = ", ".join(f'"c{first + n}"' for n in range(levels.get(name, 2)))
        text = re.sub(rf'(name = "{name}"\nvalues = )\[[^\]]*\]', rf"\1[{values}]", text)
    text = text.replace("[data.contract]\n", '[data.contract]\nnormalize = "site"\n')
    return text.replace('name = "age"', 'name = "age"\nunit = "years"\nrange = [18.0, 110.0]')


def refused_and_approved(four: Federation, contract: str) -> None:
    """Switzerland's 30 patients are too few for the strict policy, and enough for its own."""
    four.experiment("first", "fedbn", 3, contract)
    words = ("check", "switzerland.fedbn", "--data", "export.csv", *four.own("switzerland"))
    said = four.type("switzerland", *words, "--experiment", "first.toml", code=1)
    assert "30 training samples" in said
    refusal = "the site's policy forbids 30 samples behind an update (min_samples = 32)"
    assert f"WRONG  {refusal}" in said
    said = four.type("server", "run", "FED", "first.toml", "--wait", "60", code=7)
    assert refusal not in said  # of a contract that nobody there approved the server hears nothing
    for site in SITES:
        assert f"{site}: waits for approval by a person at the site" in said
    for site in ("cleveland", "hungary", "va"):
        four.approve(site)
    policy = (four.root / "switzerland" / "switzerland" / "policy.toml").read_text()
    own = re.sub(r"min_samples = \d+", "min_samples = 16", policy)
    (four.root / "switzerland" / "own.toml").write_text(own)
    four.join("switzerland", "--policy", "own.toml")
    run = four.start("server", "run", "FED", "first.toml")
    asked = four.root / "switzerland" / "switzerland" / "experiments"
    four.until(lambda: any(asked.glob("*.json")))
    four.approve("switzerland")
    said = read(run)
    assert "switzerland waits for approval" in said
    assert "round 3/3" in said


def same_as_embedded(four: Federation, contract: str) -> None:
    """The same weights as one process over the four files; every hospital has its own model."""
    together = four.root / "together"
    together.mkdir()
    for site, file in four.files.items():
        own = OWN_LABEL.get(site, "disease")
        (together / f"{site}.csv").write_text(file.read_text().replace(own, "disease", 1))
    embedded = four.root / "embedded"
    words = ["run", str(four.fed.parent / "first.toml"), "--out", str(embedded)]
    words += ["--set", f"data.path={together}", "--set", "data.test_share=0.34"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    found, wanted = (
        checkpoints.Checkpoint(checkpoints.place_of(folder.job("fedbn", "default", 0), 3))
        for folder in (RunFolder(four.fed / "runs" / "first"), RunFolder(embedded))
    )
    shared = wanted.section("shared")
    assert shared.keys() == found.section("shared").keys()
    assert all(torch.equal(found.section("shared")[name], shared[name]) for name in shared)
    whole = open_run(embedded)
    for site in SITES:
        own = open_run(four.root / site / site / "runs" / "first")
        state = whole.model(site).state_dict()
        assert all(torch.equal(own.model(site).state_dict()[name], state[name]) for name in state)
    used_at_a_site(four, embedded, "hungary")
    for place in (four.fed / "runs" / "first", four.root / "va" / "va" / "runs" / "first"):
        assert "round 3 of 3" in (place / "status.html").read_text()
    unit = (four.root / "va" / "va" / "fedbn-site-va.service").read_text()
    assert " federation join va.fedbn --data export.csv --set data.label=disease" in unit


def used_at_a_site(four: Federation, embedded: Path, site: str) -> None:
    """Export and predict at a hospital, without the server."""
    outputs, tables = [], []
    x = torch.randn(32, *open_run(embedded).inputs["input_shape"])
    for run in (four.root / site / site / "runs" / "first", embedded):
        out = four.root / f"of {run.name}"
        words = ["--client", site, "--out", f"{out}/", "--format", "torch-export"]
        done = CliRunner().invoke(app, ["export", str(run), *words])
        assert done.exit_code == 0, (done.output, done.exception)
        (file,) = out.glob("*.pt2")
        outputs.append(torch.export.load(file).module()(x))
        words = ["--client", site, "--data", str(four.files[site]), "--out", f"{out}/said.csv"]
        done = CliRunner().invoke(app, ["predict", str(run), *words])
        assert done.exit_code == 0, (done.output, done.exception)
        rows = csv.reader((out / "said.csv").read_text().splitlines())
        tables.append([row[:2] + row[-2:] for row in rows])
    assert torch.equal(*outputs)
    assert tables[0] == tables[1]
    assert len(tables[0]) > 40


def keys_change(four: Federation) -> None:
    """A hospital's key and the server's certificate are replaced; everybody goes on."""
    key = four.root / "hungary" / "hungary" / "site.key"
    before = key.read_bytes()
    four.admit("hungary", "--rotate")
    assert key.read_bytes() == before  # in use until the site has seen that the new one is admitted
    four.join("hungary")
    four.until(lambda: key.read_bytes() != before)
    certificate = (four.fed / "server.crt").read_bytes()
    four.type("server", "rotate", "FED")
    assert (four.fed / "server.crt").read_bytes() != certificate
    four.serve()  # the others come back by themselves


def revoked_while_a_run_is_on(four: Federation, contract: str) -> None:
    """A second experiment on the same hospitals, and one of them is put out on the way."""
    four.experiment("second", "fedavg", 12, contract)
    run = four.start("server", "run", "FED", "second.toml")
    for site in SITES:
        asked = four.root / site / site / "experiments"
        four.until(lambda asked=asked: len([*asked.glob("*.json")]) == 2)
        four.approve(site)
    four.until(lambda: len(four.rounds("second")) >= 2)
    other = four.type("server", "run", "FED", "first.toml", "--name", "third", code=3)
    assert "run second is on" in other
    four.type("server", "revoke", "FED", "va")
    out = four.running.pop("va")
    text = read(run)
    took_part = [sorted(row["sources"]) for row in four.rounds("second")]
    assert took_part[0] == sorted(SITES), text
    assert took_part[-1] == sorted(set(SITES) - {"va"}), text
    assert out.wait(300) != 0
    assert "does not know the key of site va" in out.said()


def logs_hold(four: Federation) -> None:
    """Both sides' logs are whole, and nobody's end is cut off."""
    server = four.fed / "log.jsonl"
    assert "ok " in typed("log", str(four.fed), "--verify")
    for site in SITES:
        home = four.root / site / site
        assert "ok " in typed("log", str(home), "--verify", "--against", str(server))
        assert "ok " in typed(
            "log", str(four.fed), "--verify", "--against", str(home / "log.jsonl")
        )
    events = [(one["event"], one.get("site")) for one in audit_log.read(server)]
    for wanted in (*(("admitted", site) for site in SITES), ("revoked", "va"), ("rotated", None)):
        assert wanted in events
    refused = [
        one["reason"]
        for one in audit_log.read(four.root / "switzerland/switzerland/log.jsonl")
        if one["event"] == "refused"
    ]
    assert any("min_samples = 32" in reason for reason in refused)
