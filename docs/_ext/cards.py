"""``python docs/_ext/cards.py build/docs`` makes the pictures of the tutorials' cards from those of the built site."""

import re
import sys
from pathlib import Path

from PIL import Image

#: Of each tutorial, the page with its picture, and the picture's number there.
PICTURES = {
    "first_gp": ("first_gp", 0),
    "own_table": ("own_table", 0),
    "minibatches": ("minibatches", 0),
    "trust": ("deep", 3),
    "nuts": ("nuts", 0),
    "hyperparameters": ("hyperparameters", 0),
    "arviz": ("arviz", 1),
    "birthdays": ("birthdays", 1),
    "own_parts": ("own_parts", 0),
    "ten_programs": ("ten_programs", 2),
    "deep": ("deep", 1),
    "invariance": ("invariance", 1),
    "counts": ("counts", 0),
    "several_outputs": ("several_outputs", 0),
    "latent_inputs": ("latent_inputs", 0),
    "million_rows": ("million_rows", 0),
}
SIZE = (480, 320)


def main(site: Path) -> None:
    """Write every picture, on white ground of one size."""
    folder = Path(__file__).resolve().parents[1] / "_static" / "tutorials"
    folder.mkdir(exist_ok=True)
    for name, (page, number) in PICTURES.items():
        text = (site / "tutorials" / f"{page}.html").read_text(encoding="utf-8")
        found = list(dict.fromkeys(re.findall(r"_images/([a-f0-9]+\.png)", text)))
        with Image.open(site / "_images" / found[number]) as picture:
            small = picture.convert("RGB")
        small.thumbnail((SIZE[0] - 20, SIZE[1] - 20), Image.Resampling.LANCZOS)
        card = Image.new("RGB", SIZE, "white")
        card.paste(small, ((SIZE[0] - small.width) // 2, (SIZE[1] - small.height) // 2))
        card.quantize(128).save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
