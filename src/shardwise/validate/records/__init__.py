"""What every published record states: checked fields, models, machines."""
