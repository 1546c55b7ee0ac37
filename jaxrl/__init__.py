"""The engine: tasks, the rollout-update loop, ledger, checkpoints and run folders."""
