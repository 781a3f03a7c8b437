"""Turns sightings into lines of text."""

from collections import Counter
from collections.abc import Iterable

from reader import Sighting


def totals(sightings: Iterable[Sighting]) -> Counter[str]:
    """Count the birds of each species."""
    result: Counter[str] = Counter()
    for sighting in sightings:
        result[sighting.species] += sighting.count
    return result


def format_totals(counts: Counter[str]) -> list[str]:
    """Format the totals, largest first."""
    return [f"{count:5} {species}" for species, count in counts.most_common()]
