"""What this machine has, allows and is doing, beside what the planner reads itself."""
