"""What any run needs, whatever it trains: its folder, checkpoints, devices, processes, progress."""
