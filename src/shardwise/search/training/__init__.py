"""Search of training strategies: every legal one, evaluated in arrays and ranked."""
