"""Benchmarks of pictures: Office-Caltech10, and ten classes of DomainNet (section 5.2).

Pictures lie as DOMAIN/CLASS/*.jpg: under the names of Office-31, of Caltech-256 or of their usual
copies, and as the archives of DomainNet's six domains unpack, whose other 335 classes are left out.
The paper trains on 62 and on 105 pictures a client, as many as the smallest domain allows it, and
names no split: here a stratified 20 % of a domain is for testing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from fedbn.core.federation import Federation
from fedbn.data.benchmarks import Benchmark, PicturesInfo, TestShare, checked_domains
from fedbn.data.image_folders import Division, PictureReader, of_one_type
from fedbn.data.images import FlipAndTurn, PictureSide
from fedbn.data.storage import data_root

__all__ = ["domainnet", "office_caltech10"]

_THINGS = "backpack bike calculator headphones keyboard laptop monitor mouse mug projector"
_DRAWN = "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"

OFFICE_CALTECH10 = Benchmark(
    name="office_caltech10",
    domains=("amazon", "caltech", "dslr", "webcam"),
    classes=tuple(_THINGS.split()),
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
DOMAINNET = Benchmark(
    name="domainnet",
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    classes=tuple(_DRAWN.split()),
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
        by_hand="the folders amazon, caltech, dslr and webcam with the ten classes that Office-31 "
        "(https://people.eecs.berkeley.edu/~jhoffman/domainadapt/) and Caltech-256 "
        "(https://data.caltech.edu/records/nyy15-4j048) share",
        files=(
            "office_caltech10/[aA]mazon*/*",
            "office_caltech10/[cC]altech*/*",
            "office_caltech10/[dD][sS][lL][rR]*/*",
            "office_caltech10/[wW]ebcam*/*",
        ),
        benchmark=OFFICE_CALTECH10,
        places=OFFICE_CALTECH10.places,
    ),
    "domainnet": PicturesInfo(
        title="DomainNet, ten classes: clip art, infographics, paintings, doodles, photos, "
        "sketches",
        clients="6 of 105",
        classes=10,
        shape="3×256×256",
        source="Peng et al. 2019; the archives of its six domains, by hand",
        licence="its owners claim fair use: research and teaching, not for profit",
        by_hand="the six archives of DomainNet from http://ai.bu.edu/M3SDA/, unpacked",
        files=tuple(f"domainnet/{domain}/*" for domain in DOMAINNET.domains),
        benchmark=DOMAINNET,
        places=DOMAINNET.places,
    ),
}


def _two_or_all(value: Any) -> Any:
    if value == "all" or (isinstance(value, int) and value >= 2):
        return value
    raise ValueError("legal are 2 and more, 'all'")


PerClient = Annotated[int | Literal["all"], BeforeValidator(_two_or_all)]
_ARGUMENTS = """

Args:
    path: The folder of the domains; the data set's name below the data root unless given.
    per_client: Training pictures a client, stratified by class; `all` keeps every one.
    size: Side in pixels that pictures are resized to.
    test_share: The stratified part of each domain held out for testing.
    split_seed: Decides which pictures these are.
    augment: Mirror and turn training pictures at random, up to 30 degrees.
    domains: Which to take, in this order; all by default.
"""


def _reader(benchmark: Benchmark, pictures: int, what: str) -> Callable[..., Federation]:
    def read(
        path: str | None = None,
        per_client: PerClient = pictures,
        size: PictureSide = 256,
        test_share: TestShare = 0.2,
        split_seed: int = 0,
        augment: bool = True,
        domains: list[str] | None = None,
    ) -> Federation:
        chosen = checked_domains(domains, benchmark.domains)
        root = Path(path) if path else data_root() / benchmark.name
        found = replace(benchmark, domains=chosen).pictures(root)
        division = Division(test_share, split_seed, per_client)
        parts = {domain: division.divide(found[domain], domain) for domain in chosen}
        reader = PictureReader(size, keep=benchmark.name)
        change = FlipAndTurn() if augment else None
        clients = of_one_type([reader.client(name, own, change) for name, own in parts.items()])
        told = {"aliases": dict(benchmark.aliases)}
        return Federation(benchmark.name, clients, benchmark.classes, preparation=told)

    read.__doc__ = what + _ARGUMENTS
    return read


office_caltech10 = _reader(OFFICE_CALTECH10, 62, "Read the four domains, one a client.")
domainnet = _reader(DOMAINNET, 105, "Read the six domains, one a client.")
