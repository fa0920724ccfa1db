"""Digits-Five: SVHN, USPS, SynthDigits, MNIST-M and MNIST, the paper's benchmark (section 5.1).

Train and test part of each data set are pooled and divided 80 to 20, class by class; training data
is truncated to the 7,438 samples of the smallest and cut into ten parts of 743, in order. A client
has one part (the paper's default of 10 %), another share of the 7,438 (`percent`), or several
clients have one part each (`clients_per_domain`, the paper's study of heterogeneity).
`equalize = false` keeps the original sizes, to be trained with `training.unequal = "repeat"`; where
the originals are missing, `sizes` says how many samples each domain's client has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from fedbn.core.federation import Client, Federation
from fedbn.data import benchmarks, digit_domains
from fedbn.data.benchmarks import ClientsPerDomain, Count
from fedbn.data.digit_domains import TRAIN_SIZE, Loaded, MnistM, Synth, original, split_of
from fedbn.data.digit_files import DIGIT_DOMAINS
from fedbn.data.storage import Arrays

Percent = Literal[1, 5, 10, 20, 40, 60, 100]
_PARTS = 10
_MNIST = 70_000
INFO = {
    "digits": digit_domains.DigitsInfo(
        title="Digits-Five: SVHN, USPS, SynthDigits, MNIST-M, MNIST",
        clients="5 of 743",
        classes=10,
        shape="3×28×28",
        source="download: MNIST, SVHN, USPS; by hand, or made here: MNIST-M, SynthDigits",
        licence="MNIST CC BY-SA 3.0; SVHN non-commercial; USPS, MNIST-M, SynthDigits state none",
        files=("digits/*",),
    )
}


def digits(
    percent: Percent = 10,
    clients_per_domain: ClientsPerDomain = 1,
    equalize: bool = True,
    sizes: list[int] | None = None,
    domains: list[str] | None = None,
    synth: Synth = "auto",
    mnist_m: MnistM = "auto",
    photographs: str | None = None,
    fonts: str = "matplotlib",
    rendered: Count = TRAIN_SIZE,
    test_limit: Count | None = None,
    seed: int = 0,
) -> Federation:
    """Read the digit data sets, one client or more a domain.

    Args:
        percent: The share of the training data that a client has: 1, 5, 10, 20, 40, 60 or 100.
        clients_per_domain: Clients of each domain, 1 to 10, with a tenth each.
        equalize: Truncate all domains to 7,438 training samples.
        sizes: The number of training samples of each domain, in their order, in place of a share.
        domains: Which to take, in this order; all five by default.
        synth: SynthDigits from Ganin's files, rendered here, or whichever is there.
        mnist_m: MNIST-M from Ganin's files, made from MNIST and photographs, or whichever can be.
        photographs: The folder of photographs; `digits/photographs` by default.
        fonts: For rendered SynthDigits: `matplotlib`, `system` or a folder.
        rendered: How many training images to render.
        test_limit: Score on the first so many test samples only.
        seed: Decides splits, rendering and patches; a run's own seed does not touch them.
    """
    chosen = benchmarks.checked_domains(domains, DIGIT_DOMAINS)
    benchmarks.check_tenths(percent, clients_per_domain)
    whole = not equalize
    stand_ins: dict[str, Callable[[], Loaded]] = {
        "synthdigits": lambda: digit_domains.synth_digits_domain(
            synth, seed, whole, rendered, fonts
        ),
        "mnist_m": lambda: digit_domains.mnist_m_domain(mnist_m, seed, whole, photographs),
    }
    loaded = {d: stand_ins[d]() if d in stand_ins else original(d, seed, whole) for d in chosen}
    lengths = {domain: len(one.arrays["train_y"]) for domain, one in loaded.items()}
    smallest = min(TRAIN_SIZE, *lengths.values())
    wanted = benchmarks.checked_sizes(sizes, lengths, clients_per_domain)
    clients: list[Client] = []
    for domain, one in loaded.items():
        cuts = _cuts(lengths[domain] if whole else smallest, percent, clients_per_domain, whole)
        if wanted:
            cuts = [slice(0, wanted[domain])]
        clients += _clients(domain, one.arrays, cuts, test_limit)
    remarks = [one.remark for one in loaded.values() if one.remark]
    if {"mnist", "mnist_m"} <= loaded.keys() and digit_domains.twins():
        share = sum(len(c.train) for c in clients if c.domain == "mnist") / _MNIST
        remarks.append(
            f"MNIST-M is made of MNIST's digits and split apart from it: about {share:.0%} of its "
            "test digits have their twin in mnist's training data"
        )
    if equalize and smallest < TRAIN_SIZE:
        remarks.append(
            f"training data is truncated to {smallest} samples a domain, not to the paper's 7438"
        )
    made = tuple(domain for domain, one in loaded.items() if one.stand_in)
    said, names = tuple(remarks), tuple("0123456789")
    return Federation("digits", tuple(clients), names, said, stand_ins=made)


def _cuts(size: int, percent: int, clients: int, whole: bool) -> list[slice]:
    """Cut a domain's training samples: a share for one client, or a tenth for each of several.

    Of original sizes the paper takes whole tenths (its tables have 79,430 samples of SVHN), of the
    truncated ones all (7,438, not 7,430).
    """
    tenth = size // _PARTS
    if clients > 1:
        return [slice(part * tenth, (part + 1) * tenth) for part in range(clients)]
    return [slice(0, tenth * percent // 10 if whole else size * percent // 100)]


def _clients(
    domain: str, arrays: Arrays, cuts: Sequence[slice], test_limit: int | None
) -> Iterator[Client]:
    test = split_of(arrays, "test", slice(test_limit))
    for part, cut in enumerate(cuts, start=1):
        name = domain if len(cuts) == 1 else f"{domain}-{part}"
        yield Client(name, domain, split_of(arrays, "train", cut), {domain: test})
