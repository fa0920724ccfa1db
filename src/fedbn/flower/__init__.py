"""The deployment engine: the same method on Flower, when sites are separate machines.

What a method is, how a client trains and how a round is combined is the core's and the same for
every engine; here is what carries it between machines and what survives when one of them stops.

```
credentials federation_folder     what `federation init` makes: keys, certificates, one file a site
preflight                         what can be known before anything runs
messages messaging membership     what is said, letters and answers, who takes part
policy approvals                  what a site allows; which experiments a person there approved
query_budget                      how often a site answers, and how exact its numbers are
audit_log status_page             what auditors check, and what people watch
server_engine server_app          at the server: a round whose clients are sites, a whole run
site site_job site_app            at a site: BatchNorm on its own disk, training, the answers
client_mod                        FedBN in a Flower app of one's own: `keep_local`
internals_server internals_node   all that Flower does not promise, and nothing else has
```

Needs the extra `fedbn[flower]`; nothing outside this package imports `flwr`.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedbn.errors import ConfigError

if TYPE_CHECKING:
    from fedbn.flower.client_mod import keep_local as keep_local

TESTED = "1.41"  # the Flower whose inner parts the two files know


def require_flower() -> None:
    """Refuse to go on without Flower, or with another one, saying how to get the right one."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("this needs Flower: install it with `pip install 'fedbn[flower]'`")
    found = installed_flower()
    if not found.startswith(f"{TESTED}."):
        raise ConfigError(
            f"this needs Flower {TESTED}, Flower {found} is installed: "
            "`pip install 'fedbn[flower]'` brings the right one"
        )


def installed_flower() -> str:
    """The version of Flower that is installed."""
    return version("flwr")


def __getattr__(name: str) -> Any:
    """Import `keep_local` when it is first used: it needs Flower, and this file does not."""
    if name != "keep_local":
        raise AttributeError(f"module 'fedbn.flower' has no attribute {name!r}")
    if importlib.util.find_spec("flwr") is None:
        require_flower()
    from fedbn.flower.client_mod import keep_local

    return keep_local
