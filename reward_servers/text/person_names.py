"""First names for PersonX, PersonY and PersonZ, always the same for an event."""

import hashlib
import random
import re
from collections.abc import Mapping
from functools import lru_cache

PERSON = re.compile(r"\bPerson ?([XYZ])\b", re.IGNORECASE)
FIRST_NAMES = (
    "Alex", "Amir", "Anna", "Carlos", "Chloe", "Daniel", "Elena", "Emma", "Fatima", "Grace", "Hannah", "Ivan",
    "James", "Julia", "Kenji", "Laura", "Leo", "Lina", "Lucas", "Maria", "Mei", "Nadia", "Noah", "Olga",
    "Omar", "Priya", "Robert", "Sara", "Tom", "Victor", "Wei", "Zoe",
)  # fmt: skip


@lru_cache(maxsize=4096)  # many samples in a row have the same event
def names_for(event: str, seed: int) -> dict[str, str]:
    """Draw three different names; they depend only on the event's text and the seed.

    >>> sorted(names_for("PersonX pays PersonY", 0))
    ['PersonX', 'PersonY', 'PersonZ']
    """
    digest = hashlib.sha256(f"{seed} {event}".encode()).digest()
    drawn = random.Random(int.from_bytes(digest)).sample(FIRST_NAMES, 3)
    return dict(zip(("PersonX", "PersonY", "PersonZ"), drawn, strict=True))


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Replace PersonX, PersonY and PersonZ by their names.

    >>> with_names("PersonX pays person y's rent", {"PersonX": "Mei", "PersonY": "Tom"})
    "Mei pays Tom's rent"
    """
    return PERSON.sub(lambda match: names.get(f"Person{match[1].upper()}", match[0]), text)
