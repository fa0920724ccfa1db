"""A server learns little by asking: answers are counted, and numbers leave a site rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid, few
from flwr.app import Array, ArrayRecord, Message, RecordDict
from safetensors.torch import load, save

from fedbn.core.federation import Split
from fedbn.core.metric import ACCURACY
from fedbn.errors import DamagedRun, FedbnError, Interrupted
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.experiments.planner import Planner
from fedbn.flower import audit_log, credentials, messages, server_app, site_job
from fedbn.flower.audit_log import log_of
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.membership import Expected
from fedbn.flower.messages import KEY, SHARED, Answer, Order
from fedbn.flower.policy import OPEN, Forbidden, Policy
from fedbn.flower.query_budget import QueryBudget, Question, rounded, samples_behind
from fedbn.flower.server_app import Service, own_log, serve
from fedbn.flower.site import Site, reply
from fedbn.runs.folder import RunFolder
from fedbn.tasks.metrics import METRICS

DEFAULT = Policy(approval=False)  # the shipped policy, where nobody is there to approve
LONG = {**RAW, "training": {"rounds": 3, "local_steps": 3}}


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: no power is cut here."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def default_grid(bench: Bench, policy: Policy = DEFAULT) -> FakeGrid:
    return FakeGrid([bench.site(name, policy=policy) for name in SITES])


def sent(grid: FakeGrid, kind: str, round: int, site: str = "photo") -> tuple[RecordDict, Order]:
    """The order that a site got, and what it says."""
    for name, message, _ in grid.log:
        if name == site and SHARED in message.content:
            order = messages.get(message.content, Order, SHARED)
            if (order.kind, order.round) == (kind, round):
                return message.content, order
    raise AssertionError(f"no order to {kind} round {round}")


def crafted(content: RecordDict, order: Order, number: float) -> RecordDict:
    """The same order with a state of the server's choice."""
    state = load(content[SHARED][KEY].data)
    changed = {name: value + number * value.is_floating_point() for name, value in state.items()}
    data = save(changed)
    record = ArrayRecord({KEY: Array("uint8", (len(data),), "safetensors", data)})
    return messages.put(order, **{SHARED: record})


def attempts(site: Site, contents: Iterator[RecordDict]) -> tuple[int, set[str]]:
    """How many orders were answered, and why the others were not."""
    answered, reasons = 0, set()
    for content in contents:
        try:
            site.answer(content, RecordDict())
            answered += 1
        except FedbnError as error:
            reasons.add(str(error))
    return answered, reasons


def alike(one: RecordDict, other: RecordDict) -> bool:
    """Whether two answers are the same to the last bit."""
    return {name: dict(record) for name, record in one.config_records.items()} == {
        name: dict(record) for name, record in other.config_records.items()
    } and {n: r[KEY].data for n, r in one.array_records.items()} == {
        n: r[KEY].data for n, r in other.array_records.items()
    }


@pytest.mark.parametrize(
    ("kind", "round", "count"), [("score", 2, 84), ("train", 2, 40), ("score", 1, 84)]
)
def test_crafted_states_for_a_round_that_was_answered_are_refused(
    bench: Bench, kind: str, round: int, count: int
) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "train" if round == 2 and kind == "train" else "score", 2)
    order = order.model_copy(update={"kind": kind, "round": round})
    if round == 1:  # this state was answered with an order to train round 2
        order = order.model_copy(update={"since": 1, "last": False})
    many = (crafted(content, order, 0.01 * n) for n in range(1, count + 1))
    answered, reasons = attempts(bench.site("photo", policy=DEFAULT), many)
    assert answered == 0
    assert all("the site's policy allows one state per round and run" in r for r in reasons)


def test_without_a_budget_every_crafted_state_is_answered(bench: Bench) -> None:
    """That is the attack."""
    grid = bench.grid()
    bench.run(grid)
    content, order = sent(grid, "score", 2)
    many = (crafted(content, order, 0.01 * n) for n in range(1, 9))
    assert attempts(bench.site("photo", policy=OPEN), many) == (8, set())


def test_other_states_are_answered_a_few_times_and_only_after_a_resume(bench: Bench) -> None:
    policy = DEFAULT.model_copy(update={"max_changed_states": 2})
    grid = default_grid(bench, policy)
    bench.run(grid)
    content, order = sent(grid, "score", 2)

    def resumed(times: int) -> Iterator[RecordDict]:
        for number in range(times):
            other = order.model_copy(update={"session": f"resume {number}"})
            yield crafted(content, other, 0.01 * (number + 1))

    answered, reasons = attempts(bench.site("photo", policy=policy), resumed(84))
    assert answered == 2
    (reason,) = reasons
    assert "forbids 3 changed states in a run (max_changed_states = 2)" in reason
    twice = (crafted(content, order, number) for number in (0.5, 0.6))
    assert attempts(bench.site("photo", policy=policy), twice)[0] == 0


def test_a_repeated_order_gets_the_stored_answer_and_costs_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = DEFAULT.model_copy(update={"max_answers_per_run": 3})
    grid = default_grid(bench, policy)
    bench.run(grid)

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(site_job, "train_client", never)
    monkeypatch.setattr(site_job, "score_client", never)
    answers = [(m.content, a.content) for s, m, a in grid.log if s == "photo"]
    for content, answer in answers[-2:]:  # training round 2, and the last scores
        order = messages.get(content, Order, SHARED)
        same = order.model_copy(update={"log": "0" * 64, "session": "resumed", "best": 1})
        for repeated in (content, messages.put(same, **{SHARED: content[SHARED]})):
            for _ in range(3):
                site = bench.site("photo", policy=policy)  # as after a restart
                assert alike(site.answer(repeated, RecordDict()), answer)


@pytest.mark.parametrize("done", [1, 2])
def test_a_run_that_was_stopped_gives_the_same_bits_within_the_budget(
    bench: Bench, done: int
) -> None:
    """A whole run needs four answers of a site."""
    policy = DEFAULT.model_copy(update={"max_answers_per_run": 4, "max_changed_states": 0})
    whole = bench.run(default_grid(bench, policy), LONG, "whole").metrics.read_text()
    with pytest.raises(Interrupted):
        bench.run(default_grid(bench, policy), LONG, "halved", stop_after=done)
    assert bench.run(default_grid(bench, policy), LONG, "halved").metrics.read_text() == whole


class KilledError(Exception):
    """In the place of a kill."""


def test_a_server_that_is_killed_in_a_round_repeats_it_at_no_cost(bench: Bench) -> None:
    policy = DEFAULT.model_copy(update={"max_answers_per_run": 4, "max_changed_states": 0})
    whole = bench.run(default_grid(bench, policy), LONG, "whole").metrics.read_text()
    grid = default_grid(bench, policy)

    def kill(site: str, answer):
        if site == "photo" and SHARED in answer.content and len(grid.log) >= 6:
            raise KilledError
        return answer

    grid.tamper = kill
    with pytest.raises(KilledError):
        bench.run(grid, LONG, "killed")
    assert bench.run(default_grid(bench, policy), LONG, "killed").metrics.read_text() == whole


@pytest.mark.parametrize("where", ["_write_answer", "charge"])
def test_a_site_that_is_killed_before_its_answer_computes_it_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    policy = DEFAULT.model_copy(update={"max_answers_per_run": 3})
    grid = default_grid(bench, policy)
    bench.run(grid)
    before = [a.content for s, _, a in grid.log if s == "photo" and SHARED in a.content]
    asked = [m.content for s, m, _ in grid.log if s == "photo" and SHARED in m.content]
    bench.root = bench.root / "again"
    for content, answer in zip(asked, before, strict=False):
        real = getattr(QueryBudget, where)

        def killed(self: QueryBudget, *given: object, real: Callable = real) -> None:
            if where == "charge":
                real(self, *given)
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(QueryBudget, where, killed)
            site = bench.site("photo", policy=policy)
            with pytest.raises(KilledError):
                site.answer(content, RecordDict())
        again = bench.site("photo", policy=policy).answer(content, RecordDict())
        assert load(again[SHARED][KEY].data).keys() == load(answer[SHARED][KEY].data).keys()
        for name, value in load(answer[SHARED][KEY].data).items():
            assert torch.equal(load(again[SHARED][KEY].data)[name], value)


def test_neither_a_new_run_name_nor_another_seed_adds_to_a_days_answers(bench: Bench) -> None:
    policy = DEFAULT.model_copy(update={"max_answers_per_day": 5})
    grid = default_grid(bench, policy)
    bench.run(grid)  # three answers
    content, order = sent(grid, "train", 1)
    names = (order.model_copy(update={"run": f"other-{n}"}) for n in range(10))
    many = (messages.put(other, **{SHARED: content[SHARED]}) for other in names)
    answered, reasons = attempts(bench.site("photo", policy=policy), many)
    assert answered == 2
    assert reasons == {"the site's policy forbids 6 answers (max_answers_per_day = 5)"}


@pytest.mark.parametrize("change", [{"run": "RUN"}, {"run": "Run", "seed": 1}, {"seed": 1}])
def test_other_letters_and_other_jobs_share_the_budget_of_the_run(
    bench: Bench, change: dict
) -> None:
    policy = DEFAULT.model_copy(update={"max_answers_per_run": 3})
    grid = default_grid(bench, policy)
    bench.run(grid)
    content, order = sent(grid, "train", 1)
    other = order.model_copy(update={"scores": True, **change})
    site = bench.site("photo", policy=policy)
    desk = site._desk(other, site._job(other))
    state = messages.from_record(content[SHARED], desk._initial.shared.layout)
    question = replace(Question.of(other, site._job(other), state), session="resumed")
    with pytest.raises(Forbidden, match=r"forbids 4 answers \(max_answers_per_run = 3\)"):
        site.options.budget.charge(question)


def test_another_setting_text_is_no_other_run(bench: Bench) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "score", 2)
    named = (order.model_copy(update={"setting": f"lr={n}", "since": 0}) for n in range(10))
    many = (crafted(content, other, 0.1) for other in named)
    answered, reasons = attempts(bench.site("photo", policy=DEFAULT), many)
    assert answered == 0
    assert all("allows one state per round and run" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("checkpoint", "every", 7),
        ("training", "schedule_args", {}),
        ("evaluation", "every", 1),
        ("workers", None, 3),
        ("seeds", None, [0, 1]),
    ],
)
def test_other_words_for_an_experiment_are_no_other_experiment(
    bench: Bench, section: str, key: str | None, value: object
) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "score", 2)
    raw = order.experiment
    changed = {**raw.get(section, {}), key: value} if key else value
    site = bench.site("photo", policy=DEFAULT)
    for update in ({}, {"setting": "another", "since": 0}):
        if section == "seeds" and not update:
            continue  # another configuration of the run's folder, which is refused as such
        update = {**update, "experiment": {**raw, section: changed}}
        asked = crafted(content, order.model_copy(update=update), 0.1)
        with pytest.raises(Forbidden, match="allows one state per round and run"):
            site.answer(asked, RecordDict())


def test_an_order_whose_error_tells_of_the_data_costs_an_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "score", 2)
    order = order.model_copy(update={"run": "new", "since": 0, "joined": 2, "session": "one"})
    site = bench.site("photo", policy=DEFAULT)

    def fails(*_: object) -> None:
        raise FedbnError("the statistics have NaN")

    monkeypatch.setattr(site_job, "measured", fails)
    for number in (0.1, 0.2):
        reason = "have NaN" if number == 0.1 else "allows one state per round"
        with pytest.raises(FedbnError, match=reason):
            site.answer(crafted(content, order, number), RecordDict())


@pytest.mark.parametrize("round", [0, -1, -1000])
@pytest.mark.parametrize("kind", ["train", "score"])
def test_a_round_that_does_not_exist_is_refused(bench: Bench, kind: str, round: int) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "score", 2)
    other = order.model_copy(update={"kind": kind, "round": round, "run": "new", "since": 0})
    with pytest.raises(
        Forbidden, match=r"does not exist|the first one is round 1|the first state is not the one"
    ):
        bench.site("photo", policy=DEFAULT).answer(crafted(content, other, 0.1), RecordDict())


def test_a_run_that_needs_more_answers_is_refused_before_it_begins(bench: Bench) -> None:
    policy = DEFAULT.model_copy(update={"max_answers_per_run": 11})
    raw = {**RAW, "methods": ["fedbn", "fedavg"], "seeds": [0, 1]}  # 4 jobs of 2 rounds
    with pytest.raises(FedbnError, match=r"a run of 12 answers \(max_answers_per_run = 11\)"):
        bench.run(default_grid(bench, policy), raw)


def test_a_clock_that_is_set_back_starts_no_new_day(tmp_path: Path) -> None:
    policy = DEFAULT.model_copy(update={"max_answers_per_day": 1})
    days = iter(["2026-11-19", "2026-11-18", "2026-11-20"])
    budget = QueryBudget(tmp_path, policy, lambda: next(days))
    budget.charge(Question("run", "job", 1, "a", ""))
    with pytest.raises(Forbidden, match="max_answers_per_day = 1"):
        budget.charge(Question("run", "job", 2, "b", ""))
    budget.charge(Question("run", "job", 2, "b", ""))


@pytest.mark.parametrize("pattern", ["day.json", "run-*.json", "run-*/*.answer"])
@pytest.mark.parametrize("how", ["a flipped bit", "emptied", "missing"])
def test_a_damaged_budget_is_named_and_no_new_start(bench: Bench, pattern: str, how: str) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "score", 2)
    folder = bench.root / "sites" / "photo" / ".query-budget"
    for file in sorted(folder.glob(pattern)):
        if how == "missing":
            file.unlink()
        else:
            damaged = bytearray(file.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            file.write_bytes(damaged if how == "a flipped bit" else b"")
    site = bench.site("photo", policy=DEFAULT)
    other = order.model_copy(update={"round": 1, "since": 1, "last": False, "session": "new"})
    asked = crafted(content, other, 0.1) if pattern == "day.json" else content
    with pytest.raises(DamagedRun, match=pattern.rpartition("/")[2].replace("*", r"\w*-?\w*")):
        site.answer(asked, RecordDict())


@pytest.mark.parametrize("change", ["state", "seed"])
def test_the_first_state_must_be_that_of_the_approved_seed(bench: Bench, change: str) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "train", 1)
    if change == "seed":
        experiment = {**order.experiment, "seeds": [7]}
        order = order.model_copy(update={"seed": 7, "experiment": experiment})
    bench.root = bench.root / "elsewhere"
    asked = crafted(content, order, 1e-6 if change == "state" else 0.0)
    with pytest.raises(Forbidden, match="the first state is not the one that the approved seed"):
        bench.site("photo", policy=DEFAULT).answer(asked, RecordDict())


def test_the_first_state_must_be_that_of_the_approved_weights(bench: Bench, tmp_path: Path) -> None:
    raw = {**RAW, "seeds": [3]}
    plan = Planner(federation=few()).plan(jobs(checked(raw))[0])
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(save(plan.initial_model.state_dict()))
    raw = {**RAW, "model": {"name": "small_cnn", "weights": str(weights)}}
    grid = FakeGrid([bench.site(name, policy=DEFAULT, weights=weights) for name in SITES])
    bench.run(grid, raw)
    assert len([a for _, _, a in grid.log if SHARED in a.content]) == 4
    content, order = sent(grid, "train", 1)
    bench.root = bench.root / "elsewhere"
    site = bench.site("photo", policy=DEFAULT, weights=weights)
    with pytest.raises(Forbidden, match="not the one that the approved weights give"):
        site.answer(crafted(content, order, 1e-6), RecordDict())


def site_home(root: Path, name: str) -> Path:
    home = root / name
    home.mkdir(parents=True)
    (home / "site.key").write_bytes(credentials.ssh_private_bytes(credentials.make_key()))
    return home


def test_both_logs_show_every_resume_and_the_hash_of_every_state(
    bench: Bench, tmp_path: Path
) -> None:
    fed = FederationFolder(tmp_path / "fed")
    fed.create("test", SITES, "127.0.0.1")
    homes = {name: site_home(tmp_path / "homes", name) for name in SITES}
    expected = Expected(SITES, {name.encode(): name for name in SITES}, len(SITES))
    folder, ended, logs = RunFolder(tmp_path / "run"), [], []
    folder.path.mkdir()
    for stop in (lambda: bool(ended), lambda: False):
        grid = FakeGrid(
            bench.site(name, policy=DEFAULT, log=log_of(home)) for name, home in homes.items()
        )
        hear = lambda event: ended.append(1) if event.kind == "round" else None  # noqa: E731
        log = own_log(fed)
        service = Service("fed", lambda: expected, folder, hear, bench.limits, stop, log)
        if ended:
            serve(grid, checked(RAW), service)
        else:
            with pytest.raises(Interrupted):
                serve(grid, checked(RAW), service)
        logs += grid.log
    here = list(audit_log.read(fed.path / "log.jsonl"))
    there = list(audit_log.read(homes["photo"] / "log.jsonl"))
    (resumed,) = [e for e in here if e["event"] == "resumed"]
    (heard,) = [e for e in there if e["event"] == "resumed"]
    assert resumed["session"] == heard["session"]
    assert resumed["round"] == 1
    asked = [e["session"] for e in here if e["event"] == "asked" and e["site"] == "photo"]
    answered = [e["session"] for e in there if e["event"] == "answered" and "session" in e]
    assert asked == answered
    assert len(set(asked)) == 2
    states = [e["state"] for e in there if e.get("asked") in ("train", "score") and "state" in e]
    wanted = [
        e["sent"]["arrays"]["shared"]["sha256"]
        for e in here
        if e["event"] == "asked" and e["site"] == "photo"
    ]
    assert states == wanted
    assert len(states) == 3


def test_a_refused_state_is_in_the_sites_log_by_its_hash(bench: Bench, tmp_path: Path) -> None:
    grid = default_grid(bench)
    bench.run(grid)
    content, order = sent(grid, "score", 2)
    home = site_home(tmp_path, "photo")
    site = bench.site("photo", policy=DEFAULT, log=log_of(home))
    asked = crafted(content, order, 0.1)
    message = Message(asked, 101, "query", group_id="g")
    message.metadata.__dict__["_message_id"] = "one"
    reply(site, message, RecordDict())
    (said,) = audit_log.read(home / "log.jsonl")
    assert said["event"] == "refused"
    assert said["state"] == messages.what_is_in(asked)["arrays"]["shared"]["sha256"]


# Rounding


def answers_of(grid: FakeGrid, site: str = "photo") -> list[Answer]:
    found = [a.content for s, _, a in grid.log if s == site and "answer" in a.content]
    return [messages.get(c, Answer, *([SHARED] if SHARED in c else [])) for c in found]


def test_scores_leave_in_steps_and_losses_with_two_digits(bench: Bench) -> None:
    """Each site has 64 training samples and 32 test samples: 8 and 5 steps."""
    grid = default_grid(bench)
    bench.run(grid)
    scores = [score for answer in answers_of(grid) for score in answer.scores]
    assert {(s.split, s.metric) for s in scores} == {("train", "accuracy"), ("test", "accuracy")}
    for score in scores:
        steps = 8 if score.split == "train" else 5
        assert score.value == pytest.approx(round(score.value * steps) / steps, abs=1e-11)
    losses = [answer.loss for answer in answers_of(grid) if answer.loss is not None]
    assert len(losses) == 2
    assert all(loss == float(f"{loss:.1e}") for loss in losses)
    exact = bench.grid()
    bench.run(exact, name="exact")
    assert {s.metric for a in answers_of(exact) for s in a.scores} == {"accuracy", "loss"}
    assert [a.loss for a in answers_of(exact) if a.loss is not None] != losses


def test_what_the_site_itself_records_stays_exact(bench: Bench) -> None:
    files = []
    for name, policy in (("rounded", DEFAULT), ("exact", OPEN)):
        bench.root = bench.root / name
        bench.run(default_grid(bench, policy))
        files.append((bench.root / "sites" / "photo" / "run" / "metrics.jsonl").read_text())
    assert files[0] == files[1]


def test_a_number_about_too_few_samples_stays_at_the_site(bench: Bench) -> None:
    policy = DEFAULT.model_copy(update={"min_test_samples": 33})  # there are 32 test samples
    grid = default_grid(bench, policy)
    bench.run(grid)
    assert {s.split for a in answers_of(grid) for s in a.scores} == {"train"}
    assert all(a.loss is None or a.loss > 0 for a in answers_of(grid))


def neighbours(samples: int) -> list[int]:
    """The counts of right answers at which one patient more is seen in the rounded accuracy."""
    values = [rounded(k / samples, samples, ACCURACY) for k in range(samples + 1)]
    return [k for k in range(samples) if values[k] != values[k + 1]]


@pytest.mark.parametrize("samples", [DEFAULT.min_test_samples, 16, 32, 100, 1000])
def test_most_pairs_of_answers_do_not_tell_one_patients_outcome(samples: int) -> None:
    """Exact scores differ in every pair; rounded ones in about one of ⌊√n⌋."""
    assert len(neighbours(samples)) == math.isqrt(samples)
    assert len(neighbours(samples)) / samples <= 1 / math.sqrt(samples)


def outcomes(samples: int) -> torch.Tensor:
    """Six patients of ten are ill."""
    return (torch.arange(samples) * 7 % 10 < 6).long()


def test_the_difference_of_two_crafted_scores_tells_no_outcome_at_the_default_minimum() -> None:
    """The published attack: predict "ill" for all, then for all but one patient."""
    samples = DEFAULT.min_test_samples
    outcome = outcomes(samples)
    told = {"exact": 0, "rounded": 0}
    for patient in range(samples):
        ill = torch.ones(samples).long()
        but_one = ill.clone()
        but_one[patient] = 0
        right = [float((said == outcome).double().mean()) for said in (ill, but_one)]
        told["exact"] += right[0] != right[1]
        told["rounded"] += len({rounded(value, samples, ACCURACY) for value in right}) == 2
    assert told == {"exact": samples, "rounded": 0}


@pytest.mark.parametrize("name", ["balanced_accuracy", "macro_f1", "auroc"])
def test_a_mean_over_classes_counts_the_smallest_class(name: str) -> None:
    """One sample of a class of two moves the mean of two classes by a quarter."""
    labels = torch.tensor([0] * 30 + [1] * 2)
    data = Split(torch.zeros(32, 1), labels)
    assert samples_behind(name, METRICS[name], data) == 2
    assert samples_behind("accuracy", ACCURACY, data) == 32
    several = Split(torch.zeros(32, 1), torch.stack([labels, 1 - labels], dim=1))
    assert samples_behind(name, METRICS[name], several) == 2


def test_a_score_of_groups_counts_groups() -> None:
    groups = torch.arange(32) // 8
    data = replace(Split(torch.zeros(32, 1), torch.zeros(32).long()), groups=groups)
    assert samples_behind("group_accuracy", ACCURACY, data) == 4


@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_errors_in_units_leave_with_two_digits_at_most(name: str) -> None:
    values = [rounded(v, 10**6, METRICS[name]) for v in (1234.567, 0.0012345, 99.99, 0.0)]
    assert values == [1200.0, 0.0012, 100.0, 0.0]


def test_shares_beyond_the_digits_of_a_grid_stay_shares() -> None:
    for metric in METRICS.values():
        if metric.most <= 1:
            values = [rounded(k / 1000, 1000, metric) for k in range(1001)]
            assert values == sorted(values)
            assert (values[0], values[-1]) == (0.0, 1.0)
            assert len(set(values)) == math.isqrt(1000) + 1


def test_the_survey_before_a_run_costs_nothing(bench: Bench) -> None:
    question = messages.put(server_app.orders(checked(RAW), "fed")[0])
    for _ in range(3):
        bench.site("photo", policy=DEFAULT).answer(question, RecordDict())
    assert not (bench.root / "sites" / "photo" / ".query-budget").exists()
