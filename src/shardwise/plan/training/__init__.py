"""Plans of training: built, explained, swept, and rebuilt from plan.json."""
