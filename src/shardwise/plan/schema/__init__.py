"""Plans as values, whose field names are the keys of plan.json, and their JSON."""
