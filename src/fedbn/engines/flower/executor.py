"""A site at work: takes messages from its own node, answers them in this process, one at a time.

Flower would start a process a message, which imports everything and reads the data each time, and
would run code that came over the network. Here only the installed fedbn runs, warm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedbn.engines.flower import wire
from fedbn.engines.flower.client_app import reply
from fedbn.engines.flower.control import runtime_client
from fedbn.engines.flower.site import Site

log = logging.getLogger("fedbn")
_POLL = 0.05


def work(
    site: Site,
    address: str,
    secret: bytes,
    alive: Callable[[], bool],
    heard: Callable[[wire.Order], None] = lambda order: None,
) -> None:
    """Answer messages for as long as the node lives.

    Args:
        site: What answers.
        address: The node's own interface, on the loopback.
        secret: Lets this process, and no other, take the node's messages.
        alive: Whether the node still runs.
        heard: Told of each order that was done.
    """
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with runtime_client(address, None, secret) as client:
        while alive():
            try:
                answer = client.AcquireTask(request)
            except httpx.HTTPError:
                time.sleep(_POLL)
                continue
            if answer.HasField("task") and answer.token:
                _do(site, address, str(answer.token), heard)
            else:
                time.sleep(_POLL)


def _do(site: Site, address: str, token: str, heard: Callable[[wire.Order], None]) -> None:
    """Do one message: pull, answer, push."""
    client = RuntimeHttpClient.from_server_address(
        address,
        insecure=True,  # the loopback of this machine; the way to the server has TLS
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
    )
    beat = HeartbeatSender(lambda: _beats(client))
    context, status = None, SubStatus.FAILED
    try:
        beat.start()
        message, context, _, _ = pull_task_input(client)
        push_message(client, reply(site, message, context.state), context)
        status = SubStatus.COMPLETED
        with suppress(wire.Unreadable):
            heard(wire.get(message.content, wire.Order, *message.content.array_records))
    except Exception as error:  # the message is lost, the site is not; the server asks again
        log.warning("a message was not answered: %s", error)
    finally:
        push_task_output(client, context, status, "")
        if beat.is_running:
            beat.stop()
        client.close()


def _beats(client: RuntimeHttpClient) -> bool:
    """Give a sign of life; that the server gave the message up must not stop the site."""
    with suppress(httpx.HTTPError):
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True
