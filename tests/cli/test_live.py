"""The live view: what it draws in terminals of every size, and when it is not drawn at all."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from commanding import Terminal, call, write_sites
from fedbn.cli.federation_run import _numbers
from fedbn.cli.live_view import LiveView, Pen, Picture
from fedbn.cli.progress import Lines
from fedbn.cli.training import make_progress
from fedbn.experiments.jobs import Event
from scores import record

JOB = ("fedbn", "default", 0)


def screen(picture: Picture, width: int = 80, height: int = 24, encoding: str = "utf-8") -> str:
    """What a terminal of this size shows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=stream, force_terminal=True, width=width, height=height, record=True, color_system=None
    )
    console.print(picture)
    return console.export_text()


def heard(*events: Event) -> Picture:
    picture = Picture()
    for event in events:
        picture.hear(event)
    return picture


def round_of(job: tuple[str, str, int], scores: dict[str, float], round: int = 1) -> Event:
    records = [record(value, client, method=job[0]) for client, value in scores.items()]
    records += [{**one, "value": 1.0, "statistics": "exact"} for one in records]  # not shown
    return Event("round", job, round, 4, records=records)


def test_the_line_of_a_federation_s_round_has_running_statistics_alone() -> None:
    assert _numbers(round_of(JOB, {"a": 0.5, "b": 0.25})) == (
        "a 50.0 % after round 1, b 25.0 % after round 1"
    )


def test_before_the_run_begins() -> None:
    assert screen(Picture()) == "checking data and model ...\n"


def test_a_bar_over_all_a_line_a_job_and_a_bar_a_client() -> None:
    picture = heard(Event("begin", JOB, 1, 8), round_of(JOB, {"a": 0.5, "b": 0.25}, 3))
    whole, job, head, a, b, mean = screen(picture).splitlines()
    assert whole.startswith("██████··················  25 %  0:00, ")  # 2 of 8 rounds
    assert job.split() == ["fedbn", "seed", "0", "███████▌··", "round", "3/4", "37.5", "%"]
    assert head.split() == ["fedbn"]
    assert a.split() == ["a", "█████·····", "50.0"]
    assert b.split() == ["b", "██▌·······", "25.0"]
    assert mean.split() == ["mean", "███▊······", "37.5"]


def test_methods_stand_side_by_side_and_keep_their_places() -> None:
    other = ("fedavg", "default", 0)
    first, second = round_of(JOB, {"a": 0.5}), round_of(other, {"a": 0.1})
    picture = heard(Event("begin", JOB, 0, 8), first, second, first)
    head = next(
        line for line in screen(picture).splitlines() if "round" not in line and "fed" in line
    )
    assert head.split() == ["fedbn", "fedavg"]


def test_a_job_that_is_done_makes_room() -> None:
    other = ("fedavg", "default", 0)
    picture = heard(
        Event("begin", JOB, 0, 8),
        round_of(JOB, {"a": 0.5}, 4),
        Event("done", JOB, 4, 4),
        round_of(other, {"a": 0.1}),
    )
    text = screen(picture)
    assert "fedbn seed 0" not in text
    assert "jobs: 1 finished" in text


def test_of_many_clients_the_best_and_the_worst() -> None:
    scores = {f"site {i}": i / 1000 for i in range(1000)}
    text = screen(heard(Event("begin", JOB, 0, 4), round_of(JOB, scores)))
    shown = [line.split()[1] for line in text.splitlines() if line.startswith("site ")]
    assert shown == ["999", "998", "997", "996", "995", "4", "3", "2", "1", "0"]
    assert "best and worst of 1000 clients" in text
    assert text.splitlines()[-1].split()[-1] == "50.0"  # 49.95


def test_of_many_jobs_the_latest() -> None:
    jobs = [("fedbn", "default", seed) for seed in range(40)]
    picture = heard(Event("begin", JOB, 0, 160), *(round_of(job, {"a": 0.5}) for job in jobs))
    text = screen(picture)
    assert text.count("round 1/4") == 6
    assert "fedbn seed 39" in text
    assert "34 more running" in text


@pytest.mark.parametrize("width", [1, 8, 20, 40, 80, 300])
@pytest.mark.parametrize("height", [1, 5, 24])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(
    width: int, height: int, encoding: str
) -> None:
    names = ["plain", "[red]x", "病院" * 20, "a\nb\x1b[31m", "é" * 50, *map(str, range(50))]
    scores = dict.fromkeys(names, 0.5)
    jobs = [(f"fed{i}+prox(0.1)", "local_epochs=4", 0) for i in range(9)]
    picture = heard(Event("begin", JOB, 0, 90), *(round_of(job, scores) for job in jobs))
    lines = screen(picture, width, height, encoding).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= max(height, 4)
    assert "\x1b" not in "".join(lines)
    assert encoding != "ascii" or "".join(lines).isascii()


def test_a_round_without_scores_keeps_the_last_ones() -> None:
    unscored = Event("round", JOB, 3, 4, records=[])
    picture = heard(Event("begin", JOB, 0, 4), round_of(JOB, {"a": 0.0}, 2), unscored)
    text = screen(picture)
    assert "round 3/4  0.0 %" in text
    assert text.splitlines()[3].split() == ["a", "··········", "0.0"]


def test_what_patience_left_out_is_not_waited_for() -> None:
    over = Event("done", JOB, 3, 3)  # of 300
    picture = heard(
        Event("begin", JOB, 0, 300), *(Event("round", JOB, n, 300) for n in (1, 2, 3)), over
    )
    assert "100 %" in screen(picture)


def test_pooled_data_is_shown_by_domain() -> None:
    numbers = [record(0.5, "all", domain=d) for d in ("x", "y")]
    picture = heard(Event("begin", JOB, 0, 4), Event("round", JOB, 1, 4, records=numbers))
    assert [line.split()[0] for line in screen(picture).splitlines()[3:]] == ["x", "y", "mean"]


@pytest.mark.parametrize(
    ("share", "drawn"), [(0, "····"), (0.5, "██··"), (0.6, "██▍·"), (2, "████")]
)
def test_bars_have_eighths(share: float, drawn: str) -> None:
    assert Pen(80, ascii_only=False).bar(share, 4) == drawn


def test_remarks_scroll_by_above_and_one_line_stays() -> None:
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=60, color_system=None))
    view(Event("begin", JOB, 0, 1))
    view(Event("note", JOB, text="[bold]odd\n"))
    view(round_of(JOB, {"a": 0.5}))
    view.close()
    text = stream.getvalue()
    assert "fedbn seed 0: [bold]odd\\n" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.rstrip("\x1b[?25h\n").endswith("100 %  0:00")


@pytest.mark.parametrize(
    ("tty", "term", "live"), [(False, "xterm", False), (True, "dumb", False), (True, "xterm", True)]
)
def test_who_gets_it(tty: bool, term: str, live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr", Terminal() if tty else io.StringIO())
    made = make_progress()
    made.close()
    assert isinstance(made, Lines) is not live


def test_a_pipe_gets_the_table_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error is a terminal, standard output is not; the model prints while it trains."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("commanding.redirect_stdout", _piped)
    (tmp_path / "talks.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, classes, input_shape):\n"
        "        super().__init__()\n"
        "        self.norm = torch.nn.BatchNorm1d(input_shape[0])\n"
        "        self.last = torch.nn.Linear(input_shape[0], classes)\n"
        "    def forward(self, x):\n"
        "        print('said')\n"
        "        return self.last(self.norm(x))\n"
    )
    data = write_sites(tmp_path / "sites")
    asked = ("--model", "talks:Net", "--rounds", 1, "--seed", 0, "--method", "fedbn", "--out", "o")
    answer = call("run", "--data", data, *asked, cwd=tmp_path, tty=True)
    assert answer.code == 0, answer.err
    printed = _PIPE[-1].getvalue()
    head, running, batch, *sentences = printed.splitlines()
    assert head.startswith("test accuracy, %")
    assert running.startswith("fedbn ")
    assert batch.startswith("fedbn, batch statistics ")
    assert all("statistics" in sentence for sentence in sentences)
    assert "\x1b" not in printed
    assert "said" not in printed
    assert "said" in answer.err


_PIPE: list[io.StringIO] = []


def _piped(_: io.StringIO) -> object:
    from contextlib import redirect_stdout

    _PIPE.append(io.StringIO())
    return redirect_stdout(_PIPE[-1])
