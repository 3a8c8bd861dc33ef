"""A driver that keeps the scores of the chunks beside their frames, and both in the form the reference compares."""

from __future__ import annotations

from kernels_patch.scores import ScoringWorkerExtension
from tests.engine.driver import Driver, Frame
from tests.engine.poison import PoisonWorker
from workbench.engine import TokenEvent


class PoisonScoringWorker(PoisonWorker, ScoringWorkerExtension):
    """Scores chunks on a cache whose freed blocks are poisoned."""


class ScoredDriver(Driver):
    """``scores[session]``: what each of the session's chunks scored, one list a frame."""

    def __init__(self, profile, **options) -> None:
        self.scores: dict[str, list[list[float]]] = {}
        super().__init__(profile, scores=True, **options)

    def _submit(self, session, tokens, bound, owed) -> None:
        self.scores.setdefault(session, []).append([])
        super()._submit(session, tokens, bound, owed)

    def _hear(self, event: TokenEvent) -> None:
        self.scores[event.session][-1].extend(event.scores or ())
        super()._hear(event)

    def teacher_forced(self, session: str) -> list[Frame]:
        """The session's frames again, every token of a frame but its first read as sampled, and then the next's first.

        The tokens and what was visible to them are the same, for a frame's last sampled token is dropped. So a
        reference for sampled tokens scores those that were fed as well.
        """
        frames, scores = self.frames[session], self.scores[session]
        assert len(scores[0]) == len(frames[0].tokens_in) - 1, "all but the session's first token are scored"
        result = []
        for k, frame in enumerate(frames):
            if k:
                assert len(scores[k]) == len(frame.tokens_in), "every token of a later chunk is scored"
            tokens = frame.tokens_in[1:] + frame.tokens_out
            logprobs = scores[k][1 if k else 0 :] + frame.logprobs
            if k + 1 < len(frames):
                tokens[-1], logprobs[-1] = frames[k + 1].tokens_in[0], scores[k + 1][0]
            result.append(Frame(frame.tokens_in[:1], frame.bound, tokens, logprobs, frame.ended))
        return result
