"""The app that `flwr run` loads: which site a node is, and what it says when it is none."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, Bench
from flwr.app import Context, Message, RecordDict

from fedbn.experiments.configuration import checked
from fedbn.flower import messages, server_app
from fedbn.flower.site_app import make_app


def said(node: dict, run: dict) -> RecordDict:
    (order,) = server_app.orders(checked(RAW), "flwr")
    message = Message(messages.put(order), 100, "query", ttl=60, group_id="hello")
    message.metadata.__dict__["_message_id"] = "message"
    context = Context(run_id=1, node_id=100, node_config=node, state=RecordDict(), run_config=run)
    return make_app()(message, context).content


def test_a_node_is_the_site_that_its_configuration_names(bench: Bench) -> None:
    hello = messages.get(said({"site": "photo", "data": "digits_mini"}, {}), messages.Hello)
    assert hello.member.name == "photo"


def test_a_node_of_a_simulation_is_a_client_by_its_number(bench: Bench) -> None:
    node = {"partition-id": 1, "num-partitions": 2}
    hello = messages.get(said(node, {"data": "digits_mini"}), messages.Hello)
    assert hello.member.name == "inverted"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({}, "node configuration: `site` is missing"),
        ({"site": "nyu"}, "unknown site 'nyu'"),
        ({"site": "nyu", "data": "no_such"}, "unknown data set 'no_such'"),
        ({"partition-id": 9}, "digits_mini has 5 clients, so num-supernodes may be at most 5"),
    ],
)
def test_a_node_that_is_no_site_says_why(bench: Bench, node: dict, reason: str) -> None:
    with pytest.raises(messages.Unreadable, match=reason):
        messages.get(said(node, {}), messages.Hello)
