"""The deployment engine: the same method on Flower, when sites are separate machines.

What a method is, how a client trains and how a round is combined is the core's and the same for
every engine; here is what carries it between machines and what survives when one of them stops.

```
folder certificates bundle        what `federation init` makes: keys, certificates, one file a site
reaching preflight survey         what can be known before anything runs
wire codec jobs                   what is said, and the shared part as bytes
store desk site client_app        at a site: BatchNorm on its own disk, training, the answers
roster attendance                 at the server: who takes part, who is new, who is away
post replies cost engine          letters and answers, what is accepted, the rounds
recording server_app serving      a job's files, all jobs of a run, the server's machine
link node control executor joining   Flower's own processes, with keys and without surprises
```

Needs the extra `fedbn[flower]`; nothing outside this package imports `flwr`.
"""

from __future__ import annotations

import importlib.util

from fedbn.errors import ConfigError


def require_flower() -> None:
    """Refuse to go on without Flower, saying how to get it."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("this needs Flower: install it with `pip install 'fedbn[flower]'`")
