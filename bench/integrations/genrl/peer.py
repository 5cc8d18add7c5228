"""One peer of a live swarm: a process that plays GenRL's game and reports every round.

The process that starts it (`thiefbench.integrations.genrl.swarm`) writes the settings and later notes to its standard
input and reads reports, one JSON object per line, from the descriptor that it names.
"""

from __future__ import annotations

import _thread
import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, TextIO

import torch

from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.engine.context import items_of
from thiefbench.engine.keys import generator, key
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_plan import distinct_indices
from thiefbench.engine.round_record import CompletionRow
from thiefbench.integrations.genrl.arrivals import PoolReader, ReceivedPool, accepted
from thiefbench.integrations.genrl.attack import drawn_attack, malicious
from thiefbench.integrations.genrl.backend import LoopbackBackend
from thiefbench.integrations.genrl.defense import DefendedDataManager, defended
from thiefbench.integrations.genrl.game import TaskDataManager, task_rewards
from thiefbench.integrations.genrl.library import (
    BaseGameManager,
    GameState,
    GRPOLanguageTrainerModule,
    GRPOTrainerConfig,
)
from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.integrations.genrl.tokenizer import CompletionsPaddedRight
from thiefbench.tasks.base import Completion, Item, Task
from thiefbench.user_frames import described
from thiefbench.zoo.models import resolve

ADVANTAGE_EPSILON = 1e-8
"""GenRL's, added to the group's standard deviation."""


class Reports:
    """Where a peer reports to: one JSON object per line.

    Args:
        file: the pipe to the process that started the peer.
    """

    def __init__(self, file: TextIO) -> None:
        self._file, self._lock = file, threading.Lock()

    def send(self, kind: str, **content: Any) -> None:
        """Send a report."""
        with self._lock:
            self._file.write(json.dumps({"kind": kind, **content}) + "\n")
            self._file.flush()


class ReportingGame(BaseGameManager):  # type: ignore[misc]
    """GenRL's game manager with reports in the hooks that it offers; what it plays is unchanged.

    Args:
        parts: of `BaseGameManager`.
        swarm: the settings.
        node: the peer's number.
        reports: where it reports to.
    """

    def __init__(self, parts: dict[str, Any], swarm: LiveSwarm, node: int, reports: Reports) -> None:
        super().__init__(max_stage=1, max_round=swarm.rounds, run_mode="train", **parts)
        self._swarm, self._number, self._reports = swarm, node, reports
        self._task: Task = registry.make("task", swarm.task)
        self._attack: Attack = drawn_attack(swarm.attack, self._task, swarm.seed)
        self._reader = PoolReader(self.trainer, self._task, swarm.group)
        self._began = time.monotonic()
        self._rows: list[CompletionRow] = []
        self._batches: dict[int, str] = {}
        self._seconds: dict[str, float] = {}
        self.stopping = False
        self.problem = ""

    @property
    def _honest(self) -> bool:
        return self._number < self._swarm.honest

    def reward(self, item: Item, text: str) -> float:
        """The task's reward of one text, for attacks that ask."""
        return self._task.reward(item, [text])[0]

    def end_of_game(self) -> bool:
        """Also after a request to stop, and when the defense cannot judge."""
        return self.stopping or bool(self.problem) or super().end_of_game()

    def begin(self) -> None:
        """Report the peer's start and its model's first answers."""
        rows = self._evaluated(0, self._swarm.evaluation.completions) if self._honest else []
        self._reports.send("start", payload=self._attack.describe(), rows=_plain(rows))
        self._began = time.monotonic()

    def _hook_after_rewards_updated(self) -> None:
        self._seconds = {"gather": self.communication.wall, "play": time.monotonic() - self._began}
        if isinstance(self.data_manager, DefendedDataManager):
            self.problem = self.data_manager.problem
        self._rows = self._train_rows() if self._honest and not self.problem else []

    def _hook_after_round_advanced(self) -> None:
        if self.problem:
            self._reports.send("problem", problem=self.problem)
            return
        number = self.state.round  # rounds finished
        self._seconds["update"] = time.monotonic() - self._began - self._seconds["play"]
        seconds = time.monotonic() - self._began
        if not all(bool(weight.isfinite().all()) for weight in self.trainer.model.parameters()):
            self.problem = f"after round {number}, the weights are not finite numbers"
            self._reports.send("problem", problem=self.problem)
            return
        report: dict[str, Any] = {"round": number, "seconds": seconds, "phases": self._seconds}
        if self.trainer.global_step != number:  # GenRL logs what its trainer raises, and continues
            report["note"] = "GenRL's update failed in this round; see the peer's log"
            self.trainer.global_step = number
        rows = self._rows
        if self._honest and (count := self._swarm.evaluation.due(number, self._swarm.rounds)):
            rows = [*rows, *self._evaluated(number, count)]
        self._reports.send("round", **report, rows=_plain(rows, self._batches))
        self._began = time.monotonic()

    def _train_rows(self) -> list[CompletionRow]:
        """The round's pool at this peer, with what its update learns from each completion."""
        number, manager = self.state.round + 1, self.data_manager
        inspection = manager.inspection if isinstance(manager, DefendedDataManager) else None
        # If gathering fails, GenRL goes on alone, and the last inspection is that of an earlier round.
        if inspection is not None and inspection.pool.round == number:
            pool, verdicts, entered = inspection.pool, inspection.verdicts, inspection.entered
        else:
            pool = self._reader.read(number, self.communication.gathered)
            verdicts, entered = accepted(pool), {}
        self._batches = {place: group.batch for place, group in enumerate(pool.groups)}
        rows: list[CompletionRow] = []
        for offered, verdict, advantage in zip(pool.offered, verdicts, self._advantages(pool, entered), strict=True):
            group = pool.groups[offered.group]
            completion = Completion(offered.ids, offered.text, offered.ended)
            place = len(rows)
            rows.append(
                CompletionRow(
                    phase="train", round=pool.round, node=-1, sender=group.sender, item_id=offered.item_id,
                    group=offered.group, place=offered.index, ids=offered.ids, text=offered.text, ended=offered.ended,
                    malicious=False, payload=False, reward=offered.reward, refused=pool.problems.get(place, ""),
                    action=verdict.action, score=verdict.score, reason=verdict.reason, token_weights=None,
                    advantage=advantage, outcome=self._attack.outcome(group.item, completion, self),
                    cohort=self._number, label=f"peer {self._number}",
                )
            )  # fmt: skip
        return rows

    def _advantages(self, pool: ReceivedPool, entered: Any) -> list[float]:
        """By completion, the sum of the advantages with which it stands in the game trees; 0 for others."""
        sums: dict[tuple[int, int], float] = {}
        rewards = self.rewards[0]
        for place, group in enumerate(pool.groups):
            row = rewards.get(group.sender, {}).get(group.batch)
            if row is None:
                continue
            values = torch.tensor(row[0])
            advantages = ((values - values.mean()) / (values.std() + ADVANTAGE_EPSILON)).tolist()
            indices: Sequence[int] = entered.get(group.name, range(len(advantages)))
            for index, advantage in zip(indices, advantages, strict=True):
                sums[place, index] = sums.get((place, index), 0.0) + advantage
        return [sums.get((offered.group, offered.index), 0.0) for offered in pool.offered]

    def _evaluated(self, number: int, count: int) -> list[CompletionRow]:
        """Answers to held-out items, and to the attack's probes if it has any."""
        held_out, probes = items_of(self._task, "test"), list(self._attack.probes(self._task) or ())
        rows = self._answers("eval", number, held_out, count, judged=not probes)
        return [*rows, *self._answers("probe", number, probes, count, judged=True)] if probes else rows

    def _answers(self, phase: str, number: int, pool: Sequence[Item], count: int, judged: bool) -> list[CompletionRow]:
        """Answers of the peer's model, with the items and the noise of `thiefbench run` at the same seed."""
        seed, policy = self._swarm.seed, self._reader.policy
        order = generator(seed, "evaluation").sample(range(len(pool)), len(pool))
        items = [pool[order[place % len(pool)]] for place in range(count)]
        prompts = distinct_indices(items)
        answers = sample(
            policy,
            [policy.prompt_ids(self._task.messages(item)) for item in {item.id: item for item in items}.values()],
            [prompts[item.id] for item in items],
            [key(seed, "eval", 0, -1, 0, item.id, place) for place, item in enumerate(items)],
            self._swarm.sampling,
        )
        rewards = self._task.rewards(items, [answer.text for answer in answers])
        outcome = self._attack.outcome if judged else self._attack.spill
        return [
            CompletionRow(
                phase=phase, round=number, node=-1, sender="", item_id=item.id, group=-1, place=place, ids=answer.ids,
                text=answer.text, ended=answer.ended, malicious=False, payload=False,
                reward=reward if policy.special.isdisjoint(answer.ids) else 0.0, refused="", action="accept",
                score=None, reason="", token_weights=None, advantage=0.0, outcome=outcome(item, answer, self),
                cohort=self._number, label=f"peer {self._number}",
            )
            for place, (item, answer, reward) in enumerate(zip(items, answers, rewards, strict=True))
        ]  # fmt: skip


def _plain(rows: Sequence[CompletionRow], batches: Mapping[int, str] = MappingProxyType({})) -> list[dict[str, Any]]:
    """Rows as JSON, with the names that their groups were sent under; answers to held-out items have none."""
    return [asdict(row) | {"batch": batches.get(row.group, "")} for row in rows]


def game_of(swarm: LiveSwarm, node: int, backend: LoopbackBackend, reports: Reports) -> ReportingGame:
    """A peer's game."""
    policy = Policy.load(resolve(swarm.model))
    held = (swarm.local + swarm.external) * swarm.group
    tokenizer = CompletionsPaddedRight(policy.tokenizer) if swarm.padding == "right" else None  # None: GenRL's own
    config = GRPOTrainerConfig(
        epsilon=swarm.epsilon, epsilon_high=swarm.epsilon_high, temperature=swarm.sampling.temperature,
        top_k=swarm.sampling.top_k, top_p=swarm.sampling.top_p, max_new_tokens=swarm.sampling.max_new_tokens,
        num_generations=swarm.group, learning_rate=swarm.learning_rate, minibatch_size=swarm.minibatch or held,
        enable_gradient_checkpointing=False,
    )  # fmt: skip
    game = ReportingGame(
        {
            "game_state": GameState(round=0, stage=0),
            "reward_manager": task_rewards(swarm.task, swarm.rounds),
            "trainer": GRPOLanguageTrainerModule([policy.model], config, processing_class=tokenizer),
            "data_manager": TaskDataManager(
                swarm.task, swarm.local, swarm.group, swarm.external, swarm.seed, node
            ),
            "communication": backend,
        },
        swarm,
        node,
        reports,
    )  # fmt: skip
    if node >= swarm.honest:
        malicious(game, swarm.attack, swarm.task, swarm.seed, node, swarm.role)
        game.communication.about_to_send = lambda sent: reports.send("sent", round=sent.round, payload=sent.payload)
    elif swarm.defense != "none":
        defended(game, swarm.defense, swarm.task, swarm.seed)
    return game


def listen(game: ReportingGame, backend: LoopbackBackend, notes: TextIO) -> None:
    """Follow the notes of the process that started this peer; without it, end with everything that was started."""
    for line in notes:
        note = json.loads(line)
        if "alive" in note:
            backend.world_size = note["alive"]
        if "stop" in note:
            game.stopping = True
            _thread.interrupt_main()
    if not game.stopping:
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Play one game; the arguments are the peer's number and the descriptor for reports."""
    node = int(sys.argv[1])
    reports = Reports(os.fdopen(int(sys.argv[2]), "w", encoding="utf-8"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s: %(message)s")
    first = json.loads(sys.stdin.readline())
    swarm = LiveSwarm.from_json(first["swarm"])
    torch.set_num_threads(swarm.threads)
    backend = LoopbackBackend(first["initial_peers"], world_size=swarm.nodes, timeout=swarm.timeout)
    try:
        reports.send("joined", peer=backend.get_id(), addresses=backend.addresses)
        game = game_of(swarm, node, backend, reports)
        threading.Thread(target=listen, args=(game, backend, sys.stdin), daemon=True).start()
        random.seed(key(swarm.seed, "transplants", node))
        torch.manual_seed(key(swarm.seed, "genrl", node))
        game.begin()
        gc.freeze()  # GenRL collects garbage after every update; what imports made would be searched each time
        game.run_game()
        if not game.end_of_game():  # GenRL logs what ends a game, and raises nothing
            reports.send("problem", problem=f"its game ended in round {game.state.round + 1}; see the peer's log")
        reports.send("end", rounds=game.state.round)
    except KeyboardInterrupt:
        reports.send("end", rounds=-1)
    except Exception as error:
        logging.exception("the peer failed")
        reports.send("problem", problem=described(error))
    finally:
        backend.dht.shutdown()


if __name__ == "__main__":
    main()
