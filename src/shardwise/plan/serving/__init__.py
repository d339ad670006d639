"""Plans of serving: built, explained, swept, put under traffic, and rebuilt from plan.json."""
