"""The verbs, one file each. `training` and `serving` hold the two forms of a verb that has both."""
