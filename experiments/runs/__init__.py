"""Infrastructure of runs: folders, checkpoints, devices, processes and progress."""
