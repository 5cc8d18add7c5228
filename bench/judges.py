"""The judges that defenses ask: a model loaded here, or an OpenAI-compatible server.

A defense only names its judge (`thiefbench.defenses.base.JudgeSpec`); this module creates it.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from thiefbench.defenses.base import Defense, JudgeError, JudgeSpec
from thiefbench.engine.keys import key
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Dtype, Policy, check_directory
from thiefbench.engine.spec import SpecError
from thiefbench.engine.views.defender import Judge, fits
from thiefbench.tasks.base import Message, Sampling
from thiefbench.tasks.text import one_line
from thiefbench.trust import may_see_key
from thiefbench.zoo.models import resolve, weights_fingerprint

if TYPE_CHECKING:
    from openai import OpenAI

_NO_KEY = "none"
_KEYLESS = (
    "OPENAI_API_KEY is sent only to servers that you name yourself; if it is meant for this one, set OPENAI_BASE_URL "
    "to its address or type the defense as an option"
)

# Statuses after which the same request may yet succeed; any other 4xx is a refusal.
PASSING = frozenset({408, 409, 425, 429})


def check_judge(defense: Defense) -> None:
    """Fail before a run if a defense requires a judge that cannot be created.

    Raises:
        SpecError: it names none, or names a server and the client is not installed.
        ModelError: it names a directory without a model.
    """
    if defense.judge is None:
        raise SpecError(
            f"the defense {defense.name} requires a judge and names none; set its attribute judge to a JudgeSpec"
        )
    check_judge_spec(defense.judge)


def check_judge_spec(spec: JudgeSpec) -> None:
    """Fail before a run if a judge cannot be created.

    Raises:
        SpecError: it is a server, and the client is not installed.
        ModelError: it names a directory without a model.
    """
    if spec.endpoint is None:
        check_directory(resolve(spec.model))
    elif importlib.util.find_spec("openai") is None:
        raise SpecError(
            "a judge behind an endpoint needs the openai package; write pip install '.[judge]' in a checkout"
        )


def judge_identity(spec: JudgeSpec) -> dict[str, str]:
    """A judge's part of a cell's identity: the weights of a local model, or the address and model name of a server."""
    if spec.endpoint is not None:
        return {"endpoint": spec.endpoint, "model": spec.model}
    return {"weights": weights_fingerprint(spec.model)}


def judge_of(
    spec: JudgeSpec, device: str = "cpu", dtype: Dtype = "float32", note: Callable[[str], None] = lambda message: None
) -> Judge:
    """The judge that a defense names.

    Args:
        spec: the judge's model or server.
        device, dtype: device and dtype of a local model.
        note: called with a message when a server does not answer and is asked again.

    Raises:
        ModelError: the model cannot be loaded.
    """
    if spec.endpoint is not None:
        return EndpointJudge(spec.endpoint, spec.model, note=note)
    return ModelJudge(_loaded(resolve(spec.model), device, dtype))


@lru_cache(maxsize=1)
def _loaded(source: str, device: str, dtype: Dtype) -> Policy:
    """A judge's model, kept for the next cell: its weights never change, and large models take minutes to load."""
    return Policy.load(source, device, dtype)


class ModelJudge:
    """A model loaded here.

    Args:
        policy: the model; it is never changed.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def ask(self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int) -> list[list[str]]:
        """`votes` replies to each prompt, none to one that is too long.

        Noise is keyed by the prompt's content and the number of the vote, and prompts are run in a fixed order, so
        replies depend only on the set of prompts.
        """
        prompt_ids = [tuple(self._policy.quoting_prompt_ids(prompt)) for prompt in prompts]
        fitting = {ids for ids in prompt_ids if fits(self._policy, ids, sampling.max_new_tokens)}
        unique_prompts = sorted(
            fitting, key=lambda ids: (len(ids), ids)
        )  # by length, because prompts of a batch are padded to the same length
        rows = [row for row in range(len(unique_prompts)) for _ in range(votes)]
        digests = [sha256(repr(ids).encode()).hexdigest() for ids in unique_prompts]
        keys = [key(noise, name, vote) for name in digests for vote in range(votes)]
        samples = iter(sample(self._policy, unique_prompts, rows, keys, sampling))
        replies = {ids: [next(samples).text for _ in range(votes)] for ids in unique_prompts}
        return [list(replies.get(ids, ())) for ids in prompt_ids]


class ImpatientJudge:
    """A judge that is asked only until it fails: after its first failure, every later call fails at once.

    Args:
        judge: the judge to ask.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge, self._problem = judge, ""

    def ask(self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int) -> list[list[str]]:
        """The judge's replies.

        Raises:
            JudgeError: it does not answer, now or before.
        """
        if self._problem:
            raise JudgeError(self._problem)
        try:
            return self._judge.ask(prompts, sampling, votes, noise)
        except JudgeError as error:
            self._problem = str(error)
            raise


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server.

    Attributes:
        timeout: seconds until a request counts as unanswered.
        first_wait, longest_wait: seconds before the first repetition, doubled for every further one up to the longest.
        tries: attempts in a row without any reply after which the judge has not answered.
    """

    timeout: float = 120.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    tries: int = 10

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.longest_wait, self.first_wait * 2.0 ** (failures - 1))


class _UnansweredError(Exception):
    """A request that may succeed when it is repeated; says why it did not."""


class EndpointJudge:
    """A model behind an OpenAI-compatible chat endpoint.

    Args:
        endpoint: base URL, such as "http://localhost:8000/v1".
        model: the name it is served under.
        patience: how long to wait for it.
        at_once: requests under way at the same time.
        note: called with a message when it does not answer and is asked again.

    The key is read from OPENAI_API_KEY if the server may see it (see `thiefbench.trust`); other servers get a
    placeholder and none of the environment's other settings for OpenAI. Requests include a seed, but a server may
    ignore it, so that cells may not be reproducible bit for bit.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        patience: Patience | None = None,
        at_once: int = 16,
        note: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.endpoint, self.model, self.note, self.at_once = endpoint, model, note, at_once
        self.patience = patience or Patience()
        self._trusted = may_see_key(endpoint)
        self._keyless = "" if self._trusted or not os.environ.get("OPENAI_API_KEY") else _KEYLESS
        self._warned = False

    def ask(self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int) -> list[list[str]]:
        """`votes` replies to each prompt, none to one that is too long for the server.

        Raises:
            JudgeError: the server refuses, or has not answered within the judge's patience.
        """
        if self._keyless and not self._warned:
            self._warned = True
            self.note(f"the judge at {self.endpoint} is asked without a key: {self._keyless}")
        waiting = [(row, vote) for row in range(len(prompts)) for vote in range(votes)]
        replies: dict[tuple[int, int], str | None] = {}
        failures = 0
        with self._client() as client:

            def one(place: tuple[int, int]) -> str | None:
                messages = prompts[place[0]]
                seed = key(noise, sha256(repr(messages).encode()).hexdigest(), place[1]) & 0x7FFFFFFF
                return _request(client, self.model, messages, sampling, seed, self._keyless)

            while waiting:
                answered, problem = self._wave(one, waiting)
                replies |= answered
                waiting = [place for place in waiting if place not in answered]
                if problem is None:
                    continue
                failures = 1 if answered else failures + 1
                if failures >= self.patience.tries:
                    raise JudgeError(f"the judge at {self.endpoint} did not answer: {problem}") from problem
                pause = self.patience.wait(failures)
                self.note(f"the judge at {self.endpoint} does not answer, trying again in {pause:.0f} s: {problem}")
                time.sleep(pause)
        return [
            [reply for vote in range(votes) if (reply := replies[row, vote]) is not None] for row in range(len(prompts))
        ]

    def _client(self) -> OpenAI:
        """A client of the server, without the environment's settings for OpenAI unless the server may see them."""
        from openai import OpenAI

        settings: dict[str, Any] = {"base_url": self.endpoint, "timeout": self.patience.timeout, "max_retries": 0}
        if self._trusted:
            return OpenAI(**settings, api_key=os.environ.get("OPENAI_API_KEY") or _NO_KEY)
        hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OPENAI_")}
        try:
            return OpenAI(**settings, api_key=_NO_KEY)
        finally:
            os.environ.update(hidden)

    def _wave(
        self, one: Callable[[tuple[int, int]], str | None], places: Sequence[tuple[int, int]]
    ) -> tuple[dict[tuple[int, int], str | None], _UnansweredError | None]:
        """Replies up to the first request without an answer, and the reason; requests after it are not sent.

        Raises:
            JudgeError: the server refuses.
        """
        pool = ThreadPoolExecutor(self.at_once)
        try:
            running = {pool.submit(one, place): place for place in places}
            wait(running, return_when=FIRST_EXCEPTION)
            pool.shutdown(wait=True, cancel_futures=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        answered: dict[tuple[int, int], str | None] = {}
        problem: _UnansweredError | None = None
        for future, place in running.items():
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                answered[place] = future.result()
            elif isinstance(error, _UnansweredError):
                problem = problem or error
            elif isinstance(error, JudgeError):
                raise JudgeError(f"the judge at {self.endpoint} {error}") from error
            else:
                raise error
        return answered, problem


def _request(
    client: OpenAI, model: str, messages: Sequence[Message], sampling: Sampling, seed: int, keyless: str
) -> str | None:
    """One reply; None if the prompt is too long for the server.

    Args:
        client: of the server.
        model, messages, sampling, seed: of the request.
        keyless: why it is sent without the user's key; empty if it is sent with the key, or if there is none.

    Raises:
        _UnansweredError: no reply came, or none in the format of a chat completion.
        JudgeError: the server refuses such requests.
    """
    import openai

    try:
        response = client.chat.completions.create(
            model=model, messages=list(messages), seed=seed,
            temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_new_tokens,
            extra_body={"top_k": sampling.top_k} if sampling.top_k else None,
        )  # fmt: skip
        reply = response.choices[0].message.content
    except openai.APIStatusError as error:
        refusal = one_line(f"{error.status_code} {error.response.text}", 300)
        if error.status_code in PASSING or error.status_code >= 500:
            raise _UnansweredError(refusal) from error
        if error.status_code in (400, 413) and ("context" in refusal or "too long" in refusal):
            return None
        hint = "; write top_k=0 for a server that takes no top_k" if "top_k" in refusal else ""
        if keyless and error.status_code in (401, 403):
            hint = f"; {keyless}"
        raise JudgeError(f"refused: {refusal}{hint}") from error
    except openai.APITimeoutError as error:
        raise _UnansweredError(f"no reply within {client.timeout} s") from error
    except openai.APIConnectionError as error:
        raise _UnansweredError(f"no connection ({error.__cause__ or error})") from error
    except (openai.OpenAIError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise _UnansweredError("its reply is no chat completion") from error
    if not isinstance(reply, str):
        raise _UnansweredError("its reply is no chat completion")
    return reply
