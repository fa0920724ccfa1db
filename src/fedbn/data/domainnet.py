"""DomainNet, the ten classes of the paper's sub-set: six styles of picture (section 5.2).

Pictures lie as DOMAIN/CLASS/*.jpg, as the archives of the six domains unpack; the other 335
classes may be there and are left out. The paper trains on 105 pictures a client and names no
split: here a stratified 20 % of a domain is for testing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedbn.core.federation import Federation
from fedbn.data._augment import FlipAndTurn
from fedbn.data._domains import Benchmark, PicturesInfo
from fedbn.data._info import data_root
from fedbn.data._picture_sets import Division

BENCHMARK = Benchmark(
    name="domainnet",
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    classes=(
        "bird",
        "feather",
        "headphones",
        "ice_cream",
        "teapot",
        "tiger",
        "whale",
        "windmill",
        "wine_glass",
        "zebra",
    ),
    aliases={"wineglass": "wine_glass", "icecream": "ice_cream", "head_phones": "headphones"},
)

INFO = {
    "domainnet": PicturesInfo(
        title="DomainNet, ten classes: clip art, infographics, paintings, doodles, photos, "
        "sketches",
        clients="6 of 105",
        classes=10,
        shape="3×256×256",
        source="Peng et al. 2019; the archives of its six domains, by hand",
        licence="its owners claim fair use: research and teaching, not for profit",
        files=tuple(f"domainnet/{domain}/*" for domain in BENCHMARK.domains),
        benchmark=BENCHMARK,
    )
}


def domainnet(
    path: str | None = None,
    per_client: int | Literal["all"] = 105,
    size: int = 256,
    test_share: float = 0.2,
    split_seed: int = 0,
    augment: bool = True,
    domains: list[str] | None = None,
) -> Federation:
    """Read the six domains, one a client.

    Args:
        path: The folder of the six; `domainnet` below the data root unless given.
        per_client: Training pictures a client, stratified by class; `all` keeps every one.
        size: Side in pixels that pictures are resized to.
        test_share: The stratified part of each domain held out for testing.
        split_seed: Decides which pictures these are.
        augment: Mirror and turn training pictures at random, up to 30 degrees.
        domains: Which to take, in this order; all six by default.
    """
    return BENCHMARK.federation(
        Path(path) if path else data_root() / "domainnet",
        size,
        Division(test_share, split_seed, per_client),
        FlipAndTurn() if augment else None,
        domains,
    )
