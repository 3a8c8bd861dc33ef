"""The vLLM engine, on the CPU or a GPU: AsyncLLM with the plugin's scheduler, one resumable request a session."""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from workbench.bound import ENDED, EXTRA_ARGS_KEY, KVBound
from workbench.engine.arguments import engine_args, environment
from workbench.engine.base import Engine, EngineDead, EngineError, Facts, SessionView, Snapshot, TokenEvent
from workbench.engine.host import cause, descendants, executor, find_plugin, first_line, libraries_logged, reap
from workbench.engine.media import AudioChunk, warm_up_chunks
from workbench.engine.model import check_trust, has_own_code_alone, model_folder
from workbench.engine.spawn import engine_children

# What vLLM says of a chunk that it gave up: no answer, however empty.
GIVEN_UP = ("abort", "error")


class Sampling(NamedTuple):
    """How a chunk's tokens are drawn. ``seed``: of the session's stream of random numbers, which its first chunk opens.

    A session that is to draw at all does so in every chunk, and goes on in one stream whatever its frames and whoever
    is beside it. ``likeliest`` takes the likeliest token and leaves the stream where it would be. Of a chunk that is
    prefilled in more than one step vLLM 0.32 turns the stream back, which a CPU's generator cannot do: it dies. So the
    chunks that may share a step have to fit into max_batched_tokens.
    """

    temperature: float
    seed: int
    likeliest: bool = False


def _chunks_of(profile, folder: Path) -> list[list[int]]:
    """What to warm up with. A front end that does not fit the model is told before minutes have gone into a start."""
    from workbench.frontends import FrontEndError

    try:
        return warm_up_chunks(profile, folder)
    except FrontEndError as error:
        raise EngineError(str(error)) from error


class _Stream:
    """One session's way into vLLM: its chunks, and whether the last one handed over has been answered."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.chunks: asyncio.Queue = asyncio.Queue()
        self.answered = asyncio.Event()
        self.answered.set()
        self.submitted = 0
        self.task: asyncio.Task | None = None


class VllmEngine(Engine):
    """``profile`` says what to serve. ``logprobs``: report the log-probability of each sampled token.

    ``scores``: report that of each token of every chunk too, given what is visible to the position before it: resident
    tokens, and of the chunk those before. A session's first token has none, for nothing predicts it. So the scores of
    one session, in order, are those of all tokens that were fed to it but the first (natural logarithms).

    ``scheduler`` and ``worker_extension`` replace the plugin's own classes by name, for tests. ``engine_args`` are
    further arguments of vLLM's AsyncEngineArgs; what the bound cannot be served with is refused at start.
    """

    def __init__(
        self,
        profile,
        *,
        logprobs: bool = False,
        scores: bool = False,
        scheduler: str | None = None,
        worker_extension: str | None = None,
        engine_args: dict | None = None,
    ) -> None:
        self.profile = profile
        self.logprobs = logprobs
        self.scores = scores
        self._scores_key: str | None = None
        self.on_event = lambda event: None
        self.on_dead = lambda reason: None
        self._scheduler, self._worker_extension = scheduler, worker_extension
        self._engine_args = engine_args or {}
        self._llm = None
        self._speaks = False
        self._streams: dict[str, _Stream] = {}
        self._closing: set[asyncio.Task] = set()
        self._processes: list = []
        self._log_dir: Path | None = None
        self._death: str | None = None

    # -- start and stop ---------------------------------------------------------------------------------------------

    async def start(self, progress: Callable[[str], None] | None = None) -> None:
        say = progress or (lambda message: None)
        plugin = find_plugin()
        self._scores_key = plugin.SCORES_KEY if self.scores else None
        try:
            plugin.check_version()
        except plugin.PluginError as error:
            raise EngineError(str(error)) from error
        say("loading weights")
        self.model_path = model_folder(self.profile.model, say)
        check_trust(self.model_path, self._trusted)
        chunks = _chunks_of(self.profile, self.model_path)
        self._log_dir = Path(tempfile.mkdtemp(prefix="metronome-engine-"))
        say("starting vLLM")
        try:
            with libraries_logged(self._log_dir):
                with engine_children(environment(self.profile.cores, self._log_dir)):
                    self._llm = self._construct(plugin)
                # The task that fails when the engine dies: whoever waits for an answer watches it too.
                self._llm._run_output_handler()
                self._processes = descendants(self._llm)
                self.facts = await self._shake_hands()
                say("warming up")
                await self._warm_up(chunks)
        except plugin.PluginError as error:
            await self.stop()
            raise EngineError(str(error)) from error
        except Exception as error:
            why = str(error) if isinstance(error, EngineDead) else self._keep_log(error)
            await self.stop()
            raise EngineError(f"the engine did not start: {why}") from error
        except BaseException:
            await self.stop()
            raise
        say("engine ready")

    async def _shake_hands(self) -> Facts:
        hello = await self._call("metronome_attach")
        worker = hello["workers"][0]
        self._speaks = worker.get("speaks", False)
        if self.scores and self._speaks:
            raise EngineError("a model with a depth transformer gives codes where scores would come: leave out scores")
        if self.scores and not worker.get("scores"):
            raise EngineError(
                f"{self._worker_extension} scores no chunks: derive it from the plugin's scoring extension"
            )
        return Facts(
            executor=executor(),
            vllm=hello["vllm"],
            block_size=hello["block_size"],
            blocks_total=hello["blocks_total"],
            max_model_len=hello["max_model_len"],
            max_positions=hello["max_positions"],
            vocab_size=hello["vocab_size"],
            scheduler=hello["scheduler"],
            runner=worker["runner"],
            threads=worker["threads"],
            sinks_stay=worker.get("sinks_stay"),
        )

    async def _warm_up(self, chunks: list[list[int]]) -> None:
        """Serve some frames of a session nobody sees: the first step of an engine takes seconds, later ones do not."""
        on_event, on_dead = self.on_event, self.on_dead
        for chunk in chunks:
            answer = asyncio.get_running_loop().create_future()

            def hear(event, answer=answer) -> None:
                if event.done and not answer.done():
                    answer.set_result(event.ended)

            self.on_event, self.on_dead = hear, lambda reason: None
            self.submit("warm-up", chunk, self.profile.tokens_owed)
            ended = await self._while_alive(answer)
            if ended is not None:
                raise EngineError(f"its warm-up ended: {ended}")
        self.close("warm-up")
        while (await self.snapshot()).sessions:
            await asyncio.sleep(0)
        self.on_event, self.on_dead = on_event, on_dead

    def _construct(self, plugin):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        scheduler = self._scheduler or plugin.SCHEDULER
        extension = self._worker_extension or (plugin.SCORING_EXTENSION if self.scores else plugin.WORKER_EXTENSION)
        args = engine_args(self.profile, self.model_path, scheduler, extension, self._trusted)
        config = AsyncEngineArgs(**{**args, **self._engine_args}).create_engine_config()
        plugin.check_config(config)
        return AsyncLLM.from_vllm_config(config, disable_log_stats=True, enable_log_requests=False)

    @property
    def _trusted(self) -> bool:
        return self.profile.trust_remote_code or has_own_code_alone(self.profile.model, self.model_path)

    async def stop(self) -> None:
        tasks = [stream.task for stream in self._streams.values()] + list(self._closing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._streams.clear()
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None
        reap(self._processes)
        if self._log_dir is not None:
            shutil.rmtree(self._log_dir, ignore_errors=True)
            self._log_dir = None

    def _keep_log(self, error: BaseException) -> str:
        """The root cause in one line, the same for all who ask; the log that it names is left when the engine stops."""
        if self._death is None:
            self._death = first_line(error) if self._log_dir is None else cause(self._log_dir, error)
            self._log_dir = None
        return self._death

    # -- sessions ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return time.monotonic()

    def submit(self, session, tokens, owed, bound=None, stop_token_ids=(), sampling: Sampling | None = None) -> None:
        """As the interface's; ``sampling``: draw this chunk's tokens at random, else the likeliest is taken."""
        if self._llm is None:
            raise EngineDead("the engine was stopped")
        stream = self._streams.get(session)
        if stream is None:
            stream = self._streams[session] = _Stream(session)
            stream.task = asyncio.get_running_loop().create_task(self._serve(stream))
            stream.task.add_done_callback(self._report)
        params = self._sampling(owed, bound, stop_token_ids, sampling)
        if self._scores_key is not None:
            stream.submitted += 1
            params.extra_args = {**(params.extra_args or {}), self._scores_key: stream.submitted}
        # A copy: vLLM's front end extends the first chunk's list.
        stream.chunks.put_nowait((copy.copy(tokens), params))

    def _sampling(self, owed: int, bound: KVBound | None, stop_token_ids, sampling: Sampling | None = None):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=0.0 if sampling is None else sampling.temperature,
            seed=None if sampling is None else sampling.seed,
            top_k=1 if sampling is not None and sampling.likeliest else 0,
            max_tokens=owed,
            ignore_eos=True,
            stop_token_ids=list(stop_token_ids),
            detokenize=False,
            logprobs=0 if self.logprobs else None,
            output_kind=RequestOutputKind.DELTA,
            extra_args=None if bound is None else {EXTRA_ARGS_KEY: bound.to_args()},
        )

    async def _serve(self, stream: _Stream) -> None:
        """Feed one session's chunks to vLLM and report what comes, until it ends."""
        outputs = self._llm.generate(self._chunks(stream), self._sampling(1, None, ()), stream.session)
        try:
            while (event := await self._next_event(stream, outputs)) is not None:
                if event.done:
                    self._forget_tokens(stream.session)
                    stream.answered.set()
                if event.ended is not None and self._streams.get(stream.session) is stream:
                    # Gone before its owner hears of it, who may open the name again at once.
                    del self._streams[stream.session]
                    self._closing.add(stream.task)
                self.on_event(event)
                if event.ended is not None:
                    return
        finally:
            await outputs.aclose()
            if self._streams.get(stream.session) is stream:
                del self._streams[stream.session]

    async def _next_event(self, stream: _Stream, outputs) -> TokenEvent | None:
        """What vLLM says next of one session; None when the engine is dead."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            output = await anext(outputs)
            event = self._event(stream.session, output.outputs[0])
            # Where vLLM would report scores of tokens of its own choice, the plugin's worker reports the chunk's, or
            # the codes that a depth transformer made.
            given = output.prompt_token_id_logprobs
            if given is None:
                return event
            if self._speaks:
                return event._replace(codes=tuple(int(code) for code in given.tolist()))
            return event._replace(scores=tuple(given.tolist()))
        except StopAsyncIteration:
            return TokenEvent(stream.session, (), self.now(), done=True, ended="closed by the engine")
        except EngineDeadError as error:
            self.on_dead(self._keep_log(error))
            return None
        except Exception as error:  # noqa: BLE001
            # Whatever vLLM refuses of one session's input ends that session; the others play on.
            reason = f"refused by the engine: {first_line(error.__cause__ or error)}"
            return TokenEvent(stream.session, (), self.now(), done=True, ended=reason)

    def _report(self, task: asyncio.Task) -> None:
        """A task that failed has a fault that is nobody's input: its owner hears of it rather than of silence."""
        self._closing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            self.on_dead(f"fault in the session's task: {type(error).__name__}: {first_line(error)}")

    async def _chunks(self, stream: _Stream):
        from vllm.engine.protocol import StreamingInput
        from vllm.inputs import TokensPrompt

        while True:
            chunk, params = await stream.chunks.get()
            # vLLM merges outputs that nobody has fetched yet, across chunks: so one is outstanding at a time.
            await stream.answered.wait()
            stream.answered.clear()
            prompt = TokensPrompt(prompt_token_ids=list(chunk))
            if isinstance(chunk, AudioChunk):
                prompt["multi_modal_data"] = {"audio": chunk.audio}
                # Not on this loop, which keeps the beat: the feature extractor takes its time.
                (prompt,) = await self._llm.renderer.render_cmpl_async([prompt])
            yield StreamingInput(prompt=prompt, sampling_params=params)

    def _event(self, session: str, output) -> TokenEvent:
        stop = output.stop_reason
        ended = stop.removeprefix(ENDED) if isinstance(stop, str) and stop.startswith(ENDED) else None
        if output.finish_reason in GIVEN_UP:
            ended = f"given up by the engine: {output.finish_reason}"
        tokens = tuple(output.token_ids)
        logprobs = None
        if self.logprobs and output.logprobs is not None:
            logprobs = tuple(row[token].logprob for row, token in zip(output.logprobs, tokens, strict=True))
        done = output.finish_reason is not None
        return TokenEvent(session, tokens, self.now(), done, output.finish_reason == "stop", ended, logprobs)

    def _forget_tokens(self, session: str) -> None:
        # vLLM's front end keeps every token a session ever had, for outputs that nobody asked for here.
        for request_id in self._llm.output_processor.external_req_ids.get(session, ()):
            state = self._llm.output_processor.request_states.get(request_id)
            if state is not None:
                state.prompt_token_ids = []
                state.detokenizer.token_ids.clear()

    def close(self, session: str) -> None:
        stream = self._streams.pop(session, None)
        if stream is not None:
            self._closing.add(stream.task)
            stream.task.cancel()

    async def set_bound(self, session: str, bound: KVBound | None) -> str:
        if self._llm is None:
            raise EngineDead("the engine was stopped")
        value = None if bound is None else bound.to_args()
        outcome = "unknown"
        for request_id in self._llm.output_processor.external_req_ids.get(session, ()):
            outcome = await self._call("metronome_set_bound", request_id, value)
        return outcome

    async def snapshot(self, sessions: Collection[str] | None = None) -> Snapshot:
        ids = None
        if sessions is not None:
            known = self._llm.output_processor.external_req_ids if self._llm is not None else {}
            ids = [request_id for session in sessions for request_id in known.get(session, ())]
        raw = await self._call("metronome_snapshot", ids)
        # vLLM makes a session's id unique by a suffix of its own.
        views = {key.rsplit("-", 1)[0]: SessionView(*view) for key, view in raw.pop("sessions").items()}
        return Snapshot(sessions=views, **raw)

    async def record_steps(self, on: bool) -> None:
        """Switch the recording of engine steps on or off. Raises EngineDead."""
        await self._call("metronome_record", on)

    async def steps(self) -> list[tuple[float, float, int, int, int, int]]:
        """Drain the recorded steps, oldest first: (began s, ended s, prefill tokens, decoding, context tokens, prefill
        pairs).

        Times are on the engine's clock; see the plugin's StepRecorder for where a step ends and ``step_load`` for what
        is counted. Raises EngineDead.
        """
        return [tuple(step) for step in await self._call("metronome_steps")]

    async def media(self) -> dict[str, int]:
        """Audio features and encoder outputs that the engine keeps (the plugin's ``metronome_media``)."""
        return await self._call("metronome_media")

    async def _call(self, name: str, *args):
        if self._llm is None:
            raise EngineDead("the engine was stopped")
        return await self._while_alive(self._llm.engine_core.call_utility_async(name, *args))

    async def _while_alive(self, answer):
        """Await ``answer``, or raise EngineDead: vLLM leaves whoever waits for a dead engine waiting."""
        from vllm.v1.engine.exceptions import EngineDeadError

        waiting = asyncio.ensure_future(answer)
        handler = self._llm.output_handler
        try:
            await asyncio.wait([waiting, handler], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise EngineDead(self._keep_log(EngineDeadError()))
            return waiting.result()
        except EngineDeadError as error:
            raise EngineDead(self._keep_log(error)) from error
        finally:
            waiting.cancel()

    def rss_bytes(self) -> int | None:
        import psutil

        total = 0
        for process in self._processes:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total or None

    @property
    def pids(self) -> list[int]:
        """The engine's own processes."""
        return [process.pid for process in self._processes]
