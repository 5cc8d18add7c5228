"""Secret seeds and attacks of the maintainers, which no submitter can know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from thiefbench import registry, strict_yaml
from thiefbench.engine.compatibility import drawn
from thiefbench.engine.keys import generator, secret_seed
from thiefbench.engine.spec import SpecError
from thiefbench.error_messages import problem
from thiefbench.errors import UserError
from thiefbench.suite.scenario import Part, Suite

_WRITE = "write seeds: [...] and attacks: [...]"


class HeldOutError(UserError):
    """A maintainer's file is missing or malformed. One sentence for the user."""


class HeldOut(BaseModel):
    """A maintainer's file: ``seeds: [...]`` and ``attacks: [spec, ...]``, either may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seeds: tuple[int, ...] = ()
    attacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeldOutTrial:
    """An attack at a seed that the submitter cannot know.

    Attributes:
        part: of the suite whose swarm is attacked.
        attack: in canonical form.
        seed: secret.
        clean_seed: of the swarms without an attack in which the defense takes part, another secret one. Otherwise what
            it saw in these would tell it, in an attacked swarm with the same honest nodes, who is malicious.
        held_out: whether attack or seed come from a maintainer's file, of which nothing is published.
    """

    part: Part
    attack: str
    seed: int
    clean_seed: int
    held_out: bool


def read_held_out(file: Path) -> HeldOut:
    """Read a maintainer's file.

    Raises:
        HeldOutError: it is missing or malformed.
        SpecStringError: an attack's spec string is wrong.
    """
    try:
        held_out = HeldOut.model_validate(strict_yaml.read(file).data or {}, strict=False)
    except FileNotFoundError as error:
        raise HeldOutError(f"there is no file {file}") from error
    except OSError as error:
        raise HeldOutError(f"{file} cannot be read: {error.strerror}") from error
    except strict_yaml.YamlError as error:
        raise HeldOutError(
            f"{file}, line {error.line}: {error.reason}; write seeds: [...] and attacks: [...]"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise HeldOutError(f"{file}: {where}: {problem(first)}; {_WRITE}") from error
    for each in held_out.attacks:
        registry.allow(each)  # the file is the maintainer's own
    return held_out.model_copy(
        update={"attacks": tuple(registry.canonical("attack", each) for each in held_out.attacks)}
    )


def trials(suite: Suite, fresh: int, all_attacks: bool, private: HeldOut, secret: bytes) -> list[HeldOutTrial]:
    """The trials beyond the submission: one attack of the suite, or all, and every held-out one, at secret seeds.

    Args:
        suite: released.
        fresh: how many seeds to draw.
        all_attacks: every attack of the suite, instead of one drawn at random.
        private: the maintainer's own seeds and attacks; attacks without any seed get one that is drawn.
        secret: of the verification; keys what is drawn (see `secret_seed`).

    Raises:
        SpecError: a held-out attack fits no part of the suite.
    """
    pairs = [(part, registry.canonical("attack", attack)) for part in suite.scenes for attack in part.attacks]
    chosen = pairs if all_attacks else [generator(secret_seed(secret, "attack")).choice(pairs)]
    drawn_seeds = [secret_seed(secret, "fresh", number) for number in range(1, fresh + 1)]

    def trial(part: Part, attack: str, seed: int, held_out: bool) -> HeldOutTrial:
        return HeldOutTrial(part, attack, seed, secret_seed(secret, "clean", seed), held_out)

    planned = [trial(*pair, seed, held_out=False) for seed in drawn_seeds for pair in chosen]
    planned += [trial(*pair, seed, held_out=True) for seed in private.seeds for pair in chosen]
    for attack in private.attacks:
        seeds = [*drawn_seeds, *private.seeds] or [secret_seed(secret, "held out")]
        planned += [trial(_fitting(suite, attack, seed), attack, seed, held_out=True) for seed in seeds]
    return planned


def _fitting(suite: Suite, attack: str, seed: int) -> Part:
    """The first part of a suite that an attack fits."""
    problem = SpecError(f"no part of {suite.title} takes a held-out attack")
    for part in suite.scenes:
        try:
            drawn(registry.make("attack", attack), seed, part.swarm, registry.make("task", part.task))
        except SpecError as error:
            problem = error
        else:
            return part
    raise problem
