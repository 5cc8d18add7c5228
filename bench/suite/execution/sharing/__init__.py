"""Cells take over rounds that are the same as in finished cells: `shared_rounds` says which, and why that is exact.

`marks` are hashes by which equal rounds are found, `following` plays a swarm with recorded rounds, `rehearsals` does
the same for attacks that rehearse, `stored_rewards` for what a judge said, and `shared_folder` is where all of it lies.
"""
