"""What Flower does not promise, at a site: its SuperNode as a process, and work on its messages.

Flower would start a process a message, which imports everything and reads the data each time, and
would run code that came over the network. Here messages are answered in this process, one at a
time, by the installed fedbn alone.

Flower waits seconds where a loopback or a hospital's network needs milliseconds (`quicken`): 3 s
when a node has no message, 0.5 s while one is worked on, and a second or more when a message's
content is not there yet, which it never is at once.

Child processes are started with a clean environment, watched, and ended with their parent.
"""

from __future__ import annotations

import datetime
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.common.constant import (
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
    SubStatus,
)
from flwr.common.serde import context_to_proto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore import heartbeat
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TaskType,
)
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from fedbn.errors import FedbnError

# How far a site's clock may be behind the server's and ahead of it, in seconds.
CLOCK_BEHIND, CLOCK_AHEAD = TIMESTAMP_TOLERANCE, SYSTEM_TIME_TOLERANCE
NODE_UNAVAILABLE = ErrorCode.NODE_UNAVAILABLE
MESSAGE_UNAVAILABLE = ErrorCode.MESSAGE_UNAVAILABLE
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def runtime_client(address: str, ca: bytes | None, secret: bytes) -> RuntimeHttpClient:
    """Make a client that may take tasks."""
    secure_clients()
    return RuntimeHttpClient.from_server_address(
        address,
        insecure=ca is None,
        root_certificates=ca,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE),
        ],
    )


# The server answers this path to keys that it has admitted, and does nothing else.
ADMITTED_PATH = "/v1/fedbn/admitted"


def signed_headers(key: Any) -> dict[str, str]:
    """Return the headers by which the server knows the owner of a private key."""
    stamp = datetime.datetime.now(datetime.UTC).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode())).decode(),
    }


_GRACE = 10.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def environment(home: Path) -> dict[str, str]:
    """Flower's settings: no telemetry, no update checks, nothing installed, its files at home."""
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **quiet, "PATH": path}


class Child:
    """A Python module running as a process of its own; its output goes to a file."""

    def __init__(self, module: str, arguments: Sequence[str], home: Path, log: Path):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as output:
            self._offset = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(home),
                start_new_session=True,  # the terminal's Ctrl-C goes to the parent alone
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Ask it to end, without waiting."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """Ask it to end, then end it."""
        self.ask_to_end()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """What it wrote."""
        with self.log.open("rb") as stream:
            stream.seek(self._offset)
            return stream.read().decode(errors="replace")


def follow(parent: int) -> None:
    """End this process when the one that started it is gone, however that one ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def wait_until(ready: Callable[[], bool], child: Child, seconds: float, what: str) -> None:
    """Wait for a child to be ready, as long as it lives."""
    begun = time.monotonic()
    while not ready():
        if child.status() is not None:
            raise FedbnError(f"{what} ended: {last_words(child.said())} (all of it: {child.log})")
        if time.monotonic() - begun > seconds:
            raise FedbnError(f"{what} is not ready after {seconds:g} s (see {child.log})")
        time.sleep(0.05)


def last_words(text: str) -> str:
    """The most telling line of a log: the last that names an error, or the last one."""
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "failed" in line.lower()]
    return (telling or lines or ["it said nothing"])[-1][:300]


def listens(host: str, port: int) -> bool:
    """Tell whether something listens at a port."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Find a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


log = logging.getLogger("fedbn")
_POLL = 0.05
_TRIES = 3


def work(
    answer: Callable[[Message, RecordDict], Message],
    address: str,
    secret: bytes,
    alive: Callable[[], bool],
    answered: Callable[[Message], None] = lambda message: None,
) -> None:
    """Answer messages for as long as the node lives, or until it must be started again.

    `answer` is given a message and Flower's memory of the site; `secret` lets this process, and no
    other, take the node's messages; `answered` is told of each that was answered.
    """
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with runtime_client(address, None, secret) as client:
        while alive():
            try:
                task = client.AcquireTask(request)
            except httpx.HTTPError:
                time.sleep(_POLL)
                continue
            if not (task.HasField("task") and task.token):
                time.sleep(_POLL)
            else:
                message, heard = _do(answer, address, str(task.token))
                if message is not None:
                    answered(message)
                if message is None or not heard:  # it would wait for an answer, and take no other
                    return


def _do(
    answer: Callable[[Message, RecordDict], Message], address: str, token: str
) -> tuple[Message | None, bool]:
    """Do one message; give it, None where it was not answered, and whether the node heard so."""
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
    done, end = None, PushTaskOutputRequest(sub_status=SubStatus.FAILED)
    try:
        beat.start()
        message, context, _, _ = pull_task_input(client)
        push_message(client, answer(message, context.state), context)
        done = message
        end = PushTaskOutputRequest(
            context=context_to_proto(context), sub_status=SubStatus.COMPLETED
        )
    except Exception as error:  # the node is started again, and the server asks it again
        log.warning("a message was not answered: %s", error)
    finally:
        heard = _told(client, end)
        if beat.is_running:
            beat.stop()
        client.close()
    return done, heard


def _told(client: RuntimeHttpClient, end: PushTaskOutputRequest) -> bool:
    """Tell the node of a message's end, more than once where the machine is too busy to hear."""
    for _ in range(_TRIES):
        try:
            client.PushTaskOutput(end)
            return True
        except httpx.HTTPError as error:
            log.warning("Flower's node did not hear of a message's end: %s", error)
            time.sleep(_POLL)
    return False


def _beats(client: RuntimeHttpClient) -> bool:
    """Give a sign of life; that the server gave the message up must not stop the site."""
    with suppress(httpx.HTTPError):
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True


_LONGEST_SLEEP = 0.1
_PULLING = {"initial_backoff": 0.02, "backoff_cap": 0.5, "max_tries_per_object": None}
# Seconds between signs of life, the least that Flower's server takes. After two of them a node that
# was killed may come back; before, the server thinks that it is still there.
_HEARTBEAT = 10


def secure_clients() -> None:
    """Let Flower's clients in this process use TLS 1.3 only, and no proxy of the environment.

    Flower makes its clients itself and has no option for either.
    """
    if getattr(ProtobufClient.__init__, "secured", False):
        return
    made = ProtobufClient.__init__

    def init(
        self: ProtobufClient,
        base_url: str,
        *,
        verify: Any = True,
        timeout: float = 30.0,
        **rest: Any,
    ) -> None:
        if isinstance(verify, str):
            verify = ssl.create_default_context(cafile=verify)
        if isinstance(verify, ssl.SSLContext):
            verify.minimum_version = ssl.TLSVersion.TLSv1_3
        made(self, base_url, verify=verify, timeout=timeout, **rest)
        self._client.close()
        self._client = httpx.Client(verify=verify, timeout=timeout, trust_env=False)

    init.secured = True  # type: ignore[attr-defined]
    ProtobufClient.__init__ = init  # type: ignore[method-assign]


def quicken() -> None:
    """Let this process look for messages, and for their content, more often."""
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = getattr(getattr(inflatable_utils, name, None), "__kwdefaults__", None) or {}
        defaults.update({key: value for key, value in _PULLING.items() if key in defaults})
    for module in (fleet_http_connection, heartbeat):
        if hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL"):
            vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = _HEARTBEAT
    if hasattr(start_client_internal, "time"):
        start_client_internal.time = SimpleNamespace(
            sleep=lambda seconds: time.sleep(min(seconds, _LONGEST_SLEEP))
        )


def main(arguments: list[str]) -> None:
    """Run the node until ended, or until the parent is gone."""
    *flags, parent = arguments
    follow(int(parent))
    quicken()
    secure_clients()
    sys.argv = ["flower-supernode", *flags]
    code: object = 1
    try:
        flower_supernode()
        code = 0
    except SystemExit as error:
        code = error.code
    finally:
        # Threads of Flower may still wait for a network that is gone; the process must end, so
        # that a new one can take over.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
