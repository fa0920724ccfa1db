"""One data set dealt into clients: shares, shards, seeds, groups and what cannot be dealt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedbn
from fedbn.data.partitions import dealt
from fedbn.data.python_data import federation_of
from fedbn.errors import ConfigError, DataError

X, Y = torch.arange(300.0).reshape(300, 1), torch.arange(300) % 3
FLAT = federation_of((X, Y))


def dealt_out(partition, clients=5, seed=0, data=FLAT):
    return dealt(data, partition, clients, seed)


def counts(client):
    return client.train.y.bincount(minlength=3).tolist()


@pytest.mark.parametrize("partition", ["iid", "dirichlet(0.3)", "shards(2)"])
def test_every_sample_goes_to_one_client_by_a_seed_of_its_own(partition):
    made = dealt_out(partition)
    trained = torch.cat([client.train.x for client in made.clients]).flatten()
    tested = torch.cat([client.tests[client.name].x for client in made.clients]).flatten()
    assert torch.equal(torch.cat([trained, tested]).sort().values, X.flatten())
    assert made.fingerprint() == dealt_out(partition).fingerprint()
    assert made.fingerprint() != dealt_out(partition, seed=1).fingerprint()
    assert [client.name for client in made.clients][:2] == ["client-1", "client-2"]
    assert "dealt into 5 clients by" in made.remarks[-1]


def test_iid_gives_all_the_same_and_shards_few_classes():
    assert {len(client.train) for client in dealt_out("iid").clients} == {48}
    assert all(sum(c > 0 for c in counts(client)) <= 2 for client in dealt_out("shards(1)").clients)


def test_a_small_dirichlet_is_less_even_than_a_large_one():
    def spread(partition):
        made = [np.array(counts(client)) for client in dealt_out(partition).clients]
        return float(np.mean([np.std(c / c.sum()) for c in made]))

    assert spread("dirichlet(0.1)") > 2 * spread("dirichlet(100)")


def test_test_samples_follow_the_training_samples_of_their_class():
    for client in dealt_out("shards(1)", clients=3).clients:
        trained = set(client.train.y.tolist())
        assert set(client.tests[client.name].y.tolist()) <= trained


def test_groups_are_never_divided():
    groups = np.repeat(np.arange(60), 5)
    data = federation_of((X, torch.from_numpy(groups % 3), groups))
    made = dealt_out("dirichlet(1)", 4, data=data)
    owners = [
        {g for split in c.splits for g in split.x.flatten().long().tolist()} for c in made.clients
    ]
    patients = [{g // 5 for g in own} for own in owners]
    assert sum(map(len, patients)) == 60


@pytest.mark.shows("S11")
@pytest.mark.parametrize(
    "partition", ["dirichlet(0)", "dirichlet(-1)", "dirichlet", "dirichlet(nan)", "dirichlet(x)",
                  "shards(0)", "shards(1.5)", "iid(2)", "pathological"],
)  # fmt: skip
def test_a_partition_that_does_not_exist_says_which_do(partition):
    with pytest.raises(ConfigError, match=r"data\.partition = .*legal are 'iid', 'dirichlet\(a\)'"):
        dealt_out(partition)


@pytest.mark.shows("S10")
def test_more_shards_or_clients_than_samples_are_refused():
    with pytest.raises(
        DataError, match=r"'shards\(100\)': .* 500 shards, but there are 240 samples"
    ):
        dealt_out("shards(100)")
    with pytest.raises(DataError, match="cannot give each of 200 clients 2 and 1"):
        dealt_out("iid", clients=200)


def test_fit_and_the_command_line_deal_one_data_set(tmp_path):
    result = fedbn.fit(
        (X, Y), "mlp", rounds=1, data__partition="dirichlet(1)", data__clients=3,
        notes=lambda text: None,
    )  # fmt: skip
    assert list(result.models) == ["client-1", "client-2", "client-3"]
    named = fedbn.fit(
        "gaussians", "mlp", rounds=1, data__partition="iid", data__clients=4, out=tmp_path / "run",
        notes=lambda text: None,
    )  # fmt: skip
    assert len(named.models) == 4
    assert len(fedbn.open_run(tmp_path / "run").federation.clients) == 4
    with pytest.raises(ConfigError, match="set partition too"):
        fedbn.fit("gaussians", rounds=1, data__clients=4)
