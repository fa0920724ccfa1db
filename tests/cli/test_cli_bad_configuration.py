"""Bad configurations: one line that names the key, exit code 3, nothing written (C01 to C17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from commanding import call

SET = {
    "unknown key, nearest named": (
        "training.ronds=3",
        "'training.ronds': did you mean 'training.rounds'?",
    ),
    "a name of other libraries": (
        "training.learning_rate=3",
        "'training.learning_rate': did you mean 'training.lr'?",
    ),
    "a name that is near to none": (
        "training.quantum=3",
        "'training.quantum': Legal values: training.amp",
    ),
    "unknown section": ("trainig.rounds=3", "unknown key 'trainig': did you mean 'training'?"),
    "wrong type": ("training.rounds=three", "training.rounds = 'three'"),
    "a bool is no number": ("training.rounds=true", "training.rounds = True"),
    "out of range": ("training.rounds=0", "training.rounds = 0"),
    "above its range": ("training.participation=1.5", "training.participation = 1.5"),
    "NaN": ("training.lr=nan", "training.lr = nan: legal are finite numbers"),
    "infinity": ("training.lr=inf", "training.lr = inf"),
    "NaN where any value may stand": ("model.args.width=nan", "model.args.width = nan"),
    "a date": ("model.args.width=2020-01-01", "model.args.width: a date"),
    "a number beyond 64 bits": (f"seeds=[{2**64}]", "seeds: legal are whole numbers"),
    "a negative seed": ("seeds=[-1]", "seeds.0 = -1"),
    "one seed twice": ("seeds=[1, 1]", "names one twice"),
    "one method twice": ('methods=["fedbn", "fedbn"]', "names one twice"),
    "no method": ("methods=[]", "methods = []"),
    "unknown method": ('methods=["fedbm"]', "unknown method 'fedbm': did you mean 'fedbn'?"),
    "unknown part": ('methods=["fedbn+proxy(1)"]', "did you mean 'prox'?"),
    "unknown model": ("model.name=mpl", "unknown model 'mpl': did you mean 'mlp'?"),
    "unknown data set": ("data.name=digits_mimi", "did you mean 'digits_mini'?"),
    "unknown option of a data set": ("data.test_shar=0.3", "unknown option 'data.test_shar'"),
    "unknown argument of a model": ("model.args.width=3", "unexpected keyword argument 'width'"),
    "unknown optimizer": ("training.optimizer=Adm", "did you mean 'Adam'?"),
    "unknown argument of an optimizer": (
        "training.optimizer_args.momentun=0.9",
        "did you mean 'momentum'?",
    ),
    "unknown schedule": ("training.schedule=CosineLR", "training.schedule: unknown schedule"),
    "a schedule by scores": ("training.schedule=ReduceLROnPlateau", "looks at scores"),
    "clipping to nothing": ("training.clip_norm=0", "training.clip_norm = 0"),
    "clipping to NaN": ("training.clip_norm=nan", "training.clip_norm = nan"),
    "unknown precision": ("training.amp=float16", "training.amp = 'float16'"),
    "patience without validation": ("training.patience=3", "set evaluation.validation"),
    "unknown further metric": ('evaluation.metrics=["aurok"]', "did you mean 'auroc'?"),
    "unknown weighting": ("training.weighting=equal", "training.weighting = 'equal'"),
    "unknown statistics": (
        'evaluation.statistics=["running", "exakt"]',
        "evaluation.statistics.1 = 'exakt'",
    ),
    "no running statistics": (
        'evaluation.statistics=["exact"]',
        "statistics: expected 'running' among them",
    ),
    "one kind of statistics twice": (
        'evaluation.final_statistics=["batch", "batch"]',
        "final_statistics: ['batch', 'batch'] names one twice",
    ),
    "choosing without validation": ("method.mu=[0.1, 1]", "set evaluation.validation"),
    "best without validation": ("evaluation.report=best", "set evaluation.validation"),
    "a validation share that holds nothing out": (
        "evaluation.validation=0.01",
        "client a would hold out 0",
    ),
    "a validation share that leaves nothing": (
        "evaluation.validation=0.97",
        "hold out 16 and train on 0",
    ),
    "more clients than there are": ("training.min_clients=3", "sites has 2 clients"),
    "an unknown format": ("format=2", "format = 2"),
    "an old format": ("format=0", "format = 0"),
    "a batch of one under BatchNorm": ("training.batch_size=1", "training.batch_size = 1"),
    "no such device": ("training.device=cuda:99", "training.device = 'cuda:99'"),
    "a section that is a value": ("training=5", "training = 5"),
    "no value": ("training.lr", "expected key=value"),
    "a sweep of one value": ("sweep.training.lr=0.1", "expected a list of values"),
    "a sweep of seeds": ("sweep.seeds=[[1], [2]]", "sweep: unknown section 'seeds'"),
    "a sweep with one value twice": ("sweep.training.lr=[0.1, 0.1]", "would be called 'lr=0.1'"),
    "a sweep out of range": ("sweep.training.lr=[0.1, -1]", "training.lr = -1"),
    "a sweep without end": (
        f"sweep.training={{lr={list(range(1, 201))}, rounds={list(range(1, 201))}}}",
        "40,000 settings",
    ),
    "a sweep of names too long for a folder": (
        f'sweep.model.name=["{"m" * 300}"]',
        "at most 200 bytes",
    ),
    "a key of many dots": (".".join("a" * 30) + "=1", "nested too deeply"),
}


@pytest.mark.shows("C01", "C02", "C03", "C04", "C10", "C16", "C17", "S12", "S13", "S14")
@pytest.mark.parametrize(("setting", "said"), SET.values(), ids=SET)
def test_a_wrong_value_is_named_and_nothing_is_written(
    setting: str, said: str, sites: Path, tmp_path: Path
) -> None:
    given = () if setting.startswith("data.name") else ("--data", sites)
    answer = call("run", *given, "--set", setting, "--out", tmp_path / "made" / "out")
    assert answer.code == 3
    assert said in answer.line
    assert answer.out == ""
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rounds", "many"], "--rounds"),
        (["--seed", "1.5"], "--seed"),
        (["--seed", "-3"], "seeds.0 = -3"),
        (["--workers", "-1"], "--workers"),
        (["--model", "my_module"], "unknown model 'my_module'"),
        (["--model", "no_such_module:Net"], "no module 'no_such_module'"),
        (["--model", "../evil:Net"], "not a module's name"),
        (["--model", "math:hypotenuse"], "did you mean 'hypot'?"),
        (["--model", "builtins:dict"], "expected a function or class of Python"),
        (["--set", "task.name=builtins:dict"], "task builtins:dict: no signature found"),
        (["--method", "fedbn+"], "cannot read the method ''"),
        (["--method", "fedprox(mu=nan)"], "fedprox"),
        (["--data", "x" * 300], "unknown data set"),
        (["--data", "\udcff"], "legal is text in UTF-8"),
    ],
)
def test_a_wrong_flag_is_a_wrong_value(
    flags: list[str], said: str, sites: Path, tmp_path: Path
) -> None:
    answer = call("run", "--data", sites, *flags, "--out", tmp_path / "out", cwd=tmp_path)
    assert answer.code == 3
    assert said in answer.line
    assert list(tmp_path.iterdir()) == []


TOML = {
    "syntax": (b"[training]\nrounds = = 3\n", "(at line 2, column 10)"),
    "not UTF-8": (b'methods = ["\xff"]\n', "not UTF-8 (byte 12)"),
    "deeply nested lists": (b"a = " + b"[" * 50_000, "nested too deeply"),
    "a key of many dots": (b"a." * 100_000 + b"b = 1\n", "nested too deeply"),
    "a table of many dots": (b"[" + b"a." * 100_000 + b"b]\n", "nested too deeply"),
    "nested within reason of the parser": (b"data.x = " + b"[" * 50 + b"]" * 50, "nested too"),
    "enormous": (b"#" * 1_000_001, "1,000,001 bytes"),
    "a number of thousands of digits": (b"seeds = [" + b"9" * 5000 + b"]", "4300 digits"),
    "NUL in a path": (b'data.path = "a\\u0000b"', "without NUL"),
    "an unknown key": (b"[traning]\nrounds = 3\n", "did you mean 'training'?"),
}


@pytest.mark.shows("C01", "C05", "C12", "C13")
@pytest.mark.parametrize(("content", "said"), TOML.values(), ids=TOML)
def test_a_file_that_cannot_be_read_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_bytes(content)
    answer = call("run", file, "--out", tmp_path / "out")
    assert answer.code == 3
    assert answer.line.startswith(f"fedbn: {file}: ")
    assert said in answer.line
    assert not (tmp_path / "out").exists()


@pytest.mark.shows("C06")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.toml", "No such file"),
        (".", "unknown experiment '.'"),
        ("../../etc/passwd", "unknown experiment"),
        ("n" * 300, "unknown experiment"),
    ],
)
def test_a_missing_experiment(name: str, said: str, tmp_path: Path) -> None:
    answer = call("run", name, cwd=tmp_path)
    assert answer.code == 3
    assert said in answer.line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.shows("C11")
@pytest.mark.parametrize(
    ("one", "other"),
    [("local_epochs", "local_steps"), ("epochs", "local_steps")],
)
def test_options_that_exclude_each_other(one: str, other: str, sites: Path, tmp_path: Path) -> None:
    both = ("--set", f"training.{one}=2", "--set", f"training.{other}=3")
    answer = call("run", "--data", sites, *both, "--out", tmp_path / "out")
    assert (answer.code, (tmp_path / "out").exists()) == (3, False)
    assert f"{one} and {other} exclude each other" in answer.line


@pytest.mark.shows("C15")
@pytest.mark.parametrize("value", ["two", "-1", "1025", "1.5", "9" * 5000])
@pytest.mark.parametrize("command", [["run"], ["resume", "somewhere"]])
def test_an_environment_variable_of_the_wrong_type(
    value: str, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDBN_WORKERS", value)
    answer = call(*command, cwd=tmp_path)
    assert answer.code == 3
    assert "FEDBN_WORKERS" in answer.line
    assert list(tmp_path.iterdir()) == []


def test_the_environment_decides_the_workers_unless_a_flag_does(
    sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBN_WORKERS", "3")
    asked = ("run", "--data", sites, "--dry-run")
    assert "workers = 3\n" in call(*asked).out
    assert "workers = 2\n" in call(*asked, "--workers", 2).out


def test_a_data_set_without_a_path_refuses_one(sites: Path) -> None:
    answer = call("run", "--data", sites, "--set", "data.name=digits_mini", "--dry-run")
    assert (answer.code, "takes no data.path" in answer.line) == (3, True)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    answer = call("run", "--set", "training.lr=0", "--debug", cwd=tmp_path)
    assert answer.code == 3
    assert "Traceback" in answer.err
    assert "ConfigError" in answer.err
