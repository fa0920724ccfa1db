"""Every client's model on every domain's test data; predictions as a table."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
import torch
from use_sites import site

import fedbn
from fedbn.core.task import CLASSIFICATION
from fedbn.data.new_samples import Samples
from fedbn.tasks.making import evaluated
from fedbn.text import no_formula
from fedbn.trained.evaluation import evaluate_all
from fedbn.trained.trained_run import Predictions, Trained, predict

X, Y = site(8.0, 9, 12)


def test_the_matrix_is_every_model_on_every_domain(trained: Trained):
    run = trained.adapt(X, site="new")
    found = evaluate_all(run, resamples=20)
    assert found.clients == ("a", "b", "c", "new")
    assert found.domains == ("a", "b", "c")
    assert list(found.values) == [metric.name for metric in evaluated(CLASSIFICATION)]
    for client in run.clients:
        for other in run.federation.clients:
            test = other.tests[other.domain]
            value, low, high = found.values["accuracy"][client][other.domain]
            assert value == run.score(test.x, test.y, client)
            assert low <= value <= high
            counts = found.confusion[client][other.domain]
            assert counts.sum() == len(test) == found.samples[other.domain]
            assert np.trace(counts) / len(test) == value
    own = {name: found.values["accuracy"][name][name][0] for name in "abc"}
    assert own == run.accuracy()


def test_the_matrix_can_be_written(trained: Trained):
    found = evaluate_all(trained, resamples=5)
    content = json.loads(found.to_json())
    value, *ends = found.values["auroc"]["a"]["b"]
    assert content["values"]["auroc"]["a"]["b"] == [value, *(x if x == x else None for x in ends)]
    rows = list(csv.DictReader(io.StringIO(found.to_csv().decode())))
    assert len(rows) == 5 * 3 * 3
    assert rows[0]["value"] == f"{found.values['accuracy']['a']['a'][0]:.6g}"


def test_clients_of_one_domain_share_a_column():
    from dataclasses import replace

    from fedbn.data.python_data import federation_of

    one = federation_of({"a-1": (X, Y), "a-2": (X, Y)})
    test = one.clients[0].tests["a-1"]
    clients = tuple(replace(c, domain="a", tests={"a": test}) for c in one.clients)
    run = fedbn.fit(replace(one, clients=clients), "mlp", rounds=1)
    found = evaluate_all(run, resamples=2)
    assert (found.clients, found.domains) == (("a-1", "a-2"), ("a",))
    assert found.samples["a"] == len(test)


def test_predictions_have_a_row_an_input_and_a_column_a_class(trained: Trained):
    names = tuple(f"row {n}" for n in range(12))
    made = predict(trained, "a", Samples(torch.from_numpy(X), names, torch.from_numpy(Y)))
    rows = list(csv.DictReader(io.StringIO(made.to_csv().decode())))
    assert list(rows[0]) == ["input", "predicted", "label", "p(left)", "p(right)"]
    assert [row["predicted"] for row in rows] == trained.predict(X, "a").tolist()
    assert float(rows[3]["p(right)"]) == float(f"{made.proba[3, 1]:.6g}")
    assert made.score == trained.score(X, Y, "a")
    bare = predict(trained, "a", Samples(torch.from_numpy(X), names))
    assert bare.score is None
    assert "label" not in bare.header()


@pytest.mark.shows("W07")
def test_no_cell_is_a_formula_and_quoting_is_right():
    evil = ('=HYPERLINK("http://x")', "+1+cmd", "-2+3", "@SUM(A1)", "\tx", 'a,"b"\nc', "-1")
    proba = np.eye(7)
    made = Predictions(evil, evil, proba, np.arange(7))
    rows = list(csv.reader(io.StringIO(made.to_csv().decode(), newline="")))
    cells = [cell for row in rows for cell in row]
    assert not any(cell.startswith(("=", "+", "@", "\t")) for cell in cells)
    assert [row[0] for row in rows[1:]] == [f"'{cell}" for cell in evil[:5]] + [evil[5], "-1"]
    assert [*map(no_formula, ["-1e5", "- 1", "−1"])] == ["-1e5", "'- 1", "−1"]
