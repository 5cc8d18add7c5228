# load_dataset.py
import datasets

import thiefbench

folder = thiefbench.load("runs/smoke").write_parquet("exported")
dataset = datasets.load_dataset("parquet", data_files=str(folder / "completions.parquet"), split="train")
learned = dataset.filter(lambda row: row["phase"] == "eval" and row["outcome"] == 1 and row["defense"] == "none")
print(learned["text"][:3])  # held-out answers with the payload
