"""Chooses a slice for a job that names none: the cheapest of the profile that its training fits.

At admission, only the price ranks the slices. Preflight compiles the training for the cheapest one and, if it does not
fit, for the next ones. The job's own account can write preflight's record, so the record decides only among slices that
are derived here from the stored plan, all of which comply with the profile's rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finetune_contract import MemoryOutcome, SliceShape
from finetune_operator.catalog import TpuShape
from finetune_operator.planning.slices.topology import NONE_TRIED, SliceOffer

#: Number of slices that preflight may try after the first one; compilation for each takes minutes.
MOST_CANDIDATES = 6
CHEAPEST = "the cheapest slice of the profile"
NO_WISH = "since spec.resources names none"

type _Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceChoice:
    """The slice to use now."""

    offer: SliceOffer
    candidates: tuple[SliceOffer, ...]
    """Alternatives that preflight may choose, in order; empty once it has chosen."""
    flavors: tuple[str, ...]
    """Flavors that serve the job."""
    why: str


def choose(
    offers: Sequence[SliceOffer],
    by_price: Sequence[SliceOffer],
    fault: Callable[[SliceOffer], str | None],
    found: MemoryOutcome | None,
    *,
    slices: int,
    tried: Mapping[str, int] = NONE_TRIED,
) -> SliceChoice:
    """Returns the slice for a job that names none.

    Args:
        offers: slices that the profile offers, with those last that were tried without success. Not empty.
        by_price: the same offers in the order that preflight saw, before any was tried.
        fault: returns in a few words why the job cannot run on an offer; None if it can.
        found: preflight's record of the memory; None if preflight has not passed.
        slices: number of slices that the job connects.
        tried: how often each flavor was tried without success.
    """
    first, left_out = _distinct(by_price, fault)
    if not first:
        # Planning on this offer raises the actual error.
        return SliceChoice(offer=offers[0], candidates=(), flavors=(), why=CHEAPEST)
    credible = found if _credible(found, first, slices) else None
    unfit = {slice_key(each.slice): each.why for each in credible.unfit} if credible else {}
    chosen = slice_key(credible.chosen) if credible and credible.chosen else _named(found, first, slices)
    rest = [offer for offer in offers if slice_key(offer.shape) not in unfit]

    def rank(offer: SliceOffer) -> tuple[int, int]:
        key = slice_key(offer.shape)
        return tried.get(offer.flavor.name, 0), 0 if key == chosen else 1 if key in first else 2

    offer = next(each for each in sorted(rest, key=rank) if fault(each) is None)
    taken = slice_key(offer.shape)
    candidates = () if found else tuple(each for key, each in first.items() if key != taken)
    considered = [f"{first[key].shape.name} {why}" for key, why in unfit.items() if key in first]
    keys = [slice_key(each.shape) for each in by_price]
    cheaper = keys[: keys.index(taken)] if taken in keys else ()
    considered += [f"{name} {why}" for key, (name, why) in left_out.items() if key in cheaper]
    return SliceChoice(
        offer=offer,
        candidates=candidates,
        flavors=tuple(dict.fromkeys(each.flavor.name for each in rest if fault(each) is None)),
        why=_why(
            found,
            [slice_label(each.shape.name, slices) for each in candidates],
            considered,
            credible=credible is not None,
            proved=taken == chosen,
        ),
    )


def _distinct(
    offers: Sequence[SliceOffer], fault: Callable[[SliceOffer], str | None]
) -> tuple[Mapping[_Key, SliceOffer], Mapping[_Key, tuple[str, str]]]:
    """Returns the first distinct slices on which the job can run, and names and faults of the others among them."""
    possible: dict[_Key, SliceOffer] = {}
    faults: dict[_Key, tuple[str, str]] = {}
    for offer in offers:
        key = slice_key(offer.shape)
        if key in possible:
            continue
        if len(possible) > MOST_CANDIDATES:
            break
        if why := fault(offer):
            faults.setdefault(key, (offer.shape.name, why))
        else:
            possible[key] = offer
    return possible, {key: each for key, each in faults.items() if key not in possible}


def _credible(found: MemoryOutcome | None, first: Mapping[_Key, SliceOffer], slices: int) -> bool:
    """Returns whether preflight had a choice and its record is consistent with itself and with the possible slices.

    After an edit of the job, the chosen slice may no longer be possible, while others are known to be too small.
    """
    if found is None or found.chosen is None or found.slice != slice_label(found.chosen.name, slices):
        return False
    chosen, unfit = slice_key(found.chosen), {slice_key(each.slice) for each in found.unfit}
    says_something = chosen in first or not unfit.isdisjoint(first)
    return says_something and chosen not in unfit and not unfit.issuperset(first)


def _named(found: MemoryOutcome | None, first: Mapping[_Key, SliceOffer], slices: int) -> _Key | None:
    """Returns the slice that the job named when preflight passed, before an edit removed the name; else None."""
    if found is None or found.chosen is not None or found.unknown:
        return None
    return next(
        (key for key, each in first.items() if slice_label(each.shape.name, slices) == found.slice), None
    )


def slice_label(slice_name: str, slices: int) -> str:
    """Returns the name of a place as in preflight's record: ``2 x v6e-16``."""
    return f"{slices} x {slice_name}" if slices > 1 else slice_name


def _why(
    found: MemoryOutcome | None,
    candidates: Sequence[str],
    considered: Sequence[str],
    *,
    credible: bool,
    proved: bool,
) -> str:
    summary = f": {'; '.join(considered)}" if considered else ""
    if found is None:
        next_ = ", ".join(candidates)
        next_slices = f"; where the training does not fit it, preflight tries {next_}" if next_ else ""
        return f"{CHEAPEST}, {NO_WISH}{summary}{next_slices}"
    if not credible and proved:
        return f"the slice that preflight has compiled for, {NO_WISH}{summary}"
    if not credible:
        return (
            f"{CHEAPEST}, {NO_WISH}{summary}; preflight has not compiled for it: a retry from Preflight does"
        )
    if not proved:
        return f"{CHEAPEST} in place of the one that preflight chose{summary}"
    if found.unknown:
        return f"{CHEAPEST} that is not known to be too small{summary}"
    return f"{CHEAPEST} that fits{summary}"


def slice_key(shape: TpuShape | SliceShape) -> _Key:
    """Returns what distinguishes slices: family, topology and number of hosts."""
    return shape.family, shape.topology, shape.hosts
