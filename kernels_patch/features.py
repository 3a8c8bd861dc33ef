"""A session's audio features when part of it is evicted: what goes with the tokens, what stays, and where it now lies.

vLLM keeps every feature of a session for its life, for a preempted session has to encode again what it holds. An
evicted placeholder takes its feature with it. A placeholder of which some tokens stay keeps its feature, and its range
says which of the encoder's outputs the tokens that stay stand for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange


@dataclass(frozen=True, eq=False)
class KeptRange(PlaceholderRange):
    """What is left of a placeholder: ``skipped`` of the encoder's ``encoded`` outputs come before those it stands for.

    Its mask is always there, for with one vLLM asks the range itself which outputs it needs.
    """

    skipped: int = 0
    encoded: int = 0

    def get_num_embeds(self) -> int:
        """All that the encoder makes of the feature: so much is cached, however little of it is still used."""
        return self.encoded

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """As the parent's, counted among all outputs of the encoder."""
        start, end = super().get_embeds_indices_in_range(start_idx, end_idx)
        return start + self.skipped, end + self.skipped


def cut_range(held: PlaceholderRange, start: int, end: int) -> list[PlaceholderRange]:
    """The range after the indices [start, end) were deleted: one range, none, or two where the gap lies inside it."""
    first, last = held.offset, held.offset + held.length
    if last <= start:
        return [held]
    if first >= end:
        offset = first - (end - start)
        if type(held) is PlaceholderRange:
            return [PlaceholderRange(offset, held.length, held.is_embed)]
        return [replace(held, offset=offset)]
    parts = ((0, start - first, first), (end - first, held.length, start))
    return [_part(held, begin, stop, offset) for begin, stop, offset in parts if max(begin, 0) < stop]


def _part(held: PlaceholderRange, begin: int, stop: int, offset: int) -> KeptRange:
    mask = torch.ones(held.length, dtype=torch.bool) if held.is_embed is None else held.is_embed
    return KeptRange(
        offset=offset,
        length=stop - begin,
        is_embed=mask[begin:stop].clone(),
        skipped=held.get_embeds_indices_in_range(0, begin)[1],
        encoded=held.get_num_embeds(),
    )


def cut(features: list[MultiModalFeatureSpec], start: int, end: int) -> list[MultiModalFeatureSpec]:
    """The features after the indices [start, end) were deleted, in order. None of those given is changed."""
    return [
        feature if part is feature.mm_position else _at(feature, part)
        for feature in features
        for part in cut_range(feature.mm_position, start, end)
    ]


def _at(feature: MultiModalFeatureSpec, place: PlaceholderRange) -> MultiModalFeatureSpec:
    # Not dataclasses.replace, which takes five times as long: a session may hold thousands, and each cut moves most.
    return MultiModalFeatureSpec(feature.data, feature.modality, feature.identifier, place, feature.mm_hash)


def forget(manager, identifiers: Iterable[str]) -> None:
    """Give up the cached encoder outputs of these features that no request needs, in the worker too.

    vLLM's EncoderCacheManager keeps them until their place is wanted, also of sessions that have ended.
    """
    for identifier in identifiers:
        embeds = manager.freeable.pop(identifier, None)
        if embeds is not None:
            del manager.cached[identifier]
            del manager.num_embeds_by_hash[identifier]
            manager.num_free_slots += embeds
            manager.freed.append(identifier)
