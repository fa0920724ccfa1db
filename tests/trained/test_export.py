"""Exported models: the same outputs, one client's BatchNorm only, and a card that says so."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import fedbn
from fedbn.errors import ConfigError, ModelError
from fedbn.trained import export as exporting
from fedbn.trained.export import Exported, export
from fedbn.trained.trained_run import Trained
from tiny import bn_net

NORMS = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}


def sites() -> dict[str, tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(0)
    found = {}
    for name, scale in (("left", 1.0), ("right", 9.0)):
        x = torch.randn(40, 3, generator=draws)
        found[name] = scale * x + scale, (x[:, 0] > 0).long()
    return found


def trained(model: Callable[[], nn.Module] = bn_net, method: str = "fedbn") -> Trained:
    return fedbn.fit(sites(), model, method, rounds=2, seed=0)


@pytest.fixture(scope="module")
def run() -> Trained:
    return trained()


def other_bytes(run: Trained, client: str, other: str) -> dict[str, bytes]:
    """What another client keeps, where it is not by chance what this one keeps."""
    own, theirs = (run.state.local[name].state for name in (client, other))
    return {
        name: value.numpy().tobytes()
        for name, value in theirs.items()
        if name in NORMS and not torch.equal(value, own[name])
    }


def test_safetensors_hold_the_joined_model_and_what_one_must_know(
    run: Trained, tmp_path: Path
) -> None:
    found = export(run, "left", out=tmp_path / "left.safetensors")
    assert found.agreement.worst == 0
    assert found.agreement.inputs == "test samples of left"
    state, model = load_file(found.file), bn_net()
    model.load_state_dict(state)
    x = sites()["left"][0]
    assert torch.equal(model.eval()(x), run.model("left")(x))
    with safe_open(found.file, "pt") as file:
        facts = file.metadata()
    assert json.loads(facts["classes"]) == ["0", "1"]
    assert json.loads(facts["input_shape"]) == [3]
    assert (facts["method"], facts["client"], facts["fedbn"]) == (
        "fedbn",
        "left",
        fedbn.__version__,
    )


def test_a_folded_file_has_no_batchnorm_left(run: Trained, tmp_path: Path) -> None:
    found = export(run, "right", out=tmp_path / "right.safetensors", fold_bn=True)
    assert found.folded == {"1": "0"}
    state = load_file(found.file)
    assert set(state) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    plain = nn.Sequential(nn.Linear(3, 4), nn.Identity(), nn.ReLU(), nn.Linear(4, 2))
    plain.load_state_dict(state)
    x = sites()["right"][0]
    torch.testing.assert_close(plain(x), run.model("right")(x), rtol=1e-4, atol=1e-4)
    assert "`1` into `0`" in found.card.read_text()


def test_the_cards_way_to_load_a_folded_file_works(run: Trained, tmp_path: Path) -> None:
    found = export(run, "right", out=tmp_path / "right.safetensors", fold_bn=True)
    code = found.card.read_text().partition("```python\n")[2].partition("```")[0]
    place = {"make_model": bn_net}
    exec(code.replace('"right.safetensors"', repr(str(found.file))), place)
    x = sites()["right"][0]
    torch.testing.assert_close(place["model"](x), run.model("right")(x), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def program(run: Trained, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An export by torch.export, which takes seconds."""
    return export(run, "left", "torch-export", out=tmp_path_factory.mktemp("pt2") / "left.pt2")


def test_torch_export_takes_batches_of_any_size(run: Trained, program: Exported) -> None:
    assert program.agreement.worst <= 1e-5
    model = torch.export.load(program.file).module()
    x = sites()["left"][0]
    for size in (1, 2, 7):
        torch.testing.assert_close(model(x[:size]), run.model("left")(x[:size]))


def test_torch_export_keeps_no_sample_and_no_path(program: Exported) -> None:
    content = program.file.read_bytes()
    parts = zipfile.ZipFile(program.file)
    texts = [parts.read(name) for name in parts.namelist()]
    samples = sites()["left"][0]
    assert samples[0].numpy().tobytes() not in content
    assert not any(__file__.encode() in text or b".py" in text for text in texts)
    (facts,) = [parts.read(name) for name in parts.namelist() if name.endswith("fedbn.json")]
    assert json.loads(facts)["client"] == "left"


def test_a_file_runs_where_there_is_no_fedbn(program: Exported, run: Trained) -> None:
    code = (
        "import sys, torch\n"
        f"model = torch.export.load({str(program.file)!r}).module()\n"
        "assert not any(name.startswith('fedbn') for name in sys.modules)\n"
        "print(model(torch.ones(3, 3))[0].tolist())\n"
    )
    command = [sys.executable, "-I", "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = run.model("left")(torch.ones(3, 3))[0]
    assert json.loads(done.stdout) == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_bundle_holds_no_other_clients_batchnorm(
    run: Trained, program: Exported, tmp_path: Path
) -> None:
    plain = export(run, "left", out=tmp_path / "left.safetensors").file.read_bytes()
    folded = export(run, "left", out=tmp_path / "f.safetensors", fold_bn=True).file.read_bytes()
    foreign = other_bytes(run, "left", "right")
    assert set(foreign) == NORMS
    for content in (plain, folded, program.file.read_bytes()):
        assert [name for name, value in foreign.items() if value in content] == []
    for own in other_bytes(run, "right", "left").values():  # the search can find
        assert own in plain
        assert own in program.file.read_bytes()


def test_onnx(run: Trained, tmp_path: Path) -> None:
    why = "needs onnx: pip install 'fedbn[onnx]'"
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=why)
    import onnxruntime

    found = export(run, "left", "onnx", out=tmp_path / "left.onnx")
    content = found.file.read_bytes()
    assert found.agreement.worst <= 1e-4
    assert b".py" not in content
    assert not any(value in content for value in other_bytes(run, "left", "right").values())
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["client"] == "left"
    x = sites()["left"][0]
    for size in (1, 5):
        (scores,) = session.run(None, {"x": x[:size].numpy()})
        expected = run.model("left")(x[:size]).detach().numpy()
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def test_a_missing_extra_is_named(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs onnx, .*: pip install 'fedbn\[onnx\]'"):
        export(run, "left", "onnx", out=tmp_path / "left.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda outputs: outputs + 0.01, "off by up to 0.01"),
        (lambda outputs: outputs * float("nan"), "off by up to nan"),
        (lambda outputs: outputs[:, :1], "gives (8, 1) in place of (8, 2)"),
    ],
)
def test_a_file_that_does_not_agree_is_not_kept(
    change: Callable[[Tensor], Tensor],
    said: str,
    run: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = exporting.FORMATS["safetensors"]

    def load(content: bytes, model: nn.Module) -> Callable[[Tensor], Tensor]:
        right = known.load(content, model)
        return lambda x: change(right(x))

    wrong = exporting.Format(known.suffix, known.save, load)
    monkeypatch.setitem(exporting.FORMATS, "safetensors", wrong)
    with pytest.raises(ModelError) as error:
        export(run, "left", out=tmp_path / "left.safetensors")
    assert said in str(error.value)
    assert "nothing is kept" in str(error.value)
    assert list(tmp_path.iterdir()) == []


class Branches(nn.Module):
    """A forward that depends on the values, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.net = bn_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if x.sum() > 0 else -self.net(x)


def test_a_model_that_no_graph_can_hold(tmp_path: Path) -> None:
    odd = trained(Branches)
    with pytest.raises(ModelError, match=r"torch\.export cannot take this model"):
        export(odd, "left", "torch-export", out=tmp_path / "left.pt2")
    with pytest.raises(ModelError, match="--fold-bn: nothing to fold"):
        export(odd, "left", out=tmp_path / "left.safetensors", fold_bn=True)
    assert list(tmp_path.iterdir()) == []
    assert export(odd, "left", out=tmp_path / "left.safetensors").agreement.worst == 0


class Tied(nn.Module):
    """One tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.b(self.a(self.norm(x)).relu()))
        return outputs


def test_tied_weights_are_whole_for_a_plain_load(tmp_path: Path) -> None:
    found = export(trained(Tied), "left", out=tmp_path / "left.safetensors")
    assert {"a.weight", "b.weight"} <= load_file(found.file).keys()
    assert Tied().load_state_dict(load_file(found.file)).missing_keys == []


def test_nothing_is_replaced_unless_asked(run: Trained, tmp_path: Path) -> None:
    found = export(run, "left", out=tmp_path / "m.safetensors")
    found.file.write_bytes(b"precious")
    with pytest.raises(ConfigError, match="is there already"):
        export(run, "right", out=tmp_path / "m.safetensors")
    assert found.file.read_bytes() == b"precious"
    export(run, "right", out=tmp_path / "m.safetensors", force=True)
    assert "of right" in found.card.read_text()


@pytest.mark.parametrize(
    ("client", "format", "said"),
    [
        ("lefd", "safetensors", "did you mean 'left'?"),
        ("left", "onxx", "did you mean 'onnx'?"),
    ],
)
def test_unknown_names(run: Trained, tmp_path: Path, client: str, format: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        export(run, client, format, out=tmp_path / "x")
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_folder_needs_a_place(run: Trained) -> None:
    with pytest.raises(ConfigError, match="out="):
        export(run, "left")


def test_names_with_markup_stay_names(tmp_path: Path) -> None:
    name = "[x](y) `a` #$_&"
    data = dict(zip([name, "b"], sites().values(), strict=True))
    made = fedbn.fit(data, bn_net, "fedbn", rounds=1)
    found = export(made, name, out=f"{tmp_path}/")
    assert found.file.parent == tmp_path
    assert found.file.name == "_x_(y) _a_ ____-fedbn-seed-0.safetensors"
    text = found.card.read_text()
    assert text.startswith(r"# The model of \[x\](y) \`a\` \#\$\_\&: fedbn on ")
    assert name not in text


def test_the_card_says_what_it_is(run: Trained, tmp_path: Path) -> None:
    text = export(run, "left", out=tmp_path / "left.safetensors").card.read_text()
    scores = run.accuracy()
    assert f"| left (this model) | {100 * scores['left']:.1f} % |" in text
    assert f"| right | {100 * scores['right']:.1f} % |" in text
    # 3·4 + 4 + 4·2 + 2 shared numbers; 4 of each of gamma, beta, mean, variance, and a counter
    assert "sent 4 entries (104 bytes) and kept 5 entries (72 bytes)" in text
    for title in ("Intended use", "Limits", "How it was checked", "How to load it without fedbn"):
        assert f"\n## {title}\n" in text
    assert "| rounds | 2 |" in text


def test_the_means_that_fill_another_clients_gaps_are_not_told(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    age = [None if n % 9 == 4 else float(n) for n in range(60)]
    whole = pandas.DataFrame({"age": age, "site": ["a", "b"] * 30, "ill": [0, 0, 1, 1] * 15})
    asked = {"data__label": "ill", "data__site": "site", "data__missing": "mean"}
    run = fedbn.fit(whole, rounds=1, **asked)
    means = run.inputs["preparation"]["table"]["means"]
    text = export(run, "a", out=tmp_path / "a.safetensors").card.read_text()
    assert str(means["a"][0]) in text
    assert str(means["b"][0]) not in text


@pytest.mark.parametrize(
    ("name", "form"),
    [("m.safetensors", "safetensors"), ("m.pt2", "torch-export"), ("M.ONNX", "onnx")],
)
def test_the_end_of_a_name_decides_the_format(
    run: Trained, tmp_path: Path, name: str, form: str
) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    done = export(run, "left", out=tmp_path / name)
    assert done.file == tmp_path / name
    if form == "safetensors":
        assert load_file(done.file).keys() >= NORMS
    elif form == "torch-export":
        assert torch.export.load(done.file).module()(torch.zeros(2, 3)).shape == (2, 2)
    else:
        onnx = pytest.importorskip("onnx", reason="onnx is not installed")
        onnx.checker.check_model(onnx.load_from_string(done.file.read_bytes()))


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.bin", "m.pb", "m.tflite", "m.v1"])
def test_a_name_of_no_format_is_refused_with_the_way_out(
    run: Trained, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"\.safetensors .*\.onnx .*\.pt2 .*--format"):
        export(run, "left", out=tmp_path / name)
    assert export(run, "left", "safetensors", out=tmp_path / name).file == tmp_path / name


@pytest.mark.parametrize("form", ["safetensors", "torch-export"])
def test_a_name_that_contradicts_the_format_is_refused(
    run: Trained, tmp_path: Path, form: str
) -> None:
    with pytest.raises(ConfigError, match=f"a name for --format onnx, but --format is {form}"):
        export(run, "left", form, out=tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_a_folder_takes_any_format(run: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "models.v1"
    assert export(run, "left", out=f"{folder}/").file.suffix == ".safetensors"
    assert export(run, "left", "torch-export", out=folder).file.suffix == ".pt2"
