"""Office-Caltech10: the ten classes that Office-31 and Caltech-256 share (section 5.2).

Pictures lie as DOMAIN/CLASS/*.jpg under the names of Office-31, of Caltech-256 or of the usual
copies. The paper trains on 62 pictures a client, the number the smallest domain allows it, and
names no split: here a stratified 20 % of a domain is for testing.

DomainNet, the ten classes of the paper's sub-set: six styles of picture (section 5.2).

Pictures lie as DOMAIN/CLASS/*.jpg, as the archives of the six domains unpack; the other 335
classes may be there and are left out. The paper trains on 105 pictures a client and names no
split: here a stratified 20 % of a domain is for testing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedbn.core.federation import Federation
from fedbn.data.benchmarks import Benchmark, PicturesInfo
from fedbn.data.image_folders import Division
from fedbn.data.images import FlipAndTurn
from fedbn.data.storage import data_root

__all__ = ["domainnet", "office_caltech10"]


OFFICE_CALTECH10 = Benchmark(
    name="office_caltech10",
    domains=("amazon", "caltech", "dslr", "webcam"),
    classes=(
        "backpack",
        "bike",
        "calculator",
        "headphones",
        "keyboard",
        "laptop",
        "monitor",
        "mouse",
        "mug",
        "projector",
    ),
    aliases={
        "caltech10": "caltech",
        "caltech_10": "caltech",
        "caltech256": "caltech",
        "back_pack": "backpack",
        "touring_bike": "bike",
        "head_phones": "headphones",
        "computer_keyboard": "keyboard",
        "laptop_computer": "laptop",
        "computer_monitor": "monitor",
        "computer_mouse": "mouse",
        "coffee_mug": "mug",
        "video_projector": "projector",
    },
)


def office_caltech10(
    path: str | None = None,
    per_client: int | Literal["all"] = 62,
    size: int = 256,
    test_share: float = 0.2,
    split_seed: int = 0,
    augment: bool = True,
    domains: list[str] | None = None,
) -> Federation:
    """Read the four domains, one a client.

    Args:
        path: The folder of the four; `office_caltech10` below the data root unless given.
        per_client: Training pictures a client, stratified by class; `all` keeps every one.
        size: Side in pixels that pictures are resized to.
        test_share: The stratified part of each domain held out for testing.
        split_seed: Decides which pictures these are.
        augment: Mirror and turn training pictures at random, up to 30 degrees.
        domains: Which to take, in this order; all four by default.
    """
    return OFFICE_CALTECH10.federation(
        Path(path) if path else data_root() / "office_caltech10",
        size,
        Division(test_share, split_seed, per_client),
        FlipAndTurn() if augment else None,
        domains,
    )


DOMAINNET = Benchmark(
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
    "office_caltech10": PicturesInfo(
        title="Office-Caltech10: things photographed by a shop, a web camera, an SLR and many "
        "people",
        clients="4 of 62",
        classes=10,
        shape="3×256×256",
        source="Gong et al. 2012, from Office-31 and Caltech-256; copies by hand",
        licence="none stated; research use",
        files=(
            "office_caltech10/[aA]mazon*/*",
            "office_caltech10/[cC]altech*/*",
            "office_caltech10/[dD][sS][lL][rR]*/*",
            "office_caltech10/[wW]ebcam*/*",
        ),
        benchmark=OFFICE_CALTECH10,
    ),
    "domainnet": PicturesInfo(
        title="DomainNet, ten classes: clip art, infographics, paintings, doodles, photos, "
        "sketches",
        clients="6 of 105",
        classes=10,
        shape="3×256×256",
        source="Peng et al. 2019; the archives of its six domains, by hand",
        licence="its owners claim fair use: research and teaching, not for profit",
        files=tuple(f"domainnet/{domain}/*" for domain in DOMAINNET.domains),
        benchmark=DOMAINNET,
    ),
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
    return DOMAINNET.federation(
        Path(path) if path else data_root() / "domainnet",
        size,
        Division(test_share, split_seed, per_client),
        FlipAndTurn() if augment else None,
        domains,
    )
