# write_pools.py
import json
from pathlib import Path

HEADER = {
    "thiefbench_pool": 1,
    "task": "sums",
    "sampling": {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "max_new_tokens": 1024},
}


def append_round(file: Path, number: int, gathered: list[dict]) -> None:
    """Append what a node gathered in one round; a new file gets the header first."""
    new = not file.exists()
    with file.open("a", encoding="utf-8") as lines:
        if new:
            lines.write(json.dumps(HEADER) + "\n")
        for offer in gathered:
            lines.write(json.dumps({"round": number, **offer}) + "\n")


if __name__ == "__main__":
    pools = Path("pools.jsonl")
    question = {"item": "sum-1", "question": "What is 2 + 3?", "answer": "5"}
    append_round(
        pools,
        1,
        [
            {"sender": "peer-a", **question, "completions": ["2 + 3 = 5, so 5", "It is 6"], "rewards": [1.0, 0.0]},
            {"sender": "peer-b", **question, "completions": ["2 + 2 = 5, so 5"], "rewards": [1.0]},
        ],
    )
