"""What only a GPU can show: `make gpu-check` serves with vLLM's CUDA build and prints a table of what held.

Each check is a function ``run(setting, say) -> rows`` in a file of its own, listed in ``checks``; ``contained`` runs
them in a process beside, so that none keeps another from running; ``table`` says what they found.
"""
