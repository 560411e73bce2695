"""What the core costs, as ratios to a floor in the same run. `make bench` runs it."""
