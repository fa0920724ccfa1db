"""Datasets of torch and others, read a batch at a time: bits, bounds and faults."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import fedbn
from fedbn.core.federation import all_targets
from fedbn.data import lazy_split
from fedbn.data.dataset_samples import known_targets, parts_of
from fedbn.data.python_data import federation_of
from fedbn.errors import ConfigError, DataError
from fedbn.trained.evaluation import evaluate_all

N, SHAPE = 40, (3, 6, 6)


class Made(Dataset):
    """Samples made from their index; what is drawn from global generators is added."""

    def __init__(self, n=N, shift=0.0, noisy=True, targets=True):
        self.n, self.shift, self.noisy, self.reads = n, shift, noisy, []
        if targets:
            self.targets = [index % 3 for index in range(n)]

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.reads.append(index)
        x = torch.full(SHAPE, float(index % 7)) + self.shift
        if self.noisy:
            x = x + torch.rand(SHAPE) + random.random() + np.random.random()
        return x, index % 3


def fitted(data, workers=0, rounds=2, **more):
    return fedbn.fit(
        data,
        "mlp",
        rounds=rounds,
        training__batch_size=8,
        data__workers=workers,
        notes=lambda text: None,
        **more,
    )


def bits(result):
    return {
        name: value
        for client in result.models
        for name, value in result.model(client).state_dict().items()
    }


@pytest.mark.parametrize("workers", [1, 4])
def test_bits_do_not_depend_on_how_many_processes_read(workers):
    sites = {"a": Made(), "b": (Made(shift=5.0), Made(20, 5.0))}
    here, apart = (fitted(sites, count) for count in (0, workers))
    assert all(torch.equal(value, bits(apart)[name]) for name, value in bits(here).items())
    assert here.records == apart.records


def test_what_a_transform_draws_depends_on_round_pass_client_and_index_alone():
    data = federation_of({"a": Made(), "b": Made()})
    a, b = (client.train for client in data.clients)
    index = torch.tensor([3, 4])
    first = a.batch(index)[0]
    before = random.getstate(), torch.get_rng_state()
    assert torch.equal(a.batch(index)[0], first)
    assert torch.equal(a.batch(index.flip(0))[0].flip(0), first)
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    assert not torch.equal(b.batch(index)[0], first)
    one, two = a.stream([index, index], seed=7, per_pass=1)
    assert not torch.equal(one[0], two[0])
    (other,) = a.stream([index], seed=8, per_pass=1)
    assert not torch.equal(one[0], other[0])


def test_a_dataset_trains_to_the_bits_of_the_same_arrays():
    data = Made(noisy=False)
    x, y = torch.stack([data[i][0] for i in range(N)]), torch.tensor(data.targets)
    lazy, held = fitted({"a": data, "b": data}), fitted({"a": (x, y), "b": (x, y)})
    assert all(torch.equal(value, bits(held)[name]) for name, value in bits(lazy).items())
    assert lazy.records == held.records


def test_pooled_and_validation_work_on_what_is_not_in_memory():
    sites = {"a": Made(), "b": (torch.zeros(30, *SHAPE), torch.arange(30) % 3)}
    result = fitted(sites, method="centralized", evaluation__validation=0.2)
    assert {record.split for record in result.records} >= {"train", "valid", "test"}
    evaluated = evaluate_all(fitted(sites), resamples=10)
    assert set(evaluated.domains) == {"a", "b"}


def test_nothing_reads_all_samples_before_training():
    data = Made(1000, targets=False)
    federation = federation_of({"a": data}, classes=["x", "y", "z"])
    federation.fingerprint()
    assert federation.clients[0].train.y is None
    assert len(set(data.reads)) < 140
    assert not any("64 samples" in text for text in federation.remarks)


def test_classes_come_from_what_the_dataset_tells_else_from_one_announced_pass(caplog):
    class Named(Made):
        classes = ("cat", "dog", "owl")

    assert federation_of({"a": Named(targets=False)}).classes == ("cat", "dog", "owl")
    told = Made()
    assert federation_of({"a": told}).classes == ("0", "1", "2")
    # The first of each of three classes, the last, again the first, and the first with two seeds.
    assert len(told.reads) <= 7
    assert not caplog.records
    found = federation_of({"a": Made(targets=False)})
    assert found.classes == ("0", "1", "2")
    assert "reading all 40 samples to find their labels" in caplog.text
    assert not any("read" in text for text in found.remarks)
    assert all_targets(found.clients[0].train).tolist() != []


def test_targets_are_found_in_the_ways_libraries_keep_them():
    x, y = torch.zeros(6, 2), torch.arange(6) % 2
    whole = TensorDataset(x, y)
    assert known_targets(whole).tolist() == y.tolist()
    assert known_targets(Subset(whole, [1, 2])).tolist() == [1, 0]
    assert known_targets(ConcatDataset([whole, whole])).tolist() == [*y.tolist(), *y.tolist()]

    class Monai(Dataset):
        def __init__(self):
            self.data = [{"image": [0.0], "label": n % 2} for n in range(4)]

        def __len__(self):
            return 4

        def __getitem__(self, index):
            row = self.data[index]
            return {"image": np.zeros((1, 4, 4)), "label": row["label"]}

    assert known_targets(Monai()).tolist() == [0, 1, 0, 1]

    class Feature:
        names = ("no", "yes")

    class HuggingFace:
        _fingerprint = "abc"

        def __init__(self):
            self.features = {"img": None, "label": Feature()}

        def __len__(self):
            return 4

        def __getitem__(self, key):
            labels = [0, 1, 1, 0]
            return labels if key == "label" else {"img": np.zeros((4, 4, 3)), "label": labels[key]}

    assert known_targets(HuggingFace()).tolist() == [0, 1, 1, 0]
    assert federation_of({"a": HuggingFace()}).classes == ("no", "yes")


def test_pictures_and_labels_come_in_the_forms_that_libraries_give():
    class Med(Dataset):
        """As MedMNIST: Pillow's pictures, labels (n, 1)."""

        def __init__(self, mode):
            self.mode, self.labels = mode, np.arange(6)[:, None] % 2

        def __len__(self):
            return 6

        def __getitem__(self, index):
            picture = Image.new(self.mode, (5, 4), 7)
            return picture, self.labels[index]

    for mode, channels in (("L", 1), ("RGB", 3), ("P", 3), ("RGBA", 3)):
        data = federation_of({"a": Med(mode)})
        assert data.classes == ("0", "1")
        assert data.input_shape == (channels, 4, 5)
        assert data.clients[0].train.batch(slice(0, 2))[1].shape == (2,)
    for shape in ((6, 5, 3), (3, 6, 5)):
        assert parts_of((np.zeros(shape, np.uint8), 0))[0].shape == (3, 6, 5)


@pytest.mark.shows("S02")
def test_changed_data_is_told_by_length_mark_and_a_sample():
    prints = [
        federation_of({"a": data}).fingerprint()["a"]
        for data in (Made(), Made(), Made(41), Made(shift=1.0))
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.shows("S17")
def test_classes_that_differ_between_clients_are_refused():
    class Pets(Made):
        classes = ("cat", "dog", "owl")

    class Other(Made):
        classes = ("dog", "cat", "owl")

    with pytest.raises(DataError, match=r"client b: classes .* differ in name or order"):
        federation_of({"a": Pets(), "b": Other()})


def test_a_dict_of_datasets_is_its_parts():
    parts = {"train": Made(), "validation": Made(9), "test": Made(12)}
    (client,) = federation_of({"a": parts}).clients
    assert [len(split) for split in client.splits] == [40, 12, 9]


def test_groups_validation_names_and_truth_values():
    x = np.zeros((12, 4), np.float32)
    patients = np.repeat(["p1", "p2", "p3", "p4", "p5", "p6"], 2)
    (client,) = federation_of({"a": (x, patients > "p3", patients)}, test_share=0.34).clients
    assert not set(client.train.groups.tolist()) & set(client.tests["a"].groups.tolist())
    pair = (x, ["b", "a"] * 6)
    made = federation_of({"a": (pair, pair, pair)})
    assert made.classes == ("a", "b")
    assert made.clients[0].valid is not None
    assert federation_of({"a": (x, [True, False] * 6)}).classes == ("False", "True")
    assert len(federation_of({"a": (Made(), Made(9), Made(12))}).clients[0].valid) == 9


class Bad(Made):
    def __init__(self, bad, at=5, **more):
        super().__init__(noisy=False, **more)
        self.bad, self.at = bad, at

    def __getitem__(self, index):
        return self.bad(index) if index == self.at else super().__getitem__(index)


def _raise(index):
    raise OSError("disk on fire")


FAULTS = {
    "raises": (_raise, "client b, sample 5: OSError: disk on fire"),
    "None": (lambda i: None, "client b, sample 5: a NoneType; expected"),
    "shape": (lambda i: (torch.zeros(3, 9, 9), 0), r"sample 5: \(3, 9, 9\) of torch.float32, but"),
    "NaN": (lambda i: (torch.full(SHAPE, torch.nan), 0), "client b, sample 5: NaN in it"),
    "label": (lambda i: (torch.zeros(SHAPE), 3), "client b, sample 5: label 3; expected 0 to 2"),
    "name": (lambda i: (torch.zeros(SHAPE), "owl"), "sample 5: label 'owl'; legal are 0, 1, 2"),
    "dict": (lambda i: {"z": 1}, "sample 5: a dict with z; expected"),
}


@pytest.mark.shows("S01", "S03")
@pytest.mark.parametrize(("fault", "workers"), [*((f, 0) for f in FAULTS), ("raises", 1)])
def test_a_bad_sample_is_one_line_naming_client_and_index(fault, workers):
    bad, match = FAULTS[fault]
    with pytest.raises(DataError, match=match) as raised:
        fitted({"a": Made(), "b": Bad(bad)}, workers)
    assert "\n" not in str(raised.value)


@pytest.mark.shows("S01")
def test_a_bad_sample_of_a_later_round_leaves_the_rounds_before_it(tmp_path):
    class Later(Made):
        def __getitem__(self, index):
            if len(self.reads) > 300:
                raise OSError("gone")
            return super().__getitem__(index)

    data = {"a": Made(), "b": Later(noisy=False)}
    with pytest.raises(DataError, match=r"client b, sample .*gone"):
        fitted(data, rounds=20, out=tmp_path / "run")
    whole = {"a": Made(), "b": Made(noisy=False)}
    assert fedbn.open_run(tmp_path / "run", data=whole).state.round >= 1


@pytest.mark.shows("S02")
def test_a_dataset_that_changes_its_length_is_refused():
    data = Made()
    federation = federation_of({"a": data})
    data.n = 30
    with pytest.raises(
        DataError, match="client a, sample 0: 40 samples when it was opened, 30 now"
    ):
        federation.clients[0].train.batch(slice(0, 1))


@pytest.mark.shows("S04")
def test_a_dataset_that_cannot_be_copied_to_a_worker_is_named(monkeypatch):
    monkeypatch.setattr(lazy_split, "START", "spawn")
    data = Made()
    data.lock = threading.Lock()
    with pytest.raises(DataError, match="client a: the Made cannot be copied to a worker process"):
        federation_of({"a": data}, workers=1)


@pytest.mark.shows("S17")
def test_what_is_no_data_says_what_is():
    with pytest.raises(DataError, match=r"client a: expected .*, got a int"):
        federation_of({"a": 3})
    with pytest.raises(DataError, match=r"data is a Made; expected a mapping.*data\.partition"):
        fitted(Made())
    with pytest.raises(ConfigError, match=r"data\.workers.*-1"):
        fitted({"a": Made()}, workers=-1)
    with pytest.raises(DataError, match="client a: 2 samples; at least 3"):
        federation_of({"a": Made(2)})


@pytest.mark.shows("S16")
def test_a_worker_that_dies_is_one_line():
    import os

    data = Bad(lambda i: os._exit(3))
    with pytest.raises(DataError, match="a worker process that reads data died"):
        fitted({"a": data}, workers=1)


def test_float_targets_and_masks_are_what_tasks_take():
    class Numbers(Made):
        def __getitem__(self, index):
            self.reads.append(index)
            return torch.zeros(4), index + 0.5

    data = Numbers(targets=False)
    split = federation_of({"a": data}).clients[0].train
    assert set(data.reads) == {0}
    assert split.target.shape == (1, 1)
    assert split.target.dtype == torch.float32
    assert replace(split, y=None).batch(slice(0, 3))[1].shape == (3, 1)


class Graded(Made):
    """Grades 0 to 4 on disk, of which a transform makes two classes; the ends are 0 in both."""

    def __init__(self):
        super().__init__(n=22, targets=False)
        self.targets = [0, *(index % 5 for index in range(20)), 0]

    def __getitem__(self, index):
        return super().__getitem__(index)[0], int(self.targets[index] > 1)


def test_targets_that_a_transform_changes_in_the_middle_are_not_believed():
    assert known_targets(Graded()) is None
    made = federation_of({"a": Graded(), "b": Graded()})
    assert made.classes == ("0", "1")
    for client in made.clients:
        assert torch.equal(all_targets(client.train), all_targets(client.train, read=True))


def test_targets_of_any_type_are_compared():
    class Held(Made):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], self.targets[index]

    for targets in (np.array(["a", "b"] * 5, object), np.eye(10) > 0, np.ones((10, 4, 4), int)):
        data = Held(n=10, targets=False)
        data.targets = targets
        assert np.array_equal(known_targets(data), targets)


@pytest.mark.parametrize("bad", [0, 1, 11])
def test_a_sample_that_cannot_be_read_is_named_though_targets_are_known(bad):
    class CutOff(Labelled):
        def __getitem__(self, index):
            if index == bad:
                raise OSError("the scan is cut off")
            return super().__getitem__(index)

    with pytest.raises(DataError, match=rf"client a, sample {bad}: .*the scan is cut off"):
        federation_of({"a": CutOff(0, 1), "b": Labelled(0, 1)})


class Labelled(Made):
    """Its targets are what it is given, again and again."""

    def __init__(self, *labels):
        super().__init__(n=12, targets=False)
        self.targets = [labels[index % len(labels)] for index in range(12)]

    def __getitem__(self, index):
        return super().__getitem__(index)[0], self.targets[index]


def test_whole_numbers_next_to_texts_are_refused_with_both_readings():
    """A 1 may be the class that is called 1, or the second of all classes."""
    x = np.random.default_rng(0).normal(size=(12, *SHAPE))
    match = (
        r"texts \(1, 2, 3\) at client a; whole numbers \(1, 2\) at client b\. Give the names of "
        "the classes at every client, or whole numbers at every client"
    )
    for first in ((x, np.array(["1", "2", "3"] * 4)), Labelled("1", "2", "3")):
        for second in ((x, np.array([1, 2] * 6)), Labelled(1, 2)):
            with pytest.raises(DataError, match=match):
                federation_of({"a": first, "b": second})


def test_whole_numbers_of_a_dataset_that_names_its_classes_are_places():
    """As ImageFolder's, whose folders may be called by numbers."""
    given = {name: Labelled(0, 1, 2) for name in "ab"}
    for each in given.values():
        each.classes = ["1", "2", "3"]
    run = fitted(given, rounds=1)
    assert all_targets(run.federation.clients[0].train).unique().tolist() == [0, 1, 2]
    assert run.targets_of([1, 2], 2).tolist() == [1, 2]


def test_pictures_of_numpy_with_channels_last_are_read_as_datasets_and_files_read_them():
    draws = np.random.default_rng(0)
    last = draws.integers(0, 255, (24, 8, 8, 3), dtype=np.uint8)
    first, y = np.moveaxis(last, -1, 1).copy(), np.arange(24) % 2
    given = [dict.fromkeys("ab", (x, y)) for x in (last, first)]
    runs = [fedbn.fit(each, "small_cnn", rounds=1) for each in given]
    assert runs[0].plan.federation.input_shape == (3, 8, 8)
    assert runs[0].records == runs[1].records
    assert np.array_equal(runs[0].predict_proba(last, "a"), runs[0].predict_proba(first, "a"))
    tensors = federation_of({name: (torch.from_numpy(last), y) for name in "ab"})
    assert tensors.input_shape == (8, 8, 3)  # torch's are first already, whatever they look like
    own = fedbn.fit(tensors, "mlp", rounds=1)
    assert len(own.predict(last, "a")) == 24


class Flipped(Made):
    """Every second read is mirrored, as torchvision's RandomHorizontalFlip does."""

    def __getitem__(self, index):
        x = torch.arange(64.0).reshape(1, 8, 8) + index
        return (x.flip(-1) if torch.rand(()) < 0.5 else x), index % 3


class Straight(Flipped):
    """The same samples without the random change."""

    def __getitem__(self, index):
        return torch.arange(64.0).reshape(1, 8, 8) + index, index % 3


def warned(data, **options):
    return [text for text in federation_of(data, **options).remarks if "random transforms" in text]


def test_one_dataset_with_random_transforms_is_warned_about_once():
    for augmented in (Flipped(), Made()):
        (said,) = warned({"a": augmented, "b": Made(noisy=False), "c": augmented})
        assert said.startswith("the Dataset of a, c gives different samples for one index")
        assert "(train, test)" in said


def test_plain_datasets_and_pairs_are_not_warned_about():
    plain = Made(noisy=False)
    assert warned({"a": plain, "b": Made(noisy=False)}) == []
    assert warned({"a": (Flipped(), plain), "b": (Flipped(), plain, plain)}) == []
    assert len(plain.reads) <= 40


def test_a_dataset_for_testing_with_random_transforms_is_warned_about():
    plain = Made(noisy=False)
    (said,) = warned({"a": (Flipped(), Flipped()), "b": (plain, plain)})
    assert said.startswith("the Dataset of a (test) gives different samples for one index")
    (said,) = warned({"a": (Flipped(), Flipped(), plain)})
    assert said.startswith("the Dataset of a (valid) gives")


def test_a_validation_part_of_a_dataset_with_random_transforms_is_warned_about():
    def heard(share, *parts):
        found: list[str] = []
        data = {"a": parts, "b": (Straight(), Straight())}
        fedbn.fit(data, rounds=1, evaluation__validation=share, notes=found.append)
        return [text for text in found if "random transforms" in text]

    plain = Straight()
    (said,) = heard(0.2, Flipped(), plain)
    assert said.startswith("the training Dataset of a gives different samples for one index")
    assert "(train, valid, test)" in said
    assert heard(0.0, Flipped(), plain) == []
    assert heard(0.2, plain, plain) == []


def test_looking_for_random_transforms_leaves_global_generators_as_they_were():
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    federation_of({"a": Flipped(), "b": Made()})
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
