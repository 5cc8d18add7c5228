"""Stage checks: what the other participants of a pipeline make of each stage, round by round."""
