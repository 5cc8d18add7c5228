"""Running cells: one after another, in several processes, on Ray, or with one process per node.

In the order in which a run needs them:

1. `runner` checks what a suite asks for and finds the cells that the store lacks; `cell_identity` says what each of
   them is, and so when a stored one is still valid.
2. An executor (`executors`) works on the list: `workers` starts processes (`worker_process`), `ray_executor` tasks on a
   cluster (`ray_worker`), and `torchrun` makes every node of a swarm a process. They all speak the words of `jobs`.
3. `cell_run` plays one cell to its end, `checkpoints` keep what it has finished, and `sharing` takes over what another
   cell has already played.
4. Where nodes exchange weights or are pipelines, `aggregations` and `stage_checks` say which rule a cell's defense is;
   `valid_verdicts` looks at what the rule says.
"""
