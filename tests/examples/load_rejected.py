# load_rejected.py
import pyarrow.compute as pc

import thiefbench

defended = thiefbench.load("runs/smoke").where(pc.field("defense") != "none")
honest = ~pc.field("malicious") & (pc.field("reward") > 0)
rejected = defended.completions.filter(honest & (pc.field("action") != "accept"))
for row in rejected.select(["round", "defense", "reason", "text"]).slice(0, 5).to_pylist():
    print(row)  # honest answers that a defense rejected, and why
