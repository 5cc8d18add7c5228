"""A model's folder may bring code of its own; it is never run, and nobody is asked whether it may be."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

import thiefbench
from tests.bench import tiny
from thiefbench.engine.model.policy import ModelError, Policy

CODE = """
from pathlib import Path

Path({marker!r}).touch()

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


class Config(PretrainedConfig):
    model_type = {kind!r}


class Model(PreTrainedModel):
    pass


class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize("kind", ["qwen2", "no_such_model"])
def test_code_in_a_models_folder_is_not_run(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder, marker = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(model_dir, folder)
    (folder / "code.py").write_text(CODE.format(marker=str(marker), kind=kind))
    auto = {
        "AutoConfig": "code.Config",
        "AutoModelForCausalLM": "code.Model",
        "AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"],
    }
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        changes = {"auto_map": auto} | ({"model_type": kind} if name == "config.json" else {})
        changes |= {"tokenizer_class": "Tokenizer"} if kind != "qwen2" and name != "config.json" else {}
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    asked: list[str] = []

    def yes(prompt: str = "") -> str:
        asked.append(prompt)
        return "y"

    monkeypatch.setattr("builtins.input", yes)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    try:
        Policy.load(folder)
    except ModelError as error:
        assert kind != "qwen2", f"a model of a known kind is loaded without its code: {error}"
        assert "\n" not in str(error), "one sentence"
    assert not marker.exists()
    assert asked == [], "and nobody is asked"


def test_every_loader_of_a_library_is_told_so() -> None:
    """Models, tokenizers and configurations, wherever the package loads one."""
    found = 0
    for path in Path(str(thiefbench.__file__)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("from_pretrained", "from_config", "load_dataset") and "Auto" in ast.unparse(
                node.func
            ):
                found += 1
                told = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert told.get("trust_remote_code") == "False", f"{path}, line {node.lineno}"
    assert found >= 5


@pytest.mark.parametrize(
    "key", ["_attn_implementation", "attn_implementation", "_experts_implementation", "_attn_implementation_internal"]
)
def test_a_configuration_that_asks_for_a_kernel_is_refused(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.model(), folder)
    config = json.loads((folder / "config.json").read_text())
    for value in ("someone/kernel@0123", {"": "someone/kernel"}):
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(ModelError, match="asks for the kernel someone/kernel"):
            Policy.load(folder)


def test_an_index_that_names_pickles_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.model(), folder)
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"names the weights pytorch_model\.bin; only safetensors are read"):
        Policy.load(folder)
