"""OPENAI_API_KEY goes to servers that the user named, and to none that only a file names."""

from __future__ import annotations

import os
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.bench import tiny
from tests.bench.test_judges import QUICK, SAMPLING, chat, chats, echo, server
from thiefbench import judges, registry, trust
from thiefbench.cli import app
from thiefbench.defenses.base import JudgeError
from thiefbench.judges import EndpointJudge
from thiefbench.suite.execution.jobs import Job
from thiefbench.suite.execution.worker_process import worked
from thiefbench.suite.store.records import CellDir, Store

SECRET = "sk-secret"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai", reason="the judge extra is not installed")
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(judges, "Patience", lambda: QUICK)


def seen_by(url: str, seen: list[dict[str, Any]]) -> str:
    """All that a server was sent in one request."""
    EndpointJudge(url, "m", QUICK).ask(chats("a"), SAMPLING, 1, 5)
    return "\n".join(f"{name}: {value}" for name, value in seen[-1]["headers"].items())


def test_a_server_that_nobody_named_gets_nothing_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"ORG_ID": "my-org", "PROJECT_ID": "my-project", "CUSTOM_HEADERS": "X-Mine: my-header"}
    for name, value in settings.items():
        monkeypatch.setenv(f"OPENAI_{name}", value)
    with server(echo) as (url, seen):
        headers = seen_by(url, seen)
        assert not [each for each in (SECRET, "my-org", "my-project", "my-header") if each in headers], headers
        assert "authorization: bearer none" in headers.lower(), "servers without keys get a placeholder"
        assert os.environ["OPENAI_API_KEY"] == SECRET, "the user's environment stays as it was"
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url.upper().replace('/V1', '/v1')}/")
        headers = seen_by(url, seen)
        assert f"Bearer {SECRET}" in headers
        assert "my-org" in headers


def test_another_server_s_name_is_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(echo) as (url, seen):
        for other in ("http://127.0.0.1:1/v1", f"{url}/more", url.replace("http:", "https:")):
            monkeypatch.setenv("OPENAI_BASE_URL", other)
            assert SECRET not in seen_by(url, seen), other


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("https://api.openai.com/v1", True), ("https://api.openai.com/v1/", True), ("HTTPS://API.OPENAI.COM/v1", True),
        ("http://api.openai.com/v1", False), ("https://api.openai.com.evil.example/v1", False),
        ("https://api.openai.com@evil.example/v1", False), ("https://evil.example/https://api.openai.com/v1", False),
        ("", False), ("https://", False),
    ],
)  # fmt: skip
def test_the_key_s_own_server_may_have_it(address: str, allowed: bool) -> None:
    assert trust.may_see_key(address) is allowed


def test_what_was_typed_may_have_it_at_every_level_of_nesting() -> None:
    spec = "reputation(defense=\"logit+judge(endpoint='http://localhost:1/v1')\")"
    with trust.declared_only():
        assert not trust.may_see_key("http://localhost:1/v1")
        registry.allow(spec)
        assert trust.may_see_key("http://localhost:1/v1")
        assert not trust.may_see_key("http://localhost:2/v1")
    assert not trust.may_see_key("http://localhost:1/v1"), "and the next command knows nothing of it"


def test_a_refusal_for_want_of_the_key_says_what_to_do() -> None:
    notes: list[str] = []
    with server(lambda number, body: (401, {"error": {"message": "bad key"}})) as (url, _):
        judge = EndpointJudge(url, "m", QUICK, note=notes.append)
        for _ in range(2):
            with pytest.raises(JudgeError, match=r"refused: 401.*set OPENAI_BASE_URL to its address or type"):
                judge.ask(chats("a"), SAMPLING, 1, 5)
    assert len(notes) == 1, "and before that the user is told once"
    assert "is asked without a key: OPENAI_API_KEY is sent only to servers that you name yourself" in notes[0]


def test_without_a_key_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    notes: list[str] = []
    with server(lambda number, body: (401, {})) as (url, _), pytest.raises(JudgeError) as raised:
        EndpointJudge(url, "m", QUICK, note=notes.append).ask(chats("a"), SAMPLING, 1, 5)
    assert notes == []
    assert "OPENAI" not in str(raised.value)


def test_a_worker_knows_what_the_user_typed(tmp_path: Path) -> None:
    (spec, *_) = tiny.cells(tiny.suite())
    job = Job(spec, CellDir(tmp_path), {"sources": {}}, (), True, ("http://localhost:1/v1",))
    known: list[bool] = []

    def work(job: Job, *_: Any) -> Any:
        known.extend(trust.may_see_key(f"http://localhost:{port}/v1") for port in (1, 2))

    worked(Job.from_json(job.to_json()), False, None, work)  # type: ignore[arg-type]
    assert known == [True, False]


@pytest.mark.parametrize(
    ("workers", "typed"),
    [(1, True), (1, False), *(pytest.param(2, typed, marks=pytest.mark.slow) for typed in (True, False))],
)
def test_a_suite_file_gets_no_key_for_its_judge(tmp_path: Path, workers: int, typed: bool) -> None:
    tiny.run(
        tiny.suite("none", rounds=1), tmp_path / "store"
    )  # so that the judge's cell is left, and one worker starts
    with server(lambda number, body: (200, chat("fine"))) as (url, seen):
        judge = f"judge(endpoint='{url}')"
        file = tiny.suite_file(tmp_path, attacks=[tiny.ATTACK], rounds=1, defenses=["none", *([judge] * (not typed))])
        assert (judge in yaml.safe_load(file.read_text())["defenses"]) is not typed
        words = ["run", file, "--store", tmp_path / "store", "--trust-plugins", "--threads", 1, "--workers", workers]
        words += ["--defense", judge] if typed else []
        result = Context().run(CliRunner().invoke, app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
    assert {each["key"] for each in seen} == {f"Bearer {SECRET if typed else 'none'}"}
    assert {record.status for record in Store(tmp_path / "store").records()} == {"ok"}
