"""Flower's SuperLink as a process: TLS, node keys, and nobody but the operator may start runs.

Flower serves nodes, run control and server apps on one port. Its open edition lets anyone who
reaches that port start a run; here the operator's secret is asked for, by the interface that Flower
has for such checks.
"""

from __future__ import annotations

import hmac
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.auth.typing import AccountInfo
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.config_loader import SuperLinkLifespanConfig

from fedbn.engines.flower.folder import FederationFolder
from fedbn.engines.flower.processes import follow


class OperatorOnly(NoOpControlAuthnPlugin):
    """Admits requests that carry the operator's secret."""

    def __init__(self, secret: str):
        super().__init__()
        self._secret = secret

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        """Compare the token that came with a request."""
        given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
        if not hmac.compare_digest(given.encode(), self._secret.encode()):
            return False, None
        return super().validate_tokens_in_metadata(metadata)


def configuration(folder: FederationFolder, host: str) -> SuperLinkLifespanConfig:
    """Describe the SuperLink of a federation."""
    info = folder.read()
    files = (folder.ca, folder.certificate, folder.key)
    return SuperLinkLifespanConfig(
        control_address=f"127.0.0.1:{info.port}",
        health_server_address=None,
        host=host,
        port=info.port,
        insecure=False,
        certificates=(files[0].read_bytes(), files[1].read_bytes(), files[2].read_bytes()),
        superexec_auth_secret=folder.secret.read_bytes(),
        authn_plugin=OperatorOnly(folder.secret.read_text()),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type="grpc-rere",
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(folder.ca),
        ssl_certfile=str(folder.certificate),
        ssl_keyfile=str(folder.key),
        database=str(folder.database),
        isolation="process",  # server apps are `fedbn federation run`, with the secret
        runtime_dependency_install=False,
    )


def main(path: str, host: str, parent: str) -> None:
    """Serve until ended, or until the parent is gone."""
    follow(int(parent))
    # The package has a function of the module's name, which hides the module from `import`.
    command = importlib.import_module("flwr.superlink.cli.flower_superlink")
    command._run_superlink_http_api(configuration(FederationFolder(Path(path)), host))


if __name__ == "__main__":
    main(*sys.argv[1:4])
